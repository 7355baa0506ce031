//! A hostile peer against a whole adaptor; `stage` says what has to hold.
#![no_main]

use std::time::Duration;

use arbitrary::Arbitrary;
use assured_rdma::adaptor::Region;
use assured_rdma::adaptor::memory::MemoryFault;
use assured_rdma_fuzz::hostile::Crafted;
use assured_rdma_fuzz::stage::{Stage, WINDOW};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Step {
    Send(Crafted),
    /// The hostile node proves its life and gives its lease, as an honest one would.
    Polite,
    /// The same packet again and again, each a place further in the flow.
    Flood(Crafted, u8),
    Corrupt,
    Link(bool),
    Reads(bool),
    Restart(u8),
    Wait {
        micros: u16,
        /// Milliseconds instead.
        long: bool,
    },
    Store {
        node: u8,
        offset: u16,
        len: u8,
    },
    Stores {
        node: u8,
        count: u8,
    },
    Load {
        node: u8,
        offset: u16,
        len: u8,
    },
    Check {
        node: u8,
        offset: u16,
    },
    Register {
        offset: u16,
        value: u32,
        write: bool,
    },
    Idle,
    Honest(u16),
    Reset,
    /// Page faults of so many operations of the hostile node, from the next one on.
    Slow(u8),
    /// Those are served, or cannot be.
    Served(bool),
}

/// Steps of one input.
const STEPS: usize = 200;
/// The longest wait, a bit more than it takes to find out that a link is dead.
const LONGEST: u64 = 2500;

/// An offset in the access space, in the windows of the first four nodes.
fn space(node: u8, offset: u16) -> u64 {
    u64::from(node % 4) * WINDOW + u64::from(offset)
}

fn be_polite(stage: &mut Stage) {
    for packet in stage.hostile.be_polite() {
        stage.receive(&packet);
    }
}

fuzz_target!(|input: (bool, Vec<Step>)| {
    let (polite, steps) = input;
    let mut stage = Stage::default();
    stage.set_link(true);
    if polite {
        be_polite(&mut stage);
    }
    for step in steps.into_iter().take(STEPS) {
        match step {
            Step::Send(crafted) => {
                let packet = stage.hostile.send(&crafted);
                stage.receive(&packet);
            }
            Step::Polite => be_polite(&mut stage),
            Step::Flood(crafted, count) => {
                for _ in 0..count {
                    let packet = stage.hostile.send(&crafted);
                    stage.receive(&packet);
                }
            }
            Step::Corrupt => stage.receive_corrupt(),
            Step::Link(up) => stage.set_link(up),
            Step::Reads(reads) => stage.set_reads(reads),
            Step::Restart(incarnation) => stage.hostile.restart(incarnation),
            Step::Wait { micros, long: false } => stage.wait(Duration::from_micros(micros.into())),
            Step::Wait { micros, long: true } => {
                stage.wait(Duration::from_millis(u64::from(micros) % LONGEST))
            }
            Step::Store { node, offset, len } => {
                stage.store(space(node, offset), vec![1; usize::from(len % 9)]);
            }
            Step::Stores { node, count } => {
                for n in 0..u16::from(count) {
                    stage.store(space(node, n * 256), vec![2; 8]);
                }
            }
            Step::Load { node, offset, len } => {
                stage.load(Region::Access, space(node, offset), usize::from(len % 9));
            }
            Step::Check { node, offset } => stage.load(Region::Assurance, space(node, offset), 4),
            Step::Register { offset, value, write } => stage.register(offset.into(), value, write),
            Step::Idle => stage.idle(),
            Step::Honest(offset) => stage.use_honestly(offset.into()),
            Step::Reset => stage.reset(),
            Step::Slow(operations) => stage.slow_down(operations),
            Step::Served(well) => stage.serve_faults(if well { Ok(()) } else { Err(MemoryFault::Refused) }),
        }
    }
    // However it went, the honest node is served.
    stage.use_honestly(0);
});
