//! The responding side as a whole, against a memory that answers at once.

#![allow(clippy::arithmetic_side_effects)]

mod bus;
mod commands;
mod pages;
mod serving;

use super::*;
use crate::adaptor::address::{Location, NodeId};
use crate::adaptor::channel::Channel;
use crate::adaptor::memory::MemoryFault;

const WINDOW_SIZE: u64 = 256 << 20;
const COOKIE: u32 = 0xc001_d00d;
/// Where the tests put their descriptor and the first list page.
const DESCRIPTOR: u64 = 0x80;
const LIST: u64 = 0x1000;

/// Guest memory from address 0 on.
struct Memory {
    bytes: Vec<u8>,
    /// What every operation gives instead.
    fault: Option<MemoryFault>,
    /// Nothing of it may be written.
    is_read_only: bool,
    /// Operations executed so far.
    operations: usize,
}

impl Memory {
    fn new(size: usize) -> Self {
        Self { bytes: vec![0; size], fault: None, is_read_only: false, operations: 0 }
    }

    fn put(&mut self, address: u64, bytes: &[u8]) {
        let address = address as usize;
        self.bytes[address..address + bytes.len()].copy_from_slice(bytes);
    }

    fn execute(&mut self, operation: MemoryOperation) -> (OperationId, MemoryResult) {
        self.operations += 1;
        let (id, segments) = (operation.id(), operation.segments());
        if let Some(fault) = self.fault {
            return (id, Err(fault));
        }
        let size = self.bytes.len();
        if segments.iter().any(|s| s.address as u128 + s.len as u128 > size as u128) {
            return (id, Err(MemoryFault::Unmapped));
        }
        let places = segments.iter().flat_map(|s| s.address as usize..s.address as usize + s.len);
        match operation {
            MemoryOperation::Read { .. } | MemoryOperation::Descriptor { .. } => {
                (id, Ok(places.map(|place| self.bytes[place]).collect()))
            }
            MemoryOperation::Touch { write: true, .. } if self.is_read_only => {
                (id, Err(MemoryFault::ReadOnly))
            }
            MemoryOperation::Touch { .. } => (id, Ok(Bytes::new())),
            MemoryOperation::Write { ref data, .. } => {
                assert_eq!(segments.iter().map(|s| s.len).sum::<usize>(), data.len());
                places.zip(data).for_each(|(place, &byte)| self.bytes[place] = byte);
                (id, Ok(Bytes::new()))
            }
            MemoryOperation::Transfer { .. } => panic!("nothing is lent here"),
            MemoryOperation::Atomic { action, .. } => {
                let at = segments[0].address as usize;
                let former: [u8; 8] = self.bytes[at..at + 8].try_into().unwrap();
                let new = action.apply(u64::from_le_bytes(former));
                self.bytes[at..at + 8].copy_from_slice(&new.to_le_bytes());
                (id, Ok(Bytes::copy_from_slice(&former)))
            }
        }
    }

    /// Executes everything that `master` wants.
    fn serve(&mut self, master: &mut Master) {
        while let Some(operation) = master.poll_operation(|_, _| true) {
            let (id, result) = self.execute(operation);
            master.handle_done(id, result);
        }
        if master.poll_order().is_some() {
            master.finish_order(Ok(7));
        }
    }

    /// Lays down an EXPORT of one page at address 0x4000 to node 2, readable and writable.
    fn put_export(&mut self, offset: u64) {
        self.put_descriptor(1, offset);
        self.put(DESCRIPTOR + 0x18, &0x1000u64.to_le_bytes());
        self.put(DESCRIPTOR + 0x20, &3u32.to_le_bytes());
        self.put(DESCRIPTOR + 0x24, &1u32.to_le_bytes());
        self.put(DESCRIPTOR + 0x28, &LIST.to_le_bytes());
        self.put(DESCRIPTOR + 0x40, &(1u64 << 2).to_le_bytes());
        self.put(LIST, &0x4000u64.to_le_bytes());
        self.put(LIST + 8, &0x1000u64.to_le_bytes());
    }

    fn put_descriptor(&mut self, opcode: u32, offset: u64) {
        self.put(DESCRIPTOR, &[0; 128]);
        self.put(DESCRIPTOR, b"ARDC");
        self.put(DESCRIPTOR + 4, &COOKIE.to_le_bytes());
        self.put(DESCRIPTOR + 8, &opcode.to_le_bytes());
        self.put(DESCRIPTOR + 0x10, &offset.to_le_bytes());
    }

    /// Runs the command that lies at [`DESCRIPTOR`].
    fn command(&mut self, master: &mut Master, opcode: u32) -> (CommandStatus, u64) {
        master.start_command(opcode, DESCRIPTOR, COOKIE);
        self.serve(master);
        let finished = master.poll_finished().expect("the command has ended");
        assert_eq!(finished, Finished { status: master.command_status(), result: master.command_result() });
        assert_eq!(master.poll_finished(), None);
        (finished.status, finished.result)
    }
}

/// A master that exports a page at offset 0, memory 0x4000, to node 2.
fn exporting() -> (Master, Memory) {
    let (mut master, mut memory) = (Master::new(WINDOW_SIZE), Memory::new(1 << 20));
    memory.put_export(0);
    assert_eq!(memory.command(&mut master, 1), (CommandStatus::Ok, 0));
    (master, memory)
}

fn origin(node: u8) -> Origin {
    Origin { node: NodeId(node), channel: Channel::Small }
}

fn write(source: u8, ticket: u64, offset: u64, data: &'static [u8]) -> Inbound {
    let kind = RequestKind::Write(Bytes::from_static(data).into());
    Inbound { origin: origin(source), ticket, at: Location::memory(offset), kind }
}

fn read(source: u8, ticket: u64, offset: u64, len: u32) -> Inbound {
    Inbound { origin: origin(source), ticket, at: Location::memory(offset), kind: RequestKind::Read { len } }
}

fn answers(master: &mut Master) -> Vec<(u8, u64, Code)> {
    core::iter::from_fn(|| master.poll_answer()).map(|a| (a.origin.node.0, a.ticket, a.code)).collect()
}

fn id_of(operation: &MemoryOperation) -> OperationId {
    operation.id()
}
