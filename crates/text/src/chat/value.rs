//! What a template computes with, and what that may take.
//!
//! A template makes no value that isn't measured. Lists and maps know how deep they are and how
//! much they hold with everything inside counted each time it occurs, so whatever walks a value
//! ends soon and needs little stack. Nothing is lazy. Whatever can hold other values and change
//! (namespaces, loops, macros) is a number here, and the machine has the thing.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error as JinjaError, ErrorKind, Value};

use super::python;
use crate::error::Error;

/// Levels of lists and maps in a value.
const MAX_DEPTH: usize = 64;

/// What one entry of a list takes.
const ENTRY: usize = 32;

/// Bytes that a rendering may make, beside what it may make of its input.
const BYTES: usize = 24 << 20;

/// The largest single value, beside the input's size.
const VALUE: usize = 8 << 20;

/// The most that any input allows.
const MOST_BYTES: usize = 512 << 20;

/// Steps of one rendering. Some templates look back over all messages at each one; this is enough
/// for a thousand of them.
const STEPS: u64 = 10_000_000;

/// What is said when a template makes too much text.
pub(super) const TEXT: &str = "the length of its text";

/// Why a rendering ends before its end.
#[derive(Debug)]
pub(super) enum Fail {
    /// The template asks for what it can't have.
    Jinja(JinjaError, Option<u32>),
    /// Said by the template, or a limit.
    Known(Error),
}

pub(super) type Run<T> = Result<T, Fail>;

impl From<JinjaError> for Fail {
    fn from(e: JinjaError) -> Self {
        Fail::Jinja(e, None)
    }
}

pub(super) fn limit<T>(what: &'static str) -> Run<T> {
    Err(Fail::Known(Error::TemplateLimit { what }))
}

pub(super) fn invalid<T>(what: impl Into<String>) -> Run<T> {
    Err(JinjaError::new(ErrorKind::InvalidOperation, what.into()).into())
}

/// What a rendering has left.
pub(super) struct Meter {
    bytes: usize,
    largest: usize,
    steps: u64,
    #[cfg(not(target_family = "wasm"))]
    until: std::time::Instant,
}

impl Meter {
    /// For an input of so many bytes and entries.
    pub(super) fn new(bytes: usize, entries: usize) -> Self {
        let made = bytes.saturating_mul(entries.saturating_add(16));
        #[cfg(not(target_family = "wasm"))]
        let until = {
            // Some templates look back over all messages at each one.
            let back = entries.saturating_mul(entries) / 200;
            let scaled = (bytes / 512).saturating_add(entries).saturating_add(back).min(20_000);
            std::time::Duration::from_millis(800 + scaled as u64)
        };
        Meter {
            bytes: BYTES.saturating_add(made).min(MOST_BYTES),
            largest: VALUE.saturating_add(bytes.saturating_mul(2)),
            steps: STEPS,
            #[cfg(not(target_family = "wasm"))]
            until: std::time::Instant::now() + until,
        }
    }

    /// Takes steps.
    pub(super) fn step(&mut self, n: usize) -> Run<()> {
        let before = self.steps;
        self.steps = match self.steps.checked_sub(n as u64 + 1) {
            Some(left) => left,
            None => return limit("time"),
        };
        #[cfg(not(target_family = "wasm"))]
        if before / 1024 != self.steps / 1024 && std::time::Instant::now() > self.until {
            return limit("time");
        }
        Ok(())
    }

    /// Takes memory, before it is allocated. Making it takes time, too.
    pub(super) fn grow(&mut self, bytes: usize) -> Run<()> {
        if bytes > self.largest {
            return limit("the size of a value");
        }
        self.emit(bytes, "memory")
    }

    /// Takes memory for text that is given.
    pub(super) fn emit(&mut self, bytes: usize, what: &'static str) -> Run<()> {
        self.bytes = match self.bytes.checked_sub(bytes) {
            Some(left) => left,
            None => return limit(what),
        };
        self.step(bytes / 64)
    }

    /// `str(value)`, measured.
    pub(super) fn print(&mut self, value: &Value, out: &mut String) -> Run<()> {
        self.write(out, |sink| python::print(value, sink))
    }

    /// Text that is written bit by bit.
    pub(super) fn write(
        &mut self,
        out: &mut String,
        write: impl FnOnce(&mut dyn Write) -> std::fmt::Result,
    ) -> Run<()> {
        let left = self.bytes.min(self.largest.saturating_mul(2));
        let mut sink = Sink { out, left, full: false };
        let done = write(&mut sink);
        let (full, made) = (sink.full, left - sink.left);
        self.emit(made, TEXT)?;
        match done {
            Ok(()) => Ok(()),
            Err(_) if full => limit(TEXT),
            Err(_) => invalid("this value has no text"),
        }
    }

    /// A list of values that exist.
    pub(super) fn list(&mut self, items: Vec<Value>, tuple: bool) -> Run<Value> {
        let mut size = Size::default();
        for item in &items {
            size.add(item);
        }
        let size = self.container(size, items.len())?;
        Ok(Value::from_object(List { items, size, tuple }))
    }

    /// A map of values that exist.
    pub(super) fn map(&mut self, map: BTreeMap<Value, Value>) -> Run<Value> {
        let mut size = Size::default();
        for (key, value) in &map {
            size.add(key);
            size.add(value);
        }
        let size = self.container(size, map.len() * 3)?;
        Ok(Value::from_object(Dict { map, size }))
    }

    fn container(&mut self, inside: Size, entries: usize) -> Run<Size> {
        let size = Size { weight: inside.weight.saturating_add(ENTRY), depth: inside.depth + 1 };
        if size.depth > MAX_DEPTH {
            return limit("the depth of a value");
        }
        if size.weight > self.largest {
            return limit("the size of a value");
        }
        self.grow(entries.saturating_mul(ENTRY))?;
        Ok(size)
    }

    /// Text that was just made.
    pub(super) fn text(&mut self, text: String) -> Run<Value> {
        self.grow(text.len())?;
        Ok(Value::from(text))
    }

    /// Takes over what the engine's filters give: whole, measured, and nothing lazy in it.
    pub(super) fn take(&mut self, value: Value) -> Run<Value> {
        self.take_at(value, 0)
    }

    fn take_at(&mut self, value: Value, depth: usize) -> Run<Value> {
        if depth > MAX_DEPTH {
            return limit("the depth of a value");
        }
        if is_ours(&value) {
            return Ok(value);
        }
        match value.kind() {
            ValueKind::String => {
                self.grow(value.as_str().map_or(0, str::len))?;
                Ok(value)
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let tuple = value.is_tuple();
                let mut items = Vec::new();
                for item in value.try_iter()? {
                    self.grow(ENTRY)?;
                    items.push(self.take_at(item, depth + 1)?);
                }
                self.list(items, tuple)
            }
            ValueKind::Map => {
                let mut map = BTreeMap::new();
                for key in value.try_iter()? {
                    self.grow(3 * ENTRY)?;
                    let item = value.get_item(&key)?;
                    let key = self.take_at(key, depth + 1)?;
                    map.insert(key, self.take_at(item, depth + 1)?);
                }
                self.map(map)
            }
            ValueKind::Invalid => invalid("this value can't be used"),
            _ => Ok(value),
        }
    }

    /// A request's own values.
    pub(super) fn given(&mut self, value: &serde_json::Value) -> Run<Value> {
        Ok(match value {
            serde_json::Value::Null => Value::from(()),
            serde_json::Value::Bool(b) => Value::from(*b),
            serde_json::Value::Number(n) => Value::from(minijinja::value::Serde(n)),
            serde_json::Value::String(s) => Value::from(s.as_str()),
            serde_json::Value::Array(items) => {
                let items = items.iter().map(|v| self.given(v)).collect::<Run<Vec<_>>>()?;
                self.list(items, false)?
            }
            serde_json::Value::Object(map) => {
                let map = map.iter().map(|(k, v)| Ok((Value::from(k.as_str()), self.given(v)?)));
                let map = map.collect::<Run<BTreeMap<_, _>>>()?;
                self.map(map)?
            }
        })
    }
}

/// What a request holds: bytes, and messages and parts.
pub(super) fn measure(value: &serde_json::Value) -> (usize, usize) {
    match value {
        serde_json::Value::String(s) => (s.len() + ENTRY, 0),
        serde_json::Value::Array(items) => {
            items.iter().map(measure).fold((ENTRY, 0), |a, b| (a.0 + b.0, a.1 + b.1 + 1))
        }
        serde_json::Value::Object(map) => map.iter().fold((ENTRY, 0), |a, (k, v)| {
            let b = measure(v);
            (a.0 + b.0 + k.len() + 3 * ENTRY, a.1 + b.1)
        }),
        _ => (ENTRY, 0),
    }
}

/// How much a value holds, what is shared counted each time.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    weight: usize,
    depth: usize,
}

impl Size {
    fn of(value: &Value) -> Size {
        if let Some(list) = value.downcast_object_ref::<List>() {
            return list.size;
        }
        if let Some(dict) = value.downcast_object_ref::<Dict>() {
            return dict.size;
        }
        Size { weight: ENTRY + value.as_str().map_or(0, str::len), depth: 0 }
    }

    fn add(&mut self, value: &Value) {
        let size = Size::of(value);
        self.weight = self.weight.saturating_add(size.weight);
        self.depth = self.depth.max(size.depth);
    }
}

/// Bytes that a walk over a value meets.
pub(super) fn weight(value: &Value) -> usize {
    Size::of(value).weight
}

/// Whether the value was measured when it was made.
fn is_ours(value: &Value) -> bool {
    value.downcast_object_ref::<List>().is_some()
        || value.downcast_object_ref::<Dict>().is_some()
        || value.downcast_object_ref::<Handle>().is_some()
}

/// A list or tuple.
#[derive(Debug)]
pub(super) struct List {
    pub(super) items: Vec<Value>,
    size: Size,
    pub(super) tuple: bool,
}

/// A map.
#[derive(Debug)]
pub(super) struct Dict {
    pub(super) map: BTreeMap<Value, Value>,
    size: Size,
}

/// Functions that every template has.
const FUNCTIONS: [&str; 5] = ["range", "dict", "namespace", "raise_exception", "strftime_now"];

/// A function that every template has, as a value.
pub(super) fn function(name: &str) -> Option<Value> {
    let known = FUNCTIONS.iter().find(|known| **known == name)?;
    Some(Value::from_object(Handle::Function(known)))
}

/// What the machine keeps under a number or a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handle {
    /// One of [`FUNCTIONS`].
    Function(&'static str),
    Macro(usize),
    Namespace(usize),
    /// Its place among the open loops, and which loop it is.
    Loop(usize, u64),
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }
}

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.map.get(key).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let keys: Vec<Value> = self.map.keys().cloned().collect();
        Enumerator::Iter(Box::new(keys.into_iter()))
    }
}

impl Object for Handle {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match **self {
            Handle::Function(_) => "<function>",
            Handle::Macro(_) => "<macro>",
            Handle::Namespace(_) => "<namespace>",
            Handle::Loop(..) => "<loop>",
        })
    }
}

/// Text that may not grow without end.
struct Sink<'a> {
    out: &'a mut String,
    left: usize,
    full: bool,
}

impl Write for Sink<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        match self.left.checked_sub(text.len()) {
            Some(left) => self.left = left,
            None => {
                self.full = true;
                return Err(std::fmt::Error);
            }
        }
        self.out.push_str(text);
        Ok(())
    }
}
