//! The steps that write transactions, and the one that sends what any client may.

use std::sync::Arc;
use std::time::Duration;

use cursus_embedded::{TransactionalWriter, WriterError};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::cluster::{records, value};
use crate::format::{Send, Step, Transact};
use crate::world::{World, locked, within};

impl World {
    /// Does a step of these; nothing where it is none.
    pub(crate) async fn transaction_step(self: &Arc<Self>, step: &Step) -> Option<Result<(), String>> {
        let text = |error: cursus_embedded::ControlError| error.to_string();
        Some(match step {
            Step::AppendMarker(step) => self.cluster.append_marker(&step.topic, step.partition).map(drop).map_err(text),
            Step::AppendAborted(step) => {
                let first = self.cluster.end_offsets(&step.topic).get(&step.partition).copied().unwrap_or(0);
                let hidden = records(&step.topic, step.partition, first..first + step.count, 0);
                self.cluster.append_aborted(&step.topic, step.partition, hidden).map(drop).map_err(text)
            }
            Step::Transact(step) => self.transact(step).await,
            Step::Send(step) => match timeout(within(None), self.send(step)).await {
                Ok(outcome) => outcome,
                Err(_) => Err("no reply has come".to_owned()),
            },
            _ => return None,
        })
    }

    async fn transact(&self, step: &Transact) -> Result<(), String> {
        let known = locked(&self.writers).remove(&step.id);
        let mut writer = match known {
            Some(writer) => writer,
            None => TransactionalWriter::new(self.cluster.brokers(), &step.id)
                .map_err(|error| error.to_string())?
                .with_timeout(within(None)),
        };
        let outcome = self.transaction(&mut writer, step).await;
        locked(&self.writers).insert(step.id.clone(), writer);
        outcome
    }

    async fn transaction(&self, writer: &mut TransactionalWriter, step: &Transact) -> Result<(), String> {
        let text = |error: WriterError| error.to_string();
        writer.begin().await.map_err(text)?;
        let ends = self.cluster.end_offsets(&step.topic);
        for (partition, count) in &step.records {
            let first = ends.get(partition).copied().unwrap_or(0);
            for offset in first..first + count {
                let value = value(&step.topic, *partition, offset, 0);
                let value = String::from_utf8_lossy(&value);
                writer.publish(&step.topic, &offset.to_string(), &value, Some(*partition)).await.map_err(text)?;
            }
        }
        if step.abort {
            return writer.abort().await.map_err(text);
        }
        match (self.committed_with(writer, step).await?, &step.refused) {
            (Ok(()), None) => Ok(()),
            (Ok(()), Some(_)) => Err("it was committed, and should have been refused".to_owned()),
            (Err(error), None) => Err(error.to_string()),
            (Err(error), Some(words)) => {
                let message = error.to_string();
                if let Some(word) = words.iter().find(|word| !message.contains(*word)) {
                    return Err(format!("the refusal doesn't say {word:?}: {message}"));
                }
                writer.abort().await.map_err(text)
            }
        }
    }

    /// The offsets of a batch, where there is one, and the commit.
    async fn committed_with(
        &self,
        writer: &mut TransactionalWriter,
        step: &Transact,
    ) -> Result<Result<(), WriterError>, String> {
        if let Some(name) = &step.offsets_of {
            let batch = self.saved(name)?;
            let metadata = batch.group_metadata().ok_or("the batch is of no member")?;
            let offsets = batch.next_offsets().into_iter().map(|(partition, next)| (partition.partition, next));
            if let Err(refusal) = writer.send_offsets(metadata, offsets).await {
                return Ok(Err(refusal));
            }
        }
        Ok(writer.commit().await)
    }

    /// Sends a command over a connection of its own.
    async fn send(&self, step: &Send) -> Result<(), String> {
        let text = self.with_remembered(&step.text);
        let brokers = self.cluster.brokers();
        let address = brokers.get(step.broker).ok_or_else(|| format!("there is no broker {}", step.broker))?;
        let reply = exchange(address, &text).await.map_err(|error| error.to_string())?;
        if reply.contains(&step.says) { Ok(()) } else { Err(format!("the reply to {text:?} is {reply:?}")) }
    }

    /// A text in which `$name` stands for what was remembered by that name.
    fn with_remembered(&self, text: &str) -> String {
        let mut text = self.filled_in(text);
        // From the last one: `$a` is also how `$ab` begins.
        for (name, found) in locked(&self.remembered).iter().rev() {
            let shown = found.as_str().map_or_else(|| Value::to_string(found), str::to_owned);
            text = text.replace(&format!("${name}"), &shown);
        }
        text
    }
}

async fn exchange(address: &str, text: &str) -> std::io::Result<String> {
    let mut socket = timeout(Duration::from_secs(5), TcpStream::connect(address)).await??;
    // The length of the body, and in it that of a topic, which commands don't have.
    let length = u32::try_from(text.len() + 2).map_err(std::io::Error::other)?;
    let mut frame = length.to_be_bytes().to_vec();
    frame.extend([0, 0]);
    frame.extend(text.as_bytes());
    socket.write_all(&frame).await?;
    let length = socket.read_u32().await?;
    let mut reply = vec![0; length as usize];
    socket.read_exact(&mut reply).await?;
    Ok(String::from_utf8_lossy(&reply).into_owned())
}
