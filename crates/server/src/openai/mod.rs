//! OpenAI's API.

mod chat;
mod chat_tell;
mod completions;
mod embeddings;
mod fields;
pub mod messages;
mod models;
mod responses;
mod shapes;
mod store;
mod tools;

pub use chat::{__path_chat, ChatRequest, chat, check_chat};
pub use completions::{__path_completions, CompletionRequest, check_completions, completions};
pub use embeddings::{__path_embeddings, EmbeddingRequest, check_embeddings, embeddings};
pub use models::{__path_model, __path_model_of, __path_models, model, model_of, models};
pub use responses::{
    __path_forget_response, __path_response, __path_response_input, __path_response_tokens,
    __path_responses, ResponseRequest, check_responses, forget_response, response, response_input,
    response_tokens, responses,
};
pub(crate) use shapes::logprobs;
pub use store::{Store, Stored};
