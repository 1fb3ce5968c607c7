//! One client of the control port: its holds, and what it waits for.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cursus_net::BoxFuture;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::given::Given;
use super::table::{self, Run};
use super::{Failure, Outcome};
use crate::Cluster;
use crate::error::ControlError;
use crate::faults::Hold;

/// How long is waited where the request doesn't say.
const PATIENCE: Duration = Duration::from_secs(10);

/// A cluster with all that it can be asked for by name, and the holds that were asked for here.
///
/// It can be asked from any number of threads at once; one that waits keeps no other from being answered.
#[derive(Debug)]
pub struct Session {
    pub(super) cluster: Cluster,
    holds: Mutex<Holds>,
}

/// Holds by the numbers that the client knows them by. They are released when it goes.
#[derive(Debug, Default)]
struct Holds {
    made: u64,
    open: BTreeMap<u64, Arc<Hold>>,
}

impl Session {
    /// A session of this cluster, which lives that long.
    pub fn new(cluster: Cluster) -> Self {
        Self { cluster, holds: Mutex::default() }
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Carries a command of the [`TABLE`](super::TABLE) out, and gives its answer. Dropped, it waits no longer; what
    /// doesn't wait may have been done.
    ///
    /// # Errors
    ///
    /// The cluster can't do it, the arguments are wrong, or there is no such command.
    pub async fn call(&self, command: &str, arguments: Map<String, Value>) -> Outcome {
        self.ask(command, arguments, pending()).await
    }

    /// Carries a request out. One that waits ends early where its client is gone or the cluster was stopped.
    pub(super) async fn ask(
        &self,
        command: &str,
        arguments: Map<String, Value>,
        gone: impl Future<Output = ()>,
    ) -> Outcome {
        let command = table::find(command)?;
        let given = Given::read(command, arguments)?;
        let answer = match command.run {
            Run::Now(run) => run(self, &given),
            Run::Later(run) => run(self, &given).await,
            Run::Wait(run) => {
                let stopped = self.cluster.shared().root.clone();
                let patience = given.optional("timeout_ms")?.map_or(PATIENCE, Duration::from_millis);
                tokio::select! {
                    biased;
                    waited = timeout(patience, run(self, &given)) => waited.unwrap_or_else(|_| {
                        let (name, patience) = (command.name, patience.as_millis());
                        let message = format!("{name} waited for {patience} ms in vain; there is {:?}", self.cluster);
                        Err(Failure::new("timed_out", message))
                    }),
                    () = stopped.cancelled() => Err(ControlError::Stopped.into()),
                    () = gone => Err(Failure::new("closed", "the connection was closed meanwhile")),
                }
            }
        }?;
        debug_assert!(command.answer.fits(&answer), "{command:?} answers {answer}, not {:?}", command.answer);
        Ok(answer)
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The broker that was named, if there is one.
    pub(super) fn broker(&self, given: &Given) -> Result<usize, Failure> {
        let (broker, count) = (given.get("broker")?, self.cluster.options().brokers);
        if broker < count { Ok(broker) } else { Err(ControlError::NoBroker { broker, count }.into()) }
    }

    pub(super) fn hold(&self, given: &Given) -> Outcome {
        let command = given.text("command")?;
        // Failing it no times changes nothing, and tells whether there is such a command.
        self.cluster.fail_next(&command, 0, "")?;
        let mut holds = self.holds();
        holds.made += 1;
        let number = holds.made;
        holds.open.insert(number, Arc::new(self.cluster.hold(&command)));
        Ok(json!(number))
    }

    pub(super) fn release(&self, given: &Given) -> Outcome {
        let hold = self.held(given)?;
        self.holds().open.remove(&given.get("hold")?);
        // Somebody may be waiting for it and have it too.
        hold.open();
        Ok(Value::Bool(true))
    }

    pub(super) fn held(&self, given: &Given) -> Result<Arc<Hold>, Failure> {
        let (number, holds) = (given.get("hold")?, self.holds());
        holds.open.get(&number).cloned().ok_or_else(|| {
            let existing: Vec<String> = holds.open.keys().map(u64::to_string).collect();
            let existing = if existing.is_empty() { "none".to_owned() } else { existing.join(", ") };
            Failure::new("no_hold", format!("no hold {number} of this connection; there are: {existing}"))
        })
    }

    /// Waits for a change of the cluster.
    pub(super) fn wait_for<'a>(
        &'a self,
        what: &'static str,
        mut condition: impl FnMut(&Cluster) -> bool + Send + 'a,
    ) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            self.cluster.wait_for(what, &mut condition).await;
            Ok(Value::Bool(true))
        })
    }
}
