//! All paths, and what answers them.

use axum::Router;
use axum::response::IntoResponse;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::http;
use crate::service::Failure;
use crate::{anthropic, native, ollama, openai};

#[derive(OpenApi)]
#[openapi(info(
    title = "Lapidary",
    description = "Gemma models by OpenAI's, Anthropic's and Ollama's APIs."
))]
struct Api;

/// All paths with their handlers, and their description.
pub fn documented() -> (Router<App>, utoipa::openapi::OpenApi) {
    OpenApiRouter::with_openapi(Api::openapi())
        .routes(routes!(native::health))
        .routes(routes!(native::ready))
        .routes(routes!(native::metrics))
        .routes(routes!(native::props))
        .routes(routes!(native::openapi))
        .routes(routes!(native::tokenize))
        .routes(routes!(native::tokenizer_info))
        .routes(routes!(native::detokenize))
        .routes(routes!(native::apply_template))
        .routes(routes!(openai::models))
        .routes(routes!(openai::model))
        .routes(routes!(openai::model_of))
        .routes(routes!(openai::chat))
        .routes(routes!(openai::completions))
        .routes(routes!(openai::embeddings))
        .routes(routes!(openai::responses))
        .routes(routes!(openai::response_tokens))
        .routes(routes!(openai::response, openai::forget_response))
        .routes(routes!(openai::response_input))
        .routes(routes!(anthropic::messages))
        .routes(routes!(anthropic::count_tokens))
        .routes(routes!(ollama::chat))
        .routes(routes!(ollama::generate))
        .routes(routes!(ollama::embed))
        .routes(routes!(ollama::embeddings))
        .routes(routes!(ollama::tags))
        .routes(routes!(ollama::show))
        .routes(routes!(ollama::ps))
        .routes(routes!(ollama::version))
        .routes(routes!(ollama::pull))
        .routes(routes!(ollama::push))
        .routes(routes!(ollama::create))
        .routes(routes!(ollama::copy))
        .routes(routes!(ollama::delete))
        .split_for_parts()
}

/// The router that the door leads to.
pub(crate) fn router(app: &App) -> Router {
    let (router, _) = documented();
    let router = router.method_not_allowed_fallback(async || Failure::method().into_response());
    let router = router.fallback(http::page);
    router.layer(axum::middleware::from_fn(http::note_route)).with_state(app.clone())
}
