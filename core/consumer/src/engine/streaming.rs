//! Reading by a stream: the broker sends what there is, as long as there is room for it here.

use cursus_wire::command::Stream as Request;
use cursus_wire::reply::StreamFrame;

use super::reader::{End, Reader};
use crate::brokers::{CallError, StreamAt};

impl Reader {
    pub(super) async fn stream(&mut self, at: &StreamAt) -> End {
        let records = self.sizing.records();
        let request = Request {
            topic: self.topic(),
            partition: self.partition.partition,
            member: self.member.clone(),
            group: self.group.clone(),
            generation: Some(self.generation),
            isolation: Some(self.isolation),
            batch: Some(records),
            offset: Some(self.position),
        };
        let mut stream = match at.open(&request).await {
            Ok(stream) => stream,
            Err(error) => return self.stream_end(error),
        };
        loop {
            let length = match stream.next_length().await {
                Ok(length) => length,
                Err(error) => return self.stream_end(error),
            };
            // What is on its way stays in the socket until there is room: the broker feels it and waits.
            let room = self.delivery.reserve(&self.partition, self.fence, self.turn, length as u64).await;
            let Ok(room) = room else { return End::Stale };
            match stream.next().await {
                Ok(StreamFrame::KeepAlive) => self.answered(),
                Ok(StreamFrame::Records(batch)) => {
                    if let Some(problem) = self.foreign(&batch) {
                        return End::Lost(format!("{}: {problem}", stream.condemn()));
                    }
                    self.answered();
                    if self.push(batch, room).is_err() {
                        return End::Stale;
                    }
                    if self.sizing.outgrew(records) {
                        return End::Moved;
                    }
                }
                Ok(StreamFrame::Close(close)) => return End::Closed { close, records },
                Err(error) => return self.stream_end(error),
            }
        }
    }

    fn stream_end(&mut self, error: CallError) -> End {
        match error {
            CallError::Refused(error) => End::Refused(error),
            CallError::Unsent(why) | CallError::Withdrawn(why) | CallError::Lost(why) | CallError::Corrupt(why) => {
                End::Lost(why)
            }
        }
    }
}
