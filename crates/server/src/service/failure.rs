//! What goes wrong, as every API tells it.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lapidary::ErrorCode;
use serde_json::{Value, json};

/// Whose words an error is told in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's, with what Anthropic's clients look for beside it.
    OpenAi,
    /// Anthropic's.
    Anthropic,
    /// Ollama's.
    Ollama,
}

impl Dialect {
    /// The dialect of a path.
    pub fn of_path(path: &str) -> Self {
        match path {
            _ if path.starts_with("/api/") => Dialect::Ollama,
            _ if path == "/v1/messages" || path.starts_with("/v1/messages/") => Dialect::Anthropic,
            _ => Dialect::OpenAi,
        }
    }
}

/// A request that failed: its status and what its sender is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The HTTP status.
    pub status: StatusCode,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// A stable word.
    pub code: &'static str,
    /// The field of the request that is at fault.
    pub param: Option<String>,
    /// What happened and what to do.
    pub message: String,
    /// Seconds after which to try again.
    pub retry_after: Option<u32>,
    /// Tokens of a prompt that is too long, and of the context.
    pub context: Option<(u32, u32)>,
    /// What only the log is told.
    pub detail: Option<Box<str>>,
}

const REQUEST: &str = "invalid_request_error";

/// Anthropic's clients know by this code that they are to send whole conversations instead, and do.
pub(crate) const NO_THREADS: &str = "thread_unsupported_request";

impl Failure {
    fn new(status: StatusCode, kind: &'static str, code: &'static str, message: String) -> Self {
        Failure {
            status,
            kind,
            code,
            param: None,
            message,
            retry_after: None,
            context: None,
            detail: None,
        }
    }

    /// The request is wrong as a whole.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, REQUEST, "invalid_argument", message.into())
    }

    /// One field of the request is wrong.
    pub fn param(param: impl Into<String>, message: impl Into<String>) -> Self {
        Failure { param: Some(param.into()), ..Self::invalid(message) }
    }

    /// A field that is known and not done here.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Failure { code: "unsupported_parameter", ..Self::param(param, message) }
    }

    /// A field that nobody knows.
    pub fn unknown(param: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("unknown parameter: `{param}`");
        Failure { code: "unknown_parameter", ..Self::param(param, message) }
    }

    /// The body is not JSON of the right shape.
    pub fn body(param: Option<String>, message: impl Into<String>) -> Self {
        Failure { code: "invalid_body", param, ..Self::invalid(message) }
    }

    /// There is no such model.
    pub fn no_model(name: &str) -> Self {
        let shown: String = name.chars().take(200).collect();
        let message =
            format!("the model `{shown}` does not exist; GET /v1/models lists those that do");
        let param = Some("model".to_string());
        Failure { param, ..Self::new(StatusCode::NOT_FOUND, REQUEST, "model_not_found", message) }
    }

    /// There is nothing at this path, or nothing of this name.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, REQUEST, "not_found", message.into())
    }

    /// The path knows other methods.
    pub fn method() -> Self {
        let message = "this path does not take this method".to_string();
        Self::new(StatusCode::METHOD_NOT_ALLOWED, REQUEST, "method_not_allowed", message)
    }

    /// No key, or a wrong one.
    pub fn unauthorized() -> Self {
        let message =
            "a valid API key is needed: send `Authorization: Bearer KEY` or `x-api-key: KEY`";
        let status = StatusCode::UNAUTHORIZED;
        Self::new(status, "authentication_error", "invalid_api_key", message.to_string())
    }

    /// The Host or Origin is not one of ours.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", "forbidden", message.into())
    }

    /// The body or a header is too long.
    pub fn too_large(message: impl Into<String>) -> Self {
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        Self::new(status, REQUEST, "request_too_large", message.into())
    }

    /// The headers are too long.
    pub fn headers_too_large(limit: usize) -> Self {
        let message = format!("the headers are longer than {limit} bytes");
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        Self::new(status, REQUEST, "headers_too_large", message)
    }

    /// The body did not come in time.
    pub fn slow_body(seconds: u64) -> Self {
        let message = format!("the request's body did not arrive within {seconds} s");
        Self::new(StatusCode::REQUEST_TIMEOUT, REQUEST, "request_timeout", message)
    }

    /// As many requests as may wait do so.
    pub fn queue_full(open: usize) -> Self {
        let message = format!(
            "{open} requests are waiting or being answered, which is the limit; try again later"
        );
        let status = StatusCode::TOO_MANY_REQUESTS;
        let failure = Self::new(status, "rate_limit_error", "queue_full", message);
        Failure { retry_after: Some(1), ..failure }
    }

    /// The model is being loaded.
    pub fn loading(model: &str) -> Self {
        let message = format!("the model `{model}` is being loaded; try again in a moment");
        let failure = Self::unavailable("model_loading", message);
        Failure { retry_after: Some(5), ..failure }
    }

    /// The model does not fit beside those that are being used.
    pub fn no_room(message: String) -> Self {
        Failure { retry_after: Some(30), ..Self::unavailable("out_of_memory", message) }
    }

    /// The server is about to end.
    pub fn stopping() -> Self {
        let message = "the server is shutting down".to_string();
        Failure { retry_after: Some(5), ..Self::unavailable("shutting_down", message) }
    }

    /// Not now.
    pub fn unavailable(code: &'static str, message: String) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", code, message)
    }

    /// The answer took longer than a request may.
    pub fn deadline(seconds: u64) -> Self {
        let message =
            format!("the answer was not complete after {seconds} s, the limit of a request");
        Self::new(StatusCode::GATEWAY_TIMEOUT, "server_error", "deadline_exceeded", message)
    }

    /// The prompt does not fit.
    pub fn context(prompt: usize, context: usize) -> Self {
        let message = format!(
            "the prompt has {prompt} tokens and the context holds {context}, of which at least one is \
             for the answer; shorten the prompt or serve the model with a longer context (--ctx)"
        );
        let failure = Self::invalid(message);
        let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let context = Some((small(prompt), small(context)));
        Failure { code: "context_length_exceeded", context, ..failure }
    }

    /// A fault of ours: its sender is told nothing but that.
    pub fn internal(detail: impl Into<String>) -> Self {
        let message = "an internal error; the server's log says more under this request id";
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        let failure = Self::new(status, "server_error", "internal_error", message.to_string());
        Failure { detail: Some(detail.into().into()), ..failure }
    }

    /// The same about another field.
    pub fn at(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// The same with something before its message.
    pub fn about(mut self, what: &str) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// What its sender is told.
    pub fn body_json(&self, dialect: Dialect, request_id: &str) -> Value {
        match dialect {
            Dialect::Ollama => json!({"error": self.message}),
            Dialect::Anthropic => {
                let mut error = json!({
                    "type": self.anthropic_kind(),
                    "message": self.message,
                    "code": self.code,
                    "param": self.param,
                });
                if self.code == NO_THREADS {
                    error["details"] =
                        json!({"error_code": self.code, "unsupported": [self.param]});
                }
                json!({"type": "error", "error": error, "request_id": request_id})
            }
            Dialect::OpenAi => {
                let mut error = json!({
                    "message": self.message,
                    "type": self.kind,
                    "param": self.param,
                    "code": self.code,
                });
                if let Some((prompt, context)) = self.context {
                    error["n_prompt_tokens"] = prompt.into();
                    error["n_ctx"] = context.into();
                }
                json!({"type": "error", "error": error, "request_id": request_id})
            }
        }
    }

    fn anthropic_kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            504 => "timeout_error",
            500.. => "api_error",
            _ => REQUEST,
        }
    }

    /// The response, in one dialect.
    pub fn response(&self, dialect: Dialect, request_id: &str) -> Response {
        let body = self.body_json(dialect, request_id).to_string();
        let kind = [(header::CONTENT_TYPE, "application/json")];
        let mut response = (self.status, kind, body).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let value = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, value);
        }
        response
    }
}

impl From<lapidary::Error> for Failure {
    fn from(e: lapidary::Error) -> Self {
        use lapidary::Error;
        let code = e.code();
        if let Error::Runner(lapidary::runner::Error::ContextLength { prompt, max_context }) = &e {
            return Self::context(*prompt, *max_context);
        }
        if let Error::QueueFull { open } = &e {
            return Self::queue_full(*open);
        }
        let param = match &e {
            Error::Text(lapidary::text::Error::Param { param, .. })
            | Error::Runner(lapidary::runner::Error::Param { param, .. })
            | Error::Runner(lapidary::runner::Error::Text(lapidary::text::Error::Param {
                param,
                ..
            })) => Some((*param).to_string()),
            Error::Message { index, .. } => Some(format!("messages[{index}]")),
            _ => None,
        };
        let row = code.row();
        let status = StatusCode::from_u16(row.http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // What is wrong with a model's file or a device is told to the log alone: it may hold paths.
        if status == StatusCode::INTERNAL_SERVER_ERROR || matches!(code, ErrorCode::Network) {
            return Failure { code: row.name, ..Self::internal(e.to_string()) };
        }
        let failure = Self::new(status, row.openai_type, row.name, e.to_string());
        let retry_after = matches!(status.as_u16(), 429 | 503).then_some(5);
        Failure { param, retry_after, ..failure }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Written in a dialect by whoever knows the request's path and id.
impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}
