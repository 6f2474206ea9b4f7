// SPDX-License-Identifier: Apache-2.0
//! `flysim page`: shows what the simulator publishes on its feed. Read only, and a process of its own, so that viewers
//! cost the simulator nothing but one queue.
//!
//! Frames are passed through as they come: this process parses no JSON.

mod feed;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, StatusCode};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::page::PageConfig;
use crate::http::respond::{self, Reply};
use crate::http::{bind, serve};
use crate::log::say;
use crate::service::notify::Notify;
use feed::Wire;

const HTML: &str = include_str!("page.html");
/// How often the process looks after itself.
const TURN: Duration = Duration::from_secs(1);

/// Serves the page until SIGTERM or SIGINT.
///
/// # Errors
/// Exit 69 when the port is taken.
pub fn run(config: PageConfig) -> anyhow::Result<u8> {
    let listener = bind(config.listen)?;
    say!("page on http://{}, fed by {}", config.listen, config.feed.display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let wire = Arc::new(Wire::default());
        tokio::spawn(feed::follow(config.feed, Arc::clone(&wire)));
        let answers = Arc::clone(&wire);
        tokio::spawn(serve(listener, move |request| {
            let wire = Arc::clone(&answers);
            async move { answer(&wire, &request) }
        }));
        live(&wire).await
    })
}

/// Tells the service manager that the event loop turns, and viewers when the simulator is away.
async fn live(wire: &Wire) -> anyhow::Result<u8> {
    let mut notify = Notify::from_environment();
    notify.send("READY=1");
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut turn = tokio::time::interval(TURN);
    loop {
        tokio::select! {
            _ = turn.tick() => {
                notify.progress(Instant::now());
                notify.send(&format!("STATUS={}, {} viewers", wire.words(), wire.viewers.clients()));
                wire.keep_alive();
            }
            _ = term.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    notify.send("STOPPING=1");
    Ok(crate::exit::OK)
}

fn answer(wire: &Wire, request: &Request<Incoming>) -> Reply {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return respond::refuse(StatusCode::METHOD_NOT_ALLOWED, "this page is read only");
    }
    match request.uri().path() {
        "/" => respond::whole(StatusCode::OK, respond::HTML, HTML),
        "/events" => match wire.join() {
            Some(viewer) => respond::stream(respond::EVENTS, viewer),
            None => respond::refuse(StatusCode::SERVICE_UNAVAILABLE, "all places for viewers are taken"),
        },
        // The page is healthy when it can say that the simulator is not: `feed` tells the two apart.
        "/healthz" => respond::json(StatusCode::OK, &wire.health()),
        "/frame" => respond::whole(
            StatusCode::OK,
            respond::JSON,
            wire.newest().unwrap_or(Bytes::from_static(b"null\n")),
        ),
        _ => respond::refuse(StatusCode::NOT_FOUND, "there are / /events /healthz /frame"),
    }
}
