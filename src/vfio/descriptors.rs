//! Finds out which message of a stream the received file descriptors belong to.
//!
//! A client sends each message with a `sendmsg` of its own, and Linux ends a receive after the buffer that carried
//! descriptors. So they belong to the last message in what was received; where more was sent at once, to the last message
//! there of a command that takes descriptors.

use super::message::{Command, Header, MAX_DESCRIPTORS};
use super::socket::Missing;
use crate::reaper;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Descriptors in waiting from which on nothing more is received.
const LIMIT: usize = 4 * MAX_DESCRIPTORS;

/// A descriptor that a client has sent. It may be the last one of a large memory, or of a file on a slow file system, so that
/// another thread closes what nobody takes over.
#[derive(Debug)]
pub struct Descriptor(Option<OwnedFd>);

impl Descriptor {
    /// Its number.
    pub fn number(&self) -> RawFd {
        self.0.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Takes it over.
    pub fn take(mut self) -> Option<OwnedFd> {
        self.0.take()
    }
}

impl From<OwnedFd> for Descriptor {
    fn from(descriptor: OwnedFd) -> Self {
        Self(Some(descriptor))
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if let Some(descriptor) = self.0.take() {
            reaper::release(descriptor);
        }
    }
}

#[derive(Debug)]
struct Group {
    /// The owner's first byte, in bytes from the start of the stream.
    owner: u64,
    descriptors: Vec<Descriptor>,
    missing: Option<Missing>,
}

/// The descriptors of messages that have not been taken yet, in the order of their messages.
#[derive(Debug, Default)]
pub struct DescriptorQueue {
    groups: VecDeque<Group>,
    /// A place at which a message is known to begin, in bytes from the start of the stream.
    boundary: u64,
}

impl DescriptorQueue {
    /// Whether more may be received.
    pub fn has_room(&self) -> bool {
        let waiting = self.groups.iter().map(|group| group.descriptors.len().max(1));
        waiting.fold(0, usize::saturating_add) < LIMIT
    }

    /// Takes in descriptors that came with the last part of `input`, from its byte `begin` on. `input` begins at a message,
    /// `position` bytes from the start of the stream.
    pub fn push(
        &mut self,
        input: &[u8],
        position: u64,
        begin: usize,
        mut descriptors: Vec<Descriptor>,
        missing: Option<Missing>,
    ) {
        descriptors.truncate(MAX_DESCRIPTORS);
        let owner = self.find_owner(input, position, begin);
        match self.groups.back_mut() {
            Some(group) if group.owner == owner => {
                group.descriptors.extend(descriptors);
                let too_many = group.descriptors.len() > MAX_DESCRIPTORS;
                group.missing = group.missing.or(missing).or(too_many.then_some(Missing::TooMany));
                group.descriptors.truncate(MAX_DESCRIPTORS);
            }
            _ => self.groups.push_back(Group { owner, descriptors, missing }),
        }
    }

    /// Takes out the descriptors of the message at `position`, and why some are missing. Those of messages before it
    /// are closed.
    pub fn take(&mut self, position: u64) -> (Vec<Descriptor>, Option<Missing>) {
        while let Some(group) = self.groups.pop_front_if(|group| group.owner <= position) {
            if group.owner == position {
                return (group.descriptors, group.missing);
            }
        }
        (Vec::new(), None)
    }

    /// Walks from message to message through what was received.
    fn find_owner(&mut self, input: &[u8], position: u64, begin: usize) -> u64 {
        let mut at = self.boundary.max(position);
        let received = position.saturating_add(begin as u64);
        let mut last = at;
        let mut taker = None;
        loop {
            let ahead = usize::try_from(at.saturating_sub(position)).unwrap_or(usize::MAX);
            let rest = input.get(ahead..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            self.boundary = at;
            last = at;
            let Some(header) = Header::parse(rest) else {
                // The receive ended inside this header.
                return at;
            };
            let end = at.saturating_add(u64::from(header.size.max(1)));
            if end > received && takes_descriptors(header.command) {
                taker = Some(at);
            }
            if header.message_size().is_none() {
                break;
            }
            at = end;
        }
        taker.unwrap_or(last)
    }
}

fn takes_descriptors(command: u16) -> bool {
    matches!(Command::n(command), Some(Command::DmaMap | Command::SetIrqs))
}
