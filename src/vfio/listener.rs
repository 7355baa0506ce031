//! The UNIX socket at which QEMU connects: one client at a time, and a path that is ours alone.

use super::connection::Connection;
use super::request::{ConnectionId, DeviceShape};
use crate::reaper;
use log::warn;
use std::fmt;
use std::fs;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Clients that are turned away in a row, before others get their turn.
const ACCEPTS_AT_ONCE: usize = 16;
/// The longest path that a UNIX socket can have, in bytes.
const MAX_PATH: usize = 107;

/// Why the socket could not be made.
#[derive(Debug)]
pub enum ListenError {
    /// The path is longer than the system allows.
    PathTooLong(PathBuf),
    /// Another process listens there.
    Alive(PathBuf),
    /// Something that is not a socket is there; it is left alone.
    NotASocket(PathBuf),
    /// The system refused.
    Io(PathBuf, io::Error),
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PathTooLong(path) => write!(
                f,
                "socket path {} has {} bytes; at most {MAX_PATH} are possible, choose a shorter one",
                path.display(),
                path.as_os_str().len()
            ),
            Self::Alive(path) => write!(
                f,
                "socket path {} is in use by another process; stop that one or choose another path",
                path.display()
            ),
            Self::NotASocket(path) => write!(
                f,
                "socket path {} exists and is not a socket; remove it or choose another path",
                path.display()
            ),
            Self::Io(path, error) => write!(f, "socket path {} can't be used: {error}", path.display()),
        }
    }
}

impl std::error::Error for ListenError {}

/// A listening socket. Its path is removed when it is dropped, if it is still this socket's.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// Device and inode of the path when it was made.
    identity: (u64, u64),
    connections: u64,
}

impl Listener {
    /// Listens at `path`. A socket that is left there by a process that is gone is replaced.
    ///
    /// # Errors
    /// Where the path is not free, or not usable; it is then as it was.
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        if path.as_os_str().len() > MAX_PATH {
            return Err(ListenError::PathTooLong(path.into()));
        }
        let failed = |error| ListenError::Io(path.into(), error);
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
            Ok(metadata) if !metadata.file_type().is_socket() => {
                return Err(ListenError::NotASocket(path.into()));
            }
            Ok(_) => remove_stale(path)?,
        }
        let socket = UnixListener::bind(path).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let identity = identity(path).map_err(failed)?;
        Ok(Self { socket, path: path.into(), identity, connections: 0 })
    }

    /// Accepts the next client, if one waits; some are left waiting where there are many. While the device is `occupied` by another, those who wait are turned
    /// away, so that they see an error instead of waiting for an answer.
    ///
    /// A guest that is restarted may connect before the end of its last connection was noticed: look at
    /// [`Connection::peer_is_gone`] first.
    ///
    /// # Errors
    /// As `accept` gives them. Where descriptors have run out, the client keeps waiting.
    pub fn accept(&mut self, occupied: bool, shape: &DeviceShape) -> io::Result<Option<Connection>> {
        for _ in 0..ACCEPTS_AT_ONCE {
            let stream = match self.socket.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error),
            };
            if occupied {
                warn!("{} has a client already: another one was turned away", self.path.display());
                turn_away(stream);
                continue;
            }
            self.connections = self.connections.wrapping_add(1);
            return Connection::new(stream, ConnectionId(self.connections), shape.clone()).map(Some);
        }
        Ok(None)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // Where it can't be removed, the next start replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Closes the connection of a client that is not let in. What it has sent may be the last reference to a large memory, so that another
/// thread gives it back.
fn turn_away(stream: UnixStream) {
    // It fails where the client has closed before.
    let _ = stream.shutdown(Shutdown::Both);
    reaper::release(stream);
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Removes a socket that no process has. A datagram socket asks: a live adaptor would take a stream for its guest.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let failed = |error| ListenError::Io(path.into(), error);
    match UnixDatagram::unbound().and_then(|probe| probe.connect(path)) {
        Ok(()) => Err(ListenError::Alive(path.into())),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed)
        }
        // A live socket of another type.
        Err(error) if error.raw_os_error() == Some(libc::EPROTOTYPE) => Err(ListenError::Alive(path.into())),
        Err(error) => Err(failed(error)),
    }
}
