//! What is printed at the end: one table, and what is wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::book::Book;
use crate::faults::KINDS;
use crate::flatness::{Bound, Growth, Series};

/// What each member's process is measured by, and how much of it may grow between the second fifth and the last.
pub(crate) const MEASURES: [(&str, Bound); 5] = [
    ("memory KiB", Bound { percent: 10, plus: 2048 }),
    ("heap KiB", Bound { percent: 10, plus: 256 }),
    ("sockets", Bound { percent: 0, plus: 3 }),
    ("tasks", Bound { percent: 0, plus: 5 }),
    ("threads", Bound { percent: 0, plus: 2 }),
];

/// One of the group's places over the whole time.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// The style and the mode of its members.
    pub(crate) name: String,
    /// How many processes had it.
    pub(crate) processes: u64,
    /// In the order of [`MEASURES`].
    pub(crate) series: [Series; MEASURES.len()],
}

/// Prints the table, and gives what has grown too much, or isn't known.
pub(crate) fn print(book: &Book, faults: &BTreeMap<&str, u64>, places: &[Place], lasted: Duration) -> Vec<String> {
    let missing: u64 = book.missing().values().flatten().map(|range| range.end - range.start).sum();
    let duplicates: u64 = book.duplicates().values().sum();
    let minutes = lasted.as_secs_f64() / 60.0;
    println!();
    println!("duration      {minutes:.1} min");
    println!("records       {}", book.records());
    println!("losses        {missing}");
    println!("duplicates    {duplicates}: {}", listed(book.duplicates()));
    println!("faults        {}: {}", faults.values().sum::<u64>(), listed(faults));
    let never: Vec<_> = KINDS.into_iter().filter(|kind| !faults.contains_key(kind)).collect();
    if !never.is_empty() {
        println!("              none of: {}", never.join(", "));
    }
    for (partition, silence) in book.silences(lasted).into_iter().enumerate() {
        let (seconds, until) = (silence.lasted.as_secs_f64(), silence.until.as_secs_f64());
        println!("partition {partition}   longest silence {seconds:.1} s, until {until:.0} s");
    }
    println!();
    println!("least/median/most in the second fifth and in the last; the median may grow by the bound");
    println!(
        "{:<18} {:>9}  {:<12} {:>20} {:>20}  {:<12}",
        "member", "processes", "", "second fifth", "last fifth", "bound"
    );
    let mut grown = Vec::new();
    for place in places {
        for ((measure, bound), series) in MEASURES.into_iter().zip(&place.series) {
            let Place { name, processes, .. } = place;
            let Some(growth) = Growth::of(series, lasted.as_secs_f64()) else {
                println!("{name:<18} {processes:>9}  {measure:<12} too few figures");
                grown.push(format!("{measure} of {name} can't be judged: there are too few figures"));
                continue;
            };
            let Growth { early, late } = growth;
            let verdict = if growth.is_within(bound) { "flat" } else { "GROWS" };
            let (early, late, bound) = (early.to_string(), late.to_string(), bound.to_string());
            println!("{name:<18} {processes:>9}  {measure:<12} {early:>20} {late:>20}  {bound:<12} {verdict}");
            if verdict == "GROWS" {
                grown.push(format!("{measure} of {name} grew from {early} to {late}, over the bound of {bound}"));
            }
        }
    }
    println!();
    grown
}

fn listed(counts: &BTreeMap<&str, u64>) -> String {
    let all: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}
