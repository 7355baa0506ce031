//! The files that a guest's memory is in.
//!
//! A file is mapped once and whole, whatever number of ranges is in it: so the number of mappings of this process does not
//! grow with that of the ranges, and huge pages are never cut. What a range may reach is decided where it is looked up.
//!
//! Invariant: a guest has no more files, and bytes in them, than its share; and the bytes of a file are reached only while they are known to be those that the guest sees.

use super::memory::MapError;
use super::sharing::{FileId, Sharing};
use crate::mapped::{Held, Mapping, Piece};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Weak};
use vm_memory::FileOffset;

/// With fewer files than this it is not worth while to look for those that are gone.
const FORGET_AT: usize = 32;

/// What there is of a guest's files, those included that another thread is still giving back.
#[derive(Debug, Default)]
struct Usage {
    files: AtomicUsize,
    bytes: AtomicU64,
}

/// A file's part of that.
#[derive(Debug)]
struct Part {
    usage: Arc<Usage>,
    bytes: u64,
}

impl Part {
    fn new(usage: &Arc<Usage>, bytes: u64) -> Self {
        usage.files.fetch_add(1, Ordering::Relaxed);
        usage.bytes.fetch_add(bytes, Ordering::Relaxed);
        Self { usage: Arc::clone(usage), bytes }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.usage.files.fetch_sub(1, Ordering::Relaxed);
        self.usage.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A file that ranges are in.
#[derive(Debug)]
pub(super) struct GuestFile {
    /// Kept open, so that no other file gets its number.
    _file: Held,
    /// All of it as it was then; `None` where the guest sees other bytes.
    mapping: Option<Mapping>,
    /// How many bytes of it are mapped.
    len: u64,
    /// What the host knows.
    found: Sharing,
    /// What the guest wrote into its memory was read here.
    is_proven: AtomicBool,
    _part: Part,
}

impl GuestFile {
    fn map(
        file: Arc<File>,
        len: u64,
        is_writable: bool,
        found: Sharing,
        part: Part,
    ) -> Result<Self, MapError> {
        let mapping = match found {
            Sharing::Private => None,
            Sharing::Shared | Sharing::Unknown => {
                let place = FileOffset::from_arc(Arc::clone(&file), 0);
                let len = usize::try_from(len).map_err(|_| MapError::Range)?;
                Some(Mapping::of_file(place, len, is_writable)?)
            }
        };
        let is_proven = AtomicBool::new(false);
        Ok(Self { _file: Held::new(file), mapping, len, found, is_proven, _part: part })
    }

    /// Whether its bytes are those that the guest sees.
    pub fn sharing(&self) -> Sharing {
        match self.found {
            Sharing::Unknown if self.is_proven.load(Ordering::Relaxed) => Sharing::Shared,
            found => found,
        }
    }

    /// The guest's own store was read from it.
    pub fn prove(&self) {
        self.is_proven.store(true, Ordering::Relaxed);
    }

    /// `len` bytes from the byte `start` on, whatever is known of them.
    pub fn piece(&self, start: u64, len: u64) -> Option<Piece<'_>> {
        self.mapping.as_ref()?.piece(start, len)
    }

    /// Whether a range of it that ends at this byte can be made.
    fn has(&self, end: u64) -> bool {
        self.mapping.as_ref().is_none_or(|mapping| end <= self.len && !mapping.is_lost())
    }
}

/// Those that ranges are in now.
#[derive(Debug)]
pub(super) struct Files {
    known: HashMap<FileId, Weak<GuestFile>>,
    /// With so many, those that are gone are forgotten.
    forget_at: usize,
    usage: Arc<Usage>,
    /// The most files, and bytes in them.
    share: (usize, u64),
}

impl Files {
    /// No files, and at most so many, with so many bytes together.
    pub fn new(share: (usize, u64)) -> Self {
        Self { known: HashMap::new(), forget_at: 0, usage: Arc::default(), share }
    }

    /// The part of a file with so many bytes, if the share is not used up.
    fn take(&self, len: u64) -> Result<Part, MapError> {
        let (files, bytes) = self.share;
        if self.usage.files.load(Ordering::Relaxed) >= files {
            return Err(MapError::TooManyFiles(files));
        }
        if self.usage.bytes.load(Ordering::Relaxed).saturating_add(len) > bytes {
            return Err(MapError::TooLarge(bytes));
        }
        Ok(Part::new(&self.usage, len))
    }

    /// The file for a range that ends at the byte `end` of it. `judge` is asked where no range is in the file yet.
    ///
    /// # Errors
    /// Where the file can't have such a range, or can't be mapped.
    pub fn open(
        &mut self,
        file: Arc<File>,
        end: u64,
        is_writable: bool,
        judge: impl FnOnce(&FileId) -> Sharing,
    ) -> Result<Arc<GuestFile>, MapError> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(MapError::NotAFile);
        }
        let len = metadata.len();
        if end > len {
            return Err(MapError::FileTooShort { needed: end, size: len });
        }
        let id = FileId::of(&file, &metadata)?;
        if is_writable && !id.is_writable() {
            return Err(MapError::Map(std::io::Error::from_raw_os_error(libc::EACCES)));
        }
        let known = self.known.get(&id).and_then(Weak::upgrade);
        if let Some(known) = known.as_ref().filter(|known| known.has(end)) {
            return Ok(Arc::clone(known));
        }
        if self.known.len() >= self.forget_at {
            self.known.retain(|_, known| known.strong_count() > 0);
            self.forget_at = self.known.len().saturating_mul(2).max(FORGET_AT);
        }
        let part = self.take(len)?;
        let guest_file = match known {
            // It has grown, or was mended.
            Some(known) => {
                let next = GuestFile::map(file, len, id.is_writable(), known.found, part)?;
                next.is_proven.store(known.is_proven.load(Ordering::Relaxed), Ordering::Relaxed);
                next
            }
            None => GuestFile::map(file, len, id.is_writable(), judge(&id), part)?,
        };
        let guest_file = Arc::new(guest_file);
        self.known.insert(id, Arc::downgrade(&guest_file));
        Ok(guest_file)
    }

    /// Those that some range is in.
    pub fn iter(&self) -> impl Iterator<Item = Arc<GuestFile>> + '_ {
        self.known.values().filter_map(Weak::upgrade)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.known.len()
    }
}
