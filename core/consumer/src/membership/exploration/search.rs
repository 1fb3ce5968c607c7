//! The search: every world that can be reached, nearest first, so that the path to a fault is the shortest one.
//!
//! Worlds are told apart by a hash of 64 bits and forgotten once their steps are taken; what is kept is who came from whom by
//! which step, and between which worlds the steps lead in which nothing goes wrong. On that graph "it finds home" is asked
//! backwards from home, which is exact where worlds go round in circles, as they do with heartbeats and pauses.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::properties::{Ledger, Property};
use super::steps::{Kind, Step};
use super::world::World;

pub(super) struct Explored {
    pub(super) states: usize,
    pub(super) transitions: u64,
    pub(super) depth: usize,
    pub(super) ledger: Ledger,
}

struct Search {
    first: World,
    /// By which step of which world each was found. The first was by none.
    found: Vec<Option<(u32, Step)>>,
    /// From where to where nothing goes wrong, and whether it is more than a heartbeat.
    kind: Vec<(u32, u32, bool)>,
    home: Vec<u32>,
}

/// Explores all of a world, or gives the shortest way to where a property is broken.
pub(super) fn explore(first: World, most_states: usize) -> Result<Explored, String> {
    let mut search = Search { first: first.clone(), found: vec![None], kind: Vec::new(), home: Vec::new() };
    let mut ledger = Ledger::new();
    let mut seen = BTreeMap::from([(fingerprint(&first), 0u32)]);
    let mut open = VecDeque::from([(0u32, 0usize, first)]);
    let (mut transitions, mut depth) = (0, 0);
    while let Some((at, distance, world)) = open.pop_front() {
        depth = depth.max(distance);
        world.check(&mut ledger);
        if let Some(broken) = ledger.broken {
            return Err(search.tell(broken, at, None));
        }
        if world.is_home() {
            search.home.push(at);
        }
        for step in world.steps() {
            transitions += 1;
            let next = world.after(step, &mut ledger);
            if let Some(broken) = ledger.broken {
                return Err(search.tell(broken, at, Some(step)));
            }
            let next_at = *seen.entry(fingerprint(&next)).or_insert_with(|| {
                let next_at = u32::try_from(search.found.len()).expect("fewer worlds than that");
                search.found.push(Some((at, step)));
                open.push_back((next_at, distance + 1, next));
                next_at
            });
            if world.is_kind(step) {
                search.kind.push((at, next_at, !is_heartbeat(step)));
            }
        }
        if search.found.len() > most_states {
            let tail = search.path(at);
            return Err(format!(
                "more than {most_states} worlds: either it is too large, or it grows for ever as in\n{tail}"
            ));
        }
    }
    let states = search.found.len();
    drop(seen);
    search.check_home(&mut ledger)?;
    search.check_circles(&mut ledger)?;
    Ok(Explored { states, transitions, depth, ledger })
}

fn fingerprint(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

fn is_heartbeat(step: Step) -> bool {
    matches!(
        step,
        Step::HeartbeatDue(_) | Step::CarryOutSignal(_, Kind::Heartbeat) | Step::AnswerSignal(_, Kind::Heartbeat)
    )
}

impl Search {
    /// From every world kind steps lead home.
    fn check_home(&self, ledger: &mut Ledger) -> Result<(), String> {
        let backwards = Edges::new(self.found.len(), self.kind.iter().map(|(from, to, _)| (*to, *from)));
        let mut reached = vec![false; self.found.len()];
        let mut open = self.home.clone();
        while let Some(at) = open.pop() {
            if !std::mem::replace(&mut reached[at as usize], true) {
                open.extend(backwards.from(at));
            }
        }
        for (at, reached) in (0..).zip(reached) {
            ledger.check(Property::FindsHome, reached);
            if !reached {
                return Err(self.tell(Property::FindsHome, at, None));
            }
        }
        Ok(())
    }

    /// Kind steps, without the heartbeats that go on for ever, come to an end whatever their order: what is left when worlds
    /// that nothing leads to are taken away again and again is a circle, or behind one.
    fn check_circles(&self, ledger: &mut Ledger) -> Result<(), String> {
        let progress = || self.kind.iter().filter(|(_, _, progress)| *progress);
        let onwards = Edges::new(self.found.len(), progress().map(|(from, to, _)| (*from, *to)));
        let mut before = vec![0u32; self.found.len()];
        progress().for_each(|(_, to, _)| before[*to as usize] += 1);
        let mut open: Vec<u32> = (0..).zip(&before).filter(|(_, before)| **before == 0).map(|(at, _)| at).collect();
        while let Some(at) = open.pop() {
            for next in onwards.from(at) {
                before[next as usize] -= 1;
                if before[next as usize] == 0 {
                    open.push(next);
                }
            }
        }
        for (at, before) in (0..).zip(before) {
            ledger.check(Property::NoCircles, before == 0);
            if before > 0 {
                return Err(self.tell(Property::NoCircles, at, None));
            }
        }
        Ok(())
    }

    fn tell(&self, property: Property, at: u32, step: Option<Step>) -> String {
        let mut path = self.path(at);
        if let Some(step) = step {
            let world = self.walk(at).1;
            let next = world.after(step, &mut Ledger::new());
            path += &format!("  {}\n      {}\n", world.describe(step), next.summary());
        }
        format!("{property:?} is broken: {} The shortest way there:\n{path}", property.says())
    }

    fn path(&self, at: u32) -> String {
        let (lines, world) = self.walk(at);
        format!("{lines}  in full: {world:?}\n")
    }

    fn walk(&self, at: u32) -> (String, World) {
        let mut steps = Vec::new();
        let mut from = at;
        while let Some((before, step)) = self.found[from as usize] {
            steps.push(step);
            from = before;
        }
        let (mut lines, mut world) = (String::new(), self.first.clone());
        for step in steps.into_iter().rev() {
            let next = world.after(step, &mut Ledger::new());
            lines += &format!("  {}\n      {}\n", world.describe(step), next.summary());
            world = next;
        }
        (lines, world)
    }
}

/// Edges of a graph in the order of where they begin.
struct Edges {
    begins: Vec<u32>,
    ends: Vec<u32>,
}

impl Edges {
    fn new(nodes: usize, edges: impl Iterator<Item = (u32, u32)> + Clone) -> Self {
        let mut begins = vec![0u32; nodes + 1];
        edges.clone().for_each(|(from, _)| begins[from as usize + 1] += 1);
        for at in 0..nodes {
            begins[at + 1] += begins[at];
        }
        let mut ends = vec![0; begins[nodes] as usize];
        let mut next = begins.clone();
        for (from, to) in edges {
            ends[next[from as usize] as usize] = to;
            next[from as usize] += 1;
        }
        Self { begins, ends }
    }

    fn from(&self, at: u32) -> impl Iterator<Item = u32> + '_ {
        self.ends[self.begins[at as usize] as usize..self.begins[at as usize + 1] as usize].iter().copied()
    }
}
