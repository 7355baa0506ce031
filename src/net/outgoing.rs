//! What a link has to send: headers and short payloads in one buffer, long payloads where they are.
//!
//! Invariant: `parts` says in which order the bytes go; the lengths of its short parts add up to what `short` holds from `taken` on; and of
//! `short` less than half is sent already, so that it does not grow where the socket never takes all.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

use crate::adaptor::mesh::packet::Sink;

/// From this length in bytes on a payload is not copied: it is worth an entry of its own in the system call.
const LONG: usize = 8 << 10;
/// Entries of a system call.
const ENTRIES: usize = 64;

#[derive(Debug)]
enum Part {
    /// So many bytes of the buffer.
    Short(usize),
    Long(Bytes),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Outgoing {
    short: Vec<u8>,
    /// Bytes at the start of `short` that are sent already.
    taken: usize,
    parts: VecDeque<Part>,
    len: usize,
}

impl Outgoing {
    /// Bytes that are still to be sent.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether everything is sent.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes that come first, as many as lie together.
    pub fn first(&self) -> &[u8] {
        match self.parts.front() {
            None => &[],
            Some(Part::Long(bytes)) => bytes,
            Some(&Part::Short(len)) => short(&self.short, self.taken, len),
        }
    }

    /// The bytes that come first, for one system call.
    pub fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut at = self.taken;
        let parts = self.parts.iter().take(ENTRIES);
        parts
            .map(|part| match part {
                Part::Long(bytes) => IoSlice::new(bytes),
                &Part::Short(len) => {
                    let bytes = short(&self.short, at, len);
                    at = at.saturating_add(len);
                    IoSlice::new(bytes)
                }
            })
            .collect()
    }

    /// The first `len` bytes are sent.
    pub fn advance(&mut self, len: usize) {
        let mut left = len.min(self.len);
        self.len = self.len.saturating_sub(left);
        while left > 0 {
            let Some(part) = self.parts.front_mut() else { break };
            let (sent, rest) = match part {
                Part::Long(bytes) => {
                    let sent = left.min(bytes.len());
                    bytes.advance(sent);
                    (sent, bytes.len())
                }
                Part::Short(len) => {
                    let sent = left.min(*len);
                    self.taken = self.taken.saturating_add(sent);
                    *len = len.saturating_sub(sent);
                    (sent, *len)
                }
            };
            left = left.saturating_sub(sent);
            if rest == 0 {
                self.parts.pop_front();
            }
        }
        // Moves no more than was sent since the last time.
        let unsent = self.short.len().saturating_sub(self.taken);
        if self.taken >= unsent {
            let taken = self.taken.min(self.short.len());
            self.short.drain(..taken);
            self.taken = 0;
        }
    }
}

fn short(buffer: &[u8], at: usize, len: usize) -> &[u8] {
    buffer.get(at..).and_then(|rest| rest.get(..len)).unwrap_or_default()
}

impl Sink for Outgoing {
    fn put(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.short.extend_from_slice(bytes);
        self.len = self.len.saturating_add(bytes.len());
        match self.parts.back_mut() {
            Some(Part::Short(len)) => *len = len.saturating_add(bytes.len()),
            _ => self.parts.push_back(Part::Short(bytes.len())),
        }
    }

    fn put_payload(&mut self, payload: &Bytes) {
        if payload.len() < LONG {
            return self.put(payload);
        }
        self.len = self.len.saturating_add(payload.len());
        self.parts.push_back(Part::Long(payload.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes everything out by `at_once` bytes.
    fn drained(mut outgoing: Outgoing, at_once: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while !outgoing.is_empty() {
            let slices: Vec<u8> = outgoing.slices().iter().flat_map(|slice| slice.to_vec()).collect();
            assert!(slices.starts_with(outgoing.first()) && !outgoing.first().is_empty());
            let taken = slices.get(..at_once.min(slices.len())).unwrap();
            all.extend_from_slice(taken);
            outgoing.advance(taken.len());
        }
        assert!(outgoing.parts.is_empty() && outgoing.short.is_empty());
        all
    }

    #[test]
    fn bytes_come_out_as_they_were_put_in_however_they_are_taken() {
        for at_once in [1, 7, 64, 5000, LONG, usize::MAX] {
            let mut outgoing = Outgoing::default();
            let mut expected = Vec::new();
            for (index, len) in [0, 1, 64, LONG, 3, LONG - 1, LONG + 1, 0, 12].into_iter().enumerate() {
                let bytes = vec![u8::try_from(index).unwrap(); len];
                expected.extend_from_slice(&bytes);
                if index % 2 == 0 { outgoing.put(&bytes) } else { outgoing.put_payload(&bytes.into()) }
            }
            assert_eq!(outgoing.len(), expected.len());
            assert_eq!(drained(outgoing, at_once), expected);
        }
    }

    #[test]
    fn memory_is_bounded_where_it_is_never_empty() {
        let mut outgoing = Outgoing::default();
        // A socket that takes less than what is put in, as the first thing of all that it does.
        for _ in 0..1000 {
            while outgoing.len() < 256 << 10 {
                outgoing.put(&[1; 64]);
            }
            outgoing.advance(100 << 10);
            assert!(outgoing.short.len() <= 1 << 20, "{} bytes are kept", outgoing.short.len());
        }
        assert_eq!(drained(outgoing, usize::MAX).len(), 156 << 10);
    }

    #[test]
    fn more_parts_than_entries_go_in_several_calls() {
        let mut outgoing = Outgoing::default();
        for _ in 0..ENTRIES {
            outgoing.put(&[1]);
            outgoing.put_payload(&vec![2; LONG].into());
        }
        assert_eq!(outgoing.slices().len(), ENTRIES);
        assert_eq!(drained(outgoing, usize::MAX).len(), ENTRIES * (LONG + 1));
    }
}
