//! What happens in a run: how the cluster and the members are set up, and what is done to them when. Drawn from a seed, or
//! read from a file in which a found schedule was kept.

use cursus_consumer::{Settings, Value};
use serde::{Deserialize, Serialize};

use crate::draw::Draw;

/// A run, whole: with the same plan everything happens again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What delays, members' work and jitter are drawn from.
    pub seed: u64,
    /// Brokers; one stands alone, more are a cluster.
    pub brokers: usize,
    /// Partitions of the topic.
    pub partitions: u32,
    /// How long a commit may stay unseen in a cluster.
    pub commit_lag_ms: u64,
    /// How long a partition of a broker that went away has no leader.
    pub leader_election_ms: u64,
    /// Where members start that find nothing committed: `earliest` or `latest`.
    pub reset: String,
    /// The members; all start at the beginning.
    pub members: Vec<MemberPlan>,
    /// What is done when, in order.
    pub steps: Vec<Step>,
}

impl Plan {
    /// Whether a plan from a file can be run: what it names is there. An error says what isn't.
    pub fn check(&self) -> Result<(), String> {
        if self.brokers == 0 || self.partitions == 0 || self.members.is_empty() {
            return Err("it needs a broker, a partition and a member".to_owned());
        }
        if !["earliest", "latest"].contains(&self.reset.as_str()) {
            return Err(format!("reset is {:?}, and can be earliest or latest", self.reset));
        }
        for member in &self.members {
            let settings = member.settings.iter().map(|(name, value)| (name.as_str(), Value::from(value.as_str())));
            let rest = [("brokers", "localhost:1".into()), ("topic", "t".into())];
            Settings::from_values(settings.chain(rest)).map_err(|error| error.to_string())?;
        }
        self.steps.iter().try_for_each(|step| self.check_step(step))
    }

    fn check_step(&self, step: &Step) -> Result<(), String> {
        let counts = [
            ("member", self.members.len() as u64),
            ("broker", self.brokers as u64),
            ("one", self.brokers as u64),
            ("other", self.brokers as u64),
            ("partition", self.partitions.into()),
        ];
        let value = serde_json::to_value(&step.what).map_err(|error| error.to_string())?;
        let fields = value.as_object().into_iter().flatten().filter_map(|(_, fields)| fields.as_object()).flatten();
        for (name, value) in fields {
            let count = counts.iter().find(|(counted, _)| counted == name).map(|(_, count)| *count);
            if let Some(count) = count.filter(|count| value.as_u64().is_none_or(|index| index >= *count)) {
                return Err(format!("{:?} names {name} {value}, and there are {count}, counted from 0", step.what));
            }
            if name == "command" && !COMMANDS.iter().any(|command| value == command) {
                return Err(format!("{:?} names no command; there are {}", step.what, COMMANDS.join(", ")));
            }
        }
        Ok(())
    }
}

/// A member and the application around it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemberPlan {
    /// How the application takes records and says that they are processed.
    pub style: Style,
    /// Settings by name.
    pub settings: Vec<(String, String)>,
    /// The longest that a record or batch is worked on.
    pub work_ms: u64,
}

/// How an application takes records and says that they are processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Style {
    /// Polls, and commits in each of the ways there are.
    Commit,
    /// Polls under auto-commit.
    Auto,
    /// Iterates over records under auto-commit.
    Records,
    /// Iterates over batches under auto-commit.
    Batches,
    /// Handlers under `run`.
    Handlers,
    /// Polls, and acknowledges records one by one, in any order.
    Acks,
}

/// Something that is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// When, in milliseconds since the beginning.
    pub at_ms: u64,
    /// What.
    pub what: What,
}

/// What is done. Members and brokers go by their index; what can't be done at that moment is passed over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // The names say it.
pub enum What {
    Produce { partition: u32, count: u64 },
    Marker { partition: u32 },
    Aborted { partition: u32, count: u64 },
    Retention { partition: u32 },
    Start { member: usize },
    Close { member: usize, timeout_ms: u64 },
    Drop { member: usize },
    Kill { member: usize },
    Seek { member: usize, partition: u32, by: i64 },
    Pause { member: usize, partition: u32, ms: u64 },
    Ask { member: usize },
    Isolate { member: usize, ms: u64 },
    Unreachable { broker: usize, ms: u64 },
    Partition { member: usize, broker: usize, ms: u64 },
    OneWay { member: usize, broker: usize, to_broker: bool, ms: u64 },
    Reset { broker: usize },
    Slow { by_ms: u64, ms: u64 },
    KillBroker { broker: usize, ms: u64 },
    StopBroker { broker: usize, ms: u64 },
    PauseBroker { broker: usize, ms: u64 },
    DelayBroker { broker: usize, by_ms: u64, ms: u64 },
    MoveCoordinator { broker: usize },
    MoveLeader { partition: u32, broker: usize },
    Fail { command: String, times: usize, error: String },
    LoseReply { command: String, times: usize },
    RepeatReply { command: String, times: usize },
    Corrupt { command: String, times: usize },
    Hold { command: String, ms: u64 },
    Expire { nth: usize },
    CloseStreams { reason: String },
    Freeze { broker: usize },
    Swap { one: usize, other: usize },
    Advance { ms: u64 },
}

impl What {
    /// The kind by its name in a kept plan.
    pub fn kind(&self) -> String {
        let text = format!("{self:?}");
        text.split([' ', '{']).next().unwrap_or_default().to_owned()
    }

    /// The member that it is about.
    pub fn member(&self) -> Option<usize> {
        match self {
            Self::Start { member }
            | Self::Close { member, .. }
            | Self::Drop { member }
            | Self::Kill { member }
            | Self::Seek { member, .. }
            | Self::Pause { member, .. }
            | Self::Ask { member }
            | Self::Isolate { member, .. }
            | Self::Partition { member, .. }
            | Self::OneWay { member, .. } => Some(*member),
            _ => None,
        }
    }

    /// Whether it is work rather than harm.
    pub fn is_work(&self) -> bool {
        matches!(
            self,
            Self::Produce { .. }
                | Self::Marker { .. }
                | Self::Aborted { .. }
                | Self::Start { .. }
                | Self::Seek { .. }
                | Self::Pause { .. }
                | Self::Ask { .. }
        )
    }
}

const COMMANDS: [&str; 14] = [
    "JOIN_GROUP",
    "SYNC_GROUP",
    "HEARTBEAT",
    "LEAVE_GROUP",
    "FETCH_OFFSET",
    "COMMIT_OFFSET",
    "BATCH_COMMIT",
    "CONSUME",
    "STREAM",
    "METADATA",
    "FIND_COORDINATOR",
    "LIST_OFFSETS",
    "NEGOTIATE",
    "GROUP_STATUS",
];

const ERRORS: [&str; 10] = [
    "raft_apply_failed reason=\"node is not the leader\"",
    "cluster_metadata_unavailable",
    "coordinator_not_available",
    "offset_manager_not_available",
    "forward_to_coordinator_failed reason=timeout",
    "leader_not_found",
    "NOT_COORDINATOR",
    "NOT_LEADER",
    "request_cancelled",
    "an_error_that_nobody_has_heard_of reason=none",
];

/// For how long harm is done.
const HARM_MS: u64 = 60_000;

impl Plan {
    /// The plan that a seed stands for.
    pub fn drawn(seed: u64) -> Self {
        let draw = Draw::seeded(seed);
        let brokers = if draw.one_in(5) { 1 } else { draw.between(2, 3) as usize };
        let partitions = draw.between(1, 6) as u32;
        let latest = draw.one_in(8);
        let members: Vec<MemberPlan> = (0..draw.between(1, 5)).map(|_| member(&draw)).collect();
        let mut plan = Self {
            seed,
            brokers,
            partitions,
            commit_lag_ms: if draw.one_in(2) { 0 } else { 100 },
            leader_election_ms: draw.pick(&[100, 500, 5_000]),
            reset: if latest { "latest" } else { "earliest" }.to_owned(),
            members,
            steps: Vec::new(),
        };
        plan.steps = steps(&plan, &draw);
        plan
    }
}

fn member(draw: &Draw) -> MemberPlan {
    use Style::{Acks, Auto, Batches, Commit, Handlers, Records};
    let style = draw.pick(&[Commit, Commit, Commit, Auto, Records, Batches, Handlers, Acks]);
    let explicit = matches!(style, Commit | Acks);
    let number = |name: &str, value: u64| (name.to_owned(), value.to_string());
    let heartbeat = draw.pick(&[500, 1_000, 3_000]);
    let settings = vec![
        ("mode".to_owned(), draw.pick(&["polling", "streaming"]).to_owned()),
        ("enable_auto_commit".to_owned(), (!explicit).to_string()),
        number("heartbeat_interval_ms", heartbeat),
        number("auto_commit_interval_ms", draw.pick(&[50, 500, 5_000])),
        number("max_poll_interval_ms", draw.pick(&[3_000, 300_000, 300_000])),
        number("max_poll_records", draw.pick(&[1, 7, 50, 500])),
        number("fetch_batch_size", draw.pick(&[1, 10, 100, 8_192])),
        number("fetch_wait_ms", draw.pick(&[0, 100, 500])),
        number("max_buffered_bytes", draw.pick(&[1, 2_000, 20_000, 67_108_864])),
        number("max_connections_per_broker", draw.between(1, 4)),
        number("connect_timeout_ms", draw.pick(&[200, 1_000, 5_000])),
        number("request_timeout_ms", draw.pick(&[1_000, 3_000, 10_000])),
        number("retry_backoff_ms", draw.pick(&[10, 50])),
        number("retry_backoff_max_ms", draw.pick(&[200, 2_000])),
        number("metadata_refresh_ms", draw.pick(&[500, 2_000, 10_000])),
    ];
    MemberPlan { style, settings, work_ms: draw.pick(&[0, 5, 20, 200]) }
}

fn steps(plan: &Plan, draw: &Draw) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut at = |at_ms, what| steps.push(Step { at_ms, what });
    // A part is there from the start, the rest comes while things happen.
    for partition in 0..plan.partitions {
        at(0, What::Produce { partition, count: draw.below(60) });
    }
    let seeks = draw.one_in(3);
    for _ in 0..draw.between(5, 40) {
        let partition = draw.below(plan.partitions.into()) as u32;
        let member = draw.below(plan.members.len() as u64) as usize;
        let what = match draw.below(12) {
            0 => What::Marker { partition },
            1 => What::Aborted { partition, count: draw.between(1, 3) },
            2 if seeks => What::Seek { member, partition, by: draw.between(0, 60) as i64 - 40 },
            3 => What::Pause { member, partition, ms: draw.below(5_000) },
            4 => What::Ask { member },
            5 => What::Start { member },
            _ => What::Produce { partition, count: draw.between(1, 40) },
        };
        at(draw.below(HARM_MS), what);
    }
    // Some runs are calm, some are not; and some kinds of harm only show where little else happens.
    let most = draw.pick(&[3, 10, 30]);
    let kinds: Vec<u64> = (0..draw.between(1, 29)).map(|_| draw.below(29)).collect();
    for _ in 0..draw.between(1, most) {
        at(draw.below(HARM_MS), harm(plan, draw, draw.pick(&kinds)));
    }
    steps.sort_by_key(|step| step.at_ms);
    steps
}

fn harm(plan: &Plan, draw: &Draw, kind: u64) -> What {
    let member = draw.below(plan.members.len() as u64) as usize;
    let broker = draw.below(plan.brokers as u64) as usize;
    let partition = draw.below(plan.partitions.into()) as u32;
    let command = || draw.pick(&COMMANDS).to_owned();
    let times = draw.pick(&[1, 1, 2, 5]);
    // As long as nobody notices, long enough for timeouts, and longer than a session.
    let ms = draw.pick(&[50, 1_500, 6_000, 25_000]);
    match kind {
        0 | 1 => What::Start { member },
        2 => What::Close { member, timeout_ms: draw.pick(&[0, 200, 10_000]) },
        3 => What::Drop { member },
        4 => What::Kill { member },
        5 => What::Isolate { member, ms },
        6 => What::Unreachable { broker, ms },
        7 => What::Partition { member, broker, ms },
        8 => What::OneWay { member, broker, to_broker: draw.one_in(2), ms },
        9 => What::Reset { broker },
        10 => What::Slow { by_ms: draw.pick(&[20, 300, 2_000]), ms },
        11 | 12 => What::KillBroker { broker, ms },
        13 => What::StopBroker { broker, ms },
        14 => What::PauseBroker { broker, ms },
        15 => What::DelayBroker { broker, by_ms: draw.pick(&[20, 300, 2_000]), ms },
        16 => What::MoveCoordinator { broker },
        17 => What::MoveLeader { partition, broker },
        18 | 19 => What::Fail { command: command(), times, error: draw.pick(&ERRORS).to_owned() },
        20 => What::LoseReply { command: command(), times },
        // Not of others: replies have no numbers, so that the next request is answered by what answered the one before. A
        // repeated FETCH_OFFSET is another partition's offset, and no client can tell.
        21 => What::RepeatReply { command: draw.pick(&["CONSUME", "STREAM"]).to_owned(), times },
        22 => What::Corrupt { command: command(), times },
        23 => What::Hold { command: command(), ms },
        24 => What::Expire { nth: member },
        25 => {
            What::CloseStreams { reason: draw.pick(&["timeout", "stopped", "removed", "error", "whatever"]).to_owned() }
        }
        26 => What::Freeze { broker },
        27 => What::Retention { partition },
        _ => match draw.below(3) {
            0 => What::Swap { one: broker, other: draw.below(plan.brokers as u64) as usize },
            1 => What::Advance { ms: draw.pick(&[1_000, 30_000]) },
            _ => What::Expire { nth: member },
        },
    }
}
