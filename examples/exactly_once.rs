//! Consume, process, produce: each record of a topic is processed into another topic, and a `read_committed` reader of that
//! one sees each result once, whenever this program is killed. Start it again, with the same arguments.
//!
//!     exactly_once BROKERS INPUT OUTPUT GROUP TRANSACTIONAL_ID
//!
//! - **Results and offsets are one transaction.** Either both are there or neither is, so that who reads on at the committed
//!   offset repeats nothing that can be seen and leaves nothing out. The consumer itself commits nothing.
//! - **First fence, then join.** A killed run may have left a commit on its way. Beginning a transaction takes its right
//!   away or waits for it; only then the group is joined, and what it has committed is looked up. From there it can't change
//!   behind this program's back.
//! - **The batch says whose it is.** `group_metadata()` names the generation that the records were read under. After a
//!   rebalance the brokers refuse the transaction of an older one: somebody else may have these partitions by now.
//! - **What was refused is not made good.** A generation that is over never comes back, so that all else that was read under
//!   it is refused too, and the next one begins at what is committed. There is nothing to seek back to.
//! - **Anything else ends the program**, an unknown outcome included. To start again is what it can do best.
//!
//! One transactional id is for one process: two of them fence each other. More in docs/transactions.md.
#![forbid(unsafe_code)]
// What a program says, it prints.
#![allow(clippy::print_stdout)]

use std::env;
use std::error::Error;

use cursus_consumer::{Batch, Consumer, Environment, ErrorKind, RecordRef, Settings};
use cursus_embedded::{GroupMetadata, Meaning, TransactionalWriter, WriterError};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [brokers, input, output, group, transactional_id] = &arguments[..] else {
        return Err("usage: exactly_once BROKERS INPUT OUTPUT GROUP TRANSACTIONAL_ID".into());
    };
    let mut writer = TransactionalWriter::new(brokers.split(','), transactional_id)?;
    writer.begin().await?;
    writer.abort().await?;
    let settings = Settings::from_values([
        ("brokers", brokers.as_str().into()),
        ("topic", input.as_str().into()),
        ("group_id", group.as_str().into()),
        ("enable_auto_commit", false.into()),
        // A transaction is a batch.
        ("max_poll_records", 50u64.into()),
        // How soon a rebalance is noticed; until then transactions are refused.
        ("heartbeat_interval_ms", 500u64.into()),
    ])?;
    let consumer = Consumer::new(settings, Environment::current());
    loop {
        let batch = match consumer.poll(None).await {
            Ok(batch) => batch,
            Err(error) if matches!(error.kind(), ErrorKind::Rebalancing | ErrorKind::MaxPollInterval) => continue,
            Err(error) => return Err(error.into()),
        };
        let Some(member) = batch.group_metadata() else { continue };
        match transact(&mut writer, &batch, member, output).await {
            Ok(()) => println!("{} records of generation {}", batch.len(), member.generation),
            Err(error) if has_moved_on(&error, member) => writer.abort().await?,
            Err(error) => return Err(error.into()),
        }
    }
}

async fn transact(
    writer: &mut TransactionalWriter,
    batch: &Batch,
    member: &GroupMetadata,
    output: &str,
) -> Result<(), WriterError> {
    writer.begin().await?;
    let offsets = batch.next_offsets().into_iter().map(|(partition, next)| (partition.partition, next));
    writer.send_offsets(member, offsets).await?;
    for record in batch.iter() {
        writer.publish(output, &String::from_utf8_lossy(record.key), &process(record), None).await?;
    }
    writer.commit().await
}

/// What is made of a record. The writer takes texts, and keys that are one word.
fn process(record: RecordRef<'_>) -> String {
    format!("{}/{} {}", record.partition.partition, record.offset, String::from_utf8_lossy(record.value).to_uppercase())
}

/// Whether the group is at a later generation than the one that the records were read under. A broker that has just started
/// may say that it is at an earlier one, or deny the member: that passes, and what is committed afterwards would leave out
/// what was refused.
fn has_moved_on(error: &WriterError, member: &GroupMetadata) -> bool {
    matches!(error.meaning(), Some(Meaning::GenerationMismatch { current }) if current > member.generation)
}
