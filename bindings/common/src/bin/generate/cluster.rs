//! The embedded cluster's commands as methods of the packages. In Python as `ruff format` would have them.

use std::fmt::Write as _;

use cursus_embedded::control_port::{Answer, Argument, Command, Kind, TABLE};

use crate::NOTICE;

/// What Python's cluster has in a shape of its own, by hand: records as bytes, holds as objects, classes for groups and
/// requests, `False` and 0 for a broker that there isn't, what ends with `with`. Conditions in Python do all the waiting.
const BY_HAND: &[&str] = &[
    "commands",
    "options",
    "brokers",
    "is_running",
    "is_paused",
    "connections",
    "produce",
    "append_aborted",
    "group",
    "hold",
    "release",
    "is_held",
    "requests",
    "stop",
];

pub(crate) fn python() -> String {
    let mut module = format!("\"\"\"The embedded cluster's commands. {NOTICE}\"\"\"\n\n");
    module.push_str("from cursus_consumer import _native\n\n\n");
    module.push_str("class ClusterCommands(_native.EmbeddedCluster):\n");
    module.push_str("    \"\"\"The commands that the cluster's control port has too.\"\"\"\n\n    __slots__ = ()\n");
    for command in TABLE.iter().filter(|command| !command.waits() && !BY_HAND.contains(&command.name)) {
        method(&mut module, command);
    }
    module
}

fn method(module: &mut String, Command { name, arguments, about, answer, .. }: &Command) {
    let mut signature = vec!["self".to_owned()];
    let mut call = vec![format!("\"{name}\"")];
    for (i, argument) in arguments.iter().enumerate() {
        signature.push(parameter(argument, arguments[i..].iter().all(Argument::is_optional)));
        call.push(format!("{0}={0}", argument.name));
    }
    let (signature, call) = (signature.join(", "), format!("self._call({})", call.join(", ")));
    let (kind, body) = match answer {
        Answer::Nothing => ("None", call),
        Answer::Truth => ("bool", format!("answer: bool = {call}\n        return answer")),
        Answer::Number => ("int", format!("answer: int = {call}\n        return answer")),
        Answer::Offsets => (
            "dict[int, int]",
            format!(
                "answer: dict[str, int] = {call}\n        \
                 return {{int(partition): offset for partition, offset in answer.items()}}"
            ),
        ),
        Answer::Other => unreachable!("{name} answers what Python has no type for: write it by hand"),
    };
    let _ = write!(module, "\n    def {name}({signature}) -> {kind}:\n");
    let _ = write!(module, "        \"\"\"{about}\"\"\"\n        {body}\n");
}

fn parameter(argument: &Argument, may_be_left_out: bool) -> String {
    let name = argument.name;
    let kind = match argument.kind {
        Kind::Number | Kind::Large | Kind::Millis => "int",
        Kind::Text => "str",
        Kind::Records => unreachable!("records are given as bytes: write the method by hand"),
    };
    match argument.default() {
        _ if !may_be_left_out => format!("{name}: {kind}"),
        Some(number) => format!("{name}: {kind} = {number}"),
        None => format!("{name}: {kind} | None = None"),
    }
}
