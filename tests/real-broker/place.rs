//! Where a test runs: a broker that it starts for itself, or a cluster that is running already.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cursus_consumer::{Consumer, Environment, Settings, Topic, TopicPartition, Value};
use cursus_wire::command::{
    CommitOffset, Create, Delete, FetchOffset, FindCoordinator, GroupStatus, JoinGroup, LeaveGroup, ListOffsets,
    Metadata,
};
use cursus_wire::{Group, Member, Request, reply};
use futures_util::future::join_all;

use crate::broker::Broker;
use crate::client::{Client, Failure, ask, delete};
use crate::cluster::Cluster;
use crate::consumers::soon;

/// A broker's binary, which each test starts for itself.
pub(crate) const BINARY: &str = "CURSUS_BROKER_BIN";
/// Addresses of a running cluster.
pub(crate) const BROKERS: &str = "CURSUS_BROKERS";
/// What kills, starts, pauses and resumes one of them.
pub(crate) const CONTROL: &str = "CURSUS_BROKER_CTL";

/// For how long a topic that was streamed is left alone before it is deleted. A broker goes on reading for a stream whose client
/// has gone until it has written to it twice, a sign of life every five seconds if nothing else, and crashes where the topic is
/// deleted meanwhile.
const UNREAD: Duration = Duration::from_secs(13);

/// Topics of a running cluster that are no longer used, and since when.
static LEFT: Mutex<Vec<(Instant, Topic)>> = Mutex::new(Vec::new());

/// How the consumers of this run read: `streaming.rs` has the same cases as `main.rs`, streamed.
pub(crate) fn mode() -> &'static str {
    if module_path!().starts_with("streaming") { "streaming" } else { "polling" }
}

/// A place with brokers, and a topic and a group of this test's own.
pub(crate) struct Place {
    /// Where to find the brokers first.
    pub(crate) brokers: Vec<String>,
    /// The broker, where this test has one of its own.
    pub(crate) broker: Option<Broker>,
    /// How to harm the cluster, where this test may.
    pub(crate) cluster: Option<Cluster>,
    pub(crate) topic: Topic,
    pub(crate) group: Group,
    /// What is left in a running cluster when this test ends, to be deleted.
    made: Mutex<Vec<Topic>>,
    /// Tests that harm the cluster have it to themselves.
    _turn: Option<File>,
}

impl Place {
    /// A broker of this test's own, or the running cluster.
    pub(crate) async fn any() -> Option<Self> {
        if let Some(brokers) = variable(BROKERS) {
            return Some(Self::running(&brokers, false).await);
        }
        match variable(BINARY) {
            Some(binary) => Some(Self::started(&binary, &[], &[]).await),
            None => skip(&format!("neither {BINARY} nor {BROKERS} is set")),
        }
    }

    /// A broker of this test's own, with more lines for its configuration.
    pub(crate) async fn own(lines: &[&str]) -> Option<Self> {
        Self::own_with(lines, &[]).await
    }

    /// The same with variables of its environment, for what a configuration file can't say.
    pub(crate) async fn own_with(lines: &[&str], variables: &[(&'static str, &str)]) -> Option<Self> {
        match variable(BINARY) {
            Some(binary) => Some(Self::started(&binary, lines, variables).await),
            None => skip(&format!("{BINARY} is not set")),
        }
    }

    /// The running cluster, where it has several brokers.
    pub(crate) async fn several() -> Option<Self> {
        match variable(BROKERS).filter(|brokers| brokers.contains(',')) {
            Some(brokers) => Some(Self::running(&brokers, false).await),
            None => skip(&format!("{BROKERS} doesn't name several brokers")),
        }
    }

    /// The running cluster, to be harmed.
    pub(crate) async fn harmed() -> Option<Self> {
        match (variable(BROKERS), variable(CONTROL)) {
            (Some(brokers), Some(control)) => {
                let mut place = Self::running(&brokers, true).await;
                let cluster = Cluster::new(place.brokers.clone(), control);
                cluster.settled(&place).await;
                place.cluster = Some(cluster);
                Some(place)
            }
            _ => skip(&format!("{BROKERS} and {CONTROL} are not both set")),
        }
    }

    async fn started(binary: &str, lines: &[&str], variables: &[(&'static str, &str)]) -> Self {
        let broker = Broker::start(binary, lines, variables).await;
        Self::new(vec![broker.address()], Some(broker), None)
    }

    async fn running(brokers: &str, alone: bool) -> Self {
        let turn = tokio::task::spawn_blocking(move || take_turn(alone)).await.expect("a turn");
        Self::new(brokers.split(',').map(|address| address.trim().to_owned()).collect(), None, Some(turn))
    }

    fn new(brokers: Vec<String>, broker: Option<Broker>, turn: Option<File>) -> Self {
        let (topic, group) = (unique("topic").parse().unwrap(), unique("group").parse().unwrap());
        Self { brokers, broker, cluster: None, topic, group, made: Mutex::default(), _turn: turn }
    }

    pub(crate) fn broker(&mut self) -> &mut Broker {
        self.broker.as_mut().expect("this test has a broker of its own")
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        self.cluster.as_ref().expect("this test may harm the cluster")
    }

    /// Makes the topic, and waits until every broker knows it.
    pub(crate) async fn create(&self, partitions: u32) {
        self.create_topic(&self.topic, partitions).await;
    }

    pub(crate) async fn create_topic(&self, topic: &Topic, partitions: u32) {
        self.made.lock().unwrap().push(topic.clone());
        let create = Create { topic: topic.clone(), partitions: Some(partitions) };
        soon("the topic to be made", async {
            while let Err(error) = ask(&self.brokers[0], &create).await {
                again(error).await;
            }
        })
        .await;
        for broker in &self.brokers {
            soon("a broker to know of the topic", async {
                while !matches!(ask(broker, &Metadata { topic: topic.clone() }).await, Ok(known) if
                    known.leaders.len() == partitions as usize && known.leaders.iter().all(|leader| !leader.is_empty()))
                {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            })
            .await;
        }
    }

    /// Deletes the topic and makes it anew, empty: what a group has committed stays.
    pub(crate) async fn remake(&self, partitions: u32) {
        if mode() == "streaming" {
            tokio::time::sleep(UNREAD).await;
        }
        self.ask(&Delete { topic: self.topic.clone() }).await;
        self.create(partitions).await;
    }

    /// Asks every broker in turn until one has an answer.
    pub(crate) async fn ask<R: Request>(&self, request: &R) -> R::Reply {
        soon(R::NAME, async {
            loop {
                for broker in &self.brokers {
                    match ask(broker, request).await {
                        Ok(reply) => return reply,
                        Err(error) => again(error).await,
                    }
                }
            }
        })
        .await
    }

    /// The broker that coordinates a group.
    pub(crate) async fn coordinator(&self, group: &Group) -> String {
        let found = self.ask(&FindCoordinator { group: group.clone() }).await;
        self.reachable(&format!("{}:{}", found.host, found.port))
    }

    /// The broker that leads a partition.
    pub(crate) async fn leader(&self, partition: u32) -> String {
        self.reachable(&self.leaders().await[partition as usize])
    }

    /// The brokers that lead the topic's partitions, in their order.
    pub(crate) async fn leaders(&self) -> Vec<String> {
        self.ask(&Metadata { topic: self.topic.clone() }).await.leaders
    }

    /// A broker that stands alone calls itself what nobody else need call it.
    fn reachable(&self, advertised: &str) -> String {
        if self.brokers.len() == 1 { self.brokers[0].clone() } else { advertised.to_owned() }
    }

    /// Asks the group's coordinator.
    async fn ask_coordinator<R: Request>(&self, request: &R) -> R::Reply {
        soon(R::NAME, async {
            loop {
                let coordinator = self.coordinator(&self.group).await;
                match ask(&coordinator, request).await {
                    Ok(reply) => return reply,
                    Err(error) => again(error).await,
                }
            }
        })
        .await
    }

    /// What the group has committed, as FETCH_OFFSET tells it: 0 where nothing is.
    pub(crate) async fn committed(&self, partition: u32) -> u64 {
        let request = FetchOffset { topic: self.topic.clone(), partition, group: self.group.clone() };
        self.ask_coordinator(&request).await.offset
    }

    /// What the group has committed, by partition.
    pub(crate) async fn all_committed(&self, partitions: u32) -> BTreeMap<u32, u64> {
        let mut all = BTreeMap::new();
        for partition in 0..partitions {
            all.insert(partition, self.committed(partition).await);
        }
        all
    }

    /// Waits until the group has committed this: in a cluster an answer may be a moment older than the commit.
    pub(crate) async fn wait_committed(&self, expected: &BTreeMap<u32, u64>) {
        let partitions = expected.keys().max().map_or(0, |last| last + 1);
        let mut seen = BTreeMap::new();
        let waiting = async {
            loop {
                seen = self.all_committed(partitions).await;
                if expected.iter().all(|(partition, offset)| seen[partition] == *offset) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let done = tokio::time::timeout(crate::consumers::PATIENCE, waiting).await;
        assert!(done.is_ok(), "expected {expected:?} to be committed, FETCH_OFFSET says {seen:?}");
    }

    /// Commits in the name of a member that joins for that, alone, and leaves again.
    pub(crate) async fn commit_by_hand(&self, partition: u32, offset: u64) {
        let (topic, group) = (self.topic.clone(), self.group.clone());
        let member = Member::new("by-hand").unwrap();
        let join = JoinGroup { topic: topic.clone(), group: group.clone(), member, generation: None };
        let joined = self.ask_coordinator(&join).await;
        let (member, generation) = (joined.member, Some(joined.generation));
        let commit = CommitOffset {
            topic: topic.clone(),
            partition,
            group: group.clone(),
            offset,
            member: member.clone(),
            generation,
        };
        self.ask_coordinator(&commit).await;
        self.ask_coordinator(&LeaveGroup { topic, group, member, generation }).await;
    }

    /// The group as GROUP_STATUS tells it.
    pub(crate) async fn group_status(&self) -> reply::GroupStatus {
        self.ask_coordinator(&GroupStatus { group: self.group.clone() }).await
    }

    /// Waits until the group has so many members, and gives the partitions of each.
    pub(crate) async fn wait_members(&self, count: usize) -> BTreeMap<String, Vec<u32>> {
        soon(&format!("{count} members"), async {
            loop {
                let status = self.group_status().await;
                if status.members.len() == count {
                    return status.members.into_iter().map(|m| (m.member_id, m.assignments)).collect();
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await
    }

    /// The next offsets of the topic's partitions, as their leaders tell them.
    pub(crate) async fn ends(&self) -> BTreeMap<u32, u64> {
        soon("LIST_OFFSETS", async {
            loop {
                match self.try_ends().await {
                    Ok(ends) => return ends,
                    Err(error) => again(error).await,
                }
            }
        })
        .await
    }

    /// The first offset that a partition keeps, as its leader tells it.
    pub(crate) async fn earliest(&self, partition: u32) -> u64 {
        let request = ListOffsets { topic: self.topic.clone(), partition: Some(partition) };
        self.ask(&request).await.partitions[0].earliest
    }

    async fn try_ends(&self) -> Result<BTreeMap<u32, u64>, Failure> {
        let mut ends = BTreeMap::new();
        for (partition, leader) in (0..).zip(&self.leaders().await) {
            let request = ListOffsets { topic: self.topic.clone(), partition: Some(partition) };
            ends.insert(partition, ask(&self.reachable(leader), &request).await?.partitions[0].latest);
        }
        Ok(ends)
    }

    /// Writes to a partition, by its leader. Nothing may fail meanwhile.
    pub(crate) async fn publish(&self, partition: u32, records: &[(Vec<u8>, Vec<u8>)]) {
        let leader = self.leader(partition).await;
        let mut client = soon("a connection", Client::connect(&leader)).await.expect("the leader is there");
        client.publish(&self.topic, partition, records).await;
    }

    /// Writes records to every partition, whose values begin with `<partition>:<offset>:` as long as nobody else writes.
    pub(crate) async fn fill(&self, partitions: u32, offsets: std::ops::Range<u64>, size: usize) {
        join_all((0..partitions).map(|partition| {
            let record = move |offset: u64| {
                let mut value = format!("{partition}:{offset}:").into_bytes();
                value.resize(size.max(value.len()), b'.');
                (offset.to_string().into_bytes(), value)
            };
            let records: Vec<_> = offsets.clone().map(record).collect();
            async move { self.publish(partition, &records).await }
        }))
        .await;
    }

    /// A consumer of the topic in the group, with settings changed as given.
    pub(crate) fn consumer(&self, more: &[(&str, Value)]) -> Arc<Consumer> {
        let usual = [
            ("group_id", self.group.as_str().into()),
            ("enable_auto_commit", false.into()),
            ("heartbeat_interval_ms", 1000u64.into()),
        ];
        self.alone(&[&usual, more].concat())
    }

    /// A consumer of the topic without a group.
    pub(crate) fn alone(&self, more: &[(&str, Value)]) -> Arc<Consumer> {
        let mut all: BTreeMap<String, Value> = BTreeMap::from([
            ("brokers".into(), Value::List(self.brokers.clone())),
            ("topic".into(), self.topic.as_str().into()),
            ("mode".into(), mode().into()),
        ]);
        all.extend(more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        Arc::new(Consumer::new(Settings::from_values(all).expect("valid settings"), Environment::current()))
    }

    /// A partition of the topic.
    pub(crate) fn tp(&self, partition: u32) -> TopicPartition {
        TopicPartition::new(self.topic.clone(), partition)
    }
}

impl Drop for Place {
    /// Takes topics out of a running cluster, its own or older ones: partitions without a leader cost it work for ever. Those of
    /// the last tests stay where they were streamed.
    fn drop(&mut self) {
        let cluster = self.cluster.take();
        if self.broker.is_none() {
            drop(cluster);
            let unread = if mode() == "streaming" { UNREAD } else { Duration::ZERO };
            let mut left = LEFT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let made = self.made.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
            left.extend(made.drain(..).map(|topic| (Instant::now(), topic)));
            let all = std::mem::take(&mut *left).into_iter();
            let (due, rest): (Vec<_>, Vec<_>) = all.partition(|(since, _)| since.elapsed() >= unread);
            *left = rest;
            drop(left);
            due.iter().for_each(|(_, topic)| delete(&self.brokers, topic));
        }
    }
}

/// A pause before a question is asked again that should have worked.
pub(crate) async fn again(_error: Failure) {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// A name that nothing else has, also not in a cluster that has seen other runs.
pub(crate) fn unique(what: &str) -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_nanos();
    format!("{what}-{now:x}-{}-{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed))
}

/// Passes a test that has nowhere to run. Says so past the capture of output, once for each reason.
fn skip<T>(why: &str) -> Option<T> {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut said = SAID.lock().unwrap();
    if !said.iter().any(|known| known == why) {
        let _ = writeln!(std::io::stderr(), "tests that need it are skipped: {why}. See docs/real-broker.md");
        said.push(why.to_owned());
    }
    #[allow(clippy::print_stdout)]
    {
        println!("skipped: {why}");
    }
    None
}

/// Waits for this test's turn on the cluster: alone, or beside others that do no harm.
fn take_turn(alone: bool) -> File {
    let path = std::env::temp_dir().join("cursus-real-broker-tests.lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path).expect("a file to lock");
    if alone { file.lock() } else { file.lock_shared() }.expect("a lock");
    file
}
