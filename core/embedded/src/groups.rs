//! The group coordinator's state, as a pure machine: what time it is comes in as an argument, texts go out.
//!
//! A group is bound to one topic and the number of partitions it had when the group was made. Every join, leave and
//! expiry moves the generation at once; the others learn of it when they next say something.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use crate::patterns;

/// Why the coordinator refuses: displayed, the text behind `ERROR: `.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    GroupNotFound { group: String },
    MemberNotFound { member: String, group: String },
    OtherTopic { expected: String, actual: String },
    Generation { current: i64, requested: i64, group: String, member: String },
    NotOwner { partition: u32, member: String, group: String, generation: i64 },
    Duplicate { partition: u32, group: String, topic: String },
    Registered { reason: String },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GroupNotFound { group } => write!(f, "group_not_found group={group}"),
            Self::MemberNotFound { member, group } => write!(f, "member_not_found member={member} group={group}"),
            Self::OtherTopic { expected, actual } => {
                write!(f, "topic_not_assigned_to_group expected={expected} actual={actual}")
            }
            Self::Generation { current, requested, group, member } => {
                write!(f, "GEN_MISMATCH current={current} requested={requested} group={group} member={member}")
            }
            Self::NotOwner { partition, member, group, generation } => {
                write!(f, "NOT_OWNER partition={partition} member={member} group={group} generation={generation}")
            }
            Self::Duplicate { partition, group, topic } => {
                write!(f, "duplicate_partition partition={partition} group={group} topic={topic}")
            }
            Self::Registered { reason } => write!(f, "register_group_failed reason=\"{reason}\""),
        }
    }
}

/// A commit below what is committed already. The caller words it: each command does in its own way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Regression {
    pub(crate) partition: u32,
    pub(crate) current: u64,
    pub(crate) attempted: u64,
}

/// A member of a group.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) heard: Instant,
    pub(crate) partitions: Vec<u32>,
}

/// A committed offset and what is still seen instead of it while the cluster lags.
#[derive(Debug, Clone, Default)]
struct Commit {
    offset: u64,
    /// From when on each newer value is seen; empty where nothing lags.
    coming: Vec<(Instant, u64)>,
    /// What is seen until then; nothing where there was no commit before.
    seen: Option<u64>,
}

impl Commit {
    fn set(&mut self, offset: u64, now: Instant, lag: Duration) {
        self.settle(now);
        self.offset = offset;
        if lag.is_zero() && self.coming.is_empty() {
            self.seen = Some(offset);
        } else {
            self.coming.push((now + lag, offset));
        }
    }

    fn settle(&mut self, now: Instant) {
        let due = self.coming.partition_point(|(from, _)| *from <= now);
        if let Some((_, offset)) = self.coming.drain(..due).next_back() {
            self.seen = Some(offset);
        }
    }

    fn seen(&self, now: Instant) -> Option<u64> {
        self.coming.iter().rfind(|(from, _)| *from <= now).map(|(_, offset)| *offset).or(self.seen)
    }
}

/// A consumer group.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) topic: String,
    pub(crate) partitions: u32,
    pub(crate) generation: i64,
    pub(crate) members: BTreeMap<String, Member>,
    pub(crate) rebalanced: Option<Instant>,
    commits: BTreeMap<u32, Commit>,
    /// A coordinator that has just taken over waits one session timeout before it expires anybody.
    patient_until: Option<Instant>,
}

impl Group {
    fn new(topic: &str, partitions: u32) -> Self {
        Self {
            topic: topic.to_owned(),
            partitions,
            generation: 0,
            members: BTreeMap::new(),
            rebalanced: None,
            commits: BTreeMap::new(),
            patient_until: None,
        }
    }

    /// `Stable` with members, `Dead` without.
    pub(crate) fn state(&self) -> &'static str {
        if self.members.is_empty() { "Dead" } else { "Stable" }
    }

    /// Shares the partitions out by range over the members in the order of their ids: contiguous runs, the first members
    /// one more where they don't divide evenly, the last ones none where there are more members than partitions.
    fn rebalance(&mut self, now: Instant) {
        self.generation += 1;
        let Ok(count) = u32::try_from(self.members.len()) else { return };
        if count == 0 {
            return;
        }
        self.rebalanced = Some(now);
        let (share, more) = (self.partitions / count, self.partitions % count);
        let mut next = 0;
        for (i, member) in (0..).zip(self.members.values_mut()) {
            let end = next + share + u32::from(i < more);
            member.partitions = (next..end).collect();
            next = end;
        }
    }

    fn check_generation(&self, group: &str, member: &str, requested: i64) -> Result<(), Refusal> {
        if !self.members.contains_key(member) {
            return Err(Refusal::MemberNotFound { member: member.to_owned(), group: group.to_owned() });
        }
        // The broker lets a negative generation pass.
        if requested >= 0 && requested != self.generation {
            let (group, member) = (group.to_owned(), member.to_owned());
            return Err(Refusal::Generation { current: self.generation, requested, group, member });
        }
        Ok(())
    }

    fn check_owner(&self, group: &str, member: &str, generation: i64, partition: u32) -> Result<(), Refusal> {
        self.check_generation(group, member, generation)?;
        match self.members.get(member) {
            Some(found) if found.partitions.contains(&partition) => Ok(()),
            _ => Err(Refusal::NotOwner { partition, member: member.to_owned(), group: group.to_owned(), generation }),
        }
    }

    /// What a reader of the coordinator sees committed.
    pub(crate) fn seen(&self, partition: u32, now: Instant) -> Option<u64> {
        self.commits.get(&partition)?.seen(now)
    }

    /// What is committed.
    pub(crate) fn committed(&self) -> BTreeMap<u32, u64> {
        self.commits.iter().map(|(partition, commit)| (*partition, commit.offset)).collect()
    }
}

/// Who says something to the coordinator, as the commands name it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub(crate) group: &'a str,
    pub(crate) member: &'a str,
    pub(crate) generation: i64,
}

/// All groups.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    groups: BTreeMap<String, Group>,
}

impl Groups {
    pub(crate) fn get(&self, group: &str) -> Option<&Group> {
        self.groups.get(group)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.groups.keys()
    }

    fn find(&mut self, group: &str) -> Result<&mut Group, Refusal> {
        self.groups.get_mut(group).ok_or_else(|| Refusal::GroupNotFound { group: group.to_owned() })
    }

    /// One group, one topic. A pattern that matches the group's topic passes, and so does any topic where there is no
    /// such group.
    pub(crate) fn check_topic(&self, group: &str, topic: &str) -> Result<(), Refusal> {
        match self.groups.get(group) {
            Some(found) if found.topic != topic && !patterns::matches(topic, &found.topic) => {
                Err(Refusal::OtherTopic { expected: found.topic.clone(), actual: topic.to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Makes a group without members; the same again is fine.
    pub(crate) fn register(&mut self, group: &str, topic: &str, partitions: u32) -> Result<(), Refusal> {
        let found = self.groups.entry(group.to_owned()).or_insert_with(|| Group::new(topic, partitions));
        if found.topic != topic {
            let reason = format!("topic mismatch (existing: {}, requested: {topic})", found.topic);
            return Err(Refusal::Registered { reason });
        }
        if found.partitions != partitions {
            let reason = format!("partition count mismatch (existing: {}, requested: {partitions})", found.partitions);
            return Err(Refusal::Registered { reason });
        }
        Ok(())
    }

    /// A new member; the group must be registered. One of the same id is silently replaced.
    pub(crate) fn join(&mut self, group: &str, member: &str, now: Instant) -> Result<(i64, Vec<u32>), Refusal> {
        let found = self.find(group)?;
        found.members.insert(member.to_owned(), Member { heard: now, partitions: Vec::new() });
        found.rebalance(now);
        Ok((found.generation, found.members.get(member).map_or_else(Vec::new, |m| m.partitions.clone())))
    }

    /// SYNC_GROUP and the resuming JOIN_GROUP: the assignment at this generation.
    pub(crate) fn sync(&mut self, caller: Caller<'_>, now: Instant) -> Result<Vec<u32>, Refusal> {
        self.heartbeat(caller, now)?;
        let found = self.find(caller.group)?;
        Ok(found.members.get(caller.member).map_or_else(Vec::new, |m| m.partitions.clone()))
    }

    /// Keeps a member alive. A refused one doesn't.
    pub(crate) fn heartbeat(&mut self, caller: Caller<'_>, now: Instant) -> Result<(), Refusal> {
        let found = self.find(caller.group)?;
        found.check_generation(caller.group, caller.member, caller.generation)?;
        if let Some(member) = found.members.get_mut(caller.member) {
            member.heard = now;
        }
        Ok(())
    }

    pub(crate) fn leave(&mut self, caller: Caller<'_>, now: Instant) -> Result<(), Refusal> {
        let found = self.find(caller.group)?;
        found.check_generation(caller.group, caller.member, caller.generation)?;
        found.members.remove(caller.member);
        found.rebalance(now);
        Ok(())
    }

    /// Whether this member may commit this partition.
    pub(crate) fn check_owner(&self, caller: Caller<'_>, partition: u32) -> Result<(), Refusal> {
        let Caller { group, member, generation } = caller;
        let found = self.groups.get(group).ok_or_else(|| Refusal::GroupNotFound { group: group.to_owned() })?;
        found.check_owner(group, member, generation, partition)
    }

    /// Takes offsets that passed [`Groups::check_owner`], all or none.
    pub(crate) fn commit(
        &mut self,
        group: &str,
        offsets: &[(u32, u64)],
        now: Instant,
        lag: Duration,
    ) -> Result<Result<(), Regression>, Refusal> {
        let found = self.find(group)?;
        for (i, (partition, _)) in offsets.iter().enumerate() {
            if offsets[..i].iter().any(|(earlier, _)| earlier == partition) {
                let (group, topic) = (group.to_owned(), found.topic.clone());
                return Err(Refusal::Duplicate { partition: *partition, group, topic });
            }
        }
        for &(partition, attempted) in offsets {
            if let Some(commit) = found.commits.get(&partition)
                && attempted < commit.offset
            {
                return Ok(Err(Regression { partition, current: commit.offset, attempted }));
            }
        }
        for &(partition, offset) in offsets {
            found.commits.entry(partition).or_default().set(offset, now, lag);
        }
        Ok(Ok(()))
    }

    /// The committed offset that a read of this group and topic starts at, if there is one: 0 counts.
    pub(crate) fn start(&self, group: &str, topic: &str, partition: u32, now: Instant) -> Option<u64> {
        self.groups.get(group).filter(|found| found.topic == topic)?.seen(partition, now)
    }

    /// Removes what was silent for longer than `timeout` in the groups that `looked_after` selects, with one new
    /// generation per group. Whether anything changed.
    pub(crate) fn expire(&mut self, now: Instant, timeout: Duration, looked_after: impl Fn(&str) -> bool) -> bool {
        let mut changed = false;
        for (name, group) in &mut self.groups {
            if group.patient_until.is_some_and(|until| now < until) || !looked_after(name) {
                continue;
            }
            let before = group.members.len();
            group.members.retain(|_, member| now.duration_since(member.heard) <= timeout);
            if group.members.len() != before {
                group.rebalance(now);
                changed = true;
            }
        }
        changed
    }

    /// Removes one member as if its session had just ended.
    pub(crate) fn expire_member(&mut self, group: &str, member: &str, now: Instant) -> bool {
        let Some(found) = self.groups.get_mut(group) else { return false };
        let gone = found.members.remove(member).is_some();
        if gone {
            found.rebalance(now);
        }
        gone
    }

    /// Another broker coordinates the selected groups from now on.
    pub(crate) fn taken_over(&mut self, now: Instant, timeout: Duration, which: impl Fn(&str) -> bool) {
        for (_, group) in self.groups.iter_mut().filter(|(name, _)| which(name)) {
            group.patient_until = Some(now + timeout);
        }
    }

    /// A standalone broker came back: it remembers groups and offsets, and nothing of members and generations.
    pub(crate) fn forget_members(&mut self) {
        for group in self.groups.values_mut() {
            group.members.clear();
            group.generation = 0;
            group.rebalanced = None;
        }
    }
}

#[cfg(test)]
mod tests;
