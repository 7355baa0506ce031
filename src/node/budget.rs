//! How much a turn does for each of several parties, so that none waits long for the others.
//!
//! Work is counted in operations, runs of memory and pages of bytes. Each takes a tenth of a microsecond where memory is at hand, and
//! about one where its pages have to be faulted in.

use crate::adaptor::memory::Segment;

/// Work that a turn does for all parties together.
const A_TURN: usize = 8 << 10;
/// The most for one of them: as much as keeps transfers at their full rate.
const MOST: usize = 2 << 10;
/// The least, with however many.
const LEAST: usize = 64;
/// Bytes that count as one operation.
const PAGE: usize = 4096;

/// What is left of a party's share.
#[derive(Debug)]
pub struct Budget(usize);

impl Budget {
    /// The share of one of so many parties.
    pub fn of(parties: usize) -> Self {
        Self(A_TURN.checked_div(parties).unwrap_or(MOST).clamp(LEAST, MOST))
    }

    /// A part of a share.
    pub const fn part(self, parts: usize) -> Self {
        Self(self.0.div_ceil(if parts == 0 { 1 } else { parts }))
    }

    /// Whether others come first now.
    pub const fn is_spent(&self) -> bool {
        self.0 == 0
    }

    /// An operation on these runs of memory is done.
    pub fn spend(&mut self, segments: &[Segment]) {
        let bytes = segments.iter().fold(0usize, |bytes, segment| bytes.saturating_add(segment.len));
        let work = segments.len().saturating_add(bytes / PAGE).saturating_add(1);
        self.0 = self.0.saturating_sub(work);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_shared_among_all_and_spent_by_runs_and_bytes() {
        let shares = [0, 1, 4, 64, 256, 4096].map(|parties| Budget::of(parties).0);
        assert_eq!(shares, [2048, 2048, 2048, 128, 64, 64]);
        let mut budget = Budget::of(1).part(2);
        budget.spend(&[Segment { address: 0, len: 8 }; 500]);
        assert_eq!(budget.0, 1024 - 500 - 1);
        budget.spend(&[Segment { address: 0, len: 1 << 20 }]);
        assert!(!budget.is_spent());
        budget.spend(&[Segment { address: 0, len: 1 << 20 }; 2]);
        assert!(budget.is_spent());
    }
}
