//! The memory of frames, used again. Fresh memory comes from the operating system page by page, each with a fault, and goes
//! back when a frame is dropped: for large frames that costs as much as reading them. So the memory of a frame that
//! nobody refers to any more is kept for the next one, for a while: a consumer that was behind once doesn't hold for ever what
//! it needed to catch up.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use tokio::time::{Duration, Instant};

/// Smaller frames are left to the allocator, which uses their memory again by itself.
const SMALLEST: usize = 64 << 10;

/// The most bytes kept for frames to come. A consumer that keeps up needs a few frames of a good size at a time.
const MOST: usize = 8 << 20;

/// How long memory is kept for a frame to come. Where frames are large all the time, the next one comes much sooner.
const PATIENCE: Duration = Duration::from_secs(10);

/// Memory that waits for a frame, what was used last at the end.
#[derive(Default)]
pub(crate) struct Buffers(Mutex<VecDeque<Idle>>);

/// Memory, and since when nobody has needed it.
struct Idle {
    memory: Vec<u8>,
    since: Instant,
}

impl Buffers {
    fn idle(&self) -> MutexGuard<'_, VecDeque<Idle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory for a body of this length, empty. Every frame asks here, the small ones too, and a consumer hears something every
    /// few seconds: so here is seen what has waited for too long.
    pub(crate) fn take(&self, length: usize) -> Vec<u8> {
        let mut idle = self.idle();
        while idle.front().is_some_and(|oldest| oldest.since.elapsed() > PATIENCE) {
            idle.pop_front();
        }
        // Much larger memory would be held for little. What was used last may still be in the processor's cache.
        let fits = |idle: &Idle| (length..=length + length / 4).contains(&idle.memory.capacity());
        let found = idle.iter().rposition(fits).and_then(|at| idle.remove(at));
        found.map_or_else(|| Vec::with_capacity(length), |idle| idle.memory)
    }

    /// A complete body. Its memory comes back when the last reference to it is gone.
    pub(crate) fn lend(self: &Arc<Self>, body: Vec<u8>) -> Bytes {
        if (SMALLEST..=MOST).contains(&body.len()) {
            Bytes::from_owner(Lent { body, home: Arc::downgrade(self) })
        } else {
            body.into()
        }
    }

    fn give_back(&self, mut memory: Vec<u8>) {
        memory.clear();
        let mut idle = self.idle();
        idle.push_back(Idle { memory, since: Instant::now() });
        while kept(&idle) > MOST {
            idle.pop_front();
        }
    }
}

fn kept(idle: &VecDeque<Idle>) -> usize {
    idle.iter().map(|idle| idle.memory.capacity()).sum()
}

/// A body whose memory goes back.
struct Lent {
    body: Vec<u8>,
    /// Weak: a record that outlives its consumer keeps its own frame alive, and no more.
    home: Weak<Buffers>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            home.give_back(std::mem::take(&mut self.body));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(buffers: &Buffers, length: usize) -> Vec<u8> {
        let mut body = buffers.take(length);
        assert!(body.is_empty(), "nothing is left of another frame");
        body.resize(length, b'x');
        body
    }

    #[test]
    fn memory_serves_the_next_frame_of_about_its_size_once_nobody_refers_to_it() {
        let buffers = Arc::new(Buffers::default());
        let frame = buffers.lend(body(&buffers, 1_000_000));
        let memory = frame.as_ptr().addr();
        let next = |length| {
            let body = buffers.take(length);
            body.as_ptr().addr()
        };
        let record = frame.slice(10..20);
        drop(frame);
        assert_ne!(next(900_000), memory, "a record refers to it");
        drop(record);
        for length in [1_000_001, 700_000, 1] {
            assert_ne!(next(length), memory, "{length} bytes don't fit well");
        }
        assert_eq!(next(900_000), memory);
    }

    #[test]
    fn what_is_kept_is_bounded_and_neither_small_nor_huge() {
        let buffers = Arc::new(Buffers::default());
        let kept = || kept(&buffers.idle());
        for length in [1, SMALLEST - 1, MOST + 1] {
            drop(buffers.lend(body(&buffers, length)));
            assert_eq!(kept(), 0);
        }
        let frames: Vec<_> = (1..100).map(|i| buffers.lend(body(&buffers, SMALLEST + i * 1_000))).collect();
        drop(frames);
        assert!((MOST / 2..=MOST).contains(&kept()), "{}", kept());
        drop(buffers.lend(body(&buffers, MOST)));
        assert_eq!(buffers.idle().len(), 1, "the oldest go first");
    }

    #[tokio::test(start_paused = true)]
    async fn what_no_frame_needs_goes_back_while_small_ones_come() {
        let buffers = Arc::new(Buffers::default());
        // Behind once: frames of every size.
        let frames: Vec<_> = (1..=20).map(|i| buffers.lend(body(&buffers, SMALLEST + i * 20_000))).collect();
        drop(frames);
        assert_eq!(buffers.idle().len(), 20);
        // Afterwards one size is enough, and a heartbeat is answered now and then.
        let (large, mut served) = (SMALLEST + 100_000, 0);
        for _ in 0..10 {
            tokio::time::advance(PATIENCE / 4).await;
            drop(body(&buffers, 50));
            let before = kept(&buffers.idle());
            let frame = buffers.lend(body(&buffers, large));
            served += u32::from(kept(&buffers.idle()) < before);
            drop(frame);
        }
        assert_eq!(served, 10, "what is needed all the time stays");
        assert_eq!(buffers.idle().len(), 1, "and all else went");
        tokio::time::advance(2 * PATIENCE).await;
        drop(body(&buffers, 50));
        assert!(buffers.idle().is_empty());
    }

    #[test]
    fn a_frame_outlives_its_consumer() {
        let buffers = Arc::new(Buffers::default());
        let frame = buffers.lend(body(&buffers, SMALLEST));
        drop(buffers);
        assert!(frame.iter().all(|byte| *byte == b'x'));
    }
}
