//! Something under way, for languages in which several threads may ask what came of it.

use cursus_consumer::{Error, ErrorKind, Result};
use tokio::sync::watch;

use crate::runtime;

/// The outcome of a future, which goes on whether anybody asks or not.
#[derive(Debug, Clone)]
pub struct Pending<T>(watch::Receiver<Option<Result<T>>>);

impl<T: Clone + Send + Sync + 'static> Pending<T> {
    /// Runs the future on the process's runtime.
    pub fn of(future: impl Future<Output = Result<T>> + Send + 'static) -> Result<Self> {
        let (tell, outcome) = watch::channel(None);
        runtime::handle()?.spawn(async move {
            let outcome = future.await;
            tell.send_replace(Some(outcome));
        });
        Ok(Self(outcome))
    }

    /// What came of it; nothing while it is under way.
    pub fn outcome(&self) -> Option<Result<T>> {
        self.0.borrow().clone()
    }

    /// Waits for what comes of it.
    pub fn done(&self) -> impl Future<Output = Result<T>> + Send + use<T> {
        let mut outcome = self.0.clone();
        async move {
            let ended = || Error::new(ErrorKind::Internal, "the runtime ended before this was done");
            let outcome = outcome.wait_for(Option::is_some).await.map_err(|_| ended())?;
            outcome.clone().unwrap_or_else(|| Err(ended()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;
    use crate::wait::for_at_most;

    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn every_thread_that_asks_hears_the_same_outcome_and_so_does_who_asks_later() {
        let (send, receive) = oneshot::channel();
        let pending = Pending::of(async move { receive.await.unwrap() }).unwrap();
        assert!(pending.outcome().is_none());
        assert!(for_at_most(pin!(pending.done()), Duration::ZERO).is_none());
        std::thread::scope(|scope| {
            let asking: Vec<_> = (0..4).map(|_| scope.spawn(|| for_at_most(pin!(pending.done()), SOON))).collect();
            send.send(Ok(7)).unwrap();
            assert!(asking.into_iter().all(|asking| asking.join().unwrap().unwrap().unwrap() == 7));
        });
        assert_eq!(pending.outcome().unwrap().unwrap(), 7);
        assert_eq!(for_at_most(pin!(pending.done()), Duration::ZERO).unwrap().unwrap(), 7);
    }

    #[test]
    fn an_error_stays_one_however_often_it_is_asked_for() {
        let pending = Pending::<()>::of(async { Err(Error::new(ErrorKind::TimedOut, "too late")) }).unwrap();
        for _ in 0..2 {
            let error = for_at_most(pin!(pending.done()), SOON).unwrap().unwrap_err();
            assert_eq!((error.kind(), error.message()), (ErrorKind::TimedOut, "too late"));
        }
    }

    #[test]
    fn it_goes_on_when_nobody_asks() {
        let (send, receive) = oneshot::channel();
        drop(Pending::of(async move {
            send.send(()).unwrap();
            Ok(())
        }));
        assert!(for_at_most(pin!(receive), SOON).unwrap().is_ok());
    }
}
