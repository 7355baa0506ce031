//! Packets: what travels between the mesh interfaces of two nodes.
//!
//! A packet is a header of [`HEADER_LEN`] bytes and a payload. Both are covered by a CRC32C.
//! `docs/protocol.md` has the layout as a table. Invariant: [`Packet::parse`] accepts exactly what
//! [`Packet::emit`] produces, and never panics whatever the bytes.

use bytes::Bytes;
use core::fmt;
use crc_fast::{CrcAlgorithm, Digest};

use super::batch::Batch;
use super::neighbour::{End, Identity, Refusal, Role, Routes};
use super::numbers::{Reader, Writer};
use super::sequence::{Epoch, Sequence};
use super::versions::Versions;
use crate::adaptor::address::{Location, NodeId, OFFSET_BITS, Space};
use crate::adaptor::channel::Channel;
use crate::adaptor::memory::Lent;
use crate::adaptor::status::Code;
use crate::adaptor::transaction::Atomic;

/// Bytes in a header.
pub const HEADER_LEN: usize = 64;
/// The most bytes that a packet carries after its header.
pub const MAX_PAYLOAD: usize = 64 << 10;
/// From this length in bytes on a payload is copied only where it has to wait behind others: most are executed at once.
pub(in crate::adaptor) const LONG_PAYLOAD: usize = 32 << 10;
/// The first two bytes of every packet, "AR".
pub const MAGIC: u16 = u16::from_le_bytes(*b"AR");
/// The version of the protocol, the third byte.
pub const VERSION: u8 = 1;

const CRC_AT: usize = 12;
/// The byte with the channel in its lower half, and in its upper half the number of routers that the packet has passed. These
/// count on the way, so that the CRC takes the upper half as 0.
const CHANNEL_AT: usize = 6;
const HOPS_SHIFT: u32 = 4;

/// One life of a node: drawn at random when its process starts and at each reset, never 0. Between the ends of a link, one life of the process there,
/// which resets do not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A moment of the responding node's clock, which the initiating node only sends back; 0 means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stamp(pub u64);

/// A packet, taken apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Packet {
    /// The node that sends it.
    pub source: NodeId,
    /// The node that it is for.
    pub destination: NodeId,
    /// The sender's life.
    pub source_incarnation: Incarnation,
    /// The receiver's life as the sender knows it; 0 where it does not.
    pub destination_incarnation: Incarnation,
    /// Whose flow it belongs to; [`Channel::Small`] where it belongs to none.
    pub channel: Channel,
    /// What it says.
    pub body: Body,
}

/// What the initiating side tells with each of its packets about the answers and the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Progress {
    /// The epoch of the flow; sending it confirms that it is not abandoned.
    pub epoch: Epoch,
    /// The first request whose answer has not arrived.
    pub acknowledge: Sequence,
    /// The responding side's latest stamp, sent back.
    pub echo: Stamp,
}

/// The kinds of packets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// Names the sender's incarnation and asks for a sign of life, or gives one.
    Hello {
        /// What the sender speaks.
        versions: Versions,
        /// The current epoch of the sender's requests.
        epoch: Epoch,
        /// A number that proves, when it comes back, that the peer is alive now: the receiver shall answer with a Hello that
        /// echoes it. 0 asks for nothing.
        nonce: u64,
        /// The nonce of the Hello that this one answers, or 0.
        echo: u64,
        /// For how long the sender believes that a stamp gives a lease, in microseconds.
        lease: u32,
        /// The version of the sender's inventory.
        inventory: u32,
    },
    /// Asks for the receiver's inventory.
    Inquire,
    /// What the sender exports to the receiver.
    Inventory {
        /// Its version, as in [`Body::Hello`].
        version: u32,
        /// Entries, see [`inventory`](crate::adaptor::inventory).
        entries: Bytes,
    },
    /// Initiating side: write `data` there.
    Write {
        /// Acknowledgement and lease.
        progress: Progress,
        /// Its place in the flow.
        sequence: Sequence,
        /// Where, in the destination's offset spaces.
        at: Location,
        /// What.
        data: Bytes,
    },
    /// As [`Body::Write`], with bytes that are still in the sender's memory. It goes between buses of one process only.
    Lend {
        /// Acknowledgement and lease.
        progress: Progress,
        /// Its place in the flow.
        sequence: Sequence,
        /// Where, in the destination's offset spaces.
        at: Location,
        /// What.
        from: Lent,
    },
    /// Initiating side: send back `len` bytes from there.
    Read {
        /// Acknowledgement and lease.
        progress: Progress,
        /// Its place in the flow.
        sequence: Sequence,
        /// From where, in the destination's offset spaces.
        at: Location,
        /// How many bytes.
        len: u32,
    },
    /// Initiating side: change the number there at once, and send back what it was.
    Atomic {
        /// Acknowledgement and lease.
        progress: Progress,
        /// Its place in the flow.
        sequence: Sequence,
        /// Where, in the destination's offset spaces.
        at: Location,
        /// How, see [`Atomic::operands`].
        operands: Bytes,
    },
    /// Initiating side: several short requests.
    Batch {
        /// Acknowledgement and lease.
        progress: Progress,
        /// The place of the first in the flow; the others follow it.
        first: Sequence,
        /// They.
        batch: Batch,
    },
    /// Initiating side, no request: confirms the epoch, and tells how far it has sent, so that the
    /// responding side can say what is missing and send lost answers again.
    Confirm {
        /// Acknowledgement and lease.
        progress: Progress,
        /// The first request that was not sent yet.
        sent: Sequence,
    },
    /// Responding side: `count` requests from `first` on are done and ended with `code`.
    /// More than one only where all ended with [`Code::Ok`].
    Done {
        /// The epoch of the requests.
        epoch: Epoch,
        /// The first of them.
        first: Sequence,
        /// How many.
        count: u32,
        /// How they ended.
        code: Code,
        /// For the next lease.
        stamp: Stamp,
        /// What reads and atomic operations brought, one after the other.
        data: Bytes,
    },
    /// Responding side: a request is missing; send again from `expected` on.
    Nak {
        /// The epoch of the requests.
        epoch: Epoch,
        /// The first that is missing.
        expected: Sequence,
        /// For the next lease.
        stamp: Stamp,
    },
    /// Responding side: asks whether `epoch` is still wanted, before it executes anything.
    Ask {
        /// The epoch of the waiting requests.
        epoch: Epoch,
        /// The time of asking, from which the lease counts.
        stamp: Stamp,
    },
    /// To the other end of the link only: who this end is. Comes first in each direction.
    Join {
        /// What is there.
        role: Role,
        /// What it speaks.
        versions: Versions,
        /// The other end shall answer with a Join, or a Refuse.
        wants_reply: bool,
    },
    /// To the other end of the link only: it is not let in, and the link is closed.
    Refuse {
        /// Why not.
        reason: Refusal,
    },
    /// A router to the other end of the link only: the nodes that it reaches, and no others.
    Routes(Routes),
    /// Of a later version than is spoken here, or with a command that is not known here.
    Unknown(Unknown),
}

/// What is not known here: it is skipped by nodes, and passed on by routers as it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unknown {
    fields: Fields,
    data: Bytes,
}

impl Unknown {
    /// Whether it is for the other end of the link only, and not for a node.
    pub const fn is_between_ends(&self) -> bool {
        self.fields.command >= command::BETWEEN_ENDS
    }
}

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// Fewer bytes than the header, or than it names.
    Truncated,
    /// The first bytes are not those of a packet: this is no stream of packets, or it is out of step.
    NotAPacket,
    /// A payload longer than [`MAX_PAYLOAD`].
    TooLong(u32),
    /// The CRC does not match.
    Corrupt,
    /// The CRC matches, but a field has no meaning.
    Field,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("packet is cut short"),
            Self::NotAPacket => f.write_str("not the beginning of a packet"),
            Self::TooLong(len) => write!(f, "payload of {len} bytes is longer than {MAX_PAYLOAD}"),
            Self::Corrupt => f.write_str("CRC does not match"),
            Self::Field => f.write_str("a field has no meaning"),
        }
    }
}

impl core::error::Error for ParseError {}

/// What packets are written to.
pub trait Sink {
    /// Appends these bytes.
    fn put(&mut self, bytes: &[u8]);

    /// Appends these bytes, or keeps them where they are.
    fn put_payload(&mut self, payload: &Bytes) {
        self.put(payload);
    }
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// The payload of packets without one.
static NO_BYTES: Bytes = Bytes::new();

/// The header's fields as they stand on the wire, before they are given a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Fields {
    version: u8,
    command: u8,
    code: u8,
    epoch: u32,
    sequence: u32,
    acknowledge: u32,
    count: u32,
    address: u64,
    stamp: u64,
}

impl Fields {
    const NONE: Self = Self {
        version: VERSION,
        command: 0,
        code: 0,
        epoch: 0,
        sequence: 0,
        acknowledge: 0,
        count: 0,
        address: 0,
        stamp: 0,
    };
}

pub(super) mod command {
    pub const HELLO: u8 = 1;
    pub const WRITE: u8 = 3;
    pub const READ: u8 = 4;
    pub const CONFIRM: u8 = 5;
    pub const DONE: u8 = 6;
    pub const NAK: u8 = 7;
    pub const ASK: u8 = 8;
    pub const JOIN: u8 = 9;
    pub const REFUSE: u8 = 10;
    pub const ROUTES: u8 = 11;
    pub const INQUIRE: u8 = 12;
    pub const INVENTORY: u8 = 13;
    pub const ATOMIC: u8 = 14;
    pub const BATCH: u8 = 15;
    /// From here on later versions have what goes from one end of a link to the other, no further.
    pub const BETWEEN_ENDS: u8 = 192;
}

/// The length in bytes, header and payload, of the packet that begins `bytes`, as soon as that can be told.
///
/// # Errors
/// Where no packet can begin like this.
pub fn wire_len(bytes: &[u8]) -> Result<Option<usize>, ParseError> {
    let Some(fixed) = bytes.first_chunk::<12>() else {
        return Ok(None);
    };
    let [m0, m1, _, _, _, _, _, _, l0, l1, l2, l3] = *fixed;
    if u16::from_le_bytes([m0, m1]) != MAGIC {
        return Err(ParseError::NotAPacket);
    }
    let payload = u32::from_le_bytes([l0, l1, l2, l3]);
    match usize::try_from(payload) {
        Ok(payload) if payload <= MAX_PAYLOAD => Ok(Some(HEADER_LEN.saturating_add(payload))),
        _ => Err(ParseError::TooLong(payload)),
    }
}

/// How many routers the packet in `wire` has passed.
pub fn hops(wire: &[u8]) -> u8 {
    wire.get(CHANNEL_AT).copied().unwrap_or(0) >> HOPS_SHIFT
}

/// Notes in `wire` that the packet has passed one more router; at the most that can be noted, nothing changes.
pub fn count_hop(wire: &mut [u8]) {
    if let Some(byte) = wire.get_mut(CHANNEL_AT) {
        *byte = byte.checked_add(1 << HOPS_SHIFT).unwrap_or(*byte);
    }
}

impl Packet {
    /// A packet from one end of a link to the other; `incarnation` is the sender's.
    pub const fn between(from: Identity, to: NodeId, incarnation: Incarnation, body: Body) -> Self {
        Self {
            source: from.id(),
            destination: to,
            source_incarnation: incarnation,
            destination_incarnation: Incarnation(0),
            channel: Channel::Small,
            body,
        }
    }

    /// Who sends this, where it is a [`Body::Join`] in which everything has a meaning.
    pub fn joiner(&self) -> Option<End> {
        let Body::Join { role, .. } = self.body else { return None };
        role.end(self.source).filter(|_| self.source_incarnation.0 != 0)
    }

    /// The same packet where it may have to wait: what is to be written is in memory of its own, and does not keep all that was received with it.
    /// A long payload stays: the access buffer sees to it if it waits.
    #[must_use]
    pub(in crate::adaptor) fn detach(mut self) -> Self {
        match &mut self.body {
            Body::Write { data, .. } if data.len() < LONG_PAYLOAD => *data = Bytes::copy_from_slice(data),
            Body::Batch { batch, .. } => batch.detach(),
            _ => {}
        }
        self
    }

    /// Appends the wire form to `out`. A payload beyond [`MAX_PAYLOAD`] is not allowed for; the
    /// units that make requests and answers keep below it.
    pub fn emit(&self, out: &mut impl Sink) {
        let (fields, data) = self.body.to_fields();
        let mut header = [0; HEADER_LEN];
        let mut writer = Writer(&mut header);
        writer.put(MAGIC.to_le_bytes());
        writer.put([fields.version, fields.command, self.source.0, self.destination.0]);
        writer.put([self.channel.bits(), fields.code]);
        writer.put(u32::try_from(data.len()).unwrap_or(u32::MAX).to_le_bytes());
        writer.put([0; 4]);
        writer.put(self.source_incarnation.0.to_le_bytes());
        writer.put(self.destination_incarnation.0.to_le_bytes());
        for word in [fields.epoch, fields.sequence, fields.acknowledge, fields.count] {
            writer.put(word.to_le_bytes());
        }
        writer.put(fields.address.to_le_bytes());
        writer.put(fields.stamp.to_le_bytes());
        let crc = header_and_payload_crc(&header, data).to_le_bytes();
        if let Some(field) = header.get_mut(CRC_AT..).and_then(<[u8]>::first_chunk_mut) {
            *field = crc;
        }
        out.put(&header);
        out.put_payload(data);
    }

    /// Takes apart exactly one packet.
    ///
    /// # Errors
    /// Where the bytes are not a whole, intact packet with meaningful fields.
    pub fn parse(mut wire: Bytes) -> Result<Self, ParseError> {
        let len = wire_len(&wire)?.ok_or(ParseError::Truncated)?;
        if wire.len() != len {
            return Err(ParseError::Truncated);
        }
        let data = wire.split_off(HEADER_LEN);
        let header: &[u8; HEADER_LEN] = wire.first_chunk().ok_or(ParseError::Truncated)?;
        let mut reader = Reader(header.get(CRC_AT..).unwrap_or_default());
        let crc = reader.u32();
        if crc != header_and_payload_crc(header, &data) {
            return Err(ParseError::Corrupt);
        }
        let [_, _, version, command, source, destination, channel, code, ..] = *header;
        let channel = Channel::from_bits(channel & ((1 << HOPS_SHIFT) - 1)).ok_or(ParseError::Field)?;
        let source_incarnation = Incarnation(reader.u64());
        let destination_incarnation = Incarnation(reader.u64());
        let fields = Fields {
            version,
            command,
            code,
            epoch: reader.u32(),
            sequence: reader.u32(),
            acknowledge: reader.u32(),
            count: reader.u32(),
            address: reader.u64(),
            stamp: reader.u64(),
        };
        let body = Body::from_fields(fields, data).ok_or(ParseError::Field)?;
        if channel != Channel::Small && !body.is_of_a_flow() {
            return Err(ParseError::Field);
        }
        let (source, destination) = (NodeId(source), NodeId(destination));
        let packet = Self { source, destination, source_incarnation, destination_incarnation, channel, body };
        packet.is_sound().then_some(packet).ok_or(ParseError::Field)
    }

    /// Whether incarnations are such as its command can have. (A [`Body::Join`] of no life is answered: see
    /// [`Packet::joiner`].)
    const fn is_sound(&self) -> bool {
        match self.body {
            Body::Hello { .. } => self.source_incarnation.0 != 0,
            Body::Join { .. } | Body::Refuse { .. } | Body::Routes(_) => self.destination_incarnation.0 == 0,
            _ => true,
        }
    }
}

impl Body {
    /// Whether it belongs to the flow of a channel, rather than to the session or the link.
    pub const fn is_of_a_flow(&self) -> bool {
        match self {
            Self::Write { .. }
            | Self::Lend { .. }
            | Self::Read { .. }
            | Self::Atomic { .. }
            | Self::Batch { .. }
            | Self::Confirm { .. }
            | Self::Done { .. }
            | Self::Nak { .. }
            | Self::Ask { .. }
            | Self::Unknown(_) => true,
            Self::Hello { .. }
            | Self::Inquire
            | Self::Inventory { .. }
            | Self::Join { .. }
            | Self::Refuse { .. }
            | Self::Routes(_) => false,
        }
    }

    fn to_fields(&self) -> (Fields, &Bytes) {
        let none = Fields::NONE;
        let initiating = |command, progress: &Progress, sequence: Sequence| Fields {
            command,
            epoch: progress.epoch.0,
            sequence: sequence.0,
            acknowledge: progress.acknowledge.0,
            stamp: progress.echo.0,
            ..none
        };
        let responding = |command, epoch: Epoch, sequence: Sequence, stamp: Stamp| Fields {
            command,
            epoch: epoch.0,
            sequence: sequence.0,
            stamp: stamp.0,
            ..none
        };
        match self {
            Self::Hello { versions, epoch, nonce, echo, lease, inventory } => {
                let fields = Fields { command: command::HELLO, acknowledge: versions.to_field(), ..none };
                let (address, stamp, count, sequence) = (*nonce, *echo, *lease, *inventory);
                (Fields { epoch: epoch.0, sequence, count, address, stamp, ..fields }, &NO_BYTES)
            }
            Self::Inquire => (Fields { command: command::INQUIRE, ..none }, &NO_BYTES),
            Self::Inventory { version, entries } => {
                (Fields { command: command::INVENTORY, sequence: *version, ..none }, entries)
            }
            Self::Write { progress, sequence, at, .. } | Self::Lend { progress, sequence, at, .. } => {
                let fields = initiating(command::WRITE, progress, *sequence);
                // No link has what is lent. If one had, it would be a write of nothing, which nobody executes.
                let data = if let Self::Write { data, .. } = self { data } else { &NO_BYTES };
                (Fields { address: address_of(*at), ..fields }, data)
            }
            Self::Read { progress, sequence, at, len } => {
                let fields = initiating(command::READ, progress, *sequence);
                (Fields { address: address_of(*at), count: *len, ..fields }, &NO_BYTES)
            }
            Self::Atomic { progress, sequence, at, operands } => {
                let fields = initiating(command::ATOMIC, progress, *sequence);
                (Fields { address: address_of(*at), ..fields }, operands)
            }
            Self::Batch { progress, first, batch } => {
                let fields = initiating(command::BATCH, progress, *first);
                (Fields { count: batch.count(), ..fields }, batch.as_bytes())
            }
            Self::Confirm { progress, sent } => (initiating(command::CONFIRM, progress, *sent), &NO_BYTES),
            Self::Done { epoch, first, count, code, stamp, data } => {
                let fields = responding(command::DONE, *epoch, *first, *stamp);
                (Fields { count: *count, code: code.bits(), ..fields }, data)
            }
            Self::Nak { epoch, expected, stamp } => {
                (responding(command::NAK, *epoch, *expected, *stamp), &NO_BYTES)
            }
            Self::Ask { epoch, stamp } => (responding(command::ASK, *epoch, Sequence(0), *stamp), &NO_BYTES),
            Self::Join { role, versions, wants_reply } => {
                let fields = Fields { command: command::JOIN, acknowledge: versions.to_field(), ..none };
                let (count, address) = role.fields();
                (Fields { sequence: (*wants_reply).into(), count, address, ..fields }, &NO_BYTES)
            }
            Self::Refuse { reason } => {
                (Fields { command: command::REFUSE, code: reason.bits(), ..none }, &NO_BYTES)
            }
            Self::Routes(routes) => (Fields { command: command::ROUTES, ..none }, routes.as_bytes()),
            Self::Unknown(Unknown { fields, data }) => (*fields, data),
        }
    }

    /// Gives the fields a meaning; `None` where they have none. Fields that a command does not use must be 0.
    fn from_fields(fields: Fields, data: Bytes) -> Option<Self> {
        if fields.version != VERSION {
            return Some(Self::Unknown(Unknown { fields, data }));
        }
        let epoch = Epoch(fields.epoch);
        let sequence = Sequence(fields.sequence);
        let stamp = Stamp(fields.stamp);
        let progress = Progress { epoch, acknowledge: Sequence(fields.acknowledge), echo: stamp };
        let at = location_of(fields.address);
        let body = match fields.command {
            command::HELLO => Self::Hello {
                versions: Versions::from_field(fields.acknowledge)?,
                epoch,
                nonce: fields.address,
                echo: fields.stamp,
                lease: fields.count,
                inventory: fields.sequence,
            },
            command::INQUIRE => Self::Inquire,
            command::INVENTORY => Self::Inventory { version: fields.sequence, entries: data.clone() },
            command::WRITE => Self::Write { progress, sequence, at: at?, data: data.clone() },
            command::READ => Self::Read { progress, sequence, at: at?, len: fields.count },
            command::ATOMIC => {
                Atomic::from_operands(&data)?;
                Self::Atomic { progress, sequence, at: at?, operands: data.clone() }
            }
            command::BATCH => Self::Batch { progress, first: sequence, batch: Batch::parse(data.clone())? },
            command::CONFIRM => Self::Confirm { progress, sent: sequence },
            command::DONE => Self::Done {
                epoch,
                first: sequence,
                count: fields.count,
                code: Code::from_bits(fields.code)?,
                stamp,
                data: data.clone(),
            },
            command::NAK => Self::Nak { epoch, expected: sequence, stamp },
            command::ASK => Self::Ask { epoch, stamp },
            command::JOIN => {
                let role = Role::from_fields(fields.count, fields.address);
                let versions = Versions::from_field(fields.acknowledge)?;
                Self::Join { role, versions, wants_reply: fields.sequence == 1 }
            }
            command::REFUSE => Self::Refuse { reason: Refusal::from_bits(fields.code)? },
            command::ROUTES => Self::Routes(Routes::parse(data.clone())?),
            _ => Self::Unknown(Unknown { fields, data: data.clone() }),
        };
        let (canonical, payload) = body.to_fields();
        let unused_are_zero = canonical.code == fields.code
            && canonical.epoch == fields.epoch
            && canonical.stamp == fields.stamp
            && canonical.sequence == fields.sequence
            && canonical.acknowledge == fields.acknowledge
            && canonical.count == fields.count
            && canonical.address == fields.address
            && payload.len() == data.len();
        unused_are_zero.then_some(body)
    }
}

/// A location as it stands in the address field: the space above the offset.
pub(super) fn address_of(at: Location) -> u64 {
    u64::from(at.space.bits()) << OFFSET_BITS | at.offset
}

/// The inverse of [`address_of`]; `None` where there is no such space.
pub(super) fn location_of(address: u64) -> Option<Location> {
    let space = Space::from_bits(address >> OFFSET_BITS)?;
    Some(Location { space, offset: address & ((1 << OFFSET_BITS) - 1) })
}

/// CRC32C (Castagnoli) of a packet, with the CRC field and the count of routers taken as 0.
fn header_and_payload_crc(header: &[u8; HEADER_LEN], data: &[u8]) -> u32 {
    let mut cleared = *header;
    if let Some(byte) = cleared.get_mut(CHANNEL_AT) {
        *byte &= (1 << HOPS_SHIFT) - 1;
    }
    if let Some(field) = cleared.get_mut(CRC_AT..).and_then(<[u8]>::first_chunk_mut::<4>) {
        *field = [0; 4];
    }
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&cleared);
    digest.update(data);
    u32::try_from(digest.finalize()).unwrap_or(u32::MAX)
}
