//! Another node's memory: stores and loads, and the check that tells whether they happened.

use crate::abi::{ADDRESS_ASSURANCE, ADDRESS_IO, ADDRESS_NODE_SHIFT, ADDRESS_PEEK, Info};
use crate::error::{CallKind, Error};
use crate::mapping::{Mapping, PAGE};
use crate::place::{Place, Space};
use crate::status::Status;
use crate::word::{Word, load_bytes, store_bytes};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A part of another node's window, mapped for accesses and for checks.
///
/// Offsets are relative to the place that was mapped. A store returns before it is executed, and a load that
/// fails returns all-ones: only [`RemoteWindow::check`] tells. Errors are kept by block and direction, so a
/// check answers for all accesses of this guest to the offset's block since the block's last check.
///
/// In the I/O space every access is one of its own for the device behind it. There [`RemoteWindow::store`] and
/// [`RemoteWindow::load`] are the ones to use, since [`RemoteWindow::write_bytes`] and [`RemoteWindow::read_bytes`] choose the
/// sizes themselves.
///
/// Accesses after the adaptor was removed from the guest raise SIGBUS.
#[derive(Debug)]
pub struct RemoteWindow {
    place: Place,
    length: u64,
    block_size: u64,
    // Bytes from the start of the mappings, which begin at a page, to the place.
    skew: u64,
    access: Mapping,
    assurance: Mapping,
    peek: Mapping,
    /// What the upper half of a check has where the adaptor has answered it.
    session: Arc<AtomicU32>,
}

/// The part of a block that a range covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPart {
    /// Its start, relative to the window.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// Cuts `length` bytes from `offset` on at multiples of `block_size`, counted from `-skew`.
fn cut(base: u64, block_size: u64, offset: u64, length: u64) -> impl Iterator<Item = BlockPart> {
    let (mut at, mut left) = (offset, length);
    std::iter::from_fn(move || {
        let inside = base.wrapping_add(at).checked_rem(block_size)?;
        let part = BlockPart { offset: at, length: left.min(block_size.saturating_sub(inside)) };
        at = at.saturating_add(part.length);
        left = left.saturating_sub(part.length);
        (part.length > 0).then_some(part)
    })
}

impl RemoteWindow {
    pub(crate) fn new(
        device: BorrowedFd<'_>,
        info: &Info,
        session: Arc<AtomicU32>,
        place: Place,
        length: u64,
    ) -> Result<Self, Error> {
        let (window_size, space) = match place.space {
            Space::Memory => (info.window_size, 0),
            Space::Io => (info.io_window_size, ADDRESS_IO),
        };
        let outside = || Error::Outside { offset: place.offset, length, available: window_size };
        let end = place.offset.checked_add(length).filter(|&end| end <= window_size).ok_or_else(outside)?;
        if length == 0 {
            return Err(outside());
        }
        let skew = place.offset & PAGE.saturating_sub(1);
        let start = place.offset.saturating_sub(skew);
        let mapped = end.checked_next_multiple_of(PAGE).map(|end| end.saturating_sub(start));
        let mapped = mapped.and_then(|mapped| usize::try_from(mapped).ok()).ok_or_else(outside)?;
        let address = space | u64::from(place.node) << ADDRESS_NODE_SHIFT | start;
        let map = |address, protection| {
            Mapping::device(device, address, mapped, protection).map_err(|source| {
                Error::call(CallKind::Map, format!("mapping {length} bytes at {place}"), source)
            })
        };
        Ok(Self {
            place,
            length,
            block_size: info.block_size(),
            skew,
            access: map(address, libc::PROT_READ | libc::PROT_WRITE)?,
            assurance: map(address | ADDRESS_ASSURANCE, libc::PROT_READ)?,
            peek: map(address | ADDRESS_ASSURANCE | ADDRESS_PEEK, libc::PROT_READ)?,
            session,
        })
    }

    /// The place that was mapped.
    pub const fn place(&self) -> Place {
        self.place
    }

    /// Bytes that were mapped.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Where an access may go: inside the part that was asked for, and aligned where that is needed.
    #[inline]
    fn access<T: Word>(&self, offset: u64) -> Result<*mut u8, Error> {
        let size = size_of::<T>();
        if !T::UNALIGNED && !self.place.offset.wrapping_add(offset).is_multiple_of(size as u64) {
            return Err(Error::Misaligned { offset: self.place.offset.wrapping_add(offset), size });
        }
        self.bytes(offset, size)
    }

    #[inline]
    fn bytes(&self, offset: u64, length: usize) -> Result<*mut u8, Error> {
        if offset.checked_add(length as u64).is_none_or(|end| end > self.length) {
            return Err(Error::Outside { offset, length: length as u64, available: self.length });
        }
        self.access.at(self.skew.saturating_add(offset), length)
    }

    /// One store of exactly this size.
    ///
    /// # Errors
    /// [`Error::Outside`] and, on some processors, [`Error::Misaligned`]; nothing was stored then.
    #[inline]
    pub fn store<T: Word>(&self, offset: u64, value: T) -> Result<(), Error> {
        let to = self.access::<T>(offset)?;
        // SAFETY: `access` gave an address inside the mapping, aligned where `T` needs it.
        unsafe { T::store(to, value) };
        Ok(())
    }

    /// One load of exactly this size. All-ones may be data or a failure: a check tells.
    ///
    /// # Errors
    /// As [`RemoteWindow::store`].
    #[inline]
    pub fn load<T: Word>(&self, offset: u64) -> Result<T, Error> {
        let from = self.access::<T>(offset)?;
        // SAFETY: `access` gave an address inside the mapping, aligned where `T` needs it.
        Ok(unsafe { T::load(from) })
    }

    /// Whether everything that this guest stored to and loaded from the offset's block, since the block's last
    /// check, was executed. It waits until that is known, and clears the block's errors.
    ///
    /// All-ones (`0xff` in both directions) says that the adaptor was reset, disabled or replaced since, and that the
    /// outcome is unknown: [`Adaptor::believe`](crate::Adaptor::believe) asks it, and after a reset checks answer again.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn check(&self, offset: u64) -> Result<Status, Error> {
        self.status(&self.assurance, offset)
    }

    /// The same answer, after the same wait, and the block's errors stay: the next check returns them.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn peek(&self, offset: u64) -> Result<Status, Error> {
        self.status(&self.peek, offset)
    }

    fn status(&self, alias: &Mapping, offset: u64) -> Result<Status, Error> {
        self.bytes(offset, 1)?;
        let from = alias.at(self.skew.saturating_add(offset) & !7, 8)?;
        // SAFETY: `at` gave an aligned address with 8 bytes of the mapping behind it.
        let answer = unsafe { u64::load(from) };
        // Where there is no adaptor any more a machine may answer with 0.
        let answered = (answer >> 32) as u32 == self.session.load(Ordering::Relaxed);
        Ok(Status::from_bits(if answered { answer as u32 } else { u32::MAX }))
    }

    /// A load from the assurance space with a size of the caller's choice, for tests of the device. In one byte it
    /// returns the write code or, where that is 0, the read code; in more the status word, cut or padded with zeros.
    ///
    /// # Errors
    /// As [`RemoteWindow::store`].
    pub fn check_part<T: Word>(&self, offset: u64) -> Result<T, Error> {
        self.access::<T>(offset)?;
        let from = self.assurance.at(self.skew.saturating_add(offset), size_of::<T>())?;
        // SAFETY: `at` gave an address inside the mapping, aligned where `T` needs it (by `access`).
        Ok(unsafe { T::load(from) })
    }

    /// Stores bytes, in ascending order, by the widest aligned stores.
    ///
    /// # Errors
    /// [`Error::Outside`] where not all are inside; then none was stored.
    pub fn write_bytes(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        let to = self.bytes(offset, from.len())?;
        // SAFETY: `bytes` gave an address with that many bytes of the mapping behind it.
        unsafe { store_bytes(to, from) };
        Ok(())
    }

    /// Loads bytes by the widest aligned loads.
    ///
    /// # Errors
    /// [`Error::Outside`] where not all are inside; then none was loaded.
    pub fn read_bytes(&self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        let from = self.bytes(offset, to.len())?;
        // SAFETY: `bytes` gave an address with that many bytes of the mapping behind it.
        unsafe { load_bytes(from, to) };
        Ok(())
    }

    /// The parts of the blocks that a range covers, in ascending order: one check answers for one of them.
    pub fn blocks(&self, offset: u64, length: u64) -> impl Iterator<Item = BlockPart> + use<> {
        cut(self.place.offset, self.block_size, offset, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_at_block_boundaries_of_the_node() {
        let parts = |base, offset, length| {
            cut(base, 4096, offset, length).map(|part| (part.offset, part.length)).collect::<Vec<_>>()
        };
        assert_eq!(parts(0, 0, 4096), [(0, 4096)]);
        assert_eq!(parts(0, 4095, 2), [(4095, 1), (4096, 1)]);
        assert_eq!(parts(0x1100, 0, 8192), [(0, 0xf00), (0xf00, 4096), (0x1f00, 0x100)]);
        assert_eq!(parts(0x1100, 0xf00, 1), [(0xf00, 1)]);
        assert_eq!(parts(0, 7, 0), []);
    }
}
