//! The reference pages.

use std::fmt::Write as _;

use cursus_consumer::error::ERRORS;
use cursus_consumer::settings::{Kind, SETTINGS};
use cursus_consumer::statistics::{PARTITION_STATISTICS, STATISTICS, Statistic};

use crate::{NOTICE, paragraph};

fn page(title: &str, about: &str) -> String {
    format!("<!-- {NOTICE} -->\n# {title}\n\n{about}\n")
}

/// Text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

pub(crate) fn settings() -> String {
    let mut page = page(
        "Settings",
        "Every setting of a consumer, by its name in Rust and Python. A name that isn't here, a value that isn't accepted and \
         a combination that makes no sense are refused when the consumer is made. Numbers and truth values may also be \
         given as text, as they come from an environment: `\"500\"`, `\"true\"`, `\"false\"`.",
    );
    page.push_str("\n| setting | values | default | what it does |\n| --- | --- | --- | --- |\n");
    for row in SETTINGS {
        let values = match row.kind {
            Kind::Text => "text".to_owned(),
            Kind::Choice(choices) => choices.iter().map(|choice| format!("`{choice}`")).collect::<Vec<_>>().join(", "),
            Kind::List => "list of texts, or one text with commas between".to_owned(),
            Kind::Integer { min, max } => format!("{} to {}", grouped(min), grouped(max)),
            Kind::Boolean => "true or false".to_owned(),
        };
        let default = match (row.default, row.kind) {
            (Some(""), _) => "none".to_owned(),
            (None, _) => "must be given".to_owned(),
            (Some(number), Kind::Integer { .. }) => number.parse().map_or(number.to_owned(), grouped),
            (Some(text), _) => format!("`{text}`"),
        };
        let _ = writeln!(page, "| `{}` | {values} | {default} | {} |", row.name, cell(&paragraph(row.doc)));
    }
    page
}

pub(crate) fn errors() -> String {
    let mut page = page(
        "Errors",
        "Every error, by its stable number and code. Numbers are never used again. *Retryable*: the same call may work \
         later. *Fatal*: the consumer is closed by it.",
    );
    page.push_str("\n| number | code | Python | Rust | retryable | fatal | when |\n");
    page.push_str("| --- | --- | --- | --- | --- | --- | --- |\n");
    let yes = |truth| if truth { "yes" } else { "" };
    for row in ERRORS {
        let _ = writeln!(
            page,
            "| {} | `{}` | `{}` | `{:?}` | {} | {} | {} |",
            row.number,
            row.name,
            row.class,
            row.kind,
            yes(row.retryable),
            yes(row.fatal),
            cell(&paragraph(row.doc))
        );
    }
    page
}

pub(crate) fn statistics() -> String {
    let mut page =
        page("Statistics", "What `stats()` tells: a picture of one moment, taken without waiting for anything.");
    page.push_str("\n## Of a consumer\n\n");
    table(&mut page, STATISTICS);
    page.push_str("\n## Of a partition\n\n");
    table(&mut page, PARTITION_STATISTICS);
    page
}

fn table(page: &mut String, rows: &[Statistic]) {
    page.push_str("| statistic | value | what it says |\n| --- | --- | --- |\n");
    for row in rows {
        let value = match row.kind.trim_end_matches('?') {
            "integer" => "whole number",
            "texts" => "list of texts",
            "partitions" => "statistics by partition",
            other => other,
        };
        let absent = if row.kind.ends_with('?') { ", or absent" } else { "" };
        let _ = writeln!(page, "| `{}` | {value}{absent} | {} |", row.name, cell(&paragraph(row.doc)));
    }
}

/// A number with its thousands set apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
