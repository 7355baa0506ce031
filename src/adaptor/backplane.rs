//! The links between the adaptors of one process: always up, and without a wire.
//!
//! A packet goes from one adaptor to the other as it is. What it brings of a guest's memory stays there until it is copied to where it goes.
//! All else is as between processes: sessions, order, leases, deadlines. So one bus learns of another's reset, and of nothing else that
//! happens there, in the way that it always does.

use super::address::NodeSet;
use super::{Adaptor, Instant};

/// Packets that one adaptor may give another before the others have their turn.
const PACKETS_AT_ONCE: usize = 64;
/// Packets that are taken in one call, but for one of each to each other.
const PACKETS_A_CALL: usize = 4096;

/// Takes to each of the adaptors, which are in the order of their ids, what the others have for it, by bounded portions. Returns whether
/// there was anything, and so may be more.
pub fn exchange(now: Instant, adaptors: &mut [&mut Adaptor]) -> bool {
    let mut progress = false;
    let position =
        |adaptors: &[&mut Adaptor], node| adaptors.binary_search_by_key(&node, |adaptor| adaptor.node());
    let pairs = adaptors.iter().flat_map(|adaptor| adaptor.talked_to());
    let pairs = pairs.filter(|&node| position(adaptors, node).is_ok()).count();
    let share = PACKETS_A_CALL.checked_div(pairs).unwrap_or(0).clamp(1, PACKETS_AT_ONCE);
    for from in 0..adaptors.len() {
        // With many buses, most have nothing to say to most others.
        let others: Vec<_> =
            adaptors.get(from).map(|adaptor| adaptor.talked_to().collect()).unwrap_or_default();
        for node in others {
            let Ok(to) = position(adaptors, node) else { continue };
            let Ok([from, to]) = adaptors.get_disjoint_mut([from, to]) else { continue };
            for _ in 0..share {
                let Some(packet) = from.lend_packet(now, node) else { break };
                progress = true;
                to.take_packet(now, from.node(), packet);
            }
        }
    }
    progress
}

/// Joins adaptors that are to [`exchange`] packets.
pub fn join(now: Instant, adaptors: &mut [&mut Adaptor]) {
    let nodes: NodeSet = adaptors.iter().map(|adaptor| adaptor.node()).collect();
    for adaptor in adaptors {
        adaptor.join(now, nodes);
    }
}
