//! Cuts a byte stream into packets.
//!
//! A pure function of the bytes: however the stream is chunked, the same packets come out. It never holds more than
//! one packet and the chunk that was pushed last.

use bytes::{Buf, BytesMut};

use super::packet::{Packet, ParseError, wire_len};

/// Why the stream gave something else than a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// A packet's CRC did not match, or a field had no meaning. It was skipped; the stream goes on after it.
    Corrupt,
    /// The stream is out of step, or speaks another language: the link has to be cut.
    Broken(ParseError),
}

/// Collects bytes and gives packets.
#[derive(Debug, Default)]
pub struct Framer {
    buffer: BytesMut,
    broken: Option<ParseError>,
}

impl Framer {
    /// Appends what was received.
    pub fn push(&mut self, received: &[u8]) {
        if self.broken.is_none() {
            self.buffer.extend_from_slice(received);
        }
    }

    /// Bytes held that do not make a packet yet.
    pub fn held(&self) -> usize {
        self.buffer.len()
    }

    /// The next packet, or `None` until more bytes come. After [`FrameError::Broken`] nothing but that comes.
    pub fn next_packet(&mut self) -> Option<Result<Packet, FrameError>> {
        if let Some(error) = self.broken {
            return Some(Err(FrameError::Broken(error)));
        }
        let len = match wire_len(&self.buffer) {
            Ok(len) => len?,
            Err(error) => {
                self.broken = Some(error);
                self.buffer.clear();
                return Some(Err(FrameError::Broken(error)));
            }
        };
        if self.buffer.remaining() < len {
            return None;
        }
        let wire = self.buffer.split_to(len).freeze();
        Some(Packet::parse(wire).map_err(|_| FrameError::Corrupt))
    }
}
