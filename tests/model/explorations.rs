//! What is explored. Each exploration visits every state within its bounds; together they take one to two minutes on two cores.
//!
//! Every budget is small, because a failure more of one kind multiplies the states of all others. So one kind of failure is
//! explored with much of everything else, and pairs of them with little.

use std::time::Duration;

use assured_rdma::adaptor::mesh::Timing;
use assured_rdma::adaptor::mesh::limits::Window;

use crate::bounds::{ANY, Bounds, Budget, TIMING};
use crate::explore;

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn is_long() -> bool {
    std::env::var_os("MODEL_LONG").is_some()
}

/// The budget, or with `MODEL_LONG` the larger one.
fn budget(short: Budget, long: Budget) -> Budget {
    if is_long() { long } else { short }
}

const WRITES: Budget = Budget { writes: 2, checks: 1, ..Budget::NONE };
const WRITE_AND_READ: Budget = Budget { writes: 1, reads: 1, checks: 1, ..Budget::NONE };

/// Any number of both for one write; the short form has up to three for two accesses.
#[test]
fn any_loss_and_any_delay() {
    let any = Budget { losses: ANY, delays: ANY, writes: 1, checks: 1, ..Budget::NONE };
    explore("any loss, any delay", Bounds { budget: any, ..Bounds::USUAL });
    for accesses in [WRITES, WRITE_AND_READ] {
        let short = Budget { losses: 3, delays: 3, ..accesses };
        let budget = budget(short, Budget { losses: ANY, delays: ANY, checks: 2, ..accesses });
        explore("any loss, any delay", Bounds { budget, ..Bounds::USUAL });
    }
}

#[test]
fn reads_in_two_blocks() {
    let short = Budget { writes: 1, reads: 2, checks: 2, losses: 1, delays: 1, ..Budget::NONE };
    let budget = budget(short, Budget { delays: 2, copies: 1, ..short });
    explore("reads in two blocks", Bounds { budget, blocks: 2, ..Bounds::USUAL });
}

#[test]
fn packets_that_are_overtaken_or_doubled() {
    let short = Budget { losses: 1, delays: 1, copies: 1, kept: 1, writes: 1, checks: 1, ..Budget::NONE };
    let budget = budget(short, Budget { writes: 2, ..short });
    explore("overtaken and doubled packets", Bounds { budget, ..Bounds::USUAL });
}

#[test]
fn packets_that_are_doubled() {
    let short = Budget { losses: 1, delays: 1, copies: 1, ..WRITES };
    let budget = budget(short, Budget { copies: 2, ..short });
    explore("doubled packets", Bounds { budget, ..Bounds::USUAL });
}

#[test]
fn packets_that_are_corrupted() {
    let short = Budget { flips: 1, losses: 1, delays: 1, ..WRITES };
    let budget = budget(short, Budget { flips: 2, delays: 2, ..short });
    explore("corrupted packets", Bounds { budget, ..Bounds::USUAL });
}

/// Packets arrive before or after a timer of the same moment, and at moments that no timer names.
#[test]
fn races_with_timers() {
    let short = Budget { losses: 1, delays: 2, steps: 1, ..WRITES };
    let budget = budget(short, Budget { kept: 1, steps: 0, ..short });
    explore("races with timers", Bounds { budget, races: true, ..Bounds::USUAL });
}

/// Each request waits until the one before it was answered, and some are never sent.
#[test]
fn a_window_of_one_request() {
    let window = Window { requests: 1, ..Bounds::USUAL.window };
    for failure in [Budget { losses: 2, ..Budget::NONE }, Budget { kept: 1, ..Budget::NONE }] {
        let short = Budget { writes: 3, checks: 1, delays: 1, ..failure };
        let budget = budget(short, Budget { delays: 2, ..short });
        explore("small window", Bounds { budget, window, ..Bounds::USUAL });
    }
    let budget = Budget { writes: 3, checks: 1, losses: 1, ..Budget::NONE };
    explore(
        "repair in a small window",
        Bounds { budget, window, horizon: millis(200), repairs: true, ..Bounds::USUAL },
    );
}

/// Accesses and a transfer: each channel has its own order, epoch and lease.
#[test]
fn two_channels() {
    for failure in [Budget { losses: 1, ..Budget::NONE }, Budget { kept: 1, ..Budget::NONE }] {
        let short = Budget { writes: 1, transfers: 2, checks: 1, delays: 1, ..failure };
        let budget = budget(short, Budget { writes: 2, ..short });
        explore("two channels", Bounds { budget, ..Bounds::USUAL });
    }
}

/// Requests that travel in one packet, and answers of several of them, which are grouped in another way when they are repeated.
#[test]
fn requests_that_travel_together() {
    let usual = Budget { bursts: 1, ..Budget::NONE };
    for failure in [
        Budget { losses: 1, delays: 2, ..usual },
        Budget { kept: 1, delays: 1, ..usual },
        Budget { copies: 1, delays: 1, transfers: 1, ..usual },
    ] {
        let budget = budget(failure, Budget { delays: 2, losses: 1, ..failure });
        explore("batches", Bounds { budget, ..Bounds::USUAL });
        explore(
            "batches in which a write is refused",
            Bounds { budget, blocks: 2, exported: 1, ..Bounds::USUAL },
        );
    }
    let budget = Budget { losses: 1, ..usual };
    explore("repair of batches", Bounds { budget, horizon: millis(200), repairs: true, ..Bounds::USUAL });
}

/// The target's clock is slow, so that a lease lasts longer there than the initiator waits, but for its guard band.
#[test]
fn clocks_that_run_at_different_rates() {
    for failure in [Budget { losses: 1, ..Budget::NONE }, Budget { kept: 1, ..Budget::NONE }] {
        let short = Budget { writes: 2, checks: 1, delays: 2, ..failure };
        let budget = budget(short, Budget { delays: 3, ..short });
        explore("slow clock", Bounds { budget, slow_clock: true, ..Bounds::USUAL });
    }
}

/// Some requests are refused, so that answers differ.
#[test]
fn refused_requests() {
    let short = Budget { checks: 2, losses: 1, kept: 1, ..WRITES };
    let budget = budget(short, Budget { delays: 1, ..short });
    explore("refused requests", Bounds { budget, blocks: 2, exported: 1, ..Bounds::USUAL });
}

/// A lease that is longer than the time to try outlives the epoch in which it was given.
#[test]
fn a_lease_longer_than_the_time_to_try() {
    let short = Budget { writes: 2, reads: 1, checks: 1, losses: 2, delays: 2, ..Budget::NONE };
    let budget = budget(short, Budget { checks: 2, delays: 3, ..short });
    let timing = Timing { deadline: millis(126), lease: millis(96), ..TIMING };
    explore("long lease", Bounds { budget, timing, horizon: millis(70), ..Bounds::USUAL });
}

/// The target is configured with a longer lease than the initiator, so that the initiator's counts.
#[test]
fn leases_that_differ() {
    let short = Budget { losses: 1, delays: 2, ..WRITES };
    let budget = budget(short, Budget { losses: 2, ..short });
    explore("leases that differ", Bounds { budget, lease_of_target: Some(millis(50)), ..Bounds::USUAL });
}

#[test]
fn one_failure_is_repaired() {
    let accesses = Budget { writes: 2, reads: 1, checks: 2, ..Budget::NONE };
    // There is time to ask for a lease three times: a question that is kept back spoils the next
    // one, since the stamp that came last is sent back.
    let timing = Timing { deadline: millis(76), ..TIMING };
    let usual = Bounds { timing, horizon: millis(200), repairs: true, recovers: true, ..Bounds::USUAL };
    for budget in [
        Budget { losses: 1, ..accesses },
        Budget { copies: 1, ..accesses },
        Budget { kept: 1, ..accesses },
        Budget { flips: 1, ..accesses },
        Budget { cuts: 1, ..accesses },
    ] {
        explore("repair", Bounds { budget, ..usual });
    }
}

#[test]
fn a_link_that_is_cut() {
    let short = Budget { cuts: 1, delays: 1, ..WRITES };
    let budget = budget(short, Budget { kept: 1, ..short });
    explore("cut link", Bounds { budget, horizon: millis(120), ..Bounds::USUAL });
}

#[test]
fn both_ends_of_a_link_that_is_cut() {
    let short = Budget { writes: 1, checks: 1, cuts: 2, delays: 1, ..Budget::NONE };
    let budget = budget(short, Budget { writes: 2, ..short });
    explore("link cut at both ends", Bounds { budget, horizon: millis(100), ..Bounds::USUAL });
}

#[test]
fn a_silent_link_that_keepalive_cuts() {
    let short = Budget { writes: 1, checks: 1, losses: ANY, ..Budget::NONE };
    let budget = budget(short, Budget { reads: 1, ..short });
    let timing = Timing { keepalive: millis(80), ..TIMING };
    explore("keepalive", Bounds { budget, timing, horizon: millis(120), ..Bounds::USUAL });
}

/// A node dies or is reset, while its packets, or the other node's, may be in a router.
fn new_life(name: &str, failure: Budget) {
    let usual = Bounds { horizon: millis(200), recovers: true, ..Bounds::USUAL };
    let short = Budget { writes: 2, checks: 1, losses: 1, delays: 1, ..failure };
    explore(name, Bounds { budget: budget(short, Budget { delays: 2, ..short }), ..usual });
    let short = Budget { losses: 0, kept: 1, ..short };
    explore(name, Bounds { budget: budget(short, Budget { losses: 1, ..short }), ..usual });
}

#[test]
fn an_initiator_that_crashes() {
    new_life("crash of the initiator", Budget { crashes: [1, 0], ..Budget::NONE });
}

#[test]
fn a_target_that_crashes() {
    new_life("crash of the target", Budget { crashes: [0, 1], ..Budget::NONE });
}

#[test]
fn an_initiator_that_is_reset() {
    new_life("reset of the initiator", Budget { resets: [1, 0], ..Budget::NONE });
}

#[test]
fn a_target_that_is_reset() {
    new_life("reset of the target", Budget { resets: [0, 1], ..Budget::NONE });
}

#[test]
fn both_nodes_begin_new_lives() {
    for failures in [
        Budget { crashes: [1, 1], ..Budget::NONE },
        Budget { crashes: [1, 0], resets: [0, 1], ..Budget::NONE },
    ] {
        let short = Budget { writes: 2, checks: 1, delays: 1, ..failures };
        let budget = budget(short, Budget { losses: 1, ..short });
        explore("new lives", Bounds { budget, horizon: millis(100), recovers: true, ..Bounds::USUAL });
    }
}

/// A router kept packets of an earlier life of the initiator, those of its introduction among them.
#[test]
fn packets_of_an_earlier_life() {
    let usual = Bounds { introduction: true, ..Bounds::USUAL };
    let write = Budget { writes: 1, crashes: [1, 0], ..Budget::NONE };
    let short = Budget { copies: 2, ..write };
    let budget = budget(short, Budget { losses: 1, ..short });
    explore("earlier life", Bounds { budget, horizon: millis(40), ..usual });
    // Three copies: an introduction, a write, and what gives it a lease, while the lease lasts. In the
    // short form it is over before the nodes introduce themselves once more.
    let horizon = millis(if is_long() { 10 } else { 4 });
    explore("earlier life", Bounds { budget: Budget { copies: 3, ..write }, horizon, ..usual });
}

/// A router kept the end of an introduction and a request; the next life is introduced, and
/// something of it was executed. Time goes on until the target has asked for a sign of life once
/// more: where it waits for none, it believes none.
#[test]
fn an_earlier_life_that_introduces_itself_late() {
    let short = Budget { writes: 1, reads: 1, kept: 1, copies: 1, crashes: [1, 0], ..Budget::NONE };
    let budget = budget(short, Budget { writes: 2, ..short });
    explore(
        "late introduction",
        Bounds { budget, horizon: millis(10), capacity: 1, introduction: true, ..Bounds::USUAL },
    );
}

/// Two adaptors have one node id and take turns: what B remembers of the one comes back with it.
#[test]
fn a_node_id_that_changes_hands() {
    for failure in [
        Budget { delays: 1, ..Budget::NONE },
        Budget { losses: 1, ..Budget::NONE },
        Budget { kept: 1, ..Budget::NONE },
    ] {
        let short = Budget { turns: 2, ..failure };
        let budget = budget(short, Budget { turns: 3, ..short });
        let budget = Budget { writes: 2, checks: 1, ..budget };
        explore("node id in two hands", Bounds { budget, ..Bounds::USUAL });
    }
}

/// The target's adaptor learns late that a request was executed.
#[test]
fn slow_memory() {
    let failures = [
        Budget { resets: [0, 1], ..WRITES },
        Budget { resets: [1, 0], ..WRITES },
        Budget { crashes: [1, 0], ..WRITES },
        Budget { transfers: 1, losses: 1, ..WRITES },
    ];
    for failure in failures {
        let short = Budget { delays: 1, ..failure };
        let budget = budget(short, Budget { delays: 2, ..short });
        explore("slow memory", Bounds { budget, slow_memory: true, ..Bounds::USUAL });
    }
}
