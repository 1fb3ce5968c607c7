//! One broker's life: listening, accepting, ending.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use cursus_net::{Listener, Socket};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection::Connection;
use crate::shared::{Link, Running, Shared};
use crate::switch::unless;
use crate::watch;

/// How many connections a broker serves. One more connects, and nothing answers it until another is closed.
const MOST_CONNECTIONS: usize = 1_000;

/// How long a broker that is told to stop gives its connections to finish what they are at.
const GRACE: Duration = Duration::from_secs(1);

/// What a broker accepts its connections from. Brokers that swap their addresses swap these.
#[derive(Clone)]
pub(crate) struct Door(Arc<dyn Listener>);

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Door({:?})", self.0.local_address())
    }
}

/// Starts a broker on a socket that listens already.
pub(crate) fn launch(shared: &Arc<Shared>, broker: usize, listener: Box<dyn Listener>) {
    let running = Running {
        cut: shared.root.child_token(),
        drain: CancellationToken::new(),
        paused: watch::Sender::new(false),
        slots: Arc::new(Semaphore::new(MOST_CONNECTIONS)),
        tasks: TaskTracker::new(),
    };
    let (door, entered) = watch::channel(Door(Arc::from(listener)));
    shared.change(|state| {
        if let Some(found) = state.brokers.get_mut(broker) {
            (found.running, found.door) = (Some(running.clone()), Some(door));
        }
    });
    let accepting = accept(shared.clone(), entered);
    let Running { cut, drain, paused, tasks, .. } = running;
    tasks.spawn(async move {
        tokio::select! {
            biased;
            () = cut.cancelled() => {}
            () = drain.cancelled() => {}
            () = unless([paused.subscribe()], accepting) => {}
        }
    });
}

/// Takes a broker out of the cluster: it isn't running from here on, and what it ran is handed to the caller to end.
pub(crate) fn take_down(shared: &Shared, broker: usize) -> Option<Running> {
    let running = shared.change(|state| {
        let found = state.brokers.get_mut(broker)?;
        // One that was paused has been away for longer.
        if !found.is_away() {
            found.away_since = shared.clock.now();
        }
        found.paused = None;
        found.door = None;
        found.running.take()
    });
    shared.elections.notify_one();
    running
}

/// Ends what a broker ran, at once or once its connections have finished what they are at. Its socket is free after this.
pub(crate) async fn end(running: Running, gracefully: bool) {
    running.tasks.close();
    if gracefully {
        running.drain.cancel();
        let _ = timeout(GRACE, running.tasks.wait()).await;
    }
    running.cut.cancel();
    running.tasks.wait().await;
}

/// Accepts until there is no door any more.
async fn accept(shared: Arc<Shared>, mut door: watch::Receiver<Door>) {
    loop {
        let Door(listener) = door.borrow_and_update().clone();
        let accepted = tokio::select! {
            biased;
            changed = door.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, _)) => {
                if let Some((listed, running)) = Listed::enter(&shared, &*listener) {
                    running.tasks.spawn(serve(listed, running.clone(), socket));
                }
            }
            // Out of file descriptors, most likely: others must close first.
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    }
}

/// A connection on its broker's list. It leaves that when its task ends, however that happens.
struct Listed {
    shared: Arc<Shared>,
    broker: usize,
    id: u64,
    cut: CancellationToken,
    frozen: watch::Receiver<bool>,
    delay: watch::Receiver<Duration>,
}

impl Listed {
    /// Puts a connection on the list of the broker that is at this address, which may be another one since it was
    /// accepted.
    fn enter(shared: &Arc<Shared>, listener: &dyn Listener) -> Option<(Self, Running)> {
        let address = listener.local_address().ok()?;
        shared.change(|state| {
            let id = state.next_connection;
            let (broker, found) = (0..).zip(&mut state.brokers).find(|(_, broker)| broker.address == address)?;
            let running = found.running.clone()?;
            state.next_connection += 1;
            let (cut, (freeze, frozen)) = (running.cut.child_token(), watch::channel(false));
            let delay = found.delay.subscribe();
            found.connections.insert(id, Link { cut: cut.clone(), freeze });
            Some((Self { shared: shared.clone(), broker, id, cut, frozen, delay }, running))
        })
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.shared.change(|state| {
            if let Some(broker) = state.brokers.get_mut(self.broker) {
                broker.connections.remove(&self.id);
            }
        });
    }
}

async fn serve(listed: Listed, running: Running, socket: Box<dyn Socket>) -> io::Result<()> {
    let (cut, mut frozen) = (listed.cut.clone(), listed.frozen.clone());
    let switches = [running.paused.subscribe(), frozen.clone()];
    let (drain, told_to_end, slots) = (running.drain.clone(), running.drain.clone(), running.slots.clone());
    let served = async {
        let _slot = tokio::select! {
            biased;
            slot = slots.acquire() => slot,
            () = drain.cancelled() => return Ok(()),
        };
        Connection::new(listed.shared.clone(), listed.broker, listed.id, running, listed.delay.clone(), socket)
            .serve()
            .await
    };
    // A frozen connection has nothing to finish.
    let frozen_at_the_end = async {
        // The switch is on the list for as long as the connection is.
        let _ = frozen.wait_for(|frozen| *frozen).await.is_ok();
        told_to_end.cancelled().await;
    };
    tokio::select! {
        biased;
        () = cut.cancelled() => Ok(()),
        () = frozen_at_the_end => Ok(()),
        ended = unless(switches, served) => ended,
    }
}
