//! The callbacks that an application has set.

use std::sync::{Mutex, PoisonError};

use pyo3::PyTraverseError;
use pyo3::exceptions::PyTypeError;
use pyo3::gc::PyVisit;
use pyo3::prelude::*;

use crate::arguments::type_name;

/// Something to call; perhaps nothing.
#[derive(Default)]
pub(crate) struct Callback(Mutex<Option<Py<PyAny>>>);

impl Callback {
    /// From now on it is this that is called.
    pub(crate) fn set(&self, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        if !callback.is_callable() {
            return Err(PyTypeError::new_err(format!(
                "a callback is called with the consumer and a list of partitions; {} can't be called",
                type_name(callback)
            )));
        }
        let before = self.replace(Some(callback.clone().unbind()));
        // What ends with it may be anything, and is no business of the lock's.
        drop(before);
        Ok(())
    }

    pub(crate) fn get(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|callback| callback.clone_ref(py))
    }

    pub(crate) fn clear(&self) {
        drop(self.replace(None));
    }

    fn replace(&self, callback: Option<Py<PyAny>>) -> Option<Py<PyAny>> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), callback)
    }

    /// For the cycle collector: a callback often refers to its consumer.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.0.try_lock() {
            Ok(callback) => callback.as_ref().map_or(Ok(()), |callback| visit.call(callback)),
            // Somebody is at it, so it isn't garbage.
            Err(_) => Ok(()),
        }
    }
}
