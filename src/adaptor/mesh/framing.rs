//! Cuts a byte stream into packets.
//!
//! A pure function of the bytes: however the stream is chunked, the same packets come out. It never holds more than
//! one packet and the chunk that was pushed last.

use bytes::{Buf, Bytes, BytesMut};

use super::packet::{Packet, ParseError, wire_len};

/// Why the stream gave something else than a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// A packet's CRC did not match, or a field had no meaning. It was skipped; the stream goes on after it.
    Corrupt,
    /// The stream is out of step, or speaks another language: the link has to be cut.
    Broken(ParseError),
}

/// A packet as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The packet, taken apart.
    pub packet: Packet,
    /// The same, whole. It shares the memory of the packet's payload, and may keep more of the stream's bytes alive.
    pub wire: Bytes,
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

    /// Where to append what is received, without a copy in between.
    pub fn buffer_mut(&mut self) -> &mut BytesMut {
        if self.broken.is_some() {
            self.buffer.clear();
        }
        &mut self.buffer
    }

    /// Bytes held that do not make a packet yet.
    pub fn held(&self) -> usize {
        self.buffer.len()
    }

    /// As [`Self::next_frame`], the packet only.
    pub fn next_packet(&mut self) -> Option<Result<Packet, FrameError>> {
        self.next_frame().map(|frame| frame.map(|frame| frame.packet))
    }

    /// The next packet, or `None` until more bytes come. After [`FrameError::Broken`] nothing but that comes.
    pub fn next_frame(&mut self) -> Option<Result<Frame, FrameError>> {
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
        match Packet::parse(wire.clone()) {
            Ok(packet) => Some(Ok(Frame { packet, wire })),
            Err(_) => Some(Err(FrameError::Corrupt)),
        }
    }
}
