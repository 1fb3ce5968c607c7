//! What goes over the wire, as the oracle reads it: commits at the moment in which they are sent, and the answers by which
//! a member learns that its assignment is over.

use std::collections::{BTreeMap, VecDeque};

use bytes::BytesMut;
use cursus_consumer::State;
use cursus_wire::command::Command;
use cursus_wire::{BrokerError, Meaning, frame};
use tokio::time::Instant;

use super::{Facts, Oracle};
use crate::network::Tap;
use crate::plan::Style;

/// A request whose answer tells a member whether its assignment goes on.
type Asked = Option<(String, u64)>;

#[derive(Default)]
struct Wire {
    written: BytesMut,
    read: BytesMut,
    asked: VecDeque<Asked>,
    /// It carries a stream: what comes answers nothing.
    streams: bool,
}

#[derive(Default)]
pub(super) struct Wires {
    wires: BTreeMap<u64, Wire>,
    /// When a member was told first that the group is past this generation.
    news: BTreeMap<(String, u64), Instant>,
}

impl Wires {
    /// Whether a member has been told, before this moment, that an assignment is over.
    pub(super) fn has_heard(&self, member: &str, generation: u64) -> bool {
        let later = (member.to_owned(), generation)..=(member.to_owned(), u64::MAX);
        self.news.range(later).any(|(_, at)| *at < Instant::now())
    }

    fn hear(&mut self, (member, generation): (String, u64), answer: &[u8]) {
        let Ok(text) = std::str::from_utf8(answer) else { return };
        let Some(Ok(error)) = BrokerError::parse(text) else { return };
        let over = match error.meaning() {
            Meaning::GenerationMismatch { current } => current > generation,
            Meaning::MemberNotFound => true,
            _ => false,
        };
        if over {
            self.news.entry((member, generation)).or_insert_with(Instant::now);
        }
    }
}

impl Tap for Oracle {
    fn written(&self, host: usize, connection: u64, bytes: &[u8]) {
        self.look(|facts| {
            let wire = facts.wires.wires.entry(connection).or_default();
            wire.written.extend_from_slice(bytes);
            let mut requests = Vec::new();
            while let Ok(Some(body)) = frame::take(&mut wire.written) {
                requests.push(body);
            }
            for body in requests {
                let Ok((_, text)) = frame::open_envelope(&body) else { continue };
                facts.note(format_args!("host {host} on {connection} asks {text}"));
                let asked = facts.request(host, text);
                let wire = facts.wires.wires.entry(connection).or_default();
                wire.streams |= text.starts_with("STREAM ");
                wire.asked.push_back(asked);
            }
        });
    }

    fn read(&self, host: usize, connection: u64, bytes: &[u8]) {
        let mut facts = self.facts();
        let facts = &mut *facts;
        let wire = facts.wires.wires.entry(connection).or_default();
        wire.read.extend_from_slice(bytes);
        let mut answers = Vec::new();
        while let Ok(Some(body)) = frame::take(&mut wire.read) {
            let asked = if wire.streams { None } else { wire.asked.pop_front().flatten() };
            answers.push((asked, body));
        }
        for (asked, body) in answers {
            if let Some(watched) = facts.members.get_mut(&host) {
                watched.longest_frame = watched.longest_frame.max(body.len() as u64 + 4);
            }
            let text = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
            facts.note(format_args!("host {host} on {connection} hears {text:?}"));
            if let Some(asked) = asked {
                facts.wires.hear(asked, &body);
            }
        }
    }
}

impl Facts {
    /// A request as it is sent.
    fn request(&mut self, host: usize, text: &str) -> Asked {
        let (member, generation, commits) = match Command::parse(text).ok()? {
            Command::Heartbeat(request) => return Some((request.member.to_string(), request.generation?)),
            Command::SyncGroup(request) => return Some((request.member.to_string(), request.generation?)),
            Command::BatchCommit(request) => (request.member, request.generation?, request.commits.0),
            Command::CommitOffset(request) => {
                (request.member, request.generation?, vec![(request.partition, request.offset)])
            }
            _ => return None,
        };
        let member = member.to_string();
        self.commit_sent(host, &member, generation, &commits);
        Some((member, generation))
    }

    fn commit_sent(&mut self, host: usize, member: &str, generation: u64, commits: &[(u32, u64)]) {
        self.check("no commit is sent under an assignment that has ended");
        self.check("no commit is sent for what nobody processed");
        if self.wires.has_heard(member, generation) {
            self.fail(format_args!(
                "host {host} commits {commits:?} as {member} at {generation}, which it knows is over"
            ));
        }
        let newer = self.members.get(&host).and_then(|watched| watched.consumer.upgrade()?.group_metadata().ok());
        if let Some(newer) = newer.filter(|newer| newer.member == member && newer.generation > generation) {
            self.fail(format_args!("host {host} commits {commits:?} as {member} at {generation}, and is {newer:?}"));
        }
        // The engine's own two commits are under an assignment that isn't installed yet: what was proven before it, and a
        // start at the latest record. Where neither can be, the assignment must be in place.
        let watched = self.members.get(&host).filter(|watched| watched.style == Style::Commit && !self.latest);
        if let Some(consumer) = watched.and_then(|watched| watched.consumer.upgrade())
            && matches!(consumer.state(), State::Running | State::Rebalancing)
        {
            let now = consumer.group_metadata();
            if !now.as_ref().is_ok_and(|now| now.member == member && now.generation == generation) {
                self.fail(format_args!("host {host} commits {commits:?} as {member} at {generation}, and is {now:?}"));
            }
        }
        for (partition, offset) in commits {
            let latest = self.latest;
            let Some(log) = self.logs.get_mut(*partition as usize) else { continue };
            if let Err(why) = log.may_commit(*offset, latest) {
                self.fail(format_args!("host {host} commits {partition}:{offset}, and the partition {why}"));
            }
        }
    }
}
