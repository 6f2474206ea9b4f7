// SPDX-License-Identifier: Apache-2.0
//! One file per command: its arguments, and a `run` that takes them.

pub mod page;
pub mod run;
pub mod tools;
pub mod versions;
