//! Knows every store's fate, and holds each answer of a check against it.
//!
//! Every store has a value of its own, so that what a target's memory was given names the stores.

use std::collections::BTreeMap;

use assured_rdma::adaptor::address::NodeId;
use assured_rdma::adaptor::status::{Class, Code};

use crate::world::{Execution, World};

struct Store {
    from: NodeId,
    to: NodeId,
    offset: u64,
    executed: bool,
    /// A check returned an error for its block, so that it must not be executed any more.
    reported: bool,
}

#[derive(Default)]
pub struct Oracle {
    stores: BTreeMap<u64, Store>,
    /// Stores that no check has covered yet, by source, target and block.
    unchecked: BTreeMap<(NodeId, NodeId, u64), Vec<u64>>,
    seen: usize,
    last_value: BTreeMap<(NodeId, NodeId), u64>,
    next: u64,
    pub checks: u64,
    pub failed_checks: u64,
}

impl Oracle {
    /// A store is about to be made; returns the value to store.
    pub fn new_value(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn stored(&mut self, from: NodeId, to: NodeId, offset: u64, value: u64) {
        self.stores.insert(value, Store { from, to, offset, executed: false, reported: false });
        self.unchecked.entry((from, to, offset / 4096)).or_default().push(value);
    }

    /// Takes in what the nodes executed since the last call.
    pub fn observe(&mut self, world: &World) {
        for execution in &world.executions[self.seen..] {
            self.executed(execution);
        }
        self.seen = world.executions.len();
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
            let last = self.last_value.entry((store.from, store.to)).or_default();
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

    /// The log of a node was dropped by a reset: nothing is promised of its unchecked stores but order.
    pub fn forget(&mut self, from: NodeId) {
        self.unchecked.retain(|key, _| key.0 != from);
    }
}
