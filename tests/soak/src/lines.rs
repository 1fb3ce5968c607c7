//! What a member tells the orchestrator: lines of JSON on its standard output.

use std::collections::BTreeMap;
use std::io::Write as _;

use serde::{Deserialize, Serialize};

/// One line.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// Records are processed. This is said before they are committed, so that what is committed was told.
    Processed {
        /// A number that grows with each assignment of the partition: all that has the same was read under one.
        assignment: u64,
        /// What was processed, in this order.
        runs: Vec<Run>,
    },
    /// How the member is.
    Figures(Box<Figures>),
    /// It couldn't go on, and ends.
    Failed { why: String },
    /// It has closed its consumer as it was asked to, and ends.
    Closed { given_up: Vec<String> },
}

/// Neighbouring records of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) partition: u32,
    /// The first offset.
    pub(crate) from: u64,
    /// The offset behind the last.
    pub(crate) to: u64,
}

/// What a member uses, and what its consumer says of itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) rss_kib: u64,
    /// What was allocated and not freed when least was, since the figures before: what is buffered for a moment doesn't count.
    pub(crate) heap_kib: u64,
    pub(crate) sockets: u64,
    pub(crate) threads: u64,
    /// Tasks of the runtime that are alive, the member's own included.
    pub(crate) tasks: u64,
    pub(crate) state: String,
    pub(crate) member: Option<String>,
    pub(crate) generation: Option<u64>,
    pub(crate) rebalances: u64,
    pub(crate) reconnects: u64,
    pub(crate) corrupt_frames: u64,
    pub(crate) dropped_records: u64,
    pub(crate) commits: u64,
    pub(crate) buffered_bytes: u64,
    pub(crate) held_bytes: u64,
    pub(crate) coordinator: Option<String>,
    pub(crate) last_error: Option<String>,
    pub(crate) failing_seconds: Option<f64>,
    /// By partition: position, fetched, committed and leader.
    pub(crate) partitions: BTreeMap<u32, (u64, u64, Option<u64>, Option<String>)>,
    /// What calls have raised and the member went on after, by the error's name.
    pub(crate) raised: BTreeMap<String, u64>,
}

/// Says it. Written at once and whole: what was said before a SIGKILL arrives.
pub(crate) fn say(line: &Line) {
    let Ok(mut text) = serde_json::to_vec(line) else { return };
    text.push(b'\n');
    let mut out = std::io::stdout().lock();
    // Where nobody listens any more, the standard input has closed too.
    let _ = out.write_all(&text).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read_as_it_was_said() {
        let partitions = BTreeMap::from([(3, (7, 9, Some(5), Some("h:1".to_owned()))), (4, (0, 0, None, None))]);
        let raised = BTreeMap::from([("Rebalancing".to_owned(), 2)]);
        let figures = Figures { rss_kib: 8000, partitions, raised, failing_seconds: Some(0.5), ..Figures::default() };
        for line in [
            Line::Processed { assignment: 4, runs: vec![Run { partition: 5, from: 6, to: 7 }] },
            Line::Figures(Box::new(figures)),
            Line::Failed { why: "because".to_owned() },
            Line::Closed { given_up: vec!["a commit".to_owned()] },
        ] {
            let said = serde_json::to_string(&line).unwrap();
            assert_eq!(serde_json::from_str::<Line>(&said).unwrap(), line);
        }
    }
}
