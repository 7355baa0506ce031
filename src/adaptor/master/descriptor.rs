//! What a command looks like in guest memory: the descriptor and the pages of its run list.
//!
//! Invariant: every byte comes from memory that the guest may be writing to at this moment, so it is
//! looked at once, in our own copy, and nothing of it is believed before it was checked.

use super::command::CommandStatus;
use super::window::{Export, GRAIN, Rights, WindowTable};
use crate::adaptor::address::{NodeSet, Space};
use crate::adaptor::dma::{self, Key, LocalRights, QueueShape};
use crate::adaptor::inventory::Name;
use crate::adaptor::memory::{Home, Segment};
use crate::adaptor::messages::Coalescing;
use crate::adaptor::runs::{Run, Runs};
use core::time::Duration;

/// The size, and the alignment, of a command descriptor in bytes.
pub const DESCRIPTOR_SIZE: usize = 128;
/// The first 32 bits of a descriptor: "ARDC".
pub const DESCRIPTOR_MAGIC: u32 = 0x4344_5241;
/// The size of a list page in bytes.
pub const LIST_PAGE_SIZE: usize = 4096;
/// How many runs a list page holds.
pub const RUNS_PER_PAGE: usize = 255;
/// Where the rights stand, and these flags above them.
const FLAGS: usize = 0x20;
/// The list has addresses of the guest's bus, on which other devices may answer.
const FLAG_BUS: u32 = 1 << 2;
/// The window is in the I/O space.
const FLAG_IO: u32 = 1 << 3;
/// The window may lie beyond the size of the access space's windows.
const FLAG_FAR: u32 = 1 << 5;
/// Where the window's name stands.
const NAME: usize = 0x60;
/// Where the reference to the next list page stands in a list page.
const NEXT_PAGE: usize = 0xff0;
/// The fields of a descriptor that have to be 0: offset and length in bytes.
const ZERO_FIELDS: [(usize, usize); 2] = [(0x0c, 4), (0x30, 16)];
/// Those of a descriptor that is for the DMA engine.
const ENGINE_ZERO_FIELDS: [(usize, usize); 2] = [(0x0c, 4), (0x38, 8)];
/// Where domain and key stand.
const DOMAIN: usize = 0x30;
const KEY: usize = 0x34;

/// A descriptor of the right size, with the right magic number, cookie and opcode.
pub(super) struct Descriptor<'a>(&'a [u8]);

impl<'a> Descriptor<'a> {
    pub(super) fn check(
        bytes: &'a [u8],
        opcode: u32,
        cookie: u32,
        is_for_engine: bool,
    ) -> Result<Self, CommandStatus> {
        if bytes.len() != DESCRIPTOR_SIZE {
            return Err(CommandStatus::MemoryFault);
        }
        let descriptor = Self(bytes);
        if descriptor.u32_at(0x00) != DESCRIPTOR_MAGIC || descriptor.u32_at(0x04) != cookie {
            return Err(CommandStatus::NotShared);
        }
        let zero = |&(at, len): &(usize, usize)| bytes.iter().skip(at).take(len).all(|&byte| byte == 0);
        let zero_fields = if is_for_engine { &ENGINE_ZERO_FIELDS } else { &ZERO_FIELDS };
        if descriptor.u32_at(0x08) != opcode || !zero_fields.iter().all(zero) {
            return Err(CommandStatus::BadDescriptor);
        }
        Ok(descriptor)
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from_le_bytes(field(self.0, at))
    }

    pub(super) fn u64_at(&self, at: usize) -> u64 {
        u64::from_le_bytes(field(self.0, at))
    }

    /// In which space the window is that the descriptor is about.
    pub(super) fn space(&self) -> Space {
        if self.u32_at(FLAGS) & FLAG_IO != 0 { Space::Io } else { Space::Memory }
    }

    /// Whether the addresses in the descriptor's list are those of the guest's bus, rather than of its memory.
    const fn home(flags: u32) -> Home {
        if flags & FLAG_BUS != 0 { Home::Bus } else { Home::Guest }
    }

    /// The export that the descriptor asks for, its runs still to be read.
    pub(super) fn listing(&self, windows: &WindowTable) -> Result<Listing, CommandStatus> {
        let offset = Some(self.u64_at(0x10)).filter(|&offset| offset != u64::MAX);
        let len = self.u64_at(0x18);
        let flags = self.u32_at(FLAGS);
        let rights =
            Rights::from_bits(flags & !(FLAG_BUS | FLAG_IO | FLAG_FAR)).ok_or(CommandStatus::BadArgument)?;
        let (missing, next) = self.list(len)?;
        let is_far = flags & FLAG_FAR != 0;
        if !windows.is_placeable(offset, len, is_far) || is_far && self.space() == Space::Io {
            return Err(CommandStatus::BadArgument);
        }
        if !windows.has_room() || missing > windows.free_runs() {
            return Err(CommandStatus::TooMany);
        }
        let nodes = NodeSet::from_words([0x40, 0x48, 0x50, 0x58].map(|at| self.u64_at(at)));
        let export = Export {
            offset,
            len,
            is_far,
            rights,
            nodes,
            home: Self::home(flags),
            name: Name(field(self.0, NAME)),
            runs: Vec::new(),
        };
        Ok(Listing { list: Purpose::Export(export, self.space()), runs: Runs::empty(), missing, next })
    }

    /// How many runs there are for `len` bytes, and where their list begins.
    fn list(&self, len: u64) -> Result<(usize, u64), CommandStatus> {
        let count = u64::from(self.u32_at(0x24));
        let next = self.u64_at(0x28);
        if next == 0 || !next.is_multiple_of(GRAIN) || !(1..=len / GRAIN).contains(&count) {
            return Err(CommandStatus::BadArgument);
        }
        Ok((usize::try_from(count).map_err(|_| CommandStatus::TooMany)?, next))
    }

    /// The memory that the descriptor wants to be registered, its runs still to be read.
    pub(super) fn registration(&self) -> Result<Listing, CommandStatus> {
        let len = self.u64_at(0x18);
        let rights = LocalRights::from_bits(self.u32_at(FLAGS)).ok_or(CommandStatus::BadArgument)?;
        let (missing, next) = self.list(len)?;
        if missing > dma::MAX_RUNS {
            return Err(CommandStatus::TooMany);
        }
        let list = Purpose::Register { len, rights, domain: self.u32_at(DOMAIN) };
        Ok(Listing { list, runs: Runs::empty(), missing, next })
    }

    /// The key that the descriptor is about.
    pub(super) fn key(&self) -> Key {
        Key(self.u32_at(KEY))
    }

    /// The queue that the descriptor asks for.
    pub(super) fn queue(&self) -> Result<QueueShape, CommandStatus> {
        let entries = Some(self.u32_at(0x24)).filter(|log2| (2..=12).contains(log2)).map(|log2| 1 << log2);
        Ok(QueueShape {
            domain: self.u32_at(DOMAIN),
            key: self.key(),
            submissions: self.u64_at(0x10),
            completions: self.u64_at(0x18),
            entries: entries.ok_or(CommandStatus::BadArgument)?,
            coalescing: Coalescing {
                count: self.u32_at(0x28),
                time: Duration::from_micros(self.u32_at(0x2c).into()),
            },
        })
    }
}

/// What a list of runs is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    /// A window in this space.
    Export(Export, Space),
    /// Registered memory.
    Register { len: u64, rights: LocalRights, domain: u32 },
}

/// A run list that is being read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Listing {
    pub(super) list: Purpose,
    /// Those that were read.
    pub(super) runs: Runs,
    /// Runs that are still to be read.
    pub(super) missing: usize,
    /// The page to read next; 0 at the end.
    pub(super) next: u64,
}

impl Listing {
    /// Whether the runs are in the guest's memory, rather than on its bus.
    fn is_memory(&self) -> bool {
        !matches!(&self.list, Purpose::Export(export, _) if export.home != Home::Guest)
    }

    /// Whether what is in the runs is to be written: by other nodes, or by the engine.
    pub(super) const fn writes(&self) -> bool {
        match &self.list {
            Purpose::Export(export, _) => export.rights.write || export.rights.atomic,
            Purpose::Register { rights, .. } => rights.write,
        }
    }

    /// Takes in the runs of a page, and returns the first and last byte of each that is in memory: an access to another
    /// device may have effects.
    pub(super) fn take_page(&mut self, page: &[u8]) -> Result<Vec<Segment>, CommandStatus> {
        if page.len() != LIST_PAGE_SIZE {
            return Err(CommandStatus::MemoryFault);
        }
        let count = self.missing.min(RUNS_PER_PAGE);
        let is_memory = self.is_memory();
        let mut touched = Vec::new();
        for entry in page.chunks_exact(16).take(count) {
            let (address, len) = (u64::from_le_bytes(field(entry, 0)), u64::from_le_bytes(field(entry, 8)));
            let run = Run { address, len };
            self.runs.push(run).ok_or(CommandStatus::BadArgument)?;
            let last = address.saturating_add(len.saturating_sub(1));
            if is_memory {
                touched.extend([address, last].map(|address| Segment { address, len: 1 }));
            }
        }
        self.missing = self.missing.saturating_sub(count);
        self.next = u64::from_le_bytes(field(page, NEXT_PAGE));
        let is_sound = (self.missing == 0) == (self.next == 0)
            && self.next.is_multiple_of(GRAIN)
            && u64::from_le_bytes(field(page, NEXT_PAGE.saturating_add(8))) == 0;
        if is_sound { Ok(touched) } else { Err(CommandStatus::BadArgument) }
    }
}

/// The bytes of a field; 0 where `bytes` is too short.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    for (to, &from) in out.iter_mut().zip(bytes.iter().skip(at)) {
        *to = from;
    }
    out
}
