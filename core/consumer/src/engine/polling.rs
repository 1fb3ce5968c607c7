//! Reading by requests: ask, push, ask again.

use std::time::Duration;

use cursus_wire::Meaning;
use cursus_wire::command::Consume;
use tokio::time::{Instant, sleep};

use super::reader::{End, Reader};
use crate::brokers::{CallError, Seat};

/// The first pause of a reader that shares its connection and found nothing.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

impl Reader {
    pub(super) async fn poll(&mut self, seat: &Seat) -> End {
        let mut pause = FIRST_PAUSE;
        loop {
            self.sizing.heed_topic();
            let room = self.delivery.reserve(&self.partition, self.fence, self.turn, self.sizing.estimate()).await;
            let Ok(room) = room else { return End::Stale };
            // A link that has to make way, or that the broker closed while the buffer was full, is no fault. One that never
            // brought an answer is.
            if seat.link.is_dead() && self.on_answer.is_some() {
                return End::Lost(format!("{}: no connection", seat.link.address()));
            }
            if seat.is_retired() || seat.link.is_dead() {
                return End::Moved;
            }
            let records = self.sizing.records();
            // Nor may it wait there with room that another partition's records could have.
            let may_wait = seat.is_alone() && !self.delivery.is_room_short();
            let wait = if may_wait { self.wait } else { Duration::ZERO };
            let request = Consume {
                topic: self.topic(),
                partition: self.partition.partition,
                offset: self.position,
                member: self.member.clone(),
                group: Some(self.group.clone()),
                generation: Some(self.generation),
                isolation: Some(self.isolation),
                batch: Some(records),
                wait_ms: (!wait.is_zero()).then_some(wait.as_millis() as u64),
            };
            let asked = Instant::now();
            let batch = match seat.link.call(&request, wait).await {
                Ok(reply) => reply.0,
                Err(CallError::Refused(error)) => {
                    return match error.meaning() {
                        Meaning::ReplyTooLarge => {
                            self.sizing.too_large(records);
                            End::TooLarge { records, reason: error.to_string() }
                        }
                        _ => End::Refused(error),
                    };
                }
                Err(CallError::Unsent(why) | CallError::Withdrawn(why)) => return End::Lost(why),
                Err(CallError::Lost(why) | CallError::Corrupt(why)) => {
                    self.sizing.lost();
                    return End::Lost(why);
                }
            };
            if let Some(problem) = self.foreign(&batch) {
                seat.link.condemn();
                return End::Lost(format!("{}: {problem}", seat.link.address()));
            }
            self.answered();
            let before = self.position;
            if self.push(batch, room).is_err() {
                return End::Stale;
            }
            if self.position > before {
                pause = FIRST_PAUSE;
                if self.once {
                    return End::Moved;
                }
            } else if wait.is_zero() || asked.elapsed() < wait / 2 {
                // Waiting at the broker would hold up every partition behind us on this connection; and a broker that doesn't
                // wait, whatever it was asked, isn't asked without end.
                sleep(pause).await;
                pause = (pause * 2).min(self.wait.max(FIRST_PAUSE));
            }
        }
    }
}
