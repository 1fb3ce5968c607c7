//! The oracle: it knows every record that was written, who processed which, and what the brokers have committed, and looks
//! at everything that happens. What contradicts the contract ends the run.

mod log;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use cursus_consumer::{Batch, Consumer, State};
use cursus_embedded::Cluster;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, timeout};

use crate::plan::Style;
use log::Log;
use wire::Wires;

/// The group and topic of every run.
pub(crate) const GROUP: &str = "g";
pub(crate) const TOPIC: &str = "t";

/// How often what was looked at, by the name of the invariant.
pub type Checks = BTreeMap<&'static str, u64>;

/// A member's process, as it is watched.
struct Watched {
    consumer: Weak<Consumer>,
    style: Style,
    state: State,
    most_buffered: u64,
    /// The longest frame that came in: one may always exceed the bound.
    longest_frame: u64,
    /// Which local generation the partitions below are of.
    generation: u64,
    /// The next offset by partition, where something was delivered under this generation or the partition was moved.
    next: BTreeMap<u32, u64>,
    /// Since when there is no assignment.
    unassigned: Option<Instant>,
    handling: BTreeSet<u32>,
}

struct Facts {
    began: Instant,
    latest: bool,
    logs: Vec<Log>,
    members: BTreeMap<usize, Watched>,
    wires: Wires,
    checks: Checks,
    hash: DefaultHasher,
    trace: Option<Vec<String>>,
    violation: Option<String>,
    delivered: u64,
}

/// See the module.
pub(crate) struct Oracle {
    facts: Mutex<Facts>,
    violated: Notify,
}

impl Oracle {
    pub(crate) fn new(partitions: u32, latest: bool, traced: bool) -> Arc<Self> {
        let facts = Facts {
            began: Instant::now(),
            latest,
            logs: (0..partitions).map(|_| Log::default()).collect(),
            members: BTreeMap::new(),
            wires: Wires::default(),
            checks: Checks::new(),
            hash: DefaultHasher::new(),
            trace: traced.then(Vec::new),
            violation: None,
            delivered: 0,
        };
        Arc::new(Self { facts: Mutex::new(facts), violated: Notify::new() })
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().expect("nothing panics under this lock")
    }

    /// Something happened.
    pub(crate) fn note(&self, what: fmt::Arguments<'_>) {
        self.facts().note(what);
    }

    /// Something that must not be.
    pub(crate) fn fail(&self, what: fmt::Arguments<'_>) {
        self.facts().fail(what);
        self.violated.notify_waiters();
    }

    /// Passes on what a look at the facts found wrong.
    fn look(&self, look: impl FnOnce(&mut Facts)) {
        let mut facts = self.facts();
        look(&mut facts);
        if facts.violation.is_some() {
            drop(facts);
            self.violated.notify_waiters();
        }
    }

    /// Ends with the first violation.
    pub(crate) async fn violation(&self) -> String {
        loop {
            let violated = self.violated.notified();
            tokio::pin!(violated);
            violated.as_mut().enable();
            if let Some(violation) = self.facts().violation.clone() {
                return violation;
            }
            violated.await;
        }
    }

    pub(crate) fn found(&self) -> Option<String> {
        self.facts().violation.clone()
    }

    pub(crate) fn checks(&self) -> Checks {
        self.facts().checks.clone()
    }

    pub(crate) fn delivered_records(&self) -> u64 {
        self.facts().delivered
    }

    /// Two runs in which the same happened have the same.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.facts().hash.finish()
    }

    pub(crate) fn trace(&self) -> Vec<String> {
        self.facts().trace.clone().unwrap_or_default()
    }

    pub(crate) fn written(&self, partition: u32, count: u64, visible: bool) {
        self.facts().logs[partition as usize].write(count, visible);
    }

    pub(crate) fn end(&self, partition: u32) -> u64 {
        self.facts().logs[partition as usize].end()
    }

    pub(crate) fn forgotten(&self, partition: u32, earliest: u64) {
        self.facts().logs[partition as usize].forget(earliest);
    }

    pub(crate) fn watch(&self, host: usize, consumer: &Arc<Consumer>, style: Style) {
        let watched = Watched {
            consumer: Arc::downgrade(consumer),
            style,
            state: State::New,
            most_buffered: consumer.settings().max_buffered_bytes,
            longest_frame: 0,
            generation: 0,
            next: BTreeMap::new(),
            unassigned: None,
            handling: BTreeSet::new(),
        };
        self.facts().members.insert(host, watched);
    }

    /// A process that is gone is looked at no longer.
    pub(crate) fn forget(&self, host: usize) {
        self.facts().members.remove(&host);
    }

    /// Looks at a member from outside.
    pub(crate) fn observe(&self, host: usize) {
        self.look(|facts| facts.observe(host));
    }

    /// A poll or a step of an iteration has just returned this; nothing was awaited since.
    pub(crate) fn delivered(&self, host: usize, consumer: &Consumer, batch: &Batch) {
        self.look(|facts| {
            facts.observe(host);
            let Some(metadata) = batch.group_metadata() else { return };
            let now = consumer.group_metadata();
            facts.check("nothing is delivered after its assignment has ended");
            if now.as_ref().ok() != Some(metadata) || consumer.owned(batch).len() != batch.len() {
                facts.fail(format_args!("host {host} delivered {batch:?} of {metadata:?}, and is {now:?}"));
            }
            if facts.wires.has_heard(&metadata.member, metadata.generation) {
                let at = format!("{} at {}", metadata.member, metadata.generation);
                facts.fail(format_args!("host {host} delivered {batch:?} to {at}, which it had been told is over"));
            }
            for record in batch.iter() {
                let expected = format!("{}:{}", record.partition.partition, record.offset);
                if record.value != expected.as_bytes() {
                    facts.fail(format_args!("host {host} delivered another record than {expected}"));
                }
                facts.record(host, consumer, record.partition.partition, record.offset);
            }
        });
    }

    /// The same of a single record; a handler's may have been taken some time ago.
    pub(crate) fn delivered_record(&self, host: usize, consumer: &Consumer, partition: u32, offset: u64, value: &[u8]) {
        self.look(|facts| {
            facts.observe(host);
            let Some(watched) = facts.members.get(&host) else { return };
            let (handler, unassigned) = (watched.style == Style::Handlers, watched.unassigned);
            facts.check("nothing is delivered after its assignment has ended");
            let over = unassigned.is_some_and(|since| !handler || since < Instant::now());
            if over && !matches!(consumer.state(), State::Closing | State::Closed) {
                facts.fail(format_args!("host {host} delivered {partition}:{offset} without an assignment"));
            }
            if value != format!("{partition}:{offset}").as_bytes() {
                facts.fail(format_args!("host {host} delivered another record than {partition}:{offset}"));
            }
            facts.record(host, consumer, partition, offset);
        });
    }

    /// Handlers ended with what they were at, and go on with what is processed.
    pub(crate) fn runs_anew(&self, host: usize) {
        if let Some(watched) = self.facts().members.get_mut(&host) {
            watched.next.clear();
        }
    }

    /// A handler begins: no other is at this partition's records.
    pub(crate) fn handling(&self, host: usize, partition: u32) {
        self.look(|facts| {
            facts.check("a partition's records are handled one at a time");
            let Some(watched) = facts.members.get_mut(&host) else { return };
            if !watched.handling.insert(partition) {
                facts.fail(format_args!("host {host} handles two records of partition {partition} at once"));
            }
        });
    }

    pub(crate) fn handled(&self, host: usize, partition: u32) {
        if let Some(watched) = self.facts().members.get_mut(&host) {
            watched.handling.remove(&partition);
        }
    }

    /// An application has processed a record.
    pub(crate) fn processed(&self, partition: u32, offset: u64) {
        self.facts().logs[partition as usize].process(offset);
    }

    /// An application goes on elsewhere: what lies between nobody need process.
    pub(crate) fn sought(&self, host: usize, consumer: &Consumer, partition: u32, from: u64, to: u64) {
        let mut facts = self.facts();
        let facts = &mut *facts;
        let generation = consumer.statistics().local_generation;
        let mut from = from;
        let log = &mut facts.logs[partition as usize];
        if let Some(watched) = facts.members.get_mut(&host) {
            watched.enter(generation);
            if watched.style == Style::Handlers {
                // What waits for a handler is behind the position, and isn't handled any more; nor is what it is at, if it fails.
                from = watched.next.get(&partition).map_or(from, |next| from.min(next.saturating_sub(1)));
            }
            if watched.style != Style::Acks {
                log.leave_behind(from, to);
            }
            watched.next.insert(partition, to);
        }
        log.excuse(from, to);
    }

    /// Looks at what the brokers have committed.
    pub(crate) fn brokers_changed(&self, cluster: &Cluster) {
        let committed = cluster.committed(GROUP, TOPIC);
        self.look(|facts| facts.committed(&committed));
    }

    /// A commit returned without an error.
    pub(crate) fn acknowledged(&self, host: usize, cluster: &Cluster, offsets: &BTreeMap<u32, u64>) {
        let committed = cluster.committed(GROUP, TOPIC);
        self.look(|facts| {
            facts.check("what commit says is committed is committed");
            for (partition, offset) in offsets {
                if committed.get(partition).copied().unwrap_or(0) < *offset {
                    let at = format!("{partition}:{offset}");
                    facts.fail(format_args!("host {host} was told that {at} is committed, and {committed:?} is"));
                }
            }
        });
    }

    /// Awaits what has to end by its limit, whatever comes of it. Where it doesn't, that is a violation, and nothing comes of it.
    pub(crate) async fn within<T>(
        &self,
        what: &'static str,
        host: usize,
        limit: Duration,
        call: impl Future<Output = T>,
    ) -> Option<T> {
        self.check(what);
        // Delays of the network are counted in milliseconds; what isn't over by then never may be.
        let ended = timeout(limit + Duration::from_millis(20), call).await;
        if ended.is_err() {
            self.fail(format_args!("host {host}: {what}, and one didn't within {limit:?}"));
        }
        ended.ok()
    }

    /// Waits for a task, in which nothing may panic.
    pub(crate) async fn join(&self, what: fmt::Arguments<'_>, task: JoinHandle<()>) {
        if task.await.is_err_and(|error| error.is_panic()) {
            self.fail(format_args!("{what} panicked"));
        }
    }

    pub(crate) fn check(&self, what: &'static str) {
        self.facts().check(what);
    }

    /// Whether every record was processed and is committed.
    pub(crate) fn is_settled(&self) -> bool {
        self.facts().logs.iter().all(Log::is_settled)
    }

    /// What is missing for that.
    pub(crate) fn missing(&self) -> String {
        let facts = self.facts();
        let logs = facts.logs.iter().enumerate().filter(|(_, log)| !log.is_settled());
        logs.map(|(partition, log)| format!("partition {partition} {log}")).collect::<Vec<_>>().join("; ")
    }
}

impl Watched {
    /// Another assignment: what was expected of the one before counts no longer.
    fn enter(&mut self, generation: u64) {
        if self.generation != generation {
            self.generation = generation;
            self.next.clear();
        }
    }
}

impl Facts {
    fn note(&mut self, what: fmt::Arguments<'_>) {
        let line = format!("{:>10.3} {what}", self.began.elapsed().as_secs_f64());
        self.hash.write(line.as_bytes());
        if let Some(trace) = &mut self.trace {
            trace.push(line);
        }
    }

    fn fail(&mut self, what: fmt::Arguments<'_>) {
        let line = format!("after {:.3} s: {what}", self.began.elapsed().as_secs_f64());
        self.note(format_args!("VIOLATION {what}"));
        self.violation.get_or_insert(line);
    }

    fn check(&mut self, what: &'static str) {
        *self.checks.entry(what).or_default() += 1;
    }

    fn observe(&mut self, host: usize) {
        let Some(watched) = self.members.get_mut(&host) else { return };
        let Some(consumer) = watched.consumer.upgrade() else { return };
        let (before, state) = (watched.state, consumer.state());
        watched.state = state;
        let assigned = consumer.group_metadata().is_ok();
        watched.unassigned = if assigned { None } else { Some(watched.unassigned.unwrap_or_else(Instant::now)) };
        let statistics = consumer.statistics();
        let most = watched.most_buffered + watched.longest_frame;
        self.check("states follow each other as the lifecycle says");
        self.check("what is buffered stays within its bound");
        if statistics.buffered_bytes > most {
            let buffered = statistics.buffered_bytes;
            self.fail(format_args!("host {host} has buffered {buffered} bytes, which is over {most}"));
        }
        if before == state {
            return;
        }
        self.note(format_args!("host {host} {before} -> {state}"));
        let allowed = match before {
            State::New => state != State::Running,
            State::Running | State::Rebalancing => state != State::New,
            State::Closing => state == State::Closed,
            State::Closed => false,
        };
        if !allowed {
            self.fail(format_args!("host {host} went from {before} to {state}"));
        }
    }

    /// A record reached an application.
    fn record(&mut self, host: usize, consumer: &Consumer, partition: u32, offset: u64) {
        self.delivered += 1;
        self.note(format_args!("host {host} delivers {partition}:{offset}"));
        self.check("records of a partition come in order, none left out");
        let generation = consumer.statistics().local_generation;
        let (Some(watched), Some(log)) = (self.members.get_mut(&host), self.logs.get(partition as usize)) else {
            return;
        };
        watched.enter(generation);
        let next = watched.next.insert(partition, offset + 1);
        let goes_on =
            next.is_some_and(|next| log.follows(next, offset) || (next < offset && log.is_committed_before(offset)));
        // A new assignment begins where nobody has to have processed anything further.
        let begins = log.may_begin(offset) && next.is_none();
        if !log.is_visible(offset) || !(goes_on || begins) {
            let after = match next {
                Some(next) => format!("where {next} was next"),
                None => format!("first of its assignment, where {log}"),
            };
            self.fail(format_args!("host {host} delivered {partition}:{offset} {after}"));
        }
    }

    fn committed(&mut self, committed: &BTreeMap<u32, u64>) {
        self.check("what is committed never falls");
        self.check("what is committed was processed");
        for (partition, offset) in committed {
            let Some(log) = self.logs.get_mut(*partition as usize) else { continue };
            if let Err(why) = log.commit(*offset, self.latest) {
                self.fail(format_args!("committed {partition}:{offset}, and {why}"));
            }
        }
    }
}
