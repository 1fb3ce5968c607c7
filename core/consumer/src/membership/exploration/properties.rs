//! What must hold, and how often it was asked.

macro_rules! properties {
    ($(#[doc = $says:literal] $name:ident,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Property {
            $(#[doc = $says] $name,)*
        }

        impl Property {
            pub(super) const ALL: &[Self] = &[$(Self::$name,)*];

            pub(super) fn says(self) -> &'static str {
                match self {
                    $(Self::$name => $says.trim_ascii(),)*
                }
            }
        }
    };
}

properties! {
    /// One request of a phase is open at a time.
    OneRequest,
    /// A request names who the member is, at its generation.
    NamesItself,
    /// The answer to a JOIN is awaited, also by close: one that comes too late leaves a member that nobody is.
    JoinIsAwaited,
    /// An answer about another member, generation or request changes nothing.
    LateMeansNothing,
    /// Who was told that it isn't known never uses that name again, but to leave.
    ForgottenForGood,
    /// Fences end with the first news of another generation, or that the member isn't known.
    NewsEndsFences,
    /// A coordinator that is out of reach, names a generation of the past, or resumes the member as it was ends no fences.
    KeepsReading,
    /// Fences end once.
    EndsOnce,
    /// Fences are those of the member's present generation.
    FencesAreOfNow,
    /// An assignment is prepared and installed only after old readers have ended.
    AfterStopped,
    /// What is installed is what SYNC said last, at its generation; without a group, what was assigned last.
    InstallsWhatWasSaid,
    /// No two members read a partition at one generation.
    ReadersApart,
    /// No fences live in a member that leaves, is away, or is over.
    NoFencesAway,
    /// Commits go only under live fences, of a member that the coordinator is believed to know.
    CommitsUnderFences,
    /// A commit that the coordinator takes is of partitions that it has given to that member.
    CommitsWhatIsOwned,
    /// One heartbeat is on its way at a time, and only of a member.
    OneHeartbeat,
    /// After close a member only synchronises and leaves.
    ClosesOnly,
    /// A member is done once, only after close, and nothing comes of it afterwards.
    DoneOnce,
    /// Who has left, because it was closed or nobody polled, isn't known to the coordinator any more, unless that was out of reach.
    LeftIsLeft,
    /// A consumer fails once.
    FailsOnce,
    /// Who reads without a group asks the coordinator for nothing.
    AloneAsksNobody,
    /// No state waits for nothing.
    WaitsForSomething,
    /// When nothing more goes wrong, each member comes to read at the group's generation, or is done where it was closed.
    FindsHome,
    /// When nothing more goes wrong, no order of answers leads round in circles.
    NoCircles,
}

/// How often each property was asked and held, and the first that didn't.
pub(super) struct Ledger {
    held: Vec<u64>,
    pub(super) broken: Option<Property>,
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self { held: vec![0; Property::ALL.len()], broken: None }
    }

    pub(super) fn check(&mut self, property: Property, holds: bool) {
        if holds {
            self.held[property as usize] += 1;
        } else {
            self.broken.get_or_insert(property);
        }
    }

    pub(super) fn held(&self, property: Property) -> u64 {
        self.held[property as usize]
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (held, more) in self.held.iter_mut().zip(&other.held) {
            *held += more;
        }
    }
}
