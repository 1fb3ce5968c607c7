//! The queue between threads: every order in which the engine, a reader, a polling thread and the application can come to it.
//!
//! Each call here is one critical section of one lock, after which at most waiters are woken, and the crate has no unsafe code.
//! So threads can only meet between calls, and all that they can do to each other is an order of calls: those are taken one by
//! one, without threads. What a waiting poll would miss is asked of its own future. Whether each call still is one critical
//! section no order shows; the last test looks for that with threads, and finds it by chance.

use std::pin::Pin;
use std::sync::atomic::AtomicBool;

use futures_util::FutureExt;

use super::tests::{delivery, install, tp};
use super::*;
use crate::batch::tests::frame;
use crate::error::ErrorKind;

/// One call of one of the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// The reader of this number is started: with fence, turn and offset as they are then.
    Start(usize),
    Reserve(usize),
    Push(usize),
    /// The reader is cancelled, whatever it has or waits for.
    GiveUp(usize),
    EndFences,
    Install,
    Seal,
    BeginPoll,
    Take,
    EndPoll,
    Seek(u64),
    Pause,
    Resume,
    /// The application commits the batch that it took last.
    Commit,
}

const READER: &[Call] = &[Call::Start(0), Call::Reserve(0), Call::Push(0), Call::Reserve(0), Call::Push(0)];
const POLLER: &[Call] = &[Call::BeginPoll, Call::Take, Call::EndPoll, Call::BeginPoll, Call::Take];

const ESTIMATE: u64 = 100;
const AMPLE: u64 = 1 << 20;

type Reservation<'a> = Pin<Box<dyn Future<Output = Result<Room, Stale>> + 'a>>;

#[derive(Default)]
struct Reader<'a> {
    under: Option<Owned>,
    room: Option<Room>,
    waits: Option<Reservation<'a>>,
}

impl Reader<'_> {
    /// Takes the room that it waited for, if it is there by now.
    fn look(&mut self) {
        if let Some(reserved) = self.waits.as_mut().and_then(FutureExt::now_or_never) {
            self.waits = None;
            self.room = reserved.ok();
        }
    }
}

/// What must be true of the queue, as far as the calls so far say.
struct Expected {
    /// The next offset to be delivered; nothing is assigned where there is none.
    next: Option<u64>,
    untold: bool,
    sealed: bool,
    paused: bool,
}

/// Calls the queue in one order.
fn run(order: &[Call], max_buffered: u64) {
    let delivery = delivery(max_buffered, true);
    install(&delivery, &[(0, 0)]);
    delivery.enter(State::Running);
    let mut expected = Expected { next: Some(0), untold: false, sealed: false, paused: false };
    let mut readers = [Reader::default(), Reader::default()];
    let (mut poll, mut waiting, mut taken) = (None, None, None);
    for call in order {
        match *call {
            Call::Start(number) => readers[number].under = delivery.partition(&tp(0)),
            Call::Reserve(number) => {
                let reader = &mut readers[number];
                let Some(under) = reader.under else { continue };
                let delivery = &delivery;
                reader.waits =
                    Some(Box::pin(async move { delivery.reserve(&tp(0), under.fence, under.turn, ESTIMATE).await }));
                reader.look();
            }
            Call::GiveUp(number) => readers[number] = Reader::default(),
            Call::Push(number) => {
                let reader = &mut readers[number];
                reader.look();
                let (Some(under), Some(room)) = (reader.under, reader.room.take()) else { continue };
                let batch = frame("t", 0, under.fetched..under.fetched + 2);
                let current =
                    delivery.partition(&tp(0)).is_some_and(|now| (now.fence, now.turn) == (under.fence, under.turn));
                let pushed = delivery.push(&tp(0), under.fence, under.turn, batch, room);
                assert_eq!(pushed.is_ok(), current && !expected.sealed, "what is stale is refused, and nothing else");
                reader.under = pushed.ok().map(|fetched| Owned { fetched, ..under });
            }
            Call::EndFences => {
                let carried = delivery.end_fences();
                assert!(
                    carried.values().all(|offset| Some(*offset) <= expected.next),
                    "carried beyond what was delivered"
                );
                expected.untold |= expected.next.take().is_some();
                expected.paused = false;
            }
            Call::Install => {
                install(&delivery, &[(0, 50)]);
                expected.next = (!expected.sealed).then_some(50).or(expected.next);
            }
            Call::Seal => {
                delivery.seal();
                expected.sealed = true;
            }
            Call::BeginPoll => {
                poll = delivery.begin_poll().ok();
                assert_eq!(poll.is_none(), expected.sealed);
            }
            Call::Take => {
                let changed = delivery.changed();
                match delivery.take(100) {
                    Ok(Some(batch)) => {
                        assert!(!expected.sealed && !expected.untold && !expected.paused);
                        assert!(
                            delivery.check_claims(&batch.claims()).is_ok(),
                            "delivered under a fence that has ended"
                        );
                        for record in batch.iter() {
                            assert_eq!(Some(record.offset), expected.next, "each record once, in order");
                            expected.next = Some(record.offset + 1);
                        }
                        (waiting, taken) = (None, Some((batch, expected.next)));
                    }
                    Ok(None) => waiting = Some(changed),
                    Err(error) => {
                        let kind = if expected.sealed { ErrorKind::Closed } else { ErrorKind::Rebalancing };
                        assert_eq!(error.kind(), kind);
                        assert!(expected.sealed || expected.untold, "a rebalance that is told twice");
                        expected.untold = false;
                        waiting = None;
                    }
                }
            }
            Call::EndPoll => drop(poll.take()),
            Call::Seek(offset) => {
                if delivery.seek(&tp(0), offset).is_ok() {
                    expected.next = Some(offset);
                }
            }
            Call::Pause => expected.paused |= delivery.pause(&[tp(0)]).is_ok(),
            Call::Resume => expected.paused &= delivery.resume(&[tp(0)]).is_err(),
            Call::Commit => {
                if let Some((batch, _)) = &taken {
                    let current =
                        batch.claims().iter().all(|(partition, (fence, _))| delivery.is_current(partition, *fence));
                    assert_eq!(delivery.check_claims(&batch.claims()).is_ok(), current);
                }
            }
        }
        check_accounts(&delivery, &readers);
    }
    if let Some(changed) = waiting {
        let woken = changed.now_or_never().is_some();
        assert!(woken || matches!(delivery.take(1), Ok(None)), "a poll sleeps while there is something for it");
    }
    for reader in &mut readers {
        reader.look();
        let fits = delivery.lock().fits(ESTIMATE, max_buffered);
        assert!(reader.waits.is_none() || expected.paused || !fits, "a reader waits while there is room");
    }
    drop(readers);
    assert_eq!(delivery.lock().reserved, 0, "room that nobody has");
}

/// What is buffered and reserved is the sum of what there is.
fn check_accounts(delivery: &Delivery, readers: &[Reader<'_>]) {
    let rooms = readers.iter().filter(|reader| reader.room.is_some()).count() as u64;
    let waiting = readers.iter().filter(|reader| reader.waits.is_some()).count() as u64;
    let inner = delivery.lock();
    // A reader that waits may have been let in without having noticed.
    assert!((rooms * ESTIMATE..=(rooms + waiting) * ESTIMATE).contains(&inner.reserved));
    let parked = inner.partitions.values().flat_map(|kept| &kept.parked);
    let buffered: u64 = inner.queue.iter().chain(parked).map(share).sum();
    assert_eq!(inner.buffered, buffered);
    assert_eq!(inner.partitions.values().map(|kept| kept.buffered).sum::<u64>(), buffered);
    let fetched = inner.partitions.values().all(|kept| kept.position <= kept.fetched);
    assert!(fetched, "the position is never beyond what was fetched");
}

/// Runs every order of the threads' calls that keeps each thread's own; gives how many there are.
fn in_every_order(max_buffered: u64, threads: &[&[Call]]) -> u64 {
    fn go_on(max_buffered: u64, threads: &mut Vec<&[Call]>, order: &mut Vec<Call>) -> u64 {
        let mut orders = 0;
        for at in 0..threads.len() {
            let Some((call, rest)) = threads[at].split_first() else { continue };
            let before = std::mem::replace(&mut threads[at], rest);
            order.push(*call);
            orders += go_on(max_buffered, threads, order);
            order.pop();
            threads[at] = before;
        }
        if threads.iter().all(|thread| thread.is_empty()) {
            let told = std::panic::AssertUnwindSafe(|| run(order, max_buffered));
            if let Err(panic) = std::panic::catch_unwind(told) {
                println!("in this order: {order:?}");
                std::panic::resume_unwind(panic);
            }
            orders = 1;
        }
        orders
    }
    go_on(max_buffered, &mut threads.to_vec(), &mut Vec::new())
}

#[test]
fn whatever_the_order_of_a_rebalance_a_reader_and_polls_nothing_stale_is_delivered_and_no_poll_oversleeps() {
    let engine = &[Call::EndFences, Call::Install, Call::Start(1), Call::Reserve(1), Call::Push(1)];
    let orders = in_every_order(AMPLE, &[&READER[..3], &engine[..], &POLLER[1..]]);
    assert_eq!(orders, 12 * 11 * 10 * 9 * 8 * 7 * 6 / (6 * 24));
}

#[test]
fn whatever_the_order_of_a_close_a_rebalance_a_reader_and_polls_nothing_is_delivered_afterwards() {
    in_every_order(AMPLE, &[&READER[..3], &[Call::EndFences, Call::Install], &[Call::Seal], &POLLER[1..]]);
}

#[test]
fn whatever_the_order_of_seeks_pauses_a_reader_and_polls_each_record_comes_once_and_in_order() {
    in_every_order(AMPLE, &[READER, &[Call::Seek(0), Call::Pause, Call::Resume], &POLLER[1..]]);
}

#[test]
fn whatever_the_order_of_a_commit_and_a_rebalance_what_has_ended_is_not_committed() {
    in_every_order(
        AMPLE,
        &[
            &READER[..3],
            &[Call::EndFences, Call::Install],
            &[Call::BeginPoll, Call::Take, Call::Commit],
            &[Call::Seek(1)],
        ],
    );
}

#[test]
fn whatever_the_order_of_readers_that_share_too_little_room_none_waits_while_there_is_some_and_none_is_lost() {
    let reader = |number| [Call::Start(number), Call::Reserve(number), Call::Push(number), Call::GiveUp(number)];
    let waits = &[Call::Start(1), Call::Reserve(1)];
    let cancelled = &[Call::Start(0), Call::Reserve(0), Call::GiveUp(0)];
    let rebalance = &[Call::EndFences, Call::Install];
    in_every_order(ESTIMATE, &[&reader(0), &reader(1), rebalance, &[Call::Take]]);
    in_every_order(ESTIMATE, &[&reader(0)[..3], waits, &[Call::Pause, Call::Resume], &[Call::Take]]);
    in_every_order(ESTIMATE, &[&reader(0)[..3], waits, rebalance]);
    in_every_order(ESTIMATE, &[cancelled, waits, &[Call::Pause, Call::EndFences], &[Call::Take]]);
}

#[test]
#[ignore = "keeps every core busy: make explore"]
fn threads_that_rebalance_read_poll_and_seek_at_once_never_see_a_record_of_what_had_ended() {
    const REBALANCES: u64 = 20_000;
    let delivery = delivery(AMPLE, true);
    // The last fence that had ended for certain, and whether the others may stop.
    let (ended, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let going_on = || !over.load(Ordering::SeqCst);
    let engine = || {
        for _ in 0..REBALANCES {
            let before = delivery.counts().records;
            install(&delivery, &[(0, 0)]);
            let Fence(fence) = delivery.partition(&tp(0)).expect("just installed").fence;
            // The others get at something under each assignment.
            while delivery.counts().records == before && going_on() {
                std::thread::yield_now();
            }
            delivery.end_fences();
            ended.store(fence, Ordering::SeqCst);
        }
        over.store(true, Ordering::SeqCst);
    };
    let reader = || {
        while going_on() {
            let Some(under) = delivery.partition(&tp(0)) else { continue };
            let reserved = delivery.reserve(&tp(0), under.fence, under.turn, ESTIMATE).now_or_never();
            if let Some(Ok(room)) = reserved {
                let batch = frame("t", 0, under.fetched..under.fetched + 2);
                let _ = delivery.push(&tp(0), under.fence, under.turn, batch, room);
            }
        }
    };
    let poller = || {
        let (mut last, mut polled) = (Fence(0), 0);
        while going_on() {
            let had_ended = ended.load(Ordering::SeqCst);
            let _poll = delivery.begin_poll().expect("one thread polls");
            match delivery.take(100) {
                Ok(Some(batch)) => {
                    for (fence, _) in batch.claims().into_values() {
                        assert!(fence.0 > had_ended, "a record of fence {fence:?} after {had_ended} had ended");
                        assert!(fence == last || polled == 0, "{fence:?} behind {last:?} without a word");
                        (last, polled) = (fence, polled + 1);
                    }
                }
                Ok(None) => std::thread::yield_now(),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Rebalancing);
                    polled = 0;
                }
            }
        }
    };
    let seeker = || {
        while going_on() {
            let _ = delivery.seek(&tp(0), 0);
            std::thread::yield_now();
        }
    };
    // Whoever fails ends the others.
    let ending = |work: &(dyn Fn() + Sync)| {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        if let Err(panic) = result {
            over.store(true, Ordering::SeqCst);
            std::panic::resume_unwind(panic);
        }
    };
    std::thread::scope(|threads| {
        for work in [&engine as &(dyn Fn() + Sync), &reader, &poller, &seeker] {
            threads.spawn(move || ending(work));
        }
    });
    check_accounts(&delivery, &[]);
}
