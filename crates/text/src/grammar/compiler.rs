use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use lapidary_program::{AnswerFormat, CallSyntax};
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, panic_utils};
use serde_json::{Value, json};

use super::calls::{self, Hold, Kind};
use super::closing::{Closers, Marks};
use super::{Constraint, Grammar, MAX_BYTES, TEXT, Thinking, keywords};
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

/// Grammar symbols of one grammar, at most.
const MAX_SYMBOLS: usize = 250_000;

/// States of the lexer of one grammar, at most; each takes up to 2 KiB.
const MAX_STATES: usize = 50_000;

/// White space between two parts of JSON; without a bound, a weak model may write nothing else.
const JSON_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,40}";

/// What an answer is to a grammar that another one stands around.
const INNER: &str = "inner";

/// Compiles grammars for one tokenizer. Making one takes a moment, so it is kept; a clone shares it.
#[derive(Clone)]
pub struct GrammarCompiler {
    factory: Arc<ParserFactory>,
    closers: Arc<Closers>,
    /// What was compiled last: an agent's requests have the same tools one after another.
    kept: Arc<Mutex<VecDeque<Kept>>>,
}

/// Grammars that are kept.
const KEPT: usize = 16;

struct Kept {
    grammar: Grammar,
    format: Option<AnswerFormat>,
    thinking: Thinking,
    made: Constraint,
}

impl GrammarCompiler {
    /// Takes the tokenizer's vocabulary, and the tokens that end an answer.
    pub fn new(tokenizer: &Tokenizer, eos_ids: &[u32]) -> Result<Self> {
        let vocab_size = tokenizer.vocab_size();
        let eos: Vec<u32> = eos_ids.iter().copied().filter(|id| *id < vocab_size).collect();
        let Some(first) = eos.first() else {
            let what = "no token ends an answer, so no grammar can";
            return Err(Error::Program(what.to_string()));
        };
        let words: Option<Vec<Vec<u8>>> = (0..vocab_size).map(|id| word(tokenizer, id)).collect();
        let words = words.ok_or_else(|| {
            Error::Tokenizer(
                "its tokens have no text of their own, so grammars can't be used".into(),
            )
        })?;
        let trie = TokTrie::from(&TokRxInfo::new(vocab_size, *first), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie.with_eos_tokens(&eos)));
        let mut factory = panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| {
            ParserFactory::new_simple(&env)
        }))
        .map_err(fault)?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.max_grammar_size = MAX_SYMBOLS;
        limits.max_lexer_states = MAX_STATES;
        limits.verbose_errors = false;
        let closers = Arc::new(Closers::new(tokenizer, &eos));
        Ok(GrammarCompiler { factory: Arc::new(factory), closers, kept: Arc::default() })
    }

    /// A grammar as a mask, for a model that writes its answers in `format`.
    pub fn compile(
        &self,
        grammar: &Grammar,
        format: Option<&AnswerFormat>,
        tokenizer: &Tokenizer,
        thinking: Thinking,
    ) -> Result<Constraint> {
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |k: &Kept| {
            k.thinking == thinking && k.grammar == *grammar && k.format.as_ref() == format
        };
        if let Some(found) = kept().iter().find(|k| is_it(k)) {
            return Ok(found.made.apart());
        }
        let made = self.compile_anew(grammar, format, tokenizer, thinking)?;
        let new = Kept {
            grammar: grammar.clone(),
            format: format.cloned(),
            thinking,
            made: made.apart(),
        };
        let mut kept = kept();
        kept.truncate(KEPT - 1);
        kept.push_front(new);
        Ok(made)
    }

    fn compile_anew(
        &self,
        grammar: &Grammar,
        format: Option<&AnswerFormat>,
        tokenizer: &Tokenizer,
        thinking: Thinking,
    ) -> Result<Constraint> {
        let made = self.compile_as(grammar, format, tokenizer, thinking, Hold::Declared);
        match (made, grammar) {
            // Whoever may call a tool, or may not, is not refused for what a library can't do.
            (Err(Error::Grammar(_)), Grammar::ToolCalls { required: false, tools, .. })
                if !tools.iter().any(calls::is_strict) =>
            {
                self.compile_as(grammar, format, tokenizer, thinking, Hold::Names)
            }
            (made, _) => made,
        }
    }

    fn compile_as(
        &self,
        grammar: &Grammar,
        format: Option<&AnswerFormat>,
        tokenizer: &Tokenizer,
        thinking: Thinking,
        hold: Hold,
    ) -> Result<Constraint> {
        let lark = |tools: &[Value], kind: Kind| {
            let Some(format) = format.and_then(|f| f.calls.as_ref()) else {
                let what = "this model's program does not say how tools are called";
                return Err(Error::param("tools", what));
            };
            calls::lark(tools, kind, hold, format, tokenizer).map(GrammarWithLexer::from_lark)
        };
        let inner = match grammar {
            Grammar::CallsOr { tools, parallel, otherwise } => {
                if matches!(**otherwise, Grammar::ToolCalls { .. } | Grammar::CallsOr { .. }) {
                    let what = "calls of tools can't be both of two alternatives";
                    return Err(Error::Grammar(what.to_string()));
                }
                let kind = Kind { required: true, parallel: *parallel, exact: false };
                vec![lark(tools, kind)?, plain(otherwise)?]
            }
            Grammar::ToolCalls { tools, required, parallel } => {
                let (required, parallel) = (*required, *parallel);
                vec![lark(tools, Kind { required, parallel, exact: required })?]
            }
            other => vec![plain(other)?],
        };
        let schema = match grammar {
            Grammar::JsonSchema(schema) => Some(schema),
            Grammar::CallsOr { otherwise, .. } => match &**otherwise {
                Grammar::JsonSchema(schema) => Some(schema),
                _ => None,
            },
            _ => None,
        };
        let marks = format
            .and_then(|f| f.thinking.as_ref())
            .and_then(|t| Some((tokenizer.added_id(&t.open)?, tokenizer.added_id(&t.close)?)));
        let start = match (thinking, marks) {
            (Thinking::None, _) | (_, None) => None,
            (Thinking::Allowed, Some((open, close))) => {
                Some(format!("(<[{open}]> TEXT? <[{close}]>)?"))
            }
            (Thinking::Begun, Some((_, close))) => Some(format!("TEXT? <[{close}]>")),
        };
        let grammars = match start {
            None if inner.len() == 1 => inner,
            start => {
                let names: Vec<String> = (0..inner.len()).map(|i| format!("{INNER}{i}")).collect();
                let refs: Vec<String> = names.iter().map(|name| format!("@{name}")).collect();
                let (start, refs) = (start.unwrap_or_default(), refs.join(" | "));
                let top = format!("start: {start} ({refs})\n{TEXT}");
                let inner = inner.into_iter().zip(names);
                let inner = inner.map(|(g, name)| GrammarWithLexer { name: Some(name), ..g });
                std::iter::once(GrammarWithLexer::from_lark(top)).chain(inner).collect()
            }
        };
        let closing = can_close(grammar).then(|| {
            let id = |text: &str| tokenizer.added_id(text);
            let calls = format.and_then(|f| f.calls.as_ref());
            let quote = calls.and_then(|c| match &c.syntax {
                CallSyntax::Braces { quote, .. } => id(quote),
                CallSyntax::Code => None,
            });
            let thought = marks.filter(|_| thinking != Thinking::None).map(|(_, close)| close);
            let close = thought.into_iter().chain(calls.and_then(|c| id(&c.close))).collect();
            let open = calls.and_then(|c| id(&c.open)).into_iter().collect();
            (self.closers.clone(), Marks { close, open, quote: quote.into_iter().collect() })
        });
        let made = self.constraint(TopLevelGrammar { grammars, max_tokens: None }, closing);
        made.map_err(|e| schema.map_or(e.clone(), |schema| keywords::named(e, schema)))
    }

    fn constraint(
        &self,
        grammar: TopLevelGrammar,
        closing: Option<(Arc<Closers>, Marks)>,
    ) -> Result<Constraint> {
        let made = std::panic::AssertUnwindSafe(|| {
            let parser = self.factory.create_parser(grammar)?;
            let mut matcher = Matcher::new(Ok(parser));
            // A grammar that nothing fits is found out now.
            matcher.compute_mask_or_eos()?;
            Ok(matcher)
        });
        let made = panic_utils::catch_unwind(made).map_err(fault)?;
        Ok(Constraint::new(made, closing))
    }
}

/// Whether an answer that is cut is worth nothing, and it is known how to close it.
fn can_close(grammar: &Grammar) -> bool {
    match grammar {
        Grammar::JsonSchema(_) | Grammar::JsonObject | Grammar::ToolCalls { .. } => true,
        Grammar::CallsOr { otherwise, .. } => can_close(otherwise),
        Grammar::Regex(_) | Grammar::Lark(_) | Grammar::Text => false,
    }
}

/// A grammar that calls no tools.
fn plain(grammar: &Grammar) -> Result<GrammarWithLexer> {
    Ok(match grammar {
        Grammar::JsonSchema(schema) => json_schema(schema)?,
        Grammar::JsonObject => json_schema(&json!({"type": "object"}))?,
        Grammar::Regex(regex) => GrammarWithLexer::from_regex(within_limit(regex)?),
        Grammar::Lark(lark) => GrammarWithLexer::from_lark(within_limit(lark)?.to_string()),
        Grammar::Text => GrammarWithLexer::from_lark(format!("start: TEXT?\n{TEXT}")),
        Grammar::ToolCalls { .. } | Grammar::CallsOr { .. } => {
            return Err(Error::Grammar("calls of tools stand alone".to_string()));
        }
    })
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarCompiler").finish_non_exhaustive()
    }
}

/// An error of the library, in its own words; of a panic, the first line.
pub(super) fn fault(error: impl std::fmt::Display) -> Error {
    let text = error.to_string();
    let what = text.split("\n<backtrace>").next().unwrap_or_default().trim();
    Error::Grammar(what.to_string())
}

fn within_limit(grammar: &str) -> Result<&str> {
    match grammar.len() {
        0 => Err(Error::Grammar("it is empty".to_string())),
        n if n > MAX_BYTES => Err(too_long(n)),
        _ => Ok(grammar),
    }
}

fn too_long(n: usize) -> Error {
    Error::Grammar(format!("it has {n} bytes, the limit is {MAX_BYTES}"))
}

fn json_schema(schema: &Value) -> Result<GrammarWithLexer> {
    let n = schema.to_string().len();
    if n > MAX_BYTES {
        return Err(too_long(n));
    }
    keywords::check(schema)?;
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        other => other.clone(),
    };
    keywords::leave_out_formats(&mut schema);
    match &mut schema {
        Value::Object(map) => {
            map.insert("x-guidance".into(), json!({"whitespace_pattern": JSON_SPACE}));
        }
        _ => return Err(Error::Grammar("a JSON schema is an object".to_string())),
    }
    Ok(GrammarWithLexer::from_json_schema(schema))
}

/// What a token adds to the text, special tokens after a byte that no text has. `None` if it has
/// no text of its own.
fn word(tokenizer: &Tokenizer, id: u32) -> Option<Vec<u8>> {
    if tokenizer.is_special(id) {
        let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
        word.extend_from_slice(tokenizer.token(id).unwrap_or_default().as_bytes());
        return Some(word);
    }
    let word = tokenizer.piece(id)?;
    // No text has this byte.
    Some(if word.contains(&TokTrie::SPECIAL_TOKEN_MARKER) { vec![] } else { word })
}
