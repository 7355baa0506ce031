//! TCP sockets as the links need them: never waiting, without delay, with a fitting congestion control.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections that wait for us to accept them.
const BACKLOG: i32 = 1024;
/// BBR, the default of some systems, carries half as much on loopback as this.
const LOOPBACK_CONGESTION: &str = "cubic";

/// A listening socket.
///
/// # Errors
/// As the kernel gives them: the address is in use, or not this host's.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = new_socket(address)?;
    // Without it a restart fails for a minute, while old connections linger.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Begins to connect; the end of it shows when the socket becomes writable.
///
/// # Errors
/// Where it fails at once.
pub fn dial(address: SocketAddr, congestion: Option<&str>) -> io::Result<TcpStream> {
    let socket = new_socket(address)?;
    tune(&socket, address, congestion);
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {
            Err(error)
        }
        _ => Ok(socket.into()),
    }
}

/// Whether the attempt to connect has succeeded.
///
/// # Errors
/// Why it has not.
pub fn finish_dial(stream: &TcpStream) -> io::Result<()> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    // Where nobody listens on a port of this host, the kernel may have chosen that very port for our end.
    if stream.peer_addr()? == stream.local_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(())
}

/// Prepares a connection that was accepted.
///
/// # Errors
/// Where the kernel refuses.
pub fn adopt(stream: TcpStream, from: SocketAddr, congestion: Option<&str>) -> io::Result<TcpStream> {
    let socket = Socket::from(stream);
    socket.set_nonblocking(true)?;
    tune(&socket, from, congestion);
    Ok(socket.into())
}

/// Whether this host knows the congestion control.
///
/// # Errors
/// Where it does not, or does not allow it.
pub fn check_congestion(name: &str) -> io::Result<()> {
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?.set_tcp_congestion(name.as_bytes())
}

fn new_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Sets what makes a link faster; it works without.
fn tune(socket: &Socket, other: SocketAddr, congestion: Option<&str>) {
    if let Err(error) = socket.set_tcp_nodelay(true) {
        log::debug!("{other}: no TCP_NODELAY: {error}");
    }
    let loopback = other.ip().to_canonical().is_loopback();
    let Some(name) = congestion.or(loopback.then_some(LOOPBACK_CONGESTION)) else {
        return;
    };
    if let Err(error) = socket.set_tcp_congestion(name.as_bytes()) {
        log::debug!("{other}: no congestion control {name}: {error}");
    }
}
