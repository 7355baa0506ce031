//! What a driver does, over `vfio_user::Client` or another client of the same protocol.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use vfio_bindings::bindings::vfio;
use vfio_user::Client;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, VolatileMemory};
use vmm_sys_util::eventfd::EventFd;

use super::node::PATIENCE;

#[allow(dead_code)] // what others use of it
#[path = "../support/queue.rs"]
pub mod queue;

pub const REGISTERS: u32 = 0;
const IO: u32 = 1;
pub const ACCESS: u32 = 2;
pub const ASSURANCE: u32 = 4;
const CONFIG: u32 = 7;

const STATUS: u64 = 0x08;
const INCARNATION: u64 = 0x18;
const EVENT: u64 = 0x30;
const CONTROL: u64 = 0x38;
const INVENTORY_SELECT: u64 = 0x1c0;
const SESSION: u64 = 0x1d0;
const INVENTORY_NAME: u64 = 0x218;
const COMMAND_ADDRESS: u64 = 0x40;
const COMMAND_COOKIE: u64 = 0x48;
const COMMAND: u64 = 0x4c;
const COMMAND_STATUS: u64 = 0x50;
const COMMAND_RESULT: u64 = 0x58;
const MESSAGE_INFO: u64 = 0x180;
const MESSAGE_DATA: u64 = 0x188;
const MESSAGE_POP: u64 = 0x190;
const MESSAGE_NUMBER: u64 = 0x194;
const MESSAGE_COALESCE_COUNT: u64 = 0x1a0;
const MESSAGE_COALESCE_TIME: u64 = 0x1a4;
const NODE_TABLE: u64 = 0x1000;
const DOORBELL_TABLE: u64 = 0x3000;

/// The window size that nodes have by default.
pub const WINDOW: u64 = 256 << 20;
/// The size of a node's window of the I/O space.
const IO_WINDOW: u64 = 64 << 10;
/// The size of each part of the region for I/O, with 16 nodes.
const IO_PART: u64 = 16 * IO_WINDOW;
/// How much memory a guest has, from address 0, where nothing else is said.
pub const MEMORY: u64 = 16 << 20;
const DESCRIPTOR: u64 = 0x1000;
const LIST: u64 = 0x2000;

pub const READ: u32 = 1;
pub const WRITE: u32 = 2;
/// The address is one of the bus, where devices are.
pub const DEVICE: u32 = 4;

/// A message, as registers have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    pub source: u8,
    pub doorbell: u8,
    pub size: u8,
    pub data: u64,
}

/// What stands between a guest and its device.
pub trait Bus {
    /// Loads from a region of the device.
    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]);
    /// Stores into a region of the device.
    fn write(&mut self, region: u32, offset: u64, data: &[u8]);
    /// Shows the device memory of the guest.
    fn map(&mut self, address: u64, size: u64, file: &File);
}

impl Bus for Client {
    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) {
        self.region_read(region, offset, data).unwrap();
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        self.region_write(region, offset, data).unwrap();
    }

    fn map(&mut self, address: u64, size: u64, file: &File) {
        self.dma_map(0, address, size, std::os::fd::AsRawFd::as_raw_fd(file)).unwrap();
    }
}

impl<B> queue::Shared for Guest<B> {
    fn load(&self, at: u64, out: &mut [u8]) {
        self.memory.read_slice(out, GuestAddress(at)).unwrap();
    }

    fn store(&self, at: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(at)).unwrap();
    }
}

/// A guest with a driver: memory that it shares with the adaptor, and the device.
pub struct Guest<B = Client> {
    /// The way to the device.
    pub client: B,
    memory: GuestMemoryMmap,
    cookie: u32,
}

impl Guest {
    /// Attaches, maps memory and switches the function on.
    pub fn attach(socket: &Path) -> Self {
        Self::over(Client::new(socket).unwrap(), MEMORY)
    }

    /// Gives a vector an eventfd.
    pub fn connect(&mut self, vector: u32) -> EventFd {
        let event = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let flags = vfio::VFIO_IRQ_SET_DATA_EVENTFD | vfio::VFIO_IRQ_SET_ACTION_TRIGGER;
        let fd = std::os::fd::AsRawFd::as_raw_fd(&event);
        self.client.set_irqs(vfio::VFIO_PCI_MSIX_IRQ_INDEX, flags, vector, 1, &[fd]).unwrap();
        event
    }
}

impl<B: Bus> Guest<B> {
    /// A guest with so much memory, attached by `client`: maps the memory and switches the function on.
    pub fn over(client: B, memory: u64) -> Self {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("guest", flags).unwrap());
        file.set_len(memory).unwrap();
        // As QEMU does.
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        Self::in_file(client, memory, file)
    }

    /// As [`Self::over`], with its memory in this file.
    pub fn in_file(mut client: B, memory: u64, file: File) -> Self {
        client.map(0, memory, &file);
        let len = usize::try_from(memory).unwrap();
        let ranges = [(GuestAddress(0), len, Some(FileOffset::new(file, 0)))];
        let memory = GuestMemoryMmap::from_ranges_with_files(ranges).unwrap();
        let mut guest = Self { client, memory, cookie: 0x1234_5678 };
        // Memory space and bus master.
        guest.client.write(CONFIG, 4, &6u16.to_le_bytes());
        guest.begin_session();
        guest
    }

    /// What a driver does after each reset, so that the function answers in its spaces.
    pub fn begin_session(&mut self) {
        self.set_register(SESSION, 1, 4);
    }

    pub fn register(&mut self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.client.read(REGISTERS, offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn wide_register(&mut self, offset: u64) -> u64 {
        u64::from(self.register(offset)) | u64::from(self.register(offset + 4)) << 32
    }

    /// The incarnation of this guest's node.
    pub fn incarnation(&mut self) -> u64 {
        self.wide_register(INCARNATION)
    }

    fn set_register(&mut self, offset: u64, value: u64, len: usize) {
        self.client.write(REGISTERS, offset, &value.to_le_bytes()[..len]);
    }

    /// Resets the function by its register, and begins anew.
    pub fn reset(&mut self) {
        self.set_register(CONTROL, 1, 4);
        self.begin_session();
    }

    /// Whether another adaptor has this node's id, as the register says.
    pub fn is_duplicate(&mut self) -> bool {
        self.register(STATUS) >> 3 & 1 == 1
    }

    /// Waits until [`Self::is_duplicate`] is `duplicate`.
    pub fn wait_for_duplicate(&mut self, duplicate: bool) {
        let begin = Instant::now();
        while self.is_duplicate() != duplicate {
            assert!(begin.elapsed() < PATIENCE, "the bit is not {duplicate}");
        }
    }

    /// Waits until the other node is up in this life.
    pub fn wait_for_life(&mut self, node: u8, incarnation: u64) {
        let begin = Instant::now();
        let entry = NODE_TABLE + 16 * u64::from(node);
        while self.register(entry) & 2 == 0 || self.wide_register(entry + 8) != incarnation {
            assert!(begin.elapsed() < PATIENCE, "node {node} is not up as {incarnation:016x}");
        }
    }

    /// The events that happened, which are cleared.
    pub fn take_events(&mut self) -> u32 {
        let events = self.register(EVENT);
        self.set_register(EVENT, events.into(), 4);
        events
    }

    /// Waits until the other node is up, or down.
    pub fn wait_for_node(&mut self, node: u8, up: bool) {
        let begin = Instant::now();
        while (self.register(NODE_TABLE + 16 * u64::from(node)) >> 1 & 1 == 1) != up {
            assert!(begin.elapsed() < PATIENCE, "node {node} is not up: {up}");
        }
    }

    /// Waits until an entry of the node's inventory has this name.
    pub fn wait_for_name(&mut self, node: u8, index: u32, name: &str) {
        self.set_register(INVENTORY_SELECT, u64::from(index << 8 | u32::from(node)), 4);
        let begin = Instant::now();
        loop {
            let words = [0, 8, 16].map(|at| self.wide_register(INVENTORY_NAME + at).to_le_bytes());
            let text = String::from_utf8(words.concat()).unwrap();
            if text.trim_end_matches('\0') == name {
                return;
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "entry {index} of node {node} is called {text:?}, not {name}"
            );
        }
    }

    /// Exports `len` bytes of memory at `address` to every node; gives the offset in this node's window.
    pub fn export(&mut self, address: u64, len: u64, rights: u32) -> u64 {
        let (status, offset) = self.try_export(address, len, rights);
        assert_eq!(status, 0);
        offset
    }

    /// The same, with the command's status and its result.
    pub fn try_export(&mut self, address: u64, len: u64, rights: u32) -> (u32, u64) {
        self.write_list(address, len);
        let nodes = [0x40, 0x48, 0x50, 0x58].map(|at| (at, u64::MAX));
        let fields = [(0x10, u64::MAX), (0x18, len), (0x20, u64::from(rights) | 1 << 32), (0x28, LIST)];
        self.command(1, &[&fields[..], &nodes].concat())
    }

    /// What STATUS says of its memory: whether it is shared, that it is not, and that some is not.
    pub fn memory_status(&mut self) -> (bool, bool, bool) {
        let status = self.register(STATUS);
        (status >> 1 & 1 == 1, status >> 2 & 1 == 1, status >> 4 & 1 == 1)
    }

    /// Writes a list of one run for a command, at [`LIST`].
    fn write_list(&self, address: u64, len: u64) {
        let mut list = [0; 4096];
        list[..8].copy_from_slice(&address.to_le_bytes());
        list[8..16].copy_from_slice(&len.to_le_bytes());
        self.memory.write_slice(&list, GuestAddress(LIST)).unwrap();
    }

    /// Gives a command with these fields of 8 bytes in its descriptor, and returns its status and its result.
    pub fn command(&mut self, opcode: u32, fields: &[(usize, u64)]) -> (u32, u64) {
        self.cookie += 1;
        let mut descriptor = queue::descriptor(fields);
        for (at, word) in [(0, u32::from_le_bytes(*b"ARDC")), (4, self.cookie), (8, opcode)] {
            descriptor[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        self.memory.write_slice(&descriptor, GuestAddress(DESCRIPTOR)).unwrap();
        self.set_register(COMMAND_ADDRESS, DESCRIPTOR, 8);
        self.set_register(COMMAND_COOKIE, self.cookie.into(), 4);
        self.set_register(COMMAND, opcode.into(), 4);
        let begin = Instant::now();
        while self.register(COMMAND_STATUS) == 1 {
            assert!(begin.elapsed() < PATIENCE, "the command does not end");
        }
        (self.register(COMMAND_STATUS), self.wide_register(COMMAND_RESULT))
    }

    /// Writes a register of BAR0.
    pub fn write_register(&mut self, offset: u64, value: u32) {
        self.set_register(offset, value.into(), 4);
    }

    /// Registers `len` bytes of memory at `address` for the DMA engine.
    pub fn register_memory(&mut self, address: u64, len: u64, domain: u32) -> u32 {
        self.write_list(address, len);
        let fields = [(0x18, len), (0x20, 3 | 1 << 32), (0x28, LIST), (0x30, domain.into())];
        let (status, key) = self.command(4, &fields);
        assert_eq!(status, 0);
        u32::try_from(key).unwrap()
    }

    /// Makes a queue of `entries` whose submissions and completions are at these offsets of registered memory; gives its number.
    pub fn create_queue(
        &mut self,
        key: u32,
        domain: u32,
        (submissions, completions): (u64, u64),
        entries: u32,
    ) -> u32 {
        let fields = [
            (0x10, submissions),
            (0x18, completions),
            (0x20, u64::from(entries.ilog2()) << 32),
            (0x30, u64::from(key) << 32 | u64::from(domain)),
        ];
        let (status, number) = self.command(6, &fields);
        assert_eq!(status, 0);
        u32::try_from(number).unwrap()
    }

    /// Writes to a queue's doorbell page.
    pub fn ring_queue(&mut self, number: u32, offset: u64, value: u32) {
        let at = 3 * IO_PART + u64::from(number) * queue::PAGE + offset;
        self.client.write(IO, at, &value.to_le_bytes());
    }

    /// Stores of this guest's own CPU.
    pub fn set_memory(&self, address: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(address)).unwrap();
    }

    /// This guest's own CPU adds to a number, at once.
    pub fn add(&self, address: u64, value: u64) {
        let place = self.memory.get_slice(GuestAddress(address), 8).unwrap();
        place.get_atomic_ref::<AtomicU64>(0).unwrap().fetch_add(value, Ordering::SeqCst);
    }

    /// What this guest's own CPU sees, of any length.
    pub fn memory_of(&self, address: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.memory.read_slice(&mut data, GuestAddress(address)).unwrap();
        data
    }

    /// Places BAR0.
    pub fn place_registers(&mut self, address: u32) {
        self.client.write(CONFIG, 0x10, &address.to_le_bytes());
    }

    /// Stores into a node's window.
    pub fn store(&mut self, node: u8, offset: u64, data: &[u8]) {
        self.client.write(ACCESS, WINDOW * u64::from(node) + offset, data);
    }

    /// Loads from a node's window.
    pub fn load<const N: usize>(&mut self, node: u8, offset: u64) -> [u8; N] {
        let mut data = [0; N];
        self.client.read(ACCESS, WINDOW * u64::from(node) + offset, &mut data);
        data
    }

    /// Checks a block of a node's window.
    pub fn check(&mut self, node: u8, offset: u64) -> u32 {
        let mut word = [0; 4];
        self.client.read(ASSURANCE, WINDOW * u64::from(node) + offset, &mut word);
        u32::from_le_bytes(word)
    }

    /// Stores into a node's window of the I/O space.
    pub fn store_io(&mut self, node: u8, offset: u64, data: &[u8]) {
        self.client.write(IO, IO_WINDOW * u64::from(node) + offset, data);
    }

    /// Loads from a node's window of the I/O space.
    pub fn load_io<const N: usize>(&mut self, node: u8, offset: u64) -> [u8; N] {
        let mut data = [0; N];
        self.client.read(IO, IO_WINDOW * u64::from(node) + offset, &mut data);
        data
    }

    /// Checks a block of a node's window of the I/O space.
    pub fn check_io(&mut self, node: u8, offset: u64) -> u32 {
        let mut word = [0; 4];
        self.client.read(IO, IO_PART + IO_WINDOW * u64::from(node) + offset, &mut word);
        u32::from_le_bytes(word)
    }

    /// Opens a doorbell to every node, with a vector.
    pub fn open_doorbell(&mut self, doorbell: u8, vector: u32) {
        let entry = DOORBELL_TABLE + 64 * u64::from(doorbell);
        self.set_register(entry, vector.into(), 4);
        for word in 0..4 {
            self.set_register(entry + 0x20 + 8 * word, u64::MAX, 8);
        }
        // What was written is done when this is answered.
        self.register(entry);
    }

    /// Masks a doorbell with this vector.
    pub fn mask_doorbell(&mut self, doorbell: u8, vector: u32) {
        let entry = DOORBELL_TABLE + 64 * u64::from(doorbell);
        self.set_register(entry, u64::from(vector) | 1 << 31, 4);
        self.register(entry);
    }

    /// When vectors of messages are raised.
    pub fn coalesce(&mut self, count: u32, micros: u32) {
        self.set_register(MESSAGE_COALESCE_COUNT, count.into(), 4);
        self.set_register(MESSAGE_COALESCE_TIME, micros.into(), 4);
        self.register(MESSAGE_COALESCE_TIME);
    }

    /// Takes the oldest message out of the queue.
    pub fn take_message(&mut self) -> Option<Message> {
        let info = self.register(MESSAGE_INFO);
        if info >> 31 == 0 {
            return None;
        }
        let [source, doorbell, size, _] = info.to_le_bytes();
        let data = self.wide_register(MESSAGE_DATA);
        let number = self.register(MESSAGE_NUMBER);
        self.set_register(MESSAGE_POP, number.into(), 4);
        Some(Message { source, doorbell, size, data })
    }

    /// Stores a message of 8 bytes.
    pub fn ring(&mut self, node: u8, doorbell: u8, value: u64) {
        let offset = IO_WINDOW * u64::from(node) + 8 * u64::from(doorbell);
        self.client.write(IO, offset, &value.to_le_bytes());
    }

    /// Stores a message of 4 bytes.
    pub fn ring_short(&mut self, node: u8, doorbell: u8, value: u32) {
        let offset = IO_WINDOW * u64::from(node) + 8 * u64::from(doorbell);
        self.client.write(IO, offset, &value.to_le_bytes());
    }

    /// Loads a doorbell: the room there, and above it how many messages of this node it has taken.
    pub fn ask(&mut self, node: u8, doorbell: u8) -> u64 {
        let mut data = [0; 8];
        let offset = IO_WINDOW * u64::from(node) + 8 * u64::from(doorbell);
        self.client.read(IO, offset, &mut data);
        u64::from_le_bytes(data)
    }

    /// The write code of a node's doorbells.
    pub fn io_check(&mut self, node: u8) -> u8 {
        self.check_io(node, 0).to_le_bytes()[0]
    }

    /// What this guest's own CPU sees in its memory.
    pub fn memory<const N: usize>(&self, address: u64) -> [u8; N] {
        let mut data = [0; N];
        self.memory.read_slice(&mut data, GuestAddress(address)).unwrap();
        data
    }
}
