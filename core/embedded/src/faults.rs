//! Faults on command: what happens to the next of a kind of request.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::watch;

/// What happens to one request.
#[derive(Debug, Default)]
pub(crate) struct Fault {
    /// It waits until this is released.
    pub(crate) hold: Option<Arc<Gate>>,
    /// It isn't carried out, and this is answered behind `ERROR: `.
    pub(crate) error: Option<String>,
    /// It is carried out, and the connection is cut instead of a reply.
    pub(crate) lose: bool,
    /// It is carried out, and this happens to the reply.
    pub(crate) reply: Harm,
}

/// What happens to a reply; to the first batch, where a stream is the reply.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Harm {
    /// It is damaged.
    pub(crate) corrupt: bool,
    /// It is sent twice.
    pub(crate) repeat: bool,
}

/// The faults that are yet to happen.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    errors: BTreeMap<&'static str, VecDeque<(usize, String)>>,
    lose: BTreeMap<&'static str, usize>,
    corrupt: BTreeMap<&'static str, usize>,
    repeat: BTreeMap<&'static str, usize>,
    holds: BTreeMap<&'static str, VecDeque<Arc<Gate>>>,
}

fn take(counts: &mut BTreeMap<&'static str, usize>, command: &str) -> bool {
    let Some(left) = counts.get_mut(command).filter(|left| **left > 0) else { return false };
    *left -= 1;
    true
}

impl Faults {
    pub(crate) fn fail(&mut self, command: &'static str, times: usize, error: &str) {
        self.errors.entry(command).or_default().push_back((times, error.to_owned()));
    }

    pub(crate) fn lose(&mut self, command: &'static str, times: usize) {
        *self.lose.entry(command).or_default() += times;
    }

    pub(crate) fn corrupt(&mut self, command: &'static str, times: usize) {
        *self.corrupt.entry(command).or_default() += times;
    }

    pub(crate) fn repeat(&mut self, command: &'static str, times: usize) {
        *self.repeat.entry(command).or_default() += times;
    }

    pub(crate) fn hold(&mut self, command: &'static str, gate: Arc<Gate>) {
        self.holds.entry(command).or_default().push_back(gate);
    }

    /// What happens to a request that has just come in. One that fails uses up no loss and no damage, and one that
    /// is lost or damaged isn't repeated.
    pub(crate) fn next(&mut self, command: &str) -> Fault {
        let mut fault = Fault::default();
        if let Some(gates) = self.holds.get_mut(command) {
            // A hold that was dropped before it held anything holds nothing.
            fault.hold = std::iter::from_fn(|| gates.pop_front()).find(|gate| !*gate.released.borrow());
        }
        if let Some(errors) = self.errors.get_mut(command) {
            while errors.front().is_some_and(|(left, _)| *left == 0) {
                errors.pop_front();
            }
            if let Some((left, error)) = errors.front_mut() {
                *left -= 1;
                fault.error = Some(error.clone());
                return fault;
            }
        }
        fault.lose = take(&mut self.lose, command);
        fault.reply.corrupt = !fault.lose && take(&mut self.corrupt, command);
        fault.reply.repeat = !fault.lose && !fault.reply.corrupt && take(&mut self.repeat, command);
        fault
    }
}

/// Where a held request waits.
#[derive(Debug)]
pub(crate) struct Gate {
    reached: watch::Sender<bool>,
    released: watch::Sender<bool>,
}

impl Gate {
    /// A request is held here.
    pub(crate) fn reach(&self) {
        self.reached.send_replace(true);
    }

    /// Waits for the release.
    pub(crate) async fn pass(&self) {
        self.reach();
        // The sender lives in `self`, so waiting can't fail.
        drop(self.released.subscribe().wait_for(|released| *released).await);
    }
}

/// A hold on the next request of one kind: that request is carried out only after [`Hold::release`], or when this is
/// dropped.
#[derive(Debug)]
#[must_use = "dropping a hold releases it"]
pub struct Hold {
    gate: Arc<Gate>,
}

impl Hold {
    pub(crate) fn new() -> (Self, Arc<Gate>) {
        let gate = Arc::new(Gate { reached: watch::Sender::new(false), released: watch::Sender::new(false) });
        (Self { gate: gate.clone() }, gate)
    }

    /// Waits until a request is held.
    pub async fn reached(&self) {
        drop(self.gate.reached.subscribe().wait_for(|reached| *reached).await);
    }

    /// Whether a request is held, or was.
    pub fn is_reached(&self) -> bool {
        *self.gate.reached.borrow()
    }

    /// Lets the held request go on; without one, the hold is taken back.
    pub fn release(self) {
        // Dropping does it.
    }

    pub(crate) fn open(&self) {
        self.gate.released.send_replace(true);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.open();
    }
}

/// Damages a reply so that no client can read it: a batch gets a count that it has no room for, a text a first byte that
/// isn't UTF-8.
pub(crate) fn damage(head: &mut [u8], is_batch: bool) {
    if is_batch {
        let from = head.len().saturating_sub(4);
        head[from..].fill(0x7f);
    } else if let Some(first) = head.first_mut() {
        *first ^= 0x80;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_come_in_order_and_leave_losses_for_later() {
        let mut faults = Faults::default();
        faults.fail("CONSUME", 2, "a");
        faults.fail("CONSUME", 0, "never");
        faults.fail("CONSUME", 1, "b");
        faults.lose("CONSUME", 1);
        faults.corrupt("CONSUME", 1);
        faults.repeat("CONSUME", 1);
        let errors: Vec<_> = (0..3).map(|_| faults.next("CONSUME").error.unwrap()).collect();
        assert_eq!(errors, ["a", "a", "b"]);
        assert!(faults.next("CONSUME").lose);
        assert!(faults.next("CONSUME").reply.corrupt);
        assert!(faults.next("CONSUME").reply.repeat);
        let clean = faults.next("CONSUME");
        assert!(
            clean.error.is_none() && !clean.lose && !clean.reply.corrupt && !clean.reply.repeat && clean.hold.is_none()
        );
    }

    #[tokio::test]
    async fn a_hold_holds_one_request_and_a_dropped_one_none() {
        let mut faults = Faults::default();
        let (dropped, gate) = Hold::new();
        faults.hold("LIST", gate);
        drop(dropped);
        let (hold, gate) = Hold::new();
        faults.hold("LIST", gate);
        let held = faults.next("LIST").hold.expect("the second hold holds");
        assert!(faults.next("LIST").hold.is_none());
        assert!(!hold.is_reached());
        let waiting = tokio::spawn(async move { held.pass().await });
        hold.reached().await;
        assert!(!waiting.is_finished());
        hold.release();
        waiting.await.unwrap();
    }
}
