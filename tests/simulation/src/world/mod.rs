//! One run: a cluster, members and what is done to them (`steps`), then peace, in which everything must come right.

mod steps;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cursus_consumer::{Consumer, Environment, Settings, State, Topic, TopicPartition, Value};
use cursus_embedded::{Cluster, Hold, Options};
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::application::Application;
use crate::draw::Draw;
use crate::network::{SimulatedNetwork, Way};
use crate::oracle::{Checks, GROUP, Oracle, TOPIC};
use crate::plan::{Plan, What};

/// How long everything may take to come right in peace: sessions, back-offs and requests that nobody answered run out first.
const PEACE: Duration = Duration::from_secs(180);

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What contradicted the contract, if anything did.
    pub violation: Option<String>,
    /// How often what was done, by kind.
    pub done: BTreeMap<String, u64>,
    /// How often what was looked at.
    pub checks: Checks,
    /// How many records were delivered.
    pub delivered: u64,
    /// How long it took on the simulated clock.
    pub simulated: Duration,
    /// The same where the same happened.
    pub fingerprint: u64,
    /// What happened, line by line, where that was asked for.
    pub trace: Vec<String>,
}

/// Runs a plan on a runtime, clock and network of its own.
pub fn run(plan: &Plan, traced: bool) -> Outcome {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let began = Instant::now();
        let mut world = World::new(plan, traced).await;
        let oracle = Arc::clone(&world.oracle);
        let lived = async {
            world.live().await;
            world.settle().await;
            world.end().await;
        };
        tokio::select! {
            biased;
            _ = oracle.violation() => {}
            () = lived => {}
        }
        Outcome {
            violation: oracle.found(),
            done: std::mem::take(&mut world.done),
            checks: oracle.checks(),
            delivered: oracle.delivered_records(),
            simulated: began.elapsed(),
            fingerprint: oracle.fingerprint(),
            trace: oracle.trace(),
        }
    })
}

/// A member that lives.
struct Member {
    host: usize,
    consumer: Arc<Consumer>,
    tasks: Vec<JoinHandle<()>>,
    /// A close is on its way.
    closing: Option<JoinHandle<()>>,
    paused: Vec<(Instant, TopicPartition)>,
}

struct World<'a> {
    plan: &'a Plan,
    draw: Draw,
    network: SimulatedNetwork,
    cluster: Cluster,
    oracle: Arc<Oracle>,
    members: BTreeMap<usize, Member>,
    next_host: usize,
    settling: Arc<AtomicBool>,
    /// What ends the harm that lasts for a while.
    ends: VecDeque<(Instant, End)>,
    restarts: Vec<JoinHandle<()>>,
    /// Looks on at everything, and ends with the run.
    watchers: Vec<JoinHandle<()>>,
    done: BTreeMap<String, u64>,
}

enum End {
    Open(Vec<(usize, u16, Way)>),
    SpeedUp,
    Restart(usize),
    GoOn(usize),
    Undelay(usize),
    Release(Hold),
    Resume(usize, TopicPartition),
}

fn topic_partition(partition: u32) -> TopicPartition {
    TopicPartition::new(Topic::new(TOPIC).expect("a name"), partition)
}

impl<'a> World<'a> {
    async fn new(plan: &'a Plan, traced: bool) -> Self {
        // Apart from each other, so that a shorter plan leaves as much as possible as it was.
        let draw = Draw::seeded(plan.seed ^ 0x5eed);
        let network = SimulatedNetwork::new(draw.fork());
        let options = Options {
            brokers: plan.brokers,
            port: Some(9000),
            leader_election: Duration::from_millis(plan.leader_election_ms),
            coordinator_commit_lag: Duration::from_millis(plan.commit_lag_ms),
            network: network.brokers(),
            randomness: draw.fork().randomness(),
            ..Options::default()
        };
        let cluster = Cluster::start(options).await.expect("a cluster on a simulated network");
        cluster.create_topic(TOPIC, plan.partitions).expect("a topic");
        let oracle = Oracle::new(plan.partitions, plan.reset == "latest", traced);
        network.tap(Arc::clone(&oracle) as Arc<dyn crate::network::Tap>);
        let watcher = {
            let (cluster, oracle) = (cluster.clone(), Arc::clone(&oracle));
            tokio::spawn(async move {
                cluster
                    .wait_for("the end", |cluster| {
                        oracle.brokers_changed(cluster);
                        false
                    })
                    .await;
            })
        };
        Self {
            plan,
            draw: draw.fork(),
            network,
            cluster,
            oracle,
            members: BTreeMap::new(),
            next_host: 0,
            settling: Arc::default(),
            ends: VecDeque::new(),
            restarts: Vec::new(),
            watchers: vec![watcher],
            done: BTreeMap::new(),
        }
    }

    /// Work and harm, as planned.
    async fn live(&mut self) {
        let began = Instant::now();
        let plan = self.plan;
        for member in 0..plan.members.len() {
            self.start(member);
        }
        for step in &plan.steps {
            let at = began + Duration::from_millis(step.at_ms);
            self.end_what_is_due(at).await;
            sleep_until(at).await;
            if self.carry_out(&step.what).await {
                self.oracle.note(format_args!("DONE {:?}", step.what));
                *self.done.entry(step.what.kind()).or_default() += 1;
            }
        }
    }

    /// Everybody comes back, and everything is processed and committed in the end.
    async fn settle(&mut self) {
        self.oracle.note(format_args!("PEACE"));
        self.settling.store(true, Ordering::Relaxed);
        self.end_what_is_due(Instant::now() + Duration::from_secs(3_600)).await;
        self.network.unblock_all();
        for restart in std::mem::take(&mut self.restarts) {
            self.oracle.join(format_args!("a question or a restart"), restart).await;
        }
        for broker in 0..self.plan.brokers {
            let _ = self.cluster.delay(Some(broker), Duration::ZERO);
            if self.cluster.is_paused(broker) {
                let _ = self.cluster.resume_broker(broker);
            }
            if !self.cluster.is_running(broker) {
                let _ = self.cluster.restart_broker(broker).await;
            }
        }
        self.bury().await;
        if self.members.values().all(|member| member.closing.is_some()) {
            for member in std::mem::take(&mut self.members).into_values() {
                self.buried(member).await;
            }
            self.start(0);
        }
        let (cluster, oracle) = (self.cluster.clone(), Arc::clone(&self.oracle));
        let settled = timeout(PEACE, cluster.wait_for("everything to be committed", |_| oracle.is_settled())).await;
        self.oracle.check("in peace every record is processed and committed");
        if settled.is_err() {
            let members: Vec<_> = self
                .members
                .values()
                .map(|member| format!("host {}: {:?}", member.host, member.consumer.statistics()))
                .collect();
            self.oracle.fail(format_args!(
                "still open after {PEACE:?} of peace: {}; {:?}; {members:#?}",
                self.oracle.missing(),
                self.cluster
            ));
        }
    }

    /// Everybody leaves, and nothing is left.
    async fn end(&mut self) {
        self.oracle.note(format_args!("END"));
        let members = std::mem::take(&mut self.members);
        // What is told to fail may be asked for only now, and a frozen connection stays silent.
        let peaceful = !self.plan.steps.iter().any(|step| {
            matches!(step.what, What::Fail { .. } | What::LoseReply { .. } | What::Corrupt { .. } | What::Freeze { .. })
        });
        let closing: Vec<_> = members
            .into_values()
            .map(|mut member| {
                if member.closing.is_none() {
                    member.closing = Some(self.close(&member, Duration::from_secs(10), peaceful));
                }
                member
            })
            .collect();
        for member in closing {
            self.buried(member).await;
        }
        let cluster = self.cluster.clone();
        // Those who were killed expire.
        let left = cluster
            .wait_for("an empty group", |cluster| cluster.group(GROUP).is_none_or(|group| group.members.is_empty()));
        if timeout(Duration::from_secs(30), left).await.is_err() {
            self.oracle.fail(format_args!("members are left: {:?}", self.cluster));
        }
        self.watchers.drain(..).for_each(|watcher| watcher.abort());
        self.cluster.stop().await;
        sleep(Duration::from_secs(20)).await;
        self.oracle.check("no socket and no task is left");
        let (sockets, tasks) = (self.network.open_at_all(), Handle::current().metrics().num_alive_tasks());
        if (sockets, tasks) != (0, 0) {
            self.oracle.fail(format_args!("{sockets} connections and {tasks} tasks are left at the end"));
        }
    }

    fn start(&mut self, member: usize) {
        let host = self.next_host;
        self.next_host += 1;
        let plan = self.plan.members[member].clone();
        let mut values: BTreeMap<String, Value> =
            plan.settings.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect();
        values.insert("brokers".to_owned(), Value::List(self.cluster.brokers()));
        values.insert("topic".to_owned(), TOPIC.into());
        values.insert("group_id".to_owned(), GROUP.into());
        values.insert("auto_offset_reset".to_owned(), self.plan.reset.as_str().into());
        let settings = Settings::from_values(values).expect("settings of a plan");
        let environment = Environment {
            runtime: Handle::current(),
            network: self.network.host(host),
            randomness: self.draw.fork().randomness(),
        };
        let consumer = Arc::new(Consumer::new(settings, environment));
        self.oracle.watch(host, &consumer, plan.style);
        let application = Application {
            host,
            plan,
            consumer: Arc::clone(&consumer),
            cluster: self.cluster.clone(),
            oracle: Arc::clone(&self.oracle),
            draw: self.draw.fork(),
            settling: Arc::clone(&self.settling),
        };
        let watching = {
            let (consumer, oracle) = (Arc::downgrade(&consumer), Arc::clone(&self.oracle));
            tokio::spawn(async move {
                while let Some(consumer) = consumer.upgrade() {
                    let changed = timeout(Duration::from_millis(500), consumer.driver().changed());
                    oracle.observe(host);
                    if consumer.state() == State::Closed {
                        return;
                    }
                    let _ = changed.await;
                }
            })
        };
        let tasks = vec![tokio::spawn(application.run()), watching];
        self.members.insert(member, Member { host, consumer, tasks, closing: None, paused: Vec::new() });
    }

    /// Closes a consumer, and looks at what is left of it.
    fn close(&self, member: &Member, time: Duration, in_peace: bool) -> JoinHandle<()> {
        let (host, consumer) = (member.host, Arc::clone(&member.consumer));
        let (oracle, network) = (Arc::clone(&self.oracle), self.network.clone());
        tokio::spawn(async move {
            let ended = oracle.within("close ends by its deadline", host, time, consumer.close(Some(time))).await;
            oracle.observe(host);
            if ended.is_none() {
                return;
            }
            if consumer.state() != State::Closed {
                oracle.fail(format_args!("host {host} is {} after close", consumer.state()));
            }
            let given_up = consumer.statistics().given_up;
            if in_peace && !given_up.is_empty() {
                oracle.fail(format_args!("host {host} gave up in peace: {given_up:?}"));
            }
            sleep(Duration::from_millis(1)).await;
            oracle.check("no connection outlives close");
            if network.open(host) > 0 {
                oracle.fail(format_args!("host {host} is closed and has {} connections", network.open(host)));
            }
        })
    }

    /// Waits for a member's end.
    async fn buried(&self, member: Member) {
        let Member { host, consumer, tasks, closing, .. } = member;
        // An application ends with its consumer.
        for task in closing.into_iter().chain(tasks) {
            self.oracle.join(format_args!("host {host}"), task).await;
        }
        drop(consumer);
        self.oracle.forget(host);
    }

    /// Those who have closed by now can be started again.
    async fn bury(&mut self) {
        let over: Vec<usize> = self
            .members
            .iter()
            .filter(|(_, it)| it.closing.as_ref().is_some_and(JoinHandle::is_finished))
            .map(|(i, _)| *i)
            .collect();
        for index in over {
            if let Some(member) = self.members.remove(&index) {
                self.buried(member).await;
            }
        }
    }

    async fn end_what_is_due(&mut self, by: Instant) {
        loop {
            let next = (0..self.ends.len()).min_by_key(|i| self.ends[*i].0);
            let Some(next) = next.filter(|next| self.ends[*next].0 <= by) else { return };
            let Some((at, end)) = self.ends.remove(next) else { return };
            if !self.settling.load(Ordering::Relaxed) {
                sleep_until(at).await;
            }
            match end {
                End::Open(ways) => ways.into_iter().for_each(|(host, port, way)| self.network.unblock(host, port, way)),
                End::SpeedUp => self.network.slow_down(Duration::ZERO),
                End::Restart(broker) => self.restart(broker),
                End::GoOn(broker) => drop(self.cluster.resume_broker(broker)),
                End::Undelay(broker) => drop(self.cluster.delay(Some(broker), Duration::ZERO)),
                End::Release(hold) => hold.release(),
                End::Resume(index, partition) => {
                    if let Some(member) = self.members.get_mut(&index) {
                        member.paused.retain(|(_, other)| *other != partition);
                        let _ = member.consumer.resume(&[partition]);
                    }
                }
            }
        }
    }

    fn restart(&mut self, broker: usize) {
        let cluster = self.cluster.clone();
        self.restarts.push(tokio::spawn(async move {
            let _ = cluster.restart_broker(broker).await;
        }));
    }

    fn lasts(&mut self, ms: u64, end: End) {
        self.ends.push_back((Instant::now() + Duration::from_millis(ms), end));
    }
}
