//! What JSON schemas say, for those who write their own rules of them.

use serde_json::{Map, Value, json};

use super::keywords::{refuse_unsupported, unsupported};
use crate::error::Result;

/// Keywords that say nothing about the value.
pub(super) const SILENT: &[&str] = &[
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "default",
    "definitions",
    "deprecated",
    "description",
    "examples",
    "id",
    "nullable",
    "readOnly",
    "title",
    "writeOnly",
];

/// Keywords that are held to, apart from those that stand alone.
const KNOWN: &[&str] = &[
    "type",
    "enum",
    "const",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];

/// Keywords of JSON Schema that this way of writing can't be held to.
const UNKNOWN: &[&str] =
    &["additionalItems", "maxProperties", "minProperties", "patternProperties", "prefixItems"];

/// Formats of strings, as regular expressions.
pub(super) const FORMATS: &[(&str, &str)] = &[
    ("date", r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"),
    (
        "time",
        r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
    ),
    (
        "date-time",
        r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
    ),
    ("uuid", r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
    ("email", r"[a-zA-Z0-9._+-]{1,64}@[a-zA-Z0-9-]{1,63}(\.[a-zA-Z0-9-]{1,63}){1,4}"),
];

/// The types of values that are accepted.
pub(super) fn kinds<'a>(members: &'a Map<String, Value>, at: &str) -> Result<Vec<&'a str>> {
    let has = |keywords: &[&str]| keywords.iter().any(|k| members.contains_key(*k));
    Ok(match members.get("type") {
        Some(Value::String(one)) => vec![one.as_str()],
        Some(Value::Array(all)) if !all.is_empty() => {
            all.iter().filter_map(Value::as_str).collect()
        }
        Some(_) => return Err(unsupported("type", at)),
        None if has(&["properties", "required", "additionalProperties"]) => vec!["object"],
        None if has(&["items", "minItems", "maxItems"]) => vec!["array"],
        None if has(&["minLength", "maxLength", "pattern", "format"]) => vec!["string"],
        None if has(&[
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
        ]) =>
        {
            vec!["number"]
        }
        None => vec!["any"],
    })
}

/// What a number of a call is within, whatever its schema says: longer ones lose their last digits where
/// calls are read, and are then no multiple of what they were.
const MOST: i64 = 999_999_999_999_999_999;

pub(super) fn number(members: &Map<String, Value>, kind: &str) -> String {
    let bounds = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
    let mut schema = Map::new();
    for keyword in bounds {
        if let Some(bound) = members.get(keyword) {
            schema.insert(keyword.into(), bound.clone());
        }
    }
    if schema.is_empty() {
        return if kind == "integer" { "INTEGER" } else { "NUMBER" }.to_string();
    }
    let given = |keywords: [&str; 2]| keywords.iter().find_map(|k| schema.get(*k)?.as_f64());
    let low = given(["minimum", "exclusiveMinimum"]);
    let high = given(["maximum", "exclusiveMaximum"]);
    if low.is_none() && high.is_none_or(|high| high > -(MOST as f64)) {
        schema.insert("minimum".into(), (-MOST).into());
    }
    if high.is_none() && low.is_none_or(|low| low < MOST as f64) {
        schema.insert("maximum".into(), MOST.into());
    }
    schema.insert("type".into(), kind.into());
    schema.insert("x-guidance".into(), json!({"whitespace_flexible": false}));
    format!("%json {}", Value::Object(schema))
}

/// Refuses keywords that can't be held to. `alone` are held to, too.
pub(super) fn check_keywords(members: &Map<String, Value>, at: &str, alone: &[&str]) -> Result<()> {
    for (keyword, value) in members {
        let keyword = keyword.as_str();
        refuse_unsupported(keyword, value, at)?;
        let combines = ["anyOf", "oneOf", "allOf", "$ref"].contains(&keyword);
        if UNKNOWN.contains(&keyword) || (combines && !alone.contains(&keyword)) {
            return Err(unsupported(keyword, at));
        }
        // Beside a reference or alternatives, nothing else may be asked for.
        if !alone.is_empty() && KNOWN.contains(&keyword) {
            return Err(unsupported(alone.first().unwrap_or(&keyword), at));
        }
    }
    Ok(())
}

/// Whether no value can fit two of these schemas: their types differ, or a property that all require
/// has different constants.
pub(super) fn are_disjoint(all: &[Value]) -> bool {
    let apart = |a: &Value, b: &Value| {
        let kind = |s: &Value| s.get("type").and_then(Value::as_str).map(str::to_string);
        if let (Some(a), Some(b)) = (kind(a), kind(b))
            && a != b
            && !(["integer", "number"].contains(&a.as_str())
                && ["integer", "number"].contains(&b.as_str()))
        {
            return true;
        }
        if let (Some(a), Some(b)) = (a.get("const"), b.get("const")) {
            return a != b;
        }
        let Some(properties) = a.get("properties").and_then(Value::as_object) else { return false };
        properties.iter().any(|(key, mine)| {
            let theirs = b.get("properties").and_then(|p| p.get(key));
            let needs = |s: &Value| {
                let required = s.get("required").and_then(Value::as_array);
                required.is_some_and(|r| r.iter().any(|k| k == key))
            };
            let constants = (mine.get("const"), theirs.and_then(|t| t.get("const")));
            needs(a) && needs(b) && matches!(constants, (Some(a), Some(b)) if a != b)
        })
    };
    all.iter().enumerate().all(|(i, a)| all.iter().skip(i + 1).all(|b| apart(a, b)))
}

/// A pattern of a schema, which is searched for, as one that matches the whole; `None` if it can't be
/// written so.
pub(super) fn whole_pattern(pattern: &str) -> Option<String> {
    let (start, rest) = match pattern.strip_prefix('^') {
        Some(rest) => ("", rest),
        None => ("(.|\\n)*", pattern),
    };
    let (rest, end) = match rest.strip_suffix('$') {
        Some(before) if !before.ends_with('\\') => (before, ""),
        _ => (rest, "(.|\\n)*"),
    };
    // An anchor elsewhere, or one that belongs to an alternative.
    let (mut escaped, mut class, mut depth) = (false, false, 0i32);
    for c in rest.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' => {
                escaped = true;
                continue;
            }
            '[' => class = true,
            ']' => class = false,
            _ if class => {}
            '(' => depth += 1,
            ')' => depth -= 1,
            '^' | '$' => return None,
            '|' if depth == 0 && (start.is_empty() || end.is_empty()) => return None,
            _ => {}
        }
    }
    if rest.contains("(?=") || rest.contains("(?!") || rest.contains("(?<") {
        return None;
    }
    let regex = llguidance::regex_to_lark(&format!("{start}({rest}){end}"), "dw");
    (!rest.is_empty()).then_some(regex)
}
