//! A partition as the oracle knows it: which records there are, and what has become of them.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Open,
    Processed,
    /// Nobody need process it: an application went past it, or it is gone.
    Excused,
    /// Nobody sees it.
    Hidden,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Log {
    records: Vec<Fate>,
    earliest: u64,
    /// Below this everything is processed, excused or hidden.
    prefix: u64,
    committed: u64,
    /// Where the farthest seek went.
    sought: u64,
}

impl Log {
    pub(super) fn write(&mut self, count: u64, visible: bool) {
        let fate = if visible { Fate::Open } else { Fate::Hidden };
        self.records.extend((0..count).map(|_| fate));
        self.advance();
    }

    pub(super) fn end(&self) -> u64 {
        self.records.len() as u64
    }

    pub(super) fn forget(&mut self, earliest: u64) {
        self.earliest = self.earliest.max(earliest);
        self.excuse(0, earliest);
    }

    pub(super) fn process(&mut self, offset: u64) {
        if let Some(record) = self.records.get_mut(offset as usize).filter(|record| **record == Fate::Open) {
            *record = Fate::Processed;
        }
        self.advance();
    }

    pub(super) fn excuse(&mut self, from: u64, to: u64) {
        let to = to.min(self.end()) as usize;
        if let Some(records) = self.records.get_mut(from as usize..to) {
            records.iter_mut().filter(|record| **record == Fate::Open).for_each(|record| *record = Fate::Excused);
        }
        self.advance();
    }

    /// An application goes on elsewhere. What it was at and finishes later proves nothing there, and need not be committed.
    pub(super) fn leave_behind(&mut self, from: u64, to: u64) {
        if to >= from {
            self.sought = self.sought.max(to);
        }
    }

    fn advance(&mut self) {
        while self.records.get(self.prefix as usize).is_some_and(|record| *record != Fate::Open) {
            self.prefix += 1;
        }
    }

    pub(super) fn is_visible(&self, offset: u64) -> bool {
        self.records.get(offset as usize).is_some_and(|record| *record != Fate::Hidden)
    }

    /// Whether a reader whose next offset is `next` may get this record: nothing visible lies between, or it is gone.
    pub(super) fn follows(&self, next: u64, offset: u64) -> bool {
        let first = |from: u64| (from..self.end()).find(|offset| self.is_visible(*offset));
        first(next) == Some(offset) || first(next.max(self.earliest)) == Some(offset)
    }

    /// Whether a reader may go on here, having left out what the group has committed meanwhile: brokers begin a stream
    /// there, and a member that was replaced without knowing it has nothing to process before.
    pub(super) fn is_committed_before(&self, offset: u64) -> bool {
        !(self.committed..offset.max(self.committed)).any(|before| self.is_visible(before))
    }

    /// Whether an assignment may begin with this record: everything before it was processed.
    pub(super) fn may_begin(&self, offset: u64) -> bool {
        offset <= self.prefix
    }

    /// Whether this may be committed, as it is sent; the first commit of a group that starts at the latest record excuses
    /// what was before.
    pub(super) fn may_commit(&mut self, offset: u64, latest: bool) -> Result<(), String> {
        if latest && self.committed == 0 {
            self.excuse(0, offset);
        }
        if offset > self.prefix {
            return Err(format!("{self}"));
        }
        Ok(())
    }

    pub(super) fn commit(&mut self, offset: u64, latest: bool) -> Result<(), String> {
        if offset < self.committed {
            return Err(format!("{} was committed", self.committed));
        }
        self.may_commit(offset, latest)?;
        self.committed = offset;
        Ok(())
    }

    pub(super) fn is_settled(&self) -> bool {
        let open = |record: &Fate| matches!(record, Fate::Open | Fate::Processed);
        // What was processed before it was gone can't be read again, and so not be committed.
        let from = self.committed.max(self.earliest).max(self.sought);
        self.prefix == self.end() && !self.records.iter().skip(from as usize).any(open)
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "is processed up to {} of {}, kept from {} and committed up to {}",
            self.prefix,
            self.end(),
            self.earliest,
            self.committed
        )
    }
}
