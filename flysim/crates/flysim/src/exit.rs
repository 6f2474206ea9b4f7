// SPDX-License-Identifier: Apache-2.0
//! Exit codes: what a supervisor may conclude from the way the process ended.
//!
//! 75 is kept apart from everything else because `OnFailure=flyops-restore.service` acts on it: only a GPU that is
//! not there, or no longer there, may end with it.

use std::fmt;

/// Stopped because somebody asked for it (SIGTERM, SIGINT, `--until-tick`), with the last checkpoint on disk.
pub const OK: u8 = 0;
/// Somebody else holds what is needed: the state directory or the port. A restart loop may try again.
pub const UNAVAILABLE: u8 = 69;
/// A bug: a thread of the process panicked or the simulator refused its own state.
pub const SOFTWARE: u8 = 70;
/// The last checkpoint could not be written while stopping; the older ones are still there.
pub const IO: u8 = 74;
/// The GPU did not attach at start or was lost in the middle. Never used for anything else.
pub const GPU: u8 = 75;
/// Configuration, connectome or state are not usable as they are: restarting alone cannot help.
pub const CONFIG: u8 = 78;

/// The table that `flysim run --help` prints.
pub const HELP: &str = "\
Exit codes:
   0  stopped on request (SIGTERM, SIGINT, --until-tick), last checkpoint written
   2  the command line was not understood
  69  state directory or port held by somebody else (try again)
  70  a bug: a thread of the simulator panicked
  74  the last checkpoint could not be written while stopping; the older ones are kept
  75  the GPU did not attach, or was lost while running (restore the CPU settings)
  78  configuration, connectome, token file or every checkpoint refused (a restart alone does not help);
      also FLY_LIF_CUDA=1 in a binary without the cuda feature";

/// An error that knows which exit code it deserves.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    text: String,
}

impl Failure {
    /// A failure with `code` (one of this module's constants) and a text for the operator.
    pub fn new(code: u8, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// The code the process should end with.
    pub fn code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

/// The exit code of any error: the one it carries, else 1.
pub fn code_of(error: &anyhow::Error) -> u8 {
    error.chain().find_map(|cause| cause.downcast_ref::<Failure>()).map_or(1, Failure::code)
}
