//! Ring entries: what stands in the guest's memory, and what it means.
//!
//! Invariant: whatever the bytes, they give an operation in which everything has a meaning, or a malformed one that still
//! has a cookie. They are our own copy, looked at once.

use super::keys::Key;
use crate::adaptor::address::{NodeId, OFFSET_BITS};

/// Bytes in a submission entry.
pub const SUBMISSION_SIZE: u64 = 64;
/// Bytes in a completion entry.
pub const COMPLETION_SIZE: u64 = 32;
/// Bytes before the completion ring that belong to it: its head.
pub const HEAD_SIZE: u64 = 64;
/// Bytes in an entry of a scatter list.
pub const LIST_ENTRY_SIZE: u64 = 24;
/// The most entries of a scatter list.
pub const MAX_LIST: u32 = 1024;
/// The most bytes of inline data, without a message.
const MAX_INLINE: u64 = 32;
/// The same, with a message.
const MAX_INLINE_WITH_MESSAGE: u64 = 16;
/// Bytes that an atomic operation is about.
pub const ATOMIC_SIZE: u64 = 8;

/// Flags: it starts after all before it have ended.
const FENCE: u8 = 1 << 0;
/// Flags: the data stands in the entry.
const INLINE: u8 = 1 << 1;
/// Flags: local memory is a scatter list.
const LIST: u8 = 1 << 2;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Writes local memory to the other node.
    Write,
    /// Reads from the other node into local memory.
    Read,
    /// As a write, and then rings a doorbell of the other node.
    Message {
        /// Which doorbell.
        doorbell: u8,
        /// What it says.
        data: u64,
    },
    /// Adds to a number there; its former value is the result.
    FetchAdd(u64),
    /// Replaces a number there if it is the one expected; its former value is the result.
    CompareSwap {
        /// What has to be there.
        compare: u64,
        /// What is to be there then.
        swap: u64,
    },
    /// Nothing: it ends when all before it have ended.
    Fence,
}

/// Where an operation's data is on this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Local {
    /// Nowhere.
    None,
    /// In the entry.
    Inline([u8; 32]),
    /// In registered memory, from this byte on.
    Memory(Key, u64),
    /// Where a list of so many entries says, that stands in registered memory from this byte on.
    List(Key, u64, u32),
}

/// An entry of the submission ring that makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Submission {
    /// What it does.
    pub action: Action,
    /// It starts after all before it have ended.
    pub fence: bool,
    /// The other node.
    pub node: NodeId,
    /// What its completion is to be called.
    pub cookie: u64,
    /// Where in the other node's offset space of memory.
    pub remote: u64,
    /// How many bytes.
    pub len: u64,
    /// Where its data is.
    pub local: Local,
}

/// An entry without a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Malformed {
    /// What its completion is to be called.
    pub cookie: u64,
}

/// The index that stands in an entry of either ring, which is one more than its own.
pub fn index_of(entry: &[u8]) -> u32 {
    u32::from_le_bytes(field(entry, 0x00))
}

impl Submission {
    /// Gives an entry its meaning.
    ///
    /// # Errors
    /// Where it has none.
    pub fn parse(entry: &[u8]) -> Result<Self, Malformed> {
        let cookie = u64_at(entry, 0x08);
        Self::parse_as(entry, cookie).ok_or(Malformed { cookie })
    }

    fn parse_as(entry: &[u8], cookie: u64) -> Option<Self> {
        let [opcode, flags, node, doorbell] = field(entry, 0x04);
        let (remote, mut len) = (u64_at(entry, 0x10), u64_at(entry, 0x18));
        let (operand, compare) = (u64_at(entry, 0x30), u64_at(entry, 0x38));
        let action = match opcode {
            1 => Action::Write,
            2 => Action::Read,
            3 => Action::Message { doorbell, data: operand },
            4 => Action::FetchAdd(operand),
            5 => Action::CompareSwap { compare, swap: operand },
            6 => Action::Fence,
            _ => return None,
        };
        if flags & !(FENCE | INLINE | LIST) != 0 {
            return None;
        }
        let local = match action {
            Action::FetchAdd(_) | Action::CompareSwap { .. } => {
                let is_sound = flags & !FENCE == 0
                    && (len == 0 || len == ATOMIC_SIZE)
                    && remote.is_multiple_of(ATOMIC_SIZE);
                len = ATOMIC_SIZE;
                is_sound.then_some(Local::None)?
            }
            Action::Fence => {
                len = 0;
                (flags & !FENCE == 0).then_some(Local::None)?
            }
            // An OK of what asks nobody would say nothing.
            Action::Write | Action::Read if len == 0 => return None,
            Action::Write | Action::Read | Action::Message { .. } => {
                parse_local(entry, flags & !FENCE, action, len)?
            }
        };
        let end = remote.checked_add(len)?;
        if action != Action::Fence && end > 1 << OFFSET_BITS {
            return None;
        }
        Some(Self { action, fence: flags & FENCE != 0, node: NodeId(node), cookie, remote, len, local })
    }
}

fn parse_local(entry: &[u8], flags: u8, action: Action, len: u64) -> Option<Local> {
    let (key, count) = (Key(u32::from_le_bytes(field(entry, 0x20))), u32::from_le_bytes(field(entry, 0x24)));
    let offset = u64_at(entry, 0x28);
    match (flags, action) {
        (0, _) => (count == 0).then_some(Local::Memory(key, offset)),
        (INLINE, Action::Write) => (len <= MAX_INLINE).then_some(Local::Inline(field(entry, 0x20))),
        (INLINE, Action::Message { .. }) => {
            (len <= MAX_INLINE_WITH_MESSAGE).then_some(Local::Inline(field(entry, 0x20)))
        }
        (LIST, _) => {
            (count <= MAX_LIST && (count > 0 || len == 0)).then_some(Local::List(key, offset, count))
        }
        _ => None,
    }
}

/// An entry of a scatter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListEntry {
    /// Which registered memory.
    pub key: Key,
    /// From which byte of it on.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

/// Entries of a scatter list; `None` where one is malformed.
pub fn parse_list(bytes: &[u8]) -> Option<Vec<ListEntry>> {
    let size = usize::try_from(LIST_ENTRY_SIZE).ok()?;
    let entry = |entry: &[u8]| {
        let item = ListEntry {
            key: Key(u32::from_le_bytes(field(entry, 0x00))),
            offset: u64_at(entry, 0x08),
            len: u64_at(entry, 0x10),
        };
        (u32::from_le_bytes(field(entry, 0x04)) == 0).then_some(item)
    };
    bytes.chunks_exact(size).map(entry).collect()
}

/// What a completion entry says, without its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Completion {
    /// The status word.
    pub status: u32,
    /// The submission's cookie.
    pub cookie: u64,
    /// Bytes that were moved.
    pub done: u64,
    /// What was there before an atomic operation.
    pub former: u64,
}

impl Completion {
    /// The entry's first 8 bytes: index and status. They are written after all else.
    pub fn front(&self, index: u32) -> [u8; 8] {
        (u64::from(self.status) << 32 | u64::from(index.wrapping_add(1))).to_le_bytes()
    }

    /// The entry's other bytes.
    pub fn rest(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        let words = [self.cookie, self.done, self.former].into_iter().flat_map(u64::to_le_bytes);
        bytes.iter_mut().zip(words).for_each(|(to, from)| *to = from);
        bytes
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(field(bytes, at))
}

/// The bytes of a field; 0 where `bytes` is too short.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    fn entry(opcode: u8, flags: u8, fields: &[(usize, u64)]) -> [u8; 64] {
        let mut entry = [0; 64];
        (entry[4], entry[5], entry[6], entry[7]) = (opcode, flags, 3, 9);
        for &(at, value) in fields {
            entry[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        entry
    }

    fn is_malformed(opcode: u8, flags: u8, fields: &[(usize, u64)]) -> bool {
        let mut all = vec![(0x08, 77)];
        all.extend(fields);
        Submission::parse(&entry(opcode, flags, &all)) == Err(Malformed { cookie: 77 })
    }

    #[test]
    fn a_write_names_memory_by_key_and_offset() {
        let fields = [(0x08, 5), (0x10, 0x1000), (0x18, 64), (0x20, 0x42), (0x28, 0x80)];
        let found = Submission::parse(&entry(1, FENCE, &fields)).unwrap();
        let expected = Submission {
            action: Action::Write,
            fence: true,
            node: NodeId(3),
            cookie: 5,
            remote: 0x1000,
            len: 64,
            local: Local::Memory(Key(0x42), 0x80),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn atomics_have_their_operands_and_are_aligned() {
        let fields = [(0x10, 0x18), (0x18, 8), (0x30, 6), (0x38, 5)];
        let found = Submission::parse(&entry(5, 0, &fields)).unwrap();
        assert_eq!(found.action, Action::CompareSwap { compare: 5, swap: 6 });
        assert_eq!(Submission::parse(&entry(4, 0, &[(0x30, 6)])).unwrap().len, 8);
        assert!(is_malformed(4, 0, &[(0x10, 4)]));
        assert!(is_malformed(4, 0, &[(0x18, 4)]));
        assert!(is_malformed(4, INLINE, &[]) && is_malformed(5, LIST, &[]));
    }

    #[test]
    fn inline_data_is_short_and_for_writes_only() {
        let data = Submission::parse(&entry(1, INLINE, &[(0x18, 32), (0x38, u64::MAX)])).unwrap().local;
        let mut bytes = [0; 32];
        bytes[24..].fill(0xff);
        assert_eq!(data, Local::Inline(bytes));
        assert!(is_malformed(1, INLINE, &[(0x18, 33)]));
        assert!(is_malformed(3, INLINE, &[(0x18, 17)]));
        assert!(is_malformed(2, INLINE, &[(0x18, 8)]));
        assert!(is_malformed(1, INLINE | LIST, &[(0x18, 8)]));
        let message = Submission::parse(&entry(3, INLINE, &[(0x18, 16), (0x30, 4)])).unwrap();
        assert_eq!(message.action, Action::Message { doorbell: 9, data: 4 });
    }

    #[test]
    fn what_lies_beyond_the_offset_space_or_is_unknown_is_malformed() {
        assert!(is_malformed(0, 0, &[]) && is_malformed(7, 0, &[]) && is_malformed(1, 8, &[(0x18, 8)]));
        assert!(is_malformed(1, 0, &[(0x10, 1 << 48), (0x18, 1)]));
        assert!(is_malformed(1, 0, &[(0x10, u64::MAX), (0x18, 2)]));
        assert!(is_malformed(1, 0, &[(0x18, 8), (0x20, 1 << 32 | 5)]), "a list without its flag");
        assert!(is_malformed(1, LIST, &[(0x18, 8), (0x20, 1025 << 32)]));
        assert!(is_malformed(1, 0, &[]) && is_malformed(2, 0, &[]) && is_malformed(1, INLINE, &[]));
        assert!(Submission::parse(&entry(3, 0, &[])).is_ok(), "a message needs no data");
        assert!(Submission::parse(&entry(2, 0, &[(0x18, 1 << 48)])).is_ok());
        assert!(Submission::parse(&[]).is_err());
    }

    #[test]
    fn a_list_has_keys_offsets_and_lengths() {
        let mut bytes = Vec::new();
        for (key, offset, len) in [(1u64, 0u64, 5u64), (2, 64, 0), (1, 8, 7)] {
            bytes.extend([key, offset, len].into_iter().flat_map(u64::to_le_bytes));
        }
        let item = |key, offset, len| ListEntry { key: Key(key), offset, len };
        assert_eq!(parse_list(&bytes), Some(vec![item(1, 0, 5), item(2, 64, 0), item(1, 8, 7)]));
        assert_eq!(parse_list(&[0, 0, 0, 0, 1, 0, 0, 0].repeat(3)), None);
    }

    #[test]
    fn a_completion_has_index_and_status_in_front() {
        let completion = Completion { status: 0x8687, cookie: 3, done: 4, former: 5 };
        assert_eq!(completion.front(u32::MAX), [0, 0, 0, 0, 0x87, 0x86, 0, 0]);
        assert_eq!((completion.rest()[0], completion.rest()[8], completion.rest()[16]), (3, 4, 5));
    }
}
