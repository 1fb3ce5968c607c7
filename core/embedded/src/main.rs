//! A Cursus cluster as a process: `cursus-embedded --brokers 3 --topic orders:6 --produce orders:100000:100`.
#![forbid(unsafe_code)]
// What a program says, it prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use cursus_embedded::{Cluster, ControlError, Options, control_port};
use tokio::io::AsyncReadExt as _;

/// A Cursus cluster in memory. Prints one JSON line with the brokers' addresses and its control port's once it is ready,
/// and runs until its standard input closes or it is told to end. In scripts and containers give it an input that stays open, such as
/// `sleep infinity | cursus-embedded …`.
#[derive(Debug, Parser)]
#[command(name = "cursus-embedded", version)]
struct Arguments {
    /// How many brokers; 1 is a standalone broker.
    #[arg(long, default_value_t = 3, value_name = "COUNT", value_parser = brokers)]
    brokers: usize,
    /// The address that the brokers listen on.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_name = "ADDRESS")]
    host: IpAddr,
    /// The port of the first broker, the next one of the second, and so on; free ports without it.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// The host that brokers name to clients.
    #[arg(long, value_name = "HOST")]
    advertised_host: Option<String>,
    /// A broker that names another address to clients, by its index; may be repeated.
    #[arg(long = "advertise", value_name = "BROKER=HOST:PORT", value_parser = advertise)]
    advertised: Vec<(usize, String)>,
    /// The control port, on 127.0.0.1 in any case; a free one without it.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    control_port: Option<u16>,
    /// A topic and its number of partitions; may be repeated.
    #[arg(long = "topic", value_name = "NAME:PARTITIONS", value_parser = topic)]
    topics: Vec<(String, u32)>,
    /// Records to write to a topic, dealt out over its partitions, and their size in bytes; may be repeated.
    #[arg(long, value_name = "NAME:COUNT:BYTES", value_parser = produce)]
    produce: Vec<(String, u64, usize)>,
    /// How long a member may be silent.
    #[arg(long, default_value_t = 10_000, value_name = "MS")]
    session_timeout_ms: u64,
    /// How often silent members are looked for.
    #[arg(long, default_value_t = 5_000, value_name = "MS")]
    expiry_check_ms: u64,
    /// How long a leader that is gone is still named.
    #[arg(long, default_value_t = 500, value_name = "MS")]
    leader_election_ms: u64,
}

fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number of {what}"))
}

fn brokers(text: &str) -> Result<usize, String> {
    match number(text, "brokers")? {
        count @ 1..=100 => Ok(count),
        count => Err(format!("there can be 1 to 100 brokers, not {count}")),
    }
}

fn advertise(text: &str) -> Result<(usize, String), String> {
    let (broker, address) = text.split_once('=').ok_or("expected BROKER=HOST:PORT, as 0=localhost:9000")?;
    Ok((number(broker, "a broker")?, address.to_owned()))
}

fn topic(text: &str) -> Result<(String, u32), String> {
    let (name, partitions) = text.split_once(':').ok_or("expected NAME:PARTITIONS, as orders:6")?;
    Ok((name.to_owned(), number(partitions, "partitions")?))
}

fn produce(text: &str) -> Result<(String, u64, usize), String> {
    match text.split(':').collect::<Vec<_>>()[..] {
        [name, count, size] => Ok((name.to_owned(), number(count, "records")?, number(size, "bytes")?)),
        _ => Err("expected NAME:COUNT:BYTES, as orders:100000:100".to_owned()),
    }
}

/// What was asked for and can't be had.
fn refuse(problem: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("cursus-embedded: {problem}");
    ExitCode::from(2)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => {
            let code = runtime.block_on(run(arguments));
            // A thread may still be reading the standard input, which can't be interrupted.
            runtime.shutdown_background();
            code
        }
        Err(error) => refuse(&error),
    }
}

async fn run(arguments: Arguments) -> ExitCode {
    let options = Options {
        brokers: arguments.brokers,
        host: arguments.host,
        port: arguments.port,
        advertised_host: arguments.advertised_host.clone(),
        session_timeout: Duration::from_millis(arguments.session_timeout_ms),
        expiry_check: Duration::from_millis(arguments.expiry_check_ms),
        leader_election: Duration::from_millis(arguments.leader_election_ms),
        advertised: arguments.advertised.iter().cloned().collect(),
        ..Options::default()
    };
    // From here on, so that whoever reads the line below can end this.
    let told_to_end = match told_to_end() {
        Ok(told) => told,
        Err(error) => return refuse(&error),
    };
    let cluster = match Cluster::start(options).await {
        Ok(cluster) => cluster,
        Err(error) => return refuse(&error),
    };
    if let Err(error) = set_up(&cluster, &arguments) {
        return refuse(&error);
    }
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, arguments.control_port.unwrap_or(0)));
    let control = cluster.options().network.listen(address).await;
    let (control, address) = match control.and_then(|control| control.local_address().map(|address| (control, address)))
    {
        Ok(found) => found,
        Err(error) => return refuse(&format_args!("the control port on {address}: {error}")),
    };
    let line = serde_json::json!({ "brokers": cluster.brokers(), "control": address.to_string() });
    // A reader that is gone already has closed the standard input too.
    let _ = writeln!(io::stdout(), "{line}").and_then(|()| io::stdout().flush());
    tokio::select! {
        biased;
        () = input_closed() => {}
        () = told_to_end => {}
        // It ends when a client stops the cluster.
        () = control_port::serve(cluster.clone(), control) => {}
    }
    cluster.stop().await;
    ExitCode::SUCCESS
}

fn set_up(cluster: &Cluster, arguments: &Arguments) -> Result<(), ControlError> {
    for (name, partitions) in &arguments.topics {
        cluster.create_topic(name, *partitions)?;
    }
    for (name, count, size) in &arguments.produce {
        cluster.fill(name, *count, *size)?;
    }
    Ok(())
}

async fn input_closed() {
    let mut ignored = [0; 1024];
    let mut input = tokio::io::stdin();
    while matches!(input.read(&mut ignored).await, Ok(read) if read > 0) {}
}

/// Takes the signals over at once; the future ends with the first of them.
#[cfg(unix)]
fn told_to_end() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

#[cfg(windows)]
fn told_to_end() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = tokio::signal::windows::ctrl_c()?;
    Ok(async move { drop(interrupt.recv().await) })
}
