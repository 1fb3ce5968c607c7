use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cursus_net::{Network, Randomness, SystemRandomness, Tcp};
use cursus_wire::Topic;

use crate::delivery::Delivery;
use crate::health::Health;
use crate::settings::Settings;

/// The world a consumer lives in: its runtime, network and randomness. [`Environment::current`] is the real one.
#[derive(Clone)]
pub struct Environment {
    /// Where the consumer's tasks run.
    pub runtime: tokio::runtime::Handle,
    /// Where connections come from.
    pub network: Arc<dyn Network>,
    /// Where member suffixes and the jitter of pauses come from.
    pub randomness: Arc<dyn Randomness>,
}

impl Environment {
    /// The present tokio runtime, TCP, and the operating system's randomness. Panics outside of a tokio runtime.
    pub fn current() -> Self {
        Self::on(tokio::runtime::Handle::current())
    }

    /// The same on a given runtime.
    pub fn on(runtime: tokio::runtime::Handle) -> Self {
        Self { runtime, network: Arc::new(Tcp), randomness: Arc::new(SystemRandomness) }
    }
}

/// What the engine and the handles of one consumer share.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) delivery: Arc<Delivery>,
    pub(crate) health: Arc<Health>,
    pub(crate) environment: Environment,
}

impl Shared {
    pub(crate) fn new(settings: Settings, environment: Environment) -> Self {
        // Only has to differ between the consumers of one process, whose batches can meet.
        static LAST: AtomicU64 = AtomicU64::new(0);
        let identity = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let delivery = Arc::new(Delivery::new(
            identity,
            Topic::new(&settings.topic).expect("the topic was validated"),
            settings.max_buffered_bytes,
            settings.enable_auto_commit,
        ));
        Self { settings, delivery, health: Arc::default(), environment }
    }

    pub(crate) fn backoff(&self) -> crate::backoff::Backoff {
        crate::backoff::Backoff::new(
            Duration::from_millis(self.settings.retry_backoff_ms),
            Duration::from_millis(self.settings.retry_backoff_max_ms),
            Arc::clone(&self.environment.randomness),
        )
    }
}
