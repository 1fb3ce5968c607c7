//! The binary.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;

use cursus_net::{Network, Tcp};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::client::{Client, soon};
use crate::control::Control;

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

async fn line(child: &mut Child) -> Value {
    let mut line = String::new();
    soon(BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line)).await.unwrap();
    serde_json::from_str(&line).unwrap()
}

async fn ready(child: &mut Child) -> Vec<String> {
    let line = line(child).await;
    line["brokers"].as_array().unwrap().iter().map(|broker| broker.as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn its_control_port_does_what_the_library_does_and_can_end_it() {
    let mut child = embedded(&["--brokers", "2", "--topic", "t:2", "--advertise", "1=broker.example:9001"]);
    let line = line(&mut child).await;
    let address: SocketAddr = line["control"].as_str().unwrap().parse().unwrap();
    assert!(address.ip().is_loopback());
    let mut control = Control::to(&Tcp, address).await;
    assert_eq!(control.ok(json!({"do": "brokers"})).await, line["brokers"]);
    control.ok(json!({"do": "pause_broker", "broker": 1})).await;
    control.ok(json!({"do": "advance", "by_ms": 500})).await;
    assert_eq!(control.ok(json!({"do": "leader", "topic": "t", "partition": 1})).await, 0);
    control.ok(json!({"do": "move_coordinator", "group": "g", "broker": 1})).await;
    let mut client = Client::to(&Tcp, line["brokers"][0].as_str().unwrap().parse().unwrap()).await.unwrap();
    let redirect = "ERROR: NOT_COORDINATOR host=broker.example port=9001";
    assert_eq!(client.ask("GROUP_STATUS group=g").await, redirect);
    assert_eq!(control.ok(json!({"do": "stop"})).await, true);
    assert!(soon(child.wait()).await.unwrap().success());
}

#[tokio::test]
async fn its_control_port_can_be_chosen() {
    // A free port, most likely still when the binary wants it; another one is tried where it isn't.
    for _ in 0..20 {
        let port = {
            let listener = Tcp.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap();
            listener.local_address().unwrap().port()
        };
        let mut child = embedded(&["--brokers", "1", "--control-port", &port.to_string()]);
        let mut said = String::new();
        soon(BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said)).await.unwrap();
        if let Ok(line) = serde_json::from_str::<Value>(&said) {
            assert_eq!(line["control"], format!("127.0.0.1:{port}"));
            return;
        }
        let mut problem = String::new();
        soon(child.stderr.take().unwrap().read_to_string(&mut problem)).await.unwrap();
        assert!(problem.contains(&format!("the control port on 127.0.0.1:{port}: ")), "{problem}");
    }
    panic!("none of twenty ports was free");
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
        (&["--advertise", "localhost:1"], "expected BROKER=HOST:PORT, as 0=localhost:9000"),
        (&["--advertise", "7=localhost:1"], "there is no broker 7 to advertise"),
        (&["--advertise", "0=localhost"], "expected HOST:PORT"),
        (&["--control-port", "0"], "0 is not in 1..=65535"),
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
