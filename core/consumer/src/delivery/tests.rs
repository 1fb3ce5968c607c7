//! The shared queue by itself.

use futures_util::FutureExt;
use proptest::prelude::*;

use super::*;
use crate::batch::Batch;
use crate::batch::tests::frame;
use crate::error::ErrorKind;
use crate::types::Iteration;
use cursus_wire::Topic;

pub(super) fn tp(partition: u32) -> TopicPartition {
    TopicPartition::new(Topic::new("t").unwrap(), partition)
}

pub(super) fn delivery(max_buffered: u64, auto_commit: bool) -> Arc<Delivery> {
    Arc::new(Delivery::new(1, Topic::new("t").unwrap(), max_buffered, auto_commit))
}

pub(super) fn install(delivery: &Delivery, partitions: &[(u32, u64)]) {
    let start = |position| Start { position, committed: None };
    delivery
        .install(&partitions.iter().map(|(partition, position)| (tp(*partition), start(*position))).collect(), None);
}

pub(super) fn fence(delivery: &Delivery, partition: u32) -> Fence {
    delivery.partition(&tp(partition)).unwrap().fence
}

pub(super) fn push(
    delivery: &Arc<Delivery>,
    partition: u32,
    fence: Fence,
    offsets: std::ops::Range<u64>,
) -> Result<u64, Stale> {
    let turn = delivery.partition(&tp(partition)).map_or(0, |owned| owned.turn);
    let room = delivery.reserve(&tp(partition), fence, turn, 1).now_or_never().expect("there is room")?;
    delivery.push(&tp(partition), fence, turn, frame("t", partition, offsets), room)
}

fn offsets(batch: &Batch) -> Vec<(u32, u64)> {
    batch.iter().map(|record| (record.partition.partition, record.offset)).collect()
}

#[test]
fn records_below_the_position_are_dropped_and_gaps_counted() {
    let delivery = delivery(1 << 20, false);
    install(&delivery, &[(0, 5)]);
    let fence = fence(&delivery, 0);
    assert_eq!(push(&delivery, 0, fence, 0..5), Ok(5), "nothing new");
    assert_eq!(push(&delivery, 0, fence, 3..8), Ok(8));
    assert_eq!(push(&delivery, 0, fence, 10..12), Ok(12));
    let batch = delivery.take(100).unwrap().unwrap();
    assert_eq!(offsets(&batch), [(0, 5), (0, 6), (0, 7), (0, 10), (0, 11)]);
    let counts = delivery.counts();
    assert_eq!((counts.dropped, counts.skipped, counts.records), (7, 2, 5));
    assert_eq!(delivery.partition(&tp(0)).unwrap().position, 12);
    assert!(delivery.take(100).unwrap().is_none());
}

#[test]
fn a_take_is_bounded_and_positions_follow_it_not_what_was_fetched() {
    let delivery = delivery(1 << 20, false);
    install(&delivery, &[(0, 0)]);
    push(&delivery, 0, fence(&delivery, 0), 0..10).unwrap();
    assert_eq!(offsets(&delivery.take(4).unwrap().unwrap()).len(), 4);
    let owned = delivery.partition(&tp(0)).unwrap();
    assert_eq!((owned.position, owned.fetched), (4, 10));
    assert_eq!(delivery.buffered(), owned.buffered);
    let rest = delivery.take(100).unwrap().unwrap();
    assert_eq!(delivery.buffered(), 0);
    assert_eq!(delivery.held(), rest.slices()[0].frame.bytes(), "the application has it now");
    drop(rest);
    assert_eq!(delivery.held(), 0);
}

#[test]
fn what_ended_is_neither_delivered_nor_accepted_nor_committed_and_told_once() {
    let delivery = delivery(1 << 20, true);
    install(&delivery, &[(0, 0), (1, 0)]);
    let old = fence(&delivery, 0);
    push(&delivery, 0, old, 0..10).unwrap();
    let batch = delivery.take(6).unwrap().unwrap();
    delivery.end_fences();
    assert_eq!(delivery.state(), State::Rebalancing);
    assert_eq!(push(&delivery, 0, old, 10..20), Err(Stale));
    assert_eq!(delivery.check_claims(&batch.claims()).unwrap_err().kind(), ErrorKind::Rebalancing);
    install(&delivery, &[(0, 0)]);
    assert_eq!(push(&delivery, 0, old, 10..20), Err(Stale), "the partition came back; its fence did not");
    assert_eq!(delivery.check_claims(&batch.claims()).unwrap_err().stale(), [tp(0)]);
    let error = delivery.take(5).unwrap_err();
    assert_eq!((error.kind(), error.stale()), (ErrorKind::Rebalancing, &[tp(0), tp(1)][..]));
    assert!(delivery.take(5).unwrap().is_none(), "told once, and nothing of before is left");
    assert_eq!(delivery.buffered(), 0);
}

#[test]
fn a_poll_proves_the_batch_before_it_and_only_under_its_own_fence() {
    let delivery = delivery(1 << 20, true);
    install(&delivery, &[(0, 0)]);
    push(&delivery, 0, fence(&delivery, 0), 0..10).unwrap();
    let poll = delivery.begin_poll().unwrap();
    delivery.take(4).unwrap();
    drop(poll);
    assert!(delivery.uncommitted().is_empty());
    drop(delivery.begin_poll().unwrap());
    assert_eq!(delivery.uncommitted()[&tp(0)].1, 4);
    delivery.take(3).unwrap();
    let carried = delivery.end_fences();
    assert_eq!(carried, BTreeMap::from([(tp(0), 4)]), "what was out is not proven");
    install(&delivery, &[(0, 4)]);
    assert!(delivery.take(1).is_err(), "the rebalance is told");
    drop(delivery.begin_poll().unwrap());
    assert!(delivery.uncommitted().is_empty(), "a batch of before proves nothing now");
}

#[test]
fn an_iterator_proves_a_record_when_the_next_is_asked_for() {
    let delivery = delivery(1 << 20, true);
    install(&delivery, &[(0, 0)]);
    push(&delivery, 0, fence(&delivery, 0), 0..3).unwrap();
    let processed = || delivery.partition(&tp(0)).unwrap().processed;
    for expected in [None, Some(1), Some(2)] {
        assert!(matches!(delivery.next_record(), Ok(Iteration::Item(_))));
        assert_eq!(processed(), expected);
    }
    assert!(matches!(delivery.next_record(), Ok(Iteration::Wait)));
    assert_eq!(processed(), Some(3));
    delivery.seal();
    assert!(matches!(delivery.next_record(), Ok(Iteration::End)));
}

#[test]
fn offsets_are_committed_only_of_owned_partitions_and_up_to_the_position() {
    let delivery = delivery(1 << 20, false);
    install(&delivery, &[(0, 0)]);
    push(&delivery, 0, fence(&delivery, 0), 0..10).unwrap();
    delivery.take(4).unwrap();
    let claim = |partition, offset| delivery.claim_offsets(&BTreeMap::from([(tp(partition), offset)]));
    assert!(claim(0, 4).is_ok());
    assert_eq!(claim(0, 5).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(claim(1, 0).unwrap_err().kind(), ErrorKind::Rebalancing);
    let other = TopicPartition::new(Topic::new("other").unwrap(), 0);
    let error = delivery.claim_offsets(&BTreeMap::from([(other, 0)])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "trying again would never help");
}

#[test]
fn committing_all_that_was_polled_is_nothing_before_the_first_assignment_and_refused_in_a_rebalance() {
    let delivery = delivery(1 << 20, false);
    delivery.enter(State::Rebalancing);
    assert!(delivery.claim_all().unwrap().is_empty());
    install(&delivery, &[(0, 0)]);
    delivery.end_fences();
    assert_eq!(delivery.claim_all().unwrap_err().stale(), [tp(0)]);
    assert!(delivery.take(1).is_err(), "told");
    let error = delivery.claim_all().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Rebalancing);
    assert!(error.message().contains("nothing is assigned now"), "{error}");
    install(&delivery, &[(0, 0)]);
    assert!(delivery.claim_all().unwrap().is_empty());
}

#[test]
fn closed_is_never_left() {
    let delivery = delivery(1, false);
    delivery.enter(State::Closing);
    delivery.enter(State::Running);
    assert_eq!(delivery.state(), State::Closing);
    install(&delivery, &[(0, 0)]);
    assert!(delivery.partitions().is_empty());
    delivery.enter(State::Closed);
    for state in State::ALL {
        delivery.enter(state);
        assert_eq!(delivery.state(), State::Closed);
    }
}

#[test]
fn room_is_given_in_order_and_one_frame_may_always_exceed_it() {
    let delivery = delivery(100, false);
    install(&delivery, &[(0, 0)]);
    let (partition, fence) = (tp(0), fence(&delivery, 0));
    let reserve = |bytes| delivery.reserve(&partition, fence, 0, bytes);
    let first = reserve(u64::MAX).now_or_never().expect("an empty buffer takes anything");
    assert!(!delivery.is_room_short(), "nobody waits");
    let mut second = Box::pin(reserve(60));
    let mut third = Box::pin(reserve(30));
    let mut fourth = Box::pin(reserve(30));
    assert!((&mut second).now_or_never().is_none());
    assert!((&mut third).now_or_never().is_none());
    assert!((&mut fourth).now_or_never().is_none());
    assert!(delivery.is_room_short());
    drop(first);
    let second = (&mut second).now_or_never().expect("it was first in the queue");
    // Granted and given up before it was noticed: the next one gets it.
    drop(third);
    let fourth = (&mut fourth).now_or_never().expect("there is room again");
    let mut fifth = Box::pin(reserve(90));
    assert!((&mut fifth).now_or_never().is_none() && delivery.is_room_short());
    drop(fifth);
    assert!(!delivery.is_room_short(), "who waited has gone");
    drop((second, fourth));
    assert_eq!(delivery.lock().reserved, 0);
}

#[test]
fn under_threads_no_record_of_an_ended_fence_comes_out_and_none_of_a_live_one_is_lost() {
    for round in 0..200u64 {
        let delivery = delivery(1 << 20, false);
        install(&delivery, &[(0, 0)]);
        let old = fence(&delivery, 0);
        let before = std::sync::atomic::AtomicBool::new(true);
        std::thread::scope(|scope| {
            let reader =
                scope.spawn(|| (0..50).take_while(|i| push(&delivery, 0, old, i * 2..i * 2 + 2).is_ok()).count());
            let poller = scope.spawn(|| {
                let mut last = None;
                loop {
                    let live = before.load(Ordering::SeqCst);
                    match delivery.take(3) {
                        Ok(Some(batch)) => {
                            for (_, offset) in offsets(&batch) {
                                assert_eq!(offset, last.map_or(0, |last| last + 1), "in order, none twice");
                                last = Some(offset);
                            }
                        }
                        Ok(None) if live => std::thread::yield_now(),
                        Ok(None) => panic!("the end of the fence was not told"),
                        Err(error) => return (error.kind(), last),
                    }
                }
            });
            for _ in 0..round {
                std::hint::spin_loop();
            }
            delivery.end_fences();
            before.store(false, Ordering::SeqCst);
            assert_eq!(poller.join().unwrap().0, ErrorKind::Rebalancing);
            let pushed = reader.join().unwrap();
            assert!(pushed <= 50);
        });
        assert_eq!((delivery.buffered(), delivery.lock().reserved), (0, 0));
    }
}

#[test]
fn a_seek_drops_what_was_fetched_and_what_was_proven_beyond_it() {
    let delivery = delivery(1 << 20, true);
    install(&delivery, &[(0, 0), (1, 0)]);
    let (fence, other) = (fence(&delivery, 0), fence(&delivery, 1));
    push(&delivery, 0, fence, 0..10).unwrap();
    push(&delivery, 1, other, 0..2).unwrap();
    delivery.begin_poll().unwrap();
    let batch = delivery.take(5).unwrap().unwrap();
    let old_turn = delivery.partition(&tp(0)).unwrap().turn;
    let room = delivery.reserve(&tp(0), fence, old_turn, 1).now_or_never().unwrap().unwrap();
    delivery.seek(&tp(0), 2).unwrap();
    let late = delivery.push(&tp(0), fence, old_turn, frame("t", 0, 10..12), room);
    assert_eq!(late, Err(Stale), "what was on its way belongs to the place before");
    delivery.begin_poll().unwrap();
    assert!(delivery.uncommitted().is_empty(), "the poll after a seek back proves nothing of that partition");
    delivery.give_back(&batch);
    assert_eq!(delivery.partition(&tp(0)).unwrap().position, 2, "what is given back late doesn't undo the seek");
    assert_eq!(offsets(&delivery.take(100).unwrap().unwrap()), [(1, 0), (1, 1)], "the others are untouched");
    push(&delivery, 0, fence, 0..4).unwrap();
    assert_eq!(offsets(&delivery.take(100).unwrap().unwrap()), [(0, 2), (0, 3)]);
    assert!(delivery.check_claims(&batch.claims()).is_ok(), "ownership is unchanged");
    assert_eq!(delivery.seek(&tp(7), 0).unwrap_err().kind(), ErrorKind::InvalidState);
    delivery.end_fences();
    assert_eq!(delivery.seek(&tp(0), 0).unwrap_err().kind(), ErrorKind::Rebalancing);
}

#[test]
fn a_forward_seek_keeps_what_was_proven_before_it() {
    let delivery = delivery(1 << 20, true);
    install(&delivery, &[(0, 0)]);
    push(&delivery, 0, fence(&delivery, 0), 0..10).unwrap();
    delivery.begin_poll().unwrap();
    delivery.take(5).unwrap().unwrap();
    delivery.begin_poll().unwrap();
    delivery.seek(&tp(0), 50).unwrap();
    assert_eq!(delivery.uncommitted()[&tp(0)].1, 5);
    assert_eq!(delivery.partition(&tp(0)).unwrap().position, 50);
}

#[test]
fn what_is_paused_is_kept_back_in_order_and_comes_with_the_rest() {
    let delivery = delivery(1 << 20, false);
    install(&delivery, &[(0, 0), (1, 0)]);
    let (zero, one) = (fence(&delivery, 0), fence(&delivery, 1));
    push(&delivery, 0, zero, 0..3).unwrap();
    push(&delivery, 1, one, 0..2).unwrap();
    assert_eq!(offsets(&delivery.take(1).unwrap().unwrap()), [(0, 0)]);
    let asked = delivery.reserve(&tp(0), zero, 0, 1).now_or_never().unwrap().unwrap();
    delivery.pause(&[tp(0)]).unwrap();
    delivery.pause(&[tp(0)]).unwrap();
    assert_eq!(delivery.paused(), [tp(0)]);
    delivery.push(&tp(0), zero, 0, frame("t", 0, 3..5), asked).unwrap();
    assert_eq!(offsets(&delivery.take(100).unwrap().unwrap()), [(1, 0), (1, 1)]);
    assert!(delivery.take(100).unwrap().is_none());
    let partition = tp(0);
    let mut reader = Box::pin(delivery.reserve(&partition, zero, 0, 1));
    assert!((&mut reader).now_or_never().is_none(), "nothing new is asked for");
    assert_eq!(delivery.pause(&[tp(1), tp(9)]).unwrap_err().kind(), ErrorKind::InvalidState);
    assert_eq!(delivery.paused(), [tp(0)], "all of them or none");
    delivery.resume(&[tp(0)]).unwrap();
    assert!((&mut reader).now_or_never().is_some());
    assert_eq!(offsets(&delivery.take(100).unwrap().unwrap()), [(0, 1), (0, 2), (0, 3), (0, 4)]);
    delivery.pause(&[tp(0)]).unwrap();
    delivery.end_fences();
    install(&delivery, &[(0, 5)]);
    assert!(delivery.paused().is_empty(), "an assignment begins with nothing paused");
}

#[test]
fn what_is_paused_makes_room_where_others_need_it_and_is_fetched_again() {
    let size = frame("t", 0, 0..10).frame().len() as u64;
    let delivery = delivery(size + 10, false);
    install(&delivery, &[(0, 0), (1, 0)]);
    let zero = fence(&delivery, 0);
    push(&delivery, 0, zero, 0..10).unwrap();
    let batch = delivery.take(1).unwrap().unwrap();
    delivery.pause(&[tp(0)]).unwrap();
    let (partition, paused) = (tp(1), tp(0));
    let mut other = Box::pin(delivery.reserve(&partition, fence(&delivery, 1), 0, size));
    assert!((&mut other).now_or_never().is_some(), "a paused partition starves nobody");
    let owned = delivery.partition(&tp(0)).unwrap();
    assert_eq!((owned.position, owned.fetched, owned.buffered), (1, 1, 0));
    assert_eq!(delivery.reserve(&paused, zero, 0, 1).now_or_never().unwrap().err(), Some(Stale));
    delivery.give_back(&batch);
    delivery.resume(&[tp(0)]).unwrap();
    push(&delivery, 0, zero, 0..10).unwrap();
    let all: Vec<_> = (0..10).map(|offset| (0, offset)).collect();
    assert_eq!(offsets(&delivery.take(100).unwrap().unwrap()), all, "none lost, none twice");
}

#[test]
fn acknowledged_records_are_proven_up_to_the_first_that_is_not() {
    let delivery = delivery(1 << 20, false);
    install(&delivery, &[(0, 3)]);
    let fence = fence(&delivery, 0);
    push(&delivery, 0, fence, 3..6).unwrap();
    push(&delivery, 0, fence, 8..10).unwrap();
    let batch = delivery.take(100).unwrap().unwrap();
    let proven = || delivery.partition(&tp(0)).unwrap().processed;
    for (index, expected) in [(1, None), (0, Some(5)), (4, Some(5)), (2, Some(8)), (3, Some(10))] {
        delivery.acknowledge(&batch.get(index).unwrap()).unwrap();
        assert_eq!(proven(), expected, "after record {index}");
    }
    delivery.end_fences();
    let error = delivery.acknowledge(&batch.get(0).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Rebalancing);
}

#[test]
fn what_a_handler_finishes_after_a_seek_or_after_its_run_proves_nothing() {
    let delivery = delivery(1 << 20, false);
    install(&delivery, &[(0, 0)]);
    let proof = delivery.begin_handling().unwrap();
    push(&delivery, 0, fence(&delivery, 0), 0..10).unwrap();
    let old = delivery.take(10).unwrap().unwrap();
    assert!(delivery.finish(&old.get(2).unwrap()), "and with it what came before");
    assert_eq!(delivery.partition(&tp(0)).unwrap().processed, Some(3));
    delivery.seek(&tp(0), 2).unwrap();
    push(&delivery, 0, fence(&delivery, 0), 2..10).unwrap();
    let new = delivery.take(10).unwrap().unwrap();
    assert!(delivery.finish(&old.get(5).unwrap()), "the handler goes on with what is there now");
    assert!(delivery.finish(&new.get(0).unwrap()));
    assert_eq!(delivery.rewind().len(), 1);
    assert_eq!(delivery.partition(&tp(0)).unwrap().position, 3, "the new 5 isn't handled");
    delivery.end_handling(proof);
    assert!(!delivery.finish(&new.get(7).unwrap()), "nobody waits for it");
    push(&delivery, 0, fence(&delivery, 0), 3..10).unwrap();
    delivery.take(10).unwrap().unwrap();
    assert_eq!(delivery.claim_all().unwrap()[&tp(0)].1, 10, "polls are what counts again");
}

#[test]
fn handlers_that_end_after_close_began_go_back_to_what_they_left_and_nothing_more() {
    let delivery = delivery(1 << 20, true);
    install(&delivery, &[(0, 0), (1, 7)]);
    let proof = delivery.begin_handling().unwrap();
    push(&delivery, 0, fence(&delivery, 0), 0..10).unwrap();
    push(&delivery, 1, fence(&delivery, 1), 7..17).unwrap();
    let batch = delivery.take(5).unwrap().unwrap();
    delivery.throttle(&tp(0), delivery.partition(&tp(0)).unwrap().fence, true);
    assert!(delivery.finish(&batch.get(0).unwrap()));
    delivery.seal();
    assert_eq!(delivery.rewind(), [(tp(0), fence(&delivery, 0))], "of the other nothing was handed out");
    delivery.end_handling(proof);
    assert_eq!((delivery.buffered(), delivery.partition(&tp(0)).unwrap().position), (0, 1));
    assert_eq!(delivery.uncommitted()[&tp(0)].1, 1, "what was handled is flushed all the same");
}

#[test]
fn who_listens_hears_of_a_rebalance_before_its_records_and_its_error() {
    let delivery = delivery(1 << 20, false);
    delivery.listen();
    install(&delivery, &[(0, 0)]);
    push(&delivery, 0, fence(&delivery, 0), 0..1).unwrap();
    assert!(delivery.take(10).unwrap().is_none(), "nobody has heard of the assignment yet");
    assert_eq!(delivery.next_rebalance(), Some(Rebalance::Assigned(vec![tp(0)])));
    assert!(delivery.take(10).unwrap().is_some());
    delivery.end_fences();
    install(&delivery, &[(1, 0)]);
    assert!(delivery.take(10).unwrap().is_none());
    assert_eq!(delivery.next_rebalance(), Some(Rebalance::Revoked(vec![tp(0)])));
    assert_eq!(delivery.next_rebalance(), None, "first the poll tells what ended");
    assert_eq!(delivery.take(10).unwrap_err().kind(), ErrorKind::Rebalancing);
    assert!(delivery.take(10).unwrap().is_none());
    assert_eq!(delivery.next_rebalance(), Some(Rebalance::Assigned(vec![tp(1)])));
    delivery.seal();
    delivery.clear();
    assert_eq!(delivery.next_rebalance(), Some(Rebalance::Revoked(vec![tp(1)])), "close revokes, too");
    assert_eq!(delivery.next_rebalance(), None);
}

proptest! {
    /// Whatever is pushed and however it is taken: every new offset once, in order, and the bytes add up.
    #[test]
    fn takes_add_up_to_what_was_pushed(
        pushes in proptest::collection::vec((0u32..3, 0u64..4, 1u64..20), 1..20),
        takes in proptest::collection::vec(1usize..30, 1..40),
    ) {
        let delivery = delivery(1 << 30, false);
        install(&delivery, &[(0, 0), (1, 0), (2, 0)]);
        let mut next = [0u64; 3];
        let (mut taken, mut buffered) = (vec![Vec::new(); 3], 0);
        let mut takes = takes.into_iter();
        let take = |max, taken: &mut Vec<Vec<u64>>| {
            if let Some(batch) = delivery.take(max).unwrap() {
                for (partition, offset) in offsets(&batch) {
                    taken[partition as usize].push(offset);
                }
            }
        };
        for (partition, overlap, count) in pushes {
            let start = next[partition as usize].saturating_sub(overlap);
            let end = start + count;
            push(&delivery, partition, fence(&delivery, partition), start..end).unwrap();
            next[partition as usize] = next[partition as usize].max(end);
            if let Some(max) = takes.next() {
                take(max, &mut taken);
            }
            buffered = buffered.max(delivery.buffered());
        }
        take(usize::MAX, &mut taken);
        for partition in 0..3 {
            prop_assert_eq!(&taken[partition], &(0..next[partition]).collect::<Vec<_>>());
        }
        prop_assert_eq!(delivery.buffered(), 0);
        prop_assert!(delivery.partitions().values().all(|owned| owned.buffered == 0));
    }
}

#[test]
fn an_iteration_moves_the_position_record_by_record_and_leaves_the_rest_to_poll() {
    let delivery = delivery(1 << 20, true);
    install(&delivery, &[(0, 0)]);
    push(&delivery, 0, fence(&delivery, 0), 0..10).unwrap();
    for offset in 0..4 {
        assert!(matches!(delivery.next_record(), Ok(Iteration::Item(record)) if record.offset() == offset));
        let owned = delivery.partition(&tp(0)).unwrap();
        assert_eq!((owned.position, owned.processed), (offset + 1, (offset > 0).then_some(offset)));
    }
    assert_eq!(delivery.claim_all().unwrap()[&tp(0)].1, 4, "nothing that nobody has seen");
    let _polling = delivery.begin_poll().unwrap();
    assert_eq!(offsets(&delivery.take(100).unwrap().unwrap()), (4..10).map(|offset| (0, offset)).collect::<Vec<_>>());
    assert_eq!(delivery.partition(&tp(0)).unwrap().processed, Some(3), "record 3 was left for a reason");
}

#[test]
fn what_is_given_back_is_taken_again_and_was_never_returned() {
    let delivery = delivery(1 << 20, true);
    install(&delivery, &[(0, 0), (1, 0)]);
    push(&delivery, 0, fence(&delivery, 0), 0..2).unwrap();
    push(&delivery, 1, fence(&delivery, 1), 0..3).unwrap();
    push(&delivery, 0, fence(&delivery, 0), 5..6).unwrap();
    let before = delivery.buffered();
    let polling = delivery.begin_poll().unwrap();
    let batch = delivery.take(6).unwrap().unwrap();
    delivery.give_back(&batch);
    drop(polling);
    assert_eq!((delivery.buffered(), delivery.counts().records), (before, 0));
    assert!(delivery.claim_all().unwrap().is_empty());
    let _polling = delivery.begin_poll().unwrap();
    assert!(delivery.uncommitted().is_empty(), "nothing of it is proven");
    let again = delivery.take(6).unwrap().unwrap();
    assert_eq!(again.len(), 6);
    assert_eq!(offsets(&again), offsets(&batch));
    delivery.give_back(&again);
    delivery.end_fences();
    install(&delivery, &[(0, 0)]);
    delivery.give_back(&again);
    assert_eq!(delivery.buffered(), 0, "its assignment has ended");
}

#[test]
fn a_record_that_is_given_back_is_given_out_again_and_asking_for_it_proves_nothing() {
    let delivery = delivery(1 << 20, true);
    install(&delivery, &[(0, 0)]);
    push(&delivery, 0, fence(&delivery, 0), 0..5).unwrap();
    let next = || match delivery.next_record() {
        Ok(Iteration::Item(record)) => record,
        other => panic!("{other:?}"),
    };
    assert_eq!((next().offset(), next().offset()), (0, 1));
    let third = next();
    // A copy of it can be given back as well.
    for record in [third.detach(), third] {
        delivery.give_back(&Batch::new(1, None, vec![record.slice.clone()]));
        assert_eq!(next().offset(), 2);
        assert_eq!(delivery.partition(&tp(0)).unwrap().processed, Some(2), "nobody has seen record 2");
    }
    assert_eq!(next().offset(), 3);
    assert_eq!(delivery.partition(&tp(0)).unwrap().processed, Some(3));
}

#[test]
fn a_seek_takes_back_the_record_that_was_out_and_no_other_partitions() {
    let delivery = delivery(1 << 20, true);
    install(&delivery, &[(0, 0), (1, 0)]);
    push(&delivery, 0, fence(&delivery, 0), 0..3).unwrap();
    let processed = || delivery.partition(&tp(0)).unwrap().processed;
    delivery.next_record().unwrap();
    delivery.seek(&tp(1), 5).unwrap();
    delivery.next_record().unwrap();
    assert_eq!(processed(), Some(1), "what moved was another");
    delivery.seek(&tp(0), 0).unwrap();
    delivery.next_record().unwrap();
    assert_eq!(processed(), None, "the application went back: record 1 is to be done again");
}

#[test]
fn a_reset_to_what_is_ahead_keeps_what_was_fetched_before_and_any_other_does_not() {
    let delivery = delivery(1 << 20, false);
    install(&delivery, &[(0, 0)]);
    let fence = fence(&delivery, 0);
    let reset = |offset| delivery.reset_position(&tp(0), fence, delivery.partition(&tp(0)).unwrap().turn, offset);
    let place = || delivery.partition(&tp(0)).map(|owned| (owned.position, owned.fetched, owned.buffered)).unwrap();
    reset(20);
    assert_eq!(place(), (20, 20, 0), "where nothing was fetched that is where poll goes on");
    push(&delivery, 0, fence, 20..30).unwrap();
    let buffered = place().2;
    reset(50);
    assert_eq!(place(), (20, 50, buffered));
    push(&delivery, 0, fence, 50..51).unwrap();
    let expected: Vec<_> = (20..30).chain([50]).map(|offset| (0, offset)).collect();
    assert_eq!(offsets(&delivery.take(100).unwrap().unwrap()), expected);
    push(&delivery, 0, fence, 51..60).unwrap();
    reset(55);
    assert_eq!(place(), (55, 55, 0), "what the log no longer has isn't delivered");
    assert!(delivery.take(100).unwrap().is_none());
}

#[test]
fn what_was_assigned_before_is_not_delivered_after_another_assignment_was_asked_for() {
    let delivery = delivery(1 << 20, false);
    install(&delivery, &[(0, 0)]);
    push(&delivery, 0, fence(&delivery, 0), 0..10).unwrap();
    delivery.end_fences_quietly();
    assert!(delivery.take(100).unwrap().is_none(), "nor is it an error");
    install(&delivery, &[(1, 0)]);
    assert!(delivery.take(100).unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn the_time_without_a_poll_runs_from_the_first_assignment_and_no_later_one_renews_it() {
    let delivery = delivery(1 << 20, false);
    tokio::time::advance(Duration::from_secs(7)).await;
    assert_eq!(delivery.silent_for(), None, "there is nothing to poll for yet");
    install(&delivery, &[(0, 0)]);
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(delivery.silent_for(), Some(Duration::from_secs(5)));
    delivery.end_fences();
    install(&delivery, &[(0, 0)]);
    assert_eq!(delivery.silent_for(), Some(Duration::from_secs(5)));
    let poll = delivery.begin_poll().unwrap();
    assert_eq!(delivery.silent_for(), None);
    tokio::time::advance(Duration::from_secs(5)).await;
    drop(poll);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(delivery.silent_for(), Some(Duration::from_secs(1)));
}

#[tokio::test(start_paused = true)]
async fn handlers_have_their_time_from_where_the_first_began_whatever_waits_for_records_meanwhile() {
    let delivery = delivery(1 << 20, false);
    install(&delivery, &[(0, 0), (1, 0)]);
    let later = || tokio::time::advance(Duration::from_secs(10));
    let silent = || delivery.silent_for().map(|silent| silent.as_secs());
    let attending = delivery.attend();
    later().await;
    assert_eq!(silent(), None, "somebody waits for records");
    delivery.handle();
    later().await;
    assert_eq!(silent(), Some(10), "and still does, but has work");
    delivery.handle();
    drop(delivery.attend());
    later().await;
    assert_eq!(silent(), Some(20), "a second one that begins is no sign of the first");
    delivery.handled();
    later().await;
    assert_eq!(silent(), Some(10), "one that ends is");
    delivery.handled();
    later().await;
    assert_eq!(silent(), None);
    drop(attending);
    later().await;
    assert_eq!(silent(), Some(10));
}

#[test]
fn offsets_without_a_record_inside_a_frame_hold_no_acknowledgement_up() {
    let delivery = delivery(1 << 20, false);
    install(&delivery, &[(0, 0)]);
    let fence = fence(&delivery, 0);
    let room = delivery.reserve(&tp(0), fence, 0, 1).now_or_never().unwrap().unwrap();
    delivery.push(&tp(0), fence, 0, frame("t", 0, [0, 1, 3, 4]), room).unwrap();
    let batch = delivery.take(100).unwrap().unwrap();
    for (index, expected) in [(0, 1), (1, 3), (2, 4), (3, 5)] {
        delivery.acknowledge(&batch.get(index).unwrap()).unwrap();
        assert_eq!(delivery.partition(&tp(0)).unwrap().processed, Some(expected));
    }
}

#[test]
fn what_is_committed_already_is_not_committed_again_by_itself() {
    let delivery = delivery(1 << 20, true);
    install(&delivery, &[(0, 0)]);
    push(&delivery, 0, fence(&delivery, 0), 0..10).unwrap();
    drop(delivery.begin_poll().unwrap());
    delivery.take(100).unwrap();
    drop(delivery.begin_poll().unwrap());
    assert_eq!(delivery.uncommitted()[&tp(0)].1, 10);
    delivery.set_committed(&tp(0), fence(&delivery, 0), 10);
    assert!(delivery.uncommitted().is_empty());
    assert!(delivery.claim_all().unwrap().is_empty());
    assert!(delivery.end_fences().is_empty());
}
