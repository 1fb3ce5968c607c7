//! Every order of events in small worlds: our members side by side, the coordinator, and a network that loses, delays and
//! refuses. What must hold is in [`properties`]; a property that doesn't is told with the shortest way to where it breaks.

mod coordinator;
mod member;
mod properties;
mod sameness;
mod search;
mod steps;
mod world;

use properties::{Ledger, Property};
use search::explore;
use steps::Chances;
use world::World;

/// Explores worlds and says what was found. Each property must have had its occasion in one of them.
fn explore_all(worlds: &[(&str, World)], most_states: usize) {
    let mut all = Ledger::new();
    for (name, world) in worlds {
        let began = tokio::time::Instant::now();
        let explored = explore(world.clone(), most_states).unwrap_or_else(|why| panic!("{name}: {why}"));
        let (states, transitions, depth) = (explored.states, explored.transitions, explored.depth);
        println!(
            "{name}: {states} states, {transitions} transitions, up to {depth} events deep, {:.1?}",
            began.elapsed()
        );
        all.add(&explored.ledger);
    }
    for property in Property::ALL {
        println!("  held {:>11} times: {}", all.held(*property), property.says());
        assert!(all.held(*property) > 0, "{property:?} was never asked");
    }
}

/// Some members, of which one may be closed and one may commit once.
fn group(members: usize, mishaps: u8, slow: bool) -> World {
    World::group(members, Chances { mishaps, commits: 1, closes: 1, assignments: 0, slow })
}

/// Some members that go on reading.
fn staying(members: usize, mishaps: u8, slow: bool) -> World {
    World::group(members, Chances { mishaps, commits: 0, closes: 0, assignments: 0, slow })
}

fn alone(mishaps: u8, assignments: u8) -> World {
    World::alone(Chances { mishaps, commits: 0, closes: 1, assignments, slow: true })
}

#[test]
fn in_every_order_of_events_in_small_worlds_each_property_holds() {
    explore_all(
        &[
            ("one member, one mishap", group(1, 1, true)),
            ("one member, two mishaps, nothing slow", group(1, 2, false)),
            ("two members, one mishap, nothing slow", group(2, 1, false)),
            ("three members that stay, nothing slow", staying(3, 0, false)),
            ("one without a group, two mishaps", alone(2, 2)),
        ],
        300_000,
    );
}

#[test]
#[ignore = "takes minutes: make explore"]
fn in_larger_worlds_too() {
    explore_all(
        &[
            ("one member, three mishaps", group(1, 3, true)),
            ("one member, four mishaps, nothing slow", group(1, 4, false)),
            ("two members", group(2, 0, true)),
            ("two members that stay, one mishap", staying(2, 1, true)),
            ("two members, two mishaps, nothing slow", group(2, 2, false)),
            ("three members, nothing slow", group(3, 0, false)),
            ("three members that stay, one mishap, nothing slow", staying(3, 1, false)),
            ("one without a group, four mishaps", alone(4, 3)),
        ],
        20_000_000,
    );
}
