//! What was asked of the brokers, for tests that want to know.

use std::collections::VecDeque;

use serde::Serialize;

/// How many requests are remembered; older ones are forgotten.
const MOST: usize = 10_000;

/// How much of a request's text is remembered, in bytes.
const LONGEST: usize = 2_000;

/// A request that a broker received, in the order in which they came in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Request {
    /// The broker that received it.
    pub broker: usize,
    /// The connection it came by; each connection has a number of its own in the whole cluster.
    pub connection: u64,
    /// The command's name; `BATCH` for a batch of records, `MALFORMED`, `UNDECODABLE` and `UNKNOWN` for what is no
    /// command.
    pub command: String,
    /// The command's text, cut off after 2,000 bytes; empty for a batch.
    pub text: String,
}

#[derive(Debug, Default)]
pub(crate) struct Journal(VecDeque<Request>);

impl Journal {
    pub(crate) fn note(&mut self, broker: usize, connection: u64, command: &str, text: &[u8]) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        let text = String::from_utf8_lossy(&text[..text.len().min(LONGEST)]).into_owned();
        self.0.push_back(Request { broker, connection, command: command.to_owned(), text });
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.0.iter().cloned().collect()
    }

    /// How many of a command are remembered.
    pub(crate) fn count(&self, command: &str) -> usize {
        self.0.iter().filter(|request| request.command == command).count()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_requests_are_forgotten() {
        let mut journal = Journal::default();
        for i in 0..=MOST as u64 {
            journal.note(0, i, "LIST", &[b'x'; LONGEST + 1]);
        }
        let requests = journal.requests();
        assert_eq!((requests.len(), requests[0].connection), (MOST, 1));
        assert_eq!(requests[0].text.len(), LONGEST);
    }
}
