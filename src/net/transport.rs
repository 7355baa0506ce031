//! A TCP socket, with or without TLS on it, as a link uses it: bytes in, bytes out, never waiting.
//!
//! Invariant: between two calls no plaintext is left inside TLS. So what the poller says about the socket is all there is to
//! know, and memory is bounded: towards the socket by the limit of [`rustls::Connection::set_buffer_limit`], from it by one
//! TLS record, and before the other side has proven who it is by [`MAX_HANDSHAKE`] bytes altogether.

use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::net::TcpStream;

use bytes::BytesMut;
use rustls::{AlertDescription, CertificateError};

use super::credentials::{Credentials, identify};
use super::identity::{Identity, Owner};
use super::link::CHUNK;
use super::outgoing::Outgoing;
use crate::poller::Interest;

/// The most bytes of a handshake that are read: chains of certificates are a tenth of it.
pub const MAX_HANDSHAKE: usize = 32 << 10;
/// The most bytes that TLS keeps for the socket. What a link has gathered beyond that waits there.
const MAX_SENDABLE: usize = 2 * CHUNK;
/// The content types of TLS records; no packet of the mesh begins with one of them.
const TLS_RECORDS: core::ops::RangeInclusive<u8> = 0x14..=0x17;

/// The socket.
#[derive(Debug)]
pub struct Transport {
    stream: TcpStream,
    security: Security,
}

#[derive(Debug)]
enum Security {
    /// Plain TCP.
    Plain {
        /// Nothing has arrived yet.
        fresh: bool,
    },
    Tls(Box<Session>),
}

impl Transport {
    /// A connection that this process is making to `peer`. With `credentials` it uses TLS.
    ///
    /// # Errors
    /// As [`Credentials::connect`].
    pub fn dialed(stream: TcpStream, credentials: Option<&Credentials>, peer: Identity) -> io::Result<Self> {
        Self::new(stream, credentials.map(|credentials| credentials.connect(peer)))
    }

    /// A connection that this process has accepted. With `credentials` it uses TLS.
    ///
    /// # Errors
    /// As [`Credentials::accept`].
    pub fn accepted(stream: TcpStream, credentials: Option<&Credentials>) -> io::Result<Self> {
        Self::new(stream, credentials.map(Credentials::accept))
    }

    fn new(stream: TcpStream, tls: Option<Result<rustls::Connection, rustls::Error>>) -> io::Result<Self> {
        let security = match tls.transpose().map_err(io::Error::other)? {
            None => Security::Plain { fresh: true },
            Some(connection) => Security::Tls(Box::new(Session::new(connection))),
        };
        Ok(Self { stream, security })
    }

    /// The socket itself.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether packets can be sent: the TLS handshake is done, or there is none.
    pub fn is_ready(&self) -> bool {
        match &self.security {
            Security::Plain { .. } => true,
            Security::Tls(session) => session.peer.is_some(),
        }
    }

    /// Whose certificate the other side has shown; `None` without TLS, and before the handshake is done.
    pub fn owner(&self) -> Option<Owner> {
        match &self.security {
            Security::Plain { .. } => None,
            Security::Tls(session) => session.peer,
        }
    }

    /// What has to be reported about the socket so that a link that waits for `wanted` gets on.
    pub fn interest(&self, wanted: Interest) -> Interest {
        match &self.security {
            Security::Plain { .. } => wanted,
            Security::Tls(session) => session.interest(wanted),
        }
    }

    /// Reads once and appends what arrived to `received`: without TLS at most `most` bytes, straight from the socket; with it what
    /// fits into `scratch`. `Ok(Some(0))` is the end of the stream, `None` that there is nothing new now. Sends what TLS has to
    /// answer, if the socket takes it.
    ///
    /// # Errors
    /// As the socket gives them; [`ErrorKind::InvalidData`] where the other side is not one to talk to, with a text for the operator.
    pub fn receive(
        &mut self,
        scratch: &mut [u8],
        most: usize,
        received: &mut BytesMut,
    ) -> io::Result<Option<usize>> {
        match &mut self.security {
            Security::Plain { fresh } => {
                let before = received.len();
                let len = match read_some(&self.stream, received, most) {
                    Err(error) if is_transient(&error) => return Ok(None),
                    read => read?,
                };
                if core::mem::replace(fresh, false) {
                    reject_tls(received.get(before..).unwrap_or_default())?;
                }
                Ok(Some(len))
            }
            Security::Tls(session) => {
                let read = match (&self.stream).read(scratch) {
                    Err(error) if is_transient(&error) => None,
                    read => Some(read),
                };
                let result = match read {
                    None => Ok(None),
                    Some(Ok(0)) if session.peer.is_some() => Ok(Some(0)),
                    Some(Ok(0)) => Err(session.cut_short("closed")),
                    Some(Err(error)) if session.peer.is_none() && is_reset(&error) => {
                        Err(session.cut_short("reset"))
                    }
                    Some(Err(error)) => Err(error),
                    Some(Ok(len)) => session.take_in(scratch.get(..len).unwrap_or_default(), received),
                };
                // Also after an error, so that the other side learns of it.
                let flushed = session.flush(&self.stream);
                let received = result?;
                flushed?;
                Ok(received)
            }
        }
    }

    /// Takes some of the bytes in `out` to send; how many, at least one.
    ///
    /// # Errors
    /// As the socket gives them; [`ErrorKind::WouldBlock`] where there is no room now.
    pub fn write(&mut self, out: &Outgoing) -> io::Result<usize> {
        let Security::Tls(session) = &mut self.security else {
            return (&self.stream).write_vectored(&out.slices());
        };
        if !session.flush(&self.stream)? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let taken = session.connection.writer().write(out.first())?;
        if taken == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }

    /// Sends what was taken. Returns whether all of it is with the kernel.
    ///
    /// # Errors
    /// As the socket gives them.
    pub fn flush(&mut self) -> io::Result<bool> {
        match &mut self.security {
            Security::Plain { .. } => Ok(true),
            Security::Tls(session) => session.flush(&self.stream),
        }
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        if let Security::Tls(session) = &mut self.security
            && session.peer.is_some()
        {
            // As good as it goes without waiting: what counts was acknowledged by then.
            session.connection.send_close_notify();
            drop(session.flush(&self.stream));
        }
    }
}

/// The TLS side of a connection.
#[derive(Debug)]
struct Session {
    connection: rustls::Connection,
    /// Who is there; known from the end of the handshake on.
    peer: Option<Owner>,
    /// Bytes of the handshake so far.
    handshake: usize,
}

impl Session {
    fn new(mut connection: rustls::Connection) -> Self {
        connection.set_buffer_limit(Some(MAX_SENDABLE));
        Self { connection, peer: None, handshake: 0 }
    }

    fn interest(&self, wanted: Interest) -> Interest {
        let writable = self.connection.wants_write();
        if self.peer.is_some() {
            return Interest { writable: wanted.writable || writable, ..wanted };
        }
        // While a part of the handshake waits to be sent, nothing of the other side's is read.
        Interest { readable: self.connection.wants_read(), writable }
    }

    fn flush(&mut self, mut stream: &TcpStream) -> io::Result<bool> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut stream) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_transient(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Decrypts everything in `bytes`.
    fn take_in(&mut self, mut bytes: &[u8], received: &mut BytesMut) -> io::Result<Option<usize>> {
        let stranger = self.handshake == 0;
        let speaks_tls = bytes.first().is_none_or(|first| TLS_RECORDS.contains(first));
        let mut delivered = 0usize;
        while !bytes.is_empty() {
            let taken = self.connection.read_tls(&mut bytes)?;
            if self.peer.is_none() {
                self.handshake = self.handshake.saturating_add(taken);
            }
            let state = self.connection.process_new_packets().map_err(|error| {
                if stranger && !speaks_tls {
                    refusal("it does not speak TLS, which this node's peers have to; give it --tls-cert, --tls-key and --tls-ca, too")
                } else {
                    refusal(&explain(&error))
                }
            })?;
            if self.peer.is_none() {
                if !self.connection.is_handshaking() {
                    self.peer = Some(identify(&self.connection).map_err(|problem| refusal(&problem))?);
                } else if self.handshake > MAX_HANDSHAKE {
                    return Err(refusal("its TLS handshake is too long"));
                }
            }
            delivered = delivered.saturating_add(self.hand_over(received)?);
            if state.peer_has_closed() {
                return if self.peer.is_some() { Ok(Some(0)) } else { Err(self.cut_short("closed")) };
            }
        }
        Ok((delivered > 0).then_some(delivered))
    }

    /// Hands over all plaintext; how much it was.
    fn hand_over(&mut self, received: &mut BytesMut) -> io::Result<usize> {
        let mut reader = self.connection.reader();
        let mut delivered = 0usize;
        loop {
            let len = match reader.fill_buf() {
                Ok(chunk) => {
                    received.extend_from_slice(chunk);
                    chunk.len()
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                Err(error) => return Err(error),
            };
            if len == 0 {
                return Ok(delivered);
            }
            reader.consume(len);
            delivered = delivered.saturating_add(len);
        }
    }

    fn cut_short(&self, how: &str) -> io::Error {
        let text = match self.handshake {
            0 => format!(
                "{how} by the other side before it said anything of TLS; does it have --tls-cert, --tls-key and --tls-ca?"
            ),
            _ => format!("{how} by the other side within the TLS handshake"),
        };
        io::Error::new(ErrorKind::ConnectionReset, text)
    }
}

/// Reads once, at most `most` bytes, and appends them to `received`; how many. 0 is the end of the stream.
fn read_some(stream: &TcpStream, received: &mut BytesMut, most: usize) -> io::Result<usize> {
    received.reserve(most);
    let room = received.spare_capacity_mut();
    let len = room.len().min(most);
    let (read, _) = rustix::io::read(stream, room.get_mut(..len).unwrap_or_default())?;
    let len = read.len();
    // SAFETY: rustix has initialised the first `len` bytes of the spare capacity.
    unsafe { received.set_len(received.len().saturating_add(len)) };
    Ok(len)
}

/// Whether the same call may succeed later.
pub fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn is_reset(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

fn refusal(text: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text)
}

/// Looks at the first bytes of a plain connection.
fn reject_tls(bytes: &[u8]) -> io::Result<()> {
    match bytes {
        [first, rest @ ..] if TLS_RECORDS.contains(first) && rest.first().is_none_or(|&major| major == 3) => {
            Err(refusal(
                "it speaks TLS, and this node does not; give this one --tls-cert, --tls-key and --tls-ca, too",
            ))
        }
        _ => Ok(()),
    }
}

/// What a TLS error means to the operator.
fn explain(error: &rustls::Error) -> String {
    use AlertDescription as Alert;
    match error {
        rustls::Error::AlertReceived(alert) => {
            let why = match alert {
                Alert::UnknownCA => {
                    "it does not trust the authority of this node's certificate (its --tls-ca)"
                }
                Alert::CertificateExpired => "this node's certificate is not valid at this time by its clock",
                Alert::CertificateRequired => "it wants a certificate and got none",
                Alert::BadCertificate => "this node's certificate is not the one it expects",
                _ => return format!("it ended TLS: {alert:?}"),
            };
            format!("it refused: {why}")
        }
        rustls::Error::NoCertificatesPresented => "it showed no certificate".to_owned(),
        rustls::Error::InvalidCertificate(problem) => match problem {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "its certificate is not of an authority that this node trusts (--tls-ca)".to_owned()
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "its certificate has expired".to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid yet".to_owned()
            }
            CertificateError::NotValidForNameContext { expected, presented } => {
                format!("its certificate is for {}, not for {}", presented.join(", "), expected.to_str())
            }
            other => format!("its certificate is not accepted: {other}"),
        },
        other => format!("TLS: {other}"),
    }
}
