//! Bodies that grow: server-sent events and lines of JSON.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use tokio::time::{Instant, Sleep};

/// How long a stream of events may be silent: then a comment is sent, which clients ignore and
/// proxies don't.
pub const PING: Duration = Duration::from_secs(1);

/// A body of frames, with something in between when nothing came for a while.
pub struct Frames<S> {
    frames: S,
    /// What is sent after each [`PING`] of silence.
    ping: Option<Bytes>,
    silence: Pin<Box<Sleep>>,
}

impl<S: Stream<Item = Bytes> + Send + Unpin + 'static> Frames<S> {
    /// These frames.
    pub fn new(frames: S, ping: Option<Bytes>) -> Self {
        Frames { frames, ping, silence: Box::pin(tokio::time::sleep(PING)) }
    }

    /// As a response of this type.
    pub fn response(self, content_type: &'static str) -> Response {
        let headers = [
            (header::CONTENT_TYPE, content_type),
            (header::CACHE_CONTROL, "no-cache"),
            // Proxies must not wait for more.
            (header::HeaderName::from_static("x-accel-buffering"), "no"),
        ];
        let body = Body::from_stream(self.map(Ok::<Bytes, Infallible>));
        (headers, body).into_response()
    }
}

impl<S: Stream<Item = Bytes> + Unpin> Stream for Frames<S> {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let frame = self.frames.poll_next_unpin(context);
        if frame.is_ready() {
            self.silence.as_mut().reset(Instant::now() + PING);
            return frame;
        }
        let Some(ping) = self.ping.clone() else { return Poll::Pending };
        if self.silence.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.silence.as_mut().reset(Instant::now() + PING);
        // Registers for the next one.
        let _ = self.silence.as_mut().poll(context);
        Poll::Ready(Some(ping))
    }
}

/// A response of server-sent events, with a comment after each second of silence.
pub fn events<S: Stream<Item = Bytes> + Send + 'static>(frames: S) -> Response {
    let ping = Bytes::from_static(b": ping\n\n");
    Frames::new(Box::pin(frames), Some(ping)).response("text/event-stream; charset=utf-8")
}

/// A response of lines of JSON.
pub fn lines<S: Stream<Item = Bytes> + Send + 'static>(frames: S) -> Response {
    Frames::new(Box::pin(frames), None).response("application/x-ndjson")
}
