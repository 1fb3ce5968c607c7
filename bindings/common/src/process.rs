//! Values that belong to the process that made them.

use std::mem;

use cursus_consumer::{Error, ErrorKind, Result};

/// A value whose tasks and sockets live in the process that made it.
///
/// A forked child inherits the memory and none of the threads: using the value there would wait for ever, and dropping it
/// would unregister the parent's sockets. So in a child [`get`](Self::get) is an error and dropping does nothing.
#[derive(Debug)]
pub struct OfProcess<T> {
    process: u32,
    /// Always there, until it is dropped.
    value: Option<T>,
}

impl<T> OfProcess<T> {
    /// A value of this process.
    pub fn new(value: T) -> Self {
        Self { process: std::process::id(), value: Some(value) }
    }

    /// The value; [`ErrorKind::Forked`] in a process that inherited it.
    pub fn get(&self) -> Result<&T> {
        match &self.value {
            Some(value) if self.process == std::process::id() => Ok(value),
            _ => Err(Error::new(
                ErrorKind::Forked,
                format!(
                    "this object was made by process {} and can't be used in a fork of it: make a new one here",
                    self.process
                ),
            )),
        }
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            mem::forget(self.value.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn here_it_is_used_and_dropped() {
        let value = Arc::new(());
        let own = OfProcess::new(Arc::clone(&value));
        assert!(own.get().is_ok());
        drop(own);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn elsewhere_it_is_refused_and_leaked() {
        let value = Arc::new(());
        let inherited = OfProcess { process: std::process::id() ^ 1, value: Some(Arc::clone(&value)) };
        let error = inherited.get().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Forked);
        assert!(error.to_string().contains("make a new one"), "{error}");
        drop(inherited);
        assert_eq!(Arc::strong_count(&value), 2);
    }
}
