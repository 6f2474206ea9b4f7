// SPDX-License-Identifier: Apache-2.0
//! Lines for the journal.

/// Writes one line to stderr. Unlike `eprintln!` it does not panic when nobody reads stderr any more: a brain must not
/// die because its supervisor's pipe did.
macro_rules! say {
    ($($part:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), $($part)*);
    }};
}
pub(crate) use say;
