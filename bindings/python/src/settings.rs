//! Settings from keyword arguments. Which there are, and what they accept, the core's table knows.

use std::borrow::Cow;

use cursus_consumer::settings::SETTINGS;
use cursus_consumer::{Error, ErrorKind, Settings, Value};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::arguments::type_name;
use crate::errors::OrRaise;
use crate::runtime::enter;

pub(crate) fn settings(py: Python<'_>, keywords: Option<&Bound<'_, PyDict>>) -> PyResult<Settings> {
    let mut values = Vec::new();
    for (name, given) in keywords.into_iter().flatten() {
        let name = name.extract::<String>()?;
        if name == "group_id" && given.is_none() {
            // A variable that wasn't set must not turn a member of a group into a consumer without one.
            let message = "group_id=None is not accepted: it is text. To read without a group, leave it out";
            return Err(Error::new(ErrorKind::InvalidSetting, message)).or_raise(py);
        }
        values.push((name, value(&given)?));
    }
    enter(py, || Settings::from_values(values))
}

/// What a text with half of a character in it is called.
const NO_TEXT: &str = "text with a lone surrogate";

/// The text that a `str`, or an enum that is one, holds; nothing where it can't be encoded.
fn text(given: &Bound<'_, PyString>) -> Option<String> {
    given.to_cow().ok().map(Cow::into_owned)
}

fn value(given: &Bound<'_, PyAny>) -> PyResult<Value> {
    if let Ok(text) = given.cast::<PyString>() {
        return Ok(match self::text(text) {
            Some(text) => Value::Text(text),
            None => Value::Other(NO_TEXT.to_owned()),
        });
    }
    // Before the numbers: a bool is an int in Python, and not here.
    if let Ok(truth) = given.cast::<PyBool>() {
        return Ok(Value::Boolean(truth.is_true()));
    }
    if given.is_instance_of::<PyInt>() {
        return Ok(given
            .extract()
            .map_or_else(|_| Value::Other("a number of over 127 bits".to_owned()), Value::Integer));
    }
    if given.is_instance_of::<PyList>() || given.is_instance_of::<PyTuple>() {
        let mut texts = Vec::new();
        for entry in given.try_iter()? {
            let entry = entry?;
            let Ok(text) = entry.cast::<PyString>() else {
                return Ok(Value::Other(format!("a {} with a {} in it", type_name(given), type_name(&entry))));
            };
            let Some(text) = self::text(text) else { return Ok(Value::Other(format!("a list with {NO_TEXT} in it"))) };
            texts.push(text);
        }
        return Ok(Value::List(texts));
    }
    // Only what has a short text of its own is shown as it is.
    if given.is_none() || given.is_instance_of::<PyFloat>() {
        return Ok(Value::Other(given.repr()?.to_string()));
    }
    Ok(Value::Other(format!("a value of type {}", type_name(given))))
}

/// Return the names of all settings. For the package's tests.
#[pyfunction]
#[pyo3(name = "_setting_names")]
pub(crate) fn setting_names() -> Vec<&'static str> {
    SETTINGS.iter().map(|row| row.name).collect()
}
