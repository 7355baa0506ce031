//! An adaptor process.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Longer than anything here takes on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A directory, and addresses of nodes.
pub struct Place {
    directory: TempDir,
    /// The first three parts of every address.
    network: [u8; 3],
    port: u16,
}

impl Place {
    /// With loopback addresses that no other test has: 127.RUN.TEST.node.
    pub fn new() -> Self {
        static TESTS: AtomicU8 = AtomicU8::new(1);
        let test = TESTS.fetch_add(1, Ordering::Relaxed);
        let run = std::process::id().to_le_bytes();
        Self::in_network([127, 1 + (run[0] & 63), test], 20_000 + u16::from(run[1]))
    }

    /// With addresses in this network, of which `node` has the one that ends with its number.
    pub fn in_network(network: [u8; 3], port: u16) -> Self {
        Self { directory: tempfile::tempdir().unwrap(), network, port }
    }

    pub fn address(&self, node: u8) -> SocketAddr {
        let [a, b, c] = self.network;
        SocketAddr::from(([a, b, c, node], self.port))
    }

    /// How many connections there are between these nodes.
    pub fn connections(&self, nodes: &[u8]) -> usize {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let hosts: Vec<String> = nodes
            .iter()
            .map(|&node| match self.address(node) {
                SocketAddr::V4(address) => format!("{:08X}", u32::from_le_bytes(address.ip().octets())),
                SocketAddr::V6(_) => unreachable!(),
            })
            .collect();
        // Local address, remote address, state; 1 is established. The dialing end has an address that the kernel chose.
        let is_listeners_end = |line: &&str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let port = format!(":{:04X}", self.address(nodes[0]).port());
            let local = fields.get(1).copied().unwrap_or_default();
            fields.get(3) == Some(&"01") && hosts.iter().any(|host| local == format!("{host}{port}"))
        };
        table.lines().filter(is_listeners_end).count()
    }

    pub fn socket(&self, node: u8) -> PathBuf {
        self.file(&format!("{node}.sock"))
    }

    /// The path of a file in the directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts `node` with these `peers`, which it dials, and waits until it is there.
    pub fn start(&self, node: u8, peers: &[u8], options: &[&str]) -> Node {
        let socket = self.socket(node).display().to_string();
        self.start_without_guest(node, peers, &[&["--socket-path", &socket], options].concat())
    }

    /// As [`Place::start`], with no socket for a guest.
    pub fn start_without_guest(&self, node: u8, peers: &[u8], options: &[&str]) -> Node {
        let mut arguments = vec![
            "--node-id".to_owned(),
            node.to_string(),
            "--listen".to_owned(),
            self.address(node).to_string(),
        ];
        for &peer in peers {
            arguments.extend(["--peer".to_owned(), format!("{peer}={}", self.address(peer))]);
        }
        arguments.extend(options.iter().map(|&option| option.to_owned()));
        let mut node = Node::spawn("adaptor", &arguments);
        node.wait_for("guest socket");
        node
    }

    /// Starts `node` with these options and this for its standard error, after `setup` of a shell, and waits until its socket is there.
    pub fn start_after(&self, setup: &str, node: u8, options: &[&str], stderr: impl Into<Stdio>) -> Child {
        let script = format!("{setup} exec \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_assured-rdma"), "adaptor"]);
        command.args(["--node-id", &node.to_string(), "--listen", &self.address(node).to_string()]);
        command.arg("--socket-path").arg(self.socket(node)).args(options);
        let child = command.env_remove("RUST_LOG").stderr(stderr).spawn().unwrap();
        let end = Instant::now() + PATIENCE;
        while !self.socket(node).exists() {
            assert!(Instant::now() < end, "it does not listen");
            thread::yield_now();
        }
        child
    }

    /// Starts router `id`, which connects to these other `routers`, and waits until it is there.
    pub fn start_router(&self, id: u8, routers: &[u8], options: &[&str]) -> Node {
        let mut arguments = vec!["--listen".to_owned(), self.address(id).to_string()];
        for &router in routers {
            arguments.extend(["--router".to_owned(), self.address(router).to_string()]);
        }
        arguments.extend(options.iter().map(|&option| option.to_owned()));
        let mut router = Node::spawn("router", &arguments);
        router.wait_for("router: listening");
        router
    }

    /// Starts `node`, which knows nobody but these `routers`.
    pub fn start_behind(&self, node: u8, routers: &[u8], options: &[&str]) -> Node {
        let routers: Vec<_> = routers.iter().map(|&router| self.address(router).to_string()).collect();
        let routers = routers.iter().flat_map(|address| ["--router", address]);
        self.start(node, &[], &routers.chain(options.iter().copied()).collect::<Vec<_>>())
    }
}

/// A running adaptor or router; killed when dropped.
pub struct Node {
    child: Child,
    lines: Receiver<String>,
    log: Vec<String>,
}

impl Node {
    pub fn spawn(command: &str, arguments: &[String]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_assured-rdma"))
            .arg(command)
            .args(arguments)
            .env_remove("RUST_LOG")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = child.stderr.take().unwrap();
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                let _ = sender.send(line.unwrap());
            }
        });
        Self { child, lines, log: Vec::new() }
    }

    /// Waits for a new log line that contains `part`.
    pub fn wait_for(&mut self, part: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.log.push(line.clone());
                    if line.contains(part) {
                        return line;
                    }
                }
                Err(error) => panic!("no line with {part:?} ({error}) in:\n{}", self.log.join("\n")),
            }
        }
    }

    /// Waits for a log line that contains `part`, old or new.
    pub fn wait_for_any(&mut self, part: &str) {
        if !self.log().iter().any(|line| line.contains(part)) {
            self.wait_for(part);
        }
    }

    /// Every line so far.
    pub fn log(&mut self) -> &[String] {
        self.log.extend(self.lines.try_iter());
        &self.log
    }

    /// How much time of processors it has used.
    pub fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // Behind the name, user and system time are the 12th and 13th field, in hundredths of a second.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 10)
    }

    /// How much time of a processor its first thread has used, in which the event loop is.
    pub fn main_thread_time(&self) -> Duration {
        let id = self.child.id();
        let stat = std::fs::read_to_string(format!("/proc/{id}/task/{id}/schedstat")).unwrap();
        let nanos = stat.split_whitespace().next().unwrap();
        Duration::from_nanos(nanos.parse().unwrap())
    }

    /// The same, exactly.
    pub fn processor_clock(&self) -> Duration {
        let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
        // SAFETY: both calls write to what they are given, which is ours.
        let results = unsafe {
            let found = libc::clock_getcpuclockid(self.child.id().cast_signed(), &mut clock);
            [found, libc::clock_gettime(clock, &mut time)]
        };
        assert_eq!(results, [0, 0]);
        Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap())
    }

    /// How much memory it holds, in bytes.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: `kill` only takes numbers, and the child has not been waited for, so that its id is still its own.
        assert_eq!(unsafe { libc::kill(self.child.id().cast_signed(), signal) }, 0);
    }

    /// Waits until the process has ended; gives its status and the log.
    pub fn wait(mut self) -> (ExitStatus, Vec<String>) {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => self.log.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("still running:\n{}", self.log.join("\n")),
            }
        }
        let status = self.child.wait().unwrap();
        (status, core::mem::take(&mut self.log))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("log of process {}:\n{}", self.child.id(), self.log().join("\n"));
        }
    }
}
