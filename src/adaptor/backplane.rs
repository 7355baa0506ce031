//! The links between the adaptors of one process: always up, and without a wire.
//!
//! A packet goes from one adaptor to the other as it is, its payload uncopied. All else is as between processes: sessions, order, leases,
//! deadlines. So one bus learns of another's reset, and of nothing else that happens there, in the way that it always does.

use super::address::NodeId;
use super::memory::{MemoryResult, Source};
use super::{Adaptor, Instant};

/// Packets that one adaptor may give another before the others have their turn.
const PACKETS_AT_ONCE: usize = 64;

/// Takes to each adaptor what the others have for it, by bounded portions; `load` gives bytes of the memory of a node's guest. Returns whether there was anything, and so may be more.
pub fn exchange(
    now: Instant,
    adaptors: &mut [&mut Adaptor],
    mut load: impl FnMut(NodeId, &Source) -> MemoryResult,
) -> bool {
    let mut progress = false;
    for from in 0..adaptors.len() {
        for to in (0..adaptors.len()).filter(|&to| to != from) {
            let Ok([from, to]) = adaptors.get_disjoint_mut([from, to]) else { continue };
            let node = from.node();
            for _ in 0..PACKETS_AT_ONCE {
                let packet = from.poll_packet(now, to.node(), &mut |source| load(node, source));
                let Some(packet) = packet else { break };
                progress = true;
                to.take_packet(now, from.node(), packet);
            }
        }
    }
    progress
}

/// Joins adaptors that are to [`exchange`] packets.
pub fn join(now: Instant, adaptors: &mut [&mut Adaptor]) {
    let nodes: Vec<_> = adaptors.iter().map(|adaptor| adaptor.node()).collect();
    for adaptor in adaptors {
        let own = adaptor.node();
        nodes.iter().filter(|&&node| node != own).for_each(|&node| adaptor.handle_link_up(now, node));
    }
}
