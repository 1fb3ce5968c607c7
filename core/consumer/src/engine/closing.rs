//! Closing: flush what has to be committed, leave the group, end everything, by a deadline that always holds.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::health::Part;
use crate::membership::Event;
use crate::types::State;

use super::Engine;
use super::commits::Pending;
use super::session::Session;

/// How long a consumer that failed may take to leave its group.
pub(super) const AFTER_FAILURE: Duration = Duration::from_secs(2);

/// How long a consumer that is dropped without close may take to write its LEAVE. Nobody waits for it.
const ABANDONED: Duration = Duration::from_millis(500);

pub(crate) struct Closing {
    /// When flushing ends, so that there is time left to leave.
    flush_until: Instant,
    deadline: Instant,
    leaving: bool,
}

impl Closing {
    pub(super) fn next_deadline(&self) -> Instant {
        if self.leaving { self.deadline } else { self.flush_until }
    }
}

impl Engine {
    /// Begins to close. A second call can only bring the deadline forward.
    pub(super) fn close(&mut self, deadline: Instant) {
        let now = Instant::now();
        let flush_until = now + deadline.saturating_duration_since(now).mul_f64(0.75);
        if let Some(closing) = &mut self.closing {
            closing.deadline = closing.deadline.min(deadline);
            closing.flush_until = closing.flush_until.min(flush_until);
            return;
        }
        self.common.shared.delivery.seal();
        self.closing = Some(Closing { flush_until, deadline, leaving: false });
        for session in &mut self.sessions {
            drop(session.stop_reading());
            session.auto_commit();
        }
    }

    /// Goes a step further where it can.
    pub(super) fn step_closing(&mut self) {
        let Some(closing) = &mut self.closing else { return };
        if closing.leaving {
            return;
        }
        // A membership that never got anywhere has nothing to flush with.
        let flushed = self.sessions.iter().all(Session::is_flushed);
        if flushed || Instant::now() >= closing.flush_until {
            closing.leaving = true;
            for session in &mut self.sessions {
                session.give_up_commits(&self.common.shared.health);
                session.feed(Event::Close);
            }
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.closing.as_ref().is_some_and(|closing| {
            closing.leaving && (self.sessions.iter().all(|session| session.over) || Instant::now() >= closing.deadline)
        })
    }

    /// Ends everything that runs, then says that the consumer is closed.
    pub(super) async fn finish(mut self) {
        let shared = std::sync::Arc::clone(&self.common.shared);
        for session in &self.sessions {
            if !session.over {
                session.note_not_left();
            }
        }
        self.operations.clear();
        self.sessions.clear();
        self.common.links.clear();
        self.cancelled.cancel();
        self.common.tasks.close();
        self.common.tasks.wait().await;
        shared.delivery.clear();
        {
            let mut facts = shared.health.facts();
            facts.member = None;
            facts.generation = None;
        }
        // What was said while the last tasks ended is answered by this: the channel closes with the engine.
        drop(self);
        shared.delivery.enter(State::Closed);
    }

    /// The application dropped its last handle: no flush, at most one LEAVE that nobody waits for.
    pub(super) async fn abandon(mut self) {
        self.common.shared.delivery.seal();
        for session in &mut self.sessions {
            drop(session.stop_reading());
            session.leave_unawaited();
        }
        self.operations.clear();
        self.sessions.clear();
        self.common.links.clear();
        self.common.tasks.close();
        let _ = timeout(ABANDONED, self.common.tasks.wait()).await;
        self.cancelled.cancel();
        self.common.tasks.wait().await;
        self.common.shared.delivery.clear();
        self.common.shared.delivery.enter(State::Closed);
    }
}

impl Session {
    /// Whether nothing is left to commit. What was proven before a rebalance that came in between is committed under the
    /// next generation, once that is synchronised.
    fn is_flushed(&self) -> bool {
        self.commits.is_empty() && !(self.carries() && self.machine.is_settling())
    }

    /// Nothing more is flushed: whoever waits is told, and so are the statistics.
    fn give_up_commits(&mut self, health: &crate::health::Health) {
        for pending in self.commits.take_all() {
            for (partition, (_, offset)) in &pending.claims {
                health.facts().given_up.push(format!("committing {partition} at {offset}: no answer in time"));
            }
            Pending::expire(pending);
        }
    }

    /// The membership ends here without the coordinator having said so.
    pub(super) fn note_not_left(&self) {
        if let Some((member, _)) = self.machine.identity().filter(|_| !self.machine.is_alone()) {
            let why = self.common.shared.health.facts().troubles.get(&Part::Coordinator).map(|t| t.why.clone());
            let why = why.unwrap_or_else(|| "no answer in time".to_owned());
            let note = format!("leaving group {}: {why}; it keeps member {member} until that expires", self.group);
            self.common.shared.health.facts().given_up.push(note);
        }
    }

    fn leave_unawaited(&mut self) {
        let member = self.machine.identity().filter(|_| !self.machine.is_alone());
        let request = member.map(|(member, generation)| cursus_wire::command::LeaveGroup {
            topic: self.topic.clone(),
            group: self.group.clone(),
            member: member.clone(),
            generation: Some(generation),
        });
        if let (Some(link), Some(request)) = (self.coordinator.link(), request) {
            link.send(&request);
        }
    }
}
