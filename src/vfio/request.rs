//! What a client can ask of the device, and the token by which it is answered.

use super::message::{DmaMap, DmaUnmap, RegionAccess, SetIrqs};
use bytes::Bytes;
use std::os::fd::OwnedFd;
use vfio_bindings::bindings::vfio;

/// Names a connection among all that this process has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionId(pub u64);

/// The device as the protocol describes it.
#[derive(Clone, Debug, Default)]
pub struct DeviceShape {
    /// The size in bytes of each region, by vfio's index (BARs 0 to 5, ROM, configuration space, VGA); 0 where there is none.
    pub regions: [u64; vfio::VFIO_PCI_NUM_REGIONS as usize],
    /// How many MSI-X vectors it has.
    pub vectors: u16,
}

impl DeviceShape {
    pub(super) fn region_size(&self, index: u32) -> Option<u64> {
        self.regions.get(usize::try_from(index).ok()?).copied()
    }
}

/// What has to be repeated in the reply to a request.
#[derive(Debug)]
pub(super) enum Echo {
    Nothing,
    Access(RegionAccess),
    Unmap(DmaUnmap),
}

/// The right, and the duty, to answer one request. Replies by a token of another connection are dropped.
#[derive(Debug)]
#[must_use = "the client waits for a reply"]
pub struct ReplyToken {
    pub(super) connection: ConnectionId,
    pub(super) id: u16,
    pub(super) command: u16,
    pub(super) echo: Echo,
}

/// What a client asks of the device. Without a token no reply is expected.
#[derive(Debug)]
pub enum Request {
    /// A load of `len` bytes (at least 1, inside the region): answer with `Connection::reply_load`.
    Load {
        /// For the reply.
        token: ReplyToken,
        /// vfio's region index.
        region: u32,
        /// Bytes from the region's start.
        offset: u64,
        /// Bytes to read.
        len: usize,
    },
    /// A store of `data` (at least 1 byte, inside the region). Where the device is too busy for it, keep it and take no
    /// further request until it was handed in.
    Store {
        /// For the reply; none for a posted store.
        token: Option<ReplyToken>,
        /// vfio's region index.
        region: u32,
        /// Bytes from the region's start.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// A range of guest memory came into being: `GuestMemory::map`.
    DmaMap {
        /// For the reply.
        token: Option<ReplyToken>,
        /// The range.
        map: DmaMap,
        /// The file behind it.
        file: Option<OwnedFd>,
    },
    /// Guest memory went away: `GuestMemory::unmap`.
    DmaUnmap {
        /// For the reply.
        token: Option<ReplyToken>,
        /// The range.
        unmap: DmaUnmap,
    },
    /// Interrupts are connected or disconnected: `Interrupts::apply`.
    SetIrqs {
        /// For the reply.
        token: Option<ReplyToken>,
        /// Which.
        set: SetIrqs,
        /// Their event descriptors.
        events: Vec<OwnedFd>,
    },
    /// The device is to be reset.
    Reset {
        /// For the reply.
        token: Option<ReplyToken>,
    },
}
