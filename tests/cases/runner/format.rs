//! What a case is made of. A key that isn't here is refused; `schema.json` says the same to the other languages.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

/// A file of `data`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// For the reader of the file.
    #[serde(rename = "why")]
    pub(crate) _why: String,
    #[serde(default = "polling")]
    pub(crate) modes: Vec<Mode>,
    #[serde(default)]
    pub(crate) cluster: Map<String, Value>,
    #[serde(default)]
    pub(crate) topics: BTreeMap<String, u32>,
    pub(crate) consumers: BTreeMap<String, Map<String, Value>>,
    pub(crate) steps: Vec<Step>,
}

/// A file of `wrong`: a case that a runner has to refuse, or to find fault with.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wrong {
    #[serde(rename = "why")]
    pub(crate) _why: String,
    /// The step that fails, from 1; without it the case is refused when it is read.
    pub(crate) fails_at: Option<usize>,
    /// Words that the failure's message has.
    pub(crate) says: Vec<String>,
    pub(crate) case: Value,
}

/// `defaults.json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Defaults {
    pub(crate) within_ms: u64,
    pub(crate) cluster: Map<String, Value>,
    pub(crate) consumer: Map<String, Value>,
}

/// The cluster's options, once the defaults are in.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClusterOptions {
    pub(crate) brokers: usize,
    pub(crate) session_timeout_ms: u64,
    pub(crate) expiry_check_ms: u64,
    pub(crate) leader_election_ms: u64,
    pub(crate) coordinator_commit_lag_ms: u64,
    pub(crate) idle_timeout_ms: u64,
}

#[derive(Debug, Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    Polling,
    Streaming,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Polling => "polling",
            Self::Streaming => "streaming",
        }
    }
}

fn polling() -> Vec<Mode> {
    vec![Mode::Polling]
}

fn t() -> String {
    "t".to_owned()
}

fn g() -> String {
    "g".to_owned()
}

fn once() -> usize {
    1
}

fn writer() -> String {
    "writer".to_owned()
}

/// By partition the offsets that are meant.
pub(crate) type Ranges = BTreeMap<u32, Range>;

/// From and to behind the last one, and again behind each gap.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "Vec<u64>")]
pub(crate) struct Range(Vec<u64>);

impl Range {
    pub(crate) fn offsets(&self) -> impl Iterator<Item = u64> {
        self.0.chunks_exact(2).flat_map(|ends| ends[0]..ends[1])
    }
}

impl TryFrom<Vec<u64>> for Range {
    type Error = String;
    fn try_from(ends: Vec<u64>) -> Result<Self, String> {
        if ends.is_empty() || ends.len() % 2 == 1 {
            return Err(format!(
                "{ends:?} is no range: it has an offset and the one behind the last, and again behind a gap"
            ));
        }
        Ok(Self(ends))
    }
}

macro_rules! steps {
    ($($step:ident { $($(#[$attribute:meta])* $field:ident: $type:ty,)* })*) => {
        /// One thing to do or to expect.
        #[derive(Debug, Clone, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub(crate) enum Step { $($step($step),)* }

        $(
            #[derive(Debug, Clone, Deserialize)]
            #[serde(deny_unknown_fields)]
            pub(crate) struct $step { $($(#[$attribute])* pub(crate) $field: $type,)* }
        )*
    };
}

steps! {
    CreateTopic { topic: String, partitions: u32, }
    DeleteTopic { topic: String, }
    Produce { #[serde(default = "t")] topic: String, partition: Option<u32>, count: u64, #[serde(default)] value_size: usize, }
    DeleteRecords { #[serde(default = "t")] topic: String, partition: u32, earliest: u64, }
    StopBroker { broker: usize, }
    KillBroker { broker: usize, }
    RestartBroker { broker: usize, }
    PauseBroker { broker: usize, }
    ResumeBroker { broker: usize, }
    Advance { by_ms: u64, }
    SwapAddresses { a: usize, b: usize, }
    FreezeConnections { broker: Option<usize>, }
    CloseStreams { reason: String, }
    AppendMarker { #[serde(default = "t")] topic: String, partition: u32, }
    AppendAborted { #[serde(default = "t")] topic: String, partition: u32, count: u64, }
    Transact { #[serde(default = "writer")] id: String, #[serde(default = "t")] topic: String, records: BTreeMap<u32, u64>, offsets_of: Option<String>, #[serde(default)] abort: bool, refused: Option<Vec<String>>, }
    Send { #[serde(default)] broker: usize, text: String, says: String, }
    MoveCoordinator { #[serde(default = "g")] group: String, broker: usize, }
    MoveLeader { #[serde(default = "t")] topic: String, partition: u32, broker: usize, }
    FailNext { command: String, #[serde(default = "once")] times: usize, error: String, }
    LoseReply { command: String, #[serde(default = "once")] times: usize, }
    CorruptNext { command: String, #[serde(default = "once")] times: usize, }
    Hold { command: String, r#as: String, }
    Held { hold: String, within_ms: Option<u64>, }
    Release { hold: String, }
    CutConnections { broker: Option<usize>, }
    ExpireMember { consumer: String, }
    ClearRequests {}
    GroupCommitted { #[serde(default = "g")] group: String, #[serde(default = "t")] topic: String, offsets: BTreeMap<u32, Option<u64>>, within_ms: Option<u64>, }
    GroupMembers { #[serde(default = "g")] group: String, count: usize, within_ms: Option<u64>, }
    Requests { command: String, broker: Option<usize>, says: Option<String>, is: Check, within_ms: Option<u64>, }
    Create { consumer: String, error: Option<Failure>, }
    Start { consumer: String, timeout_ms: Option<u64>, error: Option<Failure>, }
    Read { consumer: String, records: Ranges, #[serde(default)] control: BTreeMap<u32, Vec<u64>>, within_ms: Option<u64>, }
    ReadTogether { consumers: Vec<String>, records: Ranges, #[serde(default)] commit: bool, within_ms: Option<u64>, }
    PollNothing { consumer: String, timeout_ms: u64, }
    PollUntilError { consumer: String, error: Failure, within_ms: Option<u64>, }
    Commit { consumer: String, what: What, timeout_ms: Option<u64>, error: Option<Failure>, }
    CommitAsync { consumer: String, what: What, r#as: String, timeout_ms: Option<u64>, error: Option<Failure>, }
    CommitOutcome { commit: String, within_ms: Option<u64>, error: Option<Failure>, }
    Ack { consumer: String, records: BTreeMap<u32, Vec<u64>>, of: Option<String>, error: Option<Failure>, }
    Assign { consumer: String, partitions: Starts, error: Option<Failure>, }
    Seek { consumer: String, partition: u32, offset: u64, error: Option<Failure>, }
    Pause { consumer: String, partitions: Vec<u32>, error: Option<Failure>, }
    Resume { consumer: String, partitions: Vec<u32>, error: Option<Failure>, }
    Listen { consumer: String, }
    Told { consumer: String, is: Vec<Change>, within_ms: Option<u64>, }
    Close { consumer: String, timeout_ms: Option<u64>, }
    Save { consumer: String, r#as: String, }
    Remember { consumer: String, statistic: String, r#as: String, }
    State { consumer: String, is: String, within_ms: Option<u64>, }
    Statistics { consumer: String, name: String, partition: Option<u32>, is: Check, within_ms: Option<u64>, }
    Assignment { consumer: String, is: Assigned, within_ms: Option<u64>, }
    Position { consumer: String, partition: u32, is: Value, within_ms: Option<u64>, }
    Committed { consumer: String, partition: u32, is: Value, within_ms: Option<u64>, }
    Paused { consumer: String, is: Vec<u32>, within_ms: Option<u64>, }
    BeginOffsets { consumer: String, partitions: Option<Vec<u32>>, is: Option<BTreeMap<u32, u64>>, error: Option<Failure>, timeout_ms: Option<u64>, }
    EndOffsets { consumer: String, partitions: Option<Vec<u32>>, is: Option<BTreeMap<u32, u64>>, error: Option<Failure>, timeout_ms: Option<u64>, }
    Lag { consumer: String, is: Option<BTreeMap<u32, u64>>, error: Option<Failure>, timeout_ms: Option<u64>, }
    DescribeGroup { consumer: String, is: Option<Described>, error: Option<Failure>, timeout_ms: Option<u64>, }
    GroupMetadata { consumer: String, saved: Option<String>, #[serde(default)] is: BTreeMap<MetadataField, Check>, error: Option<Failure>, }
    FatalError { consumer: String, is: Value, within_ms: Option<u64>, }
    Begin { step: Box<Step>, r#as: String, }
    End { step: String, within_ms: Option<u64>, }
}

/// An error that is to come.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Failure {
    pub(crate) code: String,
    pub(crate) stale: Option<Vec<u32>>,
    pub(crate) owned: Option<Vec<u32>>,
    #[serde(default)]
    pub(crate) says: Vec<String>,
}

/// What to commit.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    All,
    Last,
    Saved(String),
    Offsets(BTreeMap<u32, u64>),
}

/// What a value is compared with.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Check {
    Equal(Value),
    AtLeast(u64),
    AtMost(u64),
    Present(bool),
    Says(String),
    SameAs(String),
    DiffersFrom(String),
}

/// What an assignment is compared with.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Assigned {
    Partitions(Vec<u32>),
    Count(usize),
}

/// What to assign: partitions, or where to begin in each.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Starts {
    Partitions(Vec<u32>),
    /// By the partition's number, which stays a text where it isn't known beforehand what comes.
    Offsets(BTreeMap<String, Option<u64>>),
}

/// A change of the assignment.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Change {
    Assigned(Assigned),
    Revoked(Assigned),
}

/// What a group's description is compared with, as far as it is given.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Described {
    pub(crate) state: Option<String>,
    pub(crate) members: Option<usize>,
    /// What members read, of all of them.
    pub(crate) read: Option<Vec<u32>>,
    pub(crate) committed: Option<BTreeMap<u32, Option<u64>>>,
    pub(crate) lag: Option<BTreeMap<u32, Option<u64>>>,
}

#[derive(Debug, Clone, Copy, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MetadataField {
    Group,
    Topic,
    Member,
    Generation,
}
