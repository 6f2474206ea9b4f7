// SPDX-License-Identifier: Apache-2.0
//! Settings: raw layers first (env file, environment, flags), checked configuration second, never mixed.

pub mod envfile;
pub mod layers;
pub mod page;
pub mod run;

use crate::exit::{self, Failure};
use crate::log::say;
use layers::Layers;

/// Prints names that nobody knows, then turns the complaints of `layers` into one error that ends with exit 78.
///
/// # Errors
/// When anything was refused; the text holds all complaints, not only the first.
pub fn finish(layers: &Layers) -> anyhow::Result<()> {
    for (name, origin) in &layers.unknown {
        say!("warning: {origin}: {name} is not a setting of this flysim; it has no effect");
    }
    if layers.bad.is_empty() {
        return Ok(());
    }
    let text: Vec<String> = layers.bad.iter().map(ToString::to_string).collect();
    Err(Failure::new(exit::CONFIG, text.join("\n")).into())
}
