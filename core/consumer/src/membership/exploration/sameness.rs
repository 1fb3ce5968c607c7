//! Which worlds are the same: the search takes each of them once.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::member::{OurMember, id, set};
use super::world::World;
use crate::membership::Membership;

/// Our members are alike: worlds in which two of them have changed places are the same.
impl Hash for World {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self { members, coordinator, delayed, chances } = self;
        let mut members: Vec<_> = members
            .iter()
            .map(|member| {
                let mut hasher = DefaultHasher::new();
                member.hash(&mut hasher);
                hasher.finish()
            })
            .collect();
        members.sort_unstable();
        let mut delayed = delayed.clone();
        delayed.sort_unstable();
        (members, coordinator, delayed, chances).hash(hasher);
    }
}

/// Tickets only grow and mean nothing by themselves: what counts is which call has the current one.
impl Hash for OurMember {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self {
            machine,
            calls,
            heartbeat,
            commit,
            reading,
            said,
            prepared,
            stopping,
            expelled,
            let_down,
            unknown,
            failed,
            closed,
            done,
            left,
        } = self;
        let Membership {
            phase,
            pausing,
            identity,
            partitions,
            fences,
            stopping: machine_stopping,
            heartbeat_open,
            closing,
            outrun,
            behind,
            settled,
            leaves,
            rejoining,
            alone,
            error,
            ticket,
        } = machine;
        (*phase as u8, pausing, identity.as_ref().map(|(member, generation)| (id(member), *generation))).hash(hasher);
        (set(partitions), fences, machine_stopping, heartbeat_open, closing, settled).hash(hasher);
        // Beyond the limits that they are compared with, counts mean the same. One that grew for ever would else be no circle.
        ((*outrun).min(4), (*behind).min(11), (*leaves).min(6)).hash(hasher);
        (rejoining, alone, error.is_some()).hash(hasher);
        let mut calls: Vec<_> = calls.iter().map(|call| (call.ticket == *ticket, call.request, call.reply)).collect();
        calls.sort_unstable();
        (calls, heartbeat, commit, reading, said, prepared, stopping).hash(hasher);
        (expelled, let_down, unknown, failed, closed, done, left).hash(hasher);
    }
}
