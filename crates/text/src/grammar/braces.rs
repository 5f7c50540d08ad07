//! JSON schemas as Lark rules for arguments in braces: `{key:value,…}`, bare keys, strings between
//! quotes that are markers, all else as in JSON.
//!
//! Keys come in the order in which chat templates sort them, and only declared ones come. So what is
//! written is accepted by the schema, though the schema may accept more.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::calls::literal;
use super::keywords::{MAX_DEPTH, unsupported};
use super::schema::{FORMATS, SILENT, are_disjoint, check_keywords, kinds, number, whole_pattern};
use crate::error::{Error, Result};

/// Values of any kind.
const ANY: &str = r#"
any: any_string | NUMBER | "true" | "false" | "null" | any_object | any_list
any_object: "{" (any_member ("," any_member)*)? "}"
any_member: KEY ":" any
any_list: "[" (any ("," any)*)? "]"
KEY: /[A-Za-z_][A-Za-z0-9_]{0,63}/
INTEGER: /-?(0|[1-9][0-9]{0,17})/
NUMBER: /-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?/
"#;

/// The rule of objects of any kind.
pub(super) const ANY_OBJECT: &str = "any_object";

/// Rules in the making.
pub(super) struct Rules {
    /// The marker of strings, as Lark has it.
    quote: String,
    text: String,
    n: usize,
    /// Whether what can't be held to is an error; else it is left out.
    exact: bool,
}

/// One schema that others inside of it refer to.
struct Root<'a> {
    schema: &'a Value,
    /// Rules by what refers to them.
    refs: BTreeMap<String, String>,
}

impl Rules {
    pub(super) fn new(quote: String) -> Self {
        Rules { quote, text: String::new(), n: 0, exact: true }
    }

    pub(super) fn rule(&mut self, name: &str, body: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{name}: {body}");
    }

    /// All rules, and those for values of any kind.
    pub(super) fn finish(mut self) -> String {
        let quote = self.quote.clone();
        self.rule("any_string", &format!("{quote} TEXT? {quote}"));
        self.text + ANY
    }

    /// The rule of a tool's arguments: held to all of the schema, or to what of it can be.
    pub(super) fn arguments(&mut self, schema: Option<&Value>, exact: bool) -> Result<String> {
        self.exact = exact;
        match self.exact_arguments(schema) {
            Err(Error::SchemaKeyword { .. } | Error::Grammar(_)) if !exact => {
                Ok(ANY_OBJECT.to_string())
            }
            made => made,
        }
    }

    fn exact_arguments(&mut self, schema: Option<&Value>) -> Result<String> {
        let none = Value::Object(Map::new());
        let schema = schema.unwrap_or(&none);
        let Some(members) = schema.as_object() else {
            let what = "`parameters` of a tool is a JSON schema, an object";
            return Err(Error::param("tools", what));
        };
        if members.get("type").is_some_and(|kind| kind != "object") {
            let what = "`parameters` of a tool has the type `object`";
            return Err(Error::param("tools", what));
        }
        // A tool that declares no arguments takes none.
        if !["properties", "additionalProperties", "$ref", "anyOf", "oneOf", "allOf"]
            .iter()
            .any(|k| members.contains_key(*k))
        {
            check_keywords(members, "", &[])?;
            return Ok("\"{\" \"}\"".to_string());
        }
        self.value(schema, "", &mut Root { schema, refs: BTreeMap::new() }, 0)
    }

    fn new_name(&mut self) -> String {
        self.n += 1;
        format!("r{}", self.n)
    }

    /// The name of a rule for what a schema accepts.
    fn value(
        &mut self,
        schema: &Value,
        at: &str,
        root: &mut Root<'_>,
        depth: usize,
    ) -> Result<String> {
        if depth > MAX_DEPTH {
            return Err(Error::Grammar(format!("schemas are nested more than {MAX_DEPTH} deep")));
        }
        let members = match schema {
            Value::Bool(true) => return Ok("any".to_string()),
            Value::Object(members) => members,
            _ => return Err(Error::Grammar(format!("nothing fits the schema at #{at}"))),
        };
        let name = self.new_name();
        let body = match self.exact {
            true => self.body(members, at, root, depth)?,
            false => self.loose_body(members.clone(), at, root, depth),
        };
        let nullable = members.get("nullable") == Some(&Value::Bool(true));
        self.rule(&name, &if nullable { format!("{body} | \"null\"") } else { body });
        Ok(name)
    }

    /// What a schema accepts, less the keywords that can't be held to.
    fn loose_body(
        &mut self,
        mut members: Map<String, Value>,
        at: &str,
        root: &mut Root<'_>,
        depth: usize,
    ) -> String {
        loop {
            match self.body(&members, at, root, depth) {
                Ok(body) => return body,
                Err(Error::SchemaKeyword { keyword, at: place })
                    if place.strip_prefix('#') == Some(at)
                        && members.remove(&keyword).is_some() => {}
                Err(_) => return "any".to_string(),
            }
        }
    }

    fn body(
        &mut self,
        members: &Map<String, Value>,
        at: &str,
        root: &mut Root<'_>,
        depth: usize,
    ) -> Result<String> {
        if let Some(reference) = members.get("$ref") {
            check_keywords(members, at, &["$ref"])?;
            return self.reference(reference, at, root, depth);
        }
        for keyword in ["anyOf", "oneOf", "allOf"] {
            let Some(all) = members.get(keyword) else { continue };
            check_keywords(members, at, &[keyword])?;
            let alone = members.keys().all(|k| k == keyword || SILENT.contains(&k.as_str()));
            let all = all.as_array().filter(|all| alone && !all.is_empty());
            let all = all.ok_or_else(|| unsupported(keyword, at))?;
            let fits = match keyword {
                "anyOf" => true,
                "oneOf" => are_disjoint(all),
                _ => all.len() == 1,
            };
            if !fits {
                return Err(unsupported(keyword, at));
            }
            let mut names = Vec::new();
            for (i, schema) in all.iter().enumerate() {
                names.push(self.value(schema, &format!("{at}/{keyword}/{i}"), root, depth + 1)?);
            }
            return Ok(names.join(" | "));
        }
        check_keywords(members, at, &[])?;
        if let Some(value) = members.get("const") {
            return Ok(self.literal_value(value));
        }
        if let Some(values) = members.get("enum") {
            let values = values.as_array().filter(|v| !v.is_empty());
            let values = values.ok_or_else(|| unsupported("enum", at))?;
            let all: Vec<String> = values.iter().map(|v| self.literal_value(v)).collect();
            return Ok(all.join(" | "));
        }
        let mut bodies = Vec::new();
        for kind in kinds(members, at)? {
            bodies.push(match kind {
                "any" => "any".to_string(),
                "null" => "\"null\"".to_string(),
                "boolean" => "\"true\" | \"false\"".to_string(),
                "integer" | "number" => number(members, kind),
                "string" => self.string(members, at)?,
                "array" => self.list(members, at, root, depth)?,
                "object" => self.object(members, at, root, depth)?,
                _ => return Err(unsupported("type", at)),
            });
        }
        Ok(bodies.join(" | "))
    }

    fn reference(
        &mut self,
        reference: &Value,
        at: &str,
        root: &mut Root<'_>,
        depth: usize,
    ) -> Result<String> {
        let reference = reference.as_str().unwrap_or_default();
        if let Some(name) = root.refs.get(reference) {
            return Ok(name.clone());
        }
        let whole = root.schema;
        let mut target = whole;
        // References may point at references, but not in a circle.
        let (mut next, mut seen) = (Some(reference), BTreeSet::new());
        while let Some(reference) = next {
            let found = reference.strip_prefix('#').and_then(|pointer| whole.pointer(pointer));
            target =
                found.filter(|_| seen.insert(reference)).ok_or_else(|| unsupported("$ref", at))?;
            next = target.get("$ref").and_then(Value::as_str);
        }
        let name = self.new_name();
        root.refs.insert(reference.to_string(), name.clone());
        let pointer = reference.trim_start_matches('#');
        let body = self.value(target, pointer, root, depth + 1)?;
        self.rule(&name, &body);
        Ok(name)
    }

    fn string(&mut self, members: &Map<String, Value>, at: &str) -> Result<String> {
        let quote = self.quote.clone();
        let mut parts = Vec::new();
        if let Some(format) = members.get("format") {
            let known = FORMATS.iter().find(|(name, _)| format == name);
            let (_, regex) = known.ok_or_else(|| unsupported("format", at))?;
            parts.push(format!("/{regex}/"));
        }
        if let Some(pattern) = members.get("pattern") {
            let regex = pattern.as_str().and_then(whole_pattern);
            parts.push(format!("/{}/", regex.ok_or_else(|| unsupported("pattern", at))?));
        }
        let number = |keyword| match members.get(keyword) {
            None => Ok(None),
            Some(n) => n.as_u64().map(Some).ok_or_else(|| unsupported(keyword, at)),
        };
        let (least, most) = (number("minLength")?.unwrap_or(0), number("maxLength")?);
        if most.is_some_and(|most| most < least) {
            return Err(Error::Grammar(format!("nothing fits the schema at #{at}")));
        }
        match (least, most) {
            (0, None) if parts.is_empty() => return Ok(format!("{quote} TEXT? {quote}")),
            (_, Some(0)) => return Ok(format!("{quote} {quote}")),
            (0, None) => {}
            (least, most) => {
                let most = most.map(|m| m.to_string()).unwrap_or_default();
                parts.push(format!("/(.|\\n){{{},{most}}}/", least.max(1)));
            }
        }
        let terminal = format!("T{}", self.n);
        self.n += 1;
        self.rule(&terminal, &parts.join(" & "));
        let empty =
            least == 0 && !members.contains_key("pattern") && !members.contains_key("format");
        Ok(format!("{quote} {terminal}{} {quote}", if empty { "?" } else { "" }))
    }

    fn list(
        &mut self,
        members: &Map<String, Value>,
        at: &str,
        root: &mut Root<'_>,
        depth: usize,
    ) -> Result<String> {
        let number = |keyword| match members.get(keyword) {
            None => Ok(None),
            Some(n) => n.as_u64().map(Some).ok_or_else(|| unsupported(keyword, at)),
        };
        let (least, most) = (number("minItems")?.unwrap_or(0), number("maxItems")?);
        if most.is_some_and(|most| most < least) {
            return Err(Error::Grammar(format!("nothing fits the schema at #{at}")));
        }
        if most == Some(0) {
            return Ok("\"[\" \"]\"".to_string());
        }
        let item = match members.get("items") {
            None => "any".to_string(),
            Some(items) => self.value(items, &format!("{at}/items"), root, depth + 1)?,
        };
        let more = match most {
            Some(most) => format!("{{{},{}}}", least.saturating_sub(1), most.saturating_sub(1)),
            None => format!("{{{},}}", least.saturating_sub(1)),
        };
        let items = format!("{item} (\",\" {item}){more}");
        Ok(match least {
            0 => format!("\"[\" ({items})? \"]\""),
            _ => format!("\"[\" {items} \"]\""),
        })
    }

    fn object(
        &mut self,
        members: &Map<String, Value>,
        at: &str,
        root: &mut Root<'_>,
        depth: usize,
    ) -> Result<String> {
        let none = Map::new();
        let properties = match members.get("properties") {
            None => &none,
            Some(p) => p.as_object().ok_or_else(|| unsupported("properties", at))?,
        };
        let required: BTreeSet<&str> = match members.get("required") {
            None => BTreeSet::new(),
            Some(r) => {
                let all = r.as_array().ok_or_else(|| unsupported("required", at))?;
                all.iter().filter_map(Value::as_str).collect()
            }
        };
        if required.iter().any(|key| !properties.contains_key(*key)) {
            return Err(unsupported("required", at));
        }
        if properties.is_empty() {
            return match members.get("additionalProperties") {
                Some(Value::Bool(false)) => Ok("\"{\" \"}\"".to_string()),
                None | Some(Value::Bool(true)) => Ok(ANY_OBJECT.to_string()),
                Some(schema) => {
                    let at = format!("{at}/additionalProperties");
                    let value = self.value(schema, &at, root, depth + 1)?;
                    Ok(format!("\"{{\" (KEY \":\" {value} (\",\" KEY \":\" {value})*)? \"}}\""))
                }
            };
        }
        let mut keys: Vec<&String> = properties.keys().collect();
        keys.sort_by_key(|key| key.to_lowercase());
        // From the last to the first: what may follow if nothing stands before, and if something does.
        let (mut first, mut later) = ("\"\"".to_string(), "\"\"".to_string());
        for key in keys.into_iter().rev() {
            let at = format!("{at}/properties/{key}");
            let value = match properties.get(key) {
                Some(schema) => self.value(schema, &at, root, depth + 1)?,
                None => continue,
            };
            let member = format!("{} {value}", self.key(key));
            let (this_first, this_later) = (self.new_name(), self.new_name());
            match required.contains(key.as_str()) {
                true => {
                    self.rule(&this_first, &format!("{member} {later}"));
                    self.rule(&this_later, &format!("\",\" {member} {later}"));
                }
                false => {
                    self.rule(&this_first, &format!("{member} {later} | {first}"));
                    self.rule(&this_later, &format!("\",\" {member} {later} | {later}"));
                }
            }
            (first, later) = (this_first, this_later);
        }
        Ok(format!("\"{{\" {first} \"}}\""))
    }

    /// A key and its colon.
    fn key(&self, key: &str) -> String {
        let bare = |c: char| c.is_alphanumeric() || "_-.$".contains(c);
        match !key.is_empty() && key.chars().all(bare) {
            true => literal(&format!("{key}:")),
            false => format!("{} {} {} \":\"", self.quote, literal(key), self.quote),
        }
    }

    fn literal_value(&self, value: &Value) -> String {
        match value {
            Value::String(text) => format!("({} {} {})", self.quote, literal(text), self.quote),
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(|v| self.literal_value(v)).collect();
                format!("(\"[\" {} \"]\")", items.join(" \",\" "))
            }
            Value::Object(members) => {
                let mut keys: Vec<(&String, &Value)> = members.iter().collect();
                keys.sort_by_key(|(key, _)| key.to_lowercase());
                let members = keys.into_iter();
                let members =
                    members.map(|(k, v)| format!("{} {}", self.key(k), self.literal_value(v)));
                format!("(\"{{\" {} \"}}\")", members.collect::<Vec<_>>().join(" \",\" "))
            }
            plain => literal(&plain.to_string()),
        }
    }
}
