//! What waits for one link: a queue for each flow, served fairly among sources, and accesses before bulk traffic.
//!
//! Sources take turns by deficit round robin, so that each gets the same share in bytes of what the link carries, and the
//! destinations of one source take turns by packets. Invariant: every source in `turn` has a packet, and the bytes of all queues
//! together are what `budget` counts as used.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::adaptor::address::NodeId;
use crate::adaptor::channel::{Channel, Origin, PerChannel, Turns};
use crate::adaptor::mesh::limits::Window;
use crate::adaptor::mesh::packet::{HEADER_LEN, MAX_PAYLOAD};

/// The most bytes that wait of one flow on one link, in windows of its channel: two, of requests and of answers to the other side's, with headers, and as
/// much again for what was sent twice. So honest flows never lose by it.
const FLOW_WINDOWS: usize = 6;
/// What a source may send in one turn: at least the largest packet.
const QUANTUM: usize = HEADER_LEN + MAX_PAYLOAD;
/// What a packet takes besides its bytes.
const OVERHEAD: usize = 64;

/// The least that is taken from an origin whose packets make room for another's: looking for it costs more than dropping.
const MAKE_ROOM: usize = QUANTUM;

/// The memory that all queues of a router share. Whoever finds it full is given room by the origin that holds most, so that
/// no number of origins that fill it can shut out another one.
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

    /// Whether a packet that costs so much finds room.
    pub const fn has_room(&self, cost: usize) -> bool {
        cost <= self.limit.saturating_sub(self.used)
    }

    /// The origin that holds most, where that is more than `origin` would with `cost` bytes more.
    pub fn largest_above(&self, origin: Origin, cost: usize) -> Option<Origin> {
        let would_hold = self.by_origin.get(&origin).copied().unwrap_or(0).saturating_add(cost);
        let (&largest, &held) = self.by_origin.iter().max_by_key(|&(_, held)| held)?;
        (held > would_hold && largest != origin).then_some(largest)
    }

    /// Sets `cost` bytes for a packet of the origin aside.
    fn take(&mut self, origin: Origin, cost: usize) -> bool {
        let granted = self.has_room(cost);
        if granted {
            let held = self.by_origin.entry(origin).or_default();
            *held = held.saturating_add(cost);
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
    /// What all its flows count.
    bytes: usize,
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
        let cost = cost(packet.len());
        flow.bytes = flow.bytes.saturating_sub(cost);
        self.bytes = self.bytes.saturating_sub(cost);
        if flow.packets.is_empty() {
            self.flows.remove(&destination);
        } else {
            self.turn.push_back(destination);
        }
        Some((packet, cost))
    }

    /// Drops the newest packet of the longest flow; gives what it counted.
    fn drop_newest(&mut self) -> Option<usize> {
        let (&destination, flow) = self.flows.iter_mut().max_by_key(|(_, flow)| flow.bytes)?;
        let cost = cost(flow.packets.pop_back()?.len());
        flow.bytes = flow.bytes.saturating_sub(cost);
        self.bytes = self.bytes.saturating_sub(cost);
        if flow.packets.is_empty() {
            self.flows.remove(&destination);
            self.turn.retain(|&turn| turn != destination);
        }
        Some(cost)
    }
}

/// The queues of a link.
#[derive(Debug, Default)]
pub struct Queues {
    channels: PerChannel<Sources>,
    turns: Turns,
}

impl Queues {
    /// Bytes that wait here of an origin.
    pub fn held(&self, origin: Origin) -> usize {
        self.channels.get(origin.channel).sources.get(&origin.node).map_or(0, |source| source.bytes)
    }

    /// Whether a packet of `len` bytes would be more than its flow may hold.
    pub fn is_flow_full(&self, origin: Origin, destination: NodeId, len: usize) -> bool {
        let source = self.channels.get(origin.channel).sources.get(&origin.node);
        let held = source.and_then(|source| source.flows.get(&destination)).map_or(0, |flow| flow.bytes);
        held.saturating_add(cost(len))
            > Window::default().of(origin.channel).bytes.saturating_mul(FLOW_WINDOWS)
    }

    /// Drops some packets of an origin, the newest of its longest flows. Returns how many.
    pub fn shorten(&mut self, budget: &mut Budget, origin: Origin) -> u64 {
        self.channels.get_mut(origin.channel).shorten(budget, origin)
    }

    /// Appends a packet to its flow's queue. Returns whether there was room.
    pub fn push(&mut self, budget: &mut Budget, origin: Origin, destination: NodeId, packet: Bytes) -> bool {
        !self.is_flow_full(origin, destination, packet.len())
            && self.channels.get_mut(origin.channel).push(budget, origin, destination, packet)
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
        let cost = cost(packet.len());
        if !budget.take(origin, cost) {
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
        flow.bytes = flow.bytes.saturating_add(cost);
        entry.bytes = entry.bytes.saturating_add(cost);
        true
    }

    fn shorten(&mut self, budget: &mut Budget, origin: Origin) -> u64 {
        let Some(source) = self.sources.get_mut(&origin.node) else { return 0 };
        let (mut dropped, mut freed) = (0u64, 0usize);
        while freed < MAKE_ROOM
            && let Some(cost) = source.drop_newest()
        {
            budget.give_back(origin, cost);
            freed = freed.saturating_add(cost);
            dropped = dropped.saturating_add(1);
        }
        if source.turn.is_empty() {
            self.sources.remove(&origin.node);
            self.turn.retain(|&turn| turn != origin.node);
        }
        dropped
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

/// What a packet of `len` bytes counts.
pub const fn cost(len: usize) -> usize {
    len.saturating_add(OVERHEAD)
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
    fn a_flow_holds_two_windows_and_as_much_again() {
        let mut budget = Budget::new(256 << 20);
        let mut queues = Queues::default();
        for channel in Channel::ALL {
            let origin = Origin { channel, ..small(1) };
            let Window { requests, bytes, .. } = Window::default().of(channel);
            let len = HEADER_LEN + bytes / requests;
            let mut count = 0;
            while queues.push(&mut budget, origin, NodeId(2), packet(1, 2, len)) {
                count += 1;
            }
            assert!((4 * requests..6 * requests).contains(&count), "{count} of {channel:?}");
        }
        assert!(queues.push(&mut budget, small(1), NodeId(3), packet(1, 3, 64)));
        queues.clear(&mut budget);
        assert!(queues.is_empty() && budget.used() == 0);
    }

    #[test]
    fn the_newest_of_the_longest_flow_makes_room() {
        let mut budget = Budget::new(300_000);
        let mut queues = Queues::default();
        for n in 0..30u8 {
            assert!(queues.push(&mut budget, small(1), NodeId(2), packet(1, n, 8000)));
        }
        assert!(queues.push(&mut budget, small(1), NodeId(3), packet(1, 99, 8000)));
        assert_eq!(budget.largest_above(small(2), 8064), Some(small(1)));
        assert_eq!(budget.largest_above(small(1), 8064), None);
        let before = budget.used();
        let dropped = queues.shorten(&mut budget, small(1));
        assert_eq!((dropped, before - budget.used()), (9, 9 * 8064));
        assert_eq!((budget.used(), queues.held(small(1))), (22 * 8064, 22 * 8064));
        let order: Vec<u8> = core::iter::from_fn(|| queues.pop(&mut budget)).map(|p| p[1]).collect();
        let rest: Vec<u8> = [0, 99].into_iter().chain(1..21).collect();
        assert_eq!(order, rest);
        assert_eq!(budget.used(), 0);
        // To the last packet, and from there anew.
        assert!(queues.push(&mut budget, small(1), NodeId(2), packet(1, 2, 64)));
        assert_eq!(queues.shorten(&mut budget, small(1)), 1);
        assert!(queues.is_empty() && queues.shorten(&mut budget, small(1)) == 0);
        assert!(queues.push(&mut budget, small(1), NodeId(2), packet(1, 2, 64)));
        assert!(queues.pop(&mut budget).is_some() && budget.used() == 0);
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
                let bytes: usize = held.values().flatten().map(|packet| cost(packet.len())).sum();
                prop_assert_eq!(bytes, budget.used());
                prop_assert!(bytes <= 40_000);
            }
        }
    }
}
