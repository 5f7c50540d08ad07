//! `/api/tags`, `/api/show`, `/api/ps`, `/api/version`.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use lapidary::Modality;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::entry;
use crate::app::App;
use crate::http::Json;
use crate::service::{Entry, ModelState, Result, rfc3339};

/// The version of Ollama whose API this is; clients look at it to know what they may ask for.
const VERSION: &str = "0.13.0";

/// What never comes, as clients write it.
const NEVER: &str = "9999-12-31T23:59:59Z";

/// A model that is asked about.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ShowRequest {
    /// Its name.
    #[serde(alias = "name")]
    pub model: Option<String>,
    /// Says more in the original; here all is said always.
    pub verbose: Option<bool>,
}

/// The version of the API.
#[utoipa::path(get, path = "/api/version", responses((status = 200, body = Value)))]
pub async fn version() -> Response {
    let lapidary = env!("CARGO_PKG_VERSION");
    axum::Json(json!({"version": VERSION, "lapidary": lapidary})).into_response()
}

/// All models.
#[utoipa::path(get, path = "/api/tags", responses((status = 200, body = Value)))]
pub async fn tags(State(app): State<App>) -> Response {
    let all: Vec<Value> = app.registry().entries().iter().map(|entry| listed(entry)).collect();
    axum::Json(json!({"models": all})).into_response()
}

/// The models that are loaded.
#[utoipa::path(get, path = "/api/ps", responses((status = 200, body = Value)))]
pub async fn ps(State(app): State<App>) -> Response {
    let entries = app.registry().entries().iter();
    let loaded = entries.filter(|entry| entry.state() == ModelState::Loaded);
    let one = |entry: &std::sync::Arc<Entry>| {
        let plan = entry.plan();
        let total = plan.as_ref().map_or(0, |plan| plan.memory.total());
        let on_host =
            plan.as_ref().is_none_or(|plan| plan.device.kind == lapidary::DeviceKind::Cpu);
        let mut shown = listed(entry);
        shown["size"] = total.into();
        shown["size_vram"] = if on_host { 0 } else { total }.into();
        shown["expires_at"] = entry.expires().map_or(NEVER.into(), |at| rfc3339(at).into());
        shown["context_length"] = entry.context().into();
        shown
    };
    axum::Json(json!({"models": loaded.map(one).collect::<Vec<Value>>()})).into_response()
}

/// One model.
#[utoipa::path(post, path = "/api/show", request_body = ShowRequest, responses(
    (status = 200, body = Value),
    (status = 404, body = Value),
))]
pub async fn show(State(app): State<App>, Json(asked): Json<ShowRequest>) -> Result<Response> {
    let entry = entry(&app, asked.model.as_deref())?;
    let model = entry.model();
    let metadata = model.metadata();
    let taken = model.modalities();
    let format = metadata.answer.as_ref();
    let mut capabilities = vec!["completion"];
    let mut can = |what: &'static str, is: bool| capabilities.extend(is.then_some(what));
    can("tools", format.is_some_and(|f| f.calls.is_some()));
    can("thinking", format.is_some_and(|f| f.thinking.is_some()));
    can("vision", taken.contains(&Modality::Image));
    can("audio", taken.contains(&Modality::Audio));
    can("embedding", true);
    let sampling = lapidary::SamplingParams::of(metadata);
    let parameters = [
        format!("num_ctx {}", entry.context()),
        format!("temperature {}", sampling.temperature),
        format!("top_k {}", sampling.top_k),
        format!("top_p {}", sampling.top_p),
    ];
    let architecture = &metadata.architecture;
    let mut info = json!({
        "general.architecture": architecture,
        "general.basename": metadata.name,
        "general.parameter_count": model.program().n_params(),
    });
    // What a client budgets with is what is obeyed here; what the model was made for stands beside it.
    info[format!("{architecture}.context_length")] = entry.context().into();
    info[format!("{architecture}.context_length_train")] = metadata.max_context_len.into();
    info[format!("{architecture}.vocab_size")] = metadata.vocab_size.into();
    Ok(axum::Json(json!({
        "modelfile": format!("FROM {}\n", entry.name()),
        "parameters": parameters.join("\n"),
        "template": "",
        "license": "",
        "details": details(entry),
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": rfc3339(entry.created()),
    }))
    .into_response())
}

fn listed(entry: &Entry) -> Value {
    let name = entry.name();
    let digest = blake3::hash(format!("{name} {}", entry.model().name()).as_bytes()).to_hex();
    json!({
        "name": name,
        "model": name,
        "modified_at": rfc3339(entry.created()),
        "size": entry.model().program().weight_bytes(),
        "digest": digest.as_str(),
        "details": details(entry),
    })
}

fn details(entry: &Entry) -> Value {
    let model = entry.model();
    let family = &model.metadata().architecture;
    let n = model.program().n_params() as f64;
    let size = match n {
        n if n >= 1e9 => format!("{:.1}B", n / 1e9),
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n => format!("{:.1}K", n / 1e3),
    };
    json!({
        "parent_model": "",
        "format": "lapidary",
        "family": family,
        "families": [family],
        "parameter_size": size,
        "quantization_level": if model.n_quantised() > 0 { "quantised" } else { "float" },
        "context_length": entry.context(),
    })
}
