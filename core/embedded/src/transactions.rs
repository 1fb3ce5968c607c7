//! The transaction coordinator's state, as a pure machine: what is staged, who may stage it, and how it ended. Writing what
//! was committed is the commands' part.

use std::collections::BTreeMap;

use cursus_wire::reply::TransactionState;

use crate::log::TransactionKey;
use crate::sha256;

/// What a transactional id is hashed as where its coordinator is looked for.
pub(crate) fn coordinator_key(id: &str) -> String {
    format!("txn:{id}")
}

/// Who says something about a transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner<'a> {
    pub(crate) id: &'a str,
    pub(crate) producer: &'a str,
    pub(crate) epoch: i64,
}

/// A record that waits for its transaction's commit.
#[derive(Debug, Clone)]
pub(crate) struct StagedRecord {
    pub(crate) topic: String,
    pub(crate) partition: u32,
    pub(crate) sequence: u64,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

/// Whose offsets a transaction commits: one member's, at one generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) member: String,
    pub(crate) generation: i64,
}

/// The last transaction of a transactional id, or the place for the first.
#[derive(Debug, Clone)]
pub(crate) struct Transaction {
    pub(crate) producer: String,
    pub(crate) epoch: i64,
    pub(crate) state: TransactionState,
    /// Whether one may be begun: once per epoch.
    ready: bool,
    pub(crate) records: Vec<StagedRecord>,
    pub(crate) scope: Option<Scope>,
    pub(crate) offsets: BTreeMap<u32, u64>,
}

impl Transaction {
    fn new(producer: String, epoch: i64) -> Self {
        Self {
            producer,
            epoch,
            state: TransactionState::Aborted,
            ready: true,
            records: Vec::new(),
            scope: None,
            offsets: BTreeMap::new(),
        }
    }

    /// How logs name it.
    pub(crate) fn key(&self, id: &str) -> TransactionKey {
        (id.to_owned(), self.epoch)
    }

    fn check_owner(&self, owner: Owner<'_>) -> Result<(), String> {
        let Owner { id, producer, epoch } = owner;
        if producer != self.producer {
            let own = &self.producer;
            return Err(format!(
                "transaction owner mismatch transactional_id={id} producer={own} requested={producer}"
            ));
        }
        if epoch != self.epoch {
            return Err(fenced("producer fenced", owner, self.epoch));
        }
        Ok(())
    }
}

fn fenced(what: &str, owner: Owner<'_>, current: i64) -> String {
    let Owner { id, epoch, .. } = owner;
    format!("{what} transactional_id={id} current_epoch={current} requested_epoch={epoch}")
}

/// Why BEGIN_TXN is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotBegun {
    /// There was one in this epoch already.
    Used,
    /// Anything else.
    Refused(String),
}

/// The transactions of all transactional ids.
#[derive(Debug, Default)]
pub(crate) struct Transactions(BTreeMap<String, Transaction>);

impl Transactions {
    pub(crate) fn get(&self, id: &str) -> Result<&Transaction, String> {
        self.0.get(id).ok_or_else(|| format!("transaction {id} not found"))
    }

    /// Starts a new epoch, and with it drops what was staged in the one before.
    pub(crate) fn init(&mut self, id: &str) -> Result<&Transaction, String> {
        let next = match self.0.get(id) {
            Some(found) if found.state == TransactionState::Committing => {
                return Err(format!("transaction {id} is committing; retry END_TXN before reinitializing producer"));
            }
            Some(found) => Transaction::new(found.producer.clone(), found.epoch + 1),
            None => Transaction::new(format!("txn-{}", sha256::prefix(id.as_bytes())), 0),
        };
        Ok(self.0.entry(id.to_owned()).insert_entry(next).into_mut())
    }

    pub(crate) fn begin(&mut self, owner: Owner<'_>) -> Result<(), NotBegun> {
        let Owner { id, epoch, .. } = owner;
        let missing = || NotBegun::Refused(format!("transaction {id} is not initialized; call INIT_PRODUCER_ID first"));
        let found = self.0.get_mut(id).ok_or_else(missing)?;
        if epoch > found.epoch && owner.producer == found.producer {
            return Err(NotBegun::Refused(fenced("producer epoch not initialized", owner, found.epoch)));
        }
        found.check_owner(owner).map_err(NotBegun::Refused)?;
        if !found.ready {
            return Err(NotBegun::Used);
        }
        found.ready = false;
        found.state = TransactionState::Open;
        Ok(())
    }

    /// The transaction if it is open and the owner's. Whether it is open is looked at first.
    fn open(&mut self, owner: Owner<'_>) -> Result<&mut Transaction, String> {
        let id = owner.id;
        let found = self.0.get_mut(id).ok_or_else(|| format!("transaction {id} not found"))?;
        if found.state != TransactionState::Open {
            return Err(format!("transaction {id} is {}", found.state.name()));
        }
        found.check_owner(owner)?;
        Ok(found)
    }

    pub(crate) fn stage_record(&mut self, owner: Owner<'_>, record: StagedRecord) -> Result<(), String> {
        self.open(owner)?.records.push(record);
        Ok(())
    }

    /// Stages offsets, which replace lower ones of the same partition.
    pub(crate) fn stage_offsets(
        &mut self,
        owner: Owner<'_>,
        scope: Scope,
        offsets: &BTreeMap<u32, u64>,
    ) -> Result<(), String> {
        let found = self.open(owner)?;
        if let Some(Scope { topic, group, member, generation }) = found.scope.as_ref().filter(|known| **known != scope)
        {
            return Err(format!(
                "transaction offset scope mismatch: expected topic={topic} group={group} member={member} \
                 generation={generation}"
            ));
        }
        for (partition, attempted) in offsets {
            if let Some(current) = found.offsets.get(partition).filter(|current| *attempted < **current) {
                let Scope { topic, group, .. } = scope;
                return Err(format!(
                    "transaction offset regression topic={topic} group={group} partition={partition} \
                     current={current} attempted={attempted}"
                ));
            }
        }
        found.scope = Some(scope);
        found.offsets.extend(offsets);
        Ok(())
    }

    /// The transaction, if it is the owner's.
    pub(crate) fn owned(&self, owner: Owner<'_>) -> Result<&Transaction, String> {
        let found = self.get(owner.id)?;
        found.check_owner(owner)?;
        Ok(found)
    }

    pub(crate) fn set_state(&mut self, id: &str, state: TransactionState) {
        if let Some(found) = self.0.get_mut(id) {
            found.state = state;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_has_one_transaction_and_a_newer_epoch_fences_it() {
        let mut all = Transactions::default();
        let first = all.init("t").unwrap().clone();
        let owner = |epoch| Owner { id: "t", producer: &first.producer, epoch };
        assert_eq!(all.begin(owner(0)), Ok(()));
        assert_eq!(all.begin(owner(0)), Err(NotBegun::Used));
        all.set_state("t", TransactionState::Committed);
        assert_eq!(all.begin(owner(0)), Err(NotBegun::Used), "an ended one too");

        assert_eq!(all.init("t").unwrap().epoch, 1);
        let fenced = "producer fenced transactional_id=t current_epoch=1 requested_epoch=0";
        assert_eq!(all.begin(owner(0)), Err(NotBegun::Refused(fenced.to_owned())));
        assert_eq!(all.owned(owner(0)).unwrap_err(), fenced);
        assert_eq!(all.begin(owner(1)), Ok(()));
    }

    #[test]
    fn nobody_starts_an_epoch_while_a_commit_is_on_its_way() {
        let mut all = Transactions::default();
        all.init("t").unwrap();
        all.set_state("t", TransactionState::Committing);
        assert!(all.init("t").unwrap_err().contains("is committing"));
        assert_eq!(all.get("t").unwrap().epoch, 0);
    }

    #[test]
    fn the_offsets_of_a_transaction_are_one_members_and_only_rise() {
        let mut all = Transactions::default();
        let producer = all.init("t").unwrap().producer.clone();
        let owner = Owner { id: "t", producer: &producer, epoch: 0 };
        let scope = |member: &str| Scope {
            topic: "o".to_owned(),
            group: "g".to_owned(),
            member: member.to_owned(),
            generation: 1,
        };
        assert_eq!(all.stage_offsets(owner, scope("m"), &[(0, 1)].into()).unwrap_err(), "transaction t is aborted");
        all.begin(owner).unwrap();
        all.stage_offsets(owner, scope("m"), &[(0, 2), (1, 1)].into()).unwrap();
        let error = all.stage_offsets(owner, scope("n"), &[(2, 1)].into()).unwrap_err();
        assert_eq!(error, "transaction offset scope mismatch: expected topic=o group=g member=m generation=1");
        assert!(all.stage_offsets(owner, scope("m"), &[(0, 1)].into()).is_err());
        all.stage_offsets(owner, scope("m"), &[(0, 2), (1, 5)].into()).unwrap();
        assert_eq!(all.get("t").unwrap().offsets, [(0, 2), (1, 5)].into());
    }
}
