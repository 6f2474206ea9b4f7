// SPDX-License-Identifier: Apache-2.0
//! A small HTTP/1.1 server: one thread, bounded connections, bounded bodies, bounded patience.
//!
//! hyper is used without a framework because seven routes are a `match`, and because the header timeout that keeps
//! slow clients from holding connections for ever is hyper's.

pub mod hub;
pub mod respond;

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use respond::Reply;

/// Connections served at a time; one more waits in the kernel's queue.
const MAX_CONNECTIONS: usize = 128;
/// A client that has not sent its headers after this long is dropped.
const HEADER_PATIENCE: Duration = Duration::from_secs(5);

/// Binds before anything slow is done, so that a taken port is told at once.
///
/// # Errors
/// Those of bind, with the address in the text.
pub fn bind(address: SocketAddr) -> anyhow::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address).map_err(|error| {
        let text = format!("cannot listen on {address}: {error}; free the port or choose another");
        crate::exit::Failure::new(crate::exit::UNAVAILABLE, text)
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves `listener` with `answer` for ever. Errors of one connection end that connection only.
///
/// # Errors
/// When the listener cannot be handed to the runtime.
pub async fn serve<F, Fut>(listener: std::net::TcpListener, answer: F) -> std::io::Result<()>
where
    F: Fn(Request<Incoming>) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Reply> + Send + 'static,
{
    let listener = TcpListener::from_std(listener)?;
    let seats = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(seat) = Arc::clone(&seats).acquire_owned().await else { return Ok(()) };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, most likely: wait for some to be closed.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let answer = answer.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let reply = answer(request);
                async move { Ok::<_, Infallible>(reply.await) }
            });
            let _ = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_PATIENCE)
                .max_buf_size(16 * 1024)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            drop(seat);
        });
    }
}
