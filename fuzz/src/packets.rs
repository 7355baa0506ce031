//! Packets made from fields that the fuzzer chooses.

use arbitrary::Arbitrary;
use assured_rdma::adaptor::address::{Location, NodeId};
use assured_rdma::adaptor::channel::Channel;
use assured_rdma::adaptor::mesh::batch::{Batch, Collector, SHORT};
use assured_rdma::adaptor::mesh::neighbour::{MAX_HOPS, Refusal, Role, Route, Routes};
use assured_rdma::adaptor::mesh::packet::{Body, Incarnation, Packet, Progress, Stamp};
use assured_rdma::adaptor::mesh::sequence::{Epoch, Sequence};
use assured_rdma::adaptor::mesh::versions::Versions;
use assured_rdma::adaptor::status::Code;
use assured_rdma::adaptor::transaction::{Atomic, RequestKind};
use bytes::Bytes;

const OFFSET_MASK: u64 = (1 << 48) - 1;

/// Every field of a packet, whatever its command uses of them.
#[derive(Arbitrary, Clone, Debug)]
pub struct Fields {
    command: u8,
    nodes: [u8; 2],
    incarnations: [u64; 2],
    epoch: u32,
    sequence: u32,
    acknowledge: u32,
    count: u32,
    code: u8,
    address: u64,
    stamp: u64,
    data: Vec<u8>,
}

impl From<Fields> for Packet {
    fn from(fields: Fields) -> Self {
        let epoch = Epoch(fields.epoch);
        let sequence = Sequence(fields.sequence);
        let stamp = Stamp(fields.stamp);
        let progress = Progress { epoch, acknowledge: Sequence(fields.acknowledge), echo: stamp };
        let offset = fields.address & OFFSET_MASK;
        let at = if fields.address >> 63 == 0 { Location::memory(offset) } else { Location::io(offset) };
        let code = Code::ALL[usize::from(fields.code) % Code::ALL.len()];
        let [smallest, more, ..] = fields.acknowledge.to_le_bytes();
        let smallest = smallest.max(1);
        let versions = Versions::new(smallest, smallest.saturating_add(more), 0).unwrap_or(Versions::OWN);
        let data: Bytes = fields.data.into();
        let body = match fields.command % 15 {
            kind @ 0..2 => {
                let (nonce, echo, lease) = (fields.address, fields.stamp, fields.count);
                let nonce = if kind == 0 { nonce } else { 0 };
                Body::Hello { versions, epoch, nonce, echo, lease, inventory: fields.sequence }
            }
            2 => Body::Write { progress, sequence, at, data },
            3 => Body::Read { progress, sequence, at, len: fields.count },
            4 => Body::Confirm { progress, sent: sequence },
            5 => Body::Done { epoch, first: sequence, count: fields.count, code, stamp, data },
            6 => Body::Nak { epoch, expected: sequence, stamp },
            7 => Body::Ask { epoch, stamp },
            8 => {
                let [bus_bits, further, ..] = fields.address.to_le_bytes();
                let role =
                    if fields.count & 1 != 0 { Role::Router } else { Role::Adaptor { bus_bits, further } };
                Body::Join { role, versions, wants_reply: fields.sequence & 1 != 0 }
            }
            9 => Body::Refuse { reason: Refusal::ALL[usize::from(fields.code) % Refusal::ALL.len()] },
            12 => {
                let numbers = [fields.stamp, fields.address].map(u64::to_le_bytes).concat();
                let len = if fields.count & 1 == 0 { 8 } else { 16 };
                Body::Atomic { progress, sequence, at, operands: numbers[..len].to_vec().into() }
            }
            14 => {
                Body::Batch { progress, first: sequence, batch: batch(at, fields.count, &data, fields.stamp) }
            }
            10 => Body::Inquire,
            11 => Body::Inventory { version: fields.sequence, entries: data },
            _ => Body::Routes(routes(fields.epoch, fields.stamp)),
        };
        Self {
            source: NodeId(fields.nodes[0]),
            destination: NodeId(fields.nodes[1]),
            source_incarnation: Incarnation(fields.incarnations[0].max(1)),
            destination_incarnation: Incarnation(match body {
                Body::Join { .. } | Body::Refuse { .. } | Body::Routes(_) => 0,
                _ => fields.incarnations[1],
            }),
            channel: if fields.nodes[0] & 1 == 1 && body.is_of_a_flow() {
                Channel::Bulk
            } else {
                Channel::Small
            },
            body,
        }
    }
}

/// A batch with requests of all kinds: as bits of `kinds` say, and one more.
fn batch(at: Location, kinds: u32, data: &Bytes, operand: u64) -> Batch {
    let mut collector = Collector::default();
    let data = data.slice(..data.len().min(SHORT));
    for kind in [kinds & 3, kinds >> 2 & 3, kinds >> 4 & 3] {
        match kind {
            1 => collector.push(at, &RequestKind::Write(data.clone())),
            2 => collector.push(at, &RequestKind::Atomic(Atomic::Add(operand))),
            3 => collector
                .push(at, &RequestKind::Atomic(Atomic::CompareSwap { compare: operand, swap: kinds.into() })),
            _ => {}
        }
    }
    collector.push(at, &RequestKind::Read { len: kinds });
    collector.finish().expect("has a request")
}

/// A list of routes in its one form: node `n` is in it where bit `n` of `nodes` is set.
fn routes(nodes: u32, incarnation: u64) -> Routes {
    let nodes = (0..32).filter(|node| nodes >> node & 1 == 1);
    Routes::new(nodes.map(|node| Route {
        node: NodeId(node),
        distance: 1 + node % MAX_HOPS,
        incarnation: Incarnation(incarnation.max(1)),
    }))
}

/// The wire form of a packet.
pub fn wire(packet: &Packet) -> Vec<u8> {
    let mut wire = Vec::new();
    packet.emit(&mut wire);
    wire
}

fn flow(source: NodeId, destination: NodeId, body: Body) -> Packet {
    let (source_incarnation, destination_incarnation) = (Incarnation(1), Incarnation(1));
    Packet { source, destination, source_incarnation, destination_incarnation, channel: Channel::Small, body }
}

fn progress() -> Progress {
    Progress { epoch: Epoch(0), acknowledge: Sequence(0), echo: Stamp(0) }
}

/// A write of `len` bytes.
pub fn write(source: NodeId, destination: NodeId, channel: Channel, len: usize) -> Packet {
    let data = vec![0; len].into();
    let body = Body::Write { progress: progress(), sequence: Sequence(0), at: Location::memory(0), data };
    Packet { channel, ..flow(source, destination, body) }
}

/// A packet without payload.
pub fn confirm(source: NodeId, destination: NodeId) -> Packet {
    flow(source, destination, Body::Confirm { progress: progress(), sent: Sequence(0) })
}

/// The CRC in a packet's wire form, which is as good as its name.
pub fn crc(wire: &[u8]) -> u32 {
    u32::from_le_bytes(wire[12..16].try_into().expect("four bytes"))
}
