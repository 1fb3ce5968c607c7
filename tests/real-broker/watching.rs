//! What would wait in silence for ever is spoken up about.

use cursus_consumer::{Commit, Consumer};

use crate::consumers::{PATIENCE, Seen, closed, poll, read, soon, started, until};
use crate::place::Place;

const REFRESH: (&str, u64) = ("metadata_refresh_ms", 300);

/// Polls until the consumer's last error says something.
async fn says(consumer: &Consumer, words: &[&str]) {
    until(&format!("it to say {words:?}"), consumer, |consumer| {
        consumer.statistics().last_error.is_some_and(|error| words.iter().all(|word| error.contains(word)))
    })
    .await;
}

#[tokio::test]
async fn a_commit_beyond_the_end_is_spoken_up_about_and_a_seek_goes_back() {
    let Some(place) = Place::any().await else { return };
    place.create(1).await;
    place.fill(1, 0..20, 50).await;
    place.commit_by_hand(0, 500).await;
    let consumer = place.consumer(&[(REFRESH.0, REFRESH.1.into())]);
    started(&consumer).await;
    says(&consumer, &["is read from 500", "ends at 20", "seek"]).await;
    let mut seen = Seen::default();
    assert!(poll(&consumer, &mut seen).await.is_empty());
    consumer.seek(&place.tp(0), 0).unwrap();
    read(&consumer, &mut seen, 20).await;
    seen.assert_exactly(0, 0..20);
    until("all to be well", &consumer, |c| c.statistics().failing_seconds.is_none()).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn a_topic_made_anew_is_spoken_up_about_and_read_again_after_a_seek() {
    let Some(place) = Place::any().await else { return };
    place.create(1).await;
    place.fill(1, 0..50, 50).await;
    let before = place.consumer(&[]);
    read(&before, &mut Seen::default(), 50).await;
    soon("the commit", before.commit(Commit::All, Some(PATIENCE))).await.unwrap();
    // Nobody reads while it is deleted: a broker that is reading just then can crash over it.
    closed(&before).await;
    place.remake(1).await;
    place.fill(1, 0..10, 50).await;
    let consumer = place.consumer(&[(REFRESH.0, REFRESH.1.into())]);
    started(&consumer).await;
    says(&consumer, &["is read from 50", "ends at 10", "made anew"]).await;
    consumer.seek(&place.tp(0), 0).unwrap();
    let mut again = Seen::default();
    read(&consumer, &mut again, 10).await;
    place.fill(1, 10..20, 50).await;
    read(&consumer, &mut again, 20).await;
    again.assert_exactly(0, 0..20);
    until("all to be well", &consumer, |c| c.statistics().failing_seconds.is_none()).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn partitions_that_a_group_does_not_share_out_are_spoken_up_about() {
    let Some(place) = Place::any().await else { return };
    place.create(2).await;
    place.fill(2, 0..10, 50).await;
    let consumer = place.consumer(&[(REFRESH.0, REFRESH.1.into())]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20).await;
    place.create(4).await;
    says(&consumer, &["has 4 partitions", "shares out the 2"]).await;
    // What it has goes on.
    place.fill(2, 10..20, 50).await;
    read(&consumer, &mut seen, 40).await;
    seen.assert_exactly(0, 0..20);
    seen.assert_exactly(1, 0..20);
    closed(&consumer).await;
    // A group that is made now gets all of them.
    let other = place.consumer(&[("group_id", format!("{}-other", place.group).into())]);
    started(&other).await;
    assert_eq!(other.assignment().len(), 4);
    closed(&other).await;
}
