//! How much of everything there may be, in one place.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How much of everything there may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Limits {
    /// Bytes of a request's headers.
    pub header_bytes: usize,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Open connections; more wait to be accepted.
    pub connections: usize,
    /// Seconds for the headers of a request, and between two requests of a connection.
    pub header_seconds: u64,
    /// Seconds for the body of a request.
    pub body_seconds: u64,
    /// Requests that wait for a model, besides those that it answers.
    pub queue: usize,
    /// Seconds from a request to the end of its answer.
    pub request_seconds: u64,
    /// Seconds that a reader may take nothing.
    pub write_seconds: u64,
    /// Seconds that a request waits for its model to be loaded.
    pub load_seconds: u64,
    /// Seconds that answers may take to end when the server does.
    pub drain_seconds: u64,
    /// Seconds without a step of an engine that has something to do, before it counts as stalled.
    pub stall_seconds: u64,
    /// Events of one answer that wait for their reader.
    pub events: usize,
    /// Messages of a request.
    pub messages: usize,
    /// Tools of a request.
    pub tools: usize,
    /// Stop strings of a request.
    pub stops: usize,
    /// Bytes of a stop string.
    pub stop_bytes: usize,
    /// Answers of one request (`n`).
    pub choices: usize,
    /// Prompts of one request of plain text.
    pub prompts: usize,
    /// Entries of `logit_bias`.
    pub logit_bias: usize,
    /// Images, videos and audio clips of a request.
    pub media: usize,
    /// Bytes of a JSON schema or another grammar.
    pub schema_bytes: usize,
    /// Texts of one request for embeddings.
    pub embeddings: usize,
    /// Answers that are kept for `previous_response_id`, of one key.
    pub stored_responses: usize,
    /// Bytes of all answers that are kept, of one key.
    pub stored_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            header_bytes: 16 << 10,
            body_bytes: 20 << 20,
            connections: 1024,
            header_seconds: 60,
            body_seconds: 60,
            queue: 64,
            request_seconds: 1800,
            write_seconds: 30,
            load_seconds: 300,
            drain_seconds: 30,
            stall_seconds: 120,
            events: 16_384,
            messages: 1024,
            tools: 128,
            stops: 16,
            stop_bytes: 1024,
            choices: 8,
            prompts: 32,
            logit_bias: 1024,
            media: 16,
            schema_bytes: 256 << 10,
            embeddings: 256,
            stored_responses: 256,
            stored_bytes: 64 << 20,
        }
    }
}

impl Limits {
    /// Sets one by its name: `queue=16`, `body-bytes=64MiB`.
    pub fn set(&mut self, given: &str) -> Result<(), String> {
        let (name, value) =
            given.split_once('=').ok_or_else(|| format!("`{given}`: write NAME=VALUE"))?;
        let value: super::Bytes = value.parse()?;
        let mut all = serde_json::to_value(&*self).map_err(|e| e.to_string())?;
        let Some(slot) = all.get_mut(name) else {
            let known: Vec<&str> =
                all.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
            return Err(format!("there is no limit `{name}`; there are {}", known.join(", ")));
        };
        *slot = value.0.into();
        *self = serde_json::from_value(all).map_err(|e| format!("`{given}`: {e}"))?;
        Ok(())
    }

    /// How long a reader may take nothing.
    pub fn write_time(&self) -> Duration {
        Duration::from_secs(self.write_seconds)
    }

    /// How long a request may take.
    pub fn request_time(&self) -> Duration {
        Duration::from_secs(self.request_seconds)
    }
}

/// Two columns, as they are printed at start.
impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = serde_json::to_value(self).unwrap_or(Value::Null);
        let all: Vec<_> = all.as_object().into_iter().flatten().collect();
        for (i, (name, value)) in all.iter().enumerate() {
            let line_ends = i + 1 == all.len();
            write!(f, "{name}={value}{}", if line_ends { "" } else { " " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_can_be_set_by_its_name_and_is_printed() {
        let mut limits = Limits::default();
        limits.set("queue=3").unwrap();
        limits.set("body-bytes=2MiB").unwrap();
        assert_eq!((limits.queue, limits.body_bytes), (3, 2 << 20));
        assert!(limits.set("body=1").unwrap_err().contains("body-bytes"));
        assert!(limits.set("queue").is_err() && limits.set("queue=x").is_err());
        let said = limits.to_string();
        assert!(said.contains("queue=3") && said.contains("body-bytes=2097152"), "{said}");
        assert_eq!(said.split(' ').count(), 24);
    }
}
