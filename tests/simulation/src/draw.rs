//! What is drawn from a seed.

use std::sync::Arc;

use cursus_net::{Randomness, SplitMix};

/// Draws numbers. Clones draw from the same sequence.
#[derive(Clone)]
pub(crate) struct Draw(Arc<SplitMix>);

impl Draw {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(Arc::new(SplitMix::seeded(seed)))
    }

    /// A sequence of its own, that begins where this one is: what others draw doesn't move it.
    pub(crate) fn fork(&self) -> Self {
        Self::seeded(self.0.next_u64())
    }

    pub(crate) fn randomness(&self) -> Arc<dyn Randomness> {
        Arc::clone(&self.0) as Arc<dyn Randomness>
    }

    /// A number in `0..bound`.
    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// A number in `from..=to`.
    pub(crate) fn between(&self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    pub(crate) fn one_in(&self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn pick<T: Copy>(&self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
