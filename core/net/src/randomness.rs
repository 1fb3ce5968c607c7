use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Where random numbers come from: member suffixes and the jitter of back-offs. Nothing here is a secret.
pub trait Randomness: Send + Sync + 'static {
    /// The next 64 random bits.
    fn next_u64(&self) -> u64;

    /// A number in `0..bound`; 0 where `bound` is 0.
    fn below(&self, bound: u64) -> u64 {
        // Multiply-shift: the bias is below 2^-32 for every bound used here.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

/// A small seeded generator (SplitMix64): the same seed gives the same numbers.
#[derive(Debug)]
pub struct SplitMix(AtomicU64);

impl SplitMix {
    /// A generator that starts from `seed`.
    pub fn seeded(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }
}

impl Randomness for SplitMix {
    fn next_u64(&self) -> u64 {
        let state = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Seeded by the operating system, through the standard library's hasher keys.
#[derive(Debug, Default)]
pub struct SystemRandomness;

impl Randomness for SystemRandomness {
    fn next_u64(&self) -> u64 {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u64(CALLS.fetch_add(1, Ordering::Relaxed));
        hasher.write_u32(std::process::id());
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_seed_others() {
        let draw = |seed| (0..8).map(|_| SplitMix::seeded(seed).next_u64()).collect::<Vec<_>>();
        assert_eq!(draw(7), draw(7));
        let (a, b) = (SplitMix::seeded(1), SplitMix::seeded(2));
        assert_ne!((a.next_u64(), a.next_u64()), (b.next_u64(), b.next_u64()));
    }

    #[test]
    fn below_stays_below_and_reaches_both_ends() {
        let random = SplitMix::seeded(3);
        let drawn: Vec<u64> = (0..1000).map(|_| random.below(10)).collect();
        assert_eq!(drawn.iter().max(), Some(&9));
        assert_eq!(drawn.iter().min(), Some(&0));
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn the_system_never_repeats_itself() {
        let drawn: std::collections::BTreeSet<u64> = (0..1000).map(|_| SystemRandomness.next_u64()).collect();
        assert_eq!(drawn.len(), 1000);
    }
}
