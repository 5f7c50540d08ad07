//! The web page: files that were built from `web/`, inside the program.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::service::Failure;

/// One file of the page.
pub struct File {
    /// Its path.
    pub path: &'static str,
    /// What it is.
    pub content_type: &'static str,
    /// As it is.
    pub plain: &'static [u8],
    /// Compressed by brotli, if that was worth it.
    pub brotli: Option<&'static [u8]>,
}

/// The page's files. A test compares this table with the folder.
pub const FILES: &[File] = include!("../../../../web/dist/files.rs");

/// Scripts, styles and connections of the page's own server, and nothing else: as the page was built
/// and tested with.
const POLICY: &str = include_str!("../../../../web/csp.txt");

/// The file at a path.
pub(crate) fn find(path: &str) -> Option<&'static File> {
    let path = if path == "/" { "/index.html" } else { path };
    FILES.iter().find(|file| file.path == path)
}

/// Serves a file, or says that there is none.
pub(crate) async fn serve(request: Request) -> Response {
    match find(request.uri().path()) {
        Some(file) => file.response(request.headers()),
        None => Failure::not_found("there is nothing here; GET /openapi.json lists what there is")
            .into_response(),
    }
}

fn policy() -> HeaderValue {
    HeaderValue::from_static(POLICY.trim_ascii())
}

impl File {
    fn response(&self, asked: &HeaderMap) -> Response {
        let accepts = |value: &HeaderValue| {
            value.to_str().is_ok_and(|all| all.split(',').any(|one| one.trim().starts_with("br")))
        };
        let takes_brotli = asked.get_all(header::ACCEPT_ENCODING).iter().any(accepts);
        let (bytes, encoding) = match self.brotli.filter(|_| takes_brotli) {
            Some(bytes) => (bytes, Some("br")),
            None => (self.plain, None),
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
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
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
}
