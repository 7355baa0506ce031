//! What assurance is for: a store and its check, against a store that is read back.
//!
//! Both end when it is known that the bytes are there. The check is one load for a block of 4 KiB, or one question about the whole range; reading back is a load for every 8
//! bytes.

use std::time::{Duration, Instant};

use super::bare::typical;
use super::counter::{Counter, Traffic};
use super::pair::{FAR, Pair};
use super::plot::{Chart, Line};
use super::report::{Figure, Report, Samples, Target};
use super::wire::Wait;

/// Bytes, and how many of such transfers a round has for each way.
const SIZES: [(u64, usize, usize); 7] = [
    (8, 500, 500),
    (64, 200, 100),
    (512, 200, 20),
    (4 << 10, 100, 3),
    (32 << 10, 20, 1),
    (256 << 10, 5, 1),
    (1 << 20, 2, 1),
];
/// Those that are told of one by one, and not only plotted.
const NAMED: [(u64, &str); 3] = [(8, "8B"), (4 << 10, "4KiB"), (1 << 20, "1MiB")];
/// From this size on reading back takes seconds, so that it is done in some of the rounds only.
const LARGE: u64 = 256 << 10;
const LARGE_EVERY: usize = 3;
const LATE_CHECKS: u64 = 100;
/// Longer than an answer takes.
const PATIENCE: Duration = Duration::from_secs(5);

/// What each way takes.
#[derive(Default)]
struct Times {
    check: Samples,
    read_back: Samples,
}

/// What goes over the link.
struct Loads {
    check: Traffic,
    read_back: Traffic,
}

/// See the module.
pub fn run(report: &mut Report, rounds: usize) {
    let mut pair = Pair::start(Wait::Poll);
    let mut times: [Times; SIZES.len()] = Default::default();
    let mut value = 0;
    for round in 0..rounds {
        for (times, (len, checks, read_backs)) in times.iter_mut().zip(SIZES) {
            if len >= LARGE && round % LARGE_EVERY != 0 {
                continue;
            }
            value += 1;
            let stores = pair.stores(len, value);
            let checked = [&stores[..], &pair.check(len)].concat();
            times.check.push(typical(checks, || assert_eq!(pair.near.client.ask(&checked), [0; 4])));
            times.read_back.push(typical(read_backs, || {
                pair.near.client.send(&stores);
                pair.read_back(len, value);
            }));
        }
    }
    for (times, (len, ..)) in times.iter().zip(SIZES) {
        if let Some((_, name)) = NAMED.iter().find(|(named, _)| *named == len) {
            tell_times(report, name, times);
            tell_traffic(report, name, &count(len));
        }
    }
    let packets = Samples::one(packets_of_a_late_check());
    report.add(Figure::new("assurance/late-check-packets", &packets, "packets").target(Target::AtMost(0.0)));
    plot(report, &times);
}

fn tell_times(report: &mut Report, size: &str, times: &Times) {
    let micros = |samples: &Samples| samples.map(|seconds| seconds * 1e6);
    report.add(
        Figure::new(format!("assurance/{size}-check"), &micros(&times.check), "us")
            .against(&times.check, &times.read_back, "reading back")
            .target(Target::RatioAtMost(1.0)),
    );
    report.add(Figure::new(format!("assurance/{size}-read-back"), &micros(&times.read_back), "us"));
}

fn tell_traffic(report: &mut Report, size: &str, loads: &Loads) {
    let of = |what: fn(&Traffic) -> u64| {
        [&loads.check, &loads.read_back].map(|traffic| Samples::one(what(traffic) as f64))
    };
    for (what, [check, read_back]) in
        [("packets", of(|traffic| traffic.packets)), ("bytes", of(|traffic| traffic.bytes))]
    {
        report.add(
            Figure::new(format!("assurance/{size}-check-{what}"), &check, what)
                .against(&check, &read_back, "reading back")
                .target(Target::RatioAtMost(1.0)),
        );
        report.add(Figure::new(format!("assurance/{size}-read-back-{what}"), &read_back, what));
    }
}

/// A pair whose link is counted.
fn counted() -> (Pair, Counter) {
    let mut counter = None;
    let pair = Pair::start_over(Wait::Poll, |place| {
        counter.insert(Counter::start(place.address(FAR))).address().to_string()
    });
    (pair, counter.unwrap())
}

/// What a transfer of `len` bytes brings over the link.
fn count(len: u64) -> Loads {
    let (mut pair, counter) = counted();
    let stores = pair.stores(len, len);
    let checked = [&stores[..], &pair.check(len)].concat();
    // So that the first one finds a lease.
    assert_eq!(pair.near.client.ask(&checked), [0; 4]);
    let before = counter.traffic();
    assert_eq!(pair.near.client.ask(&checked), [0; 4]);
    let between = counter.traffic();
    pair.near.client.send(&stores);
    pair.read_back(len, len);
    Loads { check: between.since(before), read_back: counter.traffic().since(between) }
}

/// Packets of a check that comes when the write has been answered already.
fn packets_of_a_late_check() -> f64 {
    let (mut pair, counter) = counted();
    let (stores, check) = (pair.stores(8, 7), pair.check(8));
    let mut packets = 0;
    for _ in 0..LATE_CHECKS {
        let before = counter.traffic();
        pair.near.client.send(&stores);
        let begin = Instant::now();
        while counter.traffic().since(before).answers == 0 {
            assert!(begin.elapsed() < PATIENCE, "the write is not answered");
            std::thread::yield_now();
        }
        let answered = counter.traffic();
        assert_eq!(pair.near.client.ask(&check), [0; 4]);
        packets += counter.traffic().since(answered).packets;
    }
    packets as f64 / LATE_CHECKS as f64
}

fn plot(report: &Report, times: &[Times]) {
    let line = |name, of: fn(&Times) -> &Samples| {
        let points = times.iter().zip(SIZES).map(|(times, (len, ..))| (len as f64, of(times).median() * 1e6));
        Line { name, points: points.collect() }
    };
    let chart = Chart {
        title: "Until it is known that a write is there",
        x: "bytes",
        y: "microseconds",
        lines: vec![
            line("stores and a check", |times| &times.check),
            line("stores, read back", |times| &times.read_back),
        ],
    };
    chart.draw(&report.plot_path("assurance"));
}
