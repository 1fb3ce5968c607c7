//! The binary.

use std::process::Stdio;

use cursus_net::Tcp;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::client::{Client, soon};

fn embedded(arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_cursus-embedded"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

async fn ready(child: &mut Child) -> Vec<String> {
    let mut line = String::new();
    soon(BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line)).await.unwrap();
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    line["brokers"].as_array().unwrap().iter().map(|broker| broker.as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn it_prints_its_brokers_serves_and_ends_with_its_input() {
    let mut child =
        embedded(&["--brokers", "3", "--topic", "orders:6", "--topic", "b:1", "--produce", "orders:13:100"]);
    let brokers = ready(&mut child).await;
    assert_eq!(brokers.len(), 3);
    let mut client = Client::to(&Tcp, brokers[0].parse().unwrap()).await.unwrap();
    assert_eq!(client.ask("LIST").await, "OK count=3 topics=__consumer_offsets,b,orders");
    let batch = client.read("CONSUME topic=orders partition=0 offset=0 member=m").await;
    assert_eq!((batch.len(), batch.record(2).key, batch.record(0).value.len()), (3, &b"12"[..], 100));
    drop(child.stdin.take());
    assert!(soon(child.wait()).await.unwrap().success());
}

#[cfg(unix)]
#[tokio::test]
async fn it_ends_on_sigterm() {
    let mut child = embedded(&["--brokers", "1"]);
    ready(&mut child).await;
    let id = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().await.unwrap().success());
    assert!(soon(child.wait()).await.unwrap().success());
}

#[tokio::test]
async fn wrong_arguments_are_explained() {
    for (arguments, explanation) in [
        (&["--topic", "orders"][..], "expected NAME:PARTITIONS, as orders:6"),
        (&["--topic", "orders:x"], "\"x\" is not a number of partitions"),
        (&["--topic", "orders:0"], "can't have 0 partitions"),
        (&["--topic", "a b:1"], "can't be named \"a b\""),
        (&["--produce", "orders:10"], "expected NAME:COUNT:BYTES, as orders:100000:100"),
        (&["--produce", "nope:10:10"], "no topic \"nope\"; there are: none"),
        (&["--brokers", "0"], "there can be 1 to 100 brokers, not 0"),
        (&["--bogus"], "unexpected argument '--bogus'"),
        (&["--host", "not-an-address"], "invalid value"),
    ] {
        let mut child = embedded(arguments);
        let mut said = String::new();
        soon(child.stderr.take().unwrap().read_to_string(&mut said)).await.unwrap();
        assert!(said.contains(explanation), "{arguments:?}: {said}");
        assert_eq!(soon(child.wait()).await.unwrap().code(), Some(2), "{arguments:?}");
    }
}
