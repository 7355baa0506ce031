//! Posted stores of 8 bytes, end to end: every 4 KiB of them end with a check, whose answer is waited for.

use assured_rdma::adaptor::mesh::packet::HEADER_LEN;

use super::bare::{Exchange, Way, each, round_trips};
use super::pair::{BLOCK, EXPORTED, Pair};
use super::report::{Figure, Report, Samples, Target};
use super::wire::{LOAD, STORE, Wait};

/// Blocks in a round.
const BLOCKS: usize = 100;
const MEGABYTES: usize = 20;
const STORES: usize = BLOCK as usize / 8;
/// The same bytes over bare sockets: the stores and the check, and a write and its answer.
const UNIX: Exchange = Exchange { request: STORES * STORE + LOAD, reply: LOAD + 4 };
const TCP: Exchange = Exchange { request: HEADER_LEN + BLOCK as usize, reply: HEADER_LEN };

/// See the module.
pub fn run(report: &mut Report, rounds: usize) {
    let mut pair = Pair::start(Wait::Poll);
    let check = pair.check(BLOCK);
    let (mut batched, mut single, mut limit) = (Samples::default(), Samples::default(), Samples::default());
    let mut value = 0;
    for _ in 0..rounds {
        value += 1;
        let stores = pair.stores(BLOCK, value);
        let batch = [&stores[..], &check].concat();
        batched.push(each(BLOCKS, || assert_eq!(pair.near.client.ask(&batch), [0; 4])));
        assert_eq!(pair.memory(BLOCK - 8), value.to_le_bytes());
        single.push(each(BLOCKS, || {
            stores.chunks(STORE).for_each(|store| pair.near.client.send(store));
            assert_eq!(pair.near.client.ask(&check), [0; 4]);
        }));
        let unix = round_trips(Way::Unix, Wait::Poll, UNIX, |exchange| each(BLOCKS, exchange));
        limit.push(unix + round_trips(Way::Tcp, Wait::Poll, TCP, |exchange| each(BLOCKS, exchange)));
    }
    let rate = |samples: &Samples| samples.map(|seconds| STORES as f64 / seconds / 1e6);
    let (batched, single, limit) = (rate(&batched), rate(&single), rate(&limit));
    let what = "the same bytes over a bare UNIX socket and bare TCP";
    report.add(
        Figure::new("posted-stores/checked-batches", &batched, "M/s")
            .against(&batched, &limit, what)
            .target(Target::AtLeast(1.0)),
    );
    report.add(
        Figure::new("posted-stores/checked-single-sends", &single, "M/s").against(&single, &limit, what),
    );
    memory(report, &mut pair);
}

/// What the two adaptors hold for themselves when megabytes were posted as fast as they take them.
fn memory(report: &mut Report, pair: &mut Pair) {
    let messages = [pair.stores(EXPORTED, 7), pair.check(EXPORTED)].concat();
    let mut held = [Samples::default(), Samples::default()];
    for _ in 0..MEGABYTES {
        assert_eq!(pair.near.client.ask(&messages), [0; 4]);
        for (held, node) in held.iter_mut().zip(&pair.nodes) {
            held.push(node.memory() as f64 / f64::from(1 << 20));
        }
    }
    for (held, end) in held.iter().zip(["near", "far"]) {
        report.add(Figure::new(format!("posted-stores/1MiB-memory-{end}"), held, "MiB"));
    }
}
