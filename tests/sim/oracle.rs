//! Knows every store's fate, and holds each answer of a check against it.
//!
//! Every store has a value of its own, so that what a target's memory was given names the stores.

use std::collections::BTreeMap;
use std::ops::Range;

use assured_rdma::adaptor::address::NodeId;
use assured_rdma::adaptor::channel::Channel;
use assured_rdma::adaptor::status::{Class, Code};
use assured_rdma::adaptor::transaction::{Finished, TransactionId};

use crate::world::{Execution, World};

struct Store {
    from: NodeId,
    to: NodeId,
    channel: Channel,
    offset: u64,
    executed: bool,
    /// A check returned an error for its block, or its transfer ended with one, so that it must not be executed any more.
    reported: bool,
}

#[derive(Default)]
pub struct Oracle {
    stores: BTreeMap<u64, Store>,
    /// Stores that no check has covered yet, by source, target and block.
    unchecked: BTreeMap<(NodeId, NodeId, u64), Vec<u64>>,
    /// Bulk writes under way, by source and name, with their values.
    bulk: BTreeMap<(NodeId, TransactionId), Vec<u64>>,
    seen: usize,
    ends_seen: usize,
    last_value: BTreeMap<(NodeId, NodeId, Channel), u64>,
    next: u64,
    pub bulk_ok: u64,
    pub bulk_failed: u64,
    pub checks: u64,
    pub failed_checks: u64,
    pub ranges: u64,
    pub failed_ranges: u64,
}

impl Oracle {
    /// A store is about to be made; returns the value to store.
    pub fn new_value(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn stored(&mut self, from: NodeId, to: NodeId, offset: u64, value: u64) {
        self.insert(from, to, Channel::Small, offset, value);
        self.unchecked.entry((from, to, offset / 4096)).or_default().push(value);
    }

    /// A bulk write of these values is about to be handed in.
    pub fn sent(&mut self, from: NodeId, to: NodeId, offset: u64, id: TransactionId, values: Vec<u64>) {
        for (offset, &value) in (offset..).step_by(8).zip(&values) {
            self.insert(from, to, Channel::Bulk, offset, value);
        }
        self.bulk.insert((from, id), values);
    }

    fn insert(&mut self, from: NodeId, to: NodeId, channel: Channel, offset: u64, value: u64) {
        self.stores.insert(value, Store { from, to, channel, offset, executed: false, reported: false });
    }

    /// Takes in what the nodes executed since the last call, and which bulk writes have ended.
    pub fn observe(&mut self, world: &World) {
        for execution in &world.executions[self.seen..] {
            self.executed(execution);
        }
        self.seen = world.executions.len();
        for (from, end) in &world.ends[self.ends_seen..] {
            self.ended(*from, end);
        }
        self.ends_seen = world.ends.len();
    }

    fn ended(&mut self, from: NodeId, end: &Finished) {
        let values = self.bulk.remove(&(from, end.id)).expect("it was handed in, and has not ended yet");
        let executed = values.iter().filter(|value| self.stores[value].executed).count();
        match end.code.class() {
            Class::Ok => assert_eq!(executed, values.len(), "no false OK: a bulk write was not executed"),
            Class::Retry | Class::Permanent => assert_eq!(executed, 0, "{}: but it was executed", end.code),
            Class::Unknown => {}
        }
        if end.code.is_ok() {
            self.bulk_ok += 1;
            return;
        }
        self.bulk_failed += 1;
        for value in values {
            self.stores.get_mut(&value).expect("it was handed in").reported = true;
        }
    }

    /// How many bulk writes of a node are under way.
    pub fn under_way(&self, from: NodeId) -> usize {
        self.bulk.keys().filter(|(source, _)| *source == from).count()
    }

    fn executed(&mut self, execution: &Execution) {
        for (index, bytes) in execution.data.chunks(8).enumerate() {
            let value = u64::from_le_bytes(bytes.try_into().expect("stores are of 8 bytes"));
            let store = self.stores.get_mut(&value).expect("what is executed was stored");
            let offset = execution.offset + 8 * index as u64;
            assert_eq!((store.to, store.offset), (execution.node, offset), "executed where it was stored");
            assert!(!store.executed, "exactly once: {value} is executed again");
            assert!(!store.reported, "no ghost writes: {value} is executed after it was reported");
            store.executed = true;
            let last = self.last_value.entry((store.from, store.to, store.channel)).or_default();
            assert!(*last < value, "order: {value} is executed after {last}");
            *last = value;
        }
    }

    /// A check of a block returned this write code.
    pub fn checked(&mut self, world: &World, from: NodeId, to: NodeId, block: u64, write_code: u8) {
        self.observe(world);
        let code = Code::from_bits(write_code).expect("a code of the table");
        let covered = self.unchecked.remove(&(from, to, block)).unwrap_or_default();
        self.checks += 1;
        if code.is_ok() {
            for value in covered {
                assert!(self.stores[&value].executed, "no false OK: {value} was not executed");
            }
            return;
        }
        self.failed_checks += 1;
        if matches!(code.class(), Class::Retry | Class::Permanent) {
            let all = covered.iter().all(|value| self.stores[value].executed);
            assert!(!all, "{code}: not executed, it says, but all of {covered:?} were");
        }
        for value in covered {
            let store = self.stores.get_mut(&value).expect("it was stored");
            store.reported = true;
        }
    }

    /// A question about blocks of a node's space returned this write code, and cleared nothing.
    pub fn asked(&mut self, world: &World, from: NodeId, to: NodeId, blocks: Range<u64>, write_code: u8) {
        self.observe(world);
        let code = Code::from_bits(write_code).expect("a code of the table");
        let unchecked = self.unchecked.range((from, to, blocks.start)..(from, to, blocks.end));
        let covered: Vec<u64> = unchecked.flat_map(|(_, values)| values).copied().collect();
        self.ranges += 1;
        let missing = covered.iter().find(|value| !self.stores[value].executed);
        match code.class() {
            Class::Ok => assert_eq!(missing, None, "no false OK: it was not executed"),
            Class::Retry | Class::Permanent => {
                assert!(missing.is_some(), "{code}: not executed, it says, but all of {covered:?} were");
            }
            Class::Unknown => {}
        }
        self.failed_ranges += u64::from(!code.is_ok());
        // All of them have ended, whatever became of them.
        for value in covered {
            self.stores.get_mut(&value).expect("it was stored").reported = true;
        }
    }

    /// The log of a node was dropped by a reset, and its transfers: nothing is promised of its unchecked stores but order.
    pub fn forget(&mut self, from: NodeId) {
        self.unchecked.retain(|key, _| key.0 != from);
        self.bulk.retain(|key, _| key.0 != from);
    }
}
