//! The engine, as a Rust program uses it: poll, and go on to the next batch.

use std::hint::black_box;
use std::time::Duration;

use cursus_consumer::{Batch, Consumer, Environment, Settings};
use tokio::runtime::Builder;

use crate::meter::{Measured, Meter};
use crate::{Result, Source};

/// A poll that finds nothing for so long means that something is broken.
const PATIENCE: Duration = Duration::from_secs(10);

/// The settings of a consumer that only reads.
pub(crate) fn settings(source: &Source, group: &str, more: &[String]) -> Result<Settings> {
    let mut values = vec![
        ("brokers", source.brokers.clone().into()),
        ("topic", source.topic.as_str().into()),
        ("group_id", group.into()),
        ("enable_auto_commit", false.into()),
        ("fetch_batch_size", u64::from(source.batch).into()),
    ];
    for setting in more {
        let (name, value) = setting.split_once('=').ok_or_else(|| format!("{setting:?} is not NAME=VALUE"))?;
        values.push((name, value.into()));
    }
    Ok(Settings::from_values(values)?)
}

pub(crate) fn run(settings: Settings, records: u64, touch: bool, threads: usize) -> Result<Measured> {
    let runtime = match threads {
        0 => Builder::new_current_thread().enable_all().build()?,
        threads => Builder::new_multi_thread().worker_threads(threads).enable_all().build()?,
    };
    runtime.block_on(async {
        let consumer = Consumer::new(settings, Environment::current());
        let measured = read(&consumer, records, touch).await;
        consumer.close(None).await;
        measured
    })
}

async fn read(consumer: &Consumer, records: u64, touch: bool) -> Result<Measured> {
    let start = poll(consumer).await?.len() as u64;
    let meter = Meter::start()?;
    let mut read = start;
    while read < records {
        let batch = poll(consumer).await?;
        if touch {
            look(&batch);
        }
        read += batch.len() as u64;
    }
    meter.stop(read - start)
}

async fn poll(consumer: &Consumer) -> Result<Batch> {
    let batch = consumer.poll(Some(PATIENCE)).await?;
    if batch.is_empty() {
        return Err(format!("nothing came for {PATIENCE:?}: {:?}", consumer.statistics()).into());
    }
    Ok(batch)
}

/// Looks at the first byte of each record's key and value.
fn look(batch: &Batch) {
    for record in batch.iter() {
        black_box((record.key.first(), record.value.first()));
    }
}
