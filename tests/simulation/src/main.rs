//! `simulate`: runs seeds, reports what was done and looked at, and replays or shrinks the one that failed.
#![allow(clippy::print_stdout, clippy::print_stderr)] // It is a program, and this is what it has to say.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use cursus_simulation::{Checks, Outcome, Plan, run, shrink};

/// Runs the engine and the embedded cluster on a simulated network and clock.
#[derive(Parser)]
struct Arguments {
    /// How many seeds.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first one.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Only this one: its plan, and on the standard error output everything that happens.
    #[arg(long, conflicts_with = "plan")]
    seed: Option<u64>,
    /// Only the plan in this file, likewise.
    #[arg(long)]
    plan: Option<PathBuf>,
    /// Finds the smallest schedule of this seed or plan that still fails.
    #[arg(long)]
    shrink: bool,
    /// Goes on after a violation.
    #[arg(long)]
    keep_going: bool,
    /// How many seeds run at a time, each on a thread of its own. All cores where it isn't given.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
}

#[derive(Default)]
struct Totals {
    done: BTreeMap<String, u64>,
    checks: Checks,
    delivered: u64,
    simulated: Duration,
    failed: Vec<(u64, String)>,
}

impl Totals {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        for (kind, count) in outcome.done {
            *self.done.entry(kind).or_default() += count;
        }
        for (check, count) in outcome.checks {
            *self.checks.entry(check).or_default() += count;
        }
        self.delivered += outcome.delivered;
        self.simulated += outcome.simulated;
        if let Some(violation) = outcome.violation {
            println!("seed {seed} FAILED {violation}");
            println!("  to see it again: make simulate SEED={seed}; its smallest schedule: add ARGS=--shrink");
            self.failed.push((seed, violation));
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let one = match (&arguments.plan, arguments.seed) {
        (Some(path), _) => {
            let text = match std::fs::read_to_string(path) {
                Ok(text) => text,
                Err(error) => return refuse(&format!("{}: {error}", path.display())),
            };
            let plan = serde_json::from_str(&text).map_err(|error| error.to_string());
            match plan.and_then(|plan: Plan| plan.check().map(|()| plan)) {
                Ok(plan) => Some(plan),
                Err(error) => return refuse(&format!("{} is no plan: {error}", path.display())),
            }
        }
        (None, Some(seed)) => Some(Plan::drawn(seed)),
        (None, None) => None,
    };
    match one {
        Some(plan) => replay(plan, arguments.shrink),
        None if arguments.shrink => refuse("--shrink needs one that fails: --seed N or --plan FILE"),
        None => many(&arguments),
    }
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::from(2)
}

/// Runs one plan, and tells all of it. On the standard output is nothing but the plan, to be kept.
fn replay(mut plan: Plan, smaller: bool) -> ExitCode {
    if smaller {
        if run(&plan, false).violation.is_none() {
            return refuse(&format!("seed {} has no violation: there is nothing to shrink", plan.seed));
        }
        plan = shrink(&plan);
    }
    let outcome = run(&plan, true);
    outcome.trace.iter().for_each(|line| eprintln!("{line}"));
    match serde_json::to_string_pretty(&plan) {
        Ok(text) => println!("{text}"),
        Err(error) => return refuse(&format!("the plan can't be written: {error}")),
    }
    eprintln!("fingerprint {:016x}, {:?} simulated", outcome.fingerprint, outcome.simulated);
    match outcome.violation {
        Some(violation) => {
            eprintln!("seed {} FAILED {violation}", plan.seed);
            ExitCode::FAILURE
        }
        None => {
            eprintln!("seed {}: no violation", plan.seed);
            ExitCode::SUCCESS
        }
    }
}

fn many(arguments: &Arguments) -> ExitCode {
    let began = Instant::now();
    let (next, stop) = (AtomicU64::new(arguments.from), AtomicBool::new(false));
    let end = arguments.from.saturating_add(arguments.seeds);
    let totals = Mutex::new(Totals::default());
    let cores = || std::thread::available_parallelism().map_or(1, Into::into);
    let jobs = arguments.jobs.map_or_else(cores, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let outcome = run(&Plan::drawn(seed), false);
                    if outcome.violation.is_some() && !arguments.keep_going {
                        stop.store(true, Ordering::Relaxed);
                    }
                    let mut totals = totals.lock().expect("nobody panics while it is held");
                    totals.add(seed, outcome);
                }
            });
        }
    });
    let totals = totals.into_inner().expect("nobody panicked while it was held");
    report(&totals, arguments, began.elapsed())
}

fn report(totals: &Totals, arguments: &Arguments, took: Duration) -> ExitCode {
    println!("done:");
    totals.done.iter().for_each(|(kind, count)| println!("  {count:>9} {kind}"));
    println!("looked at:");
    totals.checks.iter().for_each(|(check, count)| println!("  {count:>9} {check}"));
    let (from, seeds) = (arguments.from, arguments.seeds);
    println!(
        "seeds {from}..{}: {} records delivered in {:.1} simulated hours, {:.0} s; {} violations",
        from.saturating_add(seeds),
        totals.delivered,
        totals.simulated.as_secs_f64() / 3_600.0,
        took.as_secs_f64(),
        totals.failed.len()
    );
    if totals.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
