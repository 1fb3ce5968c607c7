//! A few hundred seeds on every change; `make simulate` runs as many as are wanted.

use std::sync::atomic::{AtomicU64, Ordering};

use cursus_simulation::{Plan, Step, What, run};

const SEEDS: u64 = 200;

#[test]
fn no_seed_contradicts_the_contract() {
    let (next, found) = (AtomicU64::new(0), std::sync::Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, Into::into);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= SEEDS {
                        return;
                    }
                    if let Some(violation) = run(&Plan::drawn(seed), false).violation {
                        found.lock().unwrap().push(format!("`make simulate SEED={seed}`: {violation}"));
                    }
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    assert!(found.is_empty(), "{} of {SEEDS} seeds failed:\n{}", found.len(), found.join("\n"));
}

#[test]
fn a_seed_does_the_same_again() {
    for seed in 0..20 {
        let plan = Plan::drawn(seed);
        let (once, again) = (run(&plan, false), run(&plan, false));
        assert_eq!(once.fingerprint, again.fingerprint, "seed {seed} went two ways");
        assert!(once.delivered > 0 || once.done.is_empty(), "seed {seed} delivered nothing");
    }
}

#[test]
fn a_plan_is_read_back_as_it_was_written() {
    let plan = Plan::drawn(7);
    plan.check().unwrap();
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
}

#[test]
fn a_plan_that_names_what_is_not_there_is_refused() {
    type Harm = fn(&mut Plan);
    let wrong: [(&str, Harm); 6] = [
        ("a member", |plan| plan.members.clear()),
        ("earliest or latest", |plan| plan.reset = "sometimes".to_owned()),
        ("fetch_wait", |plan| plan.members[0].settings.push(("fetch_wait".to_owned(), "1".to_owned()))),
        ("member 9", |plan| plan.steps.push(Step { at_ms: 0, what: What::Ask { member: 9 } })),
        ("broker 9", |plan| plan.steps.push(Step { at_ms: 0, what: What::Freeze { broker: 9 } })),
        ("no command", |plan| {
            plan.steps.push(Step { at_ms: 0, what: What::Hold { command: "NOPE".to_owned(), ms: 1 } });
        }),
    ];
    for (named, harm) in wrong {
        let mut plan = Plan::drawn(7);
        harm(&mut plan);
        let error = plan.check().expect_err(named);
        assert!(error.contains(named), "{error:?} doesn't name {named:?}");
    }
}

/// Schedules that once broke the contract, as small as they could be made; each is named for what it broke.
#[test]
fn what_was_found_once_stays_mended() {
    let found = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("found");
    let mut plans: Vec<_> = std::fs::read_dir(found).unwrap().map(|entry| entry.unwrap().path()).collect();
    plans.sort();
    assert!(!plans.is_empty(), "the plans are gone");
    for path in plans {
        let plan: Plan = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        plan.check().unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        let violation = run(&plan, false).violation;
        assert!(violation.is_none(), "{}: {}", path.display(), violation.unwrap_or_default());
    }
}
