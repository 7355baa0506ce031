//! One TCP connection and its two buffers.
//!
//! Both are bounded: packets to send are taken from the core only up to [`MOST_AT_ONCE`] bytes, and a read brings at most that much more
//! than the packet that is being put together.

use std::io;
use std::net::{Shutdown, TcpStream};

use super::identity::Owner;
use super::outgoing::Outgoing;
use super::transport::{Transport, is_transient};
use crate::adaptor::mesh::framing::{Frame, FrameError, Framer};
use crate::poller::{Interest, Poller, Token};

/// Bytes that are read in one system call where not more comes.
pub const CHUNK: usize = 64 << 10;
/// The most that is moved in one system call: packets are gathered up to this before they are written, and so much is read where
/// bulk traffic waits in the socket. With a quarter of it, a transfer between two processes reaches 0.7 of the rate.
pub const MOST_AT_ONCE: usize = 1 << 20;

/// A connection, registered with the poller for as long as it lives.
#[derive(Debug)]
pub struct Connection {
    transport: Transport,
    token: Token,
    /// What its owner waits for.
    wanted: Interest,
    /// What the poller was told.
    interest: Interest,
    framer: Framer,
    /// Bytes to read at once; grows while they come so fast.
    at_once: usize,
    out: Outgoing,
    /// The socket was full at the last write, and has not become writable since.
    blocked: bool,
}

impl Connection {
    /// Registers the socket.
    ///
    /// # Errors
    /// As [`Poller::add`].
    pub fn new(transport: Transport, poller: &Poller, token: Token, wanted: Interest) -> io::Result<Self> {
        let interest = transport.interest(wanted);
        poller.add(transport.stream(), token, interest)?;
        let (framer, out) = (Framer::default(), Outgoing::default());
        Ok(Self { transport, token, wanted, interest, framer, at_once: CHUNK, out, blocked: false })
    }

    /// The socket.
    pub fn stream(&self) -> &TcpStream {
        self.transport.stream()
    }

    /// Whether packets can be sent; until then, and as long as the connection is not anybody's link, [`Connection::receive`]
    /// drives the TLS handshake.
    pub fn is_ready(&self) -> bool {
        self.transport.is_ready()
    }

    /// Whose certificate the other side has shown; `None` without TLS.
    pub fn owner(&self) -> Option<Owner> {
        self.transport.owner()
    }

    /// Chooses what is reported about the connection.
    ///
    /// # Errors
    /// As [`Poller::modify`].
    pub fn set_interest(&mut self, poller: &Poller, wanted: Interest) -> io::Result<()> {
        self.wanted = wanted;
        let interest = self.transport.interest(wanted);
        if self.interest != interest {
            poller.modify(self.transport.stream(), self.token, interest)?;
            self.interest = interest;
        }
        Ok(())
    }

    /// Reads once, without TLS at most `most` bytes. `Ok(Some(0))` is the end of the stream, `None` that nothing came for the mesh.
    ///
    /// # Errors
    /// As [`Transport::receive`] and [`Poller::modify`].
    pub fn receive(&mut self, poller: &Poller, scratch: &mut [u8], most: usize) -> io::Result<Option<usize>> {
        let most = most.min(self.at_once);
        let received = self.transport.receive(scratch, most, self.framer.buffer_mut())?;
        if let Some(len) = received {
            let quarter = self.at_once / 4;
            self.at_once = if len == self.at_once {
                self.at_once.saturating_mul(2).min(MOST_AT_ONCE)
            } else if len < quarter {
                quarter.max(CHUNK)
            } else {
                self.at_once
            };
        }
        self.set_interest(poller, self.wanted)?;
        Ok(received)
    }

    /// Nothing will be sent any more.
    ///
    /// # Errors
    /// As the socket gives them.
    pub fn finish(&self) -> io::Result<()> {
        self.stream().shutdown(Shutdown::Write)
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

    /// Sends what is left over and the packets that `next` appends, until it says that there are no more, or enough are together that
    /// other links should not be kept waiting. Returns whether anything was sent.
    ///
    /// # Errors
    /// As the socket gives them.
    pub fn send(&mut self, poller: &Poller, mut next: impl FnMut(&mut Outgoing) -> bool) -> io::Result<bool> {
        let mut progress = false;
        if !self.blocked {
            while self.out.len() < MOST_AT_ONCE && next(&mut self.out) {}
            if !self.out.is_empty() || !self.transport.flush()? {
                self.blocked = !self.write_out()?;
                progress = true;
            }
        }
        self.set_interest(poller, Interest { readable: true, writable: self.blocked })?;
        Ok(progress)
    }

    /// Writes the out buffer; whether all of it went out.
    fn write_out(&mut self) -> io::Result<bool> {
        while !self.out.is_empty() {
            match self.transport.write(&self.out) {
                Ok(len) => self.out.advance(len),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_transient(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.transport.flush()
    }
}
