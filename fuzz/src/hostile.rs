//! A peer that knows the protocol and keeps to it only as far as the fuzzer wants.
//!
//! Most values are chosen relative to what would be right at this moment; else the fuzzer would have to guess nonces and
//! incarnations of 64 bits, and would never get as far as a flow.

use arbitrary::Arbitrary;
use assured_rdma::adaptor::address::{Location, NodeId};
use assured_rdma::adaptor::channel::Channel;
use assured_rdma::adaptor::mesh::batch::Collector;
use assured_rdma::adaptor::mesh::packet::{Body, Incarnation, MAX_PAYLOAD, Packet, Progress, Stamp};
use assured_rdma::adaptor::mesh::sequence::{Epoch, Sequence};
use assured_rdma::adaptor::mesh::versions::Versions;
use assured_rdma::adaptor::status::Code;
use assured_rdma::adaptor::transaction::RequestKind;

use crate::stage::{HONEST, HOSTILE, HOSTILE_BYTE, TESTED};

/// The lease that the nodes are configured with.
const LEASE_MICROS: u32 = 150_000;

/// A 64-bit value: what would be right, or something else.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Value {
    Right,
    Zero,
    Any(u64),
}

impl Value {
    const fn or(self, right: u64) -> u64 {
        match self {
            Self::Right => right,
            Self::Zero => 0,
            Self::Any(value) => value,
        }
    }
}

/// A number of a flow: in three of four cases the right one, else one that is near it.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Near(u8);

impl Near {
    const fn to(self, right: u32) -> u32 {
        match self.0 {
            0..0xc0 => right,
            far => right.wrapping_add(far as u32).wrapping_sub(0xe0),
        }
    }
}

/// Whether the packet lies about a node or an incarnation; most do not.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Lies(u8);

impl Lies {
    const SOURCE: u8 = 1;
    const DESTINATION: u8 = 2;
    const SOURCE_INCARNATION: u8 = 4;
    const DESTINATION_INCARNATION: u8 = 8;
    const CHANNEL: u8 = 16;

    const fn about(self, what: u8) -> bool {
        self.0 >= 0xe0 && self.0 & what != 0
    }
}

/// A packet as the fuzzer describes it.
#[derive(Arbitrary, Clone, Debug)]
pub struct Crafted {
    lies: Lies,
    epoch: Near,
    sequence: Near,
    acknowledge: Near,
    stamp: Value,
    offset: u32,
    len: u32,
    body: Kind,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Kind {
    Hello {
        wants_reply: bool,
        nonce: u64,
        echo: Value,
    },
    Write,
    Read,
    Confirm,
    Done {
        count: u8,
        code: u8,
    },
    Nak,
    Ask,
    Inquire,
    Inventory,
    Atomic {
        swaps: bool,
    },
    /// The same request again and again, and one of another kind behind them.
    Batch {
        count: u8,
        reads: bool,
    },
}

/// The least of its incarnations: neither it nor the lie about it is 0, which no packet has.
const FIRST_INCARNATION: u64 = 2;

/// What the hostile node knows.
#[derive(Debug)]
pub struct Hostile {
    incarnation: u64,
    /// The tested adaptor's, as it says.
    peer_incarnation: u64,
    /// What the tested adaptor wants back.
    nonce: u64,
    /// The epoch of the tested adaptor's requests, and the first that has no answer.
    peer_epoch: u32,
    peer_first: u32,
    /// Its own flow.
    epoch: u32,
    next: u32,
    answered: u32,
    stamp: u64,
}

impl Default for Hostile {
    fn default() -> Self {
        Self {
            incarnation: FIRST_INCARNATION,
            peer_incarnation: 0,
            nonce: 0,
            peer_epoch: 0,
            peer_first: 0,
            epoch: 0,
            next: 0,
            answered: 0,
            stamp: 0,
        }
    }
}

impl Hostile {
    /// It becomes another incarnation, or an old one again.
    pub fn restart(&mut self, incarnation: u8) {
        self.incarnation = FIRST_INCARNATION + u64::from(incarnation);
        (self.epoch, self.next, self.answered) = (0, 0, 0);
    }

    /// Sees a packet of the tested adaptor.
    pub fn observe(&mut self, packet: &Packet) {
        self.peer_incarnation = packet.source_incarnation.0;
        match &packet.body {
            Body::Hello { epoch, nonce, .. } => {
                if *nonce != 0 {
                    self.nonce = *nonce;
                }
                self.see_epoch(epoch.0);
            }
            Body::Write { progress, .. }
            | Body::Read { progress, .. }
            | Body::Atomic { progress, .. }
            | Body::Batch { progress, .. }
            | Body::Confirm { progress, .. } => {
                self.see_epoch(progress.epoch.0);
            }
            Body::Done { first, count, stamp, .. } => {
                self.answered = first.0.wrapping_add(*count);
                self.stamp = stamp.0;
            }
            Body::Nak { expected, stamp, .. } => {
                self.next = expected.0;
                self.stamp = stamp.0;
            }
            Body::Ask { stamp, .. } => self.stamp = stamp.0,
            Body::Lend { .. }
            | Body::Inquire
            | Body::Inventory { .. }
            | Body::Join { .. }
            | Body::Refuse { .. }
            | Body::Routes(_)
            | Body::Unknown(_) => {}
        }
    }

    fn see_epoch(&mut self, epoch: u32) {
        if core::mem::replace(&mut self.peer_epoch, epoch) != epoch {
            self.peer_first = 0;
        }
    }

    /// What an honest node would say now: that it is alive, and that it still wants its epoch.
    pub fn be_polite(&self) -> [Packet; 2] {
        let epoch = Epoch(self.epoch);
        let progress = Progress { epoch, acknowledge: Sequence(self.answered), echo: Stamp(self.stamp) };
        let hello = Body::Hello {
            versions: Versions::OWN,
            epoch,
            nonce: 0,
            echo: self.nonce,
            lease: LEASE_MICROS,
            inventory: 0,
        };
        let confirm = Body::Confirm { progress, sent: Sequence(self.next) };
        [hello, confirm].map(|body| Packet {
            source: HOSTILE,
            destination: TESTED,
            source_incarnation: Incarnation(self.incarnation),
            destination_incarnation: Incarnation(self.peer_incarnation),
            channel: Channel::Small,
            body,
        })
    }

    /// The packet as it goes over the link.
    pub fn send(&mut self, crafted: &Crafted) -> Packet {
        let lies = |what| crafted.lies.about(what);
        let own_epoch = Epoch(crafted.epoch.to(self.epoch));
        let their_epoch = Epoch(crafted.epoch.to(self.peer_epoch));
        let sequence = Sequence(crafted.sequence.to(self.next));
        let theirs = Sequence(crafted.sequence.to(self.peer_first));
        let stamp = Stamp(crafted.stamp.or(self.stamp));
        let progress = Progress {
            epoch: own_epoch,
            acknowledge: Sequence(crafted.acknowledge.to(self.answered)),
            echo: stamp,
        };
        let data = |len: u32| vec![HOSTILE_BYTE; usize::try_from(len).unwrap_or(0).min(MAX_PAYLOAD)].into();
        let body = match crafted.body {
            Kind::Hello { wants_reply, nonce, echo } => {
                let lease = crafted.len.checked_add(LEASE_MICROS).unwrap_or(0);
                let echo = echo.or(self.nonce);
                let nonce = if wants_reply { nonce } else { 0 };
                let (versions, inventory) = (Versions::OWN, crafted.offset);
                Body::Hello { versions, epoch: own_epoch, nonce, echo, lease, inventory }
            }
            Kind::Write => {
                Body::Write { progress, sequence, at: at(crafted.offset), data: data(len(crafted.len)) }
            }
            Kind::Read => Body::Read { progress, sequence, at: at(crafted.offset), len: len(crafted.len) },
            Kind::Atomic { swaps } => {
                let operands = data(if swaps { 16 } else { 8 });
                Body::Atomic { progress, sequence, at: at(crafted.offset), operands }
            }
            Kind::Batch { count, reads } => {
                let len = len(crafted.len) % 32;
                let (read, write) = (RequestKind::Read { len }, RequestKind::Write(data(len)));
                let (kind, other) = if reads { (read, write) } else { (write, read) };
                let mut batch = Collector::default();
                (0..count % 64).for_each(|_| batch.push(at(crafted.offset), &kind));
                batch.push(at(crafted.offset), &other);
                Body::Batch { progress, first: sequence, batch: batch.finish().expect("has a request") }
            }
            Kind::Confirm => Body::Confirm { progress, sent: sequence },
            Kind::Done { count, code } => {
                self.peer_first = theirs.0.wrapping_add(count.into());
                let code = Code::ALL[usize::from(code) % Code::ALL.len()];
                let len = crafted.len % 16;
                Body::Done {
                    epoch: their_epoch,
                    first: theirs,
                    count: count.into(),
                    code,
                    stamp,
                    data: data(len),
                }
            }
            Kind::Nak => Body::Nak { epoch: their_epoch, expected: theirs, stamp },
            Kind::Ask => Body::Ask { epoch: their_epoch, stamp },
            Kind::Inquire => Body::Inquire,
            Kind::Inventory => Body::Inventory { version: crafted.offset, entries: data(len(crafted.len)) },
        };
        let requests = match &body {
            Body::Write { .. } | Body::Read { .. } | Body::Atomic { .. } => 1,
            Body::Batch { batch, .. } => batch.count(),
            _ => 0,
        };
        if requests > 0 {
            self.next = sequence.0.wrapping_add(requests);
        }
        if own_epoch != Epoch(self.epoch) {
            self.epoch = own_epoch.0;
            (self.next, self.answered) = (0, 0);
        }
        Packet {
            source: if lies(Lies::SOURCE) { HONEST } else { HOSTILE },
            destination: if lies(Lies::DESTINATION) { NodeId(9) } else { TESTED },
            source_incarnation: Incarnation(self.incarnation ^ u64::from(lies(Lies::SOURCE_INCARNATION))),
            destination_incarnation: Incarnation(
                self.peer_incarnation ^ u64::from(lies(Lies::DESTINATION_INCARNATION)),
            ),
            channel: if lies(Lies::CHANNEL) && body.is_of_a_flow() { Channel::Bulk } else { Channel::Small },
            body,
        }
    }
}

/// Mostly a length that fits into a window, sometimes any.
const fn len(chosen: u32) -> u32 {
    if chosen >> 24 < 0xe0 { chosen % 600 } else { chosen }
}

/// Mostly near the exported windows, sometimes anywhere.
const fn at(chosen: u32) -> Location {
    let offset = chosen as u64;
    match chosen >> 28 {
        0xf => Location::memory(offset << 18 & ((1 << 48) - 1)),
        0xe => Location::io(offset & 0xffff),
        // The doorbells.
        0xd => Location::io(offset & 0x3ff),
        _ => Location::memory(offset & 0xffff),
    }
}
