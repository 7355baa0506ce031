//! The entries of the rings, as docs/device.md has them: pure bytes, and operations of which they are made.

use crate::error::Error;
use crate::place::{Place, Space};
use crate::registered::Part;
use crate::status::Status;

/// Bytes of a submission.
pub const SUBMISSION: usize = 64;
/// Bytes of a completion.
pub const COMPLETION: usize = 32;
/// Bytes of an entry of a scatter list.
pub const SCATTER: usize = 24;
/// Bytes that fit into a submission itself.
pub const INLINE: usize = 32;
/// The same for one with a message.
pub const INLINE_WITH_MESSAGE: usize = 16;

const FLAG_FENCE: u8 = 1 << 0;
const FLAG_INLINE: u8 = 1 << 1;
const FLAG_SCATTER: u8 = 1 << 2;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// Local memory to another node's.
    Write = 1,
    /// Another node's memory to local memory.
    Read = 2,
    /// A write, and then a message to a doorbell of that node.
    WriteMessage = 3,
    /// Adds to 8 bytes of another node's memory.
    FetchAdd = 4,
    /// Replaces 8 bytes of another node's memory if they have an expected value.
    CompareSwap = 5,
    /// Nothing; completes when everything before it has ended.
    Fence = 6,
}

/// The data of an operation.
#[derive(Clone, Debug)]
enum Data {
    None,
    Inline([u8; INLINE], usize),
    Part(Part),
    Scattered(Vec<Part>),
}

/// An operation to be posted to a [`Queue`](crate::Queue).
#[derive(Clone, Debug)]
pub struct Operation {
    opcode: Opcode,
    place: Place,
    data: Data,
    operands: [u64; 2],
    doorbell: u8,
    fenced: bool,
    cookie: u64,
}

impl Operation {
    fn new(opcode: Opcode, place: Place, data: Data) -> Self {
        Self { opcode, place, data, operands: [0; 2], doorbell: 0, fenced: false, cookie: 0 }
    }

    /// Writes registered memory to a place in another node's.
    pub fn write(from: Part, to: Place) -> Self {
        Self::new(Opcode::Write, to, Data::Part(from))
    }

    /// Writes up to 32 bytes that are taken now, and need no registered memory.
    ///
    /// # Errors
    /// [`Error::Outside`] where they are more.
    pub fn write_bytes(from: &[u8], to: Place) -> Result<Self, Error> {
        let mut bytes = [0; INLINE];
        let Some(room) = bytes.get_mut(..from.len()) else {
            return Err(Error::Outside { offset: 0, length: from.len() as u64, available: INLINE as u64 });
        };
        room.copy_from_slice(from);
        Ok(Self::new(Opcode::Write, to, Data::Inline(bytes, from.len())))
    }

    /// Writes several parts of registered memory, one behind the other, to one place.
    pub fn write_scattered(from: Vec<Part>, to: Place) -> Self {
        Self::new(Opcode::Write, to, Data::Scattered(from))
    }

    /// Reads a place in another node's memory into registered memory.
    pub fn read(from: Place, to: Part) -> Self {
        Self::new(Opcode::Read, from, Data::Part(to))
    }

    /// Reads one place into several parts of registered memory, one after the other.
    pub fn read_scattered(from: Place, to: Vec<Part>) -> Self {
        Self::new(Opcode::Read, from, Data::Scattered(to))
    }

    /// Adds to the aligned 8 bytes there, wrapping. [`Completion::former`](crate::Completion::former) is what they were.
    pub fn fetch_add(at: Place, value: u64) -> Self {
        Self { operands: [value, 0], ..Self::new(Opcode::FetchAdd, at, Data::None) }
    }

    /// Replaces the aligned 8 bytes there by `new`, if they are `expected`. Whether they were is told by
    /// [`Completion::former`](crate::Completion::former).
    pub fn compare_swap(at: Place, expected: u64, new: u64) -> Self {
        Self { operands: [new, expected], ..Self::new(Opcode::CompareSwap, at, Data::None) }
    }

    /// Completes when everything that was posted before it has ended.
    pub fn fence() -> Self {
        Self::new(Opcode::Fence, Place::memory(0, 0), Data::None)
    }

    /// After the write, and only if it succeeded, a message goes to a doorbell of the same node. Of operations that are no
    /// writes it changes nothing.
    #[must_use]
    pub fn with_message(mut self, doorbell: u8, message: u64) -> Self {
        if matches!(self.opcode, Opcode::Write | Opcode::WriteMessage) {
            self.opcode = Opcode::WriteMessage;
            (self.doorbell, self.operands) = (doorbell, [message, 0]);
        }
        self
    }

    /// A number that comes back with the completion.
    #[must_use]
    pub const fn cookie(mut self, cookie: u64) -> Self {
        self.cookie = cookie;
        self
    }

    /// It starts only when everything that was posted before it has ended.
    #[must_use]
    pub const fn fenced(mut self) -> Self {
        self.fenced = true;
        self
    }

    /// What it does.
    pub const fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// Where in another node's memory.
    pub const fn place(&self) -> Place {
        self.place
    }

    /// Bytes that it moves.
    pub fn length(&self) -> u64 {
        match &self.data {
            Data::None if self.opcode == Opcode::Fence => 0,
            Data::None => 8,
            Data::Inline(_, length) => *length as u64,
            Data::Part(part) => part.length(),
            Data::Scattered(parts) => parts.iter().fold(0, |sum, part| sum.saturating_add(part.length())),
        }
    }

    /// Whether it can be posted to a queue whose scatter lists have so many entries.
    pub(super) fn verify(&self, scatter: u32) -> Result<(), Error> {
        if self.place.space == Space::Io {
            return Err(Error::NotMemory { place: self.place });
        }
        let too_long = |length: usize, available: usize| {
            (length > available).then_some(Error::Outside {
                offset: 0,
                length: length as u64,
                available: available as u64,
            })
        };
        let problem = match &self.data {
            Data::Inline(_, length) if self.opcode == Opcode::WriteMessage => {
                too_long(*length, INLINE_WITH_MESSAGE)
            }
            Data::Scattered(parts) => too_long(parts.len(), scatter as usize),
            _ => None,
        };
        problem.map_or(Ok(()), Err)
    }

    /// The registered memory that it needs until it has ended.
    pub(super) fn take_parts(self) -> (Option<Part>, Vec<Part>) {
        match self.data {
            Data::Part(part) => (Some(part), Vec::new()),
            Data::Scattered(parts) => (None, parts),
            Data::None | Data::Inline(..) => (None, Vec::new()),
        }
    }

    /// The parts of a scatter list.
    pub(super) fn scattered(&self) -> Option<&[Part]> {
        match &self.data {
            Data::Scattered(parts) => Some(parts),
            _ => None,
        }
    }

    /// Its entry, as the `index`-th that is posted. A scatter list lies at `list` (key and offset).
    pub(super) fn encode(&self, index: u32, list: (u32, u64)) -> [u8; SUBMISSION] {
        let mut entry = [0; SUBMISSION];
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(room) = entry.get_mut(at..at.saturating_add(bytes.len())) {
                room.copy_from_slice(bytes);
            }
        };
        let mut flags = if self.fenced { FLAG_FENCE } else { 0 };
        put(0x10, &self.place.offset.to_le_bytes());
        put(0x18, &self.length().to_le_bytes());
        match &self.data {
            Data::None => {}
            Data::Inline(bytes, _) => {
                flags |= FLAG_INLINE;
                put(0x20, bytes);
            }
            Data::Part(part) => {
                put(0x20, &part.registered().key().to_le_bytes());
                put(0x28, &part.key_offset().to_le_bytes());
            }
            Data::Scattered(parts) => {
                flags |= FLAG_SCATTER;
                let (key, offset) = list;
                put(0x20, &key.to_le_bytes());
                put(0x24, &(u32::try_from(parts.len()).unwrap_or(u32::MAX)).to_le_bytes());
                put(0x28, &offset.to_le_bytes());
            }
        }
        let [first, second] = self.operands;
        // Behind inline data, which needs the operands' place where there is no message.
        if !matches!(self.data, Data::Inline(..)) || self.opcode == Opcode::WriteMessage {
            put(0x30, &first.to_le_bytes());
            put(0x38, &second.to_le_bytes());
        }
        put(0x08, &self.cookie.to_le_bytes());
        put(0x00, &index.wrapping_add(1).to_le_bytes());
        put(0x04, &[self.opcode as u8, flags, self.place.node, self.doorbell]);
        entry
    }
}

/// A scatter list's entry.
pub fn scatter_entry(part: &Part) -> [u8; SCATTER] {
    let mut entry = [0; SCATTER];
    let (key, rest) = entry.split_at_mut(8);
    let (offset, length) = rest.split_at_mut(8);
    key.copy_from_slice(&u64::from(part.registered().key()).to_le_bytes());
    offset.copy_from_slice(&part.key_offset().to_le_bytes());
    length.copy_from_slice(&part.length().to_le_bytes());
    entry
}

/// What a completion's bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub index: u32,
    pub status: Status,
    pub cookie: u64,
    pub bytes: u64,
    pub former: u64,
}

impl Ended {
    /// Reads the entry.
    pub fn decode(entry: &[u8; COMPLETION]) -> Self {
        let word = |at: usize| {
            let bytes = entry.get(at..at.saturating_add(4)).and_then(|bytes| bytes.try_into().ok());
            u32::from_le_bytes(bytes.unwrap_or_default())
        };
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at.saturating_add(4))) << 32;
        Self {
            index: word(0),
            status: Status::from_bits(word(4)),
            cookie: long(8),
            bytes: long(16),
            former: long(24),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::{Memory, PAGE};
    use crate::registered::Registered;

    fn hex(bytes: &[u8]) -> String {
        bytes
            .chunks(8)
            .map(|part| part.iter().map(|byte| format!("{byte:02x}")).collect())
            .collect::<Vec<String>>()
            .join(" ")
    }

    fn memory() -> Registered {
        Registered::pretend(0x0102_0304, Memory::new(PAGE).unwrap())
    }

    #[test]
    fn golden_write_and_read() {
        let part = memory().part(0x10, 0x20).unwrap();
        let write = Operation::write(part.clone(), Place::memory(2, 0x1000)).cookie(0x55).fenced();
        assert_eq!(
            hex(&write.encode(4, (0, 0))),
            "0500000001010200 5500000000000000 0010000000000000 2000000000000000 \
             0403020100000000 1000000000000000 0000000000000000 0000000000000000"
        );
        let read = Operation::read(Place::memory(3, 8), part);
        assert!(hex(&read.encode(u32::MAX, (0, 0))).starts_with("0000000002000300 "), "the index wraps");
    }

    #[test]
    fn golden_inline_message_and_atomics() {
        let place = Place::memory(2, 8);
        let bytes: Vec<u8> = (1..=32).collect();
        let inline = Operation::write_bytes(&bytes, place).unwrap();
        assert_eq!(
            hex(&inline.encode(0, (0, 0))),
            "0100000001020200 0000000000000000 0800000000000000 2000000000000000 \
             0102030405060708 090a0b0c0d0e0f10 1112131415161718 191a1b1c1d1e1f20"
        );
        assert!(Operation::write_bytes(&[0; 33], place).is_err());
        let message = Operation::write_bytes(b"ab", place).unwrap().with_message(7, 0x42);
        assert_eq!(
            hex(&message.encode(0, (0, 0))),
            "0100000003020207 0000000000000000 0800000000000000 0200000000000000 \
             6162000000000000 0000000000000000 4200000000000000 0000000000000000"
        );
        let swap = Operation::compare_swap(place, 3, 4);
        assert_eq!(
            hex(&swap.encode(0, (0, 0))),
            "0100000005000200 0000000000000000 0800000000000000 0800000000000000 \
             0000000000000000 0000000000000000 0400000000000000 0300000000000000"
        );
        assert_eq!(swap.length(), 8);
    }

    #[test]
    fn golden_scatter_list() {
        let memory = memory();
        let parts = vec![memory.part(0, 8).unwrap(), memory.part(0x100, 0x10).unwrap()];
        assert_eq!(hex(&scatter_entry(&parts[1])), "0403020100000000 0001000000000000 1000000000000000");
        let write = Operation::write_scattered(parts, Place::memory(2, 0));
        assert_eq!(write.length(), 24);
        assert_eq!(
            hex(&write.encode(0, (9, 0x800))),
            "0100000001040200 0000000000000000 0000000000000000 1800000000000000 \
             0900000002000000 0008000000000000 0000000000000000 0000000000000000"
        );
    }

    #[test]
    fn golden_completion() {
        let mut entry = [0; COMPLETION];
        for (at, byte) in entry.iter_mut().enumerate() {
            *byte = at as u8;
        }
        let ended = Ended::decode(&entry);
        let expected = Ended {
            index: 0x0302_0100,
            status: Status::from_bits(0x0706_0504),
            cookie: 0x0f0e_0d0c_0b0a_0908,
            bytes: 0x1716_1514_1312_1110,
            former: 0x1f1e_1d1c_1b1a_1918,
        };
        assert_eq!(ended, expected);
    }
}
