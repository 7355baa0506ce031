//! The wire format of vfio-user messages: a header of 16 bytes and a body by command.
//!
//! `parse` takes any bytes and never panics: it gives `None` where they are too short. `emit`
//! appends. All numbers are little-endian. Bodies begin after the header.

use bytes::BufMut;
pub use vfio_user::Command;

/// Bytes in the header that every message begins with.
pub const HEADER_SIZE: usize = 16;
/// The most data bytes that one region access may carry (`max_data_xfer_size`).
pub const MAX_TRANSFER: usize = 1 << 20;
/// The longest message: a region access with [`MAX_TRANSFER`] bytes of data.
pub const MAX_MESSAGE: usize = MAX_TRANSFER + HEADER_SIZE + ACCESS_SIZE;
/// The most file descriptors that one message may carry (`max_msg_fds`; QEMU allows no more).
pub const MAX_DESCRIPTORS: usize = 16;

/// Bytes in the body of a region access before its data.
const ACCESS_SIZE: usize = 16;

/// Reads numbers off the front of a slice.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }
}

/// What a message is, by the low four bits of its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Asks for something.
    Command,
    /// Answers a command of the other side.
    Reply,
    /// Neither; the protocol knows no such message.
    Invalid,
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Chosen by the sender of the command; the reply repeats it.
    pub id: u16,
    /// The command's number, see [`Command`].
    pub command: u16,
    /// Bytes in the whole message, header included.
    pub size: u32,
    /// Kind, and the flags for "no reply" and "error".
    pub flags: u32,
    /// The errno of an error reply.
    pub error: u32,
}

impl Header {
    const KIND: u32 = 0xf;
    const REPLY: u32 = 1;
    const NO_REPLY: u32 = 1 << 4;
    const ERROR: u32 = 1 << 5;

    /// Takes the header off the front of `bytes`.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        Some(Self {
            id: fields.u16()?,
            command: fields.u16()?,
            size: fields.u32()?,
            flags: fields.u32()?,
            error: fields.u32()?,
        })
    }

    /// The header of a command whose body has `body` bytes.
    pub fn command(id: u16, command: u16, body: usize) -> Self {
        Self { flags: 0, ..Self::reply(id, command, body) }
    }

    /// The header of a successful reply whose body has `body` bytes.
    pub fn reply(id: u16, command: u16, body: usize) -> Self {
        let size = u32::try_from(HEADER_SIZE.saturating_add(body)).unwrap_or(u32::MAX);
        Self { id, command, size, flags: Self::REPLY, error: 0 }
    }

    /// The header of an error reply, which has no body.
    pub fn error_reply(id: u16, command: u16, errno: i32) -> Self {
        let flags = Self::REPLY | Self::ERROR;
        Self { flags, error: errno.unsigned_abs(), ..Self::reply(id, command, 0) }
    }

    /// Appends the header.
    pub fn emit(&self, out: &mut impl BufMut) {
        out.put_u16_le(self.id);
        out.put_u16_le(self.command);
        out.put_u32_le(self.size);
        out.put_u32_le(self.flags);
        out.put_u32_le(self.error);
    }

    /// What the message is.
    pub const fn kind(&self) -> Kind {
        match self.flags & Self::KIND {
            0 => Kind::Command,
            Self::REPLY => Kind::Reply,
            _ => Kind::Invalid,
        }
    }

    /// Whether a reply says that the command has failed.
    pub const fn is_error(&self) -> bool {
        self.flags & Self::ERROR != 0
    }

    /// Whether the sender of the command waits for no reply.
    pub const fn no_reply(&self) -> bool {
        self.flags & Self::NO_REPLY != 0
    }

    /// The message's whole length in bytes, or `None` where no message can have it.
    pub fn message_size(&self) -> Option<usize> {
        usize::try_from(self.size).ok().filter(|size| (HEADER_SIZE..=MAX_MESSAGE).contains(size))
    }
}

/// Defines a body of numbers only, with `parse` and `emit`.
macro_rules! bodies {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ident,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        impl $name {
            /// Bytes on the wire.
            pub const SIZE: usize = 0 $(+ size_of::<$type>())*;

            /// Takes the body off the front of `bytes`.
            pub fn parse(bytes: &[u8]) -> Option<Self> {
                let mut fields = Fields(bytes);
                Some(Self { $($field: fields.$type()?,)* })
            }

            /// Appends the body.
            pub fn emit(&self, out: &mut impl BufMut) {
                $(out.put_slice(&self.$field.to_le_bytes());)*
            }
        }
    )*};
}

bodies! {
    /// VERSION, before the capabilities.
    Version {
        /// Always 0 so far.
        major: u16,
        /// Grows with compatible changes.
        minor: u16,
    }

    /// DMA_MAP: a range of guest memory, with a file descriptor where the server may map it.
    DmaMap {
        /// Bytes in this body.
        argsz: u32,
        /// `vfio_user::DmaMapFlags`.
        flags: u32,
        /// Where in the file the range begins, in bytes.
        offset: u64,
        /// The range's first address.
        address: u64,
        /// The range's length in bytes.
        size: u64,
    }

    /// DMA_UNMAP, and its reply.
    DmaUnmap {
        /// Bytes in this body.
        argsz: u32,
        /// `vfio_user::DmaUnmapFlags`.
        flags: u32,
        /// The range's first address.
        address: u64,
        /// The range's length in bytes.
        size: u64,
    }

    /// DEVICE_GET_INFO, and its reply.
    DeviceInfo {
        /// Bytes in this body.
        argsz: u32,
        /// `VFIO_DEVICE_FLAGS_*`.
        flags: u32,
        /// How many region indices there are.
        regions: u32,
        /// How many interrupt indices there are.
        interrupts: u32,
    }

    /// DEVICE_GET_REGION_INFO, and its reply.
    RegionInfo {
        /// Bytes that the asker has room for; in the reply, the bytes of the whole answer.
        argsz: u32,
        /// `VFIO_REGION_INFO_FLAG_*`.
        flags: u32,
        /// Which region.
        index: u32,
        /// Where capabilities begin, 0 where there are none.
        capabilities: u32,
        /// The region's size in bytes.
        size: u64,
        /// Where it begins in the region's file.
        offset: u64,
    }

    /// DEVICE_GET_IRQ_INFO, and its reply.
    IrqInfo {
        /// Bytes in this body.
        argsz: u32,
        /// `VFIO_IRQ_INFO_*`.
        flags: u32,
        /// Which interrupt index.
        index: u32,
        /// How many interrupts it has.
        count: u32,
    }

    /// DEVICE_SET_IRQS; the data, if any, follow.
    SetIrqs {
        /// Bytes in this body and its data.
        argsz: u32,
        /// `VFIO_IRQ_SET_*`.
        flags: u32,
        /// Which interrupt index.
        index: u32,
        /// The first interrupt that is meant.
        start: u32,
        /// How many are meant.
        count: u32,
    }

    /// REGION_READ and REGION_WRITE, and their replies, before the data.
    RegionAccess {
        /// Bytes from the region's start.
        offset: u64,
        /// Which region.
        region: u32,
        /// Bytes of data.
        count: u32,
    }

    /// DMA_READ and DMA_WRITE, and their replies, before the data.
    DmaAccess {
        /// The first byte's address on the bus of the function.
        address: u64,
        /// Bytes of data.
        count: u64,
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn header_golden_bytes() {
        let bytes = [0x34, 0x12, 9, 0, 32, 0, 0, 0, 0x10, 0, 0, 0, 22, 0, 0, 0];
        let header = Header { id: 0x1234, command: 9, size: 32, flags: 0x10, error: 22 };
        assert_eq!(Header::parse(&bytes), Some(header));
        let mut out = Vec::new();
        header.emit(&mut out);
        assert_eq!(out, bytes);
        assert!(header.no_reply());
        assert_eq!(header.kind(), Kind::Command);
        assert_eq!(Header::parse(&bytes[..15]), None);
    }

    #[test]
    fn error_reply_golden_bytes() {
        let mut out = Vec::new();
        Header::error_reply(7, 2, libc::EINVAL).emit(&mut out);
        assert_eq!(out, [7, 0, 2, 0, 16, 0, 0, 0, 0x21, 0, 0, 0, 22, 0, 0, 0]);
        assert_eq!(Header::parse(&out).unwrap().kind(), Kind::Reply);
    }

    #[test]
    fn dma_map_golden_bytes() {
        let bytes = [
            32, 0, 0, 0, 3, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0x0c, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0,
            0, 0, 0,
        ];
        let map = DmaMap { argsz: 32, flags: 3, offset: 0x1000, address: 0xc_0000, size: 0x1000_0000 };
        assert_eq!(DmaMap::parse(&bytes), Some(map));
        let mut out = Vec::new();
        map.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(DmaMap::SIZE, 32);
    }

    #[test]
    fn region_access_golden_bytes() {
        let bytes = [8, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0];
        let access = RegionAccess { offset: 0x1_0000_0008, region: 2, count: 4 };
        assert_eq!(RegionAccess::parse(&bytes), Some(access));
        let mut out = Vec::new();
        access.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(RegionAccess::SIZE, ACCESS_SIZE);
    }

    #[test]
    fn dma_command_golden_bytes() {
        let bytes = [
            7, 0, 11, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0xfe, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0,
            0, 0,
        ];
        let access = DmaAccess { address: 0xfe00_0020, count: 4 };
        let mut out = Vec::new();
        Header::command(7, Command::DmaRead as u16, DmaAccess::SIZE).emit(&mut out);
        access.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(Header::parse(&bytes).unwrap().kind(), Kind::Command);
        assert_eq!(DmaAccess::parse(&bytes[HEADER_SIZE..]), Some(access));
    }

    #[test]
    fn sizes_that_no_message_can_have() {
        let size = |size| Header { id: 0, command: 0, size, flags: 0, error: 0 }.message_size();
        assert_eq!(size(15), None);
        assert_eq!(size(16), Some(16));
        assert_eq!(size(u32::try_from(MAX_MESSAGE).unwrap()), Some(MAX_MESSAGE));
        assert_eq!(size(u32::try_from(MAX_MESSAGE).unwrap() + 1), None);
        assert_eq!(size(u32::MAX), None);
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Some(header) = Header::parse(&bytes) {
                let mut out = Vec::new();
                header.emit(&mut out);
                prop_assert_eq!(&out[..], &bytes[..HEADER_SIZE]);
                header.message_size();
            }
            let _ = (DmaMap::parse(&bytes), DmaUnmap::parse(&bytes), DeviceInfo::parse(&bytes));
            let _ = (RegionInfo::parse(&bytes), IrqInfo::parse(&bytes), SetIrqs::parse(&bytes));
            let _ = (RegionAccess::parse(&bytes), DmaAccess::parse(&bytes), Version::parse(&bytes));
        }
    }
}
