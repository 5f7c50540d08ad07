//! What every request goes through, on its way in and out.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tower::ServiceExt;

use super::caller::Caller;
use super::guard::Way;
use super::page;
use crate::app::App;
use crate::service::{Dialect, Failure, Result, Scope, Trace, new_id};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Where Anthropic's clients look.
const ANTHROPIC_ID: HeaderName = HeaderName::from_static("request-id");

/// Answers a request. `is_local` says that it came over this machine's own address.
pub async fn enter(app: &App, router: Router, is_local: bool, request: Request) -> Response {
    let id = request_id(request.headers());
    let trace = Trace::new(app.log().clone(), &id, request.method().as_str());
    let dialect = Dialect::of_path(request.uri().path());
    let mut origin = None;
    let caller = Caller { id: id.as_str().into(), scope: Scope(0), trace: trace.clone(), dialect };
    let answered = answer(app, router, is_local, request, caller, &mut origin);
    // A panic of a handler is that request's alone.
    let answered = AssertUnwindSafe(answered).catch_unwind().await;
    let mut response = match answered {
        Ok(Ok(response)) => response,
        Ok(Err(failure)) => failure.into_response(),
        Err(panic) => Failure::internal(said(panic.as_ref())).into_response(),
    };
    if let Some(failure) = response.extensions_mut().remove::<Failure>() {
        trace.failed(&failure);
        let allowed = response.headers_mut().remove(header::ALLOW);
        response = failure.response(dialect, &id);
        // What the path does take.
        allowed.into_iter().for_each(|all| _ = response.headers_mut().insert(header::ALLOW, all));
    }
    let status = response.status();
    trace.set("status", status.as_u16());
    app.metrics().response(status.as_u16());
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(ANTHROPIC_ID, id.clone());
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(origin) = origin.and_then(|o: String| HeaderValue::from_str(&o).ok()) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
        let shown = HeaderValue::from_static("x-request-id, request-id, retry-after");
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, shown);
    }
    response.map(|body| Body::new(Counted { body, bytes: 0, trace }))
}

async fn answer(
    app: &App,
    router: Router,
    is_local: bool,
    mut request: Request,
    mut caller: Caller,
    origin: &mut Option<String>,
) -> Result<Response> {
    let limit = app.limits().header_bytes;
    if size(&request) > limit {
        return Err(Failure::headers_too_large(limit));
    }
    let way = match (is_local, app.keys().are_needed()) {
        (true, _) => Way::Local,
        (false, true) => Way::Keyed,
        (false, false) => Way::Open,
    };
    *origin = app.guard().check(request.headers(), request.uri(), way)?;
    if request.method() == Method::OPTIONS && origin.is_some() {
        return Ok(preflight(request.headers()));
    }
    let path = request.uri().path();
    if !is_public(app, path) {
        let known = |given: Option<&[u8]>| app.keys().find(given);
        let [bearer, other] = keys(request.headers());
        let found = known(bearer).or_else(|| known(other));
        let (scope, number) = found.ok_or_else(Failure::unauthorized)?;
        caller.scope = scope;
        if let Some(number) = number {
            caller.trace.set("key", number);
        }
    }
    request.extensions_mut().insert(caller);
    match router.oneshot(request).await {
        Ok(response) => Ok(response),
        Err(never) => match never {},
    }
}

/// What needs no key: whether the server lives, and the page's own files.
pub(crate) fn is_public(app: &App, path: &str) -> bool {
    matches!(path, "/health" | "/ready") || (app.has_page() && page::find(path).is_some())
}

/// Tells the log which route a request took; never its whole path.
pub(crate) async fn note_route(
    path: Option<MatchedPath>,
    caller: Caller,
    request: Request,
    next: Next,
) -> Response {
    caller.trace.set("path", path.as_ref().map_or("none", MatchedPath::as_str));
    next.run(request).await
}

/// The keys of a request, which may be in two places. Anthropic's clients send two different ones if they
/// have both a token and a key.
fn keys(headers: &HeaderMap) -> [Option<&[u8]>; 2] {
    let bearer = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let bearer = bearer.and_then(|value| {
        let (scheme, key) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(key.trim_ascii())
    });
    [bearer, headers.get("x-api-key").map(HeaderValue::as_bytes)]
}

fn preflight(headers: &HeaderMap) -> Response {
    let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let asked = asked.unwrap_or_else(|| HeaderValue::from_static("content-type, authorization"));
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked);
    let methods = HeaderValue::from_static("GET, POST, DELETE");
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

/// The name that the client gave its request, if it is one; else a new one.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    match given.filter(|id| (1..=128).contains(&id.len()) && id.chars().all(is_plain)) {
        Some(id) => id.to_string(),
        None => new_id("req_"),
    }
}

fn size(request: &Request) -> usize {
    let headers = request.headers().iter().map(|(k, v)| k.as_str().len() + v.len() + 4);
    let line = request.uri().path().len() + request.uri().query().map_or(0, str::len);
    headers.sum::<usize>() + line
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("a handler panicked: {}", text.unwrap_or("without a word"))
}

/// A body whose end the log is told of.
struct Counted {
    body: Body,
    bytes: usize,
    trace: Trace,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<hyper::body::Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            self.bytes += frame.data_ref().map_or(0, Bytes::len);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.trace.set("bytes", self.bytes);
    }
}
