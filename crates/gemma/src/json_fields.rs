//! Typed access to the JSON files of a checkpoint.

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// Typed access to a JSON object; `null` counts as absent.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(pub &'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// A value that is not `null`.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|v| !v.is_null())
    }

    /// Text.
    pub fn text(&self, key: &str) -> Result<Option<String>> {
        match self.get(key) {
            None => Ok(None),
            // transformers accepts a boolean `use_bidirectional_attention`.
            Some(Value::Bool(false)) => Ok(None),
            Some(v) => v
                .as_str()
                .map(|s| Some(s.to_string()))
                .ok_or_else(|| Error::config(format!("{key} is {v}, not text"))),
        }
    }

    /// A whole number.
    pub fn int(&self, key: &str, default: u32) -> Result<u32> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => v
                .as_u64()
                .or_else(|| v.as_f64().filter(|x| x.fract() == 0.0).map(floor_to_u64))
                .and_then(|n| u32::try_from(n).ok())
                .filter(|n| *n < 1 << 31)
                .ok_or_else(|| Error::config(format!("{key} is {v}, not a whole number in range"))),
        }
    }

    /// A whole number above 0.
    pub fn positive(&self, key: &str, default: u32) -> Result<u32> {
        match self.int(key, default)? {
            0 => Err(Error::config(format!("{key} is 0"))),
            n => Ok(n),
        }
    }

    /// A number.
    pub fn number(&self, key: &str, default: f64) -> Result<f64> {
        Ok(self.optional_number(key)?.unwrap_or(default))
    }

    /// A number, if there is one.
    pub fn optional_number(&self, key: &str) -> Result<Option<f64>> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => v
                .as_f64()
                .map(Some)
                .ok_or_else(|| Error::config(format!("{key} is {v}, not a number"))),
        }
    }

    /// True or false.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => {
                v.as_bool().ok_or_else(|| Error::config(format!("{key} is {v}, not true or false")))
            }
        }
    }

    /// An object.
    pub fn object(&self, key: &str) -> Result<Option<Fields<'a>>> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => v
                .as_object()
                .map(|m| Some(Fields(m)))
                .ok_or_else(|| Error::config(format!("{key} is not an object"))),
        }
    }
}

/// Rounds to single precision, as every consumer of these values does.
#[allow(clippy::as_conversions)]
pub(crate) fn narrow(x: f64) -> f32 {
    x as f32
}

/// Saturates, as `as` does for floats.
#[allow(clippy::as_conversions)]
pub(crate) fn floor_to_u32(x: f64) -> u32 {
    x as u32
}

#[allow(clippy::as_conversions)]
fn floor_to_u64(x: f64) -> u64 {
    x as u64
}
