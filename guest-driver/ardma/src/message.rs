//! Messages: doorbells of other nodes that are rung, and those of this node that are listened to.

use crate::abi;
use crate::adaptor::Adaptor;
use crate::error::{CallKind, Error};
use crate::place::{Nodes, Place};
use crate::remote::RemoteWindow;
use crate::status::{Direction, Status};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

pub use crate::abi::{DOORBELLS, Message};

/// The size of a doorbell in a node's window of the I/O space, in bytes.
const DOORBELL_SIZE: u64 = 8;
/// Messages taken from the module at once.
const BATCH: usize = 64;

/// What a node says of one of its doorbells, and of this node's messages there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Messages for which there is room now. Other nodes and doorbells use the same room.
    pub left: u32,
    /// How many messages of this node this doorbell has taken since its node's reset, wrapping.
    pub accepted: u32,
}

/// The doorbells of another node.
///
/// To ring one is a store as every other: it is posted, and a check tells what became of it. All doorbells of a node lie
/// in one block, so a check answers for all that were rung since the last one.
#[derive(Debug)]
pub struct Doorbells {
    node: u8,
    window: RemoteWindow,
}

impl Doorbells {
    pub(crate) fn new(adaptor: &Adaptor, node: u8) -> Result<Self, Error> {
        let length = u64::from(DOORBELLS).saturating_mul(DOORBELL_SIZE);
        Ok(Self { node, window: adaptor.map(Place::io(node, 0), length)? })
    }

    fn offset(doorbell: u8) -> u64 {
        u64::from(doorbell).saturating_mul(DOORBELL_SIZE)
    }

    /// Where a doorbell lies.
    pub fn place(&self, doorbell: u8) -> Place {
        Place::io(self.node, Self::offset(doorbell))
    }

    /// Sends a message of 8 bytes. Whether it arrived is told by [`Doorbells::check`].
    ///
    /// # Errors
    /// [`Error::Outside`] where there is no such doorbell.
    pub fn ring(&self, doorbell: u8, message: u64) -> Result<(), Error> {
        self.window.store(Self::offset(doorbell), message)
    }

    /// Sends a message of 4 bytes.
    ///
    /// # Errors
    /// As [`Doorbells::ring`].
    pub fn ring_short(&self, doorbell: u8, message: u32) -> Result<(), Error> {
        self.window.store(Self::offset(doorbell), message)
    }

    /// What became of all that was rung, and asked, since the last check: OK says that every message is in the other node's
    /// queue; `NoResources` that one found no room there, and is not in it.
    ///
    /// # Errors
    /// None but those of a wrong mapping.
    pub fn check(&self) -> Result<Status, Error> {
        self.window.check(0)
    }

    /// Asks a doorbell for its room, and for how many messages of this node it has taken: after a message whose outcome is
    /// unknown that number tells whether it was executed. Waits for the messages before it.
    ///
    /// # Errors
    /// [`Error::Access`] where it does not answer. Errors of messages that were rung since the last check are in it as well.
    pub fn ask(&self, doorbell: u8) -> Result<Room, Error> {
        let answer: u64 = self.window.load(Self::offset(doorbell))?;
        let status = self.check()?;
        for direction in [Direction::Read, Direction::Write] {
            if !status.code(direction).is_ok() {
                let place = self.place(doorbell);
                return Err(Error::Access { direction, place, length: DOORBELL_SIZE, status, attempts: 1 });
            }
        }
        Ok(Room { left: answer as u32, accepted: (answer >> 32) as u32 })
    }
}

/// Which doorbells of this node are to be opened, and to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// The doorbells, bit n for doorbell n.
    pub doorbells: u64,
    /// The nodes that may ring them.
    pub nodes: Nodes,
    /// Their messages raise no interrupt, until they are unmasked.
    pub masked: bool,
}

impl Default for ListenOptions {
    /// All doorbells, for every node.
    fn default() -> Self {
        Self { doorbells: u64::MAX, nodes: Nodes::ALL, masked: false }
    }
}

/// Open doorbells of this node. They are closed when it is dropped.
#[derive(Debug)]
pub struct Listener {
    file: std::fs::File,
    doorbells: u64,
}

impl Listener {
    pub(crate) fn new(device: BorrowedFd<'_>, options: &ListenOptions) -> Result<Self, Error> {
        let argument = abi::Listen {
            doorbells: options.doorbells,
            nodes: options.nodes.words(),
            flags: if options.masked { abi::LISTEN_MASKED } else { 0 },
            reserved: 0,
        };
        let file = abi::listen(device, argument)
            .map_err(|source| Error::call(CallKind::Listen, "listening to doorbells", source))?;
        Ok(Self { file: file.into(), doorbells: options.doorbells })
    }

    /// The messages that there are, in the order in which they came. Waits for the first.
    ///
    /// # Errors
    /// [`Error::Call`] where the adaptor was reset or is gone: no more will come.
    pub fn read(&self) -> Result<Vec<Message>, Error> {
        let mut bytes = [0; size_of::<Message>() * BATCH];
        loop {
            match (&self.file).read(&mut bytes) {
                Ok(length) => {
                    let (messages, _) = bytes.get(..length).unwrap_or_default().as_chunks();
                    return Ok(messages.iter().map(Message::from_bytes).collect());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::call(CallKind::Listen, "reading messages", source)),
            }
        }
    }

    /// Waits until there is something to read, at most for `time`. Returns whether there is. Of messages of masked doorbells
    /// it knows nothing.
    ///
    /// # Errors
    /// [`Error::Call`] where waiting is not possible.
    pub fn wait(&self, time: Duration) -> Result<bool, Error> {
        let mut entry = libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let time = i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the pointer is to one entry.
        match unsafe { libc::poll(&raw mut entry, 1, time) } {
            count if count >= 0 => Ok(count > 0),
            _ => match io::Error::last_os_error() {
                source if source.kind() == io::ErrorKind::Interrupted => Ok(false),
                source => Err(Error::call(CallKind::Listen, "waiting for messages", source)),
            },
        }
    }

    /// Masks all of its doorbells, or unmasks them: messages that came in between are told of then.
    ///
    /// # Errors
    /// [`Error::Call`] where the adaptor was reset or is gone.
    pub fn set_masked(&self, masked: bool) -> Result<(), Error> {
        let mut argument = abi::Mask { doorbells: self.doorbells, masked: masked.into(), reserved: 0 };
        // SAFETY: only EXPORT has a condition.
        unsafe { abi::call(self.file.as_fd(), &mut argument) }
            .map_err(|source| Error::call(CallKind::Listen, "masking doorbells", source))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Parses a set of doorbells: ids and ranges such as `0,4-7`, or `all`; bit n of the result is doorbell n.
///
/// # Errors
/// In words, where it is something else, or one is above 63.
pub fn parse_doorbells(text: &str) -> Result<u64, String> {
    match text.parse::<Nodes>().map(Nodes::words) {
        Ok([doorbells, 0, 0, 0]) => Ok(doorbells),
        Ok(_) if text == "all" => Ok(u64::MAX),
        _ => Err(format!(
            "'{text}' is not a set of doorbells: use numbers from 0 to 63 and ranges such as 0,4-7, or all"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbells_are_numbers_and_ranges_below_64() {
        assert_eq!(parse_doorbells("0,4-6"), Ok(0b111_0001));
        assert_eq!(parse_doorbells("63"), Ok(1 << 63));
        assert_eq!(parse_doorbells("all"), Ok(u64::MAX));
        for text in ["", "64", "0-64", "x", "3-1"] {
            assert!(parse_doorbells(text).is_err(), "{text}");
        }
    }

    #[test]
    fn messages_are_read_as_the_module_writes_them() {
        let mut bytes = [0; size_of::<Message>()];
        bytes[..8].copy_from_slice(&0x1122_3344_5566_7788_u64.to_ne_bytes());
        for (at, value) in [(8, 2_u32), (12, 63), (16, 8)] {
            bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        let expected = Message { data: 0x1122_3344_5566_7788, node: 2, doorbell: 63, size: 8, reserved: 0 };
        assert_eq!(Message::from_bytes(&bytes), expected);
    }
}
