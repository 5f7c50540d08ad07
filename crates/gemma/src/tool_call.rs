//! Tool calls as Gemma 4 writes them: `<|tool_call>call:NAME{key:value,…}<tool_call|>`.
//!
//! Strings stand between `<|"|>`, keys are bare, numbers and the words `true`, `false` and `null`
//! are as in JSON, lists stand in `[]` and objects in `{}`. A model may write anything, so whatever
//! is not of this form is no call.

use serde_json::{Map, Number, Value};

const OPEN: &str = "<|tool_call>call:";
const CLOSE: &str = "<tool_call|>";
const QUOTE: &str = "<|\"|>";

/// Lists and objects inside one another, at most.
const MAX_DEPTH: usize = 32;

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// The tool's name.
    pub name: String,
    /// Its arguments.
    pub arguments: Map<String, Value>,
}

/// The calls of a reply that calls tools and says nothing else; special tokens are spelled out in
/// it, the one that ended it is left out.
pub fn tool_calls(reply: &str) -> Option<Vec<ToolCall>> {
    let mut rest = Rest(reply.trim());
    let mut calls = Vec::new();
    while !rest.0.is_empty() {
        calls.push(rest.call()?);
    }
    (!calls.is_empty()).then_some(calls)
}

/// What is still to be read.
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    fn call(&mut self) -> Option<ToolCall> {
        self.take(OPEN)?;
        let name = self.until('{')?;
        let arguments = self.members(MAX_DEPTH)?;
        self.take(CLOSE)?;
        Some(ToolCall { name: name.to_string(), arguments })
    }

    /// What stands behind `{`.
    fn members(&mut self, depth: usize) -> Option<Map<String, Value>> {
        let mut members = Map::new();
        if self.take("}").is_some() {
            return Some(members);
        }
        loop {
            let key = self.until(':')?;
            let value = self.value(depth)?;
            // A key that stands twice leaves open which one is meant.
            if members.insert(key.to_string(), value).is_some() {
                return None;
            }
            match self.take(",") {
                Some(()) => {}
                None => return self.take("}").map(|()| members),
            }
        }
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        let deeper = depth.checked_sub(1)?;
        if self.take(QUOTE).is_some() {
            let (text, rest) = self.0.split_once(QUOTE)?;
            self.0 = rest;
            return Some(Value::String(text.to_string()));
        }
        if self.take("{").is_some() {
            return self.members(deeper).map(Value::Object);
        }
        if self.take("[").is_some() {
            return self.items(deeper).map(Value::Array);
        }
        let end = self.0.find([',', '}', ']'])?;
        let (word, rest) = self.0.split_at_checked(end)?;
        self.0 = rest;
        match word {
            "true" => Some(Value::Bool(true)),
            "false" => Some(Value::Bool(false)),
            "null" => Some(Value::Null),
            number => serde_json::from_str::<Number>(number).ok().map(Value::Number),
        }
    }

    /// What stands behind `[`.
    fn items(&mut self, depth: usize) -> Option<Vec<Value>> {
        let mut items = Vec::new();
        if self.take("]").is_some() {
            return Some(items);
        }
        loop {
            items.push(self.value(depth)?);
            match self.take(",") {
                Some(()) => {}
                None => return self.take("]").map(|()| items),
            }
        }
    }

    fn take(&mut self, what: &str) -> Option<()> {
        self.0 = self.0.strip_prefix(what)?;
        Some(())
    }

    /// A name or key, which has letters, digits and little else, up to a character behind it.
    fn until(&mut self, end: char) -> Option<&'a str> {
        let (name, rest) = self.0.split_once(end)?;
        let is_part = |c: char| c.is_alphanumeric() || "_-.$".contains(c);
        if name.is_empty() || !name.chars().all(is_part) {
            return None;
        }
        self.0 = rest;
        Some(name)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::*;

    fn one(arguments: &str) -> Option<Value> {
        let calls = tool_calls(&format!("<|tool_call>call:f{arguments}<tool_call|>"))?;
        assert_eq!((calls.len(), calls[0].name.as_str()), (1, "f"));
        Some(Value::Object(calls[0].arguments.clone()))
    }

    #[test]
    fn every_kind_of_argument_is_read() {
        let q = |s: &str| s.replace('\'', QUOTE);
        let cases = [
            ("{}", json!({})),
            ("{city:'Rio de Janeiro'}", json!({"city": "Rio de Janeiro"})),
            ("{a:1,b:-2.5,c:1e3}", json!({"a": 1, "b": -2.5, "c": 1000.0})),
            ("{on:true,off:false,not:null}", json!({"on": true, "off": false, "not": null})),
            ("{a:['x','y,}]'],b:[]}", json!({"a": ["x", "y,}]"], "b": []})),
            ("{a:{b:{c:[1,{}]}}}", json!({"a": {"b": {"c": [1, {}]}}})),
            ("{text:'a \"quoted\" {word}: <br>'}", json!({"text": "a \"quoted\" {word}: <br>"})),
            ("{text:''}", json!({"text": ""})),
        ];
        for (text, want) in cases {
            assert_eq!(one(&q(text)), Some(want), "{text}");
        }
    }

    #[test]
    fn several_calls_follow_each_other() {
        let text = " <|tool_call>call:a{}<tool_call|><|tool_call>call:b-c{n:1}<tool_call|>\n";
        let calls = tool_calls(text).unwrap();
        let names: Vec<&str> = calls.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["a", "b-c"]);
    }

    #[test]
    fn what_is_not_a_call_is_none() {
        let whole = "<|tool_call>call:f{a:<|\"|>x<|\"|>,b:[1,{c:true}]}<tool_call|>";
        assert!(tool_calls(whole).is_some());
        for end in 0..whole.len() {
            assert!(tool_calls(&whole[..end]).is_none(), "{}", &whole[..end]);
        }
        assert!(tool_calls(&format!("Sure! {whole}")).is_none());
        assert!(tool_calls(&format!("{whole} Done.")).is_none());
        for wrong in ["{a}", "{a:}", "{a:x}", "{:1}", "{a:1,}", "{a:1 b:2}", "{a:01}", "{a:1,a:2}"]
        {
            assert_eq!(one(wrong), None, "{wrong}");
        }
        let deep = format!("{{a:{}1{}}}", "[".repeat(1 << 16), "]".repeat(1 << 16));
        assert_eq!(one(&deep), None);
    }
}
