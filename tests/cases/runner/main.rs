//! Runs the cases of `data` on the engine and the embedded cluster, each as a test of its own, and shows with those of
//! `wrong` that it can fail.

mod asking;
mod checks;
mod cluster;
mod consumer;
mod format;
mod moving;
mod transactions;
mod world;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::{fs, process};

use libtest_mimic::{Arguments, Failed, Trial};

use crate::format::{Case, Defaults, Mode, Wrong};

static DEFAULTS: LazyLock<Defaults> = LazyLock::new(|| {
    let path = folder("defaults.json");
    read(&path).unwrap_or_else(|problem| panic!("{}: {problem}", path.display()))
});

/// How many cases ran to their end.
static PASSED: AtomicUsize = AtomicUsize::new(0);

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, String> {
    let text = fs::read(path).map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| error.to_string())
}

/// Everything that lies in a folder, by name.
fn files(name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.sort();
    paths
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn runtime() -> Result<tokio::runtime::Runtime, String> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().map_err(|error| error.to_string())
}

fn run(case: Case, mode: Mode) -> Result<(), world::Failure> {
    let runtime = runtime().map_err(world::Failure::before)?;
    runtime.block_on(world::run(Arc::new(case), mode))
}

/// A file's trials, one for each mode; one that fails where the file can't be read.
fn trials(path: &Path) -> Vec<Trial> {
    let name = stem(path);
    let case: Result<Case, String> = if path.extension().is_some_and(|end| end == "json") {
        read(path)
    } else {
        Err("a case is a .json file".to_owned())
    };
    let modes = match case {
        Ok(case) if case.modes.is_empty() => return vec![refused(name, "it has no mode to run in")],
        Ok(case) => case.modes,
        Err(problem) => return vec![refused(name, &problem)],
    };
    let trial = |mode: &Mode| {
        let (mode, path) = (*mode, path.to_owned());
        Trial::test(format!("{name} ({})", mode.name()), move || {
            run(read(&path)?, mode).map_err(|failure| Failed::from(failure.to_string()))?;
            PASSED.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    };
    modes.iter().map(trial).collect()
}

fn refused(name: String, problem: &str) -> Trial {
    let problem = problem.to_owned();
    Trial::test(name, move || Err(Failed::from(problem)))
}

/// A runner that lets something wrong pass shows nothing about what is right.
fn finds_fault(path: &Path) -> Result<(), Failed> {
    let wrong: Wrong = read(path)?;
    let message = match (serde_json::from_value::<Case>(wrong.case), wrong.fails_at) {
        (Err(refusal), None) => refusal.to_string(),
        (Err(refusal), Some(_)) => return Err(format!("the case can't be read: {refusal}").into()),
        (Ok(_), None) => return Err("the case was read, and should have been refused".into()),
        (Ok(case), Some(step)) => {
            let name = case.name.clone();
            let failure = run(case, Mode::Polling).err().ok_or("the case passed, and should have failed")?;
            let message = failure.to_string();
            if failure.step != Some(step) || !message.contains(&name) {
                return Err(format!("{name:?} should fail at step {step}: {message}").into());
            }
            message
        }
    };
    match wrong.says.iter().find(|word| !message.contains(*word)) {
        Some(word) => Err(format!("the message doesn't say {word:?}: {message}").into()),
        None => Ok(()),
    }
}

fn main() {
    let cases = files("data");
    let mut all: Vec<Trial> = cases.iter().flat_map(|path| trials(path)).collect();
    let expected = all.len();
    for path in files("wrong") {
        let name = format!("wrong: {}", stem(&path));
        all.push(Trial::test(name, move || finds_fault(&path)));
    }
    assert!(cases.len() >= 25 && expected >= cases.len(), "{} cases in {} tests", cases.len(), expected);
    let arguments = Arguments::from_args();
    let list = arguments.list;
    let conclusion = libtest_mimic::run(&arguments, all);
    let complete = !list && !conclusion.has_failed() && conclusion.num_filtered_out == 0 && conclusion.num_ignored == 0;
    let passed = PASSED.load(Ordering::Relaxed);
    if complete && passed != expected {
        conclusion_is_wrong(expected, passed);
    }
    conclusion.exit();
}

#[expect(clippy::print_stderr, reason = "what the harness itself finds has no test to be reported by")]
fn conclusion_is_wrong(expected: usize, passed: usize) -> ! {
    eprintln!("{expected} cases should have run, and {passed} did");
    process::exit(1)
}
