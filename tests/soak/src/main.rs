//! The soak: a group of three members, each a process of its own, reads from three brokers in another one while a fault
//! comes every 20 seconds. One program in three roles: who orchestrates, starts the other two. `make soak` runs it, and
//! `docs/reliability.md` says what it shows. It reads `/proc`, so it is for Linux.
#![forbid(unsafe_code)]
// What a program says, it prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]
// A list of one range is what is meant.
#![allow(clippy::single_range_in_vec_init)]

mod book;
mod brokers;
mod control;
mod faults;
mod flatness;
mod lines;
mod member;
mod orchestrator;
mod processes;
mod producer;
mod ranges;
mod table;

use std::alloc::System;
use std::io::Read as _;
use std::process::ExitCode;

use cap::Cap;
use clap::{Parser, Subcommand};
use tokio::sync::oneshot;

/// Whatever goes wrong ends the program with its message.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The topic that is read, and the group that reads it.
const TOPIC: &str = "soak";
const GROUP: &str = "soak";
const PARTITIONS: u32 = 6;
const BROKERS: usize = 3;

/// Counts what is allocated, to the byte. Resident memory is too coarse to find a slow leak by: the allocator keeps some of it.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// Runs a consumer group under faults and keeps the book. Ends with 0 where nothing was lost, disordered or growing.
#[derive(Debug, Parser)]
#[command(name = "soak", version)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    plan: orchestrator::Plan,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// A cluster with a control port, until the standard input closes.
    Brokers,
    /// A member of the group, until the standard input closes.
    Member(member::Member),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended = match arguments.role {
        None => orchestrator::run(&arguments.plan),
        Some(Role::Brokers) => brokers::run().map(|()| ExitCode::SUCCESS),
        Some(Role::Member(member)) => member::run(&member),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("soak: {error}");
        ExitCode::from(2)
    })
}

/// Ends with the orchestrator, however that ends: its end closes the standard input, which is what the returned future waits
/// for; and the system kills this process, also one that is stopped and couldn't read.
fn end_with_parent() -> Result<impl Future<Output = ()>> {
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
    let (closed, input_closed) = oneshot::channel::<()>();
    // A thread of its own: a read of the standard input can't be interrupted, and a runtime would wait for it at its end.
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(closed);
    });
    Ok(async move { drop(input_closed.await) })
}
