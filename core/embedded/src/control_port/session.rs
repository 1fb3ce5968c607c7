//! One client of the control port: its holds, and what it waits for.

use std::collections::BTreeMap;
use std::time::Duration;

use cursus_net::BoxFuture;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::given::Given;
use super::table::{Command, Run};
use super::{Failure, Outcome};
use crate::Cluster;
use crate::error::ControlError;
use crate::faults::Hold;

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

/// How long is waited where the request doesn't say.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Session {
    pub(super) cluster: Cluster,
    /// By the numbers that the client knows them by. They are released when it goes.
    holds: BTreeMap<u64, Hold>,
    made: u64,
}

impl Session {
    pub(super) fn new(cluster: Cluster) -> Self {
        Self { cluster, holds: BTreeMap::new(), made: 0 }
    }

    /// Carries a request out. One that waits ends early where its client is gone or the cluster was stopped.
    pub(super) async fn carry_out(
        &mut self,
        command: &Command,
        given: &Given,
        gone: impl Future<Output = ()>,
    ) -> Outcome {
        let stopped = self.cluster.shared().root.clone();
        match command.run {
            Run::Now(run) => run(self, given),
            Run::Later(run) => run(self, given).await,
            Run::Wait(run) => {
                let patience = given.optional("timeout_ms")?.map_or(PATIENCE, Duration::from_millis);
                let cluster = self.cluster.clone();
                tokio::select! {
                    biased;
                    waited = timeout(patience, run(self, given)) => waited.unwrap_or_else(|_| {
                        let (name, patience) = (command.name, patience.as_millis());
                        let message = format!("{name} waited for {patience} ms in vain; there is {cluster:?}");
                        Err(Failure::new("timed_out", message))
                    }),
                    () = stopped.cancelled() => Err(ControlError::Stopped.into()),
                    () = gone => Err(Failure::new("closed", "the connection was closed meanwhile")),
                }
            }
        }
    }

    /// The broker that was named, if there is one.
    pub(super) fn broker(&self, given: &Given) -> Result<usize, Failure> {
        let (broker, count) = (given.get("broker")?, self.cluster.options().brokers);
        if broker < count { Ok(broker) } else { Err(ControlError::NoBroker { broker, count }.into()) }
    }

    pub(super) fn hold(&mut self, given: &Given) -> Outcome {
        let command = given.text("command")?;
        // Failing it no times changes nothing, and tells whether there is such a command.
        self.cluster.fail_next(&command, 0, "")?;
        self.made += 1;
        self.holds.insert(self.made, self.cluster.hold(&command));
        Ok(json!(self.made))
    }

    fn no_hold(&self, number: u64) -> Failure {
        let existing: Vec<String> = self.holds.keys().map(u64::to_string).collect();
        let existing = if existing.is_empty() { "none".to_owned() } else { existing.join(", ") };
        Failure::new("no_hold", format!("no hold {number} of this connection; there are: {existing}"))
    }

    pub(super) fn release(&mut self, given: &Given) -> Outcome {
        let number = given.get("hold")?;
        self.holds.remove(&number).map(Hold::release).ok_or_else(|| self.no_hold(number))?;
        Ok(Value::Bool(true))
    }

    pub(super) fn held(&self, given: &Given) -> Result<&Hold, Failure> {
        let number = given.get("hold")?;
        self.holds.get(&number).ok_or_else(|| self.no_hold(number))
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
