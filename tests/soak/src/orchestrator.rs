//! The orchestrator: starts the processes, brings the faults, and keeps the book.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::book::Book;
use crate::control::Control;
use crate::faults::{self, Act, Fault, Kind, Order};
use crate::lines::{Figures, Line};
use crate::member::Style;
use crate::processes::{Brokers, Event, Member};
use crate::table::Place;
use crate::{GROUP, PARTITIONS, Result, TOPIC, producer, table};

/// How long the group may need for what is left once the faults are over.
const DRAIN: Duration = Duration::from_secs(120);

/// How long the members may need to end once they are asked to.
const FAREWELL: Duration = Duration::from_secs(20);

/// After what silence of a partition it is told what the members are waiting for, and which one is a failure.
const LONG_SILENCE: Duration = Duration::from_secs(30);
const WORST_SILENCE: Duration = Duration::from_secs(90);

/// How many records below the committed offset are kept, so that a day's run needs no more memory than an hour's.
const KEPT: u64 = 20_000;

/// What kind of soak it is.
#[derive(Debug, Args)]
pub(crate) struct Plan {
    /// How long records are written and faults brought.
    #[arg(long, default_value_t = 60.0, value_parser = positive)]
    minutes: f64,
    /// What the faults are drawn from. Also decides who reads by streams and whose process is killed; one from the clock
    /// without it.
    #[arg(long)]
    seed: Option<u64>,
    /// How many records are written per second.
    #[arg(long, default_value_t = 500, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,
    /// How often there is a fault.
    #[arg(long, default_value_t = 20.0, value_name = "SECONDS", value_parser = positive)]
    fault_every: f64,
    /// Only these kinds of fault, with commas between. Without those that kill, replace and suspend members all three live
    /// through the whole time.
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = faults::KINDS)]
    only: Vec<String>,
}

fn positive(text: &str) -> std::result::Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.01..=100_000.0).contains(number));
    number.ok_or_else(|| format!("{text:?} is not a number from 0.01 to 100000"))
}

/// What is done about a fault once its time is over.
enum Undo {
    Tell(Value),
    Continue(u64),
}

struct Soak {
    begun: Instant,
    brokers: Brokers,
    control: Control,
    events: mpsc::Sender<Event>,
    members: BTreeMap<u64, Member>,
    started: u64,
    /// The place whose member is killed and replaced. The others live through it all, so that what they leak adds up.
    victim: usize,
    /// Which of the places read by streams, as they come.
    streaming: u64,
    places: Vec<Place>,
    book: Book,
    faults: BTreeMap<Kind, u64>,
    latest: Kind,
    undo: Vec<(Instant, Undo)>,
    failures: Vec<String>,
    /// Whether the silence that lasts was told.
    told_silence: bool,
}

/// How the time was over.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Time,
    Interrupted,
}

pub(crate) fn run(plan: &Plan) -> Result<ExitCode> {
    // One thread: the system ends the others when the thread that started them has ended.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(soak(plan))
}

async fn soak(plan: &Plan) -> Result<ExitCode> {
    let mut signals = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_secs());
    let seed = plan.seed.unwrap_or_else(clock);
    let brokers = Brokers::start().await?;
    let control = Control::connect(&brokers.control).await?;
    let (events, mut happening) = mpsc::channel(1000);
    let (stop, stopped) = watch::channel(false);
    let producing = producer::run(Control::connect(&brokers.control).await?, plan.rate, events.clone(), stopped);
    let mut soak = Soak {
        begun: Instant::now(),
        brokers,
        control,
        events,
        members: BTreeMap::new(),
        started: 0,
        victim: (seed % 3) as usize,
        streaming: seed / 3,
        places: (0..Style::ALL.len()).map(|_| Place::default()).collect(),
        book: Book::new(PARTITIONS),
        faults: BTreeMap::new(),
        latest: "none",
        undo: Vec::new(),
        failures: Vec::new(),
        told_silence: false,
    };
    for slot in 0..Style::ALL.len() {
        soak.start_member(slot)?;
    }
    let names: Vec<&str> = soak.places.iter().map(|place| place.name.as_str()).collect();
    println!(
        "seed {seed}: {} min, {} records/s, a fault every {} s; members {}, of which {} is killed and replaced",
        plan.minutes,
        plan.rate,
        plan.fault_every,
        names.join(", "),
        names[soak.victim]
    );
    let producing = tokio::spawn(producing);
    let end =
        soak.go_on(plan, &mut Order::new(seed, &plan.only, plan.fault_every), &mut happening, &mut signals).await?;
    let _ = stop.send(true);
    let lasted = soak.begun.elapsed();
    if end == End::Time {
        soak.drain(&producing, &mut happening).await?;
        soak.part(&mut happening).await;
    }
    // Dropping what is left of the processes kills them.
    Ok(soak.judge(end, lasted))
}

impl Soak {
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn stamp(&self) -> String {
        let seconds = self.now().as_secs();
        format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
    }

    fn tell(&self, text: &str) {
        println!("{} {text}", self.stamp());
    }

    fn fail(&mut self, what: String) {
        self.tell(&format!("FAILURE: {what}"));
        self.failures.push(what);
    }

    fn start_member(&mut self, slot: usize) -> Result<()> {
        let mode = if (self.streaming + slot as u64).is_multiple_of(2) { "streaming" } else { "polling" };
        let member = Member::start(slot, mode, &self.brokers.addresses, self.started, &self.events)?;
        self.places[slot].name = format!("{} {}", member.style.name(), member.mode);
        self.places[slot].processes += 1;
        self.members.insert(self.started, member);
        self.started += 1;
        Ok(())
    }

    /// The member that has a place now.
    fn at(&mut self, slot: usize) -> Option<(u64, &mut Member)> {
        let found = self.members.iter_mut().find(|(_, member)| member.slot == slot && !member.may_end);
        found.map(|(number, member)| (*number, member))
    }

    async fn go_on(
        &mut self,
        plan: &Plan,
        order: &mut Order,
        happening: &mut mpsc::Receiver<Event>,
        signals: &mut (Signal, Signal),
    ) -> Result<End> {
        let over = self.begun + Duration::from_secs_f64(plan.minutes * 60.0);
        let every = Duration::from_secs_f64(plan.fault_every);
        let (mut fault, mut minute) = (self.begun + every, self.begun + Duration::from_secs(60));
        loop {
            let undo = self.undo.iter().map(|(due, _)| *due).min().unwrap_or(over);
            tokio::select! {
                biased;
                _ = signals.0.recv() => return Ok(End::Interrupted),
                _ = signals.1.recv() => return Ok(End::Interrupted),
                () = sleep_until(over) => return Ok(End::Time),
                () = sleep_until(undo) => self.undo_until(Instant::now()).await?,
                () = sleep_until(fault) => {
                    fault += every;
                    self.bring(order.draw()).await?;
                }
                () = sleep_until(minute) => {
                    minute += Duration::from_secs(60);
                    self.report().await?;
                }
                Some(event) = happening.recv() => self.take(event)?,
            }
        }
    }

    async fn bring(&mut self, fault: Fault) -> Result<()> {
        self.latest = fault.kind;
        *self.faults.entry(fault.kind).or_default() += 1;
        self.tell(&format!("fault {}: {fault}", self.faults.values().sum::<u64>()));
        let later = |seconds| Instant::now() + Duration::from_secs(seconds);
        match fault.act {
            Act::Cluster { does, undone } => {
                self.control.tell(does).await?;
                self.undo.extend(undone.map(|(seconds, request)| (later(seconds), Undo::Tell(request))));
            }
            Act::ExpireMember(number) => {
                let members = self.control.members().await?;
                let Some(index) = number.checked_rem(members.len() as u64) else { return Ok(()) };
                let request = json!({ "do": "expire_member", "group": GROUP, "member": members[index as usize] });
                // It may have left since.
                let _ = self.control.tell(request).await;
            }
            Act::KillMember => {
                if let Some((_, member)) = self.at(self.victim) {
                    member.kill()?;
                }
                self.start_member(self.victim)?;
            }
            Act::ReplaceMember => {
                if let Some((_, member)) = self.at(self.victim) {
                    member.close();
                }
                self.start_member(self.victim)?;
            }
            Act::SuspendMember { slot, seconds } => {
                if let Some((number, member)) = self.at(slot as usize) {
                    member.suspend()?;
                    self.undo.push((later(seconds), Undo::Continue(number)));
                }
            }
        }
        Ok(())
    }

    /// Undoes what is due by then.
    async fn undo_until(&mut self, due: Instant) -> Result<()> {
        let (undone, left) = std::mem::take(&mut self.undo).into_iter().partition(|(at, _)| *at <= due);
        self.undo = left;
        let undone: Vec<(Instant, Undo)> = undone;
        for (_, undo) in undone {
            match undo {
                Undo::Tell(request) => self.control.tell(request).await?,
                Undo::Continue(number) => {
                    if let Some(member) = self.members.get(&number) {
                        member.go_on()?;
                    }
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<()> {
        let now = self.now();
        match event {
            Event::Produced(partition, end) => self.book.produced(partition, end),
            Event::Said(number, Line::Processed { assignment, runs }) => {
                for run in runs {
                    if let Err(disorder) = self.book.processed(number, assignment, run, now, self.latest) {
                        self.fail(disorder.to_string());
                    }
                }
            }
            Event::Said(number, Line::Figures(figures)) => {
                let Some(member) = self.members.get_mut(&number) else { return Ok(()) };
                if !member.may_end {
                    let values = [figures.rss_kib, figures.heap_kib, figures.sockets, figures.tasks, figures.threads];
                    for (series, value) in self.places[member.slot].series.iter_mut().zip(values) {
                        series.push((now.as_secs_f64(), value));
                    }
                }
                member.figures = Some(figures);
            }
            Event::Said(number, Line::Failed { why }) => self.fail(format!("member {number} failed: {why}")),
            Event::Said(number, Line::Closed { given_up }) => {
                if !given_up.is_empty() {
                    self.tell(&format!("member {number} closed and gave up: {}", given_up.join("; ")));
                }
            }
            Event::Ended(number, status) => {
                if let Some(member) = self.members.remove(&number)
                    && !member.may_end
                {
                    self.fail(format!("member {number} ended by itself: {status}"));
                    self.start_member(member.slot)?;
                }
            }
            Event::Broken(why) => return Err(why.into()),
        }
        Ok(())
    }

    /// The line of a minute, and what is thrown away.
    async fn report(&mut self) -> Result<()> {
        let committed = self.control.committed().await?;
        for (partition, offset) in &committed {
            let earliest = offset.saturating_sub(KEPT);
            let (does, topic) = ("delete_records", TOPIC);
            let request = json!({ "do": does, "topic": topic, "partition": partition, "earliest": earliest });
            self.control.tell(request).await?;
        }
        let behind: u64 = self.book.missing().values().flatten().map(|range| range.end - range.start).sum();
        let duplicates: u64 = self.book.duplicates().values().sum();
        self.tell(&format!(
            "records {}, not processed yet {behind}, duplicates {duplicates}, committed {}",
            self.book.records(),
            committed.values().sum::<u64>()
        ));
        for (number, member) in &self.members {
            if let Some(figures) = &member.figures {
                println!("         member {number} {} {}: {}", member.style.name(), member.mode, short(figures));
            }
        }
        self.look_for_silence();
        Ok(())
    }

    /// Tells what the members wait for where a partition is silent for long.
    fn look_for_silence(&mut self) {
        let silent = self.book.silent_for(self.now()).into_iter().filter(|(_, lasts)| *lasts > LONG_SILENCE);
        let silent: Vec<String> = silent.map(|(partition, lasts)| format!("{partition} for {lasts:.0?}")).collect();
        if silent.is_empty() {
            self.told_silence = false;
        } else if !std::mem::replace(&mut self.told_silence, true) {
            self.tell(&format!("silent: partition {}", silent.join(", ")));
            for (number, member) in &self.members {
                println!("         member {number}: {:?}", member.figures);
            }
        }
    }

    /// Undoes all faults and waits until everything is processed and committed.
    async fn drain(&mut self, producing: &JoinHandle<()>, happening: &mut mpsc::Receiver<Event>) -> Result<()> {
        let last = self.undo.iter().map(|(due, _)| *due).max().unwrap_or_else(Instant::now);
        self.undo_until(last).await?;
        self.tell("the faults are over");
        let deadline = Instant::now() + DRAIN;
        loop {
            // In this order: what was written before the producer ended is in the ends.
            let is_over = producing.is_finished();
            let committed = self.control.committed().await?;
            let ends: BTreeMap<u32, u64> = self.control.ask(json!({ "do": "end_offsets", "topic": TOPIC })).await?;
            let all_is_told = is_over && self.book.ends() == ends;
            if all_is_told && committed == ends && self.book.missing().is_empty() {
                self.tell(&format!("all is processed and committed: {committed:?}"));
                return Ok(());
            }
            if Instant::now() > deadline {
                let missing = self.book.missing();
                self.fail(format!(
                    "after {DRAIN:?}: ends {ends:?}, committed {committed:?}, not processed {missing:?}"
                ));
                for (number, member) in &self.members {
                    println!("         member {number}: {:?}", member.figures);
                }
                return Ok(());
            }
            // What is committed is looked at again after what happens meanwhile.
            let next = Instant::now() + Duration::from_millis(200);
            loop {
                tokio::select! {
                    () = sleep_until(next) => break,
                    Some(event) = happening.recv() => self.take(event)?,
                }
            }
        }
    }

    /// Has the members close, and then the brokers.
    async fn part(&mut self, happening: &mut mpsc::Receiver<Event>) {
        self.members.values_mut().for_each(Member::close);
        let ended = timeout(FAREWELL, async {
            while !self.members.is_empty() {
                if let Some(event) = happening.recv().await
                    && let Err(error) = self.take(event)
                {
                    self.fail(error.to_string());
                    return;
                }
            }
        });
        if ended.await.is_err() {
            let numbers: Vec<_> = self.members.keys().collect();
            self.fail(format!("members {numbers:?} haven't ended {FAREWELL:?} after they were asked to"));
        }
        match self.control.members().await {
            Ok(left) if left.is_empty() => {}
            Ok(left) => self.tell(&format!("still in the group, until they expire: {}", left.join(", "))),
            Err(error) => self.fail(error.to_string()),
        }
        drop(self.brokers.child.stdin.take());
        match timeout(FAREWELL, self.brokers.child.wait()).await {
            Ok(Ok(status)) if status.success() => {}
            other => self.fail(format!("the brokers' process didn't end well: {other:?}")),
        }
    }

    fn judge(mut self, end: End, lasted: Duration) -> ExitCode {
        for (partition, ranges) in self.book.missing() {
            if end == End::Time {
                self.fail(format!("lost in partition {partition}: {ranges:?}"));
            }
        }
        for (partition, end) in self.book.invented() {
            self.fail(format!("processed and never written in partition {partition}: up to {end}"));
        }
        for (partition, silence) in self.book.silences(lasted).into_iter().enumerate() {
            if silence.lasted > WORST_SILENCE {
                self.fail(format!("partition {partition} was silent for {:.0?}", silence.lasted));
            }
        }
        let grown = table::print(&self.book, &self.faults, &self.places, lasted);
        if end == End::Interrupted {
            println!(
                "interrupted: what was on its way is counted as lost, and nothing is judged but what was found before"
            );
        } else {
            self.failures.extend(grown);
        }
        for failure in &self.failures {
            println!("FAILURE: {failure}");
        }
        match (self.failures.is_empty(), end) {
            (false, _) => ExitCode::FAILURE,
            (true, End::Interrupted) => ExitCode::from(130),
            (true, End::Time) => {
                println!("passed: nothing lost, all in order, nothing grows");
                ExitCode::SUCCESS
            }
        }
    }
}

fn short(figures: &Figures) -> String {
    let Figures {
        rss_kib, heap_kib, sockets, tasks, threads, rebalances, reconnects, buffered_bytes, held_bytes, ..
    } = figures;
    let raised: Vec<String> = figures.raised.iter().map(|(name, count)| format!("{name} {count}")).collect();
    format!(
        "{rss_kib} KiB, heap {heap_kib} KiB, sockets {sockets}, tasks {tasks}, threads {threads}, partitions {:?}, rebalances {rebalances}, \
         reconnects {reconnects}, commits {}, corrupt {}, dropped {}, buffered {buffered_bytes} B, held {held_bytes} B, \
         raised {}",
        figures.partitions.keys().collect::<Vec<_>>(),
        figures.commits,
        figures.corrupt_frames,
        figures.dropped_records,
        if raised.is_empty() { "nothing".to_owned() } else { raised.join(" ") },
    )
}
