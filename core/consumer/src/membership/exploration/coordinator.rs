//! The coordinator as the real one was seen to behave, without what membership never asks for: a new generation with every
//! join, leave and expiry, no barrier, and nothing remembered over a restart of a broker that stands alone.

/// A member's id. The name of member 3 is `m-3`. An id is never given twice.
pub(super) type Id = u8;

/// Partitions as a set of bits. There are two, so that the third member has none.
pub(super) type Partitions = u8;

const PARTITIONS: usize = 2;

/// What a member asks of the world outside, as its machine put it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Request {
    Locate,
    Join,
    Resume(Id, u64),
    Sync(Id, u64),
    Leave(Id, u64),
    Prepare(Partitions),
    Pause,
}

impl Request {
    /// Whether the coordinator answers it. What else there is happens beside.
    pub(super) fn is_for_coordinator(self) -> bool {
        !matches!(self, Self::Locate | Self::Prepare(_) | Self::Pause)
    }

    /// Whether it changes something, so that it matters when it arrives.
    pub(super) fn has_effect(self) -> bool {
        matches!(self, Self::Join | Self::Leave(..))
    }

    /// The member that it names.
    pub(super) fn named(self) -> Option<(Id, u64)> {
        match self {
            Self::Resume(id, generation) | Self::Sync(id, generation) | Self::Leave(id, generation) => {
                Some((id, generation))
            }
            _ => None,
        }
    }
}

/// What an assignment is: whose, at which generation of which life of the group, and what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Given {
    pub(super) id: Id,
    pub(super) life: u8,
    pub(super) generation: u64,
    pub(super) partitions: Partitions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Refusal {
    Passing,
    InTransition,
    Mismatch(u64),
    Unknown,
    Fatal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Reply {
    Done,
    Joined { given: Given, resumed: bool },
    Synced(Given),
    Refused(Refusal),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Coordinator {
    pub(super) generation: u64,
    /// How many times it began from nothing. Generations begin again with it.
    pub(super) life: u8,
    pub(super) members: Vec<Id>,
    next_id: Id,
}

impl Coordinator {
    pub(super) fn new() -> Self {
        Self { generation: 0, life: 0, members: Vec::new(), next_id: 0 }
    }

    pub(super) fn join(&mut self) -> Given {
        let id = self.next_id;
        self.next_id += 1;
        self.members.push(id);
        self.generation += 1;
        self.given(id)
    }

    pub(super) fn remove(&mut self, id: Id) {
        self.members.retain(|member| *member != id);
        self.generation += 1;
    }

    pub(super) fn restart(&mut self) {
        self.members.clear();
        self.generation = 0;
        self.life += 1;
    }

    pub(super) fn knows(&self, id: Id) -> bool {
        self.members.contains(&id)
    }

    pub(super) fn given(&self, id: Id) -> Given {
        let place = self.members.iter().position(|member| *member == id);
        let mine = |partition: &usize| place == Some(partition % self.members.len());
        let partitions = (0..PARTITIONS).filter(mine).fold(0, |set, partition| set | 1 << partition);
        Given { id, life: self.life, generation: self.generation, partitions }
    }

    /// What it makes of a member and generation: who it is comes before when.
    pub(super) fn verdict(&self, id: Id, generation: u64) -> Result<(), Refusal> {
        if !self.knows(id) {
            Err(Refusal::Unknown)
        } else if generation != self.generation {
            Err(Refusal::Mismatch(self.generation))
        } else {
            Ok(())
        }
    }

    pub(super) fn carry_out(&mut self, request: Request) -> Reply {
        if let Some((id, generation)) = request.named()
            && let Err(refusal) = self.verdict(id, generation)
        {
            return Reply::Refused(refusal);
        }
        match request {
            Request::Join => Reply::Joined { given: self.join(), resumed: false },
            Request::Resume(id, _) => Reply::Joined { given: self.given(id), resumed: true },
            Request::Sync(id, _) => Reply::Synced(self.given(id)),
            Request::Leave(id, _) => {
                self.remove(id);
                Reply::Done
            }
            Request::Locate | Request::Prepare(_) | Request::Pause => Reply::Done,
        }
    }
}
