//! STREAM: batches at once for as long as the connection lasts, and a sign of life between them.

use std::io;
use std::time::Duration;

use crate::watch;

use crate::commands::{StreamRequest, encode_batch, read};
use crate::connection::{Connection, closed_before};
use crate::faults::{Harm, damage};

/// How often a frame of no length shows that the stream lives, whatever else flows.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// The first of these comes much sooner, at the broker's first look.
const FIRST_KEEPALIVE: Duration = Duration::from_millis(100);

/// Runs a stream until it ends. A second one of the same topic, partition and group on this broker replaces the first.
pub(crate) async fn run(connection: &mut Connection, request: StreamRequest, mut harm: Harm) -> io::Result<()> {
    let (told, mut ended) = watch::channel(None);
    let key = (connection.broker, format!("{}:{}:{}", request.topic, request.partition, request.group));
    let before = connection.shared.change(|state| state.streams.insert(key.clone(), (connection.id, told)));
    if let Some((_, before)) = before {
        before.send_replace(Some("replaced".to_owned()));
    }
    let done = flow(connection, &request, &mut ended, &mut harm).await;
    connection.shared.change(|state| {
        if state.streams.get(&key).is_some_and(|(id, _)| *id == connection.id) {
            state.streams.remove(&key);
        }
    });
    done
}

async fn flow(
    connection: &mut Connection,
    request: &StreamRequest,
    ended: &mut watch::Receiver<Option<String>>,
    harm: &mut Harm,
) -> io::Result<()> {
    let StreamRequest { topic, partition, shelf, batch, isolation, .. } = request;
    let mut position = request.start;
    let mut end = shelf.watch_end();
    let mut keepalive = connection.shared.clock.now() + FIRST_KEEPALIVE;
    let drain = connection.running.drain.clone();
    loop {
        let reason = ended.borrow_and_update().clone();
        if let Some(reason) = reason {
            return close(connection, &format!("{reason} offset={position}")).await;
        }
        // A broker that is told to stop ends its streams without a word.
        if drain.is_cancelled() {
            return Ok(());
        }
        let now = connection.shared.clock.now();
        if now >= keepalive {
            // However long the clock was ahead or the broker paused: what was missed isn't caught up with.
            let missed = now >= keepalive + KEEPALIVE;
            keepalive = if missed { now } else { keepalive } + KEEPALIVE;
            connection.outgoing.write(&[], &[]).await?;
        }
        drop(end.borrow_and_update());
        let slices = match read(shelf, position, *batch, *isolation) {
            Ok(slices) => slices,
            Err((earliest, latest)) => {
                let bounds = format!("requested={position} earliest={earliest} latest={latest}");
                return close(connection, &format!("offset_out_of_range offset={position} {bounds}")).await;
            }
        };
        if slices.count > 0 {
            position = slices.next;
            let Ok(mut head) = encode_batch(topic, *partition, &slices) else {
                // It would never get past this batch.
                return close(connection, &format!("error offset={position}")).await;
            };
            let Harm { corrupt, repeat } = std::mem::take(harm);
            if corrupt {
                damage(&mut head, true);
            }
            for _ in 0..=usize::from(repeat) {
                connection.outgoing.write(&head, &slices.bytes).await?;
            }
            continue;
        }
        tokio::select! {
            biased;
            Ok(()) = ended.changed() => {}
            () = drain.cancelled() => {}
            // The sender lives in the shelf.
            _ = end.changed() => {}
            closed = closed_before(&connection.shared.clock, &mut connection.incoming, keepalive) => {
                if closed {
                    return Ok(());
                }
            }
        }
    }
}

async fn close(connection: &mut Connection, reason: &str) -> io::Result<()> {
    let text = format!("STREAM_CONTROL type=CLOSE reason={reason}");
    connection.outgoing.write(text.as_bytes(), &[]).await
}
