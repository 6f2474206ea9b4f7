// SPDX-License-Identifier: Apache-2.0
//! Replies: a whole body, or a stream fed from a hub.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes, Frame};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::sync::mpsc::Receiver;

/// What every handler returns.
pub type Reply = Response<Either<Full<Bytes>, Stream>>;

/// JSON.
pub const JSON: &str = "application/json";
/// Plain text.
pub const TEXT: &str = "text/plain; charset=utf-8";
/// The text format of Prometheus.
pub const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
/// A page.
pub const HTML: &str = "text/html; charset=utf-8";
/// Server-sent events.
pub const EVENTS: &str = "text/event-stream";

/// A body that lasts as long as its hub and its reader do.
pub struct Stream(pub Receiver<Bytes>);

impl Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// A whole reply.
pub fn whole(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    with_headers(status, content_type, Either::Left(Full::new(body.into())))
}

/// A streaming reply.
pub fn stream(content_type: &'static str, receiver: Receiver<Bytes>) -> Reply {
    with_headers(StatusCode::OK, content_type, Either::Right(Stream(receiver)))
}

/// JSON of `value`.
pub fn json(status: StatusCode, value: &impl serde::Serialize) -> Reply {
    match serde_json::to_vec_pretty(value) {
        Ok(mut body) => {
            body.push(b'\n');
            whole(status, JSON, body)
        }
        Err(error) => whole(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
    }
}

/// `{"error": text}`.
pub fn refuse(status: StatusCode, text: &str) -> Reply {
    json(status, &serde_json::json!({ "error": text }))
}

fn with_headers(status: StatusCode, content_type: &'static str, body: Either<Full<Bytes>, Stream>) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    reply
}
