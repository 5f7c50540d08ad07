//! The one error, and its way into Python.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use lapidary::serde_json::{Value, json};
use lapidary::{ERROR_TABLE, ErrorCode};
use pyo3::prelude::*;
use pyo3::types::PyAny;

/// What this crate returns before it is Python's.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: ErrorCode,
    pub(crate) reason: String,
}

impl Failure {
    pub(crate) fn new(code: ErrorCode, reason: impl Into<String>) -> Self {
        Failure { code, reason: reason.into() }
    }

    pub(crate) fn argument(reason: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidArgument, reason)
    }

    fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
        Self::new(ErrorCode::Internal, format!("{said}; this is a bug, please report it"))
    }

    fn row(&self) -> &'static lapidary::ErrorRow {
        let row = ERROR_TABLE.iter().find(|row| row.code == self.code);
        row.unwrap_or(&ERROR_TABLE[0])
    }
}

impl From<lapidary::Error> for Failure {
    fn from(e: lapidary::Error) -> Self {
        Self::new(e.code(), e.to_string())
    }
}

impl From<lapidary::hub::Error> for Failure {
    fn from(e: lapidary::hub::Error) -> Self {
        lapidary::Error::from(e).into()
    }
}

/// JSON from Python that is not what it must be.
impl From<lapidary::serde_json::Error> for Failure {
    fn from(e: lapidary::serde_json::Error) -> Self {
        Self::argument(e.to_string())
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        // The classes are Python's own, so that each is also what Python calls such an error.
        Python::attach(|py| {
            let made = || -> PyResult<Bound<'_, PyAny>> {
                let errors = py.import("lapidary._errors")?;
                errors.getattr("make")?.call1((failure.row().name, failure.reason.as_str()))
            };
            made().map_or_else(|e| e, PyErr::from_value)
        })
    }
}

/// Makes an error of a panic.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // What a panic may have left half done is behind locks that are taken as they are, and each
    // change behind one of them is whole.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|e| Err(Failure::of_panic(&*e)))
}

/// The table of codes, as JSON.
#[pyfunction]
pub(crate) fn error_table() -> String {
    let row = |row: &lapidary::ErrorRow| json!({ "code": row.name, "http": row.http, "type": row.openai_type });
    ERROR_TABLE.iter().map(row).collect::<Value>().to_string()
}
