//! Statistics as the dataclasses of the package, which are generated from the core's tables like the values here.

use cursus_consumer::statistics::{Measure, PARTITION_STATISTICS, STATISTICS};
use cursus_consumer::{State, Statistics};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::partition::TopicPartition;

const MODULE: &str = "cursus_consumer._statistics";

pub(crate) fn statistics<'py>(py: Python<'py>, statistics: &Statistics) -> PyResult<Bound<'py, PyAny>> {
    dataclass(py, "Statistics", statistics.values())
}

fn dataclass<'py, 'a>(
    py: Python<'py>,
    class: &str,
    values: impl Iterator<Item = (&'static str, Measure<'a>)>,
) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    for (name, value) in values {
        fields.set_item(name, measure(py, value)?)?;
    }
    py.import(MODULE)?.getattr(class)?.call((), Some(&fields))
}

fn measure<'py>(py: Python<'py>, value: Measure<'_>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Measure::Absent => py.None().into_bound(py),
        Measure::Text(text) => text.into_pyobject(py)?.into_any(),
        Measure::Integer(number) => number.into_pyobject(py)?.into_any(),
        Measure::Number(number) => number.into_pyobject(py)?.into_any(),
        Measure::State(state) => self::state(py, state)?,
        Measure::Texts(texts) => texts.into_pyobject(py)?.into_any(),
        Measure::Partitions(partitions) => {
            let all = PyDict::new(py);
            for (partition, statistics) in partitions {
                let statistics = dataclass(py, "PartitionStatistics", statistics.values())?;
                all.set_item(TopicPartition(partition.clone()), statistics)?;
            }
            all.into_any()
        }
    })
}

/// The member of the package's `State`.
pub(crate) fn state(py: Python<'_>, state: State) -> PyResult<Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CLASS.import(py, "cursus_consumer._state", "State")?.call1((state.name(),))
}

/// Return the names of all statistics, and of those of a partition. For the package's tests.
#[pyfunction]
#[pyo3(name = "_statistic_names")]
pub(crate) fn statistic_names() -> (Vec<&'static str>, Vec<&'static str>) {
    let names = |rows: &[cursus_consumer::statistics::Statistic]| rows.iter().map(|row| row.name).collect();
    (names(STATISTICS), names(PARTITION_STATISTICS))
}
