//! A running cluster and the command that harms it.

use std::process::{Command, Stdio};
use std::time::Duration;

use cursus_wire::command::Metadata;
use tokio::time::sleep;

use crate::client::answers;
use crate::consumers::soon;
use crate::place::{Place, unique};

/// A running cluster. What was harmed is repaired when this is dropped.
pub(crate) struct Cluster {
    brokers: Vec<String>,
    control: String,
    down: std::sync::Mutex<Vec<(usize, &'static str)>>,
}

impl Cluster {
    pub(crate) fn new(brokers: Vec<String>, control: String) -> Self {
        Self { brokers, control, down: std::sync::Mutex::default() }
    }

    /// Waits until what a test before this one broke is whole again: every broker answers, and a topic made now is led by all
    /// of them and keeps its leaders for longer than it takes to miss a broker.
    pub(crate) async fn settled(&self, place: &Place) {
        for broker in &self.brokers {
            soon("every broker to answer", async {
                while !answers(broker).await {
                    sleep(Duration::from_millis(100)).await;
                }
            })
            .await;
        }
        soon("every broker to lead, and to go on leading", async {
            loop {
                let topic = unique("settled").parse().unwrap();
                place.create_topic(&topic, 12).await;
                sleep(Duration::from_secs(6)).await;
                let known = place.ask(&Metadata { topic }).await;
                if known.epochs.iter().all(|epoch| *epoch == 1)
                    && self.brokers.iter().all(|b| known.leaders.contains(b))
                {
                    return;
                }
            }
        })
        .await;
    }

    /// A broker's number, from 1, as the control command counts them.
    pub(crate) fn number(&self, broker: &str) -> usize {
        let at = self.brokers.iter().position(|known| known == broker);
        at.unwrap_or_else(|| panic!("{broker} isn't one of CURSUS_BROKERS, {:?}", self.brokers)) + 1
    }

    pub(crate) fn kill(&self, broker: &str) {
        self.harm("kill", broker, "start");
    }

    pub(crate) fn pause(&self, broker: &str) {
        self.harm("pause", broker, "resume");
    }

    fn harm(&self, verb: &str, broker: &str, cure: &'static str) {
        let number = self.number(broker);
        self.down.lock().unwrap().push((number, cure));
        assert!(self.run(verb, number), "{} {verb} {number} failed", self.control);
    }

    /// Starts what was killed and resumes what was paused, and waits until it answers.
    pub(crate) async fn heal(&self, broker: &str) {
        self.repair(Some(self.number(broker)));
        soon("the broker to be back", async {
            while !answers(broker).await {
                sleep(Duration::from_millis(100)).await;
            }
        })
        .await;
    }

    fn repair(&self, only: Option<usize>) {
        let mut down = self.down.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        down.retain(|(number, cure)| {
            if only.is_some_and(|only| only != *number) {
                return true;
            }
            let done = self.run(cure, *number);
            assert!(done || std::thread::panicking(), "{} {cure} {number} failed", self.control);
            false
        });
    }

    fn run(&self, verb: &str, number: usize) -> bool {
        let command = format!("{} {verb} {number}", self.control);
        // Nothing of ours is inherited: a broker that the command starts would hold it open.
        let (input, output, error) = (Stdio::null(), Stdio::null(), Stdio::null());
        let status = Command::new("sh").args(["-c", &command]).stdin(input).stdout(output).stderr(error).status();
        status.is_ok_and(|status| status.success())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.repair(None);
    }
}
