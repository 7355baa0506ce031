//! The window table: which parts of this node's offset space stand for what, and who may reach them.
//!
//! Invariant: windows do not overlap, lie inside the node's window of the space, and the
//! runs of each add up to its length. What resolves is granted, byte by byte; all else has a code.

use crate::adaptor::address::{IO_OWN_SIZE, IO_WINDOW_SIZE, NodeId, NodeSet, OFFSET_BITS, Space};
use crate::adaptor::inventory::Name;
use crate::adaptor::memory::{DeviceId, Home, Segment};
use crate::adaptor::mesh::limits::LENT_BYTES;
pub use crate::adaptor::runs::GRAIN;
use crate::adaptor::runs::{Run, Runs};
use crate::adaptor::status::{Code, Direction};
use std::collections::BTreeMap;

/// The most windows that a node exports at a time.
pub const MAX_WINDOWS: usize = 256;
/// The most runs of memory in all windows together.
pub const MAX_RUNS: usize = 1 << 20;
/// The longest request in bytes, but for those that bring lent memory.
pub const MAX_REQUEST: u64 = 64 << 10;

/// What other nodes may do with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rights {
    /// Other nodes may load from it.
    pub read: bool,
    /// Other nodes may store into it.
    pub write: bool,
    /// Other nodes may do atomic operations on it.
    pub atomic: bool,
}

/// What a request does with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// It reads.
    Read,
    /// It writes.
    Write,
    /// It changes a number and brings back what it was.
    Atomic,
}

impl From<Direction> for Access {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Read => Self::Read,
            Direction::Write => Self::Write,
        }
    }
}

/// The bit of [`Rights::atomic`].
const ATOMIC: u32 = 1 << 4;

impl Rights {
    /// The rights with these bits (bit 0 read, bit 1 write, bit 4 atomic operations); `None` where none or an unknown bit is set.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits == 0 || bits & !(0b11 | ATOMIC) != 0 {
            return None;
        }
        Some(Self { read: bits & 1 != 0, write: bits & 2 != 0, atomic: bits & ATOMIC != 0 })
    }

    /// The inverse of [`Rights::from_bits`].
    pub const fn bits(self) -> u32 {
        self.read as u32 | (self.write as u32) << 1 | if self.atomic { ATOMIC } else { 0 }
    }

    /// Whether the access is granted.
    pub const fn grant(self, access: Access) -> bool {
        match access {
            Access::Read => self.read,
            Access::Write => self.write,
            Access::Atomic => self.atomic,
        }
    }
}

/// A window that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Export {
    /// Where it is to begin in the node's offset space; `None` lets the table choose.
    pub offset: Option<u64>,
    /// Its length in bytes.
    pub len: u64,
    /// It may lie beyond what loads and stores reach.
    pub is_far: bool,
    /// What is granted.
    pub rights: Rights,
    /// To which nodes it is granted.
    pub nodes: NodeSet,
    /// Whose addresses the runs are.
    pub home: Home,
    /// What it is called.
    pub name: Name,
    /// What is behind it, in order; their lengths add up to `len`.
    pub runs: Vec<Run>,
}

/// A window that is to be made for a device which the adaptor's process hosts. It stands for the device's first bytes, in their
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostedWindow {
    /// Which device.
    pub device: DeviceId,
    /// In which of the node's spaces it is.
    pub space: Space,
    /// Where it begins in that space, in bytes; `None` for the first gap that is large enough.
    pub offset: Option<u64>,
    /// Its length in bytes, a multiple of [`GRAIN`]; accesses beyond the device's own end are the device's to refuse.
    pub len: u64,
    /// What is granted.
    pub rights: Rights,
    /// To which nodes it is granted.
    pub nodes: NodeSet,
    /// What it is called.
    pub name: Name,
}

/// Why a window was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportError {
    /// Offset, length or a run is misaligned, zero or out of range, or the runs do not add up.
    BadArgument,
    /// It overlaps another window, or no gap is large enough.
    NoSpace,
    /// The table holds no more windows or runs.
    TooMany,
}

/// A window that other nodes may reach.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    len: u64,
    rights: Rights,
    nodes: NodeSet,
    home: Home,
    name: Name,
    runs: Runs,
}

impl Window {
    /// Its length in bytes.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes; never so for a window of a table.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What is granted.
    pub const fn rights(&self) -> Rights {
        self.rights
    }

    /// To which nodes it is granted.
    pub const fn nodes(&self) -> NodeSet {
        self.nodes
    }

    /// Whose addresses its runs are.
    pub const fn home(&self) -> Home {
        self.home
    }

    /// What it is called.
    pub const fn name(&self) -> Name {
        self.name
    }

    /// Of how many runs of addresses it consists; neighbouring ones count as one.
    pub fn run_count(&self) -> usize {
        self.runs.count()
    }
}

/// The windows that a node exports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WindowTable {
    windows: BTreeMap<u64, Window>,
    /// Runs in all windows together.
    runs: usize,
    /// How often windows were made or removed.
    changes: u32,
    /// Offsets below are the adaptor's own.
    low: u64,
    /// The size of the node's offset space.
    size: u64,
}

impl WindowTable {
    /// An empty table for an offset space of `size` bytes.
    pub const fn new(size: u64) -> Self {
        Self::above(0, size)
    }

    /// An empty table for an offset space of `size` bytes, of which the first `low` are the adaptor's own.
    pub const fn above(low: u64, size: u64) -> Self {
        Self { windows: BTreeMap::new(), runs: 0, changes: 0, low, size }
    }

    /// The empty table of a space, for a node whose window of the memory space has `window_size` bytes.
    pub const fn of(space: Space, window_size: u64) -> Self {
        match space {
            Space::Memory => Self::new(window_size),
            Space::Io => Self::above(IO_OWN_SIZE, IO_WINDOW_SIZE),
        }
    }

    /// The offsets, in bytes, that can be in a window.
    pub const fn offsets(&self) -> core::ops::Range<u64> {
        self.low..self.size
    }

    /// The size of the offset space in bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// How many more runs the table holds.
    pub fn free_runs(&self) -> usize {
        MAX_RUNS.saturating_sub(self.runs)
    }

    /// Whether the table holds one more window.
    pub fn has_room(&self) -> bool {
        self.windows.len() < MAX_WINDOWS
    }

    /// The windows with their offsets, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Window)> {
        self.windows.iter().map(|(&offset, window)| (offset, window))
    }

    /// Makes a window and returns its offset.
    ///
    /// # Errors
    /// Where it cannot be made; nothing has changed then.
    pub fn insert(&mut self, export: &Export) -> Result<u64, ExportError> {
        let runs = Runs::new(&export.runs, export.len).ok_or(ExportError::BadArgument)?;
        self.place(export, runs)
    }

    /// As [`Self::insert`], of these runs rather than those of the export.
    ///
    /// # Errors
    /// As [`Self::insert`].
    pub fn place(&mut self, export: &Export, runs: Runs) -> Result<u64, ExportError> {
        if !self.is_placeable(export.offset, export.len, export.is_far) || runs.len() != export.len {
            return Err(ExportError::BadArgument);
        }
        if !self.has_room() || runs.count() > self.free_runs() {
            return Err(ExportError::TooMany);
        }
        let offset = match export.offset {
            Some(offset) if self.is_free(offset, export.len) => offset,
            Some(_) => return Err(ExportError::NoSpace),
            None => self.first_gap(export.len, export.is_far).ok_or(ExportError::NoSpace)?,
        };
        self.runs = self.runs.saturating_add(runs.count());
        let Export { len, rights, nodes, home, name, .. } = *export;
        let window = Window { len, rights, nodes, home, name, runs };
        self.windows.insert(offset, window);
        self.changes = self.changes.wrapping_add(1);
        Ok(offset)
    }

    /// Makes a window for a hosted device, as [`Self::insert`].
    ///
    /// # Errors
    /// As there.
    pub fn host(&mut self, window: &HostedWindow) -> Result<u64, ExportError> {
        let HostedWindow { device, offset, len, rights, nodes, name, .. } = *window;
        let (home, runs) = (Home::Hosted(device), vec![Run { address: 0, len }]);
        self.insert(&Export { offset, len, is_far: false, rights, nodes, home, name, runs })
    }

    /// Removes the guest's window that begins at exactly this offset and returns it, if there is one.
    pub fn remove(&mut self, offset: u64) -> Option<Window> {
        self.windows.get(&offset).filter(|window| !matches!(window.home, Home::Hosted(_)))?;
        let window = self.windows.remove(&offset)?;
        self.changes = self.changes.wrapping_add(1);
        self.runs = self.runs.saturating_sub(window.runs.count());
        Some(window)
    }

    /// Removes every window of the guest; those of hosted devices stay.
    pub fn clear(&mut self) {
        self.changes = self.changes.wrapping_add(1);
        self.windows.retain(|_, window| matches!(window.home, Home::Hosted(_)));
        self.runs = self.windows.values().map(|window| window.runs.count()).sum();
    }

    /// Whether a window of this offset and length (bytes) can lie in the offset space, were it empty; if it `is_far`, in all that an
    /// offset can name.
    pub fn is_placeable(&self, offset: Option<u64>, len: u64, is_far: bool) -> bool {
        let size = if is_far { 1 << OFFSET_BITS } else { self.size };
        let offset = offset.unwrap_or(self.low);
        let end = offset.checked_add(len);
        len != 0
            && len.is_multiple_of(GRAIN)
            && offset.is_multiple_of(GRAIN)
            && offset >= self.low
            && end.is_some_and(|end| end <= size)
    }

    /// What is behind `len` bytes at `offset`, in order, if `source` may access all of them.
    ///
    /// A request may go over the border between two windows that touch; it is granted if it is in
    /// each of them. They have to be of one home.
    ///
    /// # Errors
    /// [`Code::BadSize`] for no bytes, more than [`LENT_BYTES`], or windows of several homes; [`Code::NoWindow`] if any byte
    /// lies in no window; else [`Code::AccessDenied`] if any byte's window does not grant it.
    pub fn resolve(
        &self,
        source: NodeId,
        access: impl Into<Access>,
        offset: u64,
        len: u64,
    ) -> Result<(Home, Vec<Segment>), Code> {
        let access = access.into();
        if len == 0 || len > LENT_BYTES {
            return Err(Code::BadSize);
        }
        let mut segments = Vec::new();
        let mut granted = true;
        let mut homes = None;
        let (mut at, mut left) = (offset, len);
        while left > 0 {
            let (begin, window) = self.windows.range(..=at).next_back().ok_or(Code::NoWindow)?;
            let start = at.wrapping_sub(*begin);
            let count = window.len.saturating_sub(start).min(left);
            if count == 0 {
                return Err(Code::NoWindow);
            }
            granted &= window.rights.grant(access) && window.nodes.contains(source);
            let (home, one) = homes.unwrap_or((window.home, true));
            homes = Some((home, one && home == window.home));
            window.runs.translate(start, count, &mut segments).ok_or(Code::TargetFault)?;
            left = left.saturating_sub(count);
            at = at.checked_add(count).ok_or(Code::NoWindow)?;
        }
        match homes {
            _ if !granted => Err(Code::AccessDenied),
            Some((home, true)) => Ok((home, segments)),
            _ => Err(Code::BadSize),
        }
    }

    /// Whether no window overlaps these bytes.
    fn is_free(&self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len);
        self.windows
            .range(..end)
            .next_back()
            .is_none_or(|(&begin, window)| begin.saturating_add(window.len) <= offset)
    }

    /// The lowest offset at which `len` bytes are free.
    fn first_gap(&self, len: u64, is_far: bool) -> Option<u64> {
        let mut candidate = self.low;
        for (&begin, window) in &self.windows {
            if begin.saturating_sub(candidate) >= len {
                break;
            }
            candidate = begin.saturating_add(window.len);
        }
        self.is_placeable(Some(candidate), len, is_far).then_some(candidate)
    }
}

/// The windows of both spaces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Windows {
    memory: WindowTable,
    io: WindowTable,
}

impl Windows {
    /// No windows; the node's window of the access space has `size` bytes.
    pub(super) const fn new(size: u64) -> Self {
        Self { memory: WindowTable::of(Space::Memory, size), io: WindowTable::of(Space::Io, size) }
    }

    pub(super) const fn get(&self, space: Space) -> &WindowTable {
        match space {
            Space::Memory => &self.memory,
            Space::Io => &self.io,
        }
    }

    pub(super) const fn get_mut(&mut self, space: Space) -> &mut WindowTable {
        match space {
            Space::Memory => &mut self.memory,
            Space::Io => &mut self.io,
        }
    }

    /// Differs after each change of a window.
    pub(super) const fn version(&self) -> u32 {
        self.memory.changes.wrapping_add(self.io.changes)
    }

    /// Removes every window of the guest.
    pub(super) fn clear(&mut self) {
        self.memory.clear();
        self.io.clear();
    }
}

#[cfg(test)]
mod tests;
