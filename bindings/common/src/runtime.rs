//! The process's runtime: made with the first consumer or cluster, shared by all of them, never dropped.

use std::mem;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use cursus_consumer::{Environment, Error, ErrorKind, Result};
use tokio::runtime::{Builder, Handle, Runtime};

/// Enough for the brokers' sockets: decoding is cheap, and applications want their cores for themselves.
const WORKERS: usize = 2;

struct Slot {
    process: u32,
    runtime: Runtime,
}

/// No lock guards this: a fork while another thread holds a lock would leave it held in the child for ever.
static SLOT: ArcSwapOption<Slot> = ArcSwapOption::const_empty();

/// The runtime of this process. After a fork the child gets one of its own.
pub fn handle() -> Result<Handle> {
    loop {
        let found = SLOT.load();
        if let Some(slot) = found.as_ref().filter(|slot| slot.process == std::process::id()) {
            return Ok(slot.runtime.handle().clone());
        }
        let made = Arc::new(Slot { process: std::process::id(), runtime: build()? });
        let before = SLOT.compare_and_swap(&found, Some(Arc::clone(&made)));
        let installed = match (before.as_ref(), found.as_ref()) {
            (None, None) => true,
            (Some(before), Some(found)) => Arc::ptr_eq(before, found),
            _ => false,
        };
        if installed {
            // The parent's runtime, if there was one: its threads don't exist here, and its sockets are the parent's.
            mem::forget(found.clone());
        } else if let Ok(lost) = Arc::try_unwrap(made).map_err(drop) {
            // Another thread was faster.
            lost.runtime.shutdown_background();
        }
    }
}

/// The real world on this process's runtime, for a consumer to live in.
pub fn environment() -> Result<Environment> {
    Ok(Environment::on(handle()?))
}

fn build() -> Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_name("cursus")
        .enable_all()
        .build()
        .map_err(|error| Error::new(ErrorKind::Internal, format!("the runtime can't start: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_ask_at_once_get_the_same_runtime() {
        let ids: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| handle().unwrap().id())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }

    #[test]
    fn what_is_spawned_runs_on_its_named_threads() {
        let name = handle().unwrap().spawn(async { std::thread::current().name().map(str::to_owned) });
        let name = std::pin::pin!(name);
        let name = crate::wait::for_at_most(name, std::time::Duration::from_secs(10)).expect("it ends");
        assert_eq!(name.unwrap().as_deref(), Some("cursus"));
    }
}
