//! Guest memory as the client has mapped it for the device.
//!
//! Every mapping of the client is one range, by guest address; ranges never overlap. A range with a file is mapped into
//! this process too; one without is known but not reachable.

use super::buffers::Buffers;
use super::message::{DmaMap, DmaUnmap};
use super::sharing::{FileId, Sharing};
use crate::adaptor::memory::{AtomicAction, MemoryFault, MemoryOperation, MemoryResult, Segment};
use crate::mapped::{Attempt, Begin, Held, Mapping, Piece, copy, prepare};
use bytes::{Buf, Bytes};
use core::convert::identity;
use log::error;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use vfio_user::{DmaMapFlags, DmaUnmapFlags};
use vm_memory::FileOffset;

/// The most ranges that may be mapped at once. Linux lets a process have 65,530 mappings, and without any left there would be no
/// memory for this process itself.
pub const MAX_RANGES: usize = 32_768;
/// The size in bytes from which on a range without a file is taken for the guest's RAM.
const RAM_SIZE: u64 = 1 << 20;

/// With fewer files than this it is not worth while to look for those that are gone.
const FORGET_AT: usize = 32;

/// Why a range was not mapped or unmapped.
#[derive(Debug)]
pub enum MapError {
    /// The range is empty or goes beyond the end of the address space.
    Range,
    /// It overlaps a range that is mapped already.
    Overlap,
    /// As many ranges are mapped as were agreed on.
    TooMany,
    /// The descriptor is not that of a regular file.
    NotAFile,
    /// The file ends before the range does.
    FileTooShort {
        /// Where in the file the range ends, in bytes.
        needed: u64,
        /// The file's size in bytes.
        size: u64,
    },
    /// The range would have to be unmapped in part only.
    Cut,
    /// The file can't be mapped.
    Map(io::Error),
}

impl MapError {
    /// The errno for the client.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Overlap => libc::EEXIST,
            Self::TooMany => libc::ENOSPC,
            Self::Map(error) => error.raw_os_error().unwrap_or(libc::EINVAL),
            Self::Range | Self::NotAFile | Self::FileTooShort { .. } | Self::Cut => libc::EINVAL,
        }
    }
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range => f.write_str("the range is empty or wraps around"),
            Self::Overlap => f.write_str("the range overlaps one that is mapped already"),
            Self::TooMany => f.write_str("as many ranges are mapped as were agreed on"),
            Self::NotAFile => f.write_str("the descriptor is not that of a file that can be mapped"),
            Self::FileTooShort { needed, size } => {
                write!(f, "the range ends at {needed:#x} in a file of {size:#x} bytes")
            }
            Self::Cut => f.write_str("only a part of a mapped range would be unmapped"),
            Self::Map(error) => write!(f, "the file can't be mapped: {error}"),
        }
    }
}

impl std::error::Error for MapError {}

impl From<io::Error> for MapError {
    fn from(error: io::Error) -> Self {
        Self::Map(error)
    }
}

/// What a range's bytes are in.
#[derive(Debug)]
enum Backing {
    /// The client gave no file.
    Unreachable,
    /// The file's bytes are not those that the guest sees.
    Private { _file: Held },
    /// The file is mapped here.
    Mapped(Mapping),
}

#[derive(Debug)]
struct Range {
    len: u64,
    writable: bool,
    backing: Backing,
}

/// A file that ranges are in.
#[derive(Debug)]
struct KnownFile {
    /// One descriptor, whatever number of ranges is in it; gone with the last of them. Then the file may have another's number.
    file: Weak<File>,
    sharing: Sharing,
}

/// See the module. A new one for each client.
#[derive(Debug)]
pub struct GuestMemory {
    ranges: BTreeMap<u64, Range>,
    /// The most ranges.
    limit: usize,
    files: HashMap<FileId, KnownFile>,
    buffers: RefCell<Buffers>,
    /// With so many, those that are gone are forgotten.
    forget_at: usize,
    seen_file: bool,
    private: bool,
    warned: bool,
}

impl Default for GuestMemory {
    fn default() -> Self {
        Self::new()
    }
}

impl GuestMemory {
    /// Nothing is mapped.
    pub fn new() -> Self {
        Self {
            ranges: BTreeMap::new(),
            limit: MAX_RANGES,
            files: HashMap::new(),
            buffers: RefCell::default(),
            forget_at: 0,
            seen_file: false,
            private: false,
            warned: false,
        }
    }

    /// From now on the client may map this number of ranges at most, and never more than [`MAX_RANGES`].
    pub fn set_limit(&mut self, ranges: usize) {
        self.limit = ranges.min(MAX_RANGES);
    }

    /// What is known of the guest's RAM as a whole: `Private` once any of it was found to be so, `Shared` if all files that ranges are
    /// in are shared, `Unknown` otherwise.
    pub fn sharing(&self) -> Sharing {
        let mut mapped = self.files.values().filter(|known| known.file.strong_count() > 0);
        if self.private {
            Sharing::Private
        } else if self.seen_file && mapped.all(|known| known.sharing == Sharing::Shared) {
            Sharing::Shared
        } else {
            Sharing::Unknown
        }
    }

    /// Maps a range. `judge` tells whether a file is the guest's own memory (by [`super::sharing_in`]); it is asked once for
    /// each file, and again where all of it was unmapped meanwhile.
    ///
    /// # Errors
    /// Where the range or the file is not usable; then nothing has changed. QEMU goes on after that, so it is logged.
    pub fn map(
        &mut self,
        map: &DmaMap,
        file: Option<OwnedFd>,
        judge: impl FnOnce(&FileId) -> Sharing,
    ) -> Result<(), MapError> {
        let result = self.try_map(map, file, judge);
        if let Err(error) = &result {
            error!("guest memory, {:#x} bytes at {:#x}, was not mapped: {error}", map.size, map.address);
        }
        result
    }

    fn try_map(
        &mut self,
        map: &DmaMap,
        file: Option<OwnedFd>,
        judge: impl FnOnce(&FileId) -> Sharing,
    ) -> Result<(), MapError> {
        let file = file.map(|file| Arc::new(File::from(file)));
        let _held = file.clone().map(Held::new);
        let end = map.address.checked_add(map.size).filter(|_| map.size > 0).ok_or(MapError::Range)?;
        if self.ranges.range(..end).next_back().is_some_and(|(&at, range)| range_end(at, range) > map.address)
        {
            return Err(MapError::Overlap);
        }
        if self.ranges.len() >= self.limit {
            return Err(MapError::TooMany);
        }
        let writable = DmaMapFlags::from_bits_retain(map.flags).contains(DmaMapFlags::WRITE);
        let backing = match file {
            Some(file) => self.back(map, file, writable, judge)?,
            None => {
                self.warn_of_missing_file(map, writable);
                Backing::Unreachable
            }
        };
        self.ranges.insert(map.address, Range { len: map.size, writable, backing });
        Ok(())
    }

    fn back(
        &mut self,
        map: &DmaMap,
        file: Arc<File>,
        writable: bool,
        judge: impl FnOnce(&FileId) -> Sharing,
    ) -> Result<Backing, MapError> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(MapError::NotAFile);
        }
        let size = metadata.len();
        let needed = map.offset.checked_add(map.size).ok_or(MapError::Range)?;
        if needed > size {
            return Err(MapError::FileTooShort { needed, size });
        }
        let id = FileId::of(&file, &metadata)?;
        let (file, sharing) = self.keep(id, file, judge);
        self.seen_file = true;
        if sharing == Sharing::Private {
            if !self.private {
                error!(
                    "QEMU does not share the guest's memory: it has mapped the memory's file privately. Start it \
                     with -object memory-backend-memfd,id=m,size=...,share=on -machine memory-backend=m"
                );
            }
            self.private = true;
            return Ok(Backing::Private { _file: Held::new(file) });
        }
        let place = FileOffset::from_arc(file, map.offset);
        let len = usize::try_from(map.size).map_err(|_| MapError::Range)?;
        Ok(Backing::Mapped(Mapping::of_file(place, len, writable)?))
    }

    fn keep(
        &mut self,
        id: FileId,
        file: Arc<File>,
        judge: impl FnOnce(&FileId) -> Sharing,
    ) -> (Arc<File>, Sharing) {
        if let Some(known) = self.files.get(&id)
            && let Some(file) = known.file.upgrade()
        {
            return (file, known.sharing);
        }
        if self.files.len() >= self.forget_at {
            self.files.retain(|_, known| known.file.strong_count() > 0);
            self.forget_at = self.files.len().saturating_mul(2).max(FORGET_AT);
        }
        let sharing = judge(&id);
        self.files.insert(id, KnownFile { file: Arc::downgrade(&file), sharing });
        (file, sharing)
    }

    /// The first large range of a client is its RAM. (Later ones without a file are other devices' memory.)
    fn warn_of_missing_file(&mut self, map: &DmaMap, writable: bool) {
        if self.seen_file || self.warned || !writable || map.size < RAM_SIZE {
            return;
        }
        self.warned = true;
        error!(
            "QEMU gave no file for the guest's memory ({:#x} bytes at {:#x}), so that no other node can reach it. Start \
             QEMU with -object memory-backend-memfd,id=m,size=...,share=on -machine memory-backend=m",
            map.size, map.address
        );
    }

    /// Unmaps every range inside the one given; all of them if the flag for that is set. What is not mapped is no
    /// error.
    ///
    /// # Errors
    /// Where a range would have to be cut; then nothing has changed.
    pub fn unmap(&mut self, unmap: &DmaUnmap) -> Result<(), MapError> {
        if DmaUnmapFlags::from_bits_retain(unmap.flags).contains(DmaUnmapFlags::UNMAP_ALL) {
            self.ranges.clear();
            return Ok(());
        }
        // The last byte, so that a range may go up to the end of the address space.
        let Some(len) = unmap.size.checked_sub(1) else { return Ok(()) };
        let last = unmap.address.checked_add(len).ok_or(MapError::Range)?;
        let before = self.ranges.range(..unmap.address).next_back();
        let at_end = self.ranges.range(unmap.address..=last).next_back();
        let cut = before.is_some_and(|(&at, range)| range_end(at, range) > unmap.address)
            || at_end.is_some_and(|(&at, range)| range_end(at, range).saturating_sub(1) > last);
        if cut {
            error!(
                "guest memory, {:#x} bytes at {:#x}, was not unmapped: {}",
                unmap.size,
                unmap.address,
                MapError::Cut
            );
            return Err(MapError::Cut);
        }
        self.ranges.retain(|at, _| !(unmap.address..=last).contains(at));
        Ok(())
    }

    /// Executes an operation, whole or not at all: every segment is looked up before the first byte is copied. (But for a file
    /// that is cut during the copy.)
    pub fn execute(&self, operation: &MemoryOperation, begin: &Begin<'_>) -> Attempt {
        let attempt = match operation {
            MemoryOperation::Read { segments, .. } => return self.load(segments, begin),
            MemoryOperation::Touch { segments, write, .. } => self.touch(segments, *write, begin),
            MemoryOperation::Atomic { segment, action, .. } => self.change(segment, *action, begin),
            MemoryOperation::Write { segments, data, .. } => self.store(segments, data, begin),
            MemoryOperation::Transfer { .. } => Err(MemoryFault::Lender.into()),
        };
        attempt.map_or_else(identity, |data| Attempt::Done(Ok(data)))
    }

    fn touch(&self, segments: &[Segment], write: bool, begin: &Begin<'_>) -> Result<Bytes, Attempt> {
        prepare(self.resolve(segments, write)?.as_slice(), write, begin.served)?;
        Ok(Bytes::new())
    }

    fn change(&self, segment: &Segment, action: AtomicAction, begin: &Begin<'_>) -> Result<Bytes, Attempt> {
        let pieces = self.resolve(core::slice::from_ref(segment), true)?;
        // A number that is cut in two is no number.
        let [piece] = pieces.as_slice() else { return Err(MemoryFault::Refused.into()) };
        allow(prepare(pieces.as_slice(), true, begin.served)?, begin)?;
        Ok(Bytes::copy_from_slice(&piece.atomic(action)?.to_le_bytes()))
    }

    fn store(&self, segments: &[Segment], data: &Bytes, begin: &Begin<'_>) -> Result<Bytes, Attempt> {
        let pieces = self.resolve(segments, true)?;
        allow(prepare(pieces.as_slice(), true, begin.served)?, begin)?;
        store(pieces.as_slice(), data.clone())?;
        Ok(Bytes::new())
    }

    /// Copies segments of the other guest's memory, one after the other, into segments of this one, as long together: whole or not
    /// at all, as [`Self::execute`]. It ends with [`MemoryFault::Lender`] where the other memory can't be read.
    pub fn copy_from(
        &self,
        segments: &[Segment],
        other: &Self,
        from: &[Segment],
        begin: &Begin<'_>,
    ) -> Attempt {
        let copied = self.try_copy_from(segments, other, from, begin);
        copied.map_or_else(identity, |()| Attempt::Done(Ok(Bytes::new())))
    }

    fn try_copy_from(
        &self,
        segments: &[Segment],
        other: &Self,
        from: &[Segment],
        begin: &Begin<'_>,
    ) -> Result<(), Attempt> {
        let sources = other.resolve(from, false).map_err(|_| MemoryFault::Lender)?;
        let pieces = self.resolve(segments, true)?;
        let lent =
            prepare(sources.as_slice(), false, begin.lender_served).map_err(|attempt| match attempt {
                Attempt::Absent(pages) => Attempt::LenderAbsent(pages),
                _ => MemoryFault::Lender.into(),
            })?;
        let own = prepare(pieces.as_slice(), true, begin.served)?;
        allow(lent || own, begin)?;
        if !copy(pieces.as_slice(), sources.as_slice()) {
            let data = self.collect(sources.as_slice()).map_err(|_| MemoryFault::Lender)?;
            store(pieces.as_slice(), data)?;
        }
        Ok(())
    }

    /// Copies the segments, one after the other, out of memory.
    pub fn load(&self, segments: &[Segment], begin: &Begin<'_>) -> Attempt {
        let loaded = self.resolve(segments, false).map_err(Attempt::from).and_then(|pieces| {
            allow(prepare(pieces.as_slice(), false, begin.served)?, begin)?;
            Ok(self.collect(pieces.as_slice()))
        });
        loaded.map_or_else(identity, Attempt::Done)
    }

    fn collect(&self, pieces: &[Piece<'_>]) -> MemoryResult {
        let total = pieces.iter().map(Piece::len).fold(0, usize::saturating_add);
        self.buffers.borrow_mut().read(total, |mut rest| {
            for piece in pieces {
                let (part, behind) = rest.split_at_mut_checked(piece.len()).ok_or(MemoryFault::Unmapped)?;
                piece.load(part)?;
                rest = behind;
            }
            Ok(())
        })
    }

    /// Whether a segment touches the guest's own memory, so that it is not, or not only, another device's.
    pub fn holds(&self, segment: &Segment) -> bool {
        let end = segment.address.saturating_add(segment.len as u64);
        let touched = self.ranges.range(..end).rev();
        touched
            .take_while(|(at, range)| range_end(**at, range) > segment.address)
            .any(|(_, range)| !matches!(range.backing, Backing::Unreachable))
    }

    /// Where the segments are in this process.
    fn resolve(&self, segments: &[Segment], write: bool) -> Result<Pieces<'_>, MemoryFault> {
        match segments {
            [segment] => match self.first_piece(segment.address, segment.len as u64, write)? {
                Some(piece) if piece.len() == segment.len => Ok(Pieces::One(piece)),
                _ => self.resolve_all(segments, write),
            },
            _ => self.resolve_all(segments, write),
        }
    }

    /// A segment may go on from one range into the next.
    fn resolve_all(&self, segments: &[Segment], write: bool) -> Result<Pieces<'_>, MemoryFault> {
        let mut pieces = Vec::with_capacity(segments.len());
        for &Segment { mut address, len } in segments {
            let mut left = len as u64;
            while let Some(piece) = self.first_piece(address, left, write)? {
                let len = piece.len() as u64;
                address = address.saturating_add(len);
                left = left.saturating_sub(len);
                pieces.push(piece);
            }
        }
        Ok(Pieces::Many(pieces))
    }

    /// The first of `len` bytes from `address` on, as many as are in one range; `None` for none.
    fn first_piece(&self, address: u64, len: u64, write: bool) -> Result<Option<Piece<'_>>, MemoryFault> {
        address.checked_add(len).ok_or(MemoryFault::Unmapped)?;
        if len == 0 {
            return Ok(None);
        }
        let (at, range) = self.ranges.range(..=address).next_back().ok_or(MemoryFault::Unmapped)?;
        let within = address.saturating_sub(*at);
        let len = len.min(range.len.saturating_sub(within));
        if len == 0 {
            return Err(MemoryFault::Unmapped);
        }
        let memory = match &range.backing {
            Backing::Unreachable => return Err(MemoryFault::Unmapped),
            Backing::Private { .. } => return Err(MemoryFault::NotShared),
            Backing::Mapped(memory) => memory,
        };
        if write && !range.writable {
            return Err(MemoryFault::ReadOnly);
        }
        memory.piece(within, len).map(Some).ok_or(MemoryFault::Unmapped)
    }
}

/// Where segments are; mostly it is one piece.
enum Pieces<'a> {
    One(Piece<'a>),
    Many(Vec<Piece<'a>>),
}

impl<'a> Pieces<'a> {
    fn as_slice(&self) -> &[Piece<'a>] {
        match self {
            Self::One(piece) => core::slice::from_ref(piece),
            Self::Many(pieces) => pieces,
        }
    }
}

/// After something that took time, asks whether the operation may still be begun.
fn allow(took_time: bool, begin: &Begin<'_>) -> Result<(), Attempt> {
    if !took_time || (begin.allowed)() { Ok(()) } else { Err(Attempt::Late) }
}

/// Copies `data` into the pieces, one after the other.
fn store(pieces: &[Piece<'_>], mut data: Bytes) -> Result<(), MemoryFault> {
    pieces.iter().try_for_each(|piece| piece.store(&data.split_to(piece.len().min(data.remaining()))))
}

fn range_end(at: u64, range: &Range) -> u64 {
    at.saturating_add(range.len)
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
