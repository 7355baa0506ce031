//! How much the engine may have under way to each node.
//!
//! What is under way waits in queues on the way, and everything behind it waits as long, accesses of the guest's processors too. So
//! no more may be under way than the way carries in a few milliseconds: the allowance grows while answers take hardly longer than
//! the way itself, and is halved when they take much longer.
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
/// The most requests to all nodes together.
const TOTAL_REQUESTS: usize = 16 << 10;
/// Answers that take at most so much longer than the way itself let the allowance grow.
const FAST: Duration = Duration::from_millis(4);
/// Answers that take more than so much longer halve it.
const SLOW: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Way {
    bytes: u64,
    requests: usize,
    allowance: u64,
    /// What was sent before does not say anything about the present allowance.
    halved: Instant,
    /// When something was sent while nothing was under way, until its answer: the next, since they come in order.
    lone: Option<Instant>,
    /// How long its answer took, or a later one, if that took less. `None` before the first answer.
    alone: Option<Duration>,
    waiting: VecDeque<Number>,
}

impl Default for Way {
    fn default() -> Self {
        Self {
            bytes: 0,
            requests: 0,
            allowance: FIRST,
            halved: Instant::ZERO,
            lone: None,
            alone: None,
            waiting: VecDeque::new(),
        }
    }
}

impl Way {
    /// A transaction that moved so many bytes and was sent at `sent` has been answered.
    fn learn(&mut self, now: Instant, bytes: u64, sent: Instant) {
        let took = now.since(sent);
        let is_lone = self.lone.take() == Some(sent);
        let alone = self.alone.filter(|&alone| !is_lone && alone < took).unwrap_or(took);
        self.alone = Some(alone);
        if sent < self.halved {
            return;
        }
        let extra = took.saturating_sub(alone);
        if extra <= FAST {
            self.allowance = self.allowance.saturating_add(bytes).min(MOST);
        } else if extra > SLOW {
            self.allowance = (self.allowance / 2).max(LEAST);
            self.halved = now;
        }
    }
}

/// The ways to all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Ways {
    ways: BTreeMap<NodeId, Way>,
    bytes: u64,
    requests: usize,
    /// Queues that wait because too much is under way to all nodes together.
    waiting: VecDeque<Number>,
}

impl Ways {
    /// Takes room for a transaction that moves so many bytes and is sent now. Where there is none, the queue `waits`, and is named by a later
    /// [`Self::free`]. One that waits already, be it for another way, is not put behind the others once more.
    pub(super) fn take(
        &mut self,
        now: Instant,
        node: NodeId,
        bytes: u64,
        queue: Number,
        waits: &mut bool,
    ) -> bool {
        let way = self.ways.entry(node).or_default();
        // The last one may be longer than what is left: else a long one would wait for ever where short ones take all that becomes free.
        let is_full = way.requests >= BULK_REQUESTS || way.bytes >= way.allowance;
        let is_much = self.bytes >= TOTAL || self.requests >= TOTAL_REQUESTS;
        if is_full || is_much {
            let waiting = if is_full { &mut way.waiting } else { &mut self.waiting };
            if !core::mem::replace(waits, true) {
                waiting.push_back(queue);
            }
            return false;
        }
        if way.requests == 0 {
            way.lone = Some(now);
        }
        way.bytes = way.bytes.saturating_add(bytes);
        way.requests = way.requests.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        self.requests = self.requests.saturating_add(1);
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
        self.requests = self.requests.saturating_sub(1);
        if let Some(sent) = sent {
            way.learn(now, bytes, sent);
        }
        // One for each that ends: the second would find the first to have taken all, and be behind it again. All where nothing more will end.
        let woken = if way.requests == 0 { way.waiting.len() } else { way.waiting.len().min(1) };
        wake.extend(way.waiting.drain(..woken));
        let woken = if self.requests == 0 { self.waiting.len() } else { self.waiting.len().min(1) };
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

    fn fill(ways: &mut Ways, now: u64) -> u64 {
        (0..).take_while(|_| ways.take(at(now), NODE, LEAST, 1, &mut true)).count() as u64 * LEAST
    }

    /// Uses the whole allowance, each answer after so many milliseconds; how much it was.
    fn round(ways: &mut Ways, now: &mut u64, millis: u64) -> u64 {
        let (bytes, sent, mut wake) = (fill(ways, *now), *now, Vec::new());
        *now += millis;
        for _ in 0..bytes / LEAST {
            ways.free(at(*now), NODE, LEAST, Some(at(sent)), &mut wake);
        }
        *now += 1;
        bytes
    }

    #[test]
    fn a_fast_way_gets_more_and_a_slow_one_less() {
        let (mut ways, mut now) = (Ways::default(), 1);
        assert!(ways.take(at(0), NODE, 0, 1, &mut false), "nothing is sent alone after that");
        assert_eq!([1, 5, 1].map(|millis| round(&mut ways, &mut now, millis)), [FIRST, 2 * FIRST, MOST]);
        assert_eq!(
            [7, 11, 7].map(|millis| round(&mut ways, &mut now, millis)),
            [MOST; 3],
            "neither fast nor slow"
        );
        // Halved once for all that was sent at a time.
        assert_eq!([12, 12, 1].map(|millis| round(&mut ways, &mut now, millis)), [MOST, MOST / 2, MOST / 4]);
    }

    #[test]
    fn a_long_way_is_not_slow() {
        let (mut ways, mut now) = (Ways::default(), 1);
        assert_eq!(
            [150, 154, 153].map(|millis| round(&mut ways, &mut now, millis)),
            [FIRST, 2 * FIRST, MOST]
        );
        assert_eq!(
            [300, 304].map(|millis| round(&mut ways, &mut now, millis)),
            [MOST; 2],
            "it has become longer"
        );
    }

    #[test]
    fn who_waits_is_named_when_something_ends() {
        let (mut ways, mut wake) = (Ways::default(), Vec::new());
        assert!(ways.take(at(0), NODE, FIRST, 1, &mut false));
        for queue in 2..7 {
            let mut waits = false;
            assert!(!ways.take(at(0), NODE, 1, queue, &mut waits) && waits);
            assert!(!ways.take(at(0), NODE, 1, queue, &mut waits), "it waits once");
        }
        assert!(ways.take(at(0), NodeId(4), 1, 9, &mut false), "other ways are free");
        ways.free(at(30), NODE, FIRST, Some(at(0)), &mut wake);
        assert_eq!(wake, [2, 3, 4, 5, 6], "nothing is under way that would name them later");
    }

    #[test]
    fn a_long_transaction_gets_its_turn_among_short_ones() {
        let (mut ways, mut wake) = (Ways::default(), Vec::new());
        let (short, long) = (LEAST, 8 * LEAST);
        let mut waits = [false; 3];
        let mut under_way = 0;
        while ways.take(at(9), NODE, short, 1, &mut waits[1]) {
            under_way += 1;
        }
        assert!(!ways.take(at(9), NODE, long, 2, &mut waits[2]));
        // Whoever is named goes on, and sends as much as it can.
        for _ in 0..2 * under_way {
            ways.free(at(9), NODE, short, None, &mut wake);
            waits = [false; 3];
            for queue in wake.drain(..) {
                let bytes = if queue == 1 { short } else { long };
                while ways.take(at(9), NODE, bytes, queue, &mut waits[queue as usize]) {
                    if queue == 2 {
                        return;
                    }
                }
            }
        }
        panic!("the long one never went");
    }

    #[test]
    fn behind_one_that_is_larger_than_the_allowance_nothing_goes() {
        let (mut ways, mut wake) = (Ways::default(), Vec::new());
        assert!(ways.take(at(0), NODE, 2 * FIRST, 1, &mut false));
        assert!(!ways.take(at(0), NODE, 1, 2, &mut false));
        ways.free(at(30), NODE, 2 * FIRST, None, &mut wake);
        assert_eq!(wake, [2]);
    }
}
