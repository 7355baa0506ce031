//! The registers of BAR0: one table that decodes accesses, and that the C header and
//! `docs/device.md` are tested against.
//!
//! Invariant: registers are in the order of their offsets and do not overlap (checked when this is
//! compiled), so each byte of BAR0 belongs to one register, table or pending bit, or to none.

use super::config_space::{BAR0_SIZE, MSIX_PENDING, MSIX_TABLE};
use super::msix::{Msix, TABLE_SIZE};
use crate::adaptor::address::NodeId;
use crate::adaptor::messages::{self, Doorbells};

/// Where the node table lies in BAR0.
pub const NODE_TABLE: u64 = 0x1000;
/// The size of a node's entry in bytes.
pub const NODE_ENTRY_SIZE: u64 = 16;
/// The size of the node table in bytes: an entry for each of the 256 node ids.
const NODE_TABLE_SIZE: u64 = 256 * NODE_ENTRY_SIZE;
/// Where the doorbell table lies in BAR0.
pub const DOORBELL_TABLE: u64 = 0x3000;
/// Where the doorbell table ends.
const DOORBELL_TABLE_END: u64 = DOORBELL_TABLE + messages::TABLE_SIZE as u64;
/// Where the MSI-X table ends.
const MSIX_TABLE_END: u64 = MSIX_TABLE + TABLE_SIZE as u64;
/// The size of the MSI-X pending bits in bytes.
const PENDING_SIZE: u64 = 8;

/// How a register may be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Writes are ignored.
    ReadOnly,
    /// Holds what is written; bytes that a write does not cover stay.
    ReadWrite,
    /// Writing 1 to a bit clears it; bytes that a write does not cover stay.
    WriteOneToClear,
    /// Reads as 0. A write has to cover the lowest byte; what it does not cover counts as 0.
    WriteOnly,
}

impl core::fmt::Display for Access {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::ReadOnly => "RO",
            Self::ReadWrite => "RW",
            Self::WriteOneToClear => "W1C",
            Self::WriteOnly => "WO",
        })
    }
}

/// What a register holds after a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtReset {
    /// This value.
    Value(u64),
    /// What the adaptor was configured with.
    Configured,
    /// A value that differs from the one before the reset.
    New,
    /// What firmware or the operating system gives it.
    Assigned,
}

/// A line of the register table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Which register.
    pub register: Register,
    /// Its name in the documentation and, after `ARDMA_REG_`, in the C header.
    pub name: &'static str,
    /// Its first byte in BAR0.
    pub offset: u64,
    /// Its size in bytes, 4 or 8.
    pub size: u64,
    /// How it may be accessed.
    pub access: Access,
    /// What it holds after a reset.
    pub at_reset: AtReset,
}

macro_rules! registers {
    ($($register:ident $name:literal at $offset:literal, $bits:literal bits, $access:ident, $at_reset:expr;)*) => {
        /// A register of BAR0; `docs/device.md` says what each means.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Register { $(#[doc = $name] $register,)* }

        /// The register table, in the order of offsets.
        pub const TABLE: &[Description] = &[$(Description {
            register: Register::$register,
            name: $name,
            offset: $offset,
            size: $bits / 8,
            access: Access::$access,
            at_reset: $at_reset,
        },)*];
    };
}

use AtReset::{Assigned, Configured, New, Value};

registers! {
    Magic "MAGIC" at 0x0000, 32 bits, ReadOnly, Value(0x4d44_5241);
    Version "VERSION" at 0x0004, 32 bits, ReadOnly, Value(0x0001_0002);
    Status "STATUS" at 0x0008, 32 bits, ReadOnly, Value(1);
    NodeId "NODE_ID" at 0x000c, 32 bits, ReadOnly, Configured;
    NodeCount "NODE_COUNT" at 0x0010, 32 bits, ReadOnly, Configured;
    AddressSplit "ADDRESS_SPLIT" at 0x0014, 32 bits, ReadOnly, Configured;
    Incarnation "INCARNATION" at 0x0018, 64 bits, ReadOnly, New;
    WindowSize "WINDOW_SIZE" at 0x0020, 64 bits, ReadOnly, Configured;
    Deadline "DEADLINE" at 0x0028, 32 bits, ReadOnly, Configured;
    Lease "LEASE" at 0x002c, 32 bits, ReadOnly, Configured;
    Event "EVENT" at 0x0030, 32 bits, WriteOneToClear, Value(0);
    EventEnable "EVENT_ENABLE" at 0x0034, 32 bits, ReadWrite, Value(0);
    Control "CONTROL" at 0x0038, 32 bits, WriteOnly, Value(0);
    CommandAddress "COMMAND_ADDRESS" at 0x0040, 64 bits, ReadWrite, Value(0);
    CommandCookie "COMMAND_COOKIE" at 0x0048, 32 bits, ReadWrite, Value(0);
    Command "COMMAND" at 0x004c, 32 bits, ReadWrite, Value(0);
    CommandStatus "COMMAND_STATUS" at 0x0050, 32 bits, ReadOnly, Value(0);
    CommandResult "COMMAND_RESULT" at 0x0058, 64 bits, ReadOnly, Value(0);
    OverflowAck "OVERFLOW_ACK" at 0x0060, 32 bits, WriteOnly, Value(0);
    ErrorCount "ERROR_COUNT" at 0x0064, 32 bits, ReadOnly, Value(0);
    UnknownPackets "UNKNOWN_PACKETS" at 0x0070, 64 bits, ReadOnly, Value(0);
    LateLeases "LATE_LEASES" at 0x0078, 64 bits, ReadOnly, Value(0);
    Stores "STORES" at 0x0080, 64 bits, ReadOnly, Value(0);
    Loads "LOADS" at 0x0088, 64 bits, ReadOnly, Value(0);
    Checks "CHECKS" at 0x0090, 64 bits, ReadOnly, Value(0);
    Errors "ERRORS" at 0x0098, 64 bits, ReadOnly, Value(0);
    ServedWrites "SERVED_WRITES" at 0x00a0, 64 bits, ReadOnly, Value(0);
    ServedReads "SERVED_READS" at 0x00a8, 64 bits, ReadOnly, Value(0);
    Refused "REFUSED" at 0x00b0, 64 bits, ReadOnly, Value(0);
    FailedOperations "FAILED_OPERATIONS" at 0x00b8, 64 bits, ReadOnly, Value(0);
    RegisterBase "REGISTER_BASE" at 0x00c0, 64 bits, ReadOnly, Assigned;
    RegisterExtent "REGISTER_EXTENT" at 0x00c8, 64 bits, ReadOnly, Value(0x1_0000);
    IoBase "IO_BASE" at 0x00d0, 64 bits, ReadOnly, Assigned;
    IoExtent "IO_EXTENT" at 0x00d8, 64 bits, ReadOnly, Configured;
    AccessBase "ACCESS_BASE" at 0x00e0, 64 bits, ReadOnly, Assigned;
    AccessExtent "ACCESS_EXTENT" at 0x00e8, 64 bits, ReadOnly, Configured;
    AssuranceBase "ASSURANCE_BASE" at 0x00f0, 64 bits, ReadOnly, Assigned;
    AssuranceExtent "ASSURANCE_EXTENT" at 0x00f8, 64 bits, ReadOnly, Configured;
    IoWindowSize "IO_WINDOW_SIZE" at 0x0100, 64 bits, ReadOnly, Value(0x1_0000);
    RangeStart "RANGE_START" at 0x0108, 64 bits, ReadWrite, Value(0);
    RangeEnd "RANGE_END" at 0x0110, 64 bits, ReadWrite, Value(0);
    RangeStatus "RANGE_STATUS" at 0x0118, 32 bits, ReadOnly, Value(0xffff_ffff);
    RangeSpace "RANGE_SPACE" at 0x011c, 32 bits, ReadWrite, Value(0);
    FailedBlock "FAILED_BLOCK" at 0x0120, 64 bits, ReadOnly, Value(0xffff_ffff_ffff_ffff);
    FailedPop "FAILED_POP" at 0x0128, 32 bits, WriteOnly, Value(0);
    FailedCount "FAILED_COUNT" at 0x0130, 32 bits, ReadOnly, Value(0);
    MessageInfo "MESSAGE_INFO" at 0x0180, 32 bits, ReadOnly, Value(0);
    MessageCount "MESSAGE_COUNT" at 0x0184, 32 bits, ReadOnly, Value(0);
    MessageData "MESSAGE_DATA" at 0x0188, 64 bits, ReadOnly, Value(0);
    MessagePop "MESSAGE_POP" at 0x0190, 32 bits, WriteOnly, Value(0);
    MessageNumber "MESSAGE_NUMBER" at 0x0194, 32 bits, ReadOnly, Value(0);
    MessageLimit "MESSAGE_LIMIT" at 0x0198, 32 bits, ReadOnly, Value(1024);
    MessageOverflows "MESSAGE_OVERFLOWS" at 0x019c, 32 bits, ReadOnly, Value(0);
    MessageCoalesceCount "MESSAGE_COALESCE_COUNT" at 0x01a0, 32 bits, ReadWrite, Value(0);
    MessageCoalesceTime "MESSAGE_COALESCE_TIME" at 0x01a4, 32 bits, ReadWrite, Value(0);
    MessagesReceived "MESSAGES_RECEIVED" at 0x01a8, 64 bits, ReadOnly, Value(0);
    EventVector "EVENT_VECTOR" at 0x01b0, 32 bits, ReadWrite, Value(0);
    QueueVector "QUEUE_VECTOR" at 0x01b4, 32 bits, ReadWrite, Value(0);
    QueueReady "QUEUE_READY" at 0x01b8, 32 bits, ReadOnly, Value(0xffff_ffff);
    InventorySelect "INVENTORY_SELECT" at 0x01c0, 32 bits, ReadWrite, Value(0);
    InventoryCount "INVENTORY_COUNT" at 0x01c4, 32 bits, ReadOnly, Value(0);
    InventoryVersion "INVENTORY_VERSION" at 0x01c8, 32 bits, ReadOnly, Value(0);
    Session "SESSION" at 0x01d0, 32 bits, ReadWrite, Value(0);
    InventoryKind "INVENTORY_KIND" at 0x0200, 32 bits, ReadOnly, Value(0);
    InventoryRights "INVENTORY_RIGHTS" at 0x0204, 32 bits, ReadOnly, Value(0);
    InventoryOffset "INVENTORY_OFFSET" at 0x0208, 64 bits, ReadOnly, Value(0);
    InventoryLength "INVENTORY_LENGTH" at 0x0210, 64 bits, ReadOnly, Value(0);
    InventoryName0 "INVENTORY_NAME_0" at 0x0218, 64 bits, ReadOnly, Value(0);
    InventoryName1 "INVENTORY_NAME_1" at 0x0220, 64 bits, ReadOnly, Value(0);
    InventoryName2 "INVENTORY_NAME_2" at 0x0228, 64 bits, ReadOnly, Value(0);
}

/// The offset behind the last register, after a check of order, overlap and alignment.
#[allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::panic)] // only at compile time
const END: u64 = {
    let (mut end, mut line) = (0, 0);
    while line < TABLE.len() {
        let Description { offset, size, .. } = TABLE[line];
        assert!(offset >= end && (size == 4 || size == 8) && offset % size == 0);
        (end, line) = (offset + size, line + 1);
    }
    end
};
const _: () = assert!(END <= NODE_TABLE && NODE_TABLE + NODE_TABLE_SIZE <= DOORBELL_TABLE);
const _: () = assert!(DOORBELL_TABLE_END <= MSIX_TABLE);
const _: () = assert!(MSIX_TABLE_END <= MSIX_PENDING);
const _: () = assert!(MSIX_PENDING + PENDING_SIZE <= BAR0_SIZE);

impl Description {
    /// The line of the table in which the byte at `offset` lies.
    fn at(offset: u64) -> Option<&'static Self> {
        let after = TABLE.partition_point(|line| line.offset <= offset);
        let line = TABLE.get(after.checked_sub(1)?)?;
        (offset.wrapping_sub(line.offset) < line.size).then_some(line)
    }
}

/// Whether an access of `len` bytes at `offset` touches a byte of the register.
pub fn touches(register: Register, offset: u64, len: usize) -> bool {
    let end = offset.saturating_add(len as u64);
    let line = TABLE.iter().find(|line| line.register == register);
    line.is_some_and(|line| offset < line.offset.saturating_add(line.size) && line.offset < end)
}

/// Whether an access of `len` bytes at `offset` covers the register's lowest byte.
pub fn covers_lowest(register: Register, offset: u64, len: usize) -> bool {
    let line = TABLE.iter().find(|line| line.register == register);
    let before = line.and_then(|line| line.offset.checked_sub(offset));
    before.is_some_and(|before| before < len as u64)
}

/// What the node table says of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeEntry {
    /// Bit 0 configured, bit 1 link up, bit 2 errors overflowed, bit 3 the node itself, bit 4 the round trip is too long for leases, bit 5
    /// another deadline or lease.
    pub state: u32,
    /// How often the link went up or down.
    pub changes: u32,
    /// The node's incarnation, 0 where none was seen.
    pub incarnation: u64,
}

impl NodeEntry {
    fn bits(self) -> u128 {
        u128::from(self.incarnation) << 64 | u128::from(self.changes) << 32 | u128::from(self.state)
    }
}

/// Fills `out` with the bytes of BAR0 from `offset` on.
///
/// `register` and `node` say what registers and node table hold; each is asked once for what the
/// access touches, so that a value is not torn within one access. Bytes that belong to nothing
/// read as 0, those beyond the BAR as all-ones.
pub fn read(
    offset: u64,
    out: &mut [u8],
    register: impl Fn(Register) -> u64,
    node: impl Fn(NodeId) -> NodeEntry,
    doorbells: &Doorbells,
    msix: &Msix,
) {
    let mut at = Some(offset);
    let mut rest = out;
    while !rest.is_empty() {
        let Some(here) = at.filter(|&here| here < BAR0_SIZE) else {
            rest.fill(0xff);
            return;
        };
        // A unit is what is read at once: its first byte's offset, its size and its value.
        let (start, size, value) = if let Some(line) = Description::at(here) {
            let value = if line.access == Access::WriteOnly { 0 } else { register(line.register) };
            (line.offset, line.size, u128::from(value))
        } else if let Some(index) = within(here, NODE_TABLE, NODE_TABLE_SIZE) {
            let entry = index / NODE_ENTRY_SIZE;
            let value = u8::try_from(entry).map_or(0, |id| node(NodeId(id)).bits());
            (here.wrapping_sub(index % NODE_ENTRY_SIZE), NODE_ENTRY_SIZE, value)
        } else if let Some(index) = within(here, DOORBELL_TABLE, messages::TABLE_SIZE as u64) {
            (here, 1, u128::from(doorbells.byte(usize::try_from(index).unwrap_or(usize::MAX))))
        } else if let Some(index) = within(here, MSIX_TABLE, TABLE_SIZE as u64) {
            (here, 1, u128::from(msix.table_byte(usize::try_from(index).unwrap_or(usize::MAX))))
        } else if within(here, MSIX_PENDING, PENDING_SIZE).is_some() {
            (MSIX_PENDING, PENDING_SIZE, u128::from(msix.pending()))
        } else {
            (here, 1, 0)
        };
        let skipped = usize::try_from(here.wrapping_sub(start)).unwrap_or(usize::MAX);
        let size = usize::try_from(size).unwrap_or(0);
        let count = size.saturating_sub(skipped).min(rest.len());
        let bytes = value.to_le_bytes();
        let (filled, remaining) = rest.split_at_mut(count);
        for (to, &from) in filled.iter_mut().zip(bytes.iter().skip(skipped)) {
            *to = from;
        }
        rest = remaining;
        at = here.checked_add(count as u64);
    }
}

/// A register and what a write means for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterWrite {
    /// Which register.
    pub register: Register,
    /// [`Access::ReadWrite`]: its whole new value. [`Access::WriteOneToClear`]: the bits to clear.
    /// [`Access::WriteOnly`]: what was written.
    pub value: u64,
}

/// Takes apart a write of any length at any offset: at most one entry for each register, in the
/// order of their offsets. Bytes of the doorbell table go to `doorbells`, those of the MSI-X table to `msix`; all else is
/// ignored.
///
/// `register` says what a register holds now, for the bytes that the write leaves.
pub fn write(
    offset: u64,
    data: &[u8],
    register: impl Fn(Register) -> u64,
    doorbells: &mut Doorbells,
    msix: &mut Msix,
) -> Vec<RegisterWrite> {
    let written = |at: u64| data.get(usize::try_from(at.checked_sub(offset)?).ok()?).copied();
    let end = offset.saturating_add(data.len() as u64);
    for at in offset.max(MSIX_TABLE)..end.min(MSIX_TABLE_END) {
        if let (Some(value), Ok(index)) = (written(at), usize::try_from(at.wrapping_sub(MSIX_TABLE))) {
            msix.set_table_byte(index, value);
        }
    }
    for at in offset.max(DOORBELL_TABLE)..end.min(DOORBELL_TABLE_END) {
        if let (Some(value), Ok(index)) = (written(at), usize::try_from(at.wrapping_sub(DOORBELL_TABLE))) {
            doorbells.set_byte(index, value);
        }
    }
    let first = TABLE.partition_point(|line| line.offset.saturating_add(line.size) <= offset);
    let touched = TABLE.iter().skip(first).take_while(|line| line.offset < end);
    touched
        .filter_map(|line| {
            let before = match line.access {
                Access::ReadOnly => return None,
                Access::ReadWrite => register(line.register),
                Access::WriteOneToClear => 0,
                Access::WriteOnly => {
                    written(line.offset)?;
                    0
                }
            };
            let mut bytes = [0; 8];
            let lanes = line.offset..line.offset.saturating_add(line.size);
            for ((byte, old), at) in bytes.iter_mut().zip(before.to_le_bytes()).zip(lanes) {
                *byte = written(at).unwrap_or(old);
            }
            Some(RegisterWrite { register: line.register, value: u64::from_le_bytes(bytes) })
        })
        .collect()
}

/// The index of `offset` in the `size` bytes from `start` on.
fn within(offset: u64, start: u64, size: u64) -> Option<u64> {
    offset.checked_sub(start).filter(|&index| index < size)
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A value in which every byte of every register differs from its neighbours.
    fn pattern(register: Register) -> u64 {
        0x8877_6655_4433_2211u64.wrapping_add(0x0101_0101_0101_0101 * (register as u64))
    }

    fn entry(node: NodeId) -> NodeEntry {
        NodeEntry { state: 0x10 + u32::from(node.0), changes: 7, incarnation: 0xaaaa_bbbb_cccc_dddd }
    }

    fn bar(offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0xa5; len];
        read(offset, &mut out, pattern, entry, &Doorbells::default(), &Msix::new());
        out
    }

    /// BAR0 as a flat array, built from the table in the plainest way.
    fn flat() -> Vec<u8> {
        let mut bytes = vec![0; BAR0_SIZE as usize];
        for line in TABLE.iter().filter(|line| line.access != Access::WriteOnly) {
            let value = pattern(line.register).to_le_bytes();
            for lane in 0..line.size as usize {
                bytes[line.offset as usize + lane] = value[lane];
            }
        }
        for node in 0..=255u8 {
            let at = 0x1000 + 16 * usize::from(node);
            bytes[at..at + 4].copy_from_slice(&(0x10 + u32::from(node)).to_le_bytes());
            bytes[at + 4] = 7;
            bytes[at + 8..at + 16].copy_from_slice(&0xaaaa_bbbb_cccc_ddddu64.to_le_bytes());
        }
        for vector in 0..16 {
            bytes[0x8000 + 16 * vector + 12] = 1;
        }
        bytes
    }

    fn writes(offset: u64, data: &[u8]) -> Vec<(Register, u64)> {
        let list = write(offset, data, pattern, &mut Doorbells::default(), &mut Msix::new());
        list.into_iter().map(|write| (write.register, write.value)).collect()
    }

    #[test]
    fn holes_read_as_zero_and_beyond_the_bar_is_all_ones() {
        assert_eq!(bar(0x3c, 4), [0; 4]);
        assert_eq!(bar(0xffff, 3), [0, 0xff, 0xff]);
        assert_eq!(bar(u64::MAX, 2), [0xff, 0xff]);
        assert_eq!(bar(BAR0_SIZE, 0), [0; 0]);
    }

    #[test]
    fn write_only_registers_read_as_zero() {
        assert_eq!(bar(0x38, 4), [0; 4]);
        assert_eq!(bar(0x60, 4), [0; 4]);
    }

    #[test]
    fn an_access_asks_for_each_register_once() {
        let asked = core::cell::Cell::new(0);
        let count = |_| {
            asked.set(asked.get() + 1);
            0
        };
        read(0x18, &mut [0; 16], count, entry, &Doorbells::default(), &Msix::new());
        assert_eq!(asked.get(), 2);
    }

    #[test]
    fn pending_bits_are_read_in_their_place() {
        let mut msix = Msix::new();
        msix.raise(9);
        let mut out = [0xa5; 8];
        read(MSIX_PENDING, &mut out, pattern, entry, &Doorbells::default(), &msix);
        assert_eq!(out, [0, 2, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_partial_write_keeps_the_other_bytes() {
        let before = pattern(Register::CommandAddress);
        assert_eq!(
            writes(0x44, &[1, 2]),
            [(Register::CommandAddress, before & !0xffff_0000_0000 | 0x0201_0000_0000)]
        );
    }

    #[test]
    fn a_write_over_two_registers_is_two_writes_in_order() {
        let list = writes(0x48, &0x0000_0001_dead_beefu64.to_le_bytes());
        assert_eq!(list, [(Register::CommandCookie, 0xdead_beef), (Register::Command, 1)]);
    }

    #[test]
    fn a_32_bit_register_takes_no_bits_of_its_neighbour() {
        let zero = |_| 0;
        let list = write(0x4c, &[0xff; 8], zero, &mut Doorbells::default(), &mut Msix::new());
        assert_eq!(list, [RegisterWrite { register: Register::Command, value: 0xffff_ffff }]);
    }

    #[test]
    fn clearing_goes_by_byte_lanes() {
        assert_eq!(writes(0x31, &[0x0f]), [(Register::Event, 0x0f00)]);
        assert_eq!(writes(0x30, &[0, 0, 0, 0]), [(Register::Event, 0)]);
    }

    #[test]
    fn a_write_only_register_needs_its_lowest_byte() {
        assert_eq!(writes(0x61, &[1, 1, 1]), []);
        assert_eq!(writes(0x60, &[5]), [(Register::OverflowAck, 5)]);
        assert_eq!(writes(0x60, &[5, 1]), [(Register::OverflowAck, 0x105)]);
    }

    #[test]
    fn read_only_registers_holes_and_the_node_table_ignore_writes() {
        assert_eq!(writes(0x0000, &[0xff; 0x30]), []);
        assert_eq!(writes(0x003c, &[0xff; 4]), []);
        assert_eq!(writes(0x1000, &[0xff; 64]), []);
        assert_eq!(writes(u64::MAX, &[0xff; 64]), []);
    }

    #[test]
    fn the_msix_table_keeps_what_is_written() {
        let mut msix = Msix::new();
        let mut doorbells = Doorbells::default();
        assert_eq!(write(0x7ffe, &[1, 2, 3, 4], pattern, &mut doorbells, &mut msix), []);
        assert_eq!((msix.table_byte(0), msix.table_byte(1), msix.table_byte(2)), (3, 4, 0));
        write(0x80fe, &[5, 6, 7, 8], pattern, &mut doorbells, &mut msix);
        assert_eq!((msix.table_byte(254), msix.table_byte(255)), (5, 6));
        assert_eq!(doorbells, Doorbells::default());
    }

    #[test]
    fn the_doorbell_table_is_written_and_read_in_its_place() {
        let (mut doorbells, mut msix) = (Doorbells::default(), Msix::new());
        assert_eq!(write(0x3fbe, &[1, 2, 7, 8], pattern, &mut doorbells, &mut msix), []);
        let mut out = [0xa5; 6];
        read(0x3fbe, &mut out, pattern, entry, &doorbells, &msix);
        assert_eq!(out, [1, 2, 7, 0, 0, 0]);
        write(0x3fff, &[3, 4], pattern, &mut doorbells, &mut msix);
        read(0x3ffd, &mut out, pattern, entry, &doorbells, &msix);
        assert_eq!(out, [0, 0, 3, 0, 0, 0]);
        assert_eq!(msix, Msix::new());
    }

    #[test]
    fn one_write_over_the_whole_bar_is_bounded_by_the_table() {
        let writable = TABLE.iter().filter(|line| line.access != Access::ReadOnly).count();
        assert_eq!(writes(0, &vec![0xff; 1 << 17]).len(), writable);
    }

    proptest! {
        #[test]
        fn reads_are_slices_of_the_flat_bar(offset in prop_oneof![0u64..0x1f0, 0u64..0x1_0010], len in 0usize..100) {
            let flat = flat();
            let expected: Vec<u8> =
                (0..len).map(|index| flat.get(offset as usize + index).copied().unwrap_or(0xff)).collect();
            prop_assert_eq!(bar(offset, len), expected);
        }

        #[test]
        fn a_write_in_pieces_sums_up_to_the_whole(offset in 0u64..0x1f0, data in prop::collection::vec(any::<u8>(), 1..20)) {
            // Read-write registers end the same whether the bytes come at once or one by one.
            let mut whole: std::collections::BTreeMap<Register, u64> = Default::default();
            let mut pieces = whole.clone();
            let is_plain = |register| TABLE.iter().any(|l| l.register == register && l.access == Access::ReadWrite);
            for w in write(offset, &data, pattern, &mut Doorbells::default(), &mut Msix::new()) {
                whole.insert(w.register, w.value);
            }
            for (index, &byte) in data.iter().enumerate() {
                let now = pieces.clone();
                let held = |r| now.get(&r).copied().unwrap_or(pattern(r));
                for w in write(offset + index as u64, &[byte], held, &mut Doorbells::default(), &mut Msix::new()) {
                    pieces.insert(w.register, w.value);
                }
            }
            whole.retain(|&r, _| is_plain(r));
            pieces.retain(|&r, _| is_plain(r));
            prop_assert_eq!(whole, pieces);
        }

        #[test]
        fn no_access_panics(offset in any::<u64>(), data in prop::collection::vec(any::<u8>(), 0..64)) {
            bar(offset, data.len());
            writes(offset, &data);
        }
    }
}
