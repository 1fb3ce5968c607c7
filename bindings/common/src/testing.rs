//! The embedded cluster and its writer, as every language offers them for tests.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;

use cursus_consumer::{BrokerError, Error, ErrorKind, Result};
use cursus_embedded::control_port::{Failure, Session};
use cursus_embedded::{Cluster, ControlError, Meaning, NewRecord, Options, WriterError};
use serde_json::{Map, Value};

use crate::OfProcess;

/// What the cluster or a writer couldn't do, for a language to raise.
#[derive(Debug)]
pub enum Failed {
    /// One of the engine's errors.
    Engine(Error),
    /// The same, caused by what a broker answered.
    Broker(Error, BrokerError),
    /// What the operating system refused.
    System(io::Error),
    /// Another writer has taken over, with what is to be said of it. The engine has no such error.
    Fenced(String),
}

impl Failed {
    fn engine(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::Engine(Error::new(kind, message))
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

impl From<ControlError> for Failed {
    fn from(error: ControlError) -> Self {
        let kind = match &error {
            ControlError::Listen { source, .. } => {
                return Self::System(io::Error::new(source.kind(), error.to_string()));
            }
            ControlError::BrokerState { .. } | ControlError::Down { .. } | ControlError::Stopped => {
                ErrorKind::InvalidState
            }
            _ => ErrorKind::InvalidArgument,
        };
        Self::engine(kind, error.to_string())
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        let kind = match failure {
            Failure::Refused(error) => return error.into(),
            Failure::Failed { kind, .. } => kind,
        };
        let kind = match kind {
            "timed_out" => ErrorKind::TimedOut,
            "internal" => ErrorKind::Internal,
            _ => ErrorKind::InvalidArgument,
        };
        Self::engine(kind, failure.to_string())
    }
}

impl From<WriterError> for Failed {
    fn from(error: WriterError) -> Self {
        let message = error.to_string();
        let kind = match error {
            WriterError::Fenced { .. } => return Self::Fenced(message),
            WriterError::Refused { error, .. } => {
                let kind = match error.meaning() {
                    Meaning::OffsetRegression => ErrorKind::OffsetRegression,
                    _ => ErrorKind::Broker,
                };
                return Self::Broker(Error::new(kind, message), error);
            }
            WriterError::InvalidArgument(_) => ErrorKind::InvalidArgument,
            WriterError::InvalidState(_) => ErrorKind::InvalidState,
            WriterError::OutcomeUnknown { .. } => ErrorKind::CommitOutcomeUnknown,
            _ => ErrorKind::TimedOut,
        };
        Self::engine(kind, message)
    }
}

/// A cluster of this process.
#[derive(Debug)]
pub struct TestCluster(OfProcess<Session>);

impl TestCluster {
    /// Starts one.
    pub async fn start(options: Options) -> Result<Self, Failed> {
        match Cluster::start(options).await {
            Ok(cluster) => Ok(Self(OfProcess::new(Session::new(cluster)))),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                Err(Failed::engine(ErrorKind::InvalidArgument, error.to_string()))
            }
            Err(error) => Err(Failed::System(error)),
        }
    }

    /// The cluster; [`ErrorKind::Forked`] in a process that inherited it.
    pub fn cluster(&self) -> Result<&Cluster> {
        self.0.get().map(Session::cluster)
    }

    /// Carries one of the control port's commands out.
    pub async fn call(&self, command: &str, arguments: Map<String, Value>) -> Result<Value, Failed> {
        Ok(self.0.get()?.call(command, arguments).await?)
    }

    /// Writes records, and gives the offset behind the last one of each partition that was written to. Without a
    /// partition those with a key go where their key always goes, and those without one are dealt out in turn.
    pub fn produce(
        &self,
        topic: &str,
        records: Vec<NewRecord>,
        partition: Option<u32>,
    ) -> Result<BTreeMap<u32, u64>, Failed> {
        let cluster = self.cluster()?;
        // A topic that doesn't exist is reported by producing to it.
        let count = cluster.end_offsets(topic).len().max(1) as u64;
        let mut shares: BTreeMap<u32, (Vec<usize>, Vec<NewRecord>)> = BTreeMap::new();
        for (i, record) in records.into_iter().enumerate() {
            let dealt = || if record.key.is_empty() { i as u64 } else { hash(&record.key) } % count;
            let share = shares.entry(partition.unwrap_or_else(|| dealt() as u32)).or_default();
            share.0.push(i);
            share.1.push(record);
        }
        let mut ends = BTreeMap::new();
        for (target, (places, share)) in shares {
            let end = cluster.produce(topic, target, share).map_err(|error| in_place(error, &places))?;
            ends.insert(target, end);
        }
        Ok(ends)
    }
}

/// Where a record without a partition goes by its key: always the same in one process, and in no way that matters.
fn hash(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// The cluster counts the records of one partition; who gave them counts all.
fn in_place(error: ControlError, places: &[usize]) -> ControlError {
    match error {
        ControlError::RecordTooLarge { index, problem } => {
            ControlError::RecordTooLarge { index: places.get(index).copied().unwrap_or(index), problem }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::wait::for_at_most;

    fn done<T>(future: impl Future<Output = T>) -> T {
        for_at_most(pin!(future), Duration::from_secs(10)).expect("it ends")
    }

    fn kind(failed: Failed) -> (ErrorKind, String) {
        match failed {
            Failed::Engine(error) => (error.kind(), error.to_string()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_a_call_fails_with_is_of_the_engine_s_kinds() {
        let test = done(TestCluster::start(Options { brokers: 2, ..Options::default() })).unwrap();
        let call =
            |command, arguments| done(test.call(command, serde_json::from_value(arguments).unwrap())).map_err(kind);
        assert_eq!(call("create_topic", json!({"name": "t", "partitions": 2})), Ok(json!(true)));
        for (command, arguments, expected, message) in [
            ("kill_broker", json!({"broker": 2}), ErrorKind::InvalidArgument, "no broker 2; there are 2"),
            ("kill_broker", json!({"broker": -1}), ErrorKind::InvalidArgument, "\"broker\" must be a whole number"),
            ("restart_broker", json!({"broker": 0}), ErrorKind::InvalidState, "broker 0 is running already"),
            ("release", json!({"hold": 1}), ErrorKind::InvalidArgument, "no hold 1"),
            (
                "wait_for_members",
                json!({"group": "g", "count": 1, "timeout_ms": 1}),
                ErrorKind::TimedOut,
                "waited for 1 ms in vain",
            ),
        ] {
            let (kind, said) = call(command, arguments).unwrap_err();
            assert!(kind == expected && said.contains(message), "{command}: {kind:?} {said}");
        }
        let port = test.cluster().unwrap().brokers()[0].rsplit_once(':').unwrap().1.parse().unwrap();
        let taken = done(TestCluster::start(Options { brokers: 1, port: Some(port), ..Options::default() }));
        assert!(matches!(taken, Err(Failed::System(_))), "{taken:?}");
        done(test.cluster().unwrap().stop());
    }

    #[test]
    fn records_go_where_their_key_goes_or_in_turn_and_are_counted_in_all() {
        let test = done(TestCluster::start(Options { brokers: 1, ..Options::default() })).unwrap();
        test.cluster().unwrap().create_topic("t", 3).unwrap();
        let records = |key: &'static str| -> Vec<NewRecord> { (0..6).map(|i| (key, i.to_string()).into()).collect() };
        assert_eq!(test.produce("t", records(""), None).unwrap(), BTreeMap::from([(0, 2), (1, 2), (2, 2)]));
        assert_eq!(test.produce("t", records("k"), None).unwrap().len(), 1);
        let mut large = records("");
        large[4].key = vec![b'k'; 70_000].into();
        let (_, said) = kind(test.produce("t", large, Some(1)).unwrap_err());
        assert!(said.starts_with("record 4 has a key of 70000"), "{said}");
        let (kind, said) = kind(test.produce("other", records(""), None).unwrap_err());
        assert!(kind == ErrorKind::InvalidArgument && said.contains("no topic \"other\""), "{said}");
        done(test.cluster().unwrap().stop());
    }
}
