//! Between two guests of one adaptor, where nothing goes over a socket, against a copy in memory.

use super::bare::{each, memcpy};
use super::guest::queue::WRITE;
use super::pair::{EXPORTED, Pair};
use super::report::{Figure, Report, Samples, Target};
use super::wire::Wait;

/// Transfers by stores and by the engine, and copies, in a round.
const TRANSFERS: usize = 5;
const OPERATIONS: u32 = 500;
const COPIES: usize = 200;

/// See the module.
pub fn run(report: &mut Report, rounds: usize) {
    let mut pair = Pair::start_on_one_adaptor(Wait::Poll);
    let mut engine = pair.engine();
    let (mut stores, mut copies, mut operations) =
        (Samples::default(), Samples::default(), Samples::default());
    for round in 0..rounds {
        let value = round as u64 + 1;
        let messages = [pair.stores(EXPORTED, value), pair.check(EXPORTED)].concat();
        stores.push(each(TRANSFERS, || assert_eq!(pair.near.client.ask(&messages), [0; 4])));
        assert_eq!(pair.memory(EXPORTED - 8), value.to_le_bytes());
        operations.push(1.0 / engine.rate(&mut pair.near, WRITE, EXPORTED, OPERATIONS));
        copies.push(memcpy(EXPORTED as usize, COPIES));
    }
    let rate = |samples: &Samples| samples.map(|seconds| EXPORTED as f64 / seconds / 1e9);
    let (stores, copies, operations) = (rate(&stores), rate(&copies), rate(&operations));
    report.add(
        Figure::new("buses/1MiB-engine", &operations, "GB/s")
            .against(&operations, &copies, "memcpy")
            .target(Target::RatioAtLeast(0.8)),
    );
    report.add(Figure::new("buses/1MiB-stores", &stores, "GB/s").against(&stores, &copies, "memcpy"));
    report.add(Figure::new("buses/1MiB-memcpy", &copies, "GB/s"));
}
