//! The DMA engine: writes and reads of all sizes with a full queue, against the best that one TCP stream carries, and how long one operation takes.

use std::thread;
use std::time::{Duration, Instant};

use super::bare::{Exchange, Way, round_trips, stream, typical};
use super::guest::queue::{READ, WRITE};
use super::pair::{Engine, Near, Pair};
use super::report::{Figure, Report, Samples, Target};
use super::wire::Wait;

/// A size, and how many operations there are of it in a round.
const SIZES: [(u64, &str, u32); 6] = [
    (8, "8B", 200_000),
    (512, "512B", 100_000),
    (4 << 10, "4KiB", 50_000),
    (64 << 10, "64KiB", 8000),
    (256 << 10, "256KiB", 2000),
    (1 << 20, "1MiB", 1000),
];
/// Sizes of writes of which the best is the limit, and bytes that each carries in a round.
const STREAMS: [usize; 3] = [64 << 10, 256 << 10, 1 << 20];
const STREAM_BYTES: usize = 1 << 30;
/// Operations that are waited for one by one.
const LATENCIES: usize = 2000;
/// How long to leave the queue alone when nothing has ended.
const PAUSE: Duration = Duration::from_micros(400);
/// What a write of 8 bytes and its answer are on the wire.
const WIRE: Exchange = Exchange { request: 72, reply: 64 };

/// Whether operations of this size are held against a stream.
fn has_limit(len: u64) -> bool {
    len >= 64 << 10
}

/// See the module.
pub fn run(report: &mut Report, rounds: usize) {
    let mut pair = Pair::start(Wait::Poll);
    let mut engine = pair.engine();
    let mut limits = Samples::default();
    let directions = [(WRITE, "write"), (READ, "read")];
    let mut rates: Vec<_> = (0..directions.len() * SIZES.len()).map(|_| Samples::default()).collect();
    let mut latencies = [Samples::default(), Samples::default(), Samples::default()];
    let wanted = |report: &Report, direction: &str, size: &str| {
        report.wants_any(&format!("engine/{direction}-{size}"))
    };
    let is_held_against_stream = |&(len, size, _): &(u64, &str, u32)| {
        has_limit(len) && directions.iter().any(|(_, direction)| wanted(report, direction, size))
    };
    let wants_limit = report.wants_any("engine/raw-stream") || SIZES.iter().any(is_held_against_stream);
    let wants_latencies = directions.iter().any(|(_, direction)| wanted(report, direction, "latency-8B"));
    for _ in 0..rounds {
        if wants_limit {
            limits.push(STREAMS.iter().map(|&len| stream(len, STREAM_BYTES)).fold(0.0, f64::max));
        }
        let mut samples = rates.iter_mut();
        for (opcode, direction) in directions {
            for (len, size, count) in SIZES {
                let samples = samples.next().unwrap();
                if wanted(report, direction, size) {
                    samples.push(engine.rate(&mut pair.near, opcode, len, count));
                }
            }
        }
        if !wants_latencies {
            continue;
        }
        for (samples, (opcode, _)) in latencies.iter_mut().zip(directions) {
            samples.push(typical(LATENCIES, || engine.one(&mut pair.near, opcode, 8)));
        }
        latencies[2].push(round_trips(Way::Tcp, Wait::Poll, WIRE, |exchange| typical(LATENCIES, exchange)));
    }
    let mut samples = rates.iter();
    for (_, direction) in directions {
        for (len, size, _) in SIZES {
            let operations = samples.next().unwrap();
            if !wanted(report, direction, size) {
                continue;
            }
            let rate = operations.map(|rate| rate * len as f64);
            let name = format!("engine/{direction}-{size}");
            report.add(match len {
                8 => {
                    Figure::new(name, &operations.map(|rate| rate / 1e6), "M/s").target(Target::AtLeast(1.0))
                }
                4096 => Figure::new(name, &rate.map(|rate| rate / 1e9), "GB/s").target(Target::AtLeast(1.5)),
                512 => Figure::new(name, &rate.map(|rate| rate / 1e9), "GB/s"),
                _ => Figure::new(name, &rate.map(|rate| rate / 1e9), "GB/s")
                    .against(&rate, &limits, "the best raw TCP stream")
                    .target(Target::RatioAtLeast(if len < 256 << 10 { 0.6 } else { 0.9 })),
            });
        }
    }
    if wants_limit {
        report.add(Figure::new("engine/raw-stream", &limits.map(|rate| rate / 1e9), "GB/s"));
    }
    if !wants_latencies {
        return;
    }
    let micros = |samples: &Samples| samples.map(|seconds| seconds * 1e6);
    for (samples, (_, direction)) in latencies.iter().zip(directions) {
        report.add(
            Figure::new(format!("engine/{direction}-latency-8B"), &micros(samples), "us")
                .against(samples, &latencies[2], "a polled TCP round trip")
                .target(Target::RatioAtMost(2.0)),
        );
    }
    report.add(Figure::new("engine/raw-round-trip", &micros(&latencies[2]), "us"));
}

impl Engine {
    /// Operations a second, with a queue that is kept full.
    pub fn rate(&mut self, near: &mut Near, opcode: u8, len: u64, count: u32) -> f64 {
        let begin = Instant::now();
        let (mut posted, mut ended) = (0, 0);
        while ended < count {
            let room = self.queue.room().min(count - posted);
            for _ in 0..room {
                self.queue.post(near, &self.operation(opcode, len, u64::from(posted)));
            }
            posted += room;
            if room > 0 {
                self.ring(near);
            }
            let before = ended;
            while let Some(completion) = self.queue.poll(near) {
                assert_eq!((completion.status, completion.done), (0, len));
                ended += 1;
            }
            if ended == before {
                // The ring keeps the engine busy for longer. Whoever looks all the time takes a processor away from it, where there are two.
                thread::sleep(PAUSE);
            }
        }
        f64::from(count) / begin.elapsed().as_secs_f64()
    }

    /// One operation, from its posting to its completion.
    pub fn one(&mut self, near: &mut Near, opcode: u8, len: u64) {
        self.queue.post(near, &self.operation(opcode, len, 0));
        self.ring(near);
        loop {
            if let Some(completion) = self.queue.poll(near) {
                return assert_eq!(completion.status, 0);
            }
            thread::yield_now();
        }
    }
}
