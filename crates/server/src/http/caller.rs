//! Who asks.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::service::{Dialect, Failure, Scope, Trace};

/// Who asks, under which name.
#[derive(Clone)]
pub struct Caller {
    /// The request's name.
    pub id: Arc<str>,
    /// Whose cached tokens and stored answers it may use.
    pub scope: Scope,
    /// What the log will say of it.
    pub trace: Trace,
    /// Whose words it speaks.
    pub dialect: Dialect,
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let caller = parts.extensions.get::<Caller>().cloned();
        caller.ok_or_else(|| Failure::internal("a request came in by no door"))
    }
}
