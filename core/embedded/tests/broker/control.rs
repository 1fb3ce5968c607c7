//! The control port.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use cursus_embedded::control_port::{Failure, Session};
use cursus_embedded::{Cluster, ControlError, Options, control_port};
use cursus_net::{Network, Socket, Tcp};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufStream};
use tokio::task::JoinHandle;

use crate::client::{Client, cluster, soon, until};

pub(crate) struct Control {
    stream: BufStream<Box<dyn Socket>>,
}

impl Control {
    pub(crate) async fn to(network: &dyn Network, address: SocketAddr) -> Self {
        Self { stream: BufStream::new(network.connect(address).await.unwrap()) }
    }

    async fn send(&mut self, line: &[u8]) {
        self.stream.write_all(line).await.unwrap();
        self.stream.write_all(b"\n").await.unwrap();
        self.stream.flush().await.unwrap();
    }

    /// The next reply; nothing where the connection was closed.
    async fn receive(&mut self) -> Option<Value> {
        let mut line = String::new();
        match soon(self.stream.read_line(&mut line)).await {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap()),
        }
    }

    async fn tell(&mut self, request: &Value) {
        self.send(request.to_string().as_bytes()).await;
    }

    pub(crate) async fn reply(&mut self, request: Value) -> Value {
        self.tell(&request).await;
        self.receive().await.expect("a reply")
    }

    pub(crate) async fn ok(&mut self, request: Value) -> Value {
        let mut reply = self.reply(request.clone()).await;
        assert!(reply.get("ok").is_some(), "{request}: {reply}");
        reply["ok"].take()
    }

    /// The kind and the message of the error.
    async fn error(&mut self, request: Value) -> (String, String) {
        let reply = self.reply(request).await;
        let text = |field: &str| reply["error"][field].as_str().unwrap_or_else(|| panic!("{reply}")).to_owned();
        (text("kind"), text("message"))
    }
}

/// A cluster on pipes with its control port.
struct Served {
    cluster: Cluster,
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Served {
    async fn new(brokers: usize) -> Self {
        let cluster = cluster(brokers).await;
        let listener = cluster.options().network.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap();
        let address = listener.local_address().unwrap();
        let task = tokio::spawn(control_port::serve(cluster.clone(), listener));
        Self { cluster, address, task }
    }

    fn connect(&self) -> impl Future<Output = Control> {
        Control::to(&*self.cluster.options().network, self.address)
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_is_controlled_by_lines_of_json() {
    let served = Served::new(2).await;
    let mut control = served.connect().await;
    let made = control.reply(json!({"id": 1, "do": "create_topic", "name": "t", "partitions": 2})).await;
    assert_eq!(made, json!({"id": 1, "ok": true}));
    let killed = control.reply(json!({"id": {"any": ["thing"]}, "do": "kill_broker", "broker": 0})).await;
    assert_eq!(killed, json!({"id": {"any": ["thing"]}, "ok": true}));
    assert!(!served.cluster.is_running(0));
    let again = control.reply(json!({"do": "kill_broker", "broker": 0})).await;
    assert_eq!(again, json!({"id": null, "error": {"kind": "broker_state", "message": "broker 0 is down already"}}));
    assert_eq!(control.ok(json!({"do": "restart_broker", "broker": 0})).await, true);
    assert_eq!(control.ok(json!({"do": "brokers"})).await, json!(served.cluster.brokers()));
    assert_eq!(control.ok(json!({"do": "options"})).await["session_timeout_ms"], 10_000);
    assert_eq!(control.ok(json!({"do": "group", "group": "g"})).await, Value::Null);
    let mut client = Client::connect(&served.cluster, served.cluster.coordinator("g")).await;
    let member = client.join("g", "m").await;
    let group = control.ok(json!({"do": "group", "group": "g"})).await;
    assert_eq!(
        group,
        json!({"topic": "t", "generation": 1, "state": "Stable", "members": {(member.as_str()): [0, 1]}})
    );
    let requests = control.ok(json!({"do": "requests"})).await;
    assert_eq!(requests[0]["command"], "JOIN_GROUP");
    assert_eq!(requests[0]["broker"], served.cluster.coordinator("g"));
}

#[tokio::test(start_paused = true)]
async fn records_are_given_as_text_or_base64() {
    let served = Served::new(1).await;
    served.cluster.create_topic("t", 1).unwrap();
    let mut control = served.connect().await;
    let records = json!([
        {"value": "plain"},
        {"key": "k", "value_base64": "/w=="},
        {"key_base64": "AAE=", "value": ""},
    ]);
    assert_eq!(control.ok(json!({"do": "produce", "topic": "t", "partition": 0, "records": records})).await, 3);
    let mut client = Client::connect(&served.cluster, 0).await;
    let batch = client.read("CONSUME topic=t partition=0 offset=0 member=m").await;
    let read: Vec<_> = batch.iter().map(|record| (record.key, record.value)).collect();
    assert_eq!(read, [(&b""[..], &b"plain"[..]), (b"k", b"\xff"), (b"\0\x01", b"")]);
    for (record, problem) in [
        (json!({"key": "k"}), "record 0 has no value"),
        (json!({"value": 1}), "record 0 has \"value\", which is no text"),
        (json!({"value": "a", "value_base64": "YQ=="}), "record 0 has both \"value\" and \"value_base64\""),
        (json!({"value_base64": "?"}), "record 0 has \"value_base64\", which is no base64"),
        (json!({"value": "a", "offset": 1}), "record 0 has an unknown field \"offset\""),
        (json!("a"), "record 0 is no object"),
    ] {
        let (kind, said) =
            control.error(json!({"do": "produce", "topic": "t", "partition": 0, "records": [record]})).await;
        assert!(kind == "bad_argument" && said.starts_with(problem), "{said}");
    }
    assert_eq!(served.cluster.end_offsets("t")[&0], 3);
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_with_a_request_is_told_with_what_is_right() {
    let served = Served::new(1).await;
    let mut control = served.connect().await;
    let (kind, said) = control.error(json!({"do": "kill_brokr", "broker": 0})).await;
    assert_eq!(kind, "unknown_command");
    assert!(said.starts_with("no command \"kill_brokr\"; there are: commands, "), "{said}");
    assert!(said.contains(", kill_broker, "), "{said}");
    let takes = "the arguments of kill_broker are: broker (a whole number from 0 to 4294967295)";
    for (request, problem) in [
        (json!({"do": "kill_broker"}), "\"broker\" is missing"),
        (json!({"do": "kill_broker", "broker": null}), "\"broker\" is missing"),
        (json!({"do": "kill_broker", "brokr": 0}), "unknown argument \"brokr\""),
        (
            json!({"do": "kill_broker", "broker": "x"}),
            "\"broker\" must be a whole number from 0 to 4294967295, not \"x\"",
        ),
        (json!({"do": "kill_broker", "broker": -1}), "\"broker\" must be a whole number from 0 to 4294967295, not -1"),
    ] {
        assert_eq!(control.error(request).await, ("bad_argument".to_owned(), format!("{problem}; {takes}")));
    }
    let (_, said) = control.error(json!({"do": "stop", "now": true})).await;
    assert_eq!(said, "unknown argument \"now\"; stop has no arguments");
    let (_, said) = control.error(json!({"do": "delay"})).await;
    assert!(said.ends_with("delay_ms (a whole number of milliseconds), broker (a whole number from 0 to 4294967295, all brokers without it)"), "{said}");
    assert_eq!(control.error(json!({"do": "connections", "broker": 7})).await.0, "no_broker");
    for line in ["nonsense", "[]", "{\"id\": 1}", "{\"do\": 7}"] {
        control.send(line.as_bytes()).await;
        let reply = control.receive().await.unwrap();
        assert_eq!(reply["error"]["kind"], "bad_request", "{reply}");
        assert!(reply["error"]["message"].as_str().unwrap().contains("expected a line such as"), "{reply}");
    }
    // All of that on one connection, which still works; empty lines are nothing.
    control.send(b"").await;
    assert_eq!(control.reply(json!({"id": "x", "do": "brokers"})).await["id"], "x");
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_too_long_ends_its_connection_and_no_other() {
    let served = Served::new(1).await;
    let (long, mut other) = (served.connect().await, served.connect().await);
    write_too_long_a_line(long).await;
    other.ok(json!({"do": "brokers"})).await;
}

#[tokio::test]
async fn over_tcp_the_reply_to_a_line_that_is_too_long_arrives_too() {
    let cluster = Cluster::start(Options { brokers: 1, ..Options::default() }).await.unwrap();
    let listener = Tcp.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap();
    let address = listener.local_address().unwrap();
    let _task = tokio::spawn(control_port::serve(cluster, listener));
    write_too_long_a_line(Control::to(&Tcp, address).await).await;
}

async fn write_too_long_a_line(mut long: Control) {
    let chunk = vec![b'x'; 1 << 20];
    let mut sent = 0;
    while sent < (25 << 20) && soon(long.stream.write_all(&chunk)).await.is_ok() {
        sent += chunk.len();
    }
    let _ = soon(long.stream.flush()).await;
    assert_eq!(long.receive().await.unwrap()["error"]["kind"], "line_too_long");
    assert_eq!(long.receive().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_a_number_and_is_released_with_its_connection() {
    let served = Served::new(1).await;
    let mut control = served.connect().await;
    let hold = control.ok(json!({"do": "hold", "command": "list"})).await;
    assert_eq!(control.ok(json!({"do": "is_held", "hold": hold})).await, false);
    let mut client = Client::connect(&served.cluster, 0).await;
    client.tell("LIST").await;
    assert_eq!(control.ok(json!({"do": "wait_held", "hold": hold})).await, true);
    assert_eq!(control.ok(json!({"do": "is_held", "hold": hold})).await, true);
    let mut stranger = served.connect().await;
    let (kind, said) = stranger.error(json!({"do": "release", "hold": hold})).await;
    assert_eq!((kind.as_str(), said.as_str()), ("no_hold", "no hold 1 of this connection; there are: none"));
    control.ok(json!({"do": "release", "hold": hold})).await;
    assert!(client.receive_text().await.starts_with("OK"));
    assert_eq!(control.error(json!({"do": "release", "hold": hold})).await.0, "no_hold");
    assert_eq!(control.error(json!({"do": "hold", "command": "NOPE"})).await.0, "no_command");
    let hold = control.ok(json!({"do": "hold", "command": "LIST"})).await;
    client.tell("LIST").await;
    control.ok(json!({"do": "wait_held", "hold": hold})).await;
    // It goes away while it waits for something else.
    control.tell(&json!({"do": "wait_for_members", "group": "g", "count": 1, "timeout_ms": 4_000_000_000_u32})).await;
    drop(control);
    assert!(client.receive_text().await.starts_with("OK"));
}

#[tokio::test(start_paused = true)]
async fn a_session_in_the_process_answers_others_while_one_waits() {
    let cluster = cluster(1).await;
    let session = Session::new(cluster.clone());
    let ask =
        |command: &'static str, arguments: Value| session.call(command, serde_json::from_value(arguments).unwrap());
    let hold = ask("hold", json!({"command": "LIST"})).await.unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    let others = async {
        client.tell("LIST").await;
        until(&cluster, "the request", |cluster| !cluster.requests().is_empty()).await;
        ask("release", json!({"hold": hold})).await.unwrap();
        assert!(client.receive_text().await.starts_with("OK"), "it goes on, though one still waits for the hold");
        ask("wait_for_members", json!({"group": "g", "count": 1, "timeout_ms": 1})).await.unwrap_err().kind()
    };
    let (held, waited) = tokio::join!(ask("wait_held", json!({"hold": hold})), others);
    assert_eq!((held.unwrap(), waited), (json!(true), "timed_out"));
    let failure = ask("kill_broker", json!({"broker": 1})).await.unwrap_err();
    assert!(matches!(failure, Failure::Refused(ControlError::NoBroker { broker: 1, count: 1 })), "{failure:?}");
    assert_eq!(ask("kill_broker", json!({})).await.unwrap_err().kind(), "bad_argument");
}

#[tokio::test(start_paused = true)]
async fn waits_end_with_what_they_wait_for_or_in_time() {
    let served = Served::new(2).await;
    let cluster = &served.cluster;
    cluster.create_topic("t", 2).unwrap();
    let mut control = served.connect().await;
    let (kind, said) =
        control.error(json!({"do": "wait_for_members", "group": "g", "count": 1, "timeout_ms": 50})).await;
    assert_eq!(kind, "timed_out");
    assert!(said.starts_with("wait_for_members waited for 50 ms in vain; there is Cluster"), "{said}");
    let wait = |what: Value| async {
        let mut control = served.connect().await;
        control.ok(what).await
    };
    let mut client = Client::connect(cluster, cluster.coordinator("g")).await;
    let member = client.join("g", "m").await;
    let commit = format!("COMMIT_OFFSET topic=t partition=1 group=g member={member} generation=1 offset=5");
    let changes = async {
        // The clock is paused: it goes on once nobody has anything to do, which is when all of them wait.
        tokio::time::sleep(Duration::from_millis(1)).await;
        client.ask(&commit).await;
        cluster.produce("t", 0, [("k", "v")]).unwrap();
        cluster.move_leader("t", 0, 1).unwrap();
        client.join("g", "n").await;
    };
    let (.., committed, end, leader, members, generation, requests, connections) = tokio::join!(
        changes,
        wait(json!({"do": "wait_for_committed", "group": "g", "topic": "t", "partition": 1, "offset": 5})),
        wait(json!({"do": "wait_for_end_offset", "topic": "t", "partition": 0, "offset": 1})),
        wait(json!({"do": "wait_for_leader", "topic": "t", "partition": 0, "broker": 1})),
        wait(json!({"do": "wait_for_members", "group": "g", "count": 2})),
        wait(json!({"do": "wait_for_generation", "group": "g", "generation": 2})),
        wait(json!({"do": "wait_for_requests", "command": "join_group", "count": 2})),
        wait(json!({"do": "wait_for_connections", "broker": cluster.coordinator("g"), "count": 1})),
    );
    for done in [committed, end, leader, members, generation, requests, connections] {
        assert_eq!(done, true);
    }
}

#[tokio::test(start_paused = true)]
async fn stop_is_answered_and_ends_the_port() {
    let served = Served::new(2).await;
    let (mut control, mut waiting) = (served.connect().await, served.connect().await);
    waiting.tell(&json!({"do": "wait_for_members", "group": "g", "count": 1})).await;
    control.ok(json!({"do": "brokers"})).await;
    assert_eq!(control.ok(json!({"do": "stop"})).await, true);
    assert_eq!(waiting.receive().await.unwrap()["error"]["kind"], "stopped");
    assert_eq!(control.receive().await, None);
    soon(served.task).await.unwrap();
    assert!(served.cluster.options().network.connect(served.address).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_port_takes_its_connections_along() {
    let served = Served::new(1).await;
    let mut control = served.connect().await;
    control.ok(json!({"do": "hold", "command": "LIST"})).await;
    served.task.abort();
    assert_eq!(control.receive().await, None);
    let mut client = Client::connect(&served.cluster, 0).await;
    assert!(client.ask("LIST").await.starts_with("OK"), "its holds are gone too");
}

/// A request for each command of the table that is carried out on a cluster of two brokers, in this order.
fn requests() -> Vec<Value> {
    vec![
        json!({"do": "commands"}),
        json!({"do": "options"}),
        json!({"do": "brokers"}),
        json!({"do": "create_topic", "name": "t", "partitions": 2}),
        json!({"do": "produce", "topic": "t", "partition": 0, "records": [{"value": "v"}]}),
        json!({"do": "fill", "topic": "t", "count": 4, "value_size": 10}),
        json!({"do": "append_marker", "topic": "t", "partition": 1}),
        json!({"do": "append_aborted", "topic": "t", "partition": 1, "records": [{"value": "v"}]}),
        json!({"do": "delete_records", "topic": "t", "partition": 0, "earliest": 1}),
        json!({"do": "end_offsets", "topic": "t"}),
        json!({"do": "move_leader", "topic": "t", "partition": 0, "broker": 1}),
        json!({"do": "leader", "topic": "t", "partition": 0}),
        json!({"do": "wait_for_leader", "topic": "t", "partition": 0, "broker": 1}),
        json!({"do": "wait_for_end_offset", "topic": "t", "partition": 0, "offset": 3}),
        json!({"do": "coordinator", "group": "g"}),
        json!({"do": "move_coordinator", "group": "g", "broker": 0}),
        json!({"do": "group", "group": "g"}),
        json!({"do": "committed", "group": "g", "topic": "t"}),
        json!({"do": "wait_for_committed", "group": "g", "topic": "t", "partition": 0, "offset": 0}),
        json!({"do": "wait_for_members", "group": "g", "count": 1}),
        json!({"do": "wait_for_generation", "group": "g", "generation": 1}),
        json!({"do": "wait_for_connections", "broker": 0, "count": 1}),
        json!({"do": "wait_for_requests", "command": "JOIN_GROUP", "count": 1}),
        json!({"do": "requests"}),
        json!({"do": "clear_requests"}),
        json!({"do": "expire_member", "group": "g", "member": "?"}),
        json!({"do": "hold", "command": "LIST"}),
        json!({"do": "is_held", "hold": 1}),
        json!({"do": "wait_held", "hold": 1}),
        json!({"do": "release", "hold": 1}),
        json!({"do": "fail_next", "command": "LIST", "error": "no"}),
        json!({"do": "lose_reply", "command": "LIST"}),
        json!({"do": "corrupt_next", "command": "LIST", "times": 0}),
        json!({"do": "repeat_reply", "command": "LIST", "times": 0}),
        json!({"do": "connections", "broker": 0}),
        json!({"do": "cut_connections"}),
        json!({"do": "close_streams", "reason": "timeout"}),
        json!({"do": "freeze_connections", "broker": 1}),
        json!({"do": "delay", "delay_ms": 0}),
        json!({"do": "advance", "by_ms": 1}),
        json!({"do": "advertise", "broker": 0, "address": "localhost:1"}),
        json!({"do": "swap_addresses", "a": 0, "b": 1}),
        json!({"do": "is_paused", "broker": 0}),
        json!({"do": "pause_broker", "broker": 0}),
        json!({"do": "resume_broker", "broker": 0}),
        json!({"do": "is_running", "broker": 0}),
        json!({"do": "stop_broker", "broker": 0}),
        json!({"do": "restart_broker", "broker": 0}),
        json!({"do": "kill_broker", "broker": 0}),
        json!({"do": "delete_topic", "name": "t"}),
        json!({"do": "stop"}),
    ]
}

#[tokio::test(start_paused = true)]
async fn every_command_of_the_table_is_carried_out_and_refuses_what_it_does_not_take() {
    let served = Served::new(2).await;
    let mut control = served.connect().await;
    let table = control.ok(json!({"do": "commands"})).await;
    let mut names: Vec<&str> = table.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    let requests = requests();
    let mut asked: Vec<&str> = requests.iter().map(|request| request["do"].as_str().unwrap()).collect();
    names.sort_unstable();
    asked.sort_unstable();
    assert_eq!(asked, names, "a command of the table isn't walked here, or one that is walked isn't in the table");
    for command in table.as_array().unwrap() {
        let arguments = command["arguments"].as_array().unwrap();
        for argument in arguments {
            let mut request = requests.iter().find(|request| request["do"] == command["name"]).unwrap().clone();
            let name = argument["name"].as_str().unwrap();
            request[name] = json!({"a": "b"});
            let (kind, said) = control.error(request.clone()).await;
            assert!(kind == "bad_argument" && said.contains(&format!("{name:?} must be ")), "{request}: {said}");
            request.as_object_mut().unwrap().remove(name);
            if argument["optional"] == false {
                let (kind, said) = control.error(request.clone()).await;
                assert!(kind == "bad_argument" && said.contains(&format!("{name:?} is missing")), "{request}: {said}");
            }
        }
    }
    let mut client = None;
    for mut request in requests {
        if request["do"] == "group" {
            // From here on there is a member with a commit, and later a request to hold.
            let mut joined = Client::connect(&served.cluster, 0).await;
            let member = joined.join("g", "m").await;
            joined
                .ask(&format!("COMMIT_OFFSET topic=t partition=0 group=g member={member} generation=1 offset=0"))
                .await;
            client = Some((joined, member));
        }
        match (&mut client, request["do"].as_str().unwrap()) {
            (Some((_, member)), "expire_member") => request["member"] = json!(member),
            (Some((joined, _)), "wait_held") => joined.tell("LIST").await,
            _ => {}
        }
        control.ok(request).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_page_about_it_has_the_whole_table() {
    let served = Served::new(1).await;
    let mut table = String::from("| `do` | Arguments | |\n|---|---|---|\n");
    for command in served.connect().await.ok(json!({"do": "commands"})).await.as_array().unwrap() {
        let arguments = command["arguments"].as_array().unwrap().iter().map(|argument| {
            let name = argument["name"].as_str().unwrap();
            if argument["optional"] == true { format!("[`{name}`]") } else { format!("`{name}`") }
        });
        let arguments = arguments.collect::<Vec<_>>().join(", ");
        let (name, about) = (command["name"].as_str().unwrap(), command["about"].as_str().unwrap());
        table.push_str(&format!("| `{name}` | {arguments} | {about} |\n"));
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/embedded.md");
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.contains(&table), "{} must have this table:\n\n{table}", page.display());
}

#[tokio::test]
async fn it_works_over_tcp() {
    let cluster = Cluster::start(Options { brokers: 1, ..Options::default() }).await.unwrap();
    let listener = Tcp.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap();
    let address = listener.local_address().unwrap();
    let task = tokio::spawn(control_port::serve(cluster.clone(), listener));
    let mut control = Control::to(&Tcp, address).await;
    // Two requests in one write, the second one not ended but by the close.
    control
        .stream
        .write_all(b"{\"do\":\"create_topic\",\"name\":\"t\",\"partitions\":1}\r\n{\"do\":\"brokers\"}")
        .await
        .unwrap();
    control.stream.flush().await.unwrap();
    control.stream.get_mut().shutdown().await.unwrap();
    assert_eq!(control.receive().await.unwrap(), json!({"id": null, "ok": true}));
    assert_eq!(control.receive().await.unwrap(), json!({"id": null, "ok": cluster.brokers()}));
    assert_eq!(control.receive().await, None);
    until(&cluster, "the topic", |cluster| !cluster.end_offsets("t").is_empty()).await;
    cluster.stop().await;
    soon(task).await.unwrap();
}

/// The methods of `impl Cluster` blocks in the crate's sources that control it or ask something of it.
fn methods() -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap() {
        let path = entry.unwrap().path();
        let text = if path.is_file() { std::fs::read_to_string(&path).unwrap() } else { continue };
        for block in text.split("\nimpl Cluster {\n").skip(1) {
            let block = block.split("\n}\n").next().unwrap();
            let names = block.lines().filter_map(|line| {
                let name = line.strip_prefix("    pub ")?;
                name.strip_prefix("async ").unwrap_or(name).strip_prefix("fn ")?.split(['(', '<']).next()
            });
            found.extend(names.map(str::to_owned));
        }
    }
    found
}

#[tokio::test(start_paused = true)]
async fn every_method_of_the_cluster_is_in_the_table() {
    let served = Served::new(1).await;
    let table = served.connect().await.ok(json!({"do": "commands"})).await;
    let names: Vec<&str> = table.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    let methods = methods();
    assert!(methods.len() > 30, "{methods:?} can't be all");
    for method in methods {
        let at_the_port = match method.as_str() {
            // Whoever is connected has one that is started.
            "start" => continue,
            // A closure can't be sent; there is a command for each thing that is commonly waited for.
            "wait_for" => "wait_for_committed",
            other => other,
        };
        assert!(names.contains(&at_the_port), "{method} has no command");
    }
}
