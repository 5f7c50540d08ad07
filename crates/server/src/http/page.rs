//! The web page: files that were built from `web/`, inside the program.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lapidary_web::POLICY;
pub use lapidary_web::{FILES, File};

use crate::app::App;
use crate::service::Failure;

/// The file at a path.
pub(crate) fn find(path: &str) -> Option<&'static File> {
    let path = if path == "/" { "/index.html" } else { path };
    FILES.iter().find(|file| file.path == path)
}

/// What Ollama says at its root, where programs look whether it is there.
const RUNNING: &str = "Ollama is running";

/// Serves a file of the page, or says that there is nothing. The root is there without a page, too.
pub(crate) async fn serve(State(app): State<App>, request: Request) -> Response {
    let path = request.uri().path();
    let file = find(path).filter(|_| app.has_page());
    let is_root = path == "/";
    if !is_root && file.is_none() {
        let what = "there is nothing here; GET /openapi.json lists what there is";
        return Failure::not_found(what).into_response();
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = Failure::method().into_response();
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET,HEAD"));
        return response;
    }
    match file {
        Some(file) if !is_root || shows_pages(request.headers()) => answer(file, request.headers()),
        _ => RUNNING.into_response(),
    }
}

/// Whether who asks can show a page: it says nothing else, and is no program for Ollama.
fn shows_pages(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let is_ollama = text(header::USER_AGENT).is_some_and(|agent| agent.starts_with("ollama"));
    let takes = |all: &str| ["text/html", "text/*", "*/*"].iter().any(|kind| all.contains(kind));
    !is_ollama && text(header::ACCEPT).is_none_or(takes)
}

fn policy() -> HeaderValue {
    HeaderValue::from_static(POLICY.trim_ascii())
}

fn answer(file: &File, asked: &HeaderMap) -> Response {
    let accepts = |value: &HeaderValue| {
        value.to_str().is_ok_and(|all| all.split(',').any(|one| one.trim().starts_with("br")))
    };
    let takes_brotli = asked.get_all(header::ACCEPT_ENCODING).iter().any(accepts);
    let (bytes, encoding) = match file.brotli.filter(|_| takes_brotli) {
        Some(bytes) => (bytes, Some("br")),
        None => (file.plain, None),
    };
    let hash = blake3::hash(bytes).to_hex();
    let tag = format!("\"{}\"", &hash.as_str()[..32]);
    let known = asked.get(header::IF_NONE_MATCH).and_then(|tags| tags.to_str().ok());
    let is_known = known.is_some_and(|tags| tags.split(',').any(|t| t.trim() == tag));
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => bytes.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.content_type));
    if let Some(encoding) = encoding {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(encoding));
    }
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::CONTENT_SECURITY_POLICY, policy());
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    let value = HeaderValue::from_static("same-origin");
    headers.insert("cross-origin-opener-policy", value.clone());
    headers.insert("cross-origin-resource-policy", value);
    let value = HeaderValue::from_static("camera=(), geolocation=(), microphone=(self)");
    headers.insert("permissions-policy", value);
    response
}
