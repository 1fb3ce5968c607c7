//! Committing: one BATCH_COMMIT at a time carries everything that waits.

use std::sync::Arc;

use cursus_wire::command::{BatchCommit, Commits as Pairs};
use cursus_wire::reply::BatchCommitted;
use cursus_wire::{Meaning, Member};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::batch::Fence;
use crate::brokers::CallError;
use crate::brokers::is_passing;
use crate::error::{Error, ErrorKind, Result};
use crate::health::Part;
use crate::membership::{Event, Failure};
use crate::types::{TopicPartition, listed};

use super::Outcome;
use super::commits::{Claims, Pending};
use super::session::Session;

impl Session {
    /// An application's commit.
    pub(super) fn commit(&mut self, claims: Claims, deadline: Option<Instant>, answer: oneshot::Sender<Result<()>>) {
        match self.admit(claims) {
            Ok(claims) if claims.is_empty() => drop(answer.send(Ok(()))),
            Ok(claims) => {
                self.commits.waiting.push_back(Pending::new(claims, deadline, Some(answer)));
                self.send_commits();
            }
            Err(error) => drop(answer.send(Err(error))),
        }
    }

    /// The engine's own commit of what is proven processed.
    pub(crate) fn auto_commit(&mut self) {
        if self.machine.is_alone() {
            return;
        }
        // What waits of our own is part of what is proven now.
        self.commits.waiting.retain(|pending| !pending.is_own());
        let mut claims = self.common.shared.delivery.uncommitted();
        claims.retain(|partition, (fence, offset)| {
            self.commits.floor(partition, *fence).is_none_or(|floor| floor < *offset)
        });
        if !claims.is_empty() {
            self.commits.waiting.push_back(Pending::new(claims, None, None));
            self.send_commits();
        }
    }

    /// Refuses what is stale or a step back, and leaves out what is committed already.
    fn admit(&self, mut claims: Claims) -> Result<Claims> {
        let delivery = &self.common.shared.delivery;
        delivery.check_claims(&claims)?;
        for (partition, (fence, offset)) in &claims {
            let committed = delivery.partition(partition).and_then(|owned| owned.committed);
            let floor = committed.max(self.commits.floor(partition, *fence));
            if let Some(floor) = floor.filter(|floor| offset < floor) {
                let message = format!(
                    "{partition} is committed up to {floor}: committing {offset} would be a step back. Nothing was changed"
                );
                return Err(Error::new(ErrorKind::OffsetRegression, message));
            }
        }
        claims.retain(|partition, (_, offset)| {
            delivery.partition(partition).and_then(|owned| owned.committed) != Some(*offset)
        });
        Ok(claims)
    }

    /// Sends what waits, unless something is on its way already or the membership can't commit now.
    pub(super) fn send_commits(&mut self) {
        // The last look before a byte is sent, and the end of those that nothing will be sent of.
        self.refuse_stale_commits();
        self.check_commits_wait();
        if self.commits.open || self.commits.pausing || !self.machine.may_commit() {
            return;
        }
        let Some((member, generation)) =
            self.machine.identity().map(|(member, generation)| (member.clone(), generation))
        else {
            return;
        };
        let Some(claims) = self.commits.take_next() else { return };
        self.commits.open = true;
        let request = BatchCommit {
            topic: self.topic.clone(),
            group: self.group.clone(),
            member: member.clone(),
            generation: Some(generation),
            commits: Pairs(claims.iter().map(|(partition, (_, offset))| (partition.partition, *offset)).collect()),
        };
        let coordinator = Arc::clone(&self.coordinator);
        // Until it is written, which may take a connection first, its fences may have ended.
        let delivery = Arc::clone(&self.common.shared.delivery);
        let (checked, count) = (claims.clone(), claims.len());
        let still = Arc::new(move || delivery.check_claims(&checked).is_ok());
        self.run(async move {
            let result = match coordinator.call_while(&request, still).await {
                Ok(reply) if reply.count < count => {
                    Err(CallError::Corrupt(format!("of {count} offsets the coordinator took {}", reply.count)))
                }
                other => other,
            };
            Outcome::Committed { member, generation, result }
        });
    }

    /// Ends every waiting commit that touches a partition whose fence has ended.
    pub(super) fn refuse_stale_commits(&mut self) {
        let delivery = Arc::clone(&self.common.shared.delivery);
        for pending in std::mem::take(&mut self.commits.waiting) {
            match delivery.check_claims(&pending.claims) {
                Ok(()) => self.commits.waiting.push_back(pending),
                Err(error) => pending.end_stale(error),
            }
        }
    }

    pub(super) fn note_committed(&mut self, partition: &TopicPartition, fence: Fence, offset: u64) {
        self.common.shared.delivery.set_committed(partition, fence, offset);
        let known = self.known_committed.entry(partition.clone()).or_insert(offset);
        *known = (*known).max(offset);
    }

    /// The batch on its way was answered.
    pub(super) fn on_committed(&mut self, member: Member, generation: u64, result: Result<BatchCommitted, CallError>) {
        let sent = self.commits.take_in_flight();
        match result {
            Ok(_) => {
                self.common.shared.health.facts().commits += 1;
                self.common.shared.health.recovered(&Part::Commits);
                self.commit_backoff.reset();
                for pending in sent {
                    for (partition, (fence, offset)) in &pending.claims {
                        self.note_committed(partition, *fence, *offset);
                    }
                    pending.end(Ok(()));
                }
                self.feed(Event::Alive { member, generation });
            }
            Err(CallError::Refused(error)) => match error.meaning() {
                meaning if is_passing(&meaning) => {
                    self.common.shared.health.trouble(Part::Commits, &error.to_string());
                    self.commit_later(sent);
                }
                Meaning::OffsetRegression if sent.len() > 1 => {
                    self.commits.put_back(sent.into_iter().map(Pending::alone).collect());
                }
                Meaning::OffsetRegression
                    if sent.iter().any(|pending| pending.is_own() && pending.claims.len() > 1) =>
                {
                    self.commits.put_back(sent.into_iter().flat_map(Pending::apart).collect());
                }
                Meaning::OffsetRegression => {
                    // Somebody else committed further than we knew.
                    for pending in sent {
                        let message = format!(
                            "the group is further than this commit of {}: {error}. Nothing was changed",
                            listed(pending.claims.keys())
                        );
                        pending.end(Err(Error::from_broker(ErrorKind::OffsetRegression, message, error.clone())));
                    }
                    self.refresh_committed();
                }
                Meaning::GroupNotFound => {
                    // Whether that is to be believed is the membership's to judge; until then the commits wait.
                    self.commit_later(sent);
                    self.fenced(member, generation, CallError::Refused(error));
                }
                Meaning::GenerationMismatch { .. } | Meaning::MemberNotFound | Meaning::NotOwner => {
                    // Fences end before anybody is told: whoever polls right after must not get a record from before.
                    if error.meaning() == Meaning::NotOwner {
                        // Our picture of the assignment is wrong: the group's own is asked for.
                        self.feed(Event::Fenced {
                            member,
                            generation,
                            failure: Failure::GenerationMismatch { current: generation },
                        });
                    } else {
                        self.fenced(member, generation, CallError::Refused(error));
                    }
                    for pending in sent {
                        let stale = pending.claims.keys().cloned().collect::<Vec<_>>();
                        let message = format!(
                            "nothing was committed: the group no longer counts {} as this member's. Poll to go on",
                            listed(&stale)
                        );
                        // One that was sent before, and not answered then, may have counted.
                        pending.end_stale(Error::rebalancing(message, stale, Vec::new()));
                    }
                }
                meaning => {
                    let kind = match meaning {
                        Meaning::Unauthenticated => ErrorKind::Authentication,
                        Meaning::Unauthorized => ErrorKind::Authorization,
                        _ => ErrorKind::Broker,
                    };
                    self.common.shared.health.trouble(Part::Commits, &error.to_string());
                    for pending in sent {
                        let message =
                            format!("the broker refuses the commit of {}: {error}", listed(pending.claims.keys()));
                        pending.end(Err(Error::from_broker(kind, message, error.clone())));
                    }
                }
            },
            // Those that may no longer be sent are told so by the next look; what else was with them goes again.
            Err(CallError::Withdrawn(_)) => self.commits.put_back(sent),
            Err(unsent @ CallError::Unsent(_)) => {
                self.commit_later(sent);
                self.fenced(member, generation, unsent);
            }
            Err(lost) => {
                self.commit_later(sent.into_iter().map(Pending::unknown).collect());
                self.fenced(member, generation, lost);
            }
        }
        self.send_commits();
    }

    /// The cluster is in transition: the same commits again, after a pause. The same value twice does no harm.
    fn commit_later(&mut self, pending: Vec<Pending>) {
        self.commits.put_back(pending);
        if !std::mem::replace(&mut self.commits.pausing, true) {
            let pause = self.commit_backoff.next();
            self.run(async move {
                sleep(pause).await;
                Outcome::CommitDue
            });
        }
    }

    pub(crate) fn next_commit_deadline(&self) -> Option<Instant> {
        self.commits.next_deadline()
    }

    pub(crate) fn expire_commits(&mut self, now: Instant) {
        self.commits.expire(now);
        self.check_commits_wait();
    }

    /// Where no commit waits any more, none fails.
    fn check_commits_wait(&self) {
        if self.commits.is_empty() {
            self.common.shared.health.recovered(&Part::Commits);
        }
    }
}
