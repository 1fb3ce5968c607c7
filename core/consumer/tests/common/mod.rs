//! What the engine's tests have in common: a cluster, consumers on it, and waiting with an end.
#![allow(dead_code, unreachable_pub)] // Each test file uses its part.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cursus_consumer::{Batch, Consumer, Environment, ErrorKind, Settings, State, Topic, TopicPartition, Value};
use cursus_embedded::{Cluster, Options};
use tokio::time::timeout;

/// How long a test waits for what should happen. Long, because machines are slow and noisy; nothing takes this long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A cluster whose sessions are long enough that nothing expires by itself.
pub async fn cluster(brokers: usize) -> Cluster {
    let options = Options {
        brokers,
        session_timeout: Duration::from_secs(60),
        expiry_check: Duration::from_millis(100),
        leader_election: Duration::from_millis(100),
        ..Options::default()
    };
    Cluster::start(options).await.expect("a cluster on loopback")
}

/// A cluster with a topic `t` that has records `0..count` spread over its partitions.
pub async fn cluster_with(brokers: usize, partitions: u32, count: u64) -> Cluster {
    let cluster = cluster(brokers).await;
    cluster.create_topic("t", partitions).unwrap();
    if count > 0 {
        cluster.fill("t", count, 100).unwrap();
    }
    cluster
}

/// Settings for topic `t` and group `g`, quick enough for tests, and changed as given.
pub fn settings(cluster: &Cluster, more: &[(&str, Value)]) -> Settings {
    let mut all: BTreeMap<String, Value> = BTreeMap::from([
        ("brokers".into(), Value::List(cluster.brokers())),
        ("topic".into(), "t".into()),
        ("group_id".into(), "g".into()),
        ("heartbeat_interval_ms".into(), 50u64.into()),
        ("retry_backoff_ms".into(), 10u64.into()),
        ("retry_backoff_max_ms".into(), 100u64.into()),
        ("enable_auto_commit".into(), false.into()),
        ("fetch_wait_ms".into(), 100u64.into()),
        ("mode".into(), mode().into()),
    ]);
    all.extend(more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    Settings::from_values(all).expect("valid settings")
}

pub fn consumer_with(cluster: &Cluster, more: &[(&str, Value)]) -> Arc<Consumer> {
    Arc::new(Consumer::new(settings(cluster, more), Environment::current()))
}

pub fn consumer(cluster: &Cluster) -> Arc<Consumer> {
    consumer_with(cluster, &[])
}

pub fn tp(partition: u32) -> TopicPartition {
    TopicPartition::new(Topic::new("t").unwrap(), partition)
}

/// Waits for something that should happen soon, and says what it was where it doesn't.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("still waiting after {PATIENCE:?}: {what}"),
    }
}

/// Waits until a consumer's own picture fulfils a condition, looked at on each of its changes and a little later.
pub async fn until(what: &str, consumer: &Consumer, mut condition: impl FnMut(&Consumer) -> bool) {
    soon(what, async {
        while !condition(consumer) {
            // Not every statistic wakes pollers: the time limit only bounds how late it is seen.
            let _ = timeout(Duration::from_millis(10), consumer.driver().changed()).await;
        }
    })
    .await;
}

/// What was read: per partition, the offsets in the order in which they came.
#[derive(Default, Debug)]
pub struct Seen(pub BTreeMap<TopicPartition, Vec<u64>>);

impl Seen {
    pub fn add(&mut self, batch: &Batch) {
        for record in batch.iter() {
            self.0.entry(record.partition.clone()).or_default().push(record.offset);
        }
    }

    pub fn distinct(&self) -> u64 {
        self.0.values().map(|offsets| offsets.iter().collect::<BTreeSet<_>>().len() as u64).sum()
    }

    pub fn total(&self) -> u64 {
        self.0.values().map(|offsets| offsets.len() as u64).sum()
    }

    /// Every partition's offsets rise by one from what it began at, each once.
    pub fn assert_exactly_in_order(&self) {
        for (partition, offsets) in &self.0 {
            let first = offsets.first().copied().unwrap_or(0);
            let expected: Vec<u64> = (first..first + offsets.len() as u64).collect();
            assert_eq!(offsets, &expected, "{partition} was not read in order, each record once");
        }
    }
}

/// Polls until so many distinct records were seen. A rebalance on the way is gone through.
pub async fn read(consumer: &Consumer, seen: &mut Seen, count: u64) {
    soon(&format!("{count} records"), async {
        while seen.distinct() < count {
            match consumer.poll(Some(Duration::from_secs(5))).await {
                Ok(batch) => seen.add(&batch),
                Err(error) if error.kind() == ErrorKind::Rebalancing => {}
                Err(error) => panic!("poll failed: {error:?}; seen {}; {:#?}", seen.distinct(), consumer.statistics()),
            }
        }
    })
    .await;
}

/// Starts a consumer and waits until it has fetched, and not yet returned, all there is.
pub async fn fetched(cluster: &Cluster, consumer: &Consumer) {
    started(consumer).await;
    let ends = cluster.end_offsets("t");
    until("everything to be fetched", consumer, |consumer| {
        consumer.statistics().partitions.iter().all(|(p, partition)| partition.fetched == ends[&p.partition])
    })
    .await;
}

/// Everything is fetched of the topic's only partition; 50 more records come, and the first 40 of all are deleted before it is
/// read on.
pub async fn overtaken(cluster: &Cluster, consumer: &Consumer) {
    fetched(cluster, consumer).await;
    cluster.pause_broker(0).unwrap();
    cluster.fill("t", 50, 10).unwrap();
    cluster.delete_records("t", 0, 40).unwrap();
    cluster.resume_broker(0).unwrap();
    let moved = |c: &Consumer| c.statistics().partitions[&tp(0)].fetched >= 40;
    until("the reset policy to go on behind what was deleted", consumer, moved).await;
}

/// How this run of the tests reads: the files of `streaming.rs` are the same tests, streamed.
pub fn mode() -> &'static str {
    if module_path!().starts_with("streaming") { "streaming" } else { "polling" }
}

/// The command that reads in this mode.
pub fn reading() -> &'static str {
    if mode() == "streaming" { "STREAM" } else { "CONSUME" }
}

pub async fn started(consumer: &Consumer) {
    let result = soon("the first assignment", consumer.start(Some(PATIENCE))).await;
    result.unwrap_or_else(|error| panic!("start failed: {error:?}"));
    assert_eq!(consumer.state(), State::Running);
}

pub async fn closed(consumer: &Consumer) {
    soon("close", consumer.close(None)).await;
    assert_eq!(consumer.state(), State::Closed);
}

/// How often a command was received, by any broker.
pub fn received(cluster: &Cluster, command: &str) -> usize {
    cluster.requests().iter().filter(|request| request.command == command).count()
}

/// An address where nobody listens. A port that was free a moment ago could be another test's broker by now; the first one
/// is never given out.
pub fn nowhere() -> String {
    "127.0.0.1:1".to_owned()
}
