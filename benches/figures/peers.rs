//! UCX over TCP, in the same rounds, where its `ucx_perftest` is installed (Debian: ucx-utils). It sends without a CRC, and nobody checks its puts.
//!
//! UCX moves each transfer by one operation. Here it is stores and one check, or loads.

use std::io::{Read, Seek};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::bare::{each, typical};
use super::guest::ACCESS;
use super::pair::Pair;
use super::report::{Figure, Report, Samples, Target};
use super::wire::{Wait, store};

/// A size of transfers, how many of them UCX and the stores have for a round, and what to reach of UCX's rate.
const PUTS: [(u64, &str, usize, usize, f64); 4] = [
    (8, "8B", 20_000, 100, 1.5),
    (4 << 10, "4KiB", 5000, 100, 1.5),
    (64 << 10, "64KiB", 2000, 20, 1.5),
    (1 << 20, "1MiB", 200, 2, 1.0),
];
/// The same for loads.
const GETS: [(u64, &str, usize, usize, f64); 2] =
    [(8, "8B", 1000, 500, 1.5), (4 << 10, "4KiB", 1000, 2, 1.5)];
/// How many puts are waited for one by one.
const LATENCIES: usize = 1000;
/// How long one run of it may take; it polls without leaving the processor to others.
const PATIENCE: Duration = Duration::from_secs(60);
/// Stores of 8 bytes in a row, which are checked together.
const ROW: u64 = 512;

/// See the module.
pub fn run(report: &mut Report, rounds: usize) {
    if Command::new("ucx_perftest").arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        return report.skip("peers/ucx", "not installed (Debian: ucx-utils)");
    }
    let mut pair = Pair::start(Wait::Poll);
    for (len, size, count, own_count, target) in PUTS {
        let name = |what| format!("peers/put-{size}-{what}");
        // Small ones are checked many together.
        let unchecked = if len == 8 { ROW } else { 1 };
        let own = |pair: &mut Pair, round| {
            let messages = [pair.stores(len * unchecked, round), pair.check(len * unchecked)].concat();
            let seconds = each(own_count, || assert_eq!(pair.near.client.ask(&messages), [0; 4]));
            (len * unchecked) as f64 / seconds
        };
        compare(report, rounds, [name("stores"), name("ucx")], target, &mut pair, own, || {
            ucx("ucp_put_bw", len, count).rate
        });
    }
    for (len, size, count, own_count, target) in GETS {
        let name = |what| format!("peers/get-{size}-{what}");
        let own = |pair: &mut Pair, round| {
            assert_eq!(pair.near.client.ask(&[pair.stores(len, round), pair.check(len)].concat()), [0; 4]);
            len as f64 / each(own_count, || pair.read_back(len, round))
        };
        compare(report, rounds, [name("loads"), name("ucx")], target, &mut pair, own, || {
            ucx("ucp_get", len, count).rate
        });
    }
    latency(report, rounds, &mut pair);
}

/// Rates in bytes a second, of this product and of UCX.
fn compare(
    report: &mut Report,
    rounds: usize,
    [own_name, ucx_name]: [String; 2],
    target: f64,
    pair: &mut Pair,
    own: impl Fn(&mut Pair, u64) -> f64,
    ucx: impl Fn() -> f64,
) {
    let (mut rates, mut ucx_rates) = (Samples::default(), Samples::default());
    for round in 0..rounds {
        rates.push(own(pair, round as u64));
        ucx_rates.push(ucx());
    }
    let mega = |samples: &Samples| samples.map(|rate| rate / 1e6);
    report.add(
        Figure::new(own_name, &mega(&rates), "MB/s")
            .against(&rates, &ucx_rates, "UCX over TCP")
            .target(Target::RatioAtLeast(target)),
    );
    report.add(Figure::new(ucx_name, &mega(&ucx_rates), "MB/s"));
}

/// The time from a store to the moment at which the bytes are in the other guest's memory.
fn latency(report: &mut Report, rounds: usize, pair: &mut Pair) {
    let (mut own, mut ucx_own) = (Samples::default(), Samples::default());
    let mut value = 0u64;
    for _ in 0..rounds {
        own.push(typical(LATENCIES, || {
            value += 1;
            let message = store(ACCESS, pair.at(0), &value.to_le_bytes());
            pair.near.client.send(&message);
            while pair.memory(0) != value.to_le_bytes() {
                thread::yield_now();
            }
        }));
        ucx_own.push(ucx("ucp_put_lat", 8, LATENCIES).latency);
    }
    let micros = |samples: &Samples| samples.map(|seconds| seconds * 1e6);
    report.add(
        Figure::new("peers/put-latency-8B-stores", &micros(&own), "us")
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
fn ucx(test: &str, len: u64, count: usize) -> Found {
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
