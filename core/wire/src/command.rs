//! Commands, both directions: a client encodes them, a broker parses them.
//!
//! Each command is a type, and [`Request`] ties it to the type of its reply. The table at the end of the file is the list
//! of all of them; a new command is a line there.

use std::fmt::Write as _;

use bytes::Bytes;
use thiserror::Error;

use crate::fields::{FieldError, Fields, excerpt, number};
use crate::frame::{self, FrameError};
use crate::name::{Group, InvalidName, Member, Secret, Text, Topic};
use crate::reply;

/// Why a text isn't a command that a broker can act on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommandError {
    /// The first word is no command.
    #[error("unknown command {0:?}")]
    Unknown(String),
    /// An argument is missing or can't be read.
    #[error("{command}: {problem}")]
    Argument {
        /// The command's name.
        command: &'static str,
        /// What is wrong.
        #[source]
        problem: FieldError,
    },
    /// A name holds what a name can't.
    #[error("{command}: {problem}")]
    Name {
        /// The command's name.
        command: &'static str,
        /// What is wrong.
        #[source]
        problem: InvalidName,
    },
    /// A pair of a batch commit isn't `P<partition>:<offset>`.
    #[error("{entry:?} is not P<partition>:<offset>")]
    Entry {
        /// The pair as it was sent.
        entry: String,
    },
}

/// A command with its reply's type.
pub trait Request: Into<Command> + Clone + Send + 'static {
    /// What a broker answers where it isn't an error.
    type Reply: reply::Reply;
    /// The command's first word.
    const NAME: &'static str;

    /// The command as text.
    fn text(&self) -> String;

    /// The command as a whole frame, to be written in one call.
    fn frame(&self) -> Result<Bytes, FrameError> {
        frame::encode_text(&self.text())
    }
}

/// Which records a reader sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Isolation {
    /// Only what is committed: no open or aborted transaction, no control records.
    #[default]
    ReadCommitted,
    /// The raw log, control records included.
    ReadUncommitted,
}

impl Isolation {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadCommitted => "read_committed",
            Self::ReadUncommitted => "read_uncommitted",
        }
    }
}

/// How an argument is written and read.
trait Argument: Sized {
    fn write(&self, key: &str, out: &mut String);
    fn read(command: &'static str, key: &'static str, value: Option<&str>) -> Result<Self, CommandError>;
}

fn missing(command: &'static str, key: &'static str) -> CommandError {
    CommandError::Argument { command, problem: FieldError::Missing(key) }
}

fn invalid(command: &'static str, key: &'static str, value: &str, expected: &'static str) -> CommandError {
    let problem = FieldError::Invalid { name: key.to_owned(), value: excerpt(value), expected };
    CommandError::Argument { command, problem }
}

macro_rules! number_arguments {
    ($($t:ty),*) => {$(
        impl Argument for $t {
            fn write(&self, key: &str, out: &mut String) {
                let _ = write!(out, " {key}={self}");
            }
            fn read(command: &'static str, key: &'static str, value: Option<&str>) -> Result<Self, CommandError> {
                number(key, value.ok_or_else(|| missing(command, key))?)
                    .map_err(|problem| CommandError::Argument { command, problem })
            }
        }
    )*};
}
number_arguments!(u32, u64, i64);

macro_rules! name_arguments {
    ($($t:ty),*) => {$(
        impl Argument for $t {
            fn write(&self, key: &str, out: &mut String) {
                let _ = write!(out, " {key}={self}");
            }
            fn read(command: &'static str, key: &'static str, value: Option<&str>) -> Result<Self, CommandError> {
                Self::new(value.ok_or_else(|| missing(command, key))?)
                    .map_err(|problem| CommandError::Name { command, problem })
            }
        }
    )*};
}
name_arguments!(Topic, Group, Member, Text);

impl Argument for Secret {
    fn write(&self, key: &str, out: &mut String) {
        let _ = write!(out, " {key}={}", self.expose());
    }
    fn read(command: &'static str, key: &'static str, value: Option<&str>) -> Result<Self, CommandError> {
        Self::new(key, value.ok_or_else(|| missing(command, key))?)
            .map_err(|problem| CommandError::Name { command, problem })
    }
}

impl Argument for bool {
    fn write(&self, key: &str, out: &mut String) {
        let _ = write!(out, " {key}={self}");
    }
    fn read(command: &'static str, key: &'static str, value: Option<&str>) -> Result<Self, CommandError> {
        match value.ok_or_else(|| missing(command, key))? {
            "true" => Ok(true),
            "false" => Ok(false),
            other => Err(invalid(command, key, other, "true or false")),
        }
    }
}

impl Argument for Isolation {
    fn write(&self, key: &str, out: &mut String) {
        let _ = write!(out, " {key}={}", self.name());
    }
    fn read(command: &'static str, key: &'static str, value: Option<&str>) -> Result<Self, CommandError> {
        match value.ok_or_else(|| missing(command, key))? {
            "read_committed" => Ok(Self::ReadCommitted),
            "read_uncommitted" => Ok(Self::ReadUncommitted),
            other => Err(invalid(command, key, other, "read_committed or read_uncommitted")),
        }
    }
}

/// A list between commas, without spaces.
impl Argument for Vec<String> {
    fn write(&self, key: &str, out: &mut String) {
        let _ = write!(out, " {key}={}", self.join(","));
    }
    fn read(command: &'static str, key: &'static str, value: Option<&str>) -> Result<Self, CommandError> {
        let value = value.ok_or_else(|| missing(command, key))?;
        Ok(value.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect())
    }
}

impl<T: Argument> Argument for Option<T> {
    fn write(&self, key: &str, out: &mut String) {
        if let Some(value) = self {
            value.write(key, out);
        }
    }
    fn read(command: &'static str, key: &'static str, value: Option<&str>) -> Result<Self, CommandError> {
        value.map(|value| T::read(command, key, Some(value))).transpose()
    }
}

/// The text of a message: it comes last and runs to the end of the command. The broker trims white space off its ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message(pub String);

impl Argument for Message {
    fn write(&self, key: &str, out: &mut String) {
        let _ = write!(out, " {key}={}", self.0);
    }
    fn read(command: &'static str, key: &'static str, value: Option<&str>) -> Result<Self, CommandError> {
        value.map(|value| Self(value.to_owned())).ok_or_else(|| missing(command, key))
    }
}

/// The pairs of a batch commit: partition and next offset. On the wire one word without spaces: `P0:5,P1:2`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commits(pub Vec<(u32, u64)>);

impl Commits {
    fn write(&self, out: &mut String) {
        for (i, (partition, offset)) in self.0.iter().enumerate() {
            let _ = write!(out, "{}P{partition}:{offset}", if i == 0 { ' ' } else { ',' });
        }
    }

    fn read(text: &str) -> Result<Self, CommandError> {
        let entry = |entry: &str| {
            let (partition, offset) = entry.strip_prefix('P')?.split_once(':')?;
            Some((number("partition", partition).ok()?, number("offset", offset).ok()?))
        };
        // Like the broker: the pairs are the last word; what stands after a space is lost.
        let word = text.split_whitespace().next_back().unwrap_or_default();
        word.split(',')
            .map(|pair| entry(pair).ok_or_else(|| CommandError::Entry { entry: excerpt(pair) }))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident = $word:literal -> $reply:ty { $($(#[$fdoc:meta])* $field:ident: $type:ty = $key:literal,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, PartialEq, Eq)]
            pub struct $name { $($(#[$fdoc])* pub $field: $type,)* }

            impl Request for $name {
                type Reply = $reply;
                const NAME: &'static str = $word;
                fn text(&self) -> String {
                    #[allow(unused_mut)]
                    let mut out = String::from($word);
                    $(self.$field.write($key, &mut out);)*
                    out
                }
            }

            impl From<$name> for Command {
                fn from(command: $name) -> Self {
                    Self::$name(command)
                }
            }
        )*

        /// Any command.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Command {
            $($(#[$doc])* $name($name),)*
            /// Commits several partitions of a topic at once, all or none.
            BatchCommit(BatchCommit),
        }

        impl Command {
            /// The command's first word.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $word,)*
                    Self::BatchCommit(_) => BatchCommit::NAME,
                }
            }

            /// The command as text.
            pub fn text(&self) -> String {
                match self {
                    $(Self::$name(command) => command.text(),)*
                    Self::BatchCommit(command) => command.text(),
                }
            }

            fn from_fields(word: &str, rest: &str, fields: &Fields) -> Result<Self, CommandError> {
                #[allow(unused_variables)]
                Ok(match word {
                    $($word => Self::$name($name { $($field: Argument::read($word, $key, fields.get($key))?,)* }),)*
                    BatchCommit::NAME => Self::BatchCommit(BatchCommit::read(rest, fields)?),
                    other => return Err(CommandError::Unknown(excerpt(other))),
                })
            }

            /// The first words of all commands.
            pub const NAMES: &'static [&'static str] = &[$($word,)* BatchCommit::NAME];
        }
    };
}

impl Command {
    /// Reads a command's text, the envelope already off. The first word may be in any case.
    pub fn parse(text: &str) -> Result<Self, CommandError> {
        let text = text.trim();
        let (word, rest) = text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()));
        let word = word.to_ascii_uppercase();
        // `message=` swallows everything behind it, quotes and further `key=value` included.
        let (arguments, message) = match rest.find("message=") {
            Some(at) => (&rest[..at], Some(rest[at + "message=".len()..].trim())),
            None => (rest, None),
        };
        let mut fields = Fields::default();
        for part in arguments.split_whitespace() {
            if let Some((key, value)) = part.split_once('=') {
                fields.pairs.push((key.to_owned(), value.to_owned()));
            }
        }
        if let Some(message) = message {
            fields.pairs.push(("message".to_owned(), message.to_owned()));
        }
        Self::from_fields(&word, rest, &fields)
    }
}

/// Commits several partitions of a topic at once, all or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchCommit {
    /// The topic.
    pub topic: Topic,
    /// The group.
    pub group: Group,
    /// The member that owns the partitions.
    pub member: Member,
    /// The group's generation; the broker refuses a commit without one.
    pub generation: Option<u64>,
    /// Partition and next offset to read, each partition once.
    pub commits: Commits,
}

impl Request for BatchCommit {
    type Reply = reply::BatchCommitted;
    const NAME: &'static str = "BATCH_COMMIT";

    fn text(&self) -> String {
        let mut out = String::from(Self::NAME);
        self.topic.write("topic", &mut out);
        self.group.write("group", &mut out);
        self.member.write("member", &mut out);
        self.generation.write("generation", &mut out);
        self.commits.write(&mut out);
        out
    }
}

impl BatchCommit {
    fn read(rest: &str, fields: &Fields) -> Result<Self, CommandError> {
        Ok(Self {
            topic: Argument::read(Self::NAME, "topic", fields.get("topic"))?,
            group: Argument::read(Self::NAME, "group", fields.get("group"))?,
            member: Argument::read(Self::NAME, "member", fields.get("member"))?,
            generation: Argument::read(Self::NAME, "generation", fields.get("generation"))?,
            commits: Commits::read(rest)?,
        })
    }
}

impl From<BatchCommit> for Command {
    fn from(command: BatchCommit) -> Self {
        Self::BatchCommit(command)
    }
}

commands! {
    /// Proves who the client is. The first command on a connection, on brokers that ask for it.
    Auth = "AUTH" -> reply::Authenticated {
        /// Who.
        principal: Text = "principal",
        /// The proof.
        token: Secret = "token",
    }
    /// Agrees on the protocol's version and optional features, for this connection.
    Negotiate = "NEGOTIATE" -> reply::Negotiated {
        /// The version: 1.
        version: u32 = "version",
        /// Features to switch on; `*` means all.
        features: Option<Vec<String>> = "features",
        /// Whether a feature that the broker lacks is an error.
        require_features: Option<bool> = "require_features",
    }
    /// Which versions and features a broker has.
    ProtocolInfo = "PROTOCOL_INFO" -> reply::ProtocolInfo {}
    /// Makes a topic.
    Create = "CREATE" -> reply::Created {
        /// Its name.
        topic: Topic = "topic",
        /// How many partitions.
        partitions: Option<u32> = "partitions",
    }
    /// Deletes a topic.
    Delete = "DELETE" -> reply::Deleted {
        /// Its name.
        topic: Topic = "topic",
    }
    /// Lists the topics.
    List = "LIST" -> reply::Topics {}
    /// Where a topic's partitions are led.
    Metadata = "METADATA" -> reply::Metadata {
        /// The topic.
        topic: Topic = "topic",
    }
    /// The first and last offsets of partitions. Ask the leader: followers lag.
    ListOffsets = "LIST_OFFSETS" -> reply::Offsets {
        /// The topic.
        topic: Topic = "topic",
        /// One partition, or all.
        partition: Option<u32> = "partition",
    }
    /// Which broker coordinates a group.
    FindCoordinator = "FIND_COORDINATOR" -> reply::Coordinator {
        /// The group.
        group: Group = "group",
    }
    /// Joins a group, or resumes a membership where member and generation are the ones it had.
    JoinGroup = "JOIN_GROUP" -> reply::Assignment {
        /// The topic that the group reads.
        topic: Topic = "topic",
        /// The group.
        group: Group = "group",
        /// The base of a new member's id, or the actual id to resume.
        member: Member = "member",
        /// Only to resume.
        generation: Option<u64> = "generation",
    }
    /// Asks for this member's assignment at a generation.
    SyncGroup = "SYNC_GROUP" -> reply::Assignment {
        /// The topic.
        topic: Topic = "topic",
        /// The group.
        group: Group = "group",
        /// The member.
        member: Member = "member",
        /// The generation that the assignment is wanted of; mandatory.
        generation: Option<u64> = "generation",
    }
    /// Keeps a membership alive.
    Heartbeat = "HEARTBEAT" -> reply::Heartbeat {
        /// The topic.
        topic: Topic = "topic",
        /// The group.
        group: Group = "group",
        /// The member.
        member: Member = "member",
        /// Its generation; mandatory.
        generation: Option<u64> = "generation",
    }
    /// Ends a membership.
    LeaveGroup = "LEAVE_GROUP" -> reply::Left {
        /// The topic.
        topic: Topic = "topic",
        /// The group.
        group: Group = "group",
        /// The member.
        member: Member = "member",
        /// Its generation; mandatory.
        generation: Option<u64> = "generation",
    }
    /// The committed offset of one partition.
    FetchOffset = "FETCH_OFFSET" -> reply::Offset {
        /// The topic.
        topic: Topic = "topic",
        /// The partition.
        partition: u32 = "partition",
        /// The group.
        group: Group = "group",
    }
    /// Commits one partition.
    CommitOffset = "COMMIT_OFFSET" -> reply::Done {
        /// The topic.
        topic: Topic = "topic",
        /// The partition.
        partition: u32 = "partition",
        /// The group.
        group: Group = "group",
        /// The next offset to read.
        offset: u64 = "offset",
        /// The member that owns the partition.
        member: Member = "member",
        /// Its generation; mandatory.
        generation: Option<u64> = "generation",
    }
    /// A group's members and their partitions.
    GroupStatus = "GROUP_STATUS" -> reply::GroupStatus {
        /// The group.
        group: Group = "group",
    }
    /// Lists the groups.
    ListGroups = "LIST_GROUPS" -> reply::Groups {}
    /// Reads a batch of records.
    Consume = "CONSUME" -> reply::Records {
        /// The topic.
        topic: Topic = "topic",
        /// The partition.
        partition: u32 = "partition",
        /// Where to start, unless the connection's own cursor or the group's committed offset says otherwise.
        offset: u64 = "offset",
        /// The member; the broker wants one and doesn't check it.
        member: Member = "member",
        /// The group whose committed offset beats `offset`.
        group: Option<Group> = "group",
        /// The group's generation, which the broker doesn't check.
        generation: Option<u64> = "generation",
        /// What to see.
        isolation: Option<Isolation> = "isolation",
        /// At most this many records.
        batch: Option<u32> = "batch",
        /// How long the broker may wait for a first record, in milliseconds; it looks every 100 ms.
        wait_ms: Option<u64> = "wait_ms",
    }
    /// Reads for ever: the whole connection belongs to the stream from here on.
    Stream = "STREAM" -> reply::Records {
        /// The topic.
        topic: Topic = "topic",
        /// The partition.
        partition: u32 = "partition",
        /// The member.
        member: Member = "member",
        /// The group.
        group: Group = "group",
        /// The group's generation.
        generation: Option<u64> = "generation",
        /// Where to start where the group has committed nothing.
        offset: Option<u64> = "offset",
        /// What to see.
        isolation: Option<Isolation> = "isolation",
        /// At most this many records per frame.
        batch: Option<u32> = "batch",
    }
    /// Writes one record whose value is text.
    Publish = "PUBLISH" -> reply::Published {
        /// The topic.
        topic: Topic = "topic",
        /// When the broker answers: `0`, `1`, `-1` or `all`.
        acks: Option<Text> = "acks",
        /// Who writes.
        producer_id: Text = "producerId",
        /// The partition, or the broker chooses.
        partition: Option<u32> = "partition",
        /// The key, one word.
        key: Option<Text> = "key",
        /// Producer sequence number.
        sequence: Option<u64> = "seqNum",
        /// Producer epoch.
        epoch: Option<i64> = "epoch",
        /// The value.
        message: Message = "message",
    }
}
