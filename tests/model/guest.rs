//! What the guest's driver does at a node's start: it enables the function and exports a window.

use assured_rdma::adaptor::Region;
use assured_rdma::adaptor::address::BLOCK_SIZE;
use assured_rdma::adaptor::memory::Segment;

/// Where the exported window lies in the guest's memory.
pub const EXPORTED: u64 = 0x10_000;
/// Where the list of its runs of memory lies; the descriptor is at 0.
const LIST: u64 = 0x1000;
const COOKIE: [u8; 4] = 1u32.to_le_bytes();
const EXPORT_OPCODE: [u8; 4] = 1u32.to_le_bytes();

/// Stores that enable memory space and bus master, begin a session, and start the command.
pub const EXPORT: [(Region, u64, &[u8]); 4] = [
    (Region::Config, 4, &[6, 0]),
    (Region::Registers, 0x1d0, &1u32.to_le_bytes()),
    (Region::Registers, 0x48, &COOKIE),
    (Region::Registers, 0x4c, &EXPORT_OPCODE),
];

/// What stands in the guest's memory where the command is read, for a window of so many blocks.
pub fn command_memory(segment: &Segment, blocks: usize) -> Vec<u8> {
    let len = blocks as u64 * BLOCK_SIZE;
    let mut bytes = vec![0; segment.len];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    match segment.address {
        0 => {
            put(0x00, b"ARDC");
            put(0x04, &COOKIE);
            put(0x08, &EXPORT_OPCODE);
            put(0x18, &len.to_le_bytes());
            put(0x20, &0b11u32.to_le_bytes());
            put(0x24, &1u32.to_le_bytes());
            put(0x28, &LIST.to_le_bytes());
            put(0x40, &u64::MAX.to_le_bytes());
        }
        LIST => {
            put(0, &EXPORTED.to_le_bytes());
            put(8, &len.to_le_bytes());
        }
        // The window's first and last byte are touched.
        _ => {}
    }
    bytes
}
