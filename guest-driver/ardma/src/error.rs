//! What can go wrong, in words that say what to do about it.

use crate::place::{ParseError, Place, Space};
use crate::queue::Opcode;
use crate::status::{Code, Direction, Status};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// An error of this library.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device file does not exist.
    #[error(
        "no {}: is the module loaded (insmod assured_rdma.ko), and does lspci show an adaptor (1234:4152)?",
        path.display()
    )]
    NoDevice {
        /// The device file.
        path: PathBuf,
    },
    /// The device file may not be opened.
    #[error("no permission to open {}: run this as root, or give your user rights to the file", path.display())]
    NoPermission {
        /// The device file.
        path: PathBuf,
    },
    /// The device file cannot be opened for another reason.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The device file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is something else.
    #[error("{} is not an assured-rdma adaptor: name one of /dev/ardma*", path.display())]
    NotAnAdaptor {
        /// The file.
        path: PathBuf,
    },
    /// Module and library do not speak the same interface.
    #[error(
        "the loaded module speaks version {module} of its interface and this program version {own}: use the two from one build"
    )]
    Version {
        /// The module's version.
        module: u32,
        /// This library's version.
        own: u32,
    },
    /// A call to the module failed.
    #[error("{what}: {explanation} ({source})")]
    Call {
        /// What was asked for.
        what: String,
        /// What the errno means in this call.
        explanation: &'static str,
        /// The errno.
        source: io::Error,
    },
    /// Memory could not be had.
    #[error("cannot allocate {length} bytes: {source}")]
    Memory {
        /// Bytes asked for.
        length: usize,
        /// Why.
        source: io::Error,
    },
    /// An access is not inside the mapped part of a window or of memory.
    #[error("{length} bytes at offset {offset:#x} are not inside the {available} bytes that there are")]
    Outside {
        /// Where the access begins, relative to the mapped part.
        offset: u64,
        /// Its length in bytes.
        length: u64,
        /// Bytes that are mapped.
        available: u64,
    },
    /// This processor has no access of that size there.
    #[error("{size} bytes at offset {offset:#x}: this processor reaches devices at aligned offsets only")]
    Misaligned {
        /// Where the access begins, in the node's window.
        offset: u64,
        /// Its size in bytes.
        size: usize,
    },
    /// A remote access failed, and the check told so.
    #[error("{direction} of {length} bytes at {place} failed after {attempts} attempt(s): {}", status.code(*direction))]
    Access {
        /// Which way the data went.
        direction: Direction,
        /// The part of the failed block that was accessed.
        place: Place,
        /// Bytes of it.
        length: u64,
        /// What the last check answered.
        status: Status,
        /// How often it was tried.
        attempts: u32,
    },
    /// The adaptor was reset, or a program acknowledged a log overflow, between an access and its check, which then says
    /// nothing about the access.
    #[error(
        "{direction} of {length} bytes at {place}: outcome unknown: this node's adaptor was reset, or a log overflow was acknowledged, meanwhile"
    )]
    Reset {
        /// Which way the data went.
        direction: Direction,
        /// The part of the block that was accessed.
        place: Place,
        /// Bytes of it.
        length: u64,
    },
    /// An operation of the DMA engine failed.
    #[error(
        "{} of {length} bytes at {place} failed{}: {}{}",
        opcode_name(*opcode), partly(*done), worse(*status), rest(*status, *cause)
    )]
    Operation {
        /// What it was.
        opcode: Opcode,
        /// Where in another node's memory.
        place: Place,
        /// Bytes that it was to move.
        length: u64,
        /// Bytes that it had moved, at least.
        done: u64,
        /// What its completion says.
        status: Status,
        /// Why the first part that was not executed was not.
        cause: Code,
    },
    /// No entry of the rings is free.
    #[error("the queue has {entries} operations under way, and no more room: take completions first")]
    QueueFull {
        /// Entries that it has.
        entries: u32,
    },
    /// The adaptor was reset, and its queues are gone.
    #[error(
        "the queue is lost, since this node's adaptor was reset: the outcome of {under_way} operations is unknown"
    )]
    QueueLost {
        /// Operations whose completion had not been taken.
        under_way: usize,
    },
    /// No completion came.
    #[error("no completion came in {time:?}, and {under_way} operations are under way")]
    QueueSlow {
        /// Operations under way.
        under_way: usize,
        /// How long was waited.
        time: Duration,
    },
    /// The engine reaches memory only.
    #[error("{place} is in the I/O space, where the DMA engine does not reach")]
    NotMemory {
        /// The place.
        place: Place,
    },
    /// The handle is another process's.
    #[error(
        "this was made before fork(2) by the parent process: a child opens the adaptor and makes what it needs itself"
    )]
    Forked,
    /// A file could not be read or written.
    #[error("cannot read or write the file: {0}")]
    File(io::Error),
    /// A text that names a size, an offset, a node or a place is malformed.
    #[error(transparent)]
    Parse(#[from] ParseError),
}

fn opcode_name(opcode: Opcode) -> &'static str {
    match opcode {
        Opcode::Write => "write",
        Opcode::Read => "read",
        Opcode::WriteMessage => "write with message",
        Opcode::FetchAdd => "fetch-and-add",
        Opcode::CompareSwap => "compare-and-swap",
        Opcode::Fence => "fence",
    }
}

fn partly(done: u64) -> String {
    if done == 0 { String::new() } else { format!(" after {done} bytes") }
}

/// The code of a status that has one.
fn worse(status: Status) -> Code {
    if status.write().is_ok() { status.read() } else { status.write() }
}

/// What became of the part behind the one that was executed.
fn rest(status: Status, cause: Code) -> String {
    if worse(status) == cause { String::new() } else { format!("; the rest: {cause}") }
}

impl Error {
    /// A failed call, explained by its errno.
    pub(crate) fn call(kind: CallKind, what: impl Into<String>, source: io::Error) -> Self {
        Self::Call { what: what.into(), explanation: kind.explain(source.raw_os_error()), source }
    }

    /// The errno of a failed call to the module.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Call { source, .. } | Self::Open { source, .. } => source.raw_os_error(),
            Self::Forked => Some(libc::ECHILD),
            _ => None,
        }
    }
}

/// Which call failed: an errno means something else in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    Info,
    Node,
    Export(Space),
    ExportBar,
    Unexport,
    UnexportBar,
    Window,
    OverflowAck,
    Events,
    Range,
    Failed,
    Spaces,
    Inventory,
    Reset,
    Map,
    Listen,
    Register,
    Deregister,
    Queue,
    ExportKey,
}

impl CallKind {
    fn explain(self, errno: Option<i32>) -> &'static str {
        use CallKind::{
            Deregister, Export, ExportBar, ExportKey, Failed, Inventory, Listen, Map, Node, OverflowAck,
            Queue, Range, Register, Reset, Spaces, Unexport, UnexportBar,
        };
        match (self, errno.unwrap_or(0)) {
            (_, libc::ENODEV) => "the adaptor was removed",
            (Reset, libc::EIO) => {
                "the adaptor does not answer: it has ended, or QEMU has lost it; shut this guest down, and start the adaptor and QEMU again"
            }
            (_, libc::EIO) => {
                "the adaptor does not answer; try ardma reset, and where that fails too start the adaptor and QEMU again"
            }
            (_, libc::ETIMEDOUT) => "the adaptor did not answer in time; whether it was done is unknown",
            (_, libc::ECHILD) => {
                "the file was opened before fork(2) by the parent process: a child opens the adaptor itself"
            }
            (_, libc::EDQUOT) => {
                "more windows, keys, queues or doorbells than one user may have (the module's parameter user_share)"
            }
            (_, libc::EINTR) => "the process was killed meanwhile",
            (_, libc::ENOTTY) => "the loaded module does not know this call; is it older than this program?",
            (Export(Space::Io), libc::EINVAL) => {
                "in the I/O space offset and size must be multiples of 4096, between 0x1000 and 0x10000, with at least one right and one node"
            }
            (Export(_), libc::EINVAL) => {
                "the offset must be a multiple of 4096, the size above 0 and at most the window size (ardma export --beyond has no such limit), with at least one right and one node"
            }
            (Export(_), libc::ENOMEM) => "more memory than may be locked (ulimit -l), or than there is",
            (ExportBar, libc::EPERM) => "only root may, and no one where the kernel is locked down",
            (ExportBar, libc::ENXIO) => "there is no such function, or it has no memory there (see lspci -v)",
            (ExportBar, libc::EINVAL) => {
                "start, size and offset must be multiples of 4096 and inside the space, the BAR one of 0 to 5, with at least one right and one node; the adaptor itself can't be exported"
            }
            (Export(_) | ExportBar, libc::ENOSPC) => {
                "it overlaps another window, or no gap is large enough (see ardma info)"
            }
            (Export(_) | ExportBar, libc::ENOBUFS) => {
                "more windows, or scattered pieces of memory, than the adaptor holds"
            }
            (Export(_) | ExportBar, libc::EOPNOTSUPP) => {
                "QEMU does not share this guest's memory, or this part of it, with the adaptor: each memory backend needs share=on (see dmesg)"
            }
            (Export(_), libc::ENXIO) => "the memory is not where the adaptor can reach it",
            (Export(_), libc::EFAULT) => {
                "the memory is not mapped, or not with the access that the rights need"
            }
            (Register, libc::EINVAL) => "give at least one byte and one right",
            (Register, libc::ENOMEM) => "more memory than may be locked (ulimit -l), or than there is",
            (Register, libc::EFAULT) => {
                "the memory is not mapped, or not with the access that the rights need"
            }
            (Register, libc::ENOBUFS) => "more keys, or scattered pieces of memory, than the adaptor holds",
            (Register | ExportKey, libc::ENXIO) => "the memory is not where the adaptor can reach it",
            (Register | Queue, libc::EOPNOTSUPP) => {
                "the adaptor has no DMA engine, or does not share this guest's memory: QEMU needs memory-backend-memfd,share=on (see dmesg)"
            }
            (Deregister, libc::EBUSY) => "a queue has its rings there, or it is exported",
            (Deregister | Queue | ExportKey, libc::ENOENT) => "this program has no such key",
            (Deregister | Queue | ExportKey, libc::ESTALE) => "a reset of the adaptor had already ended it",
            (Queue, libc::ENOBUFS) => "the adaptor has no queue left",
            (ExportKey, libc::EACCES) => "the memory was registered to be read only",
            (ExportKey, libc::EINVAL) => {
                "the offset must be a multiple of 4096, the size above 0 and inside the memory and the window, with at least one right and one node"
            }
            (ExportKey, libc::ENOSPC) => {
                "it overlaps another window, or no gap is large enough (see ardma info)"
            }
            (ExportKey, libc::ENOBUFS) => {
                "more windows, or scattered pieces of memory, than the adaptor holds"
            }
            (Unexport | UnexportBar, libc::ENOENT) => "no window of this program begins there",
            (Unexport, libc::ESTALE) => "a reset of the adaptor had already removed it",
            (UnexportBar, libc::ESTALE) => {
                "it had already gone, by a reset of the adaptor or with its device"
            }
            (Listen, libc::EINVAL) => "give at least one doorbell and one node",
            (Listen, libc::EBUSY) => "another program listens to one of these doorbells",
            (Listen, libc::ESTALE) => {
                "the adaptor was reset, or the guest slept: messages may be lost, listen again"
            }
            (Map, libc::ENXIO) => "that is not inside the window of a node of this adaptor",
            (Map, libc::EACCES) => "the assurance space and its peek alias can be read only",
            (Inventory, libc::EAGAIN) => "that node's list changes faster than it can be read; ask again",
            (Node | OverflowAck, libc::EINVAL) => "node ids go from 0 to 255",
            (Range, libc::EINVAL) => "the range has to go from a place to one that is not before it",
            (Range, libc::ENXIO) => "no byte of it is in the window of a node of this adaptor",
            (Range | Failed | Spaces | Inventory, libc::EOPNOTSUPP) => {
                "the adaptor is older than version 1.1 of the device, which has this"
            }
            (Reset, libc::EPERM) => "only root may reset the adaptor",
            (_, libc::ESTALE) => {
                "the adaptor was disabled, or is another one than it was: ardma reset, or unbinding and binding its driver, brings it back"
            }
            _ => "the module refused",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_is_explained_by_its_call() {
        let source = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        let error = Error::call(CallKind::Export(Space::Memory), "export of 4096 bytes", source);
        let text = error.to_string();
        assert!(text.starts_with("export of 4096 bytes: QEMU does not share this guest's memory"), "{text}");
        assert_eq!(error.errno(), Some(libc::EOPNOTSUPP));
    }

    #[test]
    fn a_failed_access_names_block_and_code() {
        let error = Error::Access {
            direction: Direction::Write,
            place: Place::memory(2, 0x3000),
            length: 4096,
            status: Status::from_bits(0x82),
            attempts: 1,
        };
        assert_eq!(
            error.to_string(),
            "write of 4096 bytes at 2:0x3000 failed after 1 attempt(s): not executed, permanent: no such window (0x82)"
        );
    }
}
