//! The applications around the members: they take records, work on them for a while, and say that they are processed, each
//! in its way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cursus_consumer::{Batch, Commit, Consumer, Error, ErrorKind, Record, RunError};
use cursus_embedded::Cluster;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::draw::Draw;
use crate::oracle::Oracle;
use crate::plan::{MemberPlan, Style};

/// An application, and what it knows.
#[derive(Clone)]
pub(crate) struct Application {
    pub(crate) host: usize,
    pub(crate) plan: MemberPlan,
    pub(crate) consumer: Arc<Consumer>,
    pub(crate) cluster: Cluster,
    pub(crate) oracle: Arc<Oracle>,
    pub(crate) draw: Draw,
    /// No more harm is done: whatever is processed is committed.
    pub(crate) settling: Arc<AtomicBool>,
}

impl Application {
    /// Runs until the consumer is closed.
    pub(crate) async fn run(self) {
        match self.plan.style {
            Style::Commit => self.poll_and_commit().await,
            Style::Auto => self.poll_only().await,
            Style::Records => self.iterate_records().await,
            Style::Batches => self.iterate_batches().await,
            Style::Handlers => self.handle().await,
            Style::Acks => self.poll_and_acknowledge().await,
        }
    }

    async fn work(&self) {
        self.dawdle(self.plan.work_ms).await;
    }

    /// Takes up to this much time; next to none in peace, which is long enough for a consumer, not for any application.
    async fn dawdle(&self, ms: u64) {
        let ms = if self.settling.load(Ordering::Relaxed) { ms.min(5) } else { ms };
        if ms > 0 {
            sleep(Duration::from_millis(self.draw.below(ms + 1))).await;
        }
    }

    fn processed(&self, batch: &Batch) {
        for record in batch.iter() {
            self.oracle.processed(record.partition.partition, record.offset);
        }
    }

    /// What goes on by itself; anything else closed the consumer, or shouldn't have happened. Whether it goes on.
    fn goes_on(&self, error: &Error) -> bool {
        match error.kind() {
            ErrorKind::Rebalancing | ErrorKind::MaxPollInterval => true,
            ErrorKind::Closed => false,
            _ => {
                self.oracle.fail(format_args!("host {} was told {error:?}", self.host));
                false
            }
        }
    }

    /// A poll; nothing once the consumer is closed.
    async fn poll(&self, last: &Batch) -> Option<Batch> {
        loop {
            self.oracle.observe(self.host);
            let time = Duration::from_millis(self.draw.pick(&[0, 10, 300, 2_000]));
            // Some polls are given up by those who wait for them, which loses nothing.
            let patience = if self.draw.one_in(5) { Duration::from_millis(self.draw.below(50)) } else { Duration::MAX };
            let poll = timeout(patience, self.consumer.poll(Some(time)));
            let polled = self.oracle.within("polls end by their timeout", self.host, time.min(patience), poll).await?;
            let Ok(polled) = polled else { continue };
            match polled {
                Ok(batch) => {
                    self.oracle.delivered(self.host, &self.consumer, &batch);
                    if batch.is_empty() && time.is_zero() {
                        // A poll that doesn't wait is no way to wait.
                        sleep(Duration::from_millis(10)).await;
                    }
                    return Some(batch);
                }
                Err(error) => {
                    self.oracle.note(format_args!("host {} is told {error}", self.host));
                    if !self.goes_on(&error) {
                        return None;
                    }
                    self.refused(last);
                }
            }
        }
    }

    /// What was read before a rebalance can't be committed after it.
    fn refused(&self, last: &Batch) {
        self.oracle.check("what was read before a rebalance can't be committed after it");
        if last.is_empty() || !self.consumer.owned(last).is_empty() {
            return;
        }
        if let Ok(_outcome) = self.consumer.begin_commit(Commit::Batch(last), None) {
            self.oracle.fail(format_args!("host {} may commit {last:?}, which it owns nothing of", self.host));
        }
    }

    async fn poll_and_commit(&self) {
        let mut last = Batch::default();
        while let Some(batch) = self.poll(&last).await {
            if !batch.is_empty() {
                self.work().await;
                self.processed(&batch);
                self.commit(&batch).await;
                last = batch;
            } else if self.settling.load(Ordering::Relaxed) {
                self.attempt(Commit::All, &BTreeMap::new()).await;
            }
        }
    }

    /// Commits a batch in one of the ways there are.
    async fn commit(&self, batch: &Batch) {
        let by_number = |offsets: &BTreeMap<_, u64>| -> BTreeMap<u32, u64> {
            offsets
                .iter()
                .map(|(tp, offset): (&cursus_consumer::TopicPartition, &u64)| (tp.partition, *offset))
                .collect()
        };
        let all = batch.next_offsets();
        match self.draw.below(10) {
            0 => {}
            1 => {
                // It is carried out, though nobody waits for it.
                let time = Some(Duration::from_secs(3));
                if let Err(error) = self.consumer.begin_commit(Commit::Batch(batch), time).map(drop) {
                    self.refused_commit(&error);
                }
            }
            // What a seek has gone away from meanwhile isn't part of all.
            2 => self.attempt(Commit::All, &BTreeMap::new()).await,
            3 => {
                let record = self.draw.below(batch.len() as u64) as usize;
                let Some(record) = batch.get(record) else { return };
                let offset = BTreeMap::from([(record.partition().partition, record.offset() + 1)]);
                self.attempt(Commit::Record(&record), &offset).await;
            }
            4 => {
                let some: BTreeMap<_, _> = all.into_iter().filter(|_| self.draw.one_in(2)).collect();
                self.attempt(Commit::Offsets(&some), &by_number(&some)).await;
            }
            5 => {
                self.dawdle(4_000).await;
                self.attempt(Commit::Batch(batch), &by_number(&all)).await;
            }
            _ => self.attempt(Commit::Batch(batch), &by_number(&all)).await,
        }
    }

    async fn attempt(&self, what: Commit<'_>, offsets: &BTreeMap<u32, u64>) {
        let time = Duration::from_millis(self.draw.pick(&[0, 300, 5_000]));
        let commit = self.consumer.commit(what, Some(time));
        let Some(result) = self.oracle.within("commits end by their timeout", self.host, time, commit).await else {
            return;
        };
        self.oracle.note(format_args!("host {} commits {what:?}: {result:?}", self.host));
        match result {
            Ok(()) => self.oracle.acknowledged(self.host, &self.cluster, offsets),
            Err(error) => self.refused_commit(&error),
        }
    }

    fn refused_commit(&self, error: &Error) {
        let foreseen = matches!(
            error.kind(),
            ErrorKind::Rebalancing
                | ErrorKind::TimedOut
                | ErrorKind::CommitOutcomeUnknown
                | ErrorKind::OffsetRegression
                | ErrorKind::InvalidArgument
                | ErrorKind::Broker
                | ErrorKind::Closed
        );
        if !foreseen {
            self.oracle.fail(format_args!("host {} could not commit: {error:?}", self.host));
        }
    }

    async fn poll_only(&self) {
        let mut last = Batch::default();
        while let Some(batch) = self.poll(&last).await {
            if !batch.is_empty() {
                self.work().await;
                self.processed(&batch);
                last = batch;
            }
        }
    }

    async fn poll_and_acknowledge(&self) {
        let mut workers = JoinSet::new();
        let mut last = Batch::default();
        while let Some(batch) = self.poll(&last).await {
            for i in 0..batch.len() {
                let (Some(record), this) = (batch.get(i), self.clone()) else { continue };
                workers.spawn(async move {
                    this.work().await;
                    this.oracle.processed(record.partition().partition, record.offset());
                    if let Err(error) = this.consumer.ack(&record) {
                        this.goes_on(&error);
                    }
                });
            }
            while workers.len() > 100 {
                workers.join_next().await;
            }
            while workers.try_join_next().is_some() {}
            if !batch.is_empty() {
                last = batch;
            }
        }
    }

    async fn iterate_records(&self) {
        loop {
            match self.consumer.next_record().await {
                Ok(Some(record)) => {
                    self.took(&record);
                    self.work().await;
                    self.oracle.processed(record.partition().partition, record.offset());
                }
                Ok(None) => return,
                Err(error) => {
                    if !self.goes_on(&error) {
                        return;
                    }
                }
            }
        }
    }

    fn took(&self, record: &Record) {
        let (partition, offset) = (record.partition().partition, record.offset());
        self.oracle.delivered_record(self.host, &self.consumer, partition, offset, &record.value());
    }

    async fn iterate_batches(&self) {
        loop {
            match self.consumer.next_batch().await {
                Ok(Some(batch)) => {
                    self.oracle.delivered(self.host, &self.consumer, &batch);
                    self.work().await;
                    self.processed(&batch);
                }
                Ok(None) => return,
                Err(error) => {
                    if !self.goes_on(&error) {
                        return;
                    }
                }
            }
        }
    }

    async fn handle(&self) {
        loop {
            let this = self.clone();
            let handler = move |record: Record| {
                let this = this.clone();
                async move { this.handle_one(&record).await }
            };
            // Some runs are given up by those who wait for them.
            let patience =
                if self.draw.one_in(4) { Duration::from_millis(self.draw.below(10_000)) } else { Duration::MAX };
            match timeout(patience, self.consumer.run(handler)).await {
                Ok(Ok(())) => return,
                // The next run goes on with the record that failed, or that was being handled.
                Ok(Err(RunError::Handler { .. })) | Err(_) => self.oracle.runs_anew(self.host),
                Ok(Err(RunError::Consumer(error))) => {
                    if !self.goes_on(&error) {
                        return;
                    }
                }
            }
        }
    }

    async fn handle_one(&self, record: &Record) -> Result<(), ()> {
        let partition = record.partition().partition;
        self.took(record);
        self.oracle.handling(self.host, partition);
        // Handlers that are ended by a rebalance are dropped.
        let _handled = Handled(self, partition);
        self.work().await;
        if self.draw.one_in(200) {
            return Err(());
        }
        self.oracle.processed(partition, record.offset());
        Ok(())
    }
}

struct Handled<'a>(&'a Application, u32);

impl Drop for Handled<'_> {
    fn drop(&mut self) {
        self.0.oracle.handled(self.0.host, self.1);
    }
}
