//! The kernel module's interface, number for number as `assured_rdma.h` has it.
//!
//! The tests hold structures, call numbers and constants against that header. Programs
//! seldom need this module: what is safe is offered by [`crate::Adaptor`]. It is public for
//! calls that the safe part does not offer, above all for tests of the module itself.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The version of the interface that this library speaks.
pub const VERSION: u32 = 3;

/// `ioctl` type byte of all calls.
const MAGIC: u32 = 0xe9;

/// Bit of an mmap offset that selects the I/O space, not memory.
pub const ADDRESS_IO: u64 = 1 << 56;
/// Bit of an mmap offset that selects the assurance space.
pub const ADDRESS_ASSURANCE: u64 = 1 << 57;
/// Bit of an mmap offset that, with [`ADDRESS_ASSURANCE`], selects its peek alias.
pub const ADDRESS_PEEK: u64 = 1 << 58;
/// Bit of an mmap offset that says that it is a queue's doorbell page, as the module gave it.
pub const ADDRESS_DOORBELL: u64 = 1 << 59;
/// Lowest bit of the node field of an mmap offset.
pub const ADDRESS_NODE_SHIFT: u32 = 48;

/// `Info::status`: the adaptor is ready.
pub const STATUS_READY: u32 = 1 << 0;
/// `Info::status`: the adaptor knows that it shares the guest's memory.
pub const STATUS_MEMORY_SHARED: u32 = 1 << 1;
/// `Info::status`: the adaptor knows that it does not share the guest's memory.
pub const STATUS_MEMORY_PRIVATE: u32 = 1 << 2;
/// `Info::status`: another adaptor has this node's id, so that this one is not let in.
pub const STATUS_DUPLICATE_ID: u32 = 1 << 3;
/// `Info::status`: some of the guest's memory is not shared with the adaptor, or not known to be.
pub const STATUS_MEMORY_PARTLY: u32 = 1 << 4;

/// `Info::memory`: the driver could not probe it.
pub const MEMORY_UNKNOWN: u32 = 0;
/// `Info::memory`: adaptor and guest see the same memory.
pub const MEMORY_SHARED: u32 = 1;
/// `Info::memory`: they do not; exports are refused.
pub const MEMORY_NOT_SHARED: u32 = 2;

/// Event: a node's state changed.
pub const EVENT_LINK: u32 = 1 << 0;
/// Event: the empty error log got an entry, or overflowed.
pub const EVENT_ERROR: u32 = 1 << 1;
/// Event: what is known about shared memory changed.
pub const EVENT_MEMORY: u32 = 1 << 3;
/// Event: a program acknowledged a node's log overflow.
pub const EVENT_ACK: u32 = 1 << 2;
/// Event: the adaptor was reset; windows and errors are lost.
pub const EVENT_RESET: u32 = 1 << 4;
/// Event: [`STATUS_DUPLICATE_ID`] changed.
pub const EVENT_DUPLICATE: u32 = 1 << 5;

/// Event: what a node exports changed; [`Inventory`] tells it.
pub const EVENT_INVENTORY: u32 = 1 << 6;
/// Event: blocks failed; [`Failed`] tells of them.
pub const EVENT_FAILED: u32 = 1 << 7;

/// `Node::state`: the node is configured in the adaptor.
pub const NODE_CONFIGURED: u32 = 1 << 0;
/// `Node::state`: the link to it works.
pub const NODE_LINK_UP: u32 = 1 << 1;
/// `Node::state`: errors of accesses to it were lost.
pub const NODE_OVERFLOWED: u32 = 1 << 2;
/// `Node::state`: it is this node.
pub const NODE_SELF: u32 = 1 << 3;

/// Right: other nodes may read.
pub const RIGHT_READ: u32 = 1 << 0;
/// Right: other nodes may write.
pub const RIGHT_WRITE: u32 = 1 << 1;
/// Right: other nodes may do atomics; not in the I/O space.
pub const RIGHT_ATOMIC: u32 = 1 << 4;
/// No right: the window may lie beyond the window size, where only DMA engines reach it.
pub const RIGHT_BEYOND: u32 = 1 << 5;

/// `Export::space`: memory.
pub const SPACE_MEMORY: u32 = 0;
/// `Export::space`: I/O, of which a node has 64 KiB; the first page is the adaptor's own.
pub const SPACE_IO: u32 = 1;

/// Bytes in a name, which has zeros behind its text; without text it is none.
pub const NAME_SIZE: usize = 24;

/// `Inventory::kind`: there is no such entry.
pub const KIND_NONE: u32 = 0;
/// `Inventory::kind`: the node itself.
pub const KIND_BUS: u32 = 1;
/// `Inventory::kind`: a window of its guest's memory.
pub const KIND_MEMORY: u32 = 2;
/// `Inventory::kind`: a window of other devices of its guest.
pub const KIND_BUS_WINDOW: u32 = 3;
/// `Inventory::kind`: a memory device that its adaptor hosts.
pub const KIND_MEMORY_DEVICE: u32 = 4;
/// `Inventory::kind`: an I/O device that its adaptor hosts.
pub const KIND_IO_DEVICE: u32 = 5;

/// `Export::offset`: the adaptor chooses.
pub const OFFSET_ANY: u64 = u64::MAX;

/// `Window::flags`: this open file exported it.
pub const WINDOW_MINE: u32 = 1 << 0;
/// `Window::flags`: a reset removed it, or the end of its function, and its owner has not noticed yet.
pub const WINDOW_LOST: u32 = 1 << 1;
/// `Window::flags`: its file is closed, but the adaptor did not let go of it.
pub const WINDOW_ORPHAN: u32 = 1 << 2;
/// `Window::flags`: it is in the I/O space.
pub const WINDOW_IO: u32 = 1 << 3;
/// `Window::flags`: it is of another PCI function.
pub const WINDOW_BAR: u32 = 1 << 4;
/// `Window::flags`: it is of registered memory.
pub const WINDOW_KEY: u32 = 1 << 5;

/// Which way the argument of a call goes, as `_IOC` counts it.
const NONE: u32 = 0;
const WRITE: u32 = 1;
const READ: u32 = 2;

const fn request(direction: u32, number: u32, size: usize) -> libc::Ioctl {
    (direction << 30 | (size as u32) << 16 | MAGIC << 8 | number) as libc::Ioctl
}

/// An argument of one of the module's calls; the type says which call.
///
/// # Safety
/// `REQUEST` is the call whose argument has exactly this layout, and every bit pattern is valid.
pub unsafe trait Argument {
    /// The call's number.
    const REQUEST: libc::Ioctl;
}

/// One field of a structure, for the comparison with the C header.
#[cfg(test)]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident = ($direction:expr, $number:literal) {
        $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
    })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            #[repr(C)]
            pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

            // SAFETY: the layout is the header's (a test compares them), and all fields are integers.
            unsafe impl Argument for $name {
                const REQUEST: libc::Ioctl = request($direction, $number, size_of::<Self>());
            }
        )*

        /// Every structure with the name of its call, its fields and the call's number.
        #[cfg(test)]
        pub(crate) fn layouts() -> Vec<(&'static str, Vec<Field>, libc::Ioctl, usize)> {
            vec![$((
                stringify!($name),
                vec![$(Field {
                    name: stringify!($field).to_owned(),
                    offset: std::mem::offset_of!($name, $field),
                    size: size_of::<$type>(),
                },)*],
                $name::REQUEST,
                size_of::<$name>(),
            ),)*]
        }
    };
}

pub mod engine;

arguments! {
    /// The adaptor and this node.
    Info = (READ, 0x00) {
        /// Version of the interface that the module speaks.
        abi_version: u32,
        /// Version of the device: major `[31:16]`, minor `[15:0]`.
        device_version: u32,
        /// `STATUS_*`.
        status: u32,
        /// `MEMORY_*`: what the driver's own probe gave.
        memory: u32,
        /// This node's id.
        node: u32,
        /// Windows in each space.
        node_count: u32,
        /// Log2 of the window size.
        window_bits: u32,
        /// Low bits of a node id that are a bus number.
        bus_bits: u32,
        /// Log2 of the block size.
        block_bits: u32,
        /// Blocks in the error log now.
        error_count: u32,
        /// Longest time that an access takes, in microseconds.
        deadline_us: u32,
        /// The part of it that is kept for the lease, in microseconds.
        lease_us: u32,
        /// Bytes in each node's window of the access space.
        window_size: u64,
        /// This life of the node: differs after each reset.
        incarnation: u64,
        /// Stores into the access and I/O spaces since the reset.
        stores: u64,
        /// Loads from the access and I/O spaces.
        loads: u64,
        /// Loads from the assurance spaces, peeks too.
        checks: u64,
        /// Transactions that did not end with OK.
        errors: u64,
        /// Other nodes' writes executed here.
        served_writes: u64,
        /// Other nodes' reads executed here.
        served_reads: u64,
        /// Other nodes' transactions refused here.
        refused: u64,
        /// How often each event happened since the driver took the adaptor, by bit number.
        event_counts: [u64; 8],
        /// Bytes in each node's window of the I/O space.
        io_window_size: u64,
        /// Other nodes' messages taken in since the reset.
        messages_received: u64,
        /// Other nodes' messages refused because there was no room.
        message_overflows: u64,
        /// In bits 63 to 32 of checks of 8 bytes; 0 where the adaptor has none.
        session: u32,
        /// 0.
        reserved: u32,
    }

    /// One node as this adaptor sees it.
    Node = (READ | WRITE, 0x01) {
        /// In: the node's id.
        node: u32,
        /// `NODE_*`.
        state: u32,
        /// How often the link went up or down.
        link_changes: u32,
        /// 0.
        reserved: u32,
        /// 0 where none was seen.
        incarnation: u64,
    }

    /// Makes a window of this process's memory.
    Export = (READ | WRITE, 0x02) {
        /// In: start of the memory.
        address: u64,
        /// In: bytes.
        length: u64,
        /// In: offset in this node's window or `OFFSET_ANY`; out: offset.
        offset: u64,
        /// In: `RIGHT_*`.
        rights: u32,
        /// In: `SPACE_*`.
        space: u32,
        /// In: who has the rights: bit `n % 64` of word `n / 64`.
        nodes: [u64; 4],
        /// In: by which these find it.
        name: [u8; NAME_SIZE],
    }

    /// Makes a window of what is behind a BAR of another PCI function.
    ExportBar = (READ | WRITE, 0x08) {
        /// In: the function's PCI domain.
        domain: u32,
        /// In: its bus `[15:8]`, device `[7:3]` and function `[2:0]`.
        function: u32,
        /// In: 0 to 5.
        bar: u32,
        /// In: `RIGHT_*`.
        rights: u32,
        /// In: where in the BAR it begins, in bytes.
        start: u64,
        /// In: bytes, or 0 for all from there on; out: bytes.
        length: u64,
        /// In: offset in this node's window or `OFFSET_ANY`; out: offset.
        offset: u64,
        /// In: `SPACE_*`.
        space: u32,
        /// 0.
        reserved: u32,
        /// In: who has the rights: bit `n % 64` of word `n / 64`.
        nodes: [u64; 4],
        /// In: by which these find it.
        name: [u8; NAME_SIZE],
    }

    /// Removes a window of this file.
    Unexport = (WRITE, 0x03) {
        /// In: as EXPORT gave it.
        offset: u64,
        /// In: as EXPORT took it.
        space: u32,
        /// 0.
        reserved: u32,
    }

    /// The windows of all files of this adaptor, one by one.
    Window = (READ | WRITE, 0x04) {
        /// In: 0, 1, ... in the order of export.
        index: u32,
        /// `RIGHT_*`.
        rights: u32,
        /// Offset in this node's window.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Who has the rights.
        nodes: [u64; 4],
        /// Process that made it; 0 where it is not visible from here.
        owner: u32,
        /// `WINDOW_*`.
        flags: u32,
    }

    /// What a node exports to this one, one by one.
    Inventory = (READ | WRITE, 0x09) {
        /// In: the node's id.
        node: u32,
        /// In: 0, 1, ...
        index: u32,
        /// Entries in all.
        count: u32,
        /// Version of the list.
        version: u32,
        /// `KIND_*`, or another.
        kind: u32,
        /// `RIGHT_*`.
        rights: u32,
        /// `SPACE_*`.
        space: u32,
        /// 0.
        reserved: u32,
        /// Where it begins in that node's window of the space.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Its name.
        name: [u8; NAME_SIZE],
    }

    /// This program knows that any earlier access to the node may have failed.
    OverflowAck = (WRITE, 0x05) {
        /// In: the node's id.
        node: u32,
        /// 0.
        reserved: u32,
    }

    /// Opens doorbells of this node; the call returns a file descriptor.
    Listen = (WRITE, 0x10) {
        /// In: which, bit n for doorbell n.
        doorbells: u64,
        /// In: who may ring: bit `n % 64` of word `n / 64`.
        nodes: [u64; 4],
        /// In: `LISTEN_*`.
        flags: u32,
        /// 0.
        reserved: u32,
    }

    /// Masks doorbells of a file of [`Listen`], or unmasks them.
    Mask = (WRITE, 0x11) {
        /// In: which, bit n for doorbell n.
        doorbells: u64,
        /// In: 1 to mask, 0 to unmask.
        masked: u32,
        /// 0.
        reserved: u32,
    }

    /// Events since this file was opened or last asked.
    Events = (READ, 0x06) {
        /// `EVENT_*`.
        events: u32,
        /// 0.
        reserved: u32,
    }

    /// Whether any access in a range failed.
    Range = (READ | WRITE, 0x20) {
        /// In: address of the first byte, as for mmap.
        first: u64,
        /// In: address of the last byte.
        last: u64,
        /// Out: a status word.
        status: u32,
        /// 0.
        reserved: u32,
    }

    /// The next block with errors that this file was not told of.
    Failed = (READ, 0x21) {
        /// The block's first byte, as for mmap.
        address: u64,
        /// What a check of it would answer.
        status: u32,
        /// 0.
        reserved: u32,
    }

    /// Where the adaptor's spaces lie on its bus; a base is 0 where the adaptor does not know.
    Spaces = (READ, 0x22) {
        /// Base of BAR0.
        register_base: u64,
        /// Bytes in it.
        register_extent: u64,
        /// Base of the remote I/O space.
        io_base: u64,
        /// Bytes in it.
        io_extent: u64,
        /// Base of the access space.
        access_base: u64,
        /// Bytes in it.
        access_extent: u64,
        /// Base of the assurance space.
        assurance_base: u64,
        /// Bytes in it.
        assurance_extent: u64,
    }
}

/// `Listen::flags`: the doorbells are masked from the beginning.
pub const LISTEN_MASKED: u32 = 1 << 0;

/// The number of doorbells of a node.
pub const DOORBELLS: u8 = 64;

/// A message, as a file of [`Listen`] gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Message {
    /// What it says; one of 4 bytes has zeros above.
    pub data: u64,
    /// Who sent it.
    pub node: u32,
    /// The doorbell that it rang.
    pub doorbell: u32,
    /// Its size in bytes, 4 or 8.
    pub size: u32,
    /// 0.
    pub reserved: u32,
}

impl Message {
    /// The message that the module wrote as these bytes.
    pub fn from_bytes(bytes: &[u8; size_of::<Self>()]) -> Self {
        // SAFETY: as many bytes as the structure has, all of whose fields are integers.
        unsafe { std::mem::transmute_copy(bytes) }
    }
}

/// Number of the call that resets the adaptor; it has no argument.
pub const RESET: libc::Ioctl = request(NONE, 0x07, 0);

/// Makes the call that belongs to the argument's type.
///
/// # Errors
/// The module's errno; the header says what it means in this call.
///
/// # Safety
/// For [`Export`] the described memory may from now on be written by other nodes at any time, until
/// the window is gone: it must not be reachable by Rust references then. The same holds for [`engine::Register`]
/// and the engine, and for the rings of [`engine::CreateQueue`]. Other calls have no condition.
pub unsafe fn call<T: Argument>(device: BorrowedFd<'_>, argument: &mut T) -> io::Result<()> {
    // SAFETY: the caller's contract.
    unsafe { call_number(device, argument) }.map(drop)
}

/// Opens doorbells: the file from which their messages are read.
///
/// # Errors
/// The module's errno; the header says what it means.
pub fn listen(device: BorrowedFd<'_>, mut argument: Listen) -> io::Result<OwnedFd> {
    // SAFETY: only EXPORT has a condition.
    let number = unsafe { call_number(device, &mut argument) }?;
    // SAFETY: the module has just made this descriptor for this call alone.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// As [`call`]; returns what the call did.
unsafe fn call_number<T: Argument>(device: BorrowedFd<'_>, argument: &mut T) -> io::Result<libc::c_int> {
    // SAFETY: the trait's contract: the call's argument has the layout of `T`, which lives through it.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), T::REQUEST, &raw mut *argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Resets the adaptor.
///
/// # Errors
/// The module's errno; `EPERM` without `CAP_SYS_ADMIN`.
pub fn reset(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the call takes no argument and touches no memory of this process.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), RESET) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
#[path = "abi_tests.rs"]
mod tests;
