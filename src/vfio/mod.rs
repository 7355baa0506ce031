//! QEMU's side of a node: a vfio-user server without a loop of its own.
//!
//! Whoever runs the event loop owns a [`Listener`], at most one [`Connection`], and for it a [`GuestMemory`] and the
//! [`Interrupts`]. Nothing here blocks. A load may be answered much later than it is handed out: until then the
//! connection hands out nothing else, as a bus would, while the loop serves links and timers.
//!
//! A turn of the loop: [`Connection::receive`]; then [`Connection::next_request`] until there is none, each
//! request handed to the device and answered by its token; then [`Connection::flush`]. Wait for what
//! [`Connection::wants_read`] and [`Connection::wants_write`] say. After [`Intake::End`], [`Broken`] or an error of the
//! socket take what `next_request` still has, drop all three and wait for the next client; a guest that
//! is started again is a new one.
//!
//! [`Connection::send_dma`] asks the client to read or write at a bus address on the device's behalf; what comes of that is told by
//! [`Connection::poll_dma`] some turns later, or never before the end of the connection.

mod buffers;
mod connection;
mod descriptors;
mod files;
mod interrupts;
mod listener;
mod memory;
pub mod message;
mod ranges;
mod request;
mod sharing;
mod socket;
mod version;

pub use crate::mapped::{Attempt, Begin};
pub use connection::{
    Broken, Connection, DmaDone, DmaError, DmaKind, DmaRefused, Intake, MAX_DMA, MAX_DMA_TRANSFER,
    MAX_DMA_WRITE,
};
pub use interrupts::{Interrupts, VectorChange};
pub use listener::{ListenError, Listener};
pub use memory::{GuestMemory, MAX_RANGES, MapError, Overview};
pub use request::{ConnectionId, DeviceShape, ReplyToken, Request};
pub use sharing::{FileId, Sharing, sharing_in};
pub use version::{Agreement, VersionError};
