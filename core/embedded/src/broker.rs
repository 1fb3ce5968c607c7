//! One broker's life: listening, accepting, ending.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use cursus_net::{Listener, Socket};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection::Connection;
use crate::shared::{Running, Shared};

/// How many connections a broker serves. One more connects, and nothing answers it until another is closed.
const MOST_CONNECTIONS: usize = 1_000;

/// How long a broker that is told to stop gives its connections to finish what they are at.
const GRACE: Duration = Duration::from_secs(1);

/// Starts a broker on a socket that listens already.
pub(crate) fn launch(shared: &Arc<Shared>, broker: usize, listener: Box<dyn Listener>) {
    let running =
        Running { cut: shared.root.child_token(), drain: CancellationToken::new(), tasks: TaskTracker::new() };
    shared.change(|state| {
        if let Some(found) = state.brokers.get_mut(broker) {
            found.running = Some(running.clone());
        }
    });
    running.tasks.spawn(accept(shared.clone(), broker, running.clone(), listener));
}

/// Takes a broker out of the cluster: it isn't running from here on, and what it ran is handed to the caller to end.
pub(crate) fn take_down(shared: &Shared, broker: usize) -> Option<Running> {
    let running = shared.change(|state| {
        let found = state.brokers.get_mut(broker)?;
        found.down_since = Instant::now();
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

async fn accept(shared: Arc<Shared>, broker: usize, running: Running, listener: Box<dyn Listener>) {
    let slots = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            () = running.cut.cancelled() => return,
            () = running.drain.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, _)) => {
                let served = serve(shared.clone(), broker, running.clone(), slots.clone(), socket);
                running.tasks.spawn(served);
            }
            // Out of file descriptors, most likely: others must close first.
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Takes a connection off the list when its task ends, however that happens.
struct Listed {
    shared: Arc<Shared>,
    broker: usize,
    id: u64,
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

async fn serve(
    shared: Arc<Shared>,
    broker: usize,
    running: Running,
    slots: Arc<Semaphore>,
    socket: Box<dyn Socket>,
) -> io::Result<()> {
    let cut = running.cut.child_token();
    let id = shared.change(|state| {
        let id = state.next_connection;
        state.next_connection += 1;
        if let Some(found) = state.brokers.get_mut(broker) {
            found.connections.insert(id, cut.clone());
        }
        id
    });
    let listed = Listed { shared: shared.clone(), broker, id };
    let drain = running.drain.clone();
    let served = async {
        let _slot = tokio::select! {
            slot = slots.acquire() => slot,
            () = drain.cancelled() => return Ok(()),
        };
        let connection = Connection { shared, broker, id, running, socket };
        connection.serve().await
    };
    let ended = tokio::select! {
        biased;
        () = cut.cancelled() => Ok(()),
        ended = served => ended,
    };
    drop(listed);
    ended
}
