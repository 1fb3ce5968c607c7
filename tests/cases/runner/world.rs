//! What a case runs in: its cluster, its consumers, and what its steps have put aside.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cursus_consumer::{Batch, Consumer, Environment, Rebalance, Settings, Topic, TopicPartition, Value as Setting};
use cursus_embedded::{Cluster, Hold, Options, TransactionalWriter};
use serde_json::{Map, Value};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::DEFAULTS;
use crate::format::{Case, ClusterOptions, Mode, Step};

/// How much longer than its own deadline a step may take before it counts as hanging.
const GRACE: Duration = Duration::from_secs(15);

/// How many requests the message of a failure shows.
const LAST_REQUESTS: usize = 20;

/// Where a case failed, and at what.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The step, from 1; nothing where the case failed before or behind them.
    pub(crate) step: Option<usize>,
    message: String,
}

impl Failure {
    pub(crate) fn before(message: String) -> Self {
        Self { step: None, message }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// A consumer and what was read last by it.
pub(crate) struct Reader {
    pub(crate) consumer: Arc<Consumer>,
    pub(crate) topic: String,
    /// Empty where it has none.
    pub(crate) group: String,
    /// The last batch with records in it.
    pub(crate) last: Mutex<Batch>,
    /// What the last step that reads has read.
    pub(crate) read: Mutex<Vec<Batch>>,
    pub(crate) listening: AtomicBool,
    /// The changes of the assignment that polls and close have told of.
    pub(crate) told: Mutex<Vec<Rebalance>>,
}

impl Reader {
    pub(crate) fn partition(&self, partition: u32) -> Result<TopicPartition, String> {
        let topic = Topic::new(&self.topic).map_err(|error| error.to_string())?;
        Ok(TopicPartition::new(topic, partition))
    }

    pub(crate) fn partitions(&self, numbers: &[u32]) -> Result<Vec<TopicPartition>, String> {
        numbers.iter().map(|number| self.partition(*number)).collect()
    }

    /// Polls, and hears on the way what callbacks of other languages are called with.
    pub(crate) async fn poll(&self, time: Duration) -> cursus_consumer::Result<Batch> {
        if !self.listening.load(Ordering::Relaxed) {
            return self.consumer.poll(Some(time)).await;
        }
        let deadline = Instant::now() + time;
        self.hear();
        let poll = self.consumer.driver().begin_poll(None)?;
        loop {
            let changed = self.consumer.driver().changed();
            self.hear();
            let found = poll.take();
            self.hear();
            if let Some(batch) = found? {
                return Ok(batch);
            }
            if timeout_at(deadline, changed).await.is_err() {
                return Ok(Batch::default());
            }
        }
    }

    pub(crate) fn hear(&self) {
        locked(&self.told).extend(std::iter::from_fn(|| self.consumer.driver().next_rebalance()));
    }
}

pub(crate) struct World {
    pub(crate) case: Arc<Case>,
    mode: Mode,
    pub(crate) cluster: Cluster,
    readers: Mutex<BTreeMap<String, Arc<Reader>>>,
    pub(crate) holds: Mutex<BTreeMap<String, Arc<Hold>>>,
    pub(crate) batches: Mutex<BTreeMap<String, Batch>>,
    pub(crate) remembered: Mutex<BTreeMap<String, Value>>,
    /// Group, partition and offset of what members have read together.
    pub(crate) seen: Mutex<BTreeSet<(String, u32, u64)>>,
    begun: Mutex<BTreeMap<String, JoinHandle<Result<(), String>>>>,
    pub(crate) commits: Mutex<BTreeMap<String, Pending>>,
    pub(crate) writers: Mutex<BTreeMap<String, TransactionalWriter>>,
}

/// The outcome of a commit that was handed over.
pub(crate) type Pending = Pin<Box<dyn Future<Output = cursus_consumer::Result<()>> + Send>>;

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn within(given: Option<u64>) -> Duration {
    Duration::from_millis(given.unwrap_or(DEFAULTS.within_ms))
}

/// Runs a case to its end.
pub(crate) async fn run(case: Arc<Case>, mode: Mode) -> Result<(), Failure> {
    let name = case.name.clone();
    let about = |what: String| Failure::before(format!("{name:?} ({}): {what}", mode.name()));
    let world = World::new(case.clone(), mode).await.map_err(about)?;
    for (index, step) in case.steps.iter().enumerate() {
        if let Err(what) = world.watched(step).await {
            let (number, count) = (index + 1, case.steps.len());
            let message = format!("step {number} of {count}, {}: {what}\n{}", shown(step), world.picture());
            return Err(Failure { step: Some(number), ..about(message) });
        }
    }
    world.end().await.map_err(about)
}

/// A step's name, and what was given.
fn shown(step: &Step) -> String {
    let text = format!("{step:?}");
    text.split_once('(').map_or(&*text, |(_, inner)| inner.strip_suffix(')').unwrap_or(inner)).to_owned()
}

impl World {
    async fn new(case: Arc<Case>, mode: Mode) -> Result<Arc<Self>, String> {
        let options = merged(&DEFAULTS.cluster, &case.cluster);
        let options: ClusterOptions = serde_json::from_value(options).map_err(|error| format!("cluster: {error}"))?;
        let ms = Duration::from_millis;
        let options = Options {
            brokers: options.brokers,
            session_timeout: ms(options.session_timeout_ms),
            expiry_check: ms(options.expiry_check_ms),
            leader_election: ms(options.leader_election_ms),
            coordinator_commit_lag: ms(options.coordinator_commit_lag_ms),
            idle_timeout: ms(options.idle_timeout_ms),
            ..Options::default()
        };
        let cluster = Cluster::start(options).await.map_err(|error| error.to_string())?;
        for (topic, partitions) in &case.topics {
            cluster.create_topic(topic, *partitions).map_err(|error| error.to_string())?;
        }
        Ok(Arc::new(Self {
            case,
            mode,
            cluster,
            readers: Mutex::default(),
            holds: Mutex::default(),
            batches: Mutex::default(),
            remembered: Mutex::default(),
            seen: Mutex::default(),
            begun: Mutex::default(),
            commits: Mutex::default(),
            writers: Mutex::default(),
        }))
    }

    /// A step hangs nobody: what the library should end by itself is given up a while later.
    async fn watched(self: &Arc<Self>, step: &Step) -> Result<(), String> {
        let limit = within(None).max(own_deadline(step)) + GRACE;
        match timeout(limit, self.step(step)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!("it hangs: it hasn't ended after {limit:?}")),
        }
    }

    async fn step(self: &Arc<Self>, step: &Step) -> Result<(), String> {
        match step {
            Step::Begin(begin) => {
                let task = tokio::spawn(self.clone().begun_step((*begin.step).clone()));
                match locked(&self.begun).insert(begin.r#as.clone(), task) {
                    Some(_) => Err(format!("there is a step {:?} already", begin.r#as)),
                    None => Ok(()),
                }
            }
            Step::End(end) => {
                let task = locked(&self.begun).remove(&end.step);
                let mut task = task.ok_or_else(|| format!("no step {:?} was begun", end.step))?;
                match timeout(within(end.within_ms), &mut task).await {
                    Ok(outcome) => outcome.unwrap_or_else(|error| Err(error.to_string())),
                    Err(_) => Err(format!("{:?} hasn't ended in time", end.step)),
                }
            }
            step => {
                if let Some(outcome) = self.cluster_step(step).await {
                    return outcome;
                }
                if let Some(outcome) = self.transaction_step(step).await {
                    return outcome;
                }
                self.consumer_step(step).await
            }
        }
    }

    /// A step in a step: boxed, since its type would have itself in it.
    fn begun_step(self: Arc<Self>, step: Step) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>> {
        Box::pin(async move { self.watched(&step).await })
    }

    /// Behind the last step.
    async fn end(self: &Arc<Self>) -> Result<(), String> {
        if let Some(name) = locked(&self.begun).keys().next() {
            return Err(format!("the step {name:?} was begun and never ended"));
        }
        locked(&self.holds).clear();
        let readers: Vec<_> = locked(&self.readers).values().cloned().collect();
        for reader in readers {
            let close = reader.consumer.close(None);
            timeout(GRACE, close).await.map_err(|_| "a consumer doesn't close".to_owned())?;
        }
        self.cluster.stop().await;
        Ok(())
    }

    /// What there is, for the message of a failure.
    fn picture(&self) -> String {
        let statistics =
            |(name, reader): (&String, &Arc<Reader>)| format!("{name}: {:?}", reader.consumer.statistics());
        let consumers: Vec<String> = locked(&self.readers).iter().map(statistics).collect();
        let requests = self.cluster.requests();
        let last = requests.iter().skip(requests.len().saturating_sub(LAST_REQUESTS));
        let requests: Vec<String> =
            last.map(|request| format!("to broker {}: {}", request.broker, request.text)).collect();
        format!("{}\n{:?}\nlast requests:\n{}", consumers.join("\n"), self.cluster, requests.join("\n"))
    }

    /// A consumer by its name; made at the first step that names it.
    pub(crate) fn reader(&self, name: &str) -> Result<Arc<Reader>, String> {
        let mut readers = locked(&self.readers);
        if let Some(reader) = readers.get(name) {
            return Ok(reader.clone());
        }
        let consumer = self.make(name)?.map_err(|error| format!("{error:?}"))?;
        let (topic, group) =
            (consumer.settings().topic.clone(), consumer.settings().group_id.clone().unwrap_or_default());
        let reader = Arc::new(Reader {
            consumer: Arc::new(consumer),
            topic,
            group,
            last: Mutex::default(),
            read: Mutex::default(),
            listening: AtomicBool::default(),
            told: Mutex::default(),
        });
        readers.insert(name.to_owned(), reader.clone());
        Ok(reader)
    }

    /// Makes a consumer, which its settings may not allow.
    pub(crate) fn make(&self, name: &str) -> Result<cursus_consumer::Result<Consumer>, String> {
        let given = self.case.consumers.get(name).ok_or_else(|| format!("the case has no consumer {name:?}"))?;
        let Value::Object(mut settings) = merged(&DEFAULTS.consumer, given) else { unreachable!("an object") };
        settings.entry("brokers").or_insert_with(|| self.cluster.brokers().into());
        settings.entry("mode").or_insert_with(|| self.mode.name().into());
        // Null takes a default away.
        settings.retain(|_, value| !value.is_null());
        let settings = settings.into_iter().map(|(name, value)| (name, self.setting(value)));
        let settings = Settings::from_values(settings);
        Ok(settings.map(|settings| Consumer::new(settings, Environment::current())))
    }

    fn setting(&self, value: Value) -> Setting {
        match value {
            Value::String(text) => Setting::Text(self.filled_in(&text)),
            Value::Bool(truth) => Setting::Boolean(truth),
            Value::Array(list) if list.iter().all(Value::is_string) => {
                Setting::List(list.iter().filter_map(Value::as_str).map(|text| self.filled_in(text)).collect())
            }
            other => match other.as_i64() {
                Some(number) => Setting::Integer(number.into()),
                None => Setting::Other(other.to_string()),
            },
        }
    }

    /// A batch that was put aside.
    pub(crate) fn saved(&self, name: &str) -> Result<Batch, String> {
        locked(&self.batches).get(name).cloned().ok_or_else(|| format!("no batch was saved as {name:?}"))
    }

    /// A text in which `$address0` and `$port0` stand for where broker 0 listens.
    pub(crate) fn filled_in(&self, text: &str) -> String {
        let mut text = text.to_owned();
        // From the last one: `$port1` is also how `$port10` begins.
        for (index, address) in self.cluster.brokers().iter().enumerate().rev() {
            let port = address.rsplit_once(':').map_or("", |(_, port)| port);
            text = text.replace(&format!("$address{index}"), address).replace(&format!("$port{index}"), port);
        }
        text
    }
}

fn merged(defaults: &Map<String, Value>, given: &Map<String, Value>) -> Value {
    let mut all = defaults.clone();
    all.extend(given.clone());
    Value::Object(all)
}

/// The deadline that a step names, where it names one.
fn own_deadline(step: &Step) -> Duration {
    let text = match step {
        Step::Begin(begin) => return own_deadline(&begin.step),
        Step::Read(read) => read.within_ms,
        Step::ReadTogether(read) => read.within_ms,
        Step::PollNothing(poll) => Some(poll.timeout_ms),
        Step::PollUntilError(poll) => poll.within_ms,
        Step::Start(start) => start.timeout_ms,
        Step::Commit(commit) => commit.timeout_ms,
        Step::Close(close) => close.timeout_ms,
        _ => None,
    };
    within(text)
}
