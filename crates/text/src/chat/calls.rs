//! Filters, tests, methods and functions of a template.
//!
//! Each is known by name, and what it may make is reckoned before it is called: the engine's own
//! bound nothing. Those that call others, make lists of lists or join text are written here.

use std::collections::BTreeMap;
use std::time::SystemTime;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error as JinjaError, ErrorKind, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::machine::{Args, Machine};
use super::python;
use super::value::{Dict, Fail, Run, invalid, limit, weight};
use crate::error::Error;

/// Entries of a `range`, rows of a `batch`, columns of a `slice`.
const MAX_COUNT: usize = 100_000;

/// The widest field of a format, and indentation.
const MAX_WIDTH: usize = 1000;

impl<'t> Machine<'t> {
    /// `value | name(args)`.
    pub(super) fn filter(&mut self, name: &str, value: Value, mut args: Args<'t>) -> Run<Value> {
        let text = value.as_str().unwrap_or_default();
        let all = args.plain.iter().chain(args.named.iter().map(|(_, v)| v));
        let given = all.map(weight).fold(weight(&value), usize::saturating_add);
        self.meter.step(given / 64)?;
        let entries = value.len().unwrap_or(0);
        let made = match name {
            "string" | "pprint" => {
                let mut out = String::new();
                self.meter.print(&value, &mut out)?;
                return Ok(Value::from(out));
            }
            "trim" => return self.trim(&value, args),
            "tojson" => return self.json_text(&value, args),
            "list" => {
                let items = self.items(&value)?;
                return self.meter.list(items, false);
            }
            "join" => return self.join(&value, args),
            "map" => return self.map_each(&value, args),
            "select" | "reject" => return self.select(&value, args, name == "select"),
            "selectattr" | "rejectattr" => {
                let Some(first) = args.plain.first().and_then(|v| v.as_str()).map(str::to_string)
                else {
                    return invalid(format!("`{name}` takes the name of an attribute"));
                };
                args.plain.remove(0);
                return self.select_by(&value, &first, args, name == "selectattr");
            }
            "sum" => return self.sum(&value, args),
            "default" | "d" | "length" | "count" | "first" | "last" | "min" | "max" | "round"
            | "abs" | "int" | "float" | "bool" | "attr" => 64,
            "safe" | "title" | "capitalize" | "lower" | "upper" => text.len().saturating_mul(3),
            "escape" | "e" => {
                let mut out = String::new();
                self.meter.print(&value, &mut out)?;
                out.len().saturating_mul(6)
            }
            "split" => parts(text, &args),
            "lines" => text.matches('\n').count().saturating_mul(64).saturating_add(text.len()),
            "replace" => self.replaced(text, &args)?,
            "indent" => {
                let width = self.count(&args, 0, &["width"], MAX_WIDTH)?;
                let lines = text.matches('\n').count() + 1;
                text.len().saturating_add(lines.saturating_mul(width.unwrap_or(4)))
            }
            "batch" | "slice" => {
                let n = self.count(&args, 0, &["count", "linecount", "slices"], MAX_COUNT)?;
                entries.saturating_add(n.unwrap_or(0)).saturating_mul(64)
            }
            "format" => self.formatted(text, &args, '%')?,
            "reverse" if value.as_str().is_some() => text.len(),
            "reverse" | "sort" | "unique" | "dictsort" | "items" | "groupby" | "chain" | "zip" => {
                let all: usize = args.plain.iter().map(|v| v.len().unwrap_or(0)).sum();
                entries.saturating_add(all).saturating_mul(128)
            }
            _ => {
                let e =
                    JinjaError::new(ErrorKind::UnknownFilter, format!("filter {name} is unknown"));
                return Err(e.into());
            }
        };
        self.meter.grow(made)?;
        let mut values = vec![value];
        values.extend(engine_args(args));
        let made = self.state.apply_filter(name, &values)?;
        self.meter.take(made)
    }

    /// `value is name(args)`.
    pub(super) fn test(&mut self, name: &str, value: Value, args: Args<'t>) -> Run<bool> {
        let all = args.plain.iter().map(weight).fold(weight(&value), usize::saturating_add);
        self.meter.step(all / 64)?;
        if name == "in" {
            let Some(all) = args.plain.first() else { return invalid("`in` takes a value") };
            return self.compare(minijinja::machinery::ast::CompareOpKind::In, &value, all);
        }
        if name == "callable" {
            return Ok(value.downcast_object_ref::<super::value::Handle>().is_some());
        }
        let mut values = vec![value];
        values.extend(engine_args(args));
        self.state.perform_test(name, &values).map_err(|e| match e.kind() {
            ErrorKind::UnknownTest => {
                JinjaError::new(ErrorKind::UnknownTest, format!("test {name} is unknown")).into()
            }
            _ => Fail::from(e),
        })
    }

    /// `of.name(args)`.
    pub(super) fn method(&mut self, of: &Value, name: &str, args: Args<'t>) -> Run<Value> {
        if of.is_undefined() {
            return Err(JinjaError::from(ErrorKind::UndefinedError).into());
        }
        let text = of.as_str().unwrap_or_default();
        let given = args.plain.iter().map(weight).fold(weight(of), usize::saturating_add);
        self.meter.step(given / 64)?;
        let entries = of.len().unwrap_or(0);
        let made = match name {
            "join" if of.as_str().is_some() => {
                let Some(items) = args.plain.first().cloned() else {
                    return invalid("`join` takes a list");
                };
                let plain = vec![of.clone()];
                return self.join(&items, Args { plain, named: Vec::new() });
            }
            "replace" => self.replaced(text, &args)?,
            "format" => self.formatted(text, &args, '{')?,
            "split" => parts(text, &args),
            "splitlines" => {
                text.matches(['\n', '\r']).count().saturating_mul(64).saturating_add(text.len())
            }
            "items" => entries.saturating_mul(192),
            "keys" | "values" => entries.saturating_mul(64),
            _ => text.len().saturating_mul(3),
        };
        self.meter.grow(made)?;
        let values: Vec<Value> = engine_args(args).collect();
        let kind = of.kind();
        let made = unknown_method_callback(&mut self.state, of, name, &values);
        let made = made.map_err(|e| match e.kind() {
            ErrorKind::UnknownMethod => {
                let what = format!("a value of type {kind} has no method `{name}`");
                JinjaError::new(ErrorKind::UnknownMethod, what)
            }
            _ => e,
        })?;
        self.meter.take(made)
    }

    /// `name(args)`.
    pub(super) fn function(&mut self, name: &str, args: Args<'t>) -> Run<Value> {
        match name {
            "raise_exception" => {
                let mut message = String::new();
                if let Some(value) = args.plain.first() {
                    self.meter.print(value, &mut message)?;
                }
                Err(Fail::Known(Error::Refused(message)))
            }
            "strftime_now" => {
                let Some(format) = args.plain.first().and_then(Value::as_str) else {
                    return invalid("`strftime_now` takes a format");
                };
                self.meter.grow(format.len().saturating_mul(9))?;
                self.meter.text(python::strftime(format, SystemTime::now()))
            }
            "range" => self.range(&args),
            "dict" | "namespace" => {
                let mut map = BTreeMap::new();
                if let Some(first) = args.plain.first().filter(|v| !v.is_undefined()) {
                    let Some(dict) = first.downcast_object_ref::<Dict>() else {
                        return invalid(format!("`{name}` takes a map"));
                    };
                    self.meter.grow(dict.map.len().saturating_mul(96))?;
                    map.extend(dict.map.iter().map(|(k, v)| (k.clone(), v.clone())));
                }
                map.extend(args.named.into_iter().map(|(k, v)| (Value::from(k.into_owned()), v)));
                if name == "dict" {
                    return self.meter.map(map);
                }
                let names = map.into_iter().filter_map(|(k, v)| Some((k.as_str()?.to_string(), v)));
                let names = names.collect();
                self.make_namespace(names)
            }
            _ => {
                let what = format!("{name} is unknown");
                Err(JinjaError::new(ErrorKind::UnknownFunction, what).into())
            }
        }
    }

    fn range(&mut self, args: &Args<'t>) -> Run<Value> {
        let bounds = args.plain.iter().map(|v| i64::try_from(v.clone()));
        let bounds = bounds.collect::<Result<Vec<i64>, _>>()?;
        let (from, to, step) = match *bounds.as_slice() {
            [to] => (0, to, 1),
            [from, to] => (from, to, 1),
            [from, to, step] => (from, to, step),
            _ => return invalid("`range` takes one to three numbers"),
        };
        if step == 0 {
            return invalid("`range` can't have a step of 0");
        }
        let (from, to, step) = (i128::from(from), i128::from(to), i128::from(step));
        let span = if step > 0 { to - from } else { from - to };
        let n = if span <= 0 { 0 } else { (span - 1) / step.abs() + 1 };
        let n = usize::try_from(n).unwrap_or(usize::MAX);
        if n > MAX_COUNT {
            return invalid(format!("`range` has more than {MAX_COUNT} entries"));
        }
        self.meter.grow(n.saturating_mul(32))?;
        let numbers = std::iter::successors(Some(from), move |i| Some(i + step)).take(n);
        let items = numbers.map(|i| i64::try_from(i).map_or(Value::from(i), Value::from)).collect();
        self.meter.list(items, false)
    }

    fn trim(&mut self, value: &Value, args: Args<'t>) -> Run<Value> {
        let mut out = String::new();
        self.meter.print(value, &mut out)?;
        let chars = args.plain.first().filter(|v| !v.is_none());
        self.meter.step(out.len() / 16)?;
        Ok(Value::from(match chars.and_then(|v| v.as_str()) {
            Some(chars) => out.trim_matches(|c| chars.contains(c)),
            None => out.trim_matches(python::is_space),
        }))
    }

    fn json_text(&mut self, value: &Value, args: Args<'t>) -> Run<Value> {
        let mut indent = args.plain.first().cloned();
        for (name, value) in args.named {
            match &*name {
                "indent" => indent = Some(value),
                "ensure_ascii" | "sort_keys" | "separators" => {}
                _ => return invalid(format!("`tojson` takes no argument `{name}`")),
            }
        }
        let indent = match indent.filter(|v| !v.is_none() && !v.is_undefined()) {
            Some(n) => Some(usize::try_from(n)?.min(16)),
            None => None,
        };
        let mut out = String::new();
        self.meter.write(&mut out, |sink| python::json(value, indent, 0, sink))?;
        Ok(Value::from(out))
    }

    fn join(&mut self, value: &Value, args: Args<'t>) -> Run<Value> {
        let mut between = String::new();
        let mut by = None;
        for (i, value) in args.plain.iter().enumerate() {
            match i {
                0 if !value.is_none() => self.meter.print(value, &mut between)?,
                1 => by = Some(value.clone()),
                _ => {}
            }
        }
        for (name, value) in &args.named {
            match &**name {
                "d" => self.meter.print(value, &mut between)?,
                "attribute" => by = Some(value.clone()),
                _ => return invalid(format!("`join` takes no argument `{name}`")),
            }
        }
        let mut out = String::new();
        for (i, item) in self.items(value)?.into_iter().enumerate() {
            if i > 0 {
                self.meter.emit(between.len(), "memory")?;
                out.push_str(&between);
            }
            let item = match by.as_ref().and_then(Value::as_str) {
                Some(path) => self.path(&item, path)?,
                None => item,
            };
            self.meter.print(&item, &mut out)?;
        }
        Ok(Value::from(out))
    }

    fn map_each(&mut self, value: &Value, mut args: Args<'t>) -> Run<Value> {
        let items = self.items(value)?;
        let mut made = Vec::with_capacity(items.len());
        let named = |args: &Args<'_>, name: &str| {
            args.named.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone())
        };
        if let Some(path) = named(&args, "attribute") {
            let Some(path) = path.as_str() else { return invalid("an attribute is a name") };
            let default = named(&args, "default");
            for item in items {
                let value = self.path(&item, path)?;
                made.push(match &default {
                    Some(default) if value.is_undefined() => default.clone(),
                    _ => value,
                });
            }
            return self.meter.list(made, false);
        }
        if args.plain.is_empty() {
            return invalid("`map` takes a filter");
        }
        let filter = args.plain.remove(0);
        let Some(filter) = filter.as_str() else { return invalid("`map` takes a filter's name") };
        for item in items {
            let args = Args { plain: args.plain.clone(), named: args.named.clone() };
            made.push(self.deeper(|m| m.filter(filter, item, args))?);
        }
        self.meter.list(made, false)
    }

    fn select(&mut self, value: &Value, mut args: Args<'t>, keep: bool) -> Run<Value> {
        let test = match args.plain.is_empty() {
            true => None,
            false => Some(args.plain.remove(0)),
        };
        let mut kept = Vec::new();
        for item in self.items(value)? {
            if self.passes(test.as_ref(), item.clone(), &args)? == keep {
                kept.push(item);
            }
        }
        self.meter.list(kept, false)
    }

    fn select_by(&mut self, value: &Value, path: &str, args: Args<'t>, keep: bool) -> Run<Value> {
        let mut args = args;
        let test = match args.plain.is_empty() {
            true => None,
            false => Some(args.plain.remove(0)),
        };
        let mut kept = Vec::new();
        for item in self.items(value)? {
            let at = self.path(&item, path)?;
            if self.passes(test.as_ref(), at, &args)? == keep {
                kept.push(item);
            }
        }
        self.meter.list(kept, false)
    }

    fn passes(&mut self, test: Option<&Value>, value: Value, args: &Args<'t>) -> Run<bool> {
        match test {
            None => Ok(value.is_true()),
            Some(test) => {
                let Some(test) = test.as_str() else { return invalid("a test has a name") };
                let args = Args { plain: args.plain.clone(), named: args.named.clone() };
                self.test(test, value, args)
            }
        }
    }

    fn sum(&mut self, value: &Value, args: Args<'t>) -> Run<Value> {
        let named = |name: &str| args.named.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
        let by = named("attribute").or_else(|| args.plain.first().cloned());
        let start = named("start").or_else(|| args.plain.get(1).cloned());
        let mut sum = start.unwrap_or(Value::from(0));
        for item in self.items(value)? {
            let item = match by.as_ref().and_then(Value::as_str) {
                Some(path) => self.path(&item, path)?,
                None => item,
            };
            sum = self.add(&sum, &item)?;
        }
        Ok(sum)
    }

    /// `a.b.0` of a value.
    fn path(&mut self, value: &Value, path: &str) -> Run<Value> {
        let mut at = value.clone();
        for part in path.split('.') {
            let key = part.parse::<i64>().map_or_else(|_| Value::from(part), Value::from);
            if at.is_undefined() {
                return Ok(at);
            }
            at = self.get(&at, &key)?;
        }
        Ok(at)
    }

    /// A number among arguments, which must be small.
    fn count(&self, args: &Args<'t>, at: usize, names: &[&str], most: usize) -> Run<Option<usize>> {
        let named = args.named.iter().find(|(n, _)| names.contains(&&**n)).map(|(_, v)| v);
        let Some(value) = args.plain.get(at).or(named) else { return Ok(None) };
        match usize::try_from(value.clone()) {
            Ok(n) if n <= most => Ok(Some(n)),
            Ok(_) => limit("the size of a value"),
            Err(e) => Err(e.into()),
        }
    }

    /// What replacing in text makes.
    fn replaced(&mut self, text: &str, args: &Args<'t>) -> Run<usize> {
        let [from, to, ..] = args.plain.as_slice() else { return Ok(text.len()) };
        let (Some(from), Some(to)) = (from.as_str(), to.as_str()) else {
            return Ok(text.len());
        };
        self.meter.step(text.len() / 64)?;
        let n = if from.is_empty() { text.chars().count() + 1 } else { text.matches(from).count() };
        Ok(text.len().saturating_add(n.saturating_mul(to.len())))
    }

    /// What formatting makes: each field may have its own width, and any of the arguments.
    fn formatted(&mut self, text: &str, args: &Args<'t>, sign: char) -> Run<usize> {
        let mut widths = 0usize;
        let mut number = 0usize;
        for c in text.chars() {
            match c.to_digit(10) {
                Some(digit) => number = number.saturating_mul(10).saturating_add(digit as usize),
                None => {
                    if number > MAX_WIDTH {
                        return limit("the size of a value");
                    }
                    widths = widths.saturating_add(std::mem::take(&mut number));
                }
            }
        }
        if number > MAX_WIDTH {
            return limit("the size of a value");
        }
        let fields = text.matches(sign).count();
        // A width can be an argument.
        let from_args = text.contains('*') || (sign == '{' && text.contains("{:"));
        let all = || args.plain.iter().chain(args.named.iter().map(|(_, v)| v));
        if from_args {
            for value in all().filter(|v| v.kind() == ValueKind::Number) {
                match i64::try_from(value.clone()) {
                    Ok(n) if n.unsigned_abs() > MAX_WIDTH as u64 && nested(text) => {
                        return limit("the size of a value");
                    }
                    _ => {}
                }
            }
            widths = widths.saturating_add(fields.saturating_mul(MAX_WIDTH));
        }
        // Printed, a value may take four times what it holds.
        let most = all().map(weight).max().unwrap_or(0).saturating_mul(4);
        let made = fields.saturating_mul(most.saturating_add(32)).saturating_add(widths);
        Ok(made.saturating_add(text.len()))
    }
}

/// What splitting text makes.
fn parts(text: &str, args: &Args<'_>) -> usize {
    let n = match args.plain.first().and_then(Value::as_str) {
        Some("") => text.len() + 2,
        Some(by) => text.matches(by).count(),
        None => text.split_whitespace().count(),
    };
    n.saturating_add(1).saturating_mul(64).saturating_add(text.len())
}

/// Whether a format takes a width from its arguments: `%*d`, `{:{}}`.
fn nested(text: &str) -> bool {
    text.contains('*') || text.split('{').skip(1).any(|field| !field.contains('}'))
}

fn engine_args(args: Args<'_>) -> impl Iterator<Item = Value> + use<> {
    let Args { mut plain, named } = args;
    if !named.is_empty() {
        let named = named.into_iter().map(|(name, value)| (name.into_owned(), value));
        plain.push(Value::from(named.collect::<Kwargs>()));
    }
    plain.into_iter()
}
