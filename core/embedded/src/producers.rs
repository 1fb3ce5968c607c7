//! Idempotent producers: what a topic made with `idempotent=true` checks before it appends.

use std::collections::BTreeMap;

/// What a partition knows of its producers: epoch and last sequence number.
#[derive(Debug, Default)]
pub(crate) struct Producers(BTreeMap<Vec<u8>, (i64, u64)>);

impl Producers {
    /// Whether a record is new (`true`), or was appended before (`false`); or why it can't follow what there is.
    pub(crate) fn accept(&mut self, producer: &[u8], epoch: i64, sequence: u64) -> Result<bool, String> {
        let name = String::from_utf8_lossy(producer);
        let known = self.0.get(producer).copied();
        // Records without a number aren't checked, and make the next number 1 again.
        if sequence == 0 {
            if let Some((_, last)) = self.0.get_mut(producer) {
                *last = 0;
            }
            return Ok(true);
        }
        let Some((current, last)) = known.filter(|(current, _)| epoch <= *current) else {
            if sequence != 1 {
                let first = if known.is_some() { "first message in new producer epoch" } else { "first message" };
                return Err(format!(
                    "idempotency error: {first} for producer {name} must have seqNum 1, got {sequence}"
                ));
            }
            self.0.insert(producer.to_vec(), (epoch, sequence));
            return Ok(true);
        };
        if epoch < current {
            return Err(format!("stale_producer_epoch producer={name} current={current} got={epoch}"));
        }
        if sequence <= last {
            return Ok(false);
        }
        if sequence != last + 1 {
            let expected = last + 1;
            return Err(format!("idempotency gap for producer {name}: expected {expected}, got {sequence}"));
        }
        self.0.insert(producer.to_vec(), (epoch, sequence));
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_each_other_per_producer_and_epoch() {
        let mut producers = Producers::default();
        assert_eq!(
            producers.accept(b"p", 0, 5).unwrap_err(),
            "idempotency error: first message for producer p must have seqNum 1, got 5"
        );
        assert_eq!(producers.accept(b"p", 0, 1), Ok(true));
        assert_eq!(producers.accept(b"p", 0, 1), Ok(false));
        assert_eq!(producers.accept(b"p", 0, 2), Ok(true));
        assert_eq!(producers.accept(b"p", 0, 4).unwrap_err(), "idempotency gap for producer p: expected 3, got 4");
        assert_eq!(
            producers.accept(b"p", 1, 2).unwrap_err(),
            "idempotency error: first message in new producer epoch for producer p must have seqNum 1, got 2"
        );
        assert_eq!(producers.accept(b"p", 1, 1), Ok(true));
        assert_eq!(producers.accept(b"p", 0, 3).unwrap_err(), "stale_producer_epoch producer=p current=1 got=0");
        assert_eq!(producers.accept(b"p", 1, 0), Ok(true));
        assert_eq!(producers.accept(b"p", 1, 1), Ok(true));
        assert_eq!(producers.accept(b"q", 0, 1), Ok(true));
    }
}
