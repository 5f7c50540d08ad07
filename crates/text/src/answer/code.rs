//! Calls as code: JSON objects, or Python's `name(key=value, …)`, one after another.

use serde_json::{Map, Number, Value};

/// Lists and objects inside one another, at most.
const MAX_DEPTH: usize = 32;

/// Names and arguments of the calls; `None` if there is anything else.
pub(super) fn calls(code: &str) -> Option<Vec<(String, Map<String, Value>)>> {
    let calls = json_calls(code).or_else(|| python_calls(code))?;
    (!calls.is_empty()).then_some(calls)
}

fn json_calls(code: &str) -> Option<Vec<(String, Map<String, Value>)>> {
    let mut calls = Vec::new();
    for value in serde_json::Deserializer::from_str(code).into_iter::<Value>() {
        match value.ok()? {
            Value::Array(all) => {
                for one in all {
                    calls.push(json_call(one)?);
                }
            }
            one => calls.push(json_call(one)?),
        }
    }
    Some(calls)
}

fn json_call(value: Value) -> Option<(String, Map<String, Value>)> {
    let Value::Object(mut call) = value else { return None };
    let Some(Value::String(name)) = call.remove("name") else { return None };
    let arguments = match call.remove("parameters").or_else(|| call.remove("arguments")) {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => arguments,
        Some(_) => return None,
    };
    Some((name, arguments)).filter(|(name, _)| !name.is_empty())
}

fn python_calls(code: &str) -> Option<Vec<(String, Map<String, Value>)>> {
    let mut rest = Rest(code.trim());
    // A list of calls is as good as the calls.
    if let Some(inside) = rest.0.strip_prefix('[') {
        rest.0 = inside.strip_suffix(']')?;
    }
    let mut calls = Vec::new();
    rest.space();
    while !rest.0.is_empty() {
        calls.push(rest.call()?);
        rest.space();
        if rest.take(",") || rest.take(";") {
            rest.space();
        }
    }
    Some(calls)
}

/// What is still to be read.
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    fn call(&mut self) -> Option<(String, Map<String, Value>)> {
        let name = self.name()?;
        self.space();
        self.take("(").then_some(())?;
        let mut arguments = Map::new();
        self.space();
        while !self.take(")") {
            let key = self.name()?;
            self.space();
            self.take("=").then_some(())?;
            let value = self.value(MAX_DEPTH)?;
            if arguments.insert(key.to_string(), value).is_some() {
                return None;
            }
            self.comma(')')?;
        }
        Some((name.to_string(), arguments))
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        self.space();
        match self.0.chars().next()? {
            quote @ ('"' | '\'') => self.string(quote).map(Value::String),
            '[' => {
                self.take("[");
                let mut items = Vec::new();
                self.space();
                while !self.take("]") {
                    items.push(self.value(depth)?);
                    self.comma(']')?;
                }
                Some(Value::Array(items))
            }
            '{' => {
                self.take("{");
                let mut members = Map::new();
                self.space();
                while !self.take("}") {
                    let Value::String(key) = self.value(depth)? else { return None };
                    self.space();
                    self.take(":").then_some(())?;
                    if members.insert(key, self.value(depth)?).is_some() {
                        return None;
                    }
                    self.comma('}')?;
                }
                Some(Value::Object(members))
            }
            _ => {
                let end = self.0.find(|c: char| ",)]}:".contains(c) || c.is_whitespace())?;
                let (word, rest) = self.0.split_at_checked(end)?;
                self.0 = rest;
                match word {
                    "True" | "true" => Some(Value::Bool(true)),
                    "False" | "false" => Some(Value::Bool(false)),
                    "None" | "null" => Some(Value::Null),
                    number => serde_json::from_str::<Number>(number).ok().map(Value::Number),
                }
            }
        }
    }

    fn string(&mut self, quote: char) -> Option<String> {
        let mut text = String::new();
        let mut chars = self.0.chars();
        chars.next();
        loop {
            match chars.next()? {
                c if c == quote => break,
                '\n' => return None,
                '\\' => match chars.next()? {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    c @ ('\\' | '"' | '\'') => text.push(c),
                    _ => return None,
                },
                c => text.push(c),
            }
        }
        self.0 = chars.as_str();
        Some(text)
    }

    /// A comma, or the end that follows without being taken.
    fn comma(&mut self, end: char) -> Option<()> {
        self.space();
        if self.take(",") {
            self.space();
            return Some(());
        }
        self.0.starts_with(end).then_some(())
    }

    fn name(&mut self) -> Option<&'a str> {
        let is_part = |c: char| c.is_alphanumeric() || "_.".contains(c);
        let end = self.0.find(|c| !is_part(c)).unwrap_or(self.0.len());
        let (name, rest) = self.0.split_at_checked(end)?;
        self.0 = rest;
        (!name.is_empty()).then_some(name)
    }

    fn take(&mut self, what: &str) -> bool {
        match self.0.strip_prefix(what) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn space(&mut self) {
        self.0 = self.0.trim_start();
    }
}
