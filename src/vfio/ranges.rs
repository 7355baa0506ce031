//! Which addresses a client has mapped for the device, and what is behind them.
//!
//! Invariant: ranges never overlap, and no two of them could be one: a range that goes on where its neighbour ends, in
//! the address space and in the file, with the same rights, is joined with it. A client that unmaps a part cuts it again.

use super::files::GuestFile;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the bytes of a range are in.
#[derive(Clone, Debug)]
pub(super) enum Backing {
    /// The client gave no file.
    Unreachable,
    /// The file from this byte on.
    File(Arc<GuestFile>, u64),
}

/// A run of addresses.
#[derive(Clone, Debug)]
pub(super) struct Range {
    /// Its length in bytes, never 0.
    pub len: u64,
    /// The device may write there.
    pub is_writable: bool,
    pub backing: Backing,
}

impl Range {
    /// Whether `next` begins, in the file, where this one ends, and has the same rights.
    fn goes_on_in(&self, next: &Self) -> bool {
        let are_joined = match (&self.backing, &next.backing) {
            (Backing::Unreachable, Backing::Unreachable) => true,
            (Backing::File(own, start), Backing::File(other, begin)) => {
                Arc::ptr_eq(own, other) && start.checked_add(self.len) == Some(*begin)
            }
            _ => false,
        };
        are_joined && self.is_writable == next.is_writable
    }

    /// The range without its first bytes; `None` where nothing is left.
    fn behind(&self, skipped: u64) -> Option<Self> {
        let len = self.len.checked_sub(skipped).filter(|&len| len > 0)?;
        let backing = match &self.backing {
            Backing::Unreachable => Backing::Unreachable,
            Backing::File(file, start) => Backing::File(Arc::clone(file), start.saturating_add(skipped)),
        };
        Some(Self { len, is_writable: self.is_writable, backing })
    }
}

/// Why a range was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It overlaps another.
    Overlap,
    /// There are as many as there may be.
    TooMany,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Ranges {
    /// By their first address. The last byte of each is at most the last but one of the address space.
    by_address: BTreeMap<u64, Range>,
    most: usize,
}

impl Ranges {
    /// None yet, and at most so many.
    pub const fn new(most: usize) -> Self {
        Self { by_address: BTreeMap::new(), most }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Adds a range, which ends before the end of the address space.
    pub fn insert(&mut self, address: u64, mut range: Range) -> Result<(), Refused> {
        let end = address.saturating_add(range.len);
        let before = self.by_address.range(..end).next_back();
        if before.is_some_and(|(&at, before)| end_of(at, before) > address) {
            return Err(Refused::Overlap);
        }
        let joined =
            before.filter(|(at, before)| end_of(**at, before) == address && before.goes_on_in(&range));
        let joined = joined.map(|(&at, _)| at);
        let follows = self.by_address.get(&end).is_some_and(|next| range.goes_on_in(next));
        if joined.is_none() && !follows && self.by_address.len() >= self.most {
            return Err(Refused::TooMany);
        }
        if follows && let Some(next) = self.by_address.remove(&end) {
            range.len = range.len.saturating_add(next.len);
        }
        match joined.and_then(|at| self.by_address.get_mut(&at)) {
            Some(before) => before.len = before.len.saturating_add(range.len),
            None => _ = self.by_address.insert(address, range),
        }
        Ok(())
    }

    /// Takes away what is mapped from `first` to `last`, both included. Where a hole would make more ranges than there may
    /// be, what is behind the hole in the same range goes too, and is returned: its first address and its length in bytes.
    pub fn remove(&mut self, first: u64, last: u64) -> Option<(u64, u64)> {
        let next = last.checked_add(1);
        let rest_of = |at: u64, range: &Range| {
            next.and_then(|next| Some((next, range.behind(next.saturating_sub(at))?)))
        };
        let before = self.by_address.range_mut(..first).next_back();
        if let Some((&at, before)) = before
            && end_of(at, before) > first
        {
            let rest = rest_of(at, before);
            before.len = first.saturating_sub(at);
            if let Some((next, rest)) = rest {
                let lost = (next, rest.len);
                let fits = self.by_address.len() < self.most;
                if fits {
                    self.by_address.insert(next, rest);
                }
                return (!fits).then_some(lost);
            }
        }
        while let Some((&at, _)) = self.by_address.range(first..=last.max(first)).next() {
            let cut = self.by_address.remove(&at).and_then(|range| rest_of(at, &range));
            if let Some((next, rest)) = cut {
                self.by_address.insert(next, rest);
            }
        }
        None
    }

    pub fn clear(&mut self) {
        self.by_address.clear();
    }

    /// The range that an address is in, and how many bytes of it are before that.
    pub fn at(&self, address: u64) -> Option<(u64, &Range)> {
        let (&at, range) = self.by_address.range(..=address).next_back()?;
        let within = address.saturating_sub(at);
        (within < range.len).then_some((within, range))
    }

    /// The ranges that some byte from `first` up to before `end` is in, from the last to the first.
    pub fn touched(&self, first: u64, end: u64) -> impl Iterator<Item = &Range> {
        let before = self.by_address.range(..end).rev();
        before.take_while(move |(at, range)| end_of(**at, range) > first).map(|(_, range)| range)
    }
}

fn end_of(at: u64, range: &Range) -> u64 {
    at.saturating_add(range.len)
}

#[cfg(test)]
#[path = "ranges_tests.rs"]
mod tests;
