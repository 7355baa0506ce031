//! Copies by the DMA engine: a few large operations under way at a time, each with a completion of its own.
//!
//! The invariant: what is counted as copied was OK in its completion, and a chunk's memory is used again only then.

use super::progress::Progress;
use super::{Failure, file_failure, human};
use ardma::{
    Adaptor, Class, Code, Completion, LocalRights, Memory, Operation, Place, Queue, QueueOptions, Registered,
    Retries,
};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Bytes of an operation.
const CHUNK: u64 = 1 << 20;
/// Operations under way.
const SLOTS: u32 = 8;
/// Bytes of an operation where only some blocks are wanted.
const BLOCK: u64 = 4096;
/// Nothing takes so long while the adaptor works.
const LONG: Duration = Duration::from_secs(60);

/// What is done with the memory of another node.
#[derive(Clone, Copy, Debug)]
pub enum Way<'a> {
    /// The file goes there.
    Send(&'a File),
    /// It goes into the file.
    Fetch(&'a File),
    /// It has to be what the file has.
    Compare(&'a File),
}

/// A part of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Chunk {
    offset: u64,
    length: u64,
    attempts: u32,
}

/// What is to be copied: bytes from a place on, only each `every`-th block of them.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Where they begin.
    pub place: Place,
    /// How many.
    pub length: u64,
    /// 1 for all.
    pub every: u32,
}

impl Extent {
    fn chunks(self) -> impl Iterator<Item = Chunk> {
        let size = if self.every <= 1 { CHUNK } else { BLOCK };
        let step = size.saturating_mul(u64::from(self.every.max(1)));
        let mut at = 0_u64;
        std::iter::from_fn(move || {
            let offset = at;
            at = at.checked_add(step)?;
            let length = size.min(self.length.saturating_sub(offset));
            (length > 0).then_some(Chunk { offset, length, attempts: 0 })
        })
    }
}

/// A copy under way.
struct Bulk<'a> {
    way: Way<'a>,
    path: &'a Path,
    place: Place,
    retries: Retries,
    adaptor: &'a Adaptor,
    queue: Queue,
    memory: Registered,
    /// By slot, and the slots that are free.
    chunks: Vec<Chunk>,
    free: Vec<usize>,
    /// Slots of what has to be posted again, once the queue has stopped.
    again: VecDeque<usize>,
    /// An operation failed, and the queue flushes what is behind it.
    is_stopped: bool,
    bytes: u64,
    completions: u64,
    failed: u64,
}

/// Memory and a queue for a copy; `None` where this adaptor has no engine, or does not reach the guest's memory.
pub fn prepare(adaptor: &Adaptor) -> Result<Option<(Registered, Queue)>, Failure> {
    let memory = Memory::new(CHUNK.saturating_mul(SLOTS.into()))?;
    let memory = match adaptor.register(memory, LocalRights::ALL) {
        Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => return Ok(None),
        other => other?,
    };
    let options = QueueOptions { entries: SLOTS, scatter: 0, ..QueueOptions::default() };
    Ok(Some((memory, adaptor.connect(&options)?)))
}

/// Copies, and tells how it went.
pub fn run(
    adaptor: &Adaptor,
    (memory, queue): (Registered, Queue),
    (way, path): (Way<'_>, &Path),
    extent: Extent,
    retries: Retries,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let what = if matches!(way, Way::Compare(_)) { "compared" } else { "copied" };
    let slots = SLOTS as usize;
    let mut bulk = Bulk {
        way,
        path,
        place: extent.place,
        retries,
        adaptor,
        queue,
        memory,
        chunks: vec![Chunk::default(); slots],
        free: (0..slots).collect(),
        again: VecDeque::new(),
        is_stopped: false,
        bytes: 0,
        completions: 0,
        failed: 0,
    };
    let mut progress = Progress::new(what, extent.length);
    let result = bulk.all(extent, &mut progress);
    progress.finish();
    result?;
    writeln!(
        out,
        "{what} {} in {:.1} s ({}), {} operations checked, {} failed",
        human(bulk.bytes),
        progress.seconds(),
        progress.rate(bulk.bytes),
        bulk.completions,
        bulk.failed
    )?;
    Ok(())
}

impl Bulk<'_> {
    fn all(&mut self, extent: Extent, progress: &mut Progress) -> Result<(), Failure> {
        let mut chunks = extent.chunks();
        let mut done = 0_u64;
        loop {
            while !self.is_stopped
                && let Some(slot) = self.free.pop()
            {
                let Some(chunk) = chunks.next() else {
                    self.free.push(slot);
                    break;
                };
                self.begin(slot, chunk)?;
            }
            if self.queue.under_way() == 0 && self.again.is_empty() {
                return Ok(());
            }
            if let Some(chunk) = self.next()? {
                done = done.saturating_add(chunk.length.saturating_mul(u64::from(extent.every.max(1))));
                progress.set(done.min(extent.length), self.bytes);
            }
        }
    }

    fn slot_offset(slot: usize) -> u64 {
        CHUNK.saturating_mul(slot as u64)
    }

    fn begin(&mut self, slot: usize, chunk: Chunk) -> Result<(), Failure> {
        if let Some(place) = self.chunks.get_mut(slot) {
            *place = chunk;
        }
        if let (Way::Send(file), Some(memory)) = (self.way, self.memory.memory()) {
            let length = usize::try_from(chunk.length).unwrap_or(0);
            memory
                .read_file(Self::slot_offset(slot), file, chunk.offset, length)
                .map_err(|error| named(self.path, error))?;
        }
        self.post(slot)
    }

    fn post(&mut self, slot: usize) -> Result<(), Failure> {
        let chunk = self.chunks.get(slot).copied().unwrap_or_default();
        let part = self.memory.part(Self::slot_offset(slot), chunk.length)?;
        let place = self.place.plus(chunk.offset);
        let operation = match self.way {
            Way::Send(_) => Operation::write(part, place),
            Way::Fetch(_) | Way::Compare(_) => Operation::read(place, part),
        };
        Ok(self.queue.post(operation.cookie(slot as u64))?)
    }

    /// Takes one completion. Returns the chunk if it is done now.
    fn next(&mut self) -> Result<Option<Chunk>, Failure> {
        if self.queue.under_way() == 0 {
            self.post_again()?;
        }
        let Some(completion) = self.queue.wait(LONG)? else {
            let under_way = self.queue.under_way();
            return Err(ardma::Error::QueueSlow { under_way, time: LONG }.into());
        };
        self.completions = self.completions.saturating_add(1);
        let slot = usize::try_from(completion.cookie).unwrap_or(usize::MAX);
        let chunk = self.chunks.get(slot).copied().unwrap_or_default();
        if completion.status.is_ok() {
            self.end(slot, chunk)?;
            return Ok(Some(chunk));
        }
        self.failed = self.failed.saturating_add(1);
        self.fail(completion, slot, chunk).map(|()| None)
    }

    /// Notes what has to be posted again; an error that makes no sense to repeat is the copy's.
    fn fail(&mut self, completion: Completion, slot: usize, chunk: Chunk) -> Result<(), Failure> {
        // To copy a chunk twice does no harm, so that one of which a part was done is as one that was not begun.
        let is_behind = self.is_stopped && completion.cause() == Code::Flushed;
        let may_retry = completion.cause().class() == Class::Retry && chunk.attempts < self.retries.count;
        if !is_behind && !may_retry {
            completion.check()?;
        }
        if let Some(chunk) = self.chunks.get_mut(slot) {
            chunk.attempts = chunk.attempts.saturating_add(u32::from(!is_behind));
        }
        self.again.push_back(slot);
        self.is_stopped = true;
        Ok(())
    }

    /// Nothing is under way: lets the queue go on, with what it did not do.
    fn post_again(&mut self) -> Result<(), Failure> {
        self.adaptor.await_link_change(self.retries.pause)?;
        self.queue.resume()?;
        self.is_stopped = false;
        while let Some(slot) = self.again.pop_front() {
            self.post(slot)?;
        }
        Ok(())
    }

    fn end(&mut self, slot: usize, chunk: Chunk) -> Result<(), Failure> {
        self.bytes = self.bytes.saturating_add(chunk.length);
        self.free.push(slot);
        let length = usize::try_from(chunk.length).unwrap_or(0);
        match self.way {
            Way::Send(_) => Ok(()),
            Way::Fetch(file) => {
                if self.bytes == chunk.length {
                    empty(file).map_err(file_failure(self.path))?;
                }
                match self.memory.memory() {
                    Some(memory) => memory
                        .write_file(Self::slot_offset(slot), file, chunk.offset, length)
                        .map_err(|error| named(self.path, error)),
                    None => Ok(()),
                }
            }
            Way::Compare(file) => {
                use std::os::unix::fs::FileExt;
                let (mut ours, mut theirs) = (vec![0; length], vec![0; length]);
                self.memory.read(Self::slot_offset(slot), &mut theirs)?;
                file.read_exact_at(&mut ours, chunk.offset).map_err(file_failure(self.path))?;
                super::copy::compare(self.place, chunk.offset, &ours, &theirs)
            }
        }
    }
}

/// Takes what a file has out of it, now that there is something to put there.
fn empty(file: &File) -> std::io::Result<()> {
    // Others, such as pipes and disks, have no length that could be changed.
    if file.metadata()?.is_file() { file.set_len(0) } else { Ok(()) }
}

/// A failure of the file, with its name.
fn named(path: &Path, error: ardma::Error) -> Failure {
    match error {
        ardma::Error::File(source) => file_failure(path)(source),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(length: u64, every: u32) -> Vec<(u64, u64)> {
        let extent = Extent { place: Place::memory(2, 0), length, every };
        extent.chunks().map(|chunk| (chunk.offset, chunk.length)).collect()
    }

    #[test]
    fn chunks_cover_what_is_wanted() {
        assert_eq!(chunks(1, 1), [(0, 1)]);
        assert_eq!(chunks(CHUNK + 5, 1), [(0, CHUNK), (CHUNK, 5)]);
        assert_eq!(chunks(0, 1), []);
        assert_eq!(chunks(9 * BLOCK - 1, 4), [(0, BLOCK), (4 * BLOCK, BLOCK), (8 * BLOCK, BLOCK - 1)]);
    }
}
