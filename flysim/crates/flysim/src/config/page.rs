// SPDX-License-Identifier: Apache-2.0
//! Settings of `flysim page`.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::layers::{Layers, Setting, settings_args};
use super::run;

/// All settings of the page.
pub static SETTINGS: &[Setting] = &[LISTEN, FEED];

const LISTEN: Setting = Setting {
    env: "FLY_PAGE_LISTEN",
    flag: "listen",
    value: "IP:PORT",
    default: "127.0.0.1:7071",
    help: "Address the page is served on; read only, but shown to everybody who can reach it",
};
const FEED: Setting = Setting {
    env: "FLY_FEED",
    flag: "feed",
    value: "SOCKET",
    default: "",
    help: "Unix socket on which the simulator publishes its frames",
};

settings_args!(
    /// Arguments of `flysim page`, as typed.
    PageArgs,
    SETTINGS
);

/// Checked settings of the page.
#[derive(Debug)]
pub struct PageConfig {
    /// Address to serve on.
    pub listen: SocketAddr,
    /// Socket of the simulator.
    pub feed: PathBuf,
}

/// Checks the arguments of the page.
///
/// # Errors
/// Exit 78, with every complaint, when a value is not usable.
pub fn check(args: PageArgs, environment: impl Fn(&str) -> Option<String>) -> anyhow::Result<PageConfig> {
    // The page may share the env file of the simulator, so that file's names are known here too.
    let mut layers = Layers::new("flysim page", args.0, &[run::SETTINGS, SETTINGS], environment);
    let listen = layers.required(&LISTEN, "IP:PORT, for example 127.0.0.1:7071", |text| {
        text.parse::<SocketAddr>().map_err(|error| error.to_string())
    });
    let feed = layers
        .required(&FEED, "the path of a unix socket, the FLY_FEED of flysim run", |text| Ok(text.into()));
    super::finish(&layers)?;
    listen
        .zip(feed)
        .map(|(listen, feed)| PageConfig { listen, feed })
        .ok_or_else(|| anyhow::anyhow!("a setting was lost without a complaint"))
}
