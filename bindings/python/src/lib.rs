//! The module `cursus_consumer._native`: the classes that Python applications use, as they are. The package around it adds
//! what is plain Python: exceptions, enums, dataclasses and types.
//!
//! Everything that waits does so in [`runtime::wait`]; everything that can fail becomes an exception in [`errors`].
#![forbid(unsafe_code)]

mod arguments;
mod batch;
mod callbacks;
mod commits;
mod consumer;
#[cfg(feature = "testing")]
mod embedded;
mod errors;
mod group;
mod partition;
mod reading;
mod record;
mod runtime;
mod settings;
mod statistics;
#[cfg(feature = "testing")]
mod writer;

/// The native part of cursus_consumer. Import from `cursus_consumer` instead.
#[pyo3::pymodule]
mod _native {
    use pyo3::prelude::*;
    use pyo3::types::PySequence;

    #[pymodule_export]
    use crate::batch::{Batch, BatchIterator};
    #[pymodule_export]
    use crate::commits::PendingCommit;
    #[pymodule_export]
    use crate::consumer::Consumer;
    #[cfg(feature = "testing")]
    #[pymodule_export]
    use crate::embedded::{EmbeddedCluster, Hold};
    #[pymodule_export]
    use crate::errors::{error_table, raise_error};
    #[pymodule_export]
    use crate::partition::TopicPartition;
    #[pymodule_export]
    use crate::reading::{Batches, Records};
    #[pymodule_export]
    use crate::record::Record;
    #[pymodule_export]
    use crate::settings::setting_names;
    #[pymodule_export]
    use crate::statistics::statistic_names;
    #[cfg(feature = "testing")]
    #[pymodule_export]
    use crate::writer::{Transaction, TransactionalWriter};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        PySequence::register::<Batch>(module.py())
    }
}
