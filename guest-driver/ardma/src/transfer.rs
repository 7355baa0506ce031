//! Checked copies: every block is checked once, and tried again where that makes sense.
//!
//! The invariant: what is reported as copied was checked, its direction's code was OK, and no reset of the adaptor,
//! which forgets what it was to do, came between.

use crate::adaptor::Adaptor;
use crate::error::Error;
use crate::place::Place;
use crate::remote::{BlockPart, RemoteWindow};
use crate::status::{Class, Code, Direction, Status};
use std::time::Duration;

/// How often a block is tried again whose code says that a retry makes sense, and how long to pause before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Attempts after the first.
    pub count: u32,
    /// The longest pause before each; a change of a link ends it.
    pub pause: Duration,
}

impl Default for Retries {
    /// Ten, each after at most half a second.
    fn default() -> Self {
        Self { count: 10, pause: Duration::from_millis(500) }
    }
}

/// What a transfer did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes that were copied and found executed.
    pub bytes: u64,
    /// Checks, each of one block.
    pub checks: u64,
    /// Checks that found an error of the transfer.
    pub failed: u64,
    /// The first error of other accesses (the other direction's) that a check returned on the way.
    pub other: Option<(Place, Status)>,
}

/// A checked copy, block by block.
#[derive(Debug)]
pub struct Transfer<'a> {
    adaptor: &'a Adaptor,
    window: &'a RemoteWindow,
    retries: Retries,
    counts: Counts,
}

impl<'a> Transfer<'a> {
    /// A transfer to or from a window of this adaptor.
    pub fn new(adaptor: &'a Adaptor, window: &'a RemoteWindow, retries: Retries) -> Self {
        Self { adaptor, window, retries, counts: Counts::default() }
    }

    /// What was done until now.
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Stores bytes into the window, and checks each block.
    ///
    /// # Errors
    /// [`Error::Access`] or [`Error::Reset`] names the first block that failed for good; the ones before it were written.
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), Error> {
        let window = self.window;
        let mut rest = from;
        for part in window.blocks(offset, from.len() as u64) {
            let (block, after) =
                rest.split_at(usize::try_from(part.length).unwrap_or(usize::MAX).min(rest.len()));
            rest = after;
            self.block(Direction::Write, part, &mut || window.write_bytes(part.offset, block))?;
        }
        Ok(())
    }

    /// Loads bytes from the window, and checks each block.
    ///
    /// # Errors
    /// [`Error::Access`] or [`Error::Reset`] names the first block that failed for good; from there on `to` means nothing.
    pub fn read(&mut self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        let window = self.window;
        let mut rest = &mut *to;
        for part in window.blocks(offset, rest.len() as u64) {
            let length = usize::try_from(part.length).unwrap_or(usize::MAX).min(rest.len());
            let (block, after) = std::mem::take(&mut rest).split_at_mut(length);
            rest = after;
            self.block(Direction::Read, part, &mut || window.read_bytes(part.offset, block))?;
        }
        Ok(())
    }

    fn block(
        &mut self,
        direction: Direction,
        part: BlockPart,
        access: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let place = self.window.place().plus(part.offset);
        let mut attempts = 0_u32;
        loop {
            attempts = attempts.saturating_add(1);
            let lapses = self.adaptor.lapses()?;
            access()?;
            let status = self.adaptor.believe(self.window.check(part.offset)?)?;
            if self.adaptor.lapses()? != lapses {
                self.counts.failed = self.counts.failed.saturating_add(1);
                return Err(Error::Reset { direction, place, length: part.length });
            }
            match self.judge(direction, place, part.length, status) {
                Code::Ok => return Ok(()),
                code if code.class() == Class::Retry && attempts <= self.retries.count => {
                    self.adaptor.await_link_change(self.retries.pause)?;
                }
                _ => return Err(Error::Access { direction, place, length: part.length, status, attempts }),
            }
        }
    }

    /// Counts a check's answer, and returns the code that counts for the transfer.
    fn judge(&mut self, direction: Direction, place: Place, length: u64, status: Status) -> Code {
        let counts = &mut self.counts;
        counts.checks = counts.checks.saturating_add(1);
        let code = status.code(direction);
        if code.is_ok() {
            counts.bytes = counts.bytes.saturating_add(length);
            if !status.is_ok() {
                counts.other.get_or_insert((place, status));
            }
        } else {
            counts.failed = counts.failed.saturating_add(1);
        }
        code
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;

    #[test]
    fn what_a_reset_came_between_is_of_unknown_outcome() {
        let (adaptor, _file) = crate::remote_tests::fake();
        let window = adaptor.map(Place::memory(2, 0), 0x1000).unwrap();
        let mut transfer = Transfer::new(&adaptor, &window, Retries::default());
        let part = BlockPart { offset: 0, length: 8 };
        let mut reset = || {
            adaptor.pretend_reset();
            Ok(())
        };
        let error = transfer.block(Direction::Write, part, &mut reset).unwrap_err();
        assert!(matches!(error, Error::Reset { length: 8, .. }), "{error}");
        assert_eq!((transfer.counts().bytes, transfer.counts().failed), (0, 1));
        // It is one event for the program too, and no reason to fail what comes after it.
        assert!(adaptor.wait(Duration::ZERO).unwrap());
        assert_eq!(adaptor.events().unwrap(), crate::abi::EVENT_RESET);
        transfer.write(0, &[1; 8]).unwrap();
    }
}
