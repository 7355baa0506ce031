//! Queues: operations of the DMA engine, posted without a call to the module.
//!
//! The invariants: of every operation the memory that it names stays registered until its completion was
//! taken, or until the module has said that nothing of the queue is under way; and no more operations are under
//! way than the rings have entries.

mod entry;
mod rings;
#[cfg(test)]
mod tests;

use crate::abi::engine;
use crate::adaptor::Adaptor;
use crate::error::{CallKind, Error};
use crate::mapping::{Mapping, Memory, PAGE};
use crate::place::Place;
use crate::registered::{LocalRights, Part};
use crate::status::{Code, Direction, Status};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::time::{Duration, Instant};

use entry::{Ended, scatter_entry};
use rings::{Layout, Rings};

pub use entry::{INLINE, Opcode, Operation};

/// So often a poll that finds nothing asks whether the adaptor was reset.
const LOOK_EVERY: u32 = 4096;

/// Every operation ends earlier, so where no completion comes for so long the adaptor itself is asked.
const QUIET: Duration = Duration::from_secs(10);

/// How a queue is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Operations that can be under way: a power of two from 4 to 4096.
    pub entries: u32,
    /// The longest scatter list, up to 1024 parts.
    pub scatter: u32,
    /// Waiting for completions: an interrupt comes for so many of them.
    pub coalesce_count: u32,
    /// And when the first of them is so old.
    pub coalesce_time: Duration,
    /// How long [`Queue::wait`] polls before it sleeps.
    pub poll: Duration,
}

impl Default for QueueOptions {
    /// 256 entries, scatter lists of 16 parts, an interrupt for each completion, and 50 us of polling.
    fn default() -> Self {
        Self {
            entries: 256,
            scatter: 16,
            coalesce_count: 0,
            coalesce_time: Duration::ZERO,
            poll: Duration::from_micros(50),
        }
    }
}

/// An operation under way: what is needed to tell of its end, and the memory that must stay.
#[derive(Debug)]
struct UnderWay {
    opcode: Opcode,
    place: Place,
    length: u64,
    /// One part, or none, or those of a scatter list.
    _memory: (Option<Part>, Vec<Part>),
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What the operation was.
    pub opcode: Opcode,
    /// Where in another node's memory it was.
    pub place: Place,
    /// Bytes that it was to move.
    pub length: u64,
    /// As it was given to [`Operation::cookie`].
    pub cookie: u64,
    /// What a check of exactly this operation says.
    pub status: Status,
    /// Bytes that were moved, counted from the first one.
    pub bytes: u64,
    /// What the memory was before an atomic; with [`Code::Partial`] the code that [`Self::cause`] gives.
    pub former: u64,
}

impl Completion {
    fn new(ended: Ended, operation: &UnderWay) -> Self {
        let &UnderWay { opcode, place, length, .. } = operation;
        let Ended { status, cookie, bytes, former, .. } = ended;
        Self { opcode, place, length, cookie, status, bytes, former }
    }

    /// The code of the operation; OK if it was executed as a whole.
    pub const fn code(&self) -> Code {
        let write = self.status.write();
        if write.is_ok() { self.status.read() } else { write }
    }

    /// Why it failed: the code, or, where a part of it was executed, that of the first part which was not.
    pub fn cause(&self) -> Code {
        match self.code() {
            Code::Partial => match u8::try_from(self.former) {
                Ok(0) | Err(_) => Code::Partial,
                Ok(bits) => Code::from_bits(bits),
            },
            code => code,
        }
    }

    /// Itself if the operation was executed.
    ///
    /// # Errors
    /// [`Error::Operation`], which names the operation and the code.
    pub fn check(self) -> Result<Self, Error> {
        if self.status.is_ok() {
            return Ok(self);
        }
        Err(Error::Operation {
            opcode: self.opcode,
            place: self.place,
            length: self.length,
            done: self.bytes,
            status: self.status,
            cause: self.cause(),
        })
    }

    /// Which way the data went.
    pub const fn direction(&self) -> Direction {
        match self.opcode {
            Opcode::Read => Direction::Read,
            _ => Direction::Write,
        }
    }
}

/// A queue of the DMA engine. Operations to one node are executed in the order of posting, and completions come in the
/// order of posting. After one that failed the rest is flushed (`Flushed`), until [`Queue::resume`].
#[derive(Debug)]
pub struct Queue {
    adaptor: Adaptor,
    /// Of the module, for its end; `None` in tests.
    handle: Option<u64>,
    event: Option<File>,
    options: QueueOptions,
    /// Resets of the adaptor before the queue was made.
    resets: u32,
    posted: u32,
    /// How many completions were taken.
    taken: u32,
    looks: u32,
    /// Since when [`Queue::wait`] has waited for a completion.
    quiet: Option<Instant>,
    under_way: VecDeque<UnderWay>,
    /// After `under_way`, since the memory of the rings is needed as long.
    rings: Rings,
}

impl Queue {
    pub(crate) fn new(adaptor: &Adaptor, options: &QueueOptions) -> Result<Self, Error> {
        let bad = || Error::Outside { offset: 0, length: options.entries.into(), available: 4096 };
        if !options.entries.is_power_of_two() || !(4..=4096).contains(&options.entries) {
            return Err(bad());
        }
        let resets = adaptor.resets()?;
        let layout = Layout::new(options.entries.trailing_zeros(), options.scatter);
        let memory = adaptor.register(Memory::new(layout.length)?, LocalRights::ALL)?;
        let event = eventfd().map_err(|source| Error::call(CallKind::Queue, "making an eventfd", source))?;
        let mut argument = engine::CreateQueue {
            submission: 0,
            completion: layout.completions,
            key: memory.key(),
            entries_log2: layout.entries.trailing_zeros(),
            coalesce_count: options.coalesce_count,
            coalesce_us: u32::try_from(options.coalesce_time.as_micros()).unwrap_or(u32::MAX),
            eventfd: u32::try_from(event.as_raw_fd()).unwrap_or(engine::NO_EVENTFD),
            ..engine::CreateQueue::default()
        };
        // SAFETY: the rings are in memory of this queue alone, which lives as long as it.
        unsafe { adaptor.device().call(&mut argument) }
            .map_err(|source| Error::call(CallKind::Queue, "making a queue", source))?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let doorbell = Mapping::device(adaptor.as_fd(), argument.doorbell, PAGE as usize, protection)
            .and_then(Mapping::not_for_children);
        let doorbell = doorbell.map_err(|source| {
            destroy(adaptor, argument.doorbell);
            Error::call(CallKind::Map, "mapping a doorbell page", source)
        })?;
        let rings = Rings::new(layout, memory, doorbell);
        Ok(Self::over(adaptor, Some(argument.doorbell), Some(event), options, resets, rings))
    }

    fn over(
        adaptor: &Adaptor,
        handle: Option<u64>,
        event: Option<File>,
        options: &QueueOptions,
        resets: u32,
        rings: Rings,
    ) -> Self {
        let under_way = VecDeque::with_capacity(rings.layout().entries as usize);
        let (adaptor, options) = (adaptor.clone(), *options);
        Self {
            adaptor,
            handle,
            event,
            options,
            resets,
            posted: 0,
            taken: 0,
            looks: 0,
            quiet: None,
            under_way,
            rings,
        }
    }

    /// Operations whose completion was not taken yet.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// How many more can be posted now.
    pub fn room(&self) -> usize {
        (self.rings.layout().entries as usize).saturating_sub(self.under_way.len())
    }

    /// Posts an operation. It is under way when this returns.
    ///
    /// # Errors
    /// [`Error::QueueFull`] until a completion is taken; [`Error::Outside`] and [`Error::NotMemory`] where the operation
    /// makes no sense. Then it is not posted.
    pub fn post(&mut self, operation: Operation) -> Result<(), Error> {
        self.put(operation)?;
        self.rings.kick(self.posted)
    }

    /// Posts operations while there are some and room for them, and tells the adaptor of all at once. Returns how many.
    ///
    /// # Errors
    /// As [`Queue::post`], but for a queue that is full; those before the one that makes no sense are posted.
    pub fn post_all(&mut self, operations: impl IntoIterator<Item = Operation>) -> Result<usize, Error> {
        let mut operations = operations.into_iter();
        let mut count = 0_usize;
        let mut result = Ok(());
        while self.room() > 0
            && let Some(operation) = operations.next()
        {
            result = self.put(operation);
            if result.is_err() {
                break;
            }
            count = count.saturating_add(1);
        }
        if count > 0 {
            self.rings.kick(self.posted)?;
        }
        result.map(|()| count)
    }

    fn put(&mut self, operation: Operation) -> Result<(), Error> {
        self.adaptor.device().verify()?;
        let layout = *self.rings.layout();
        operation.verify(layout.scatter)?;
        if self.room() == 0 {
            return Err(Error::QueueFull { entries: layout.entries });
        }
        let index = self.posted;
        if let Some(parts) = operation.scattered() {
            for (at, part) in parts.iter().enumerate() {
                self.rings.put_list(index, at, &scatter_entry(part))?;
            }
        }
        self.rings.put(index, &operation.encode(index, (self.rings.key(), layout.list(index))))?;
        self.posted = index.wrapping_add(1);
        let (opcode, place, length) = (operation.opcode(), operation.place(), operation.length());
        self.under_way.push_back(UnderWay { opcode, place, length, _memory: operation.take_parts() });
        Ok(())
    }

    /// The next completion, if there is one now. It costs no call.
    ///
    /// # Errors
    /// [`Error::QueueLost`] where the adaptor was reset: what became of the operations under way is unknown.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Completion>, Error> {
        self.adaptor.device().verify()?;
        if self.under_way.is_empty() {
            return Ok(None);
        }
        if let Some(ended) = self.rings.completion(self.taken)? {
            self.taken = self.taken.wrapping_add(1);
            self.quiet = None;
            let operation = self.under_way.pop_front();
            return Ok(operation.map(|operation| Completion::new(ended, &operation)));
        }
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOK_EVERY) {
            self.look()?;
        }
        Ok(None)
    }

    /// Whether the queue is still there.
    fn look(&self) -> Result<(), Error> {
        if self.handle.is_some() && self.adaptor.resets()? != self.resets {
            return Err(Error::QueueLost { under_way: self.under_way.len() });
        }
        Ok(())
    }

    /// An adaptor that was disabled, or replaced, tells nobody so by itself.
    fn ask_when_quiet(&mut self) -> Result<(), Error> {
        if self.quiet.get_or_insert_with(Instant::now).elapsed() < QUIET || self.handle.is_none() {
            return Ok(());
        }
        self.quiet = None;
        self.adaptor.info().map(drop)
    }

    /// Waits for the next completion: polls for a while, and then sleeps. `None` after `time`, and where nothing is under
    /// way.
    ///
    /// # Errors
    /// As [`Queue::poll`]; [`Error::Call`] where waiting is not possible.
    pub fn wait(&mut self, time: Duration) -> Result<Option<Completion>, Error> {
        let start = Instant::now();
        let polls = time.min(self.options.poll);
        loop {
            // A look at the clock costs more than one at the ring.
            for _ in 0..64 {
                if let Some(completion) = self.poll()? {
                    return Ok(Some(completion));
                }
                std::hint::spin_loop();
            }
            let waited = start.elapsed();
            if waited >= time || self.under_way.is_empty() {
                return Ok(None);
            }
            if waited >= polls {
                self.rings.arm(self.taken)?;
                self.sleep(time.saturating_sub(waited))?;
                self.ask_when_quiet()?;
                self.look()?;
            }
        }
    }

    /// Waits for the eventfd, and takes its count.
    fn sleep(&self, time: Duration) -> Result<(), Error> {
        let Some(event) = &self.event else { return Ok(()) };
        let mut entry = libc::pollfd { fd: event.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // At least once in a second the caller looks whether the queue is still there.
        let time = i32::try_from(time.as_millis().saturating_add(1)).unwrap_or(i32::MAX).min(1000);
        // SAFETY: the pointer is to one entry.
        let count = unsafe { libc::poll(&raw mut entry, 1, time) };
        let failed = |source: io::Error| Error::call(CallKind::Queue, "waiting for completions", source);
        if count < 0 {
            let source = io::Error::last_os_error();
            return if source.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(failed(source)) };
        }
        if count > 0 {
            match (&*event).read(&mut [0; 8]) {
                Err(source) if source.kind() != io::ErrorKind::WouldBlock => return Err(failed(source)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits until nothing is under way, and gives each completion to `each`.
    ///
    /// # Errors
    /// As [`Queue::wait`]; what `each` returns, after which the rest is still under way; [`Error::QueueSlow`] where no
    /// completion comes for so long as `time`.
    pub fn finish<E: From<Error>>(
        &mut self,
        time: Duration,
        mut each: impl FnMut(Completion) -> Result<(), E>,
    ) -> Result<(), E> {
        while self.under_way() > 0 {
            match self.wait(time)? {
                Some(completion) => each(completion)?,
                None => return Err(Error::QueueSlow { under_way: self.under_way.len(), time }.into()),
            }
        }
        Ok(())
    }

    /// After an operation failed, and the ones behind it were flushed: those that are posted from now on are executed again.
    ///
    /// # Errors
    /// None but those of a wrong mapping.
    pub fn resume(&mut self) -> Result<(), Error> {
        self.rings.resume(self.posted)
    }

    /// A file that becomes readable when [`Queue::arm`] was called and a completion is there, for use with poll(2) or
    /// epoll(7). Who waits for it reads its 8 bytes.
    pub fn event(&self) -> Option<BorrowedFd<'_>> {
        self.event.as_ref().map(AsFd::as_fd)
    }

    /// The next completion is to make [`Queue::event`] readable; at once if it is there. It holds for one.
    ///
    /// # Errors
    /// None but those of a wrong mapping.
    pub fn arm(&self) -> Result<(), Error> {
        self.rings.arm(self.taken)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // After this nothing is under way, and the memory may go. Where it fails, the module keeps it.
        if let Some(handle) = self.handle {
            destroy(&self.adaptor, handle);
        }
    }
}

fn destroy(adaptor: &Adaptor, doorbell: u64) {
    let mut argument = engine::DestroyQueue { doorbell };
    // SAFETY: DESTROY_QUEUE touches no memory of this process.
    drop(unsafe { adaptor.device().call(&mut argument) });
}

fn eventfd() -> io::Result<File> {
    // SAFETY: the call takes no pointer; the result is checked, and is nobody else's.
    unsafe {
        match libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) {
            file if file >= 0 => Ok(File::from_raw_fd(file)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
