// SPDX-License-Identifier: Apache-2.0
//! Settings of `flysim run`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::layers::{Layers, Setting, settings_args};
use super::page;

macro_rules! settings {
    ($($name:ident $env:literal $flag:literal $value:literal $default:literal $help:literal;)*) => {
        $(const $name: Setting = Setting {
            env: $env, flag: $flag, value: $value, default: $default, help: $help,
        };)*
        /// All settings of the simulator.
        pub static SETTINGS: &[Setting] = &[$($name),*];
    };
}

settings! {
    CONNECTOME "FLY_CONNECTOME" "connectome" "FILE" "" "Connectome to simulate, a .fly file";
    STATE_DIR "FLY_STATE_DIR" "state-dir" "DIR" "" "Directory of the checkpoints; one simulator at a time holds it";
    LISTEN "FLY_LISTEN" "listen" "IP:PORT" "127.0.0.1:7070" "Loopback address of the HTTP interface";
    LIF_CUDA "FLY_LIF_CUDA" "lif-cuda" "0|1" "0" "1 runs the neurons on an NVIDIA GPU, or fails; 0 runs them on the CPU";
    THREADS "RAYON_NUM_THREADS" "threads" "N" "" "Threads of the CPU kernel; default: the cpus this process may use";
    SPEED "FLY_SPEED" "speed" "X" "1" "Brain seconds per wall second; 0 is unthrottled";
    SEED "FLY_SEED" "seed" "N" "1" "Seed of the external drive";
    DRIVE "FLY_DRIVE" "drive" "GROUP:HZ,..." "" "Poisson drive of named groups, in Hz per neuron";
    GPU "FLY_GPU" "gpu" "INDEX|UUID" "0" "Which GPU to use";
    PTX "FLY_PTX" "ptx" "FILE" "" "PTX to load before the embedded one";
    CHECKPOINT_S "FLY_CHECKPOINT_S" "checkpoint-s" "S" "60" "Seconds between checkpoints";
    KEEP "FLY_CHECKPOINT_KEEP" "checkpoint-keep" "N" "3" "How many valid checkpoints to keep";
    FEED "FLY_FEED" "feed" "SOCKET" "" "Unix socket to publish frames on for flysim page";
    TOKEN "FLY_TOKEN_FILE" "token-file" "FILE" "" "File with the token that POST requests need; without it they are refused";
    CPUS "FLY_CPUS" "cpus" "LIST" "" "Cpus the operator meant to give; only compared with the real ones in the log";
    UNTIL "FLY_UNTIL_TICK" "until-tick" "TICK" "" "Stop with a checkpoint when exactly this tick is reached";
    FAULT "FLY_FAULT" "fault" "FAULT" "" "Inject a fault; only in binaries built with the feature fault";
}

settings_args!(
    /// Arguments of `flysim run`, as typed.
    RunArgs,
    SETTINGS
);

/// Checked settings of the simulator.
#[derive(Debug)]
pub struct RunConfig {
    /// Connectome file.
    pub connectome: PathBuf,
    /// Directory of the checkpoints.
    pub state_dir: PathBuf,
    /// Loopback address of the HTTP interface.
    pub listen: SocketAddr,
    /// The GPU backend is wanted.
    pub cuda: bool,
    /// Threads of the CPU kernel.
    pub threads: usize,
    /// Brain seconds per wall second; 0 is unthrottled.
    pub speed: f64,
    /// Seed of the external drive.
    pub seed: u64,
    /// Poisson drive as given, `group:Hz,…`.
    pub drive: String,
    /// GPU index or UUID.
    pub gpu: String,
    /// PTX file to load before the embedded one.
    pub ptx: Option<PathBuf>,
    /// Time between checkpoints.
    pub checkpoint_every: Duration,
    /// How many valid checkpoints to keep.
    pub checkpoint_keep: usize,
    /// Unix socket for the page.
    pub feed: Option<PathBuf>,
    /// Token that POST requests need.
    pub token: Option<String>,
    /// What the operator believes the cpus to be.
    pub cpus_meant: Option<String>,
    /// Tick at which to stop.
    pub until_tick: Option<u64>,
    /// Fault to inject.
    pub fault: Option<Fault>,
}

/// A fault for tests; a binary without the feature `fault` refuses to be given one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The backend reports that its GPU is gone at the first batch that ends at or after this tick.
    GpuLost(u64),
    /// The simulator thread stops making ticks there, without dying.
    Stall(u64),
    /// The simulator thread panics there.
    Panic(u64),
    /// Every checkpoint write fails as on a full disk.
    DiskFull,
}

/// Checks the arguments of the simulator.
///
/// # Errors
/// Exit 78, with every complaint, when a value is not usable.
pub fn check(args: RunArgs, environment: impl Fn(&str) -> Option<String>) -> anyhow::Result<RunConfig> {
    let mut layers = Layers::new("flysim run", args.0, &[SETTINGS, page::SETTINGS], environment);
    let config = read(&mut layers);
    super::finish(&layers)?;
    config.ok_or_else(|| anyhow::anyhow!("a setting was lost without a complaint"))
}

/// Reads every setting before it looks at any result, so that all complaints are told at once.
fn read(layers: &mut Layers) -> Option<RunConfig> {
    let connectome = layers.required(&CONNECTOME, "a .fly file that exists", file);
    let state_dir =
        layers.required(&STATE_DIR, "a directory, made when it is missing", |text| Ok(text.into()));
    let listen = layers.required(&LISTEN, "a loopback IP:PORT, for example 127.0.0.1:7070", loopback);
    let cuda = layers.required(&LIF_CUDA, "0 (CPU) or 1 (GPU)", zero_or_one);
    let threads = layers.optional(&THREADS, "a whole number from 1 to 1024", |t| whole(t, 1, 1024));
    let speed = layers.required(&SPEED, "a number from 0 (unthrottled) to 1000", |t| number(t, 0.0, 1000.0));
    let seed = layers.required(&SEED, "a whole number from 0 to 2^64-1", |t| whole(t, 0, u64::MAX));
    let drive = layers.optional(&DRIVE, "group:Hz,... with Hz from 0 to 10000", drive);
    let gpu = layers.required(&GPU, "an index from 0 or GPU-<uuid>", gpu);
    let ptx = layers.optional(&PTX, "a PTX file that exists", file);
    let every = layers.required(&CHECKPOINT_S, "seconds from 0.1 to 86400", |t| number(t, 0.1, 86_400.0));
    let keep = layers.required(&KEEP, "a whole number from 1 to 1000", |t| whole(t, 1, 1000));
    let feed = layers.optional(&FEED, "a socket path of at most 107 bytes in an existing directory", socket);
    let token =
        layers.optional(&TOKEN, "a readable file with one token of 16 to 256 visible characters", token);
    let until_tick = layers.optional(&UNTIL, "a tick, a whole number from 1", |t| whole(t, 1, u64::MAX));
    let fault_expected = if cfg!(feature = "fault") {
        "gpu-lost@TICK, stall@TICK, panic@TICK or disk-full"
    } else {
        "nothing: this binary was built without the feature fault (cargo build --features fault has it)"
    };
    let fault = layers.optional(&FAULT, fault_expected, fault);
    Some(RunConfig {
        connectome: connectome?,
        state_dir: state_dir?,
        listen: listen?,
        cuda: cuda?,
        threads: threads.map_or_else(default_threads, |n| n as usize),
        speed: speed?,
        seed: seed?,
        drive: drive.unwrap_or_default(),
        gpu: gpu?,
        ptx,
        checkpoint_every: Duration::from_secs_f64(every?),
        checkpoint_keep: keep? as usize,
        feed,
        token,
        cpus_meant: layers.raw(&CPUS).map(|(text, _)| text),
        until_tick,
        fault,
    })
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn file(text: &str) -> Result<PathBuf, String> {
    match std::fs::metadata(text) {
        Ok(found) if found.is_file() => Ok(text.into()),
        Ok(_) => Err("not a regular file".into()),
        Err(error) => Err(error.to_string()),
    }
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address = text.parse::<SocketAddr>().map_err(|error| error.to_string())?;
    // The interface can stop a brain and has no encryption: other machines reach it through the agent only.
    if address.ip().is_loopback() { Ok(address) } else { Err("not a loopback address".into()) }
}

fn zero_or_one(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(String::new()),
    }
}

fn whole(text: &str, low: u64, high: u64) -> Result<u64, String> {
    let value = text.parse::<u64>().map_err(|error| error.to_string())?;
    if (low..=high).contains(&value) { Ok(value) } else { Err("out of range".into()) }
}

fn number(text: &str, low: f64, high: f64) -> Result<f64, String> {
    let value = text.parse::<f64>().map_err(|error| error.to_string())?;
    // Zero speed is allowed only as exactly zero: 1e-9 would be a stopped brain that looks alive.
    let sensible = value == 0.0 || value >= 0.001;
    if (low..=high).contains(&value) && sensible { Ok(value) } else { Err("out of range".into()) }
}

fn drive(text: &str) -> Result<String, String> {
    for part in text.split(',') {
        let (group, hz) = part.rsplit_once(':').ok_or_else(|| format!("{part:?} has no ':'"))?;
        if group.trim().is_empty() {
            return Err(format!("{part:?} names no group"));
        }
        match hz.trim().parse::<f64>() {
            Ok(hz) if (0.0..=10_000.0).contains(&hz) => {}
            _ => return Err(format!("{hz:?} in {part:?} is not a rate")),
        }
    }
    Ok(text.into())
}

fn gpu(text: &str) -> Result<String, String> {
    let is_index = text.parse::<u16>().is_ok();
    if is_index || text.starts_with("GPU-") { Ok(text.into()) } else { Err(String::new()) }
}

fn socket(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match () {
        () if text.len() > 107 => Err(format!("{} bytes", text.len())),
        () if !parent.is_dir() => Err(format!("no directory {}", parent.display())),
        () => Ok(path.into()),
    }
}

fn token(text: &str) -> Result<String, String> {
    let content = std::fs::read_to_string(text).map_err(|error| error.to_string())?;
    let token = content.trim();
    let visible = token.chars().all(|c| c.is_ascii_graphic());
    // The content itself must never reach a log, so only its length is told.
    if visible && (16..=256).contains(&token.len()) {
        Ok(token.into())
    } else {
        Err(format!("holds {} bytes that are not such a token", token.len()))
    }
}

fn fault(text: &str) -> Result<Fault, String> {
    if !cfg!(feature = "fault") {
        return Err("fault injection asked of a binary that cannot".into());
    }
    let at = |tick: &str| tick.parse::<u64>().map_err(|error| error.to_string());
    match text.split_once('@') {
        Some(("gpu-lost", tick)) => at(tick).map(Fault::GpuLost),
        Some(("stall", tick)) => at(tick).map(Fault::Stall),
        Some(("panic", tick)) => at(tick).map(Fault::Panic),
        None if text == "disk-full" => Ok(Fault::DiskFull),
        _ => Err(String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::layers::Given;

    fn complaint(name: &'static str, value: &'static str) -> String {
        let environment = move |key: &str| (key == name).then(|| value.to_owned());
        check(RunArgs(Given::default()), environment)
            .map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn each_setting_is_refused_with_its_name_and_what_was_expected() {
        for (name, value, part) in [
            ("FLY_LIF_CUDA", "yes", "0 (CPU) or 1 (GPU)"),
            ("RAYON_NUM_THREADS", "0", "from 1 to 1024"),
            ("FLY_SPEED", "fast", "from 0 (unthrottled)"),
            ("FLY_SPEED", "NaN", "from 0 (unthrottled)"),
            ("FLY_SPEED", "1e-9", "from 0 (unthrottled)"),
            ("FLY_LISTEN", "0.0.0.0:80", "not a loopback address"),
            ("FLY_DRIVE", "sugar", "has no ':'"),
            ("FLY_DRIVE", "sugar:lots", "is not a rate"),
            ("FLY_GPU", "first", "GPU-<uuid>"),
            ("FLY_SEED", "-1", "2^64-1"),
            ("FLY_FEED", "/nonexistent/dir/feed", "no directory"),
            ("FLY_TOKEN_FILE", "/nonexistent", "16 to 256"),
            ("FLY_CONNECTOME", "/nonexistent", "a .fly file"),
        ] {
            let text = complaint(name, value);
            assert!(text.contains(&format!("flysim run: {name} is not usable")), "{text}");
            assert!(text.contains("the environment of the process"), "{text}");
            assert!(text.contains(part), "{part} not in {text}");
        }
    }

    #[test]
    fn names_and_flags_are_unique_and_every_setting_is_explained() {
        for (at, setting) in SETTINGS.iter().enumerate() {
            assert!(!setting.help.is_empty());
            assert!(
                SETTINGS
                    .iter()
                    .skip(at + 1)
                    .all(|other| other.env != setting.env && other.flag != setting.flag)
            );
        }
    }
}
