// SPDX-License-Identifier: Apache-2.0
//! The real binary on a small brain, in a directory of its own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use flysim_core::connectome::{Group, Parts};
use serde_json::Value;
use tempfile::TempDir;

pub const DRIVE: &str = "sensory:150";
pub const TOKEN: &str = "a-token-of-some-length";

/// A brain of 600 cells in which a driven tenth moves the rest.
pub fn parts(neurons: u32, seed: u64) -> Parts {
    let mut random = seed;
    let mut next = move |below: u32| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((random >> 33) % u64::from(below)) as u32
    };
    let mut edges = std::collections::BTreeMap::new();
    for from in 0..neurons {
        let sign = if next(10) < 7 { 1 } else { -1 };
        for _ in 0..20 {
            edges.insert((from, next(neurons)), sign * (5 + next(30) as i32));
        }
    }
    let group = |name: &str, from: u32, to: u32| Group { name: name.into(), members: (from..to).collect() };
    let tenth = neurons / 10;
    let mut parts = Parts {
        index_space: "test".into(),
        source: "service tests".into(),
        attribution: "made by the tests".into(),
        roots: (0..u64::from(neurons)).map(|n| 720_575_940_000_000_000 + n).collect(),
        groups: vec![
            group("sensory", 0, tenth),
            group("kenyon", tenth, 6 * tenth),
            group("mbon", 6 * tenth, 7 * tenth),
            group("motor", 7 * tenth, neurons),
        ],
        ..Parts::default()
    };
    parts.set_edges(edges.into_iter().map(|((from, to), count)| (from, to, count)).collect()).unwrap();
    parts
}

/// A directory with a connectome, a token, a state directory and room for sockets.
pub struct Place {
    pub dir: TempDir,
    pub port: u16,
}

impl Place {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("brain.fly"), parts(600, 1).encode()).unwrap();
        std::fs::write(dir.path().join("token"), format!("{TOKEN}\n")).unwrap();
        Self { dir, port: free_port() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `flysim run` with everything set; `extra` flags come last and win.
    pub fn command(&self, extra: &[&str]) -> Command {
        let mut command = flysim();
        command.arg("run");
        command.arg("--connectome").arg(self.path("brain.fly"));
        command.arg("--state-dir").arg(self.path("state"));
        command.arg("--token-file").arg(self.path("token"));
        command.arg("--feed").arg(self.path("feed.sock"));
        let listen = format!("127.0.0.1:{}", self.port);
        command.args(["--listen", &listen, "--drive", DRIVE, "--threads", "1"]);
        // clap takes each flag once, so an extra one replaces its default here.
        let mut args: Vec<_> = command.get_args().map(|arg| arg.to_owned()).collect();
        for pair in extra.chunks(2) {
            match args.iter().position(|arg| arg == pair[0]) {
                Some(at) => args[at + 1] = pair[1].into(),
                None => args.extend(pair.iter().map(|arg| (*arg).into())),
            }
        }
        let mut command = flysim();
        command.args(args);
        command
    }

    /// Runs to the end and gives everything it said.
    pub fn finish(&self, extra: &[&str]) -> Output {
        self.command(extra).output().unwrap()
    }

    pub fn start(&self, extra: &[&str]) -> Running {
        self.start_command(self.command(extra))
    }

    pub fn start_command(&self, mut command: Command) -> Running {
        let log = self.path(&format!("log-{}", std::fs::read_dir(self.dir.path()).unwrap().count()));
        let child =
            command.stderr(std::fs::File::create(&log).unwrap()).stdout(Stdio::null()).spawn().unwrap();
        let running = Running { child, log, port: self.port };
        running.until("the status", || running.try_get("/status").is_some());
        running
    }

    pub fn checkpoints(&self) -> Vec<(u64, PathBuf)> {
        flysim_core::checkpoint::list(&self.path("state")).unwrap()
    }
}

/// The binary, without anything from the environment of whoever runs the tests.
pub fn flysim() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flysim"));
    command.env_clear();
    command
}

pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A service that is killed when the test ends, however it ends.
pub struct Running {
    pub child: Child,
    log: PathBuf,
    port: u16,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that does not outlive the test.
pub struct Reaped(pub Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub fn try_get(&self, path: &str) -> Option<(u16, String)> {
        request(self.port, "GET", path, "")
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        self.try_get(path).unwrap_or_else(|| panic!("no answer to {path}; log:\n{}", self.log()))
    }

    pub fn status(&self) -> Value {
        serde_json::from_str(&self.get("/status").1).unwrap()
    }

    pub fn tick(&self) -> u64 {
        self.status()["tick"].as_u64().unwrap()
    }

    pub fn post(&self, path: &str, token: &str) -> (u16, String) {
        request(self.port, "POST", path, &format!("Authorization: Bearer {token}\r\n")).expect("an answer")
    }

    /// Waits at most 20 s.
    pub fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(Instant::now() < deadline, "{what} did not come; log:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// SIGTERM, then the exit code and the whole log.
    pub fn terminate(mut self) -> (i32, String) {
        self.signal("TERM");
        let code = self.wait();
        (code, self.log())
    }

    pub fn wait(&mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap_or(-1)
    }
}

/// One HTTP/1.1 exchange; `None` when there was no whole answer.
pub fn request(port: u16, method: &str, path: &str, headers: &str) -> Option<(u16, String)> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let code = head.split(' ').nth(1)?.parse().ok()?;
    Some((code, body.to_owned()))
}

/// Hash and tick of the newest checkpoint.
pub fn newest(directory: &Path) -> (u64, String) {
    let path = flysim_core::checkpoint::list(directory).unwrap().remove(0).1;
    let found = flysim_core::checkpoint::read(&path).unwrap();
    (found.manifest.tick, found.manifest.state_hash)
}
