//! A member of the group: a program as an application would be, that tells what it processes.

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::{Args, ValueEnum};
use cursus_consumer::{Batch, Consumer, Environment, Error, ErrorKind, Record, RunError, Settings};
use tokio::runtime::Handle;
use tokio::time::{MissedTickBehavior, interval};

use crate::lines::{Figures, Line, Run, say};
use crate::producer::mark;
use crate::{GROUP, HEAP, Result, TOPIC, end_with_parent};

/// How often a member tells how it is.
const FIGURES_EVERY: Duration = Duration::from_secs(10);

/// How often a member looks how much it has allocated, and tells the least: an idle moment is among so many.
const HEAP_EVERY: Duration = Duration::from_millis(100);

/// How long a poll and a commit may take.
const POLL: Duration = Duration::from_secs(1);
const COMMIT: Duration = Duration::from_secs(10);

/// How a member says what it has processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Style {
    /// Polls, and commits each batch.
    Commit,
    /// Polls, under auto-commit.
    Auto,
    /// Handles record by record.
    Run,
}

impl Style {
    /// One of each is a group.
    pub(crate) const ALL: [Self; 3] = [Self::Commit, Self::Auto, Self::Run];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Auto => "auto",
            Self::Run => "run",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Member {
    /// The brokers to ask first.
    #[arg(long)]
    brokers: String,
    /// How it says what it has processed.
    #[arg(long)]
    style: Style,
    /// How it reads.
    #[arg(long)]
    mode: String,
}

/// What calls have raised, by the error's name.
type Raised = Arc<Mutex<BTreeMap<String, u64>>>;

pub(crate) fn run(member: &Member) -> Result<ExitCode> {
    let parent_ended = end_with_parent()?;
    let settings = Settings::from_values([
        ("brokers", member.brokers.as_str().into()),
        ("topic", TOPIC.into()),
        ("group_id", GROUP.into()),
        ("consumer_id", member.style.name().into()),
        ("mode", member.mode.as_str().into()),
        ("enable_auto_commit", (member.style == Style::Auto).into()),
    ])?;
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(async {
        let consumer = Arc::new(Consumer::new(settings, Environment::current()));
        let raised = Raised::default();
        let figures = tokio::spawn(tell_figures(Arc::clone(&consumer), Arc::clone(&raised)));
        let closing = Arc::clone(&consumer);
        tokio::spawn(async move {
            parent_ended.await;
            closing.close(None).await;
        });
        let worked = match member.style {
            Style::Commit => commit_each(&consumer, &raised).await,
            Style::Auto => poll_on(&consumer, &raised).await,
            Style::Run => handle(&consumer).await,
        };
        consumer.close(None).await;
        figures.abort();
        Ok(match worked {
            Ok(()) => {
                say(&Line::Closed { given_up: consumer.statistics().given_up });
                ExitCode::SUCCESS
            }
            Err(error) => {
                say(&Line::Failed { why: error.to_string() });
                ExitCode::FAILURE
            }
        })
    })
}

async fn commit_each(consumer: &Consumer, raised: &Raised) -> Result<()> {
    loop {
        let turn = async {
            let batch = consumer.poll(Some(POLL)).await?;
            Ok(match process(&batch) {
                Ok(()) => Ok(consumer.commit(&batch, Some(COMMIT)).await?),
                wrong => wrong,
            })
        };
        match turn.await {
            Ok(processed) => processed?,
            Err(error) if goes_on(&error, raised)? => {}
            Err(_) => return Ok(()),
        }
    }
}

/// The next poll says that the batch is processed.
async fn poll_on(consumer: &Consumer, raised: &Raised) -> Result<()> {
    loop {
        match consumer.poll(Some(POLL)).await {
            Ok(batch) => process(&batch)?,
            Err(error) if goes_on(&error, raised)? => {}
            Err(_) => return Ok(()),
        }
    }
}

/// Whether the member goes on after an error, or was closed. All else is the end of it.
fn goes_on(error: &Error, raised: &Raised) -> Result<bool> {
    match error.kind() {
        ErrorKind::Closed => Ok(false),
        ErrorKind::Rebalancing
        | ErrorKind::MaxPollInterval
        | ErrorKind::TimedOut
        | ErrorKind::CommitOutcomeUnknown
        // FETCH_OFFSET may not know yet of what the member before has just committed, whose last records then come again.
        | ErrorKind::OffsetRegression
        | ErrorKind::Unreachable => {
            let mut raised = raised.lock().unwrap_or_else(PoisonError::into_inner);
            *raised.entry(format!("{:?}", error.kind())).or_default() += 1;
            Ok(true)
        }
        _ => Err(format!("{error} ({:?})", error.kind()).into()),
    }
}

/// Tells what is in the batch, as runs of neighbours. The generation is what an assignment's records have in common.
fn process(batch: &Batch) -> Result<()> {
    let Some(group) = batch.group_metadata() else { return Ok(()) };
    let mut runs: Vec<Run> = Vec::new();
    for record in batch.iter() {
        let (partition, offset) = (record.partition.partition, record.offset);
        check(partition, offset, record.value)?;
        match runs.last_mut() {
            Some(run) if run.partition == partition && run.to == offset => run.to += 1,
            _ => runs.push(Run { partition, from: offset, to: offset + 1 }),
        }
    }
    say(&Line::Processed { assignment: group.generation, runs });
    Ok(())
}

async fn handle(consumer: &Consumer) -> Result<()> {
    let handler = |record: Record| async move {
        // Where a rebalance ends the handler.
        tokio::task::yield_now().await;
        let (partition, offset) = (record.partition().partition, record.offset());
        check(partition, offset, record.fields().value)?;
        // A partition's worker is a task, and each assignment has new ones. Tasks are numbered as they come.
        let assignment = tokio::task::id().to_string().parse().unwrap_or_default();
        say(&Line::Processed { assignment, runs: vec![Run { partition, from: offset, to: offset + 1 }] });
        Ok(())
    };
    consumer.run(handler).await.map_err(|error: RunError<String>| error.to_string().into())
}

/// Whether this is the record that was written there.
fn check(partition: u32, offset: u64, value: &[u8]) -> std::result::Result<(), String> {
    if value.starts_with(mark(partition, offset).as_bytes()) {
        return Ok(());
    }
    let value = String::from_utf8_lossy(value);
    Err(format!("offset {offset} of partition {partition} has the value {value:?}, which was never written there"))
}

async fn tell_figures(consumer: Arc<Consumer>, raised: Raised) {
    let (mut telling, mut looking) = (interval(FIGURES_EVERY), interval(HEAP_EVERY));
    for ticks in [&mut telling, &mut looking] {
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }
    let mut least = usize::MAX;
    loop {
        tokio::select! {
            _ = looking.tick() => least = least.min(HEAP.allocated()),
            _ = telling.tick() => {
                let raised = raised.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let heap = least.min(HEAP.allocated());
                least = usize::MAX;
                say(&Line::Figures(Box::new(figures(&consumer, heap, raised))));
            }
        }
    }
}

fn figures(consumer: &Consumer, heap: usize, raised: BTreeMap<String, u64>) -> Figures {
    let statistics = consumer.statistics();
    let partitions = statistics.partitions.into_iter();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of_status = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    Figures {
        rss_kib: of_status("VmRSS"),
        heap_kib: heap as u64 / 1024,
        sockets: sockets(),
        threads: of_status("Threads"),
        tasks: Handle::current().metrics().num_alive_tasks() as u64,
        state: statistics.state.to_string(),
        member: statistics.member,
        generation: statistics.generation,
        rebalances: statistics.rebalances,
        reconnects: statistics.reconnects,
        corrupt_frames: statistics.corrupt_frames,
        dropped_records: statistics.dropped_records,
        commits: statistics.commits,
        buffered_bytes: statistics.buffered_bytes,
        held_bytes: statistics.held_bytes,
        coordinator: statistics.coordinator,
        last_error: statistics.last_error,
        failing_seconds: statistics.failing_seconds,
        partitions: partitions
            .map(|(partition, found)| {
                (partition.partition, (found.position, found.fetched, found.committed, found.leader))
            })
            .collect(),
        raised,
    }
}

fn sockets() -> u64 {
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let links = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count() as u64
}
