//! `exactly_once` is killed: nothing of what it reads is missing behind it, nothing is there twice, and all is in order.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cursus_consumer::{Consumer, Environment, ErrorKind, Settings, Topic, TopicPartition};
use cursus_embedded::{Cluster, Hold, Options};
use tokio::time::timeout;

const PARTITIONS: u32 = 4;

/// How long anything may take that has to happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// The commands of a transaction, in their order.
const COMMANDS: [&str; 5] = ["INIT_PRODUCER_ID", "BEGIN_TXN", "SEND_OFFSETS_TO_TXN", "TXN_PUBLISH", "END_TXN"];

/// A program of the example, killed where nobody needs it any more.
struct Running(Child);

impl Running {
    fn start(cluster: &Cluster, transactional_id: &str) -> Self {
        let brokers = cluster.brokers().join(",");
        let child = Command::new(env!("CARGO_BIN_EXE_exactly_once"))
            .args([&brokers, "in", "out", "g", transactional_id])
            .stdout(Stdio::null())
            .spawn()
            .expect("the example starts");
        Self(child)
    }

    /// As SIGKILL does, and waits until nothing of it is left.
    fn kill(mut self) {
        self.end();
    }

    /// Whether it ended by itself, which it does only where it can't go on.
    fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("a child can be asked").is_some()
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Numbers that are the same in each run.
struct Seeded(u64);

impl Seeded {
    fn below(&mut self, end: u64) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end) as usize
    }
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("still waiting after {PATIENCE:?}: {what}"))
}

async fn wait_for(cluster: &Cluster, what: &str, condition: impl FnMut(&Cluster) -> bool) {
    soon(what, cluster.wait_for(what, condition)).await;
}

/// A cluster with so many records to process.
async fn cluster(brokers: usize, records: u64) -> Cluster {
    // Nobody expires but on command.
    let options = Options {
        brokers,
        session_timeout: Duration::from_secs(600),
        leader_election: Duration::from_millis(50),
        ..Options::default()
    };
    let cluster = Cluster::start(options).await.unwrap();
    cluster.create_topic("in", PARTITIONS).unwrap();
    cluster.create_topic("out", PARTITIONS).unwrap();
    cluster.fill("in", records, 20).unwrap();
    cluster
}

/// How many commands of transactions the brokers have received.
fn commands(cluster: &Cluster) -> usize {
    cluster.requests().iter().filter(|request| COMMANDS.contains(&request.command.as_str())).count()
}

/// Who died has a session that ends at some time: now.
fn expire_all(cluster: &Cluster) {
    for member in members(cluster) {
        // One that ended by itself may be leaving just now.
        let _ = cluster.expire_member("g", &member);
    }
}

fn all_is_processed(cluster: &Cluster) -> bool {
    cluster.committed("g", "in") == cluster.end_offsets("in")
}

/// The next of a command that is on its way. Of those that end a transaction it is a commit: a writer asks by an abort whether
/// it was fenced.
async fn held(cluster: &Cluster, command: &str) -> Hold {
    let mut held = cluster.hold(command);
    loop {
        soon(command, held.reached()).await;
        let is_abort = latest(cluster, command).is_some_and(|text| text.contains("result=abort"));
        if !is_abort {
            return held;
        }
        // The next one is held before this one goes on.
        held = cluster.hold(command);
    }
}

/// What the last one of a command said.
fn latest(cluster: &Cluster, command: &str) -> Option<String> {
    cluster.requests().into_iter().rev().find(|request| request.command == command).map(|request| request.text)
}

fn received(cluster: &Cluster, command: &str) -> usize {
    cluster.requests().iter().filter(|request| request.command == command).count()
}

/// Starts the example again whenever it has ended, until it has processed everything.
async fn finished(cluster: &Cluster, running: &mut Running) {
    soon("everything to be processed", async {
        // The cluster isn't told when a program ends, so that is looked at between waits.
        while timeout(Duration::from_millis(100), cluster.wait_for("the end", all_is_processed)).await.is_err() {
            if running.has_ended() {
                expire_all(cluster);
                *running = Running::start(cluster, "worker");
            }
        }
    })
    .await;
    running.end();
}

/// All that committed readers find in `out`, by partition, up to the end.
async fn results(cluster: &Cluster) -> BTreeMap<u32, Vec<String>> {
    let settings = [
        ("brokers", cluster.brokers().join(",").into()),
        ("topic", "out".into()),
        ("read_isolation", "read_committed".into()),
    ];
    let reader = Consumer::new(Settings::from_values(settings).unwrap(), Environment::current());
    let topic = Topic::new("out").unwrap();
    reader.assign((0..PARTITIONS).map(|partition| (TopicPartition::new(topic.clone(), partition), None))).unwrap();
    soon("the reader's start", reader.start(None)).await.unwrap();
    let mut found: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    soon("the results", async {
        while reader.lag(None).await.unwrap().values().any(|lag| *lag > 0) {
            match reader.poll(Some(Duration::from_millis(200))).await {
                Ok(batch) => batch.iter().for_each(|record| {
                    let text = String::from_utf8(record.value.to_vec()).unwrap();
                    found.entry(record.partition.partition).or_default().push(text);
                }),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Rebalancing, "{error}"),
            }
        }
    })
    .await;
    soon("the reader's end", reader.close(None)).await;
    found
}

/// Each record of `in` has one result, and in a partition of `out` those of a partition of `in` are in its order.
async fn assert_exactly_once(cluster: &Cluster) {
    let mut places = Vec::new();
    for (partition, values) in results(cluster).await {
        let mut last: BTreeMap<u32, u64> = BTreeMap::new();
        for value in values {
            let place = value.split(' ').next().and_then(|place| place.split_once('/')).expect("a place, then a value");
            let place: (u32, u64) = (place.0.parse().unwrap(), place.1.parse().unwrap());
            let before = last.insert(place.0, place.1);
            assert!(before < Some(place.1), "in {partition}: {place:?} is behind {before:?}");
            places.push(place);
        }
    }
    places.sort_unstable();
    let ends = cluster.end_offsets("in");
    let expected: Vec<_> =
        ends.into_iter().flat_map(|(partition, end)| (0..end).map(move |offset| (partition, offset))).collect();
    assert_eq!(places, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_random_moments_it_writes_each_result_once() {
    let cluster = cluster(3, 0).await;
    let mut seeded = Seeded(1);
    for _ in 0..12 {
        cluster.fill("in", 150, 20).unwrap();
        cluster.clear_requests();
        let running = Running::start(&cluster, "worker");
        let until = 1 + seeded.below(200);
        wait_for(&cluster, "commands", |cluster| commands(cluster) >= until || all_is_processed(cluster)).await;
        running.kill();
        expire_all(&cluster);
    }
    finished(&cluster, &mut Running::start(&cluster, "worker")).await;
    assert_exactly_once(&cluster).await;
}

/// What becomes of a request that the killed program had sent.
#[derive(Debug, Clone, Copy)]
enum Fate {
    /// It is carried out, and nobody hears of it.
    DoneUnheard,
    /// It lies somewhere until the next run is in the middle of a transaction.
    Late,
}

/// Kills the example while the first of a command inside its first real transaction is on its way.
async fn kill_in(cluster: &Cluster, command: &str, fate: Fate) {
    // What comes before the group is joined is no transaction with records.
    let joining = cluster.hold("JOIN_GROUP");
    let running = Running::start(cluster, "worker");
    soon("the join", joining.reached()).await;
    // Waiting for the hold makes it, and lets the join go on.
    let (held, ()) = tokio::join!(held(cluster, command), async { joining.release() });
    running.kill();
    expire_all(cluster);
    cluster.clear_requests();
    let mut next = match fate {
        Fate::DoneUnheard => {
            held.release();
            wait_for(cluster, "the dead program's connections to end", |cluster| {
                (0..cluster.options().brokers).all(|broker| cluster.connections(broker) == 0)
            })
            .await;
            Running::start(cluster, "worker")
        }
        Fate::Late => {
            let next = Running::start(cluster, "worker");
            wait_for(cluster, "the next run's records", |cluster| received(cluster, "TXN_PUBLISH") > 3).await;
            held.release();
            next
        }
    };
    finished(cluster, &mut next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_a_command_is_on_its_way_it_writes_each_result_once() {
    for command in COMMANDS {
        for fate in [Fate::DoneUnheard, Fate::Late] {
            let cluster = cluster(3, 200).await;
            kill_in(&cluster, command, fate).await;
            assert_exactly_once(&cluster).await;
            cluster.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_on_the_way_is_written_once_without_any_restart() {
    let cluster = cluster(3, 400).await;
    for command in COMMANDS {
        cluster.lose_reply(command, 3).unwrap();
    }
    let mut running = Running::start(&cluster, "worker");
    wait_for(&cluster, "everything to be processed", all_is_processed).await;
    assert!(!running.has_ended());
    running.kill();
    assert_exactly_once(&cluster).await;
}

/// The group's members.
fn members(cluster: &Cluster) -> BTreeSet<String> {
    cluster.group("g").map(|group| group.members.into_keys().collect()).unwrap_or_default()
}

/// Starts one more member of the group, and gives its name there.
async fn joined(cluster: &Cluster, transactional_id: &str) -> (Running, String) {
    let others = members(cluster);
    let running = Running::start(cluster, transactional_id);
    wait_for(cluster, "one more member", |cluster| members(cluster).len() > others.len()).await;
    let name = members(cluster).difference(&others).next().cloned().unwrap();
    (running, name)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_that_share_the_partitions_and_are_killed_in_turn_write_each_result_once() {
    let cluster = cluster(3, 0).await;
    let mut seeded = Seeded(2);
    let mut elder = joined(&cluster, "a").await;
    for id in ["b", "a", "b", "a"] {
        cluster.fill("in", 300, 20).unwrap();
        cluster.clear_requests();
        let until = 1 + seeded.below(120);
        wait_for(&cluster, "commands", |cluster| commands(cluster) >= until || all_is_processed(cluster)).await;
        // It joins while the other one works, and takes some of its partitions away.
        let mut younger = joined(&cluster, id).await;
        cluster.fill("in", 300, 20).unwrap();
        let until = commands(&cluster) + 1 + seeded.below(120);
        wait_for(&cluster, "commands of two", |cluster| commands(cluster) >= until || all_is_processed(cluster)).await;
        assert!(!elder.0.has_ended() && !younger.0.has_ended());
        let (dead, name) = std::mem::replace(&mut elder, younger);
        dead.kill();
        cluster.expire_member("g", &name).unwrap();
    }
    wait_for(&cluster, "everything to be processed", all_is_processed).await;
    assert!(!elder.0.has_ended());
    assert_exactly_once(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generation_that_is_over_is_refused_and_what_it_read_is_read_again() {
    let cluster = cluster(3, 600).await;
    let mut running = Running::start(&cluster, "worker");
    for command in ["SEND_OFFSETS_TO_TXN", "TXN_PUBLISH", "END_TXN"] {
        let held = held(&cluster, command).await;
        let committed = cluster.committed("g", "in");
        // Somebody comes and goes.
        let settings =
            [("brokers", cluster.brokers().join(",").into()), ("topic", "in".into()), ("group_id", "g".into())];
        let guest = Consumer::new(Settings::from_values(settings).unwrap(), Environment::current());
        soon("the guest", guest.start(None)).await.unwrap();
        soon("the guest's end", guest.close(None)).await;
        let mut aborting = cluster.hold("END_TXN");
        held.release();
        soon("the end of what is refused", aborting.reached()).await;
        if latest(&cluster, "END_TXN").is_some_and(|text| text.contains("result=commit")) {
            let refused = std::mem::replace(&mut aborting, cluster.hold("END_TXN"));
            refused.release();
            soon("the abort", aborting.reached()).await;
        }
        assert!(latest(&cluster, "END_TXN").is_some_and(|text| text.contains("result=abort")));
        assert_eq!(cluster.committed("g", "in"), committed);
        aborting.release();
    }
    wait_for(&cluster, "everything to be processed", all_is_processed).await;
    assert!(!running.has_ended());
    running.kill();
    assert_exactly_once(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_brokers_killed_under_it_and_itself_killed_it_writes_each_result_once() {
    let cluster = cluster(3, 0).await;
    let mut seeded = Seeded(3);
    for _ in 0..6 {
        let mut running = Running::start(&cluster, "worker");
        cluster.fill("in", 300, 20).unwrap();
        cluster.clear_requests();
        let until = 1 + seeded.below(150);
        wait_for(&cluster, "commands", |cluster| commands(cluster) >= until || all_is_processed(cluster)).await;
        let broker = seeded.below(3);
        cluster.kill_broker(broker).await.unwrap();
        cluster.restart_broker(broker).await.unwrap();
        let committed = cluster.committed("g", "in");
        // A commit that a broker's death has caught half-way has to be asked for again, while its member is known.
        wait_for(&cluster, "a commit", |cluster| {
            cluster.committed("g", "in") != committed || all_is_processed(cluster)
        })
        .await;
        assert!(!running.has_ended());
        let until = commands(&cluster) + seeded.below(60);
        wait_for(&cluster, "commands", |cluster| commands(cluster) >= until || all_is_processed(cluster)).await;
        running.kill();
        expire_all(&cluster);
    }
    finished(&cluster, &mut Running::start(&cluster, "worker")).await;
    assert_exactly_once(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_starts_with_the_same_id_ends_the_one_before() {
    let cluster = cluster(1, 400).await;
    let held = cluster.hold("TXN_PUBLISH");
    let (mut first, name) = joined(&cluster, "worker").await;
    soon("the first one's record", held.reached()).await;
    let second = Running::start(&cluster, "worker");
    wait_for(&cluster, "the second one to join", |cluster| received(cluster, "JOIN_GROUP") >= 2).await;
    held.release();
    soon("the first one's end", async {
        while !first.has_ended() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    // Unless it has left.
    let _ = cluster.expire_member("g", &name);
    wait_for(&cluster, "everything to be processed", all_is_processed).await;
    second.kill();
    assert_exactly_once(&cluster).await;
}
