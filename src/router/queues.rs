//! What waits for one link: a queue for each flow, served fairly among sources, and accesses before bulk traffic.
//!
//! Sources take turns by deficit round robin, so that each gets the same share in bytes of what the link carries, and the
//! destinations of one source take turns by packets. Invariant: every source in `turn` has a packet, and the bytes of all queues
//! together are what `budget` counts as used.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::adaptor::address::NodeId;
use crate::adaptor::channel::{Channel, Origin, PerChannel, Turns};
use crate::adaptor::mesh::packet::{HEADER_LEN, MAX_PAYLOAD};

/// The most bytes that wait of one flow on one link: two windows, of requests and of answers to the other side's, with headers, and as
/// much again for what was sent twice. So honest flows never lose by it.
const FLOW_BYTES: usize = 6 << 20;
/// What a source may send in one turn: at least the largest packet.
const QUANTUM: usize = HEADER_LEN + MAX_PAYLOAD;
/// What a packet takes besides its bytes.
const OVERHEAD: usize = 64;

/// The memory that all queues of a router share.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: usize,
    by_origin: BTreeMap<Origin, usize>,
}

impl Budget {
    /// Memory of `limit` bytes.
    pub const fn new(limit: usize) -> Self {
        Self { limit, used: 0, by_origin: BTreeMap::new() }
    }

    /// Bytes that wait in all queues.
    pub const fn used(&self) -> usize {
        self.used
    }

    /// Sets `cost` bytes for a packet of the origin aside. None may hold more, over all links, than what all leave free, so that
    /// whoever comes later finds room too.
    fn take(&mut self, origin: Origin, cost: usize) -> bool {
        let held = self.by_origin.entry(origin).or_default();
        let would_hold = held.saturating_add(cost);
        let granted = would_hold <= self.limit.saturating_sub(self.used);
        if granted {
            *held = would_hold;
            self.used = self.used.saturating_add(cost);
        }
        granted
    }

    fn give_back(&mut self, origin: Origin, cost: usize) {
        self.used = self.used.saturating_sub(cost);
        if let Some(held) = self.by_origin.get_mut(&origin) {
            *held = held.saturating_sub(cost);
        }
    }
}

#[derive(Debug, Default)]
struct Flow {
    packets: VecDeque<Bytes>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Source {
    flows: BTreeMap<NodeId, Flow>,
    /// Destinations with packets.
    turn: VecDeque<NodeId>,
    /// What it may still send in this turn.
    deficit: usize,
}

impl Source {
    fn next_len(&self) -> Option<usize> {
        Some(self.flows.get(self.turn.front()?)?.packets.front()?.len())
    }

    /// Takes the next packet out; gives it with what it counted.
    fn pop(&mut self) -> Option<(Bytes, usize)> {
        let destination = self.turn.pop_front()?;
        let flow = self.flows.get_mut(&destination)?;
        let packet = flow.packets.pop_front()?;
        let cost = cost(&packet);
        flow.bytes = flow.bytes.saturating_sub(cost);
        if flow.packets.is_empty() {
            self.flows.remove(&destination);
        } else {
            self.turn.push_back(destination);
        }
        Some((packet, cost))
    }
}

/// The queues of a link.
#[derive(Debug, Default)]
pub struct Queues {
    channels: PerChannel<Sources>,
    turns: Turns,
}

impl Queues {
    /// Appends a packet to its flow's queue. Returns whether there was room.
    pub fn push(&mut self, budget: &mut Budget, origin: Origin, destination: NodeId, packet: Bytes) -> bool {
        self.channels.get_mut(origin.channel).push(budget, origin, destination, packet)
    }

    /// The next packet for the link.
    pub fn pop(&mut self, budget: &mut Budget) -> Option<Bytes> {
        let next = |channel| Some((channel, self.channels.get_mut(channel).pop(budget, channel)?));
        let (channel, packet) = self.turns.order().into_iter().find_map(next)?;
        self.turns.note(channel, !self.channels.get(Channel::Bulk).turn.is_empty());
        Some(packet)
    }

    /// Whether nothing waits.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.channels.values().all(|sources| sources.turn.is_empty())
    }

    /// Drops everything.
    pub fn clear(&mut self, budget: &mut Budget) {
        while self.pop(budget).is_some() {}
    }
}

/// The queues of one channel.
#[derive(Debug, Default)]
struct Sources {
    sources: BTreeMap<NodeId, Source>,
    /// Sources with packets.
    turn: VecDeque<NodeId>,
}

impl Sources {
    fn push(&mut self, budget: &mut Budget, origin: Origin, destination: NodeId, packet: Bytes) -> bool {
        let source = origin.node;
        let cost = cost(&packet);
        let held = self.sources.get(&source).and_then(|s| s.flows.get(&destination)).map_or(0, |f| f.bytes);
        let bytes = held.saturating_add(cost);
        if bytes > FLOW_BYTES || !budget.take(origin, cost) {
            return false;
        }
        let entry = self.sources.entry(source).or_default();
        if entry.turn.is_empty() {
            entry.deficit = QUANTUM;
            self.turn.push_back(source);
        }
        let flow = entry.flows.entry(destination).or_default();
        if flow.packets.is_empty() {
            entry.turn.push_back(destination);
        }
        flow.packets.push_back(packet);
        flow.bytes = bytes;
        true
    }

    fn pop(&mut self, budget: &mut Budget, channel: Channel) -> Option<Bytes> {
        loop {
            let &id = self.turn.front()?;
            let source = self.sources.get_mut(&id)?;
            let len = source.next_len()?;
            if let Some(left) = source.deficit.checked_sub(len) {
                source.deficit = left;
                let (packet, cost) = source.pop()?;
                budget.give_back(Origin { node: id, channel }, cost);
                if source.turn.is_empty() {
                    self.sources.remove(&id);
                    self.turn.pop_front();
                }
                return Some(packet);
            }
            // Every packet fits into a fresh turn, so that this ends.
            source.deficit = source.deficit.saturating_add(QUANTUM);
            self.turn.rotate_left(1);
        }
    }
}

const fn cost(packet: &Bytes) -> usize {
    packet.len().saturating_add(OVERHEAD)
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(source: u8, destination: u8, len: usize) -> Bytes {
        let mut packet = vec![source; len.max(2)];
        packet[1] = destination;
        packet.into()
    }

    fn small(node: u8) -> Origin {
        Origin { node: NodeId(node), channel: Channel::Small }
    }

    #[test]
    fn each_source_gets_the_same_share_in_bytes() {
        let mut budget = Budget::new(64 << 20);
        let mut queues = Queues::default();
        // One with many small packets, one with large ones, one with large ones for many destinations.
        for n in 0..10_000u32 {
            queues.push(&mut budget, small(1), NodeId(9), packet(1, 9, 100));
            if n >= 30 {
                continue;
            }
            queues.push(&mut budget, small(2), NodeId(9), packet(2, 9, QUANTUM));
            let destination = n.to_le_bytes()[0];
            queues.push(&mut budget, small(3), NodeId(destination), packet(3, destination, QUANTUM));
        }
        let mut sent = BTreeMap::new();
        let mut total = 0;
        while total < 2 << 20 {
            let packet = queues.pop(&mut budget).unwrap();
            total += packet.len();
            *sent.entry(packet[0]).or_insert(0usize) += packet.len();
        }
        assert_eq!(sent.len(), 3);
        for (source, bytes) in sent {
            assert!(bytes.abs_diff(total / 3) <= QUANTUM, "source {source}: {bytes} of {total}");
        }
    }

    #[test]
    fn destinations_of_a_source_take_turns() {
        let mut budget = Budget::new(1 << 20);
        let mut queues = Queues::default();
        for destination in [5, 5, 5, 6, 7] {
            assert!(queues.push(&mut budget, small(1), NodeId(destination), packet(1, destination, 64)));
        }
        let order: Vec<u8> =
            core::iter::from_fn(|| queues.pop(&mut budget)).map(|packet| packet[1]).collect();
        assert_eq!(order, [5, 6, 7, 5, 5]);
    }

    #[test]
    fn a_full_window_finds_room_and_a_flood_leaves_room_for_others() {
        let mut budget = Budget::new(256 << 20);
        let mut queues = Queues::default();
        for _ in 0..256 {
            let len = HEADER_LEN + (1 << 20) / 256;
            assert!(queues.push(&mut budget, small(1), NodeId(2), packet(1, 2, len)));
        }
        // Many flood many.
        let mut full = 0;
        for n in 0..100_000u32 {
            let [a, b, ..] = n.wrapping_mul(0x9e37_79b9).to_be_bytes();
            let a = a & 63 | 64;
            full += usize::from(!queues.push(&mut budget, small(a), NodeId(b), packet(a, b, 60_000)));
        }
        assert!(full > 90_000 && budget.used() < 256 << 20, "{full}, {}", budget.used());
        for _ in 0..256 {
            let len = HEADER_LEN + (1 << 20) / 256;
            assert!(queues.push(&mut budget, small(2), NodeId(3), packet(2, 3, len)), "a whole window");
        }
        queues.clear(&mut budget);
        assert!(queues.is_empty() && budget.used() == 0);
    }

    #[test]
    fn an_access_goes_before_bulk_traffic_and_neither_waits_for_ever() {
        let mut budget = Budget::new(32 << 20);
        let mut queues = Queues::default();
        let bulk = Origin { channel: Channel::Bulk, ..small(1) };
        // More than one flow may hold, so that bulk traffic fills all that it can.
        while queues.push(&mut budget, bulk, NodeId(2), packet(1, 2, QUANTUM)) {}
        for _ in 0..40 {
            assert!(
                queues.push(&mut budget, small(1), NodeId(2), packet(1, 2, 68)),
                "it has room of its own"
            );
        }
        let lens: Vec<usize> = (0..44).map(|_| queues.pop(&mut budget).unwrap().len()).collect();
        let bulk_at: Vec<usize> = (0..44).filter(|&index| lens[index] == QUANTUM).collect();
        assert_eq!(bulk_at, [16, 33, 42, 43]);
    }

    proptest! {
        #[test]
        fn flows_keep_their_order_and_memory_its_limit(
            steps in proptest::collection::vec((0u8..4, 0u8..4, 2usize..5000, any::<bool>()), 1..400),
        ) {
            let mut budget = Budget::new(40_000);
            let mut queues = Queues::default();
            let mut held: BTreeMap<(u8, u8), VecDeque<Bytes>> = BTreeMap::new();
            for (source, destination, len, push) in steps {
                if push {
                    let packet = packet(source, destination, len);
                    if queues.push(&mut budget, small(source), NodeId(destination), packet.clone()) {
                        held.entry((source, destination)).or_default().push_back(packet);
                    }
                } else if let Some(packet) = queues.pop(&mut budget) {
                    let flow = held.get_mut(&(packet[0], packet[1])).unwrap();
                    prop_assert_eq!(flow.pop_front(), Some(packet));
                } else {
                    prop_assert!(held.values().all(VecDeque::is_empty));
                }
                let bytes: usize = held.values().flatten().map(cost).sum();
                prop_assert_eq!(bytes, budget.used());
                prop_assert!(bytes <= 40_000);
            }
        }
    }
}
