//! The orchestrator's end of the control port.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::{GROUP, Result, TOPIC};

/// A connection to the control port. What is asked on it is done one after the other.
pub(crate) struct Control(BufReader<TcpStream>);

impl Control {
    pub(crate) async fn connect(address: &str) -> Result<Self> {
        Ok(Self(BufReader::new(TcpStream::connect(address).await?)))
    }

    /// Asks, and gives the answer. What the cluster refuses is an error.
    pub(crate) async fn ask<T: DeserializeOwned>(&mut self, request: Value) -> Result<T> {
        let mut line = request.to_string();
        line.push('\n');
        self.0.write_all(line.as_bytes()).await?;
        line.clear();
        if self.0.read_line(&mut line).await? == 0 {
            return Err(format!("the brokers' process closed its control port on {request}").into());
        }
        let mut reply: Value = serde_json::from_str(&line)?;
        match reply.get_mut("ok") {
            Some(ok) => Ok(serde_json::from_value(ok.take())?),
            None => Err(format!("{request} was refused: {}", reply["error"]["message"]).into()),
        }
    }

    /// What nothing is answered to.
    pub(crate) async fn tell(&mut self, request: Value) -> Result<()> {
        self.ask::<Value>(request).await.map(drop)
    }

    /// What the group has committed, by partition.
    pub(crate) async fn committed(&mut self) -> Result<BTreeMap<u32, u64>> {
        self.ask(json!({ "do": "committed", "group": GROUP, "topic": TOPIC })).await
    }

    /// The group's members.
    pub(crate) async fn members(&mut self) -> Result<Vec<String>> {
        let group: Value = self.ask(json!({ "do": "group", "group": GROUP })).await?;
        Ok(group["members"].as_object().map(|members| members.keys().cloned().collect()).unwrap_or_default())
    }
}
