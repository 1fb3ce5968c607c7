//! What only a stream has: signs of life, and a name that another reader takes over.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use cursus_wire::command::Stream;
use cursus_wire::reply::StreamFrame;
use cursus_wire::{Member, Reply, Request, frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::consumers::{Seen, closed, poll, read, soon, started};
use crate::place::Place;

#[tokio::test]
async fn a_stream_without_records_lives_by_its_signs_of_life() {
    let Some(place) = Place::any().await else { return };
    place.create(2).await;
    place.fill(2, 0..10, 50).await;
    let consumer = place.consumer(&[]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20).await;
    let before = Instant::now();
    // Longer than a stream may be silent.
    while before.elapsed() < Duration::from_secs(18) {
        assert!(poll(&consumer, &mut seen).await.is_empty());
    }
    let statistics = consumer.statistics();
    assert_eq!((statistics.reconnects, statistics.failing_seconds), (0, None), "{statistics:#?}");
    place.fill(2, 10..20, 50).await;
    read(&consumer, &mut seen, 40).await;
    seen.assert_each_once_in_order(&place.ends().await);
    closed(&consumer).await;
}

#[tokio::test]
async fn another_reader_under_the_groups_name_gets_it_and_both_read_everything() {
    let Some(place) = Place::any().await else { return };
    place.create(1).await;
    let consumer = place.consumer(&[]);
    started(&consumer).await;
    let mut seen = Seen::default();
    place.fill(1, 0..10, 50).await;
    read(&consumer, &mut seen, 10).await;
    let stranger = Stream {
        topic: place.topic.clone(),
        partition: 0,
        member: Member::new("stranger").unwrap(),
        group: place.group.clone(),
        generation: None,
        isolation: None,
        batch: None,
        offset: Some(0),
    };
    let mut stranger = Stranger::connect(&place.leader(0).await, &stranger).await;
    let mut theirs = Vec::new();
    for round in 1..=5 {
        let all = 10 * (round + 1);
        place.fill(1, 10 * round..all, 50).await;
        read(&consumer, &mut seen, all).await;
        soon("the stranger's records", async {
            while theirs.len() < all as usize {
                match stranger.next().await {
                    StreamFrame::Records(batch) => theirs.extend((0..batch.len()).map(|i| batch.offset(i))),
                    StreamFrame::KeepAlive => {}
                    StreamFrame::Close(close) => panic!("taken away from the stranger again: {close:?}"),
                }
            }
        })
        .await;
        soon("the commit", consumer.commit(cursus_consumer::Commit::All, None)).await.unwrap();
    }
    assert!(theirs.iter().copied().eq(0..60), "{theirs:?}");
    seen.assert_exactly(0, 0..60);
    let statistics = consumer.statistics();
    assert_eq!((statistics.rebalances, statistics.failing_seconds), (0, None), "{statistics:#?}");
    closed(&consumer).await;
}

/// A client that streams and knows nothing of us.
struct Stranger {
    socket: TcpStream,
    buffer: BytesMut,
}

impl Stranger {
    async fn connect(broker: &str, request: &Stream) -> Self {
        let mut socket = TcpStream::connect(broker).await.expect("a broker");
        socket.write_all(&request.frame().expect("a command fits a frame")).await.expect("a broker that listens");
        Self { socket, buffer: BytesMut::new() }
    }

    async fn next(&mut self) -> StreamFrame {
        loop {
            if let Some(body) = frame::take(&mut self.buffer).expect("a frame") {
                return StreamFrame::parse(&body).expect("a frame that makes sense");
            }
            let read = self.socket.read_buf(&mut self.buffer).await.expect("the stream goes on");
            assert!(read > 0, "the broker ended the stranger's stream without a word");
        }
    }
}
