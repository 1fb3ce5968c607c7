//! Members come and go: both read, nothing is lost, and the group's own picture agrees.

use std::time::Duration;

use cursus_consumer::{Consumer, ErrorKind};
use cursus_wire::Member;
use cursus_wire::command::JoinGroup;

use crate::client::ask;
use crate::consumers::{PATIENCE, Seen, closed, poll, read, started, told, until};
use crate::place::Place;

/// Reads and commits batch by batch for as long as `on` says, going through rebalances.
async fn work(consumer: &Consumer, seen: &mut Seen, on: impl Fn(&Seen) -> bool) {
    while on(seen) {
        let batch = poll(consumer, seen).await;
        match consumer.commit(&batch, Some(PATIENCE)).await {
            Err(error) if error.kind() == ErrorKind::Rebalancing => {}
            other => other.unwrap(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_member_joins_and_both_read_and_nothing_is_lost() {
    let Some(place) = Place::any().await else { return };
    place.create(6).await;
    place.fill(6, 0..1000, 50).await;
    let small = [("max_poll_records", 50u64.into())];
    let (first, second) = (place.consumer(&small), place.consumer(&small));
    let (mut one, mut two) = (Seen::default(), Seen::default());
    work(&first, &mut one, |seen| seen.distinct() < 1500).await;
    assert_eq!(first.assignment().len(), 6);
    let total = std::sync::Mutex::new((one.distinct(), 0));
    // Duplicates at the boundary count twice here: a little more than everything is read, or it ends by being quiet.
    let more = |seen: &Seen, which: fn(&mut (u64, u64)) -> &mut u64| {
        let mut total = total.lock().unwrap();
        *which(&mut total) = seen.distinct();
        total.0 + total.1 < 6000 || seen.silent() < Duration::from_secs(2)
    };
    tokio::join!(
        work(&first, &mut one, |seen| more(seen, |total| &mut total.0)),
        work(&second, &mut two, |seen| more(seen, |total| &mut total.1)),
    );
    assert_eq!((one.rebalances(), first.statistics().rebalances), (1, 1));
    assert_eq!((first.assignment().len(), second.assignment().len()), (3, 3));
    Seen::assert_nothing_lost(&[&one, &two], &place.ends().await);
    // What was read and not committed when the group moved on comes again: one batch, as each was committed at once.
    let again = one.distinct() + one.duplicates() + two.distinct() + two.duplicates() - 6000;
    assert!(two.distinct() > 0 && again <= 50, "{again} records were read twice");
    let members = place.wait_members(2).await;
    for consumer in [&first, &second] {
        let mine: Vec<u32> = consumer.assignment().iter().map(|partition| partition.partition).collect();
        assert_eq!(members[&consumer.statistics().member.unwrap()], mine);
    }
    place.wait_committed(&place.ends().await).await;
    // What is written now goes to both.
    place.fill(6, 1000..1100, 50).await;
    let before = (one.distinct(), two.distinct());
    tokio::join!(read(&first, &mut one, before.0 + 300), read(&second, &mut two, before.1 + 300));
    // The one that stays gets everything when the other closes.
    closed(&second).await;
    assert_eq!(told(&first).await, 3);
    until("everything to be its own", &first, |first| first.assignment().len() == 6).await;
    place.fill(6, 1100..1150, 50).await;
    work(&first, &mut one, |one| (0..6).any(|partition| !one.of(partition).contains(&1149))).await;
    Seen::assert_nothing_lost(&[&one, &two], &place.ends().await);
    closed(&first).await;
}

#[tokio::test]
async fn more_members_than_partitions_leave_one_spare_that_takes_over() {
    let Some(place) = Place::any().await else { return };
    place.create(1).await;
    place.fill(1, 0..20, 50).await;
    let members = [place.consumer(&[]), place.consumer(&[])];
    for member in &members {
        started(member).await;
    }
    until("one of them to hold the partition", &members[0], |first| {
        first.assignment().len() + members[1].assignment().len() == 1
    })
    .await;
    let holder = usize::from(members[0].assignment().is_empty());
    let spare = &members[1 - holder];
    closed(&members[holder]).await;
    until("the spare to take over", spare, |spare| spare.assignment().len() == 1).await;
    let mut seen = Seen::default();
    read(spare, &mut seen, 20).await;
    closed(spare).await;
}

#[tokio::test]
async fn a_member_that_died_expires_and_its_partitions_are_read_by_the_one_that_lives() {
    let Some(place) = Place::any().await else { return };
    place.create(4).await;
    place.fill(4, 0..100, 50).await;
    let consumer = place.consumer(&[]);
    started(&consumer).await;
    let ghost = JoinGroup {
        topic: place.topic.clone(),
        group: place.group.clone(),
        member: Member::new("ghost").unwrap(),
        generation: None,
    };
    ask(&place.coordinator(&place.group).await, &ghost).await.unwrap();
    until("the ghost to have its half", &consumer, |consumer| consumer.assignment().len() == 2).await;
    // Sessions end after ten seconds, and are looked at every five.
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 400).await;
    assert_eq!(consumer.assignment().len(), 4);
    assert_eq!(place.wait_members(1).await.len(), 1);
    closed(&consumer).await;
}
