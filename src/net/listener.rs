//! Accepts connections, and keeps strangers cheap.

use core::time::Duration;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};

use super::socket;
use crate::adaptor::Instant;
use crate::descriptors;
use crate::poller::{Interest, Poller, Token};

/// How long to leave new connections waiting after the process ran out of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// A listening socket, registered with the poller.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    token: Token,
    paused_until: Option<Instant>,
    /// Connections can't be taken for lack of something, which was told.
    is_failing: bool,
}

impl Listener {
    /// Registers a socket that listens already.
    ///
    /// # Errors
    /// As [`Poller::add`].
    pub fn new(socket: TcpListener, poller: &Poller, token: Token) -> io::Result<Self> {
        poller.add(&socket, token, Interest::READ)?;
        Ok(Self { socket, token, paused_until: None, is_failing: false })
    }

    /// Its name in reports.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The next connection that waits, if any. After an error that would come again at once it takes a pause.
    pub fn accept(
        &mut self,
        now: Instant,
        poller: &Poller,
        congestion: Option<&str>,
    ) -> Option<(TcpStream, SocketAddr)> {
        if self.paused_until.is_some() {
            return None;
        }
        let accepted = self.socket.accept().and_then(|(stream, from)| {
            if !descriptors::leaves_enough(&stream) {
                return Err(io::Error::from_raw_os_error(libc::EMFILE));
            }
            let stream = socket::adopt(stream, from, congestion)?;
            Ok((stream, from))
        });
        match accepted {
            Ok(accepted) => {
                self.is_failing = false;
                Some(accepted)
            }
            Err(error) => {
                use io::ErrorKind as Kind;
                // A connection that was closed while it waited is nobody's fault.
                let harmless =
                    [Kind::WouldBlock, Kind::Interrupted, Kind::ConnectionAborted, Kind::ConnectionReset];
                if !harmless.contains(&error.kind()) {
                    if !core::mem::replace(&mut self.is_failing, true) {
                        let advice = descriptors::Advice(descriptors::limit());
                        match error.raw_os_error() {
                            Some(libc::EMFILE) => log::warn!("can't accept a connection: {error}; {advice}"),
                            _ => log::warn!("can't accept a connection: {error}"),
                        }
                    }
                    self.set_paused(poller, Some(now.after(PAUSE)));
                }
                None
            }
        }
    }

    /// When the pause ends.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Ends the pause when it is time.
    pub fn handle_timeout(&mut self, now: Instant, poller: &Poller) {
        if self.paused_until.is_some_and(|end| end <= now) {
            self.set_paused(poller, None);
        }
    }

    fn set_paused(&mut self, poller: &Poller, until: Option<Instant>) {
        self.paused_until = until;
        let interest = if until.is_some() { Interest::NONE } else { Interest::READ };
        if let Err(error) = poller.modify(&self.socket, self.token, interest) {
            log::error!("can't wait for connections: {error}");
        }
    }
}
