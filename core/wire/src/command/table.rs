//! The list of all commands. A new one is an entry in the table at the end.

use super::argument::{Argument, Commits, Message};
use super::{Arguments, CommandError, Isolation, Outcome, PAIRS, Request};
use crate::fields::excerpt;
use crate::name::{Group, Member, Secret, Text, Topic};
use crate::reply;

/// Makes the types of all commands, and [`Command`], from the table at the end. A word that stands for two commands has the one
/// `with` an argument of its own first.
macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident = $word:literal $(with $with:literal)? -> $reply:ty { $($(#[$fdoc:meta])* $field:ident: $type:ty = $key:expr,)* })*) => {
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
        }

        impl Command {
            /// The command's first word.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $word,)*
                }
            }

            /// The command as text.
            pub fn text(&self) -> String {
                match self {
                    $(Self::$name(command) => command.text(),)*
                }
            }

            pub(super) fn read(word: &str, arguments: Arguments<'_>) -> Result<Self, CommandError> {
                Ok(match word {
                    $($word $(if arguments.get($with).is_some())? => {
                        Self::$name($name { $($field: Argument::read($word, $key, arguments.get($key))?,)* })
                    })*
                    other => return Err(CommandError::Unknown(excerpt(other))),
                })
            }

            /// The first words of all commands.
            pub const NAMES: &'static [&'static str] = &[$($word,)*];
        }
    };
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
        features: Option<Vec<Text>> = "features",
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
    /// Which broker coordinates the transactions of a transactional id.
    FindTransactionCoordinator = "FIND_COORDINATOR" with "transactional_id" -> reply::Coordinator {
        /// The transactional id.
        transactional_id: Text = "transactional_id",
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
    /// Commits several partitions of a topic at once, all or none.
    BatchCommit = "BATCH_COMMIT" -> reply::BatchCommitted {
        /// The topic.
        topic: Topic = "topic",
        /// The group.
        group: Group = "group",
        /// The member that owns the partitions.
        member: Member = "member",
        /// The group's generation; the broker refuses a commit without one.
        generation: Option<u64> = "generation",
        /// Partition and next offset to read, each partition once.
        commits: Commits = PAIRS,
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
    Stream = "STREAM" -> reply::StreamFrame {
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
        /// What to see.
        isolation: Option<Isolation> = "isolation",
        /// At most this many records per frame.
        batch: Option<u32> = "batch",
        /// Where to start where the group has committed nothing.
        offset: Option<u64> = "offset",
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
    /// Starts a new epoch of a transactional producer, which fences whoever had the one before and drops what that one left
    /// open. It comes before every [`BeginTxn`].
    InitProducerId = "INIT_PRODUCER_ID" -> reply::ProducerEpoch {
        /// The producer's name of its own choice, which outlives its restarts.
        transactional_id: Text = "transactional_id",
    }
    /// Opens a transaction, once per epoch.
    BeginTxn = "BEGIN_TXN" -> reply::TransactionBegun {
        /// The transactional id.
        transactional_id: Text = "transactional_id",
        /// The producer id that INIT_PRODUCER_ID gave.
        producer_id: Text = "producerId",
        /// Its epoch.
        epoch: i64 = "epoch",
    }
    /// Adds a record to the open transaction. Nobody sees it before the transaction is committed.
    TxnPublish = "TXN_PUBLISH" -> reply::RecordStaged {
        /// The transactional id.
        transactional_id: Text = "transactional_id",
        /// The topic.
        topic: Topic = "topic",
        /// The partition, or the broker chooses.
        partition: Option<u32> = "partition",
        /// The producer id.
        producer_id: Text = "producerId",
        /// 1 for the epoch's first record in this partition, then 2, 3, ….
        sequence: u64 = "seqNum",
        /// The epoch.
        epoch: i64 = "epoch",
        /// The key, one word.
        key: Option<Text> = "key",
        /// The value.
        message: Message = "message",
    }
    /// Adds a group's offsets to the open transaction: they are committed with it. All of one transaction are of one member.
    SendOffsetsToTxn = "SEND_OFFSETS_TO_TXN" -> reply::OffsetsStaged {
        /// The transactional id.
        transactional_id: Text = "transactional_id",
        /// The producer id.
        producer_id: Text = "producerId",
        /// The epoch.
        epoch: i64 = "epoch",
        /// The topic that the group reads.
        topic: Topic = "topic",
        /// The group.
        group: Group = "group",
        /// The member that owns the partitions.
        member: Member = "member",
        /// Its generation.
        generation: u64 = "generation",
        /// Partition and next offset to read.
        offsets: Commits = PAIRS,
    }
    /// Ends the open transaction. The same again is fine.
    EndTxn = "END_TXN" -> reply::TransactionEnded {
        /// The transactional id.
        transactional_id: Text = "transactional_id",
        /// The producer id.
        producer_id: Text = "producerId",
        /// The epoch.
        epoch: i64 = "epoch",
        /// How; committed where nothing is said.
        result: Option<Outcome> = "result",
    }
    /// How far the last transaction of a transactional id is.
    TxnStatus = "TXN_STATUS" -> reply::TransactionStatus {
        /// The transactional id.
        transactional_id: Text = "transactional_id",
    }
}
