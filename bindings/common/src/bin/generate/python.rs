//! The modules of the Python package that name every setting and every statistic. As `ruff format` would have them.

use std::fmt::Write as _;

use cursus_consumer::settings::{Kind, SETTINGS, Setting};
use cursus_consumer::statistics::{PARTITION_STATISTICS, STATISTICS, Statistic};

use crate::{NOTICE, lines};

/// The longest line of the repository's Python files.
const WIDTH: usize = 120;

pub(crate) fn settings() -> String {
    let mut module = format!("\"\"\"A consumer's settings as types. {NOTICE}\"\"\"\n\n");
    module.push_str("from collections.abc import Sequence\nfrom typing import Literal, TypedDict\n");
    let (needed, optional): (Vec<_>, Vec<_>) = SETTINGS.iter().partition(|row| row.default.is_none());
    // `Required` is younger than the oldest Python here, so what must be given is a class of its own.
    module.push_str("\n\nclass _Needed(TypedDict):");
    entries(&mut module, &needed);
    module.push_str("\n\nclass ConsumerSettings(_Needed, total=False):\n");
    module.push_str("    \"\"\"The keyword arguments of `Consumer`, for those who put them together first.\"\"\"\n");
    entries(&mut module, &optional);
    module
}

fn entries(module: &mut String, rows: &[&Setting]) {
    module.push('\n');
    for row in rows {
        let kind = match row.kind {
            Kind::Text => "str".to_owned(),
            Kind::Choice(choices) => {
                let choices: Vec<_> = choices.iter().map(|choice| format!("\"{choice}\"")).collect();
                format!("Literal[{}]", choices.join(", "))
            }
            Kind::List => "Sequence[str] | str".to_owned(),
            Kind::Integer { .. } => "int".to_owned(),
            Kind::Boolean => "bool".to_owned(),
        };
        let _ = writeln!(module, "    {}: {kind}", row.name);
        let default = match (row.default, row.kind) {
            (None, _) => String::new(),
            (Some(number), Kind::Integer { min, max }) => format!("{number} by default; from {min} to {max}."),
            (Some(truth), Kind::Boolean) => format!("{} by default.", if truth == "true" { "True" } else { "False" }),
            (Some(""), _) => "Not given by default.".to_owned(),
            (Some(text), _) => format!("`{text}` by default."),
        };
        docstring(module, row.doc, &default);
    }
}

pub(crate) fn statistics() -> String {
    let mut module = format!("\"\"\"What `Consumer.stats` returns. {NOTICE}\"\"\"\n\n");
    module.push_str("from dataclasses import dataclass\n\n");
    module.push_str("from cursus_consumer._native import TopicPartition\nfrom cursus_consumer._state import State\n");
    class(&mut module, "PartitionStatistics", "What a consumer is doing with one partition.", PARTITION_STATISTICS);
    class(&mut module, "Statistics", "What a consumer is doing, at one moment.", STATISTICS);
    module
}

fn class(module: &mut String, name: &str, about: &str, rows: &[Statistic]) {
    let _ = writeln!(module, "\n\n@dataclass(frozen=True, kw_only=True)\nclass {name}:\n    \"\"\"{about}\"\"\"\n");
    for row in rows {
        let kind = match row.kind.trim_end_matches('?') {
            "text" => "str",
            "integer" => "int",
            "number" => "float",
            "state" => "State",
            "texts" => "list[str]",
            "partitions" => "dict[TopicPartition, PartitionStatistics]",
            other => unreachable!("{} is of a kind that Python has no type for: {other}", row.name),
        };
        let absent = if row.kind.ends_with('?') { " | None" } else { "" };
        let _ = writeln!(module, "    {}: {kind}{absent}", row.name);
        docstring(module, row.doc, "");
    }
}

/// The documentation behind an attribute.
fn docstring(module: &mut String, doc: &str, more: &str) {
    let text = lines(doc).collect::<Vec<_>>().join(" ");
    let one = format!("    \"\"\"{text}{}{more}\"\"\"", if more.is_empty() { "" } else { " " });
    if one.len() <= WIDTH {
        let _ = writeln!(module, "{one}");
        return;
    }
    // The lines of the tables are broken where Rust's end, which isn't where they end here.
    let mut line = "    \"\"\"".to_owned();
    let mut begun = false;
    for word in text.split(' ') {
        if begun && line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(module, "{line}");
            line = "    ".to_owned();
            begun = false;
        }
        if begun {
            line.push(' ');
        }
        line.push_str(word);
        begun = true;
    }
    let _ = writeln!(module, "{line}");
    if !more.is_empty() {
        let _ = writeln!(module, "    {more}");
    }
    module.push_str("    \"\"\"\n");
}
