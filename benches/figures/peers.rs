//! UCX over TCP, in the same rounds, where its `ucx_perftest` is installed (Debian: ucx-utils), against the DMA engine. It sends without a CRC, and
//! nobody checks its puts.

use std::io::{Read, Seek};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::bare::typical;
use super::guest::queue::{READ, WRITE};
use super::pair::{Engine, Pair};
use super::report::{Figure, Report, Samples, Target};
use super::wire::Wait;

/// A size of transfers, how many of them there are in a round, and what to reach of UCX's rate.
const SIZES: [(u64, &str, u32, f64); 4] = [
    (8, "8B", 20_000, 1.5),
    (4 << 10, "4KiB", 5000, 1.5),
    (64 << 10, "64KiB", 2000, 1.5),
    (1 << 20, "1MiB", 200, 1.0),
];
/// What an operation is called here, and the test of UCX.
const KINDS: [(u8, &str, &str); 2] = [(WRITE, "put", "ucp_put_bw"), (READ, "get", "ucp_get")];
/// How many puts are waited for one by one.
const LATENCIES: usize = 1000;
/// How long one run of it may take; it polls without leaving the processor to others.
const PATIENCE: Duration = Duration::from_secs(60);

/// See the module.
pub fn run(report: &mut Report, rounds: usize) {
    if Command::new("ucx_perftest").arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        return report.skip("peers/ucx", "not installed (Debian: ucx-utils)");
    }
    let mut pair = Pair::start(Wait::Poll);
    let mut engine = pair.engine();
    for (opcode, kind, test) in KINDS {
        for (len, size, count, target) in SIZES {
            let (mut rates, mut ucx_rates) = (Samples::default(), Samples::default());
            for _ in 0..rounds {
                rates.push(engine.rate(&mut pair.near, opcode, len, count) * len as f64);
                ucx_rates.push(ucx(test, len, count).rate);
            }
            let mega = |samples: &Samples| samples.map(|rate| rate / 1e6);
            report.add(
                Figure::new(format!("peers/{kind}-{size}"), &mega(&rates), "MB/s")
                    .against(&rates, &ucx_rates, "UCX over TCP")
                    .target(Target::RatioAtLeast(target)),
            );
            report.add(Figure::new(format!("peers/{kind}-{size}-ucx"), &mega(&ucx_rates), "MB/s"));
        }
    }
    latency(report, rounds, &mut pair, &mut engine);
}

/// The time from the posting of a put to the moment at which it is known to be in the other's memory. UCX's put tells nothing of that:
/// there it is the time until the other's answer, which is a put too. The test gives half of it.
fn latency(report: &mut Report, rounds: usize, pair: &mut Pair, engine: &mut Engine) {
    let (mut own, mut ucx_own) = (Samples::default(), Samples::default());
    for _ in 0..rounds {
        own.push(typical(LATENCIES, || engine.one(&mut pair.near, WRITE, 8)));
        ucx_own.push(2.0 * ucx("ucp_put_lat", 8, LATENCIES as u32).latency);
    }
    let micros = |samples: &Samples| samples.map(|seconds| seconds * 1e6);
    report.add(
        Figure::new("peers/put-latency-8B", &micros(&own), "us")
            .against(&own, &ucx_own, "UCX over TCP")
            .target(Target::RatioAtMost(1.0 / 1.5)),
    );
    report.add(Figure::new("peers/put-latency-8B-ucx", &micros(&ucx_own), "us"));
}

/// What ucx_perftest found.
struct Found {
    /// Bytes a second.
    rate: f64,
    /// Seconds; the median.
    latency: f64,
}

/// Runs a test of ucx_perftest between two processes.
fn ucx(test: &str, len: u64, count: u32) -> Found {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port().to_string();
    let (size, count) = (len.to_string(), count.to_string());
    let _server = Process::start(&["-p", &port]);
    let begin = Instant::now();
    loop {
        let arguments =
            ["127.0.0.1", "-p", &port, "-t", test, "-s", &size, "-n", &count, "-w", "100", "-f", "-v"];
        // Until the server listens, the client ends with an error.
        if let Some(output) = Process::start(&arguments).wait() {
            return parse(&output, len);
        }
        assert!(begin.elapsed() < PATIENCE, "ucx_perftest {test} does not come to an end");
    }
}

/// Takes the line of results apart: iterations, median and mean and overall latency in us, mean and overall MiB/s, mean and overall
/// transfers a second.
fn parse(output: &str, len: u64) -> Found {
    let line =
        output.lines().map(str::trim).rfind(|line| line.starts_with(|first: char| first.is_ascii_digit()));
    let fields: Vec<f64> = line
        .unwrap_or_else(|| panic!("no results in {output:?}"))
        .split(',')
        .map(|n| n.parse().unwrap())
        .collect();
    Found { rate: fields[7] * len as f64, latency: fields[1] / 1e6 }
}

/// A process of ucx_perftest; killed when dropped.
struct Process {
    child: Child,
    output: std::fs::File,
}

impl Process {
    fn start(arguments: &[&str]) -> Self {
        let output = tempfile::tempfile().unwrap();
        let child = Command::new("ucx_perftest")
            .args(arguments)
            .env("UCX_TLS", "tcp")
            .env("UCX_NET_DEVICES", "lo")
            .stdout(output.try_clone().unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, output }
    }

    /// Its output, where it ends well in time.
    fn wait(mut self) -> Option<String> {
        let begin = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if begin.elapsed() > PATIENCE => return None,
                None => thread::sleep(Duration::from_millis(2)),
            }
        };
        let mut text = String::new();
        self.output.rewind().unwrap();
        self.output.read_to_string(&mut text).unwrap();
        status.success().then_some(text)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
