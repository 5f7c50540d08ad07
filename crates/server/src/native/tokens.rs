//! Tokens of texts and conversations, without an answer.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use lapidary::Model;
use lapidary::text::ChatInput;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::Which;
use crate::app::App;
use crate::http::Json;
use crate::openai::messages;
use crate::service::{Entry, Failure, Input, Result, Wanted};
use std::sync::Arc;

/// A text or a conversation whose tokens are wanted. The names are llama-server's and vLLM's.
#[derive(Debug, Deserialize, ToSchema)]
pub struct Tokenize {
    /// The model; without one, the first.
    pub model: Option<String>,
    /// The text, in llama-server's words: the token that begins a sequence is added if asked for.
    pub content: Option<String>,
    /// The text, in vLLM's words: that token is added unless told otherwise, and control tokens that
    /// it spells are control tokens.
    pub prompt: Option<String>,
    /// A conversation, instead of a text.
    pub messages: Option<Vec<Value>>,
    /// Tools of the conversation.
    #[serde(default)]
    pub tools: Vec<Value>,
    /// Whether the token that begins a sequence is added.
    #[serde(alias = "add_special_tokens")]
    pub add_special: Option<bool>,
    /// Whether control tokens that a text spells are control tokens, and not letters.
    pub parse_special: Option<bool>,
    /// Whether each token comes with its spelling, in llama-server's words.
    #[serde(default)]
    pub with_pieces: bool,
    /// The same in vLLM's words: the spellings come beside the tokens, as `token_strs`.
    #[serde(default)]
    pub return_token_strs: bool,
    /// Further variables of the conversation's template.
    #[serde(default)]
    pub chat_template_kwargs: Map<String, Value>,
    /// Whatever else there is: refused unless it changes nothing.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Map<String, Value>,
}

/// Tokens whose text is wanted.
#[derive(Debug, Deserialize, ToSchema)]
pub struct Detokenize {
    /// The model; without one, the first.
    pub model: Option<String>,
    /// The tokens.
    pub tokens: Vec<u32>,
}

/// A conversation whose text is wanted.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ApplyTemplate {
    /// The model; without one, the first.
    pub model: Option<String>,
    /// The conversation.
    pub messages: Vec<Value>,
    /// Tools.
    #[serde(default)]
    pub tools: Vec<Value>,
    /// Further variables of the template.
    #[serde(default)]
    pub chat_template_kwargs: Map<String, Value>,
    /// Whether the text ends where the answer begins.
    pub add_generation_prompt: Option<bool>,
    /// Whatever else there is: refused unless it changes nothing.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Map<String, Value>,
}

/// What else other servers take, with the value that changes nothing here.
const DEFAULTS: &[(&str, bool)] =
    &[("add_generation_prompt", true), ("continue_final_message", false)];

/// Refuses what is left of a request's fields unless it changes nothing.
fn check_rest(rest: &Map<String, Value>) -> Result<()> {
    for (name, value) in rest {
        let known = DEFAULTS.iter().find(|(known, _)| known == name);
        match known {
            _ if value.is_null() => {}
            Some((_, default)) if *value == Value::Bool(*default) => {}
            Some((name, default)) => {
                let what = format!("`{name}` is not supported but as `{default}`");
                return Err(Failure::unsupported(*name, what));
            }
            None => return Err(Failure::unknown(name.chars().take(100).collect::<String>())),
        }
    }
    Ok(())
}

/// The tokens of a text or a conversation.
#[utoipa::path(post, path = "/tokenize", request_body = Tokenize, responses((status = 200, body = Value), (status = 400, body = Value)))]
pub async fn tokenize(State(app): State<App>, Json(asked): Json<Tokenize>) -> Result<Response> {
    check_rest(&asked.rest)?;
    let entry = app.find(asked.model.as_deref())?.clone();
    let limits = app.limits().clone();
    app.prepare(move || {
        let model = entry.model();
        let adds = asked.add_special.unwrap_or(asked.content.is_none());
        let parses = asked.parse_special.unwrap_or(asked.prompt.is_some());
        let tokens = match (&asked.content, &asked.prompt, &asked.messages) {
            (Some(text), None, None) | (None, Some(text), None) => {
                of_text(model, text, adds, parses)?
            }
            (None, None, Some(given)) => {
                let mut wanted = Wanted::new(messages::chat(given, &[])?);
                if let Input::Chat(chat) = &mut wanted.input {
                    chat.tools = asked.tools.clone();
                    chat.variables = asked.chat_template_kwargs.clone();
                }
                wanted.check(&limits)?;
                wanted.prompted(model, 0)?.1.tokens
            }
            _ => {
                let what = "give `content`, `prompt` or `messages`, and one of them alone";
                return Err(Failure::param("content", what));
            }
        };
        let n = tokens.len();
        let mut pieces: Vec<String> = Vec::new();
        if asked.with_pieces || asked.return_token_strs {
            let tokenizer = model.tokenizer()?;
            pieces.extend(tokens.iter().map(|id| tokenizer.decode(&[*id], true)));
        }
        let shown: Vec<Value> = match asked.with_pieces {
            false => tokens.iter().map(|id| (*id).into()).collect(),
            true => {
                let both = tokens.iter().zip(&pieces);
                both.map(|(id, piece)| json!({"id": id, "piece": piece})).collect()
            }
        };
        let mut body = json!({"tokens": shown, "count": n, "max_model_len": entry.context()});
        if asked.return_token_strs {
            body["token_strs"] = pieces.into();
        }
        Ok(axum::Json(body).into_response())
    })
    .await
}

fn of_text(model: &Model, text: &str, adds: bool, parses: bool) -> Result<Vec<u32>> {
    let tokenizer = model.tokenizer()?;
    let ids = match parses {
        true => tokenizer.encode_template(text, None),
        false => tokenizer.encode_text(text),
    };
    let metadata = model.metadata();
    let first = metadata.bos_id.filter(|_| adds && metadata.add_bos);
    Ok(first.into_iter().chain(ids.map_err(lapidary::Error::from)?).collect())
}

/// What a client needs to know of a model's tokens to let the server make them, in vLLM's words.
#[utoipa::path(get, path = "/tokenizer_info", params(Which), responses((status = 200, body = Value)))]
pub async fn tokenizer_info(
    State(app): State<App>,
    which: std::result::Result<Query<Which>, QueryRejection>,
) -> Result<Response> {
    let Query(which) = which.map_err(|e| Failure::invalid(e.body_text()))?;
    let entry = app.find(which.model.as_deref())?.clone();
    app.prepare(move || {
        let model = entry.model();
        let (tokenizer, metadata) = (model.tokenizer()?, model.metadata());
        let spelled = |id: Option<u32>| id.and_then(|id| tokenizer.token(id).map(String::from));
        let body = json!({
            "tokenizer_class": "lapidary",
            "bos_token": spelled(metadata.bos_id),
            "eos_token": spelled(metadata.eos_ids.first().copied()),
            "pad_token": null,
            "add_bos_token": metadata.add_bos,
            "model_max_length": entry.context(),
            "vocab_size": metadata.vocab_size,
        });
        Ok(axum::Json(body).into_response())
    })
    .await
}

/// The text of tokens.
#[utoipa::path(post, path = "/detokenize", request_body = Detokenize, responses((status = 200, body = Value), (status = 400, body = Value)))]
pub async fn detokenize(State(app): State<App>, Json(asked): Json<Detokenize>) -> Result<Response> {
    let entry = app.find(asked.model.as_deref())?.clone();
    app.prepare(move || {
        let model = entry.model();
        let size = model.metadata().vocab_size;
        if let Some(id) = asked.tokens.iter().find(|id| **id >= size) {
            let what = format!("there is no token {id}; there are {size}");
            return Err(Failure::param("tokens", what));
        }
        let text = model.tokenizer()?.decode(&asked.tokens, true);
        Ok(axum::Json(json!({"content": text, "prompt": text})).into_response())
    })
    .await
}

/// The text that a model reads for a conversation.
#[utoipa::path(post, path = "/apply-template", request_body = ApplyTemplate, responses((status = 200, body = Value), (status = 400, body = Value)))]
pub async fn apply_template(
    State(app): State<App>,
    Json(asked): Json<ApplyTemplate>,
) -> Result<Response> {
    check_rest(&asked.rest)?;
    let entry = app.find(asked.model.as_deref())?.clone();
    let limits = app.limits().clone();
    app.prepare(move || {
        let mut wanted = Wanted::new(messages::chat(&asked.messages, &[])?);
        if let Input::Chat(chat) = &mut wanted.input {
            chat.tools = asked.tools.clone();
        }
        wanted.check(&limits)?;
        let text = rendered(&entry, &wanted, &asked)?;
        Ok(axum::Json(json!({"prompt": text})).into_response())
    })
    .await
}

fn rendered(entry: &Arc<Entry>, wanted: &Wanted, asked: &ApplyTemplate) -> Result<String> {
    let Input::Chat(chat) = &wanted.input else { return Ok(String::new()) };
    let model = entry.model();
    model.template()?;
    lapidary::check_history(&chat.messages)?;
    let messages = chat.messages.iter().map(|m| serde_json::from_value(m.to_json()));
    let messages: Vec<lapidary::text::Message> = messages
        .collect::<std::result::Result<_, _>>()
        .map_err(|e| Failure::internal(e.to_string()))?;
    let input = ChatInput {
        messages: &messages,
        tools: &chat.tools,
        kwargs: asked.chat_template_kwargs.clone(),
        add_generation_prompt: asked.add_generation_prompt.unwrap_or(true),
    };
    Ok(model.prompts().render(&input).map_err(lapidary::Error::from)?.text())
}
