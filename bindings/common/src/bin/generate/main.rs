//! Writes what comes from the core's tables of settings, errors, statistics and the embedded cluster's commands: the
//! reference pages, and the parts of the packages that name every one of them.
//!
//! `cargo run -p cursus-bindings-common --bin generate` writes the files; with `-- --check` it writes nothing, names those
//! that are stale, and fails if there are any.
#![forbid(unsafe_code)]
// What a program says, it prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod cluster;
mod pages;
mod python;

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

/// What every generated file says of itself.
const NOTICE: &str = "Generated from the core's tables by `make generate`: change those instead.";

fn main() -> ExitCode {
    let check = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--check") => true,
        Some(other) => {
            eprintln!("generate knows --check, and not {other}");
            return ExitCode::from(2);
        }
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = [
        ("docs/settings.md", pages::settings()),
        ("docs/errors.md", pages::errors()),
        ("docs/statistics.md", pages::statistics()),
        ("python/cursus_consumer/_cluster.py", cluster::python()),
        ("python/cursus_consumer/_settings.py", python::settings()),
        ("python/cursus_consumer/_statistics.py", python::statistics()),
    ];
    let mut failed = false;
    for (name, text) in files {
        let path = root.join(name);
        let found = match fs::read_to_string(&path) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => {
                eprintln!("{name} can't be read: {error}");
                failed = true;
                continue;
            }
        };
        if found.as_ref() == Some(&text) {
            continue;
        }
        if check {
            eprintln!("{name} is stale: run make generate");
            failed = true;
        } else if let Err(error) = fs::write(&path, text) {
            eprintln!("{name} can't be written: {error}");
            failed = true;
        } else {
            println!("{name}");
        }
    }
    ExitCode::from(u8::from(failed))
}

/// A row's documentation as lines.
fn lines(doc: &str) -> impl Iterator<Item = &str> {
    doc.lines().map(str::trim).filter(|line| !line.is_empty())
}

/// A row's documentation as one line.
fn paragraph(doc: &str) -> String {
    lines(doc).collect::<Vec<_>>().join(" ")
}
