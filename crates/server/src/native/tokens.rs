//! Tokens of texts and conversations, without an answer.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use lapidary::text::ChatInput;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

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
    /// The text, in vLLM's words: that token is added unless told otherwise.
    pub prompt: Option<String>,
    /// A conversation, instead of a text.
    pub messages: Option<Vec<Value>>,
    /// Tools of the conversation.
    #[serde(default)]
    pub tools: Vec<Value>,
    /// Whether the token that begins a sequence is added.
    #[serde(alias = "add_special_tokens")]
    pub add_special: Option<bool>,
    /// Whether each token comes with its spelling.
    #[serde(default, alias = "return_token_strs")]
    pub with_pieces: bool,
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
}

/// The tokens of a text or a conversation.
#[utoipa::path(post, path = "/tokenize", request_body = Tokenize, responses((status = 200, body = Value), (status = 400, body = Value)))]
pub async fn tokenize(State(app): State<App>, Json(asked): Json<Tokenize>) -> Result<Response> {
    let entry = app.find(asked.model.as_deref())?.clone();
    let limits = app.limits().clone();
    app.prepare(move || {
        let model = entry.model();
        let adds = asked.add_special.unwrap_or(asked.content.is_none());
        let tokens = match (&asked.content, &asked.prompt, &asked.messages) {
            (Some(text), None, None) | (None, Some(text), None) if !adds => {
                let ids = model.tokenizer()?.encode_text(text);
                ids.map_err(lapidary::Error::from)?
            }
            (Some(text), None, None) | (None, Some(text), None) => model.tokenise(text)?,
            (None, None, Some(given)) => {
                let mut wanted = Wanted::new(messages::chat(given, &[])?);
                if let Input::Chat(chat) = &mut wanted.input {
                    chat.tools = asked.tools.clone();
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
        let shown: Vec<Value> = match asked.with_pieces {
            false => tokens.iter().map(|id| (*id).into()).collect(),
            true => {
                let tokenizer = model.tokenizer()?;
                let piece = |id: &u32| json!({"id": id, "piece": tokenizer.decode(&[*id], true)});
                tokens.iter().map(piece).collect()
            }
        };
        let body = json!({"tokens": shown, "count": n, "max_model_len": entry.context()});
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
