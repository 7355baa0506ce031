//! The scatter list of the operation that is handed out, which is read and used by slices.
//!
//! Invariant: no more than a slice is held, and what is not of the right form, or does not add up, is found before anything of
//! its slice is handed out.

use std::collections::VecDeque;

use super::entry::{LIST_ENTRY_SIZE, ListEntry, parse_list};
use super::keys::Key;

/// The most entries of a slice.
const SLICE: u32 = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum State {
    /// The next slice is to be read.
    #[default]
    Unread,
    /// It is being read.
    Reading,
    /// It was read.
    Read,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct List {
    state: State,
    /// Entries that were read.
    read: u32,
    /// Bytes that these are about.
    sum: u64,
    /// Those that were read and not used; the front one is cut as it is used.
    entries: VecDeque<ListEntry>,
    /// Bytes that they are about.
    left: u64,
}

/// What is to be done next with a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// So many bytes of it may be handed out.
    Use(u64),
    /// It is being read.
    Wait,
    /// So many bytes of it are to be read, this far behind its beginning.
    Read(u64, u64),
    /// There are no more entries.
    End,
}

impl List {
    /// What is to be done next; `count` are all entries of the list.
    pub(super) fn next(&self, count: u32) -> Next {
        let bytes = |entries: u32| u64::from(entries).saturating_mul(LIST_ENTRY_SIZE);
        match self.state {
            State::Reading => Next::Wait,
            State::Read if self.left > 0 => Next::Use(self.left),
            _ if self.read >= count => Next::End,
            _ => Next::Read(bytes(self.read), bytes(count.saturating_sub(self.read).min(SLICE))),
        }
    }

    /// The next slice is being read.
    pub(super) const fn begin(&mut self) {
        self.state = State::Reading;
    }

    /// Whether a slice is being read.
    pub(super) fn is_reading(&self) -> bool {
        self.state == State::Reading
    }

    /// Takes in the slice that was read, of a list of `count` entries that are about `len` bytes. False where it makes no sense.
    pub(super) fn take(&mut self, slice: &[u8], count: u32, len: u64) -> bool {
        let Some(entries) = parse_list(slice) else { return false };
        let found = entries.iter().try_fold(0u64, |sum, entry| sum.checked_add(entry.len));
        let Some(left) = found else { return false };
        let Some(sum) = self.sum.checked_add(left) else { return false };
        self.read = self.read.saturating_add(u32::try_from(entries.len()).unwrap_or(u32::MAX));
        (self.state, self.sum, self.left) = (State::Read, sum, left);
        self.entries = entries.into();
        if self.read >= count { sum == len } else { sum <= len }
    }

    /// Names the memory that the next bytes are in, at most `most` of them: key, first byte and length.
    pub(super) fn use_some(&mut self, most: u64) -> Option<(Key, u64, u64)> {
        while self.entries.front().is_some_and(|entry| entry.len == 0) {
            self.entries.pop_front();
        }
        let entry = self.entries.front_mut()?;
        let (key, offset, count) = (entry.key, entry.offset, entry.len.min(most));
        entry.offset = entry.offset.checked_add(count)?;
        entry.len = entry.len.saturating_sub(count);
        self.left = self.left.saturating_sub(count);
        Some((key, offset, count))
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    fn slice(lens: &[u64]) -> Vec<u8> {
        lens.iter().flat_map(|&len| [7, 0x100, len]).flat_map(u64::to_le_bytes).collect()
    }

    #[test]
    fn a_long_list_is_read_by_slices() {
        let mut list = List::default();
        assert_eq!(list.next(100), Next::Read(0, 64 * 24));
        list.begin();
        assert_eq!(list.next(100), Next::Wait);
        assert!(list.take(&slice(&[1; 64]), 100, 100));
        assert_eq!(list.next(100), Next::Use(64));
        for _ in 0..64 {
            assert_eq!(list.use_some(9), Some((Key(7), 0x100, 1)));
        }
        assert_eq!(list.next(100), Next::Read(64 * 24, 36 * 24));
        assert!(list.take(&slice(&[1; 36]), 100, 100));
        assert_eq!((list.next(100), list.use_some(0)), (Next::Use(36), Some((Key(7), 0x100, 0))));
    }

    #[test]
    fn entries_are_cut_and_empty_ones_passed_over() {
        let mut list = List::default();
        assert!(list.take(&slice(&[0, 10, 0, 5]), 4, 15));
        let used: Vec<_> = core::iter::from_fn(|| list.use_some(7)).collect();
        assert_eq!(used, [(Key(7), 0x100, 7), (Key(7), 0x107, 3), (Key(7), 0x100, 5)]);
        assert_eq!(list.next(4), Next::End);
        let mut empty = List::default();
        assert!(empty.take(&slice(&[0; 64]), 65, 3));
        assert_eq!(empty.next(65), Next::Read(64 * 24, 24), "nothing is to be used of the first slice");
    }

    #[test]
    fn what_does_not_add_up_is_found_as_soon_as_it_shows() {
        assert!(!List::default().take(&slice(&[5, 5]), 2, 9));
        assert!(!List::default().take(&slice(&[5, 5]), 2, 11));
        assert!(!List::default().take(&slice(&[5; 64]), 65, 319), "too much already");
        let mut list = List::default();
        assert!(list.take(&slice(&[5; 64]), 65, 321));
        assert!(!list.take(&slice(&[2]), 65, 321));
        assert!(!List::default().take(&slice(&[1, u64::MAX]), 2, 0), "the sum goes beyond all numbers");
    }
}
