//! The session that `docs/protocol.md` shows byte by byte is what two adaptors say to each other.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

use std::fmt::Write as _;
use std::time::Duration;

use assured_rdma::adaptor::address::NodeSet;
use assured_rdma::adaptor::address::{Geometry, Location, NodeId, Space};
use assured_rdma::adaptor::buses::Buses;
use assured_rdma::adaptor::inventory::Name;
use assured_rdma::adaptor::master::{HostedWindow, Rights};
use assured_rdma::adaptor::memory::{DeviceId, MemoryFault, MemoryOperation};
use assured_rdma::adaptor::mesh::Timing;
use assured_rdma::adaptor::mesh::neighbour::{End, Identity, Role};
use assured_rdma::adaptor::mesh::packet::{Body, Incarnation, Packet};
use assured_rdma::adaptor::mesh::versions::Versions;
use assured_rdma::adaptor::{Adaptor, Instant, LoadTag, Region, Settings};
use bytes::Bytes;

const WINDOW: u64 = 1 << 20;
const NODES: [NodeId; 2] = [NodeId(1), NodeId(2)];

fn adaptor(node: NodeId) -> Adaptor {
    let millis = Duration::from_millis;
    let mut adaptor = Adaptor::new(Settings {
        node,
        geometry: Geometry::new(4, WINDOW).unwrap(),
        peers: NODES.into_iter().collect(),
        timing: Timing { deadline: millis(500), lease: millis(150), keepalive: millis(2000) },
        gather: Duration::ZERO,
        seed: node.0.into(),
    });
    if node == NODES[1] {
        let rights = Rights { read: true, write: true, atomic: false };
        let (nodes, name) = (NodeSet::ALL, Name::new("vault").unwrap());
        let (device, space) = (DeviceId(0), Space::Memory);
        let window = HostedWindow { device, space, offset: Some(0), len: 0x1000, rights, nodes, name };
        assert_eq!(adaptor.host(&window), Ok(Location::memory(0)));
    }
    adaptor.handle_store(Instant::ZERO, Region::Config, 4, &[6, 0]).unwrap();
    adaptor.handle_store(Instant::ZERO, Region::Registers, 0x1d0, &1u32.to_le_bytes()).unwrap();
    adaptor
}

/// Two adaptors with a link between them, and all that passed over it.
struct Session {
    adaptors: [Adaptor; 2],
    memory: Vec<u8>,
    now: Instant,
    text: String,
}

impl Session {
    /// What is in a packet, and its bytes.
    fn show(&mut self, packet: &Packet) {
        let mut wire = Vec::new();
        packet.emit(&mut wire);
        let what = match &packet.body {
            Body::Join { wants_reply: true, .. } => {
                "JOIN: I am node 1, an adaptor, and look for node 2".into()
            }
            Body::Join { .. } => "JOIN: I am node 2; this is an answer".into(),
            Body::Hello { nonce, echo, lease, .. } => {
                let asks = if *nonce == 0 { "I ask for nothing" } else { "send my nonce back" };
                let echoes = if *echo == 0 { "no nonce comes back" } else { "your nonce comes back" };
                format!("HELLO: {asks}, {echoes}, my lease is {lease} us")
            }
            Body::Write { sequence, progress, at, data } => format!(
                "WRITE, request {}: {} bytes to offset {:#x}, the stamp is {}",
                sequence.0,
                data.len(),
                at.offset,
                progress.echo.0
            ),
            Body::Read { sequence, progress, at, len } => format!(
                "READ, request {}: {len} bytes from offset {:#x}; request {} is the first without an answer",
                sequence.0, at.offset, progress.acknowledge.0
            ),
            Body::Ask { stamp, .. } => format!("ASK: the write has no lease; the time is {}", stamp.0),
            Body::Confirm { sent, progress } => {
                format!("CONFIRM: sent up to request {}, the stamp is {}", sent.0, progress.echo.0)
            }
            Body::Done { first, count, data, .. } => {
                format!("DONE: {count} from request {} on, OK, {} bytes", first.0, data.len())
            }
            other => panic!("{other:?} is not in the story"),
        };
        writeln!(self.text, "\n{} to {}: {what}", packet.source, packet.destination).unwrap();
        for row in wire.chunks(16) {
            let words: Vec<_> = row
                .chunks(4)
                .map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
                .collect();
            writeln!(self.text, "  {}", words.join(" ")).unwrap();
        }
    }

    /// Everything arrives, each packet after 10 us, until nobody has anything to say.
    fn exchange(&mut self) {
        loop {
            let mut is_quiet = true;
            for from in 0..2 {
                let packets: Vec<_> = std::iter::from_fn(|| {
                    self.adaptors[from]
                        .poll_packet(self.now, NODES[1 - from], &mut |_| Err(MemoryFault::Unmapped))
                })
                .collect();
                for packet in packets {
                    is_quiet = false;
                    if !matches!(packet.body, Body::Inquire | Body::Inventory { .. }) {
                        self.show(&packet);
                    }
                    self.now = self.now.after(Duration::from_micros(10));
                    self.adaptors[1 - from].handle_packet(self.now, NODES[from], packet);
                    self.execute();
                }
            }
            if is_quiet {
                return;
            }
        }
    }

    fn execute(&mut self) {
        while let Some(operation) = self.adaptors[1].poll_memory(self.now) {
            let id = operation.id();
            let result = match operation {
                MemoryOperation::Write { segments, data, .. } => {
                    let at = segments[0].address as usize;
                    self.memory[at..at + data.len()].copy_from_slice(&data);
                    Bytes::new()
                }
                MemoryOperation::Read { segments, .. } => {
                    let at = segments[0].address as usize;
                    Bytes::copy_from_slice(&self.memory[at..at + segments[0].len])
                }
                other => panic!("{other:?} is not in the story"),
            };
            self.adaptors[1].handle_memory_done(self.now, id, Ok(result));
        }
    }
}

fn session() -> String {
    let adaptors = NODES.map(adaptor);
    let start = Instant::from_nanos(1_000_000_000);
    let mut session = Session { adaptors, memory: vec![0; 0x1000], now: start, text: String::new() };
    for (from, wants_reply) in [(0, true), (1, false)] {
        let role = Role::of(End::Adaptor(Buses::single(NODES[from])));
        let life = Incarnation(0x1111_1111_1111_1111 * (from as u64 + 1));
        let join = Packet::between(
            Identity::Node(NODES[from]),
            NODES[1 - from],
            life,
            Body::Join { role, versions: Versions::OWN, wants_reply },
        );
        session.show(&join);
    }
    for (index, peer) in [(0, NODES[1]), (1, NODES[0])] {
        session.adaptors[index].handle_link_up(start, peer);
    }
    session.exchange();
    let now = session.now;
    session.adaptors[0].handle_store(now, Region::Access, 2 * WINDOW + 0x40, b"assured!").unwrap();
    session.adaptors[0].handle_idle(now);
    session.exchange();
    let now = session.now;
    session.adaptors[0].handle_load(now, LoadTag(1), Region::Access, 2 * WINDOW + 0x44, 4);
    session.exchange();
    let answer = session.adaptors[0].poll_completion().expect("the load is answered");
    assert_eq!(&answer.data[..], b"red!");
    session.text
}

#[test]
fn the_page_shows_a_session_as_it_is() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/protocol.md")).unwrap();
    let shown = page.split("<!-- session: begin").nth(1).expect("the begin marker is missing");
    let shown = shown.split("<!-- session: end -->").next().unwrap();
    let shown = shown.split("```").nth(1).unwrap_or_default();
    let session = session();
    assert!(shown.trim() == session.trim(), "docs/protocol.md should show:\n```{session}```");
}
