// SPDX-License-Identifier: Apache-2.0
//! The HTTP interface of the simulator: reads the board, speaks to the simulator by commands, never sees it.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::{Method, Request, StatusCode};
use serde::Serialize;
use tokio::sync::oneshot;

use super::clock::brain_s;
use super::metrics;
use super::sim::Command;
use super::snapshot::{Board, Info};
use crate::http::hub::Hub;
use crate::http::respond::{self, Reply};

/// No request of this interface needs a body; a small one is read and ignored.
const MAX_BODY_BYTES: usize = 4096;
/// A checkpoint that takes longer is still written, only its caller is told to look later.
const CHECKPOINT_PATIENCE: Duration = Duration::from_secs(60);

/// What the handlers need.
pub struct Api {
    /// The board.
    pub board: Arc<Board>,
    /// The way to the simulator.
    pub commands: Sender<Command>,
    /// Readers of the feed.
    pub hub: Option<Arc<Hub>>,
    /// What a POST must show; without one there are no POSTs.
    pub token: Option<String>,
}

/// Answers one request.
pub async fn answer(api: Arc<Api>, request: Request<Incoming>) -> Reply {
    let path = request.uri().path().to_owned();
    match (request.method(), path.as_str()) {
        (&Method::GET | &Method::HEAD, "/status") => respond::json(StatusCode::OK, &Status::of(&api)),
        (&Method::GET | &Method::HEAD, "/healthz") => health(&api.board),
        (&Method::GET | &Method::HEAD, "/metrics") => {
            respond::whole(StatusCode::OK, respond::PROMETHEUS, metrics::text(&api.board, api.hub.as_deref()))
        }
        (&Method::POST, "/checkpoint" | "/pause" | "/resume") => post(&api, &path, request).await,
        (_, "/status" | "/healthz" | "/metrics" | "/checkpoint" | "/pause" | "/resume") => respond::refuse(
            StatusCode::METHOD_NOT_ALLOWED,
            "GET /status /healthz /metrics, POST /checkpoint /pause /resume",
        ),
        _ => respond::refuse(
            StatusCode::NOT_FOUND,
            "there are /status /healthz /metrics /checkpoint /pause /resume",
        ),
    }
}

fn health(board: &Board) -> Reply {
    match board.sick(Instant::now()) {
        None => respond::whole(StatusCode::OK, respond::TEXT, "ok\n"),
        Some(reason) => respond::whole(StatusCode::SERVICE_UNAVAILABLE, respond::TEXT, format!("{reason}\n")),
    }
}

async fn post(api: &Api, path: &str, request: Request<Incoming>) -> Reply {
    if let Some(refusal) = refusal(api.token.as_deref(), &request) {
        return refusal;
    }
    if Limited::new(request.into_body(), MAX_BODY_BYTES).collect().await.is_err() {
        return respond::refuse(StatusCode::PAYLOAD_TOO_LARGE, "a body of more than 4096 bytes");
    }
    match path {
        "/pause" => send(api, Command::Pause, "pausing"),
        "/resume" => send(api, Command::Resume, "resuming"),
        _ => checkpoint(api).await,
    }
}

/// Why this request may not change anything; `None` when it may.
fn refusal(token: Option<&str>, request: &Request<Incoming>) -> Option<Reply> {
    let Some(token) = token else {
        let text = "no FLY_TOKEN_FILE is configured, so POST is refused";
        return Some(respond::refuse(StatusCode::FORBIDDEN, text));
    };
    let shown = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    match shown.and_then(|value| value.strip_prefix("Bearer ")) {
        Some(shown) if same(shown.as_bytes(), token.as_bytes()) => None,
        _ => {
            let text = "Authorization: Bearer with the content of FLY_TOKEN_FILE";
            Some(respond::refuse(StatusCode::UNAUTHORIZED, text))
        }
    }
}

/// Compares in a time that does not tell how many bytes were right.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (x, y)| difference | (x ^ y)) == 0
}

fn send(api: &Api, command: Command, word: &str) -> Reply {
    match api.commands.send(command) {
        Ok(()) => respond::json(StatusCode::ACCEPTED, &serde_json::json!({ "ok": word })),
        Err(_) => respond::refuse(StatusCode::SERVICE_UNAVAILABLE, "the simulator is stopping"),
    }
}

async fn checkpoint(api: &Api) -> Reply {
    let (reply, answer) = oneshot::channel();
    if api.commands.send(Command::Checkpoint(reply)).is_err() {
        return respond::refuse(StatusCode::SERVICE_UNAVAILABLE, "the simulator is stopping");
    }
    match tokio::time::timeout(CHECKPOINT_PATIENCE, answer).await {
        Ok(Ok(Ok(written))) => respond::json(StatusCode::OK, &written),
        Ok(Ok(Err(why))) => respond::refuse(StatusCode::SERVICE_UNAVAILABLE, &why),
        Ok(Err(_)) => respond::refuse(StatusCode::SERVICE_UNAVAILABLE, "the simulator is stopping"),
        Err(_) => {
            respond::refuse(StatusCode::GATEWAY_TIMEOUT, "not written yet; look at checkpoint in /status")
        }
    }
}

/// `/status`, in the order in which it is read.
#[derive(Serialize)]
struct Status<'a> {
    #[serde(flatten)]
    info: &'a Info,
    tick: u64,
    brain_s: f64,
    uptime_s: f64,
    realtime_factor: f64,
    lag_ms: f64,
    host_cores: f64,
    paused: bool,
    spikes: u64,
    spikes_undriven: u64,
    spikes_per_s: f64,
    rates: std::collections::BTreeMap<&'a str, f64>,
    checkpoint: Checkpoint,
    feed: Option<Feed>,
}

#[derive(Serialize)]
struct Checkpoint {
    age_s: Option<f64>,
    tick: Option<u64>,
    count: u64,
    failures: u64,
    last_error: Option<String>,
}

#[derive(Serialize)]
struct Feed {
    clients: usize,
    frames_dropped: u64,
}

impl<'a> Status<'a> {
    fn of(api: &'a Api) -> Self {
        let (board, snapshot) = (&api.board, api.board.snapshot.load());
        let checkpoint = board.checkpoint();
        Self {
            info: &board.info,
            tick: snapshot.tick,
            brain_s: brain_s(snapshot.tick),
            uptime_s: board.info.started.elapsed().as_secs_f64(),
            realtime_factor: snapshot.realtime_factor,
            lag_ms: snapshot.lag.as_secs_f64() * 1e3,
            host_cores: snapshot.host_cores,
            paused: snapshot.paused,
            spikes: snapshot.spikes,
            spikes_undriven: snapshot.spikes_undriven,
            spikes_per_s: snapshot.spikes_per_s,
            rates: board.rates(),
            checkpoint: Checkpoint {
                age_s: checkpoint.at.map(|at| at.elapsed().as_secs_f64()),
                tick: checkpoint.tick,
                count: checkpoint.count,
                failures: checkpoint.failures,
                last_error: checkpoint.last_error,
            },
            feed: api.hub.as_ref().map(|hub| Feed {
                clients: hub.clients(),
                frames_dropped: hub.dropped() + snapshot.frames_lost,
            }),
        }
    }
}
