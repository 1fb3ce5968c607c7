//! The measuring programs of `make bench`: each reads a topic once, from its start to its end, and prints one JSON line
//! with what that took. `run.py` starts them, in turn, beside a cluster in a process of its own.
#![forbid(unsafe_code)]
// What a program says, it prints.
#![allow(clippy::print_stdout)]

mod bare;
mod engine;
mod meter;

use clap::{Args, Parser, Subcommand};

/// Whatever goes wrong ends the program with its message.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Reads a topic once and prints what it took.
#[derive(Debug, Parser)]
#[command(name = "cursus-bench", version)]
struct Arguments {
    #[command(subcommand)]
    program: Program,
}

#[derive(Debug, Subcommand)]
enum Program {
    /// Only takes frames off sockets: the floor that everything else is measured against.
    Bare {
        #[command(flatten)]
        source: Source,
        /// How many requests are on their way on each connection.
        #[arg(long, default_value_t = 2)]
        depth: u32,
    },
    /// The engine, polled batch by batch.
    Engine {
        #[command(flatten)]
        source: Source,
        /// The consumer group; each run needs one of its own.
        #[arg(long)]
        group: String,
        /// Look at the key and the value of every record.
        #[arg(long)]
        touch: bool,
        /// A setting of the consumer, as `max_poll_records=8192`; may be repeated.
        #[arg(long = "set", value_name = "NAME=VALUE")]
        settings: Vec<String>,
        /// Threads for the engine, beside the one that polls. 0: it runs on the thread that polls.
        #[arg(long, default_value_t = 1)]
        threads: usize,
    },
}

/// What is read.
#[derive(Debug, Args)]
struct Source {
    /// The brokers to ask first.
    #[arg(long, value_delimiter = ',', required = true)]
    brokers: Vec<String>,
    /// The topic.
    #[arg(long)]
    topic: String,
    /// How many records it has.
    #[arg(long)]
    records: u64,
    /// The most records per frame.
    #[arg(long, default_value_t = 8192)]
    batch: u32,
}

fn main() -> Result<()> {
    let measured = match Arguments::parse().program {
        Program::Bare { source, depth } => bare::run(&source, depth)?,
        Program::Engine { source, group, touch, settings, threads } => {
            let settings = engine::settings(&source, &group, &settings)?;
            engine::run(settings, source.records, touch, threads)?
        }
    };
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}
