//! One TCP connection and its two buffers.
//!
//! Both are bounded: what is to be sent is taken from the core only while the last chunk has gone out, and
//! a read brings at most one chunk more than the packet that is being put together.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::adaptor::mesh::framing::{Frame, FrameError, Framer};
use crate::poller::{Interest, Poller, Token};

/// Bytes moved in one system call: packets are gathered up to this before they are written, and this much is read at once.
pub const CHUNK: usize = 64 << 10;

/// A connection, registered with the poller for as long as it lives.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    token: Token,
    interest: Interest,
    framer: Framer,
    out: Vec<u8>,
    /// Bytes at the start of `out` that are sent already.
    sent: usize,
    /// The socket was full at the last write, and has not become writable since.
    blocked: bool,
}

impl Connection {
    /// Registers `stream`.
    ///
    /// # Errors
    /// As [`Poller::add`].
    pub fn new(stream: TcpStream, poller: &Poller, token: Token, interest: Interest) -> io::Result<Self> {
        poller.add(&stream, token, interest)?;
        let (framer, out) = (Framer::default(), Vec::new());
        Ok(Self { stream, token, interest, framer, out, sent: 0, blocked: false })
    }

    /// The socket.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Chooses what is reported about the connection.
    ///
    /// # Errors
    /// As [`Poller::modify`].
    pub fn set_interest(&mut self, poller: &Poller, interest: Interest) -> io::Result<()> {
        if self.interest != interest {
            poller.modify(&self.stream, self.token, interest)?;
            self.interest = interest;
        }
        Ok(())
    }

    /// Reads once, at most as much as `scratch` holds. `Ok(0)` is the end of the stream, `None` that there is nothing now.
    ///
    /// # Errors
    /// As the socket gives them.
    pub fn receive(&mut self, scratch: &mut [u8]) -> io::Result<Option<usize>> {
        match self.stream.read(scratch) {
            Ok(len) => {
                self.framer.push(scratch.get(..len).unwrap_or_default());
                Ok(Some(len))
            }
            Err(error) if is_transient(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Nothing will be sent any more.
    ///
    /// # Errors
    /// As the socket gives them.
    pub fn finish(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// Bytes received that do not make a packet yet.
    pub fn held(&self) -> usize {
        self.framer.held()
    }

    /// The next packet among the bytes received.
    pub fn next_frame(&mut self) -> Option<Result<Frame, FrameError>> {
        self.framer.next_frame()
    }

    /// The socket has become writable.
    pub fn unblock(&mut self) {
        self.blocked = false;
    }

    /// Sends what is left over and the packets that `next` appends, until it says that there are no more or the socket is full. At
    /// most `chunks` chunks are sent, so that one link does not keep the others waiting.
    ///
    /// Returns whether anything was sent.
    ///
    /// # Errors
    /// As the socket gives them.
    pub fn send(
        &mut self,
        poller: &Poller,
        chunks: usize,
        mut next: impl FnMut(&mut Vec<u8>) -> bool,
    ) -> io::Result<bool> {
        let mut progress = false;
        for _ in 0..chunks {
            if self.blocked {
                break;
            }
            while self.out.len() < CHUNK && next(&mut self.out) {}
            if self.out.is_empty() {
                break;
            }
            self.blocked = !self.write_out()?;
            progress = true;
        }
        self.set_interest(poller, Interest { readable: true, writable: self.blocked })?;
        Ok(progress)
    }

    /// Writes the out buffer; whether all of it went out.
    fn write_out(&mut self) -> io::Result<bool> {
        while let Some(rest) = self.out.get(self.sent..)
            && !rest.is_empty()
        {
            match self.stream.write(rest) {
                Ok(len) => self.sent = self.sent.saturating_add(len),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_transient(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(true)
    }
}

/// Whether the same call may succeed later.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
