//! Groups as the dataclasses of the package.

use cursus_consumer::{GroupDescription, GroupMetadata};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::partition::TopicPartition;

const MODULE: &str = "cursus_consumer._group";

pub(crate) fn metadata<'py>(py: Python<'py>, of: &GroupMetadata) -> PyResult<Bound<'py, PyAny>> {
    py.import(MODULE)?.getattr("GroupMetadata")?.call1((&of.group, &of.topic, &of.member, of.generation))
}

pub(crate) fn description<'py>(py: Python<'py>, of: &GroupDescription) -> PyResult<Bound<'py, PyAny>> {
    let module = py.import(MODULE)?;
    let (member, partition) = (module.getattr("GroupMember")?, module.getattr("PartitionDescription")?);
    let members = PyList::empty(py);
    for found in &of.members {
        members.append(member.call1((&found.member, TopicPartition::list(py, &found.partitions)?))?)?;
    }
    let partitions = PyDict::new(py);
    for (name, found) in &of.partitions {
        let description = partition.call1((&found.member, found.committed, found.lag))?;
        partitions.set_item(TopicPartition(name.clone()), description)?;
    }
    let description = (&of.group, &of.topic, &of.state, of.generation, members, partitions);
    module.getattr("GroupDescription")?.call1(description)
}
