//! What every language does to take something from a consumer, step by step: whose turn it is, a look, a wait, another look.
//!
//! [`Client::step`] takes a step. What it gives tells the binding what to do in its own way before the next one: to call a
//! callback, or to wait. Nothing here borrows from the client or stays behind where a binding drops it in between.

use std::pin::Pin;
use std::task::{Context, Poll as Ready};

use cursus_consumer::driver::{Attending, Changed, Driver, Poll};
use cursus_consumer::{Batch, Error, ErrorKind, Iteration, Rebalance, Record, Result};
use tokio::sync::futures::OwnedNotified;

use crate::client::Client;
use crate::panics::guard;
use crate::timeout::{Deadline, Timeout};
use crate::turns::{Caller, Telling, Turn};

/// What a binding does next.
#[derive(Debug)]
pub enum Step<T> {
    /// Nothing: this is what was taken. Where it can't reach the application after all, give it back:
    /// [`Client::give_back`].
    Done(T),
    /// It tells the application of this, in its callback for it, drops the [`Telling`], and takes the next step.
    Tell(Rebalance, Telling),
    /// It waits for this, until the deadline at most, and takes the next step.
    Wait(Waiting),
}

/// A wait for something to change; owned, and takes nothing.
#[derive(Debug)]
pub enum Waiting {
    /// For records, or whatever else there is to know.
    Change(Changed, Option<Attending>),
    /// For another caller's callback to return.
    Told(Pin<Box<OwnedNotified>>),
}

impl Future for Waiting {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Ready<()> {
        match &mut *self {
            Self::Change(changed, _) => Pin::new(changed).poll(context),
            Self::Told(told) => told.as_mut().poll(context),
        }
    }
}

/// How one kind of thing is taken.
pub trait Take {
    /// What is taken.
    type Item;
    /// What the application calls it.
    const WHAT: &'static str;

    /// Takes it, if it is there by now.
    fn take(&mut self, driver: &Driver) -> Result<Option<Self::Item>>;
    /// A callback is about to be called: its time is the application's, and nobody waits for records meanwhile.
    fn pause(&mut self);
    /// What keeps the consumer attended while it waits, where nothing else does.
    fn attend(&self, driver: &Driver) -> Option<Attending>;
    /// What there is at the deadline.
    fn late() -> Self::Item;
    /// Puts back what reaches nobody.
    fn give_back(driver: &Driver, item: &Self::Item);
}

/// A poll.
#[derive(Debug)]
pub struct Polls {
    max_records: Option<usize>,
    open: Option<Poll>,
}

impl Take for Polls {
    type Item = Batch;
    const WHAT: &'static str = "poll";

    fn take(&mut self, driver: &Driver) -> Result<Option<Batch>> {
        match &self.open {
            Some(open) => open.take(),
            None => self.open.insert(driver.begin_poll(self.max_records)?).take(),
        }
    }

    fn pause(&mut self) {
        self.open = None;
    }

    fn attend(&self, _: &Driver) -> Option<Attending> {
        None
    }

    fn late() -> Batch {
        Batch::default()
    }

    fn give_back(driver: &Driver, batch: &Batch) {
        driver.give_back(batch);
    }
}

/// A step of an iteration over records.
#[derive(Debug)]
pub struct Records;

impl Take for Records {
    type Item = Option<Record>;
    const WHAT: &'static str = "iteration";

    fn take(&mut self, driver: &Driver) -> Result<Option<Option<Record>>> {
        driver.try_next_record().map(stepped)
    }

    fn pause(&mut self) {}

    fn attend(&self, driver: &Driver) -> Option<Attending> {
        Some(driver.attend())
    }

    fn late() -> Option<Record> {
        None
    }

    fn give_back(driver: &Driver, record: &Option<Record>) {
        record.iter().for_each(|record| driver.give_back_record(record));
    }
}

/// A step of an iteration over batches.
#[derive(Debug)]
pub struct Batches;

impl Take for Batches {
    type Item = Option<Batch>;
    const WHAT: &'static str = "iteration";

    fn take(&mut self, driver: &Driver) -> Result<Option<Option<Batch>>> {
        driver.try_next_batch().map(stepped)
    }

    fn pause(&mut self) {}

    fn attend(&self, driver: &Driver) -> Option<Attending> {
        Some(driver.attend())
    }

    fn late() -> Option<Batch> {
        None
    }

    fn give_back(driver: &Driver, batch: &Option<Batch>) {
        batch.iter().for_each(|batch| driver.give_back(batch));
    }
}

/// An iteration that has ended is taken as nothing.
fn stepped<T>(step: Iteration<T>) -> Option<Option<T>> {
    match step {
        Iteration::Item(item) => Some(Some(item)),
        Iteration::End => Some(None),
        Iteration::Wait => None,
    }
}

/// Something that is being taken.
#[derive(Debug)]
pub struct Taking<S> {
    source: S,
    caller: Caller,
    deadline: Deadline,
    /// Made before the second look, it misses nothing that happens behind that.
    changed: Option<Changed>,
}

impl<S> Taking<S> {
    fn new(source: S, caller: Caller, timeout: Timeout) -> Self {
        Self { source, caller, deadline: timeout.deadline(), changed: None }
    }

    /// When it ends, whatever comes. A binding waits until then at most.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }
}

impl Taking<Polls> {
    /// A poll for `max_records` at most. With a timeout it takes what there is by then, perhaps nothing.
    pub fn poll(caller: Caller, max_records: Option<usize>, timeout: Timeout) -> Self {
        Self::new(Polls { max_records, open: None }, caller, timeout)
    }
}

impl Taking<Records> {
    /// The next record of an iteration; nothing once the consumer is closed.
    pub fn record(caller: Caller) -> Self {
        Self::new(Records, caller, Timeout::NEVER)
    }
}

impl Taking<Batches> {
    /// The next batch of an iteration; nothing once the consumer is closed.
    pub fn batch(caller: Caller) -> Self {
        Self::new(Batches, caller, Timeout::NEVER)
    }
}

impl Client {
    /// Takes the next step. It never waits.
    ///
    /// Errors: those of [`Consumer::poll`](cursus_consumer::Consumer::poll) and of iterations; [`ErrorKind::InvalidState`] inside
    /// of a callback, which whoever called it waits for.
    pub fn step<S: Take>(&self, taking: &mut Taking<S>) -> Result<Step<S::Item>> {
        let driver = self.driver()?;
        let Taking { source, caller, deadline, changed } = taking;
        loop {
            // Most of the time there is something, and then no wait has to be prepared.
            match self.turns().next(driver, *caller, || guard(|| source.take(driver))) {
                Turn::Free(found) => match (found?, changed.take()) {
                    (Some(item), _) => return Ok(Step::Done(item)),
                    (None, None) => *changed = Some(driver.changed()),
                    (None, Some(_)) if deadline.is_over() => return Ok(Step::Done(S::late())),
                    (None, Some(changed)) => return Ok(Step::Wait(Waiting::Change(changed, source.attend(driver)))),
                },
                Turn::Tell(rebalance, telling) => {
                    source.pause();
                    return Ok(Step::Tell(rebalance, telling));
                }
                Turn::Wait(told) => {
                    source.pause();
                    if deadline.is_over() {
                        return Ok(Step::Done(S::late()));
                    }
                    return Ok(Step::Wait(Waiting::Told(told)));
                }
                Turn::Inside => return Err(inside(S::WHAT)),
            }
        }
    }

    /// Puts back what [`Step::Done`] gave and nobody will see, since the language was interrupted: it comes again.
    pub fn give_back<S: Take>(&self, _: &Taking<S>, item: &S::Item) -> Result<()> {
        self.driver().map(|driver| S::give_back(driver, item))
    }

    /// Once the consumer is closed, the callbacks that are still owed: they are stepped through like anything else. Where another
    /// caller is at one, that is waited for, until the deadline. Inside of a callback whoever called it tells the rest.
    pub fn step_closed(&self, caller: Caller, deadline: Deadline) -> Result<Step<()>> {
        Ok(match self.turns().next(self.driver()?, caller, || ()) {
            Turn::Tell(rebalance, telling) => Step::Tell(rebalance, telling),
            Turn::Wait(told) if !deadline.is_over() => Step::Wait(Waiting::Told(told)),
            Turn::Free(()) | Turn::Wait(_) | Turn::Inside => Step::Done(()),
        })
    }
}

/// The error of what can't be done inside of a callback.
fn inside(what: &str) -> Error {
    let message = format!(
        "this is inside of a callback, which the {what} in progress waits for: poll and iterate once it has returned"
    );
    Error::new(ErrorKind::InvalidState, message)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use cursus_consumer::{Settings, Value};
    use cursus_embedded::{Cluster, Options};

    use super::*;
    use crate::Pending;
    use crate::wait::for_at_most;

    const SOON: Duration = Duration::from_secs(20);

    fn block<F: Future>(future: F) -> F::Output {
        for_at_most(std::pin::pin!(future), SOON).expect("it ends in time")
    }

    fn client(records: u64, more: &[(&str, Value)]) -> (Cluster, Arc<Client>) {
        let cluster = block(Cluster::start(Options::default())).unwrap();
        cluster.create_topic("t", 2).unwrap();
        cluster.fill("t", records, 10).unwrap();
        let settings: [(&str, Value); 3] =
            [("brokers", cluster.brokers().into()), ("topic", "t".into()), ("group_id", "g".into())];
        let settings = Settings::from_values(settings.into_iter().chain(more.iter().cloned())).unwrap();
        (cluster, Arc::new(Client::new(settings).unwrap()))
    }

    /// Steps until there is something, as a language does that can await, and gives what was told on the way.
    async fn taken<S: Take>(client: Arc<Client>, mut taking: Taking<S>) -> Result<(S::Item, Vec<Rebalance>)> {
        let mut told = Vec::new();
        loop {
            match client.step(&mut taking)? {
                Step::Done(item) => return Ok((item, told)),
                Step::Tell(rebalance, telling) => {
                    // The callback awaits something of its own.
                    tokio::task::yield_now().await;
                    told.push(rebalance);
                    drop(telling);
                }
                Step::Wait(waiting) => drop(tokio::time::timeout(taking.deadline().slice(SOON), waiting).await),
            }
        }
    }

    /// Owned: it can be held by a promise, by a callback, by another thread.
    const fn owned<T: Send + 'static>(_: &T) {}

    #[test]
    fn a_poll_a_wake_up_and_a_telling_are_held_across_awaits_and_threads() {
        let (cluster, client) = client(0, &[]);
        client.listen().unwrap();
        let (called, calls) = channel();
        let wake_up = client.driver().unwrap().wake_up(move || called.send(()).unwrap());
        owned(&wake_up);
        let mut poll = Taking::poll(Caller::new(), None, Timeout::NEVER);
        // A poll that waits for the assignment, begun on this thread,
        let Step::Wait(waiting) = client.step(&mut poll).unwrap() else { panic!("nothing is assigned yet") };
        owned(&poll);
        owned(&waiting);
        // waited for on the runtime,
        let pending = Pending::of(async move {
            waiting.await;
            Ok(())
        });
        block(pending.unwrap().done()).unwrap();
        // stepped further on another thread, where the assignment is there to be told,
        let (client_there, mut poll) = (Arc::clone(&client), poll);
        let (telling, mut poll) = thread::spawn(move || {
            loop {
                match client_there.step(&mut poll).unwrap() {
                    Step::Tell(Rebalance::Assigned(partitions), telling) => {
                        assert_eq!(partitions.len(), 2);
                        return (telling, poll);
                    }
                    Step::Wait(waiting) => block(waiting),
                    other => panic!("nothing comes before the assignment is told: {other:?}"),
                }
            }
        })
        .join()
        .unwrap();
        owned(&telling);
        // while it is being told here, another caller of the same thread waits its turn, and doesn't fail,
        let mut beside = Taking::poll(Caller::new(), None, Timeout::NEVER);
        let Step::Wait(turn) = client.step(&mut beside).unwrap() else { panic!("it has to wait") };
        // and who is inside is refused.
        let error = client.step(&mut poll).unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidState && error.message().contains("callback"), "{error}");
        block(async move {
            tokio::task::yield_now().await;
            drop(telling);
            turn.await;
        });
        drop(beside);
        wake_up.arm();
        cluster.fill("t", 1, 10).unwrap();
        calls.recv_timeout(SOON).expect("the wake-up calls");
        let (batch, told) = block(taken(Arc::clone(&client), poll)).unwrap();
        assert_eq!((batch.len(), told.len()), (1, 0));
        // All of them outlive the handle.
        drop(client);
        wake_up.arm();
        drop(wake_up);
    }

    #[test]
    fn who_waits_on_a_wake_up_alone_is_not_expelled_and_who_neither_waits_nor_polls_is() {
        let interval = Duration::from_millis(400);
        let (cluster, client) = client(0, &[("max_poll_interval_ms", (interval.as_millis() as u64).into())]);
        block(client.consumer().unwrap().start(None)).unwrap();
        let (called, calls) = channel();
        let wake_up = client.driver().unwrap().wake_up(move || called.send(()).unwrap());
        // The state that it was made in is the one it has: nothing calls it but what comes.
        wake_up.arm();
        assert!(calls.recv_timeout(4 * interval).is_err(), "nothing happens for long");
        assert_eq!(cluster.group("g").unwrap().members.len(), 1, "it is a member still");
        cluster.fill("t", 1, 10).unwrap();
        calls.recv_timeout(SOON).expect("a record comes");
        let poll = Taking::poll(Caller::new(), None, Timeout::NEVER);
        let (batch, _) = block(taken(Arc::clone(&client), poll)).unwrap();
        assert_eq!(batch.len(), 1, "and no error before it");
        let empty = |cluster: &Cluster| cluster.group("g").is_none_or(|group| group.members.is_empty());
        block(cluster.wait_for("the member to leave", empty));
        let poll = Taking::poll(Caller::new(), None, Timeout::NEVER);
        let error = block(taken(Arc::clone(&client), poll)).map(|(batch, _)| batch).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MaxPollInterval);
    }

    #[test]
    fn an_iteration_gives_back_what_reaches_nobody_and_ends_with_close() {
        let (_cluster, client) = client(4, &[]);
        let step = || Taking::record(Caller::this_thread());
        let first = block(taken(Arc::clone(&client), step())).unwrap().0.unwrap();
        let again = Some(first);
        client.give_back(&step(), &again).unwrap();
        let second = block(taken(Arc::clone(&client), step())).unwrap().0.unwrap();
        assert_eq!(again.map(|record| record.offset()), Some(second.offset()));
        client.listen().unwrap();
        block(client.consumer().unwrap().close(None));
        let deadline = Timeout::CLOSE.deadline();
        let Step::Tell(Rebalance::Revoked(partitions), telling) = client.step_closed(Caller::new(), deadline).unwrap()
        else {
            panic!("close revokes")
        };
        assert_eq!(partitions.len(), 2);
        assert!(matches!(client.step_closed(Caller::new(), deadline).unwrap(), Step::Wait(_)));
        drop(telling);
        assert!(matches!(client.step_closed(Caller::new(), deadline).unwrap(), Step::Done(())));
        assert!(block(taken(Arc::clone(&client), step())).unwrap().0.is_none(), "the iteration is over");
    }
}
