//! The memory of frames, used again. Fresh memory comes from the operating system page by page, each with a fault, and goes
//! back when a frame is dropped: for large frames that costs as much as reading them. So the memory of a frame that
//! nobody refers to any more is kept for the next one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;

/// Smaller frames are left to the allocator, which uses their memory again by itself.
const SMALLEST: usize = 64 << 10;

/// The most bytes kept for frames to come. A consumer that keeps up needs a few frames of a good size at a time.
const MOST: usize = 8 << 20;

/// Memory that waits for a frame, what was used last at the end.
#[derive(Default)]
pub(crate) struct Buffers(Mutex<VecDeque<Vec<u8>>>);

impl Buffers {
    fn idle(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory for a body of this length, empty.
    pub(crate) fn take(&self, length: usize) -> Vec<u8> {
        let mut idle = self.idle();
        // Much larger memory would be held for little. What was used last may still be in the processor's cache.
        let fits = |memory: &Vec<u8>| (length..=length + length / 4).contains(&memory.capacity());
        let found = idle.iter().rposition(fits).and_then(|at| idle.remove(at));
        found.unwrap_or_else(|| Vec::with_capacity(length))
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
        idle.push_back(memory);
        while idle.iter().map(Vec::capacity).sum::<usize>() > MOST {
            idle.pop_front();
        }
    }
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
        let kept = || buffers.idle().iter().map(Vec::capacity).sum::<usize>();
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

    #[test]
    fn a_frame_outlives_its_consumer() {
        let buffers = Arc::new(Buffers::default());
        let frame = buffers.lend(body(&buffers, SMALLEST));
        drop(buffers);
        assert!(frame.iter().all(|byte| *byte == b'x'));
    }
}
