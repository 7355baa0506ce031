//! Receives bytes and file descriptors from a UNIX socket in one system call.

use super::descriptors::Descriptor;
use super::message::MAX_DESCRIPTORS;
use bytes::BytesMut;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// What one call received.
pub struct Received {
    /// Bytes appended to the buffer; 0 where the peer has closed.
    pub len: usize,
    /// The descriptors that came with them. Linux ends a receive after the buffer that carried descriptors, so they
    /// belong to the last thing that was sent.
    pub descriptors: Vec<Descriptor>,
    /// Why some of them are missing, where some are.
    pub missing: Option<Missing>,
}

/// Why descriptors that were sent did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// There were more than a message may carry.
    TooMany,
    /// This process has as many open as it may.
    NoRoom,
}

/// The most descriptors that Linux lets anybody send with a message. What there is no room for the kernel closes while this process
/// waits, which may take long.
const MOST_SENT: usize = 253;

/// Room for the control message with so many descriptors, aligned as control messages have to be.
type Control = [u64; 129];

/// Bytes of the control message.
const DESCRIPTORS_SIZE: u32 = (MOST_SENT * size_of::<RawFd>()) as u32;

/// Receives into the spare capacity of `buffer`, without waiting.
///
/// # Errors
/// As `recvmsg` gives them; `WouldBlock` where there is nothing.
pub fn receive(socket: &UnixStream, buffer: &mut BytesMut) -> io::Result<Received> {
    let spare = buffer.spare_capacity_mut();
    let mut part = libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: spare.len() };
    let mut control: Control = [0; 129];
    // SAFETY: `msghdr` is plain data for which all zeroes is a valid value (no name, no parts, no control).
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: CMSG_SPACE only computes a number.
    let space = unsafe { libc::CMSG_SPACE(DESCRIPTORS_SIZE) } as usize;
    message.msg_controllen = space.min(size_of::<Control>()) as _;
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: the part and the control buffer are valid for writes of the lengths given, and outlive the call.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) };
    let Ok(len) = usize::try_from(len) else {
        return Err(io::Error::last_os_error());
    };
    // SAFETY: the kernel has filled in `message` and the control buffer that it points to.
    let descriptors = unsafe { take_descriptors(&message) };
    let filled = buffer.len().saturating_add(len);
    // SAFETY: recvmsg wrote `len` bytes at the start of the spare capacity, so that `filled` bytes are initialised.
    unsafe { buffer.set_len(filled) };
    let missing = if descriptors.len() > MAX_DESCRIPTORS {
        Some(Missing::TooMany)
    } else {
        (message.msg_flags & libc::MSG_CTRUNC != 0).then_some(Missing::NoRoom)
    };
    Ok(Received { len, descriptors, missing })
}

/// Takes ownership of every descriptor in the message's control buffer.
///
/// # Safety
/// `message` has been filled in by a `recvmsg` whose control buffer is still there, and its descriptors have not been taken
/// before.
unsafe fn take_descriptors(message: &libc::msghdr) -> Vec<Descriptor> {
    let mut descriptors = Vec::new();
    // SAFETY: by this function's condition the control buffer is valid, and the kernel laid out what is in it.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !control.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give null or a header inside the control buffer.
        let header = unsafe { control.read() };
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: CMSG_LEN only computes a number.
            let empty = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = (header.cmsg_len as usize).saturating_sub(empty).div_euclid(size_of::<RawFd>());
            // SAFETY: the data follow the header inside the control buffer.
            let first = unsafe { libc::CMSG_DATA(control) }.cast::<RawFd>();
            for index in 0..count {
                // SAFETY: the header's length says that this many descriptors are there; their alignment is not
                // promised.
                let descriptor = unsafe { first.add(index).read_unaligned() };
                // SAFETY: the kernel has just opened this descriptor for us; nobody else owns it.
                descriptors.push(unsafe { OwnedFd::from_raw_fd(descriptor) }.into());
            }
        }
        // SAFETY: as for CMSG_FIRSTHDR; `control` is a header in the buffer.
        control = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
    descriptors
}

/// The process id of the one who connected, as this process sees it; `None` where it is not known here.
pub fn peer_pid(socket: &UnixStream) -> Option<libc::pid_t> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `size` bytes to `credentials`; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &mut size,
        )
    };
    (result == 0 && credentials.pid > 0).then_some(credentials.pid)
}

/// Whether the peer has closed its end.
pub fn peer_is_gone(socket: &UnixStream) -> bool {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one valid `pollfd`, which outlives the call.
    let ready = unsafe { libc::poll(&mut poll, 1, 0) };
    ready > 0 && poll.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}
