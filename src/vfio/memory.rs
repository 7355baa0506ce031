//! Guest memory as the client has mapped it for the device.
//!
//! A range with a file is reached through this process's own mapping of the file; one without is known but not reachable.
//! Each range has its own verdict: what is not known to be the guest's own memory is not touched, except to read a command's
//! descriptor there, which shows whether it is.

use super::buffers::Buffers;
use super::files::Files;
use super::message::{DmaMap, DmaUnmap};
use super::ranges::{Backing, Range, Ranges, Refused};
use super::sharing::{FileId, Sharing};
use crate::adaptor::memory::{AtomicAction, MemoryFault, MemoryOperation, MemoryResult, Segment};
use crate::descriptors::{self, Advice};
use crate::mapped::{Attempt, Begin, Held, Piece, copy, prepare};
use bytes::{Buf, Bytes};
use core::convert::identity;
use log::{error, info};
use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vfio_user::{DmaMapFlags, DmaUnmapFlags};

/// The most ranges at once, neighbours that are joined counted as one: 1 GiB in pages of 4 KiB that lie anywhere. They take
/// some 20 MiB.
pub const MAX_RANGES: usize = 262_144;
/// The size in bytes from which on a range without a file is taken for the guest's RAM.
const RAM_SIZE: u64 = 1 << 20;

/// Why a range was not mapped or unmapped.
#[derive(Debug)]
pub enum MapError {
    /// The range is empty or goes beyond the end of the address space.
    Range,
    /// It overlaps a range that is mapped already.
    Overlap,
    /// As many ranges are mapped as there may be.
    TooMany,
    /// The guest's memory is in as many files as it may be.
    TooManyFiles(usize),
    /// The files would have more bytes together than they may.
    TooLarge(u64),
    /// The descriptor is not that of a regular file.
    NotAFile,
    /// The file ends before the range does.
    FileTooShort {
        /// Where in the file the range ends, in bytes.
        needed: u64,
        /// The file's size in bytes.
        size: u64,
    },
    /// The file can't be mapped.
    Map(io::Error),
}

impl MapError {
    /// The errno for the client.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Overlap => libc::EEXIST,
            Self::TooMany => libc::ENOSPC,
            Self::TooManyFiles(_) => libc::EMFILE,
            Self::TooLarge(_) => libc::ENOMEM,
            Self::Map(error) => error.raw_os_error().unwrap_or(libc::EINVAL),
            Self::Range | Self::NotAFile | Self::FileTooShort { .. } => libc::EINVAL,
        }
    }
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range => f.write_str("the range is empty or wraps around"),
            Self::Overlap => f.write_str("the range overlaps one that is mapped already"),
            Self::TooMany => write!(
                f,
                "{MAX_RANGES} ranges are mapped already; with larger pages, or without an IOMMU in the guest \
                 (iommu=pt), it needs fewer"
            ),
            Self::TooManyFiles(most) => {
                let advice = Advice(descriptors::limit());
                write!(f, "no room for one more file: it has {most}, which is a guest's share; {advice}")
            }
            Self::TooLarge(most) => {
                write!(f, "its files would have more than {most:#x} bytes together, which is a guest's share")
            }
            Self::NotAFile => f.write_str("the descriptor is not that of a file that can be mapped"),
            Self::FileTooShort { needed, size } => {
                write!(f, "the range ends at {needed:#x} in a file of {size:#x} bytes")
            }
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

/// See the module. A new one for each client.
#[derive(Debug)]
pub struct GuestMemory {
    ranges: Ranges,
    files: Files,
    buffers: RefCell<Buffers>,
    /// Between these addresses there may be memory that was left out, since there are too many ranges.
    missing: Option<(u64, u64)>,
    seen_file: bool,
    /// The operator was told that memory has no file, and that it is private.
    warned: (bool, bool),
}

impl Default for GuestMemory {
    fn default() -> Self {
        Self::new()
    }
}

/// What is known of all the memory that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overview {
    /// No file has been mapped, or it is not known of any whether it is shared.
    Unknown,
    /// All of it is the guest's own.
    Shared,
    /// Some is, and some is not or is not known to be.
    Partly,
    /// None of it is.
    Private,
}

impl GuestMemory {
    /// Nothing is mapped.
    pub fn new() -> Self {
        Self::with_room(MAX_RANGES)
    }

    fn with_room(ranges: usize) -> Self {
        Self::with_share(ranges, descriptors::share_of_a_guest())
    }

    /// In at most so many files, with so many bytes together.
    fn with_share(ranges: usize, share: (usize, u64)) -> Self {
        Self {
            ranges: Ranges::new(ranges),
            files: Files::new(share),
            buffers: RefCell::default(),
            missing: None,
            seen_file: false,
            warned: (false, false),
        }
    }

    /// What is known of the memory that is mapped now. Memory without a file does not count: it may be another device's.
    pub fn overview(&self) -> Overview {
        let verdicts = self.files.iter().map(|file| match file.sharing() {
            Sharing::Unknown => Overview::Unknown,
            Sharing::Shared => Overview::Shared,
            Sharing::Private => Overview::Private,
        });
        verdicts
            .reduce(|all, one| if all == one { all } else { Overview::Partly })
            .unwrap_or(Overview::Unknown)
    }

    /// Maps a range. `judge` tells whether a file is the guest's own memory (by [`super::sharing_in`]); it is asked once for
    /// each file, and again where all of it was unmapped meanwhile.
    ///
    /// # Errors
    /// Where the range or the file is not usable; then nothing has changed. QEMU goes on after that.
    pub fn map(
        &mut self,
        map: &DmaMap,
        file: Option<OwnedFd>,
        judge: impl FnOnce(&FileId) -> Sharing,
    ) -> Result<(), MapError> {
        let file = file.map(|file| Arc::new(File::from(file)));
        let _held = file.clone().map(Held::new);
        let end = map.address.checked_add(map.size).filter(|_| map.size > 0).ok_or(MapError::Range)?;
        let is_writable = DmaMapFlags::from_bits_retain(map.flags).contains(DmaMapFlags::WRITE);
        let backing = match file {
            Some(file) => self.back(map, file, is_writable, judge)?,
            None => {
                self.warn_of_missing_file(map, is_writable);
                Backing::Unreachable
            }
        };
        let range = Range { len: map.size, is_writable, backing };
        self.ranges.insert(map.address, range).map_err(|refused| match refused {
            Refused::Overlap => MapError::Overlap,
            Refused::TooMany => {
                self.miss(map.address, end);
                MapError::TooMany
            }
        })
    }

    /// Some of the memory between these addresses was left out.
    fn miss(&mut self, first: u64, end: u64) {
        let missing = self.missing.map_or((first, end), |(from, to)| (from.min(first), to.max(end)));
        self.missing = Some(missing);
    }

    fn back(
        &mut self,
        map: &DmaMap,
        file: Arc<File>,
        is_writable: bool,
        judge: impl FnOnce(&FileId) -> Sharing,
    ) -> Result<Backing, MapError> {
        let end = map.offset.checked_add(map.size).ok_or(MapError::Range)?;
        let mut is_new = false;
        let judge = |id: &FileId| {
            is_new = true;
            judge(id)
        };
        let file = self.files.open(file, end, is_writable, judge)?;
        self.seen_file = true;
        let (address, size) = (map.address, map.size);
        match file.sharing() {
            Sharing::Private if !core::mem::replace(&mut self.warned.1, true) => error!(
                "QEMU does not share the guest's memory ({size:#x} bytes at {address:#x}): it has mapped the memory's \
                 file privately. Start it with -object memory-backend-memfd,id=m,size=...,share=on -machine \
                 memory-backend=m, and all other memory backends with share=on too"
            ),
            Sharing::Unknown if is_new => info!(
                "guest memory, {size:#x} bytes at {address:#x}: QEMU's process can't be looked at (another PID namespace or \
                 user), or has not mapped this file, so that no other node reaches this memory before the guest's driver has shown that it is shared"
            ),
            _ => {}
        }
        Ok(Backing::File(file, map.offset))
    }

    /// The first large range of a client is its RAM. (Later ones without a file are other devices' memory.)
    fn warn_of_missing_file(&mut self, map: &DmaMap, is_writable: bool) {
        let is_ram = is_writable && map.size >= RAM_SIZE;
        if self.seen_file || !is_ram || core::mem::replace(&mut self.warned.0, true) {
            return;
        }
        error!(
            "QEMU gave no file for the guest's memory ({:#x} bytes at {:#x}), so that no other node can reach it. Start \
             QEMU with -object memory-backend-memfd,id=m,size=...,share=on -machine memory-backend=m",
            map.size, map.address
        );
    }

    /// Unmaps all that is mapped between the addresses given, or anywhere if the flag for that is set. What is not mapped
    /// is no error.
    ///
    /// # Errors
    /// Where the addresses wrap around; then nothing has changed.
    pub fn unmap(&mut self, unmap: &DmaUnmap) -> Result<(), MapError> {
        if DmaUnmapFlags::from_bits_retain(unmap.flags).contains(DmaUnmapFlags::UNMAP_ALL) {
            self.ranges.clear();
            self.missing = None;
            return Ok(());
        }
        // The last byte, so that a range may go up to the end of the address space.
        let Some(len) = unmap.size.checked_sub(1) else { return Ok(()) };
        let last = unmap.address.checked_add(len).ok_or(MapError::Range)?;
        self.missing.take_if(|(first, end)| unmap.address <= *first && end.saturating_sub(1) <= last);
        if let Some((first, len)) = self.ranges.remove(unmap.address, last) {
            self.miss(first, first.saturating_add(len));
        }
        Ok(())
    }

    /// Executes an operation, whole or not at all: every segment is looked up before the first byte is copied. (But for a file
    /// that is cut during the copy.)
    pub fn execute(&self, operation: &MemoryOperation, begin: &Begin<'_>) -> Attempt {
        let attempt = match operation {
            MemoryOperation::Read { segments, .. } => return self.load(segments, begin),
            MemoryOperation::Descriptor { segment, proof, .. } => {
                return self.load_descriptor(segment, *proof, begin);
            }
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

    /// Copies a descriptor out of memory. Where the proof stands at its beginning, the file that it lies in is the guest's own
    /// memory, whatever was known before.
    fn load_descriptor(&self, segment: &Segment, proof: u64, begin: &Begin<'_>) -> Attempt {
        match self.look_for_proof(segment, proof, begin) {
            Ok(()) => self.load(&[*segment], begin),
            Err(attempt) => attempt,
        }
    }

    fn look_for_proof(&self, segment: &Segment, proof: u64, begin: &Begin<'_>) -> Result<(), Attempt> {
        let Some((start, range)) = self.ranges.at(segment.address) else { return Ok(()) };
        if let Backing::File(file, offset) = &range.backing
            && file.sharing() == Sharing::Unknown
        {
            let mut found = [0; size_of::<u64>()];
            let proof_at = offset.saturating_add(start);
            let piece = file.piece(proof_at, found.len() as u64).ok_or(MemoryFault::Unmapped)?;
            allow(prepare(core::slice::from_ref(&piece), false, begin.served)?, begin)?;
            piece.load(&mut found)?;
            if u64::from_le_bytes(found) == proof {
                file.prove();
            }
        }
        Ok(())
    }

    /// Whether a segment touches memory that has a file, so that it is not, or not only, a device's registers.
    pub fn holds(&self, segment: &Segment) -> bool {
        let end = segment.address.saturating_add(segment.len as u64);
        let mut touched = self.ranges.touched(segment.address, end);
        touched.any(|range| !matches!(range.backing, Backing::Unreachable))
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
        let (within, range) = self.ranges.at(address).ok_or_else(|| self.absence(address))?;
        let len = len.min(range.len.saturating_sub(within));
        let Backing::File(file, start) = &range.backing else { return Err(MemoryFault::Unmapped) };
        if file.sharing() != Sharing::Shared {
            return Err(MemoryFault::NotShared);
        }
        if write && !range.is_writable {
            return Err(MemoryFault::ReadOnly);
        }
        file.piece(start.saturating_add(within), len).map(Some).ok_or(MemoryFault::Unmapped)
    }

    /// Why nothing is mapped at an address.
    fn absence(&self, address: u64) -> MemoryFault {
        let is_missing = self.missing.is_some_and(|(first, end)| (first..end).contains(&address));
        if is_missing { MemoryFault::TooManyRanges } else { MemoryFault::Unmapped }
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

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "huge_tests.rs"]
mod huge_tests;
