//! What is written is what is read back: every command, every reply, errors and batches.

use std::fmt::Debug;

use bytes::{Bytes, BytesMut};
use cursus_wire::command::*;
use cursus_wire::name::Secret;
use cursus_wire::reply::{
    self, Assignment, Authenticated, BatchCommitted, Bounds, Coordinator, CoordinatorKind, Created, Deleted, Done,
    Groups, Left, MemberStatus, Negotiated, Offset, Offsets, OffsetsStaged, ProducerEpoch, Published, RecordStaged,
    Records, StreamClose, Topics, TransactionBegun, TransactionEnded, TransactionState, TransactionStatus,
};
use cursus_wire::{BrokerError, ErrorClass, Group, InvalidName, Member, Record, RecordBatch, Text, Topic};
use cursus_wire::{Reply, ReplyError, TextReply, batch, frame};
use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::strategy::Union;

/// A name of any allowed characters.
fn name<T: TryNew>() -> impl Strategy<Value = T> {
    r#"[^\s\pC="'`,\[\]]{1,40}"#.prop_map(|text| T::try_new(&text).expect("only allowed characters"))
}

trait TryNew: Debug + Sized {
    fn try_new(text: &str) -> Result<Self, InvalidName>;
}

macro_rules! try_new {
    ($($name:ident)*) => {$(
        impl TryNew for $name {
            fn try_new(text: &str) -> Result<Self, InvalidName> {
                Self::new(text)
            }
        }
    )*};
}
try_new!(Topic Group Member Text);

fn secret() -> impl Strategy<Value = Secret> {
    name::<Text>().prop_map(|text| Secret::new("token", text.as_str()).expect("a name is a credential"))
}

/// A message as the broker keeps it: white space trimmed off its ends.
fn message() -> impl Strategy<Value = Message> {
    "(?s).*".prop_map(|text| Message(text.trim().to_owned()))
}

fn isolation() -> impl Strategy<Value = Isolation> {
    prop_oneof![Just(Isolation::ReadCommitted), Just(Isolation::ReadUncommitted)]
}

type MemberFields = (Topic, Group, Member, Option<u64>);

fn as_member() -> impl Strategy<Value = MemberFields> {
    (name(), name(), name(), any::<Option<u64>>())
}

/// Transactional id, producer id and epoch.
fn as_producer() -> impl Strategy<Value = (Text, Text, i64)> {
    (name(), name(), any::<i64>())
}

fn commands() -> Vec<BoxedStrategy<Command>> {
    fn of<C: Into<Command> + Debug + 'static>(commands: impl Strategy<Value = C> + 'static) -> BoxedStrategy<Command> {
        commands.prop_map(Into::into).boxed()
    }
    vec![
        of((name(), secret()).prop_map(|(principal, token)| Auth { principal, token })),
        of((any::<u32>(), option::of(vec(name(), 1..4)), any::<Option<bool>>())
            .prop_map(|(version, features, require_features)| Negotiate { version, features, require_features })),
        of(Just(ProtocolInfo {})),
        of((name(), any::<Option<u32>>()).prop_map(|(topic, partitions)| Create { topic, partitions })),
        of(name().prop_map(|topic| Delete { topic })),
        of(Just(List {})),
        of(name().prop_map(|topic| Metadata { topic })),
        of((name(), any::<Option<u32>>()).prop_map(|(topic, partition)| ListOffsets { topic, partition })),
        of(name().prop_map(|transactional_id| FindTransactionCoordinator { transactional_id })),
        of(name().prop_map(|group| FindCoordinator { group })),
        of(as_member().prop_map(|(topic, group, member, generation)| JoinGroup { topic, group, member, generation })),
        of(as_member().prop_map(|(topic, group, member, generation)| SyncGroup { topic, group, member, generation })),
        of(as_member().prop_map(|(topic, group, member, generation)| Heartbeat { topic, group, member, generation })),
        of(as_member().prop_map(|(topic, group, member, generation)| LeaveGroup { topic, group, member, generation })),
        of((name(), any::<u32>(), name()).prop_map(|(topic, partition, group)| FetchOffset {
            topic,
            partition,
            group,
        })),
        of((as_member(), any::<(u32, u64)>()).prop_map(|((topic, group, member, generation), (partition, offset))| {
            CommitOffset { topic, partition, group, offset, member, generation }
        })),
        of((as_member(), vec(any::<(u32, u64)>(), 1..5)).prop_map(|((topic, group, member, generation), commits)| {
            BatchCommit { topic, group, member, generation, commits: Commits(commits) }
        })),
        of(name().prop_map(|group| GroupStatus { group })),
        of(Just(ListGroups {})),
        of((
            as_member(),
            any::<(u32, u64)>(),
            any::<bool>(),
            option::of(isolation()),
            any::<(Option<u32>, Option<u64>)>(),
        )
            .prop_map(
                |((topic, group, member, generation), (partition, offset), grouped, isolation, (batch, wait_ms))| {
                    let group = grouped.then_some(group);
                    Consume { topic, partition, offset, member, group, generation, isolation, batch, wait_ms }
                },
            )),
        of((as_member(), any::<(u32, Option<u64>)>(), option::of(isolation()), any::<Option<u32>>()).prop_map(
            |((topic, group, member, generation), (partition, offset), isolation, batch)| Stream {
                topic,
                partition,
                member,
                group,
                generation,
                isolation,
                batch,
                offset,
            },
        )),
        of((
            (name(), option::of(name()), name(), option::of(name())),
            any::<(Option<u32>, Option<u64>, Option<i64>)>(),
            message(),
        )
            .prop_map(|((topic, acks, producer_id, key), (partition, sequence, epoch), message)| Publish {
                topic,
                acks,
                producer_id,
                partition,
                key,
                sequence,
                epoch,
                message,
            })),
        of(name().prop_map(|transactional_id| InitProducerId { transactional_id })),
        of(as_producer().prop_map(|(transactional_id, producer_id, epoch)| BeginTxn {
            transactional_id,
            producer_id,
            epoch,
        })),
        of((as_producer(), (name(), option::of(name())), any::<(Option<u32>, u64)>(), message()).prop_map(
            |((transactional_id, producer_id, epoch), (topic, key), (partition, sequence), message)| TxnPublish {
                transactional_id,
                topic,
                partition,
                producer_id,
                sequence,
                epoch,
                key,
                message,
            },
        )),
        of((as_producer(), (name(), name(), name(), any::<u64>()), vec(any::<(u32, u64)>(), 1..5)).prop_map(
            |((transactional_id, producer_id, epoch), (topic, group, member, generation), offsets)| SendOffsetsToTxn {
                transactional_id,
                producer_id,
                epoch,
                topic,
                group,
                member,
                generation,
                offsets: Commits(offsets),
            },
        )),
        of((as_producer(), option::of(prop_oneof![Just(Outcome::Commit), Just(Outcome::Abort)])).prop_map(
            |((transactional_id, producer_id, epoch), result)| EndTxn { transactional_id, producer_id, epoch, result },
        )),
        of(name().prop_map(|transactional_id| TxnStatus { transactional_id })),
    ]
}

#[test]
fn every_command_has_a_strategy_here() {
    assert_eq!(commands().len(), Command::NAMES.len());
}

proptest! {
    #[test]
    fn a_command_survives_the_wire(command in Union::new(commands())) {
        let frame = frame::encode_text(&command.text()).unwrap();
        let mut wire = BytesMut::from(&frame[..]);
        let body = frame::take(&mut wire).unwrap().expect("a whole frame");
        prop_assert!(wire.is_empty());
        let (topic, text) = frame::open_envelope(&body).unwrap();
        prop_assert_eq!(topic, "");
        prop_assert_eq!(Command::parse(text).unwrap(), command);
    }

    /// Whatever a name is made from, a command of it has the words it should have, or there is no name.
    #[test]
    fn a_name_never_becomes_another_word(evil in "(?s).{0,12}|[ =\"'\\[,]|m\\s+generation=9|x\nLEAVE_GROUP topic=t|x message=y") {
        let (Ok(topic), Ok(group), Ok(member)) = (Topic::new(&evil), Group::new(&evil), Member::new(&evil)) else {
            prop_assert!(Topic::new(&evil).is_err() && Group::new(&evil).is_err() && Member::new(&evil).is_err());
            return Ok(());
        };
        let command = JoinGroup { topic, group, member, generation: Some(1) };
        prop_assert_eq!(command.text().split_whitespace().count(), 5);
        prop_assert!(!command.text().contains(|c: char| c.is_control()));
        prop_assert_eq!(Command::parse(&command.text()).unwrap(), command.into());
    }
}

/// Asserts that a reply is read back as it was written.
fn survives<T: TextReply + PartialEq + Debug>(reply: &T) -> Result<(), TestCaseError> {
    let text = reply.to_text();
    prop_assert_eq!(&T::parse(&Bytes::from(text.clone())).map_err(|error| format!("{text}: {error}")).unwrap(), reply);
    Ok(())
}

fn words() -> impl Strategy<Value = Vec<String>> {
    vec(name::<Text>().prop_map(|word| word.to_string()), 0..4)
}

fn bounds() -> impl Strategy<Value = Bounds> {
    any::<(u32, u64, u64, u64, u64)>().prop_map(|(partition, earliest, latest, log_end, high_watermark)| Bounds {
        partition,
        earliest,
        latest,
        log_end,
        high_watermark,
    })
}

proptest! {
    #[test]
    fn replies_about_the_session_survive(
        principal in name::<Text>(), version: u32, max_version: u32, enabled in words(), unsupported in words(),
    ) {
        survives(&Authenticated { principal: principal.to_string() })?;
        survives(&Negotiated { version, enabled: enabled.clone(), unsupported: unsupported.clone() })?;
        survives(&reply::ProtocolInfo {
            min_version: version,
            max_version,
            default_version: version,
            features: enabled,
            error_classes: unsupported,
        })?;
    }

    #[test]
    fn replies_about_topics_survive(
        topic in name::<Topic>(),
        partitions: u32,
        topics in words(),
        led in vec((option::of("[a-z.]{1,9}:[0-9]{1,5}"), any::<u64>()), 0..5),
        bounds in vec(bounds(), 0..4),
    ) {
        survives(&Created { topic: topic.clone(), partitions })?;
        survives(&Deleted { topic: topic.clone() })?;
        survives(&Topics { topics })?;
        let (leaders, epochs) = led.into_iter().map(|(leader, epoch)| (leader.unwrap_or_default(), epoch)).unzip();
        survives(&reply::Metadata { topic: topic.clone(), leaders, epochs })?;
        survives(&Offsets { topic, partitions: bounds })?;
    }

    #[test]
    fn replies_about_groups_survive(
        (topic, group, member) in (name::<Topic>(), name::<Group>(), name::<Member>()),
        (generation, port, resumed) in any::<(u64, u16, bool)>(),
        assigned in btree_set(any::<u32>(), 0..6),
        (host, state, heard) in (name::<Text>(), ".*", ".*"),
        partition_count: u16,
    ) {
        let partitions: Vec<u32> = assigned.into_iter().collect();
        survives(&Groups { groups: vec![group.to_string()] })?;
        for kind in [CoordinatorKind::Group, CoordinatorKind::Transaction] {
            survives(&Coordinator { kind, id: member.to_string(), host: host.to_string(), port })?;
        }
        survives(&Assignment { generation, member: member.clone(), partitions: partitions.clone(), resumed })?;
        survives(&reply::Heartbeat { member: member.clone(), generation })?;
        survives(&Left { group: group.clone(), member: member.clone() })?;
        let members = vec![
            MemberStatus { member_id: member.to_string(), last_heartbeat: heard, assignments: partitions },
            MemberStatus { member_id: String::new(), last_heartbeat: String::new(), assignments: vec![] },
        ];
        survives(&reply::GroupStatus::new(&group, &topic, &state, generation, partition_count.into(), members))?;
    }

    #[test]
    fn replies_about_offsets_and_writes_survive(
        (offset, count, epoch, sequences) in any::<(u64, usize, i64, (u64, u64))>(),
        (producer, leader, reason) in (".*", any::<Option<String>>(), ".*"),
        offsets in any::<[Option<u64>; 4]>(),
    ) {
        survives(&Done)?;
        survives(&Offset { offset })?;
        survives(&BatchCommitted { count })?;
        survives(&Published::new(offset, &producer, epoch, sequences, leader))?;
        let [offset, requested, earliest, latest] = offsets;
        survives(&StreamClose { reason, offset, requested, earliest, latest })?;
    }

    #[test]
    fn replies_about_transactions_survive(
        (transactional_id, producer_id, topic) in (name::<Text>(), name::<Text>(), name::<Topic>()),
        (epoch, partition, messages, offsets, state) in any::<(i64, u32, usize, usize, u8)>(),
    ) {
        let id = || transactional_id.clone();
        let state = TransactionState::ALL[usize::from(state) % 4];
        survives(&ProducerEpoch { transactional_id: id(), producer_id: producer_id.clone(), epoch })?;
        survives(&TransactionBegun { transactional_id: id(), producer_id, epoch })?;
        survives(&RecordStaged { transactional_id: id(), topic, partition })?;
        survives(&OffsetsStaged { transactional_id: id(), count: offsets })?;
        survives(&TransactionEnded::Committed { transactional_id: id(), messages, offsets })?;
        survives(&TransactionEnded::Aborted { transactional_id: id() })?;
        survives(&TransactionStatus { transactional_id: id(), state, messages, offsets })?;
    }

    #[test]
    fn an_error_survives(
        code in "[A-Za-z_]{1,20}",
        (class, retryable) in any::<(Option<u8>, Option<bool>)>(),
        words in words(),
        fields in vec(("[a-z_]{1,9}", "(?s).*|\\[x"), 0..4),
    ) {
        let class = class.map(|at| ErrorClass::ALL[usize::from(at) % ErrorClass::ALL.len()]);
        let fields = fields.into_iter().filter(|(key, _)| key != "class" && key != "retryable").collect();
        let error = BrokerError { code, class, retryable, words, fields };
        prop_assert_eq!(&BrokerError::parse(&error.to_string()).unwrap().unwrap(), &error);
        let body = Bytes::from(error.to_string());
        prop_assert_eq!(Done::parse(&body).unwrap_err(), ReplyError::Broker(error.clone()));
        prop_assert_eq!(Records::parse(&body).unwrap_err(), ReplyError::Broker(error));
    }
}

/// The owned fields of a record: offset, sequence, producer id, key, epoch, value, event type, versions, metadata.
type Owned = (u64, u64, Vec<u8>, Vec<u8>, i64, Vec<u8>, (Vec<u8>, u32, u64, Vec<u8>));

fn owned() -> impl Strategy<Value = Owned> {
    let bytes = || vec(any::<u8>(), 0..40);
    let trailer = (bytes(), any::<u32>(), any::<u64>(), bytes());
    (1u64..1 << 40, any::<u64>(), bytes(), bytes(), any::<i64>(), vec(any::<u8>(), 0..300), trailer)
}

fn borrowed(owned: &Owned) -> Record<'_> {
    let (offset, sequence, producer_id, key, epoch, value, (event_type, schema_version, aggregate_version, metadata)) =
        owned;
    Record {
        offset: *offset,
        sequence: *sequence,
        producer_id,
        key,
        epoch: *epoch,
        value,
        event_type,
        schema_version: *schema_version,
        aggregate_version: *aggregate_version,
        metadata,
    }
}

proptest! {
    #[test]
    fn a_batch_survives_and_its_records_borrow_from_the_frame(
        (topic, partition, idempotent) in (name::<Topic>(), 0..=i32::MAX as u32, any::<bool>()),
        mut owned in vec(owned(), 0..12),
    ) {
        // As drawn, the offsets are steps: made to rise.
        owned.iter_mut().fold(0, |sum, record| { record.0 += sum; record.0 });
        let records: Vec<Record<'_>> = owned.iter().map(borrowed).collect();
        let frame = batch::encode(topic.as_str(), partition, "1", idempotent, &records);
        let parsed = RecordBatch::parse(frame.clone()).unwrap();

        prop_assert_eq!((parsed.topic(), parsed.partition()), (topic.as_str(), partition));
        prop_assert_eq!((parsed.acks(), parsed.idempotent()), (&b"1"[..], idempotent));
        prop_assert_eq!(parsed.iter().collect::<Vec<_>>(), records.clone());
        prop_assert_eq!(parsed.bounds(), records.first().map(|first| (first.offset, records.last().unwrap().offset)));

        prop_assert_eq!(parsed.largest(), records.iter().map(batch::encoded_length).max().unwrap_or(0));

        let inside = frame.as_ptr_range();
        for (i, record) in parsed.iter().enumerate() {
            for field in [record.producer_id, record.key, record.value, record.event_type, record.metadata] {
                let field = field.as_ptr_range();
                prop_assert!(inside.start <= field.start && field.end <= inside.end);
            }
            prop_assert_eq!(parsed.encoded(i).len(), batch::encoded_length(&record));
            prop_assert_eq!(parsed.position_of(record.offset), i);
            prop_assert_eq!(parsed.position_of(record.offset + 1), i + 1);
        }
        // A broker serves records as it keeps them: a head, then their bytes.
        let mut served = BytesMut::new();
        let head = batch::Head {
            topic: topic.as_str(),
            partition,
            acks: "1",
            idempotent,
            sequences: (records.first().map_or(0, |r| r.sequence), records.last().map_or(0, |r| r.sequence)),
            count: records.len() as u32,
        };
        batch::put_head(&mut served, &head);
        (0..parsed.len()).for_each(|i| served.extend_from_slice(parsed.encoded(i)));
        prop_assert_eq!(served.freeze(), frame);
    }

    #[test]
    fn a_published_batch_needs_no_rising_offsets_and_a_read_one_does(mut records in vec(owned(), 2..5)) {
        records.iter_mut().for_each(|record| record.0 = 0);
        let frame = batch::encode("t", 0, "all", true, &records.iter().map(borrowed).collect::<Vec<_>>());
        prop_assert_eq!(RecordBatch::parse_published(frame.clone()).unwrap().len(), records.len());
        let error = RecordBatch::parse(frame).unwrap_err().to_string();
        prop_assert!(error.ends_with("record 1: offset 0 follows offset 0"), "{}", error);
    }
}

#[test]
fn a_record_fits_up_to_the_lengths_that_the_protocol_has() {
    let (short, long) = (vec![0; 65_535], vec![0; 65_536]);
    let fits = |key, value| batch::fits(&Record { key, value, ..Record::default() });
    assert!(fits(&short, &long));
    assert!(!fits(&long, b""));
    let most = vec![0; frame::MAX_BODY + 1];
    assert!(fits(b"", &most[1..]) && !fits(b"", &most));
}
