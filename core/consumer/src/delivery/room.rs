//! Room in the buffer: reserved before a request is sent, so that what comes in was asked for and fits.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{Delivery, Inner, Stale};
use crate::batch::Fence;
use crate::types::TopicPartition;

impl Delivery {
    /// Waits for room for a reply of about this many bytes, and for as long as the partition is paused. Readers are served in
    /// the order in which they came.
    pub(crate) async fn reserve(
        self: &Arc<Self>,
        partition: &TopicPartition,
        fence: Fence,
        turn: u64,
        estimate: u64,
    ) -> Result<Room, Stale> {
        let estimate = estimate.min(self.max_buffered);
        let waiting = loop {
            let mut resumed = Box::pin(self.resumed.notified());
            resumed.as_mut().enable();
            {
                let mut inner = self.lock();
                let owned = inner.partitions.get(partition);
                let owned = owned.filter(|owned| (owned.fence, owned.turn) == (fence, turn)).ok_or(Stale)?;
                if !owned.is_held() {
                    if inner.waiting.is_empty() && inner.fits(estimate, self.max_buffered) {
                        inner.reserved += estimate;
                        break None;
                    }
                    let (granted, waiting) = oneshot::channel();
                    inner.waiting.push_back((estimate, granted));
                    inner.grant_room(self.max_buffered);
                    break Some(waiting);
                }
            }
            resumed.await;
        };
        if let Some(waiting) = waiting {
            let queued = WaitingRoom { delivery: self, estimate, waiting };
            if queued.granted().await.is_err() {
                // The queue was sealed: the reader is about to be cancelled, and what it pushes is refused.
                return Err(Stale);
            }
        }
        Ok(Room { delivery: Arc::clone(self), reserved: estimate })
    }

    /// Whether somebody waits for room.
    pub(crate) fn is_room_short(&self) -> bool {
        self.lock().waiting.iter().any(|(_, granted)| !granted.is_closed())
    }
}

impl Inner {
    pub(super) fn fits(&self, estimate: u64, max: u64) -> bool {
        let used = self.buffered + self.reserved;
        used == 0 || used.saturating_add(estimate) <= max
    }

    /// Lets in who waits, as far as there is room.
    pub(super) fn grant_room(&mut self, max: u64) {
        while let Some((estimate, _)) = self.waiting.front() {
            let estimate = *estimate;
            if !self.fits(estimate, max) {
                self.drop_parked();
            }
            if !self.fits(estimate, max) {
                break;
            }
            let Some((_, granted)) = self.waiting.pop_front() else { break };
            // A reader that gave up has dropped its end: the next one is asked.
            if granted.send(()).is_ok() {
                self.reserved += estimate;
            }
        }
    }
}

/// Room in the buffer for a reply that is on its way. Dropped, it is given back.
pub(crate) struct Room {
    delivery: Arc<Delivery>,
    reserved: u64,
}

impl Room {
    /// The reservation is used up by what came.
    pub(super) fn disarm(mut self) -> u64 {
        std::mem::take(&mut self.reserved)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.reserved > 0 {
            let mut inner = self.delivery.lock();
            inner.reserved -= self.reserved;
            inner.grant_room(self.delivery.max_buffered);
        }
    }
}

/// A reader in the queue for room. Cancelled after the room was granted and before it noticed, it gives it back.
struct WaitingRoom<'a> {
    delivery: &'a Delivery,
    estimate: u64,
    waiting: oneshot::Receiver<()>,
}

impl WaitingRoom<'_> {
    async fn granted(mut self) -> Result<(), oneshot::error::RecvError> {
        (&mut self.waiting).await
    }
}

impl Drop for WaitingRoom<'_> {
    fn drop(&mut self) {
        self.waiting.close();
        if self.waiting.try_recv().is_ok() {
            let mut inner = self.delivery.lock();
            inner.reserved -= self.estimate;
            inner.grant_room(self.delivery.max_buffered);
        }
    }
}
