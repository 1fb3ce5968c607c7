//! Who writes: numbered records at a steady rate, over all partitions in turn.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::control::Control;
use crate::processes::Event;
use crate::{PARTITIONS, Result, TOPIC};

/// How often it writes.
const TICK: Duration = Duration::from_millis(100);

/// The size of a value, in bytes.
const SIZE: usize = 100;

/// What a record's value begins with.
pub(crate) fn mark(partition: u32, offset: u64) -> String {
    format!("{partition}/{offset}.")
}

/// Writes until told to stop. What was written is told before the next is.
pub(crate) async fn run(
    mut control: Control,
    per_second: u64,
    events: mpsc::Sender<Event>,
    stop: watch::Receiver<bool>,
) {
    if let Err(error) = write(&mut control, per_second, &events, stop).await {
        let _ = events.send(Event::Broken(format!("the producer: {error}"))).await;
    }
}

async fn write(
    control: &mut Control,
    per_second: u64,
    events: &mpsc::Sender<Event>,
    mut stop: watch::Receiver<bool>,
) -> Result<()> {
    let mut ticks = interval(TICK);
    // What was missed is made up for.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut ends = [0; PARTITIONS as usize];
    let (mut ticked, mut written) = (0, 0);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stop.changed() => return Ok(()),
        }
        ticked += 1;
        let due = ticked * per_second * TICK.as_millis() as u64 / 1000;
        let mut records = [const { Vec::<Value>::new() }; PARTITIONS as usize];
        for number in written..due {
            let partition = (number % u64::from(PARTITIONS)) as usize;
            let offset = ends[partition] + records[partition].len() as u64;
            let value = format!("{:.<SIZE$}", mark(partition as u32, offset));
            records[partition].push(json!({ "value": value }));
        }
        written = due;
        for (partition, records) in (0..).zip(records).filter(|(_, records)| !records.is_empty()) {
            let end = &mut ends[partition as usize];
            let expected = *end + records.len() as u64;
            let request = json!({ "do": "produce", "topic": TOPIC, "partition": partition, "records": records });
            *end = control.ask(request).await?;
            if *end != expected {
                return Err(format!("partition {partition} ends at {end} where {expected} was written").into());
            }
            events.send(Event::Produced(partition, *end)).await?;
        }
    }
}
