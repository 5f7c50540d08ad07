//! Which JSON schemas can be held to.

use serde_json::Value;

use crate::error::{Error, Result};

/// Keywords of JSON Schema that say something and that no mask can hold an answer to.
const UNSUPPORTED: &[&str] = &[
    "$dynamicAnchor",
    "$dynamicRef",
    "$recursiveAnchor",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    // Would change how the schema is read.
    "x-guidance",
];

/// Schemas inside one another, at most.
pub(super) const MAX_DEPTH: usize = 64;

/// Refuses a schema with a keyword that can't be held to, by its name and place.
pub(super) fn check(schema: &Value) -> Result<()> {
    walk(schema, &mut String::new(), 0)
}

/// Refuses a keyword that no mask can hold an answer to.
pub(super) fn refuse_unsupported(keyword: &str, value: &Value, at: &str) -> Result<()> {
    // These say nothing.
    let harmless = keyword == "uniqueItems" && *value == Value::Bool(false);
    match UNSUPPORTED.contains(&keyword) && !harmless {
        true => Err(unsupported(keyword, at)),
        false => Ok(()),
    }
}

/// The refusal of a keyword.
pub(super) fn unsupported(keyword: &str, at: &str) -> Error {
    Error::SchemaKeyword { keyword: keyword.to_string(), at: format!("#{at}") }
}

/// Formats of JSON Schema that no mask can hold an answer to. Others that are not known say nothing.
const FORMATS: &[&str] = &[
    "idn-email",
    "idn-hostname",
    "iri",
    "iri-reference",
    "json-pointer",
    "regex",
    "relative-json-pointer",
    "uri-reference",
    "uri-template",
];

/// Formats that can be held to.
const HELD: &[&str] =
    &["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];

/// Leaves out formats that nobody knows: they are notes.
pub(super) fn leave_out_formats(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            let is_note = |format: &Value| {
                let known = |format: &str| HELD.contains(&format) || FORMATS.contains(&format);
                format.as_str().is_some_and(|format| !known(format))
            };
            if members.get("format").is_some_and(is_note) {
                members.remove("format");
            }
            for (keyword, inner) in members {
                // What may be any value holds no schemas.
                if !["const", "enum", "default", "examples"].contains(&keyword.as_str()) {
                    leave_out_formats(inner);
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(leave_out_formats),
        _ => {}
    }
}

/// An error of the library as one that names the keyword, where its words tell it.
pub(super) fn named(error: Error, schema: &Value) -> Error {
    let Error::Grammar(what) = &error else { return error };
    let words = [
        ("oneOf", "oneOf"),
        ("$ref", "$ref"),
        ("Unknown format", "format"),
        ("regex parse error", "pattern"),
        ("Invalid type", "type"),
    ];
    let told = words.iter().find(|(word, _)| what.contains(word));
    let found = told.and_then(|(_, keyword)| Some((keyword, place(schema, keyword, 0)?)));
    found.map_or(error.clone(), |(keyword, at)| unsupported(keyword, &at))
}

/// Where a keyword first stands.
fn place(schema: &Value, keyword: &str, depth: usize) -> Option<String> {
    let inner: Vec<(String, &Value)> = match schema {
        Value::Object(members) if members.contains_key(keyword) => return Some(String::new()),
        Value::Object(members) => members.iter().map(|(k, v)| (k.clone(), v)).collect(),
        Value::Array(all) => all.iter().enumerate().map(|(i, v)| (i.to_string(), v)).collect(),
        _ => return None,
    };
    if depth > MAX_DEPTH {
        return None;
    }
    let mut found = inner.into_iter().filter_map(|(name, value)| {
        place(value, keyword, depth + 1).map(|rest| format!("/{name}{rest}"))
    });
    found.next()
}

fn walk(schema: &Value, at: &mut String, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(Error::Grammar(format!("schemas are nested more than {MAX_DEPTH} deep")));
    }
    let Value::Object(members) = schema else { return Ok(()) };
    let len = at.len();
    for (keyword, value) in members {
        refuse_unsupported(keyword, value, at)?;
        at.push('/');
        at.push_str(keyword);
        match (keyword.as_str(), value) {
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(all)) => {
                for (name, schema) in all {
                    inside(schema, name, at, depth)?;
                }
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(all)) => {
                for (i, schema) in all.iter().enumerate() {
                    inside(schema, &i.to_string(), at, depth)?;
                }
            }
            ("items" | "additionalItems" | "additionalProperties", schema) => {
                walk(schema, at, depth + 1)?;
            }
            _ => {}
        }
        at.truncate(len);
    }
    Ok(())
}

fn inside(schema: &Value, name: &str, at: &mut String, depth: usize) -> Result<()> {
    let len = at.len();
    at.push('/');
    at.push_str(name);
    walk(schema, at, depth + 1)?;
    at.truncate(len);
    Ok(())
}
