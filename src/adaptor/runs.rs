//! Lists of runs of addresses, and what is where in them: behind a window, or behind registered memory.
//!
//! Invariant: the runs add up to the length, and neighbours in memory are one.

use super::address::BLOCK_SIZE;
use super::memory::Segment;

/// Offsets, lengths and addresses of windows, registered memory and runs are multiples of this, in bytes.
pub const GRAIN: u64 = BLOCK_SIZE;

/// A run of addresses in the home of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// Its first address.
    pub address: u64,
    /// Its length in bytes.
    pub len: u64,
}

impl Run {
    /// Whether address and length are multiples of [`GRAIN`], the length is not 0 and the run does
    /// not wrap around the end of the address space.
    pub fn is_valid(self) -> bool {
        self.len != 0
            && self.address.is_multiple_of(GRAIN)
            && self.len.is_multiple_of(GRAIN)
            && self.address.checked_add(self.len.saturating_sub(1)).is_some()
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Runs {
    len: u64,
    /// Of each run the distance of its first byte from the start of all, and its address.
    list: Vec<(u64, u64)>,
}

impl Runs {
    /// No runs.
    pub const fn empty() -> Self {
        Self { len: 0, list: Vec::new() }
    }

    /// The list of these runs; `None` if one is not valid or they do not add up to `len` bytes.
    pub fn new(runs: &[Run], len: u64) -> Option<Self> {
        let mut list = Self::empty();
        runs.iter().try_for_each(|&run| list.push(run))?;
        (list.len == len).then_some(list)
    }

    /// Appends a run; `None` if it is not valid, or they are too long together.
    pub fn push(&mut self, run: Run) -> Option<()> {
        let len = self.len.checked_add(run.len).filter(|_| run.is_valid())?;
        let last = self.list.last();
        let next = last.and_then(|&(begin, address)| address.checked_add(self.len.checked_sub(begin)?));
        if next != Some(run.address) {
            self.list.push((self.len, run.address));
        }
        self.len = len;
        Some(())
    }

    /// Gives back memory that was taken for more runs than there are.
    pub fn shrink(&mut self) {
        self.list.shrink_to_fit();
    }

    /// The length of all in bytes.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many runs there are; neighbouring ones count as one.
    pub const fn count(&self) -> usize {
        self.list.len()
    }

    /// Appends where `len` bytes from `start` on are (both in bytes); `None` where they do not lie in the runs.
    pub fn translate(&self, start: u64, len: u64, segments: &mut Vec<Segment>) -> Option<()> {
        start.checked_add(len).filter(|&end| end <= self.len)?;
        let mut first = self.list.partition_point(|&(begin, _)| begin <= start).checked_sub(1)?;
        let (mut start, mut left) = (start, len);
        while left > 0 {
            let &(begin, address) = self.list.get(first)?;
            first = first.checked_add(1)?;
            let end = self.list.get(first).map_or(self.len, |&(begin, _)| begin);
            let count = end.checked_sub(start)?.min(left);
            let address = address.checked_add(start.checked_sub(begin)?)?;
            segments.push(Segment { address, len: usize::try_from(count).ok()? });
            (start, left) = (end, left.checked_sub(count)?);
        }
        Some(())
    }
}
