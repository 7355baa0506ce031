//! How much the engine may have under way to each node.
//!
//! A transaction that is not answered in time ends its whole flow, so that no more may be under way than the way carries in a
//! part of that time: the allowance grows while answers come fast, and is halved when they are slow.
//!
//! Invariant: what waits stands once in one list, and something is under way whose end takes it out of that.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use super::queue::Number;
use crate::adaptor::Instant;
use crate::adaptor::address::NodeId;
use crate::adaptor::mesh::limits::{BULK_BYTES, BULK_REQUESTS};

/// The allowance at the beginning, in bytes.
const FIRST: u64 = 1 << 20;
/// The least allowance, in bytes.
const LEAST: u64 = 64 << 10;
/// The greatest, in bytes: that of the flow.
const MOST: u64 = BULK_BYTES as u64;
/// The most bytes to all nodes together.
const TOTAL: u64 = 64 << 20;
/// Answers that come within this time let the allowance grow.
const FAST: Duration = Duration::from_millis(20);
/// Answers that take longer than this halve it.
const SLOW: Duration = Duration::from_millis(80);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Way {
    bytes: u64,
    requests: usize,
    allowance: u64,
    /// What was sent before does not say anything about the present allowance.
    halved: Instant,
    waiting: VecDeque<Number>,
}

impl Default for Way {
    fn default() -> Self {
        Self { bytes: 0, requests: 0, allowance: FIRST, halved: Instant::ZERO, waiting: VecDeque::new() }
    }
}

/// The ways to all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Ways {
    ways: BTreeMap<NodeId, Way>,
    bytes: u64,
    /// Queues that wait because too much is under way to all nodes together.
    waiting: VecDeque<Number>,
}

impl Ways {
    /// Takes room for a transaction that moves so many bytes. Where there is none, the queue `waits`, and is named by a later
    /// [`Self::free`]. One that waits already, be it for another way, is not put behind the others once more.
    pub(super) fn take(&mut self, node: NodeId, bytes: u64, queue: Number, waits: &mut bool) -> bool {
        let way = self.ways.entry(node).or_default();
        // One at a time is always allowed.
        let is_full = way.requests > 0
            && (way.requests >= BULK_REQUESTS || way.bytes.saturating_add(bytes) > way.allowance);
        let is_much = self.bytes > 0 && self.bytes.saturating_add(bytes) > TOTAL;
        if is_full || is_much {
            let waiting = if is_full { &mut way.waiting } else { &mut self.waiting };
            if !core::mem::replace(waits, true) {
                waiting.push_back(queue);
            }
            return false;
        }
        way.bytes = way.bytes.saturating_add(bytes);
        way.requests = way.requests.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        true
    }

    /// A transaction that was sent at `sent`, or never, has ended. Names queues that may go on into `wake`.
    pub(super) fn free(
        &mut self,
        now: Instant,
        node: NodeId,
        bytes: u64,
        sent: Option<Instant>,
        wake: &mut Vec<Number>,
    ) {
        let Some(way) = self.ways.get_mut(&node) else { return };
        way.bytes = way.bytes.saturating_sub(bytes);
        way.requests = way.requests.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        if let Some(sent) = sent.filter(|&sent| sent >= way.halved) {
            let took = now.since(sent);
            if took <= FAST {
                way.allowance = way.allowance.saturating_add(bytes).min(MOST);
            } else if took > SLOW {
                way.allowance = (way.allowance / 2).max(LEAST);
                way.halved = now;
            }
        }
        // Two for each that ends, so that what is named without need leaves nobody waiting; all where nothing more will end.
        let woken = if way.requests == 0 { way.waiting.len() } else { way.waiting.len().min(2) };
        wake.extend(way.waiting.drain(..woken));
        let woken = if self.bytes == 0 { self.waiting.len() } else { self.waiting.len().min(2) };
        wake.extend(self.waiting.drain(..woken));
        if way.requests == 0 && way.waiting.is_empty() && way.allowance == FIRST {
            self.ways.remove(&node);
        }
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(3);

    fn at(millis: u64) -> Instant {
        Instant::ZERO.after(Duration::from_millis(millis))
    }

    fn fill(ways: &mut Ways) -> u64 {
        (0..).take_while(|_| ways.take(NODE, LEAST, 1, &mut true)).count() as u64 * LEAST
    }

    #[test]
    fn a_fast_way_gets_more_and_a_slow_one_less() {
        let (mut ways, mut wake) = (Ways::default(), Vec::new());
        assert_eq!(fill(&mut ways), FIRST);
        for _ in 0..FIRST / LEAST {
            ways.free(at(1), NODE, LEAST, Some(at(0)), &mut wake);
        }
        assert_eq!(fill(&mut ways), 2 * FIRST);
        for _ in 0..2 * FIRST / LEAST {
            ways.free(at(200), NODE, LEAST, Some(at(2)), &mut wake);
        }
        assert_eq!(
            fill(&mut ways),
            FIRST,
            "what was sent before the allowance was halved does not halve it again"
        );
        for _ in 0..100 {
            ways.free(at(400), NODE, LEAST, Some(at(200)), &mut wake);
            ways.take(NODE, LEAST, 1, &mut true);
            ways.free(at(600), NODE, LEAST, Some(at(400)), &mut wake);
        }
        assert!(ways.take(NODE, LEAST, 1, &mut true));
    }

    #[test]
    fn who_waits_is_named_when_something_ends() {
        let (mut ways, mut wake) = (Ways::default(), Vec::new());
        assert!(ways.take(NODE, FIRST, 1, &mut false));
        for queue in 2..7 {
            let mut waits = false;
            assert!(!ways.take(NODE, 1, queue, &mut waits) && waits);
            assert!(!ways.take(NODE, 1, queue, &mut waits), "it waits once");
        }
        assert!(ways.take(NodeId(4), 1, 9, &mut false), "other ways are free");
        ways.free(at(30), NODE, FIRST, Some(at(0)), &mut wake);
        assert_eq!(wake, [2, 3, 4, 5, 6], "nothing is under way that would name them later");
    }

    #[test]
    fn one_that_is_larger_than_the_allowance_goes_alone() {
        let (mut ways, mut wake) = (Ways::default(), Vec::new());
        assert!(ways.take(NODE, 2 * FIRST, 1, &mut false));
        assert!(!ways.take(NODE, 1, 2, &mut false));
        ways.free(at(30), NODE, 2 * FIRST, None, &mut wake);
        assert_eq!(wake, [2]);
    }
}
