// SPDX-License-Identifier: Apache-2.0
//! The service as its users meet it: a process, its exit codes, its log, its files and its sockets.

#![allow(unreachable_pub, reason = "a test has no public surface")]
#![allow(clippy::unwrap_used, reason = "clippy knows only functions marked #[test], not their helpers")]

mod checkpoints;
mod config;
mod http;
mod notify;
mod support;
