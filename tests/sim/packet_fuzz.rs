//! A peer that sends anything that can be sent: well-formed packets with every field near what would be right.

use std::collections::VecDeque;
use std::time::Duration;

use assured_rdma::adaptor::address::{Geometry, Location, NodeId};
use assured_rdma::adaptor::channel::Channel;
use assured_rdma::adaptor::memory::{MemoryFault, MemoryOperation};
use assured_rdma::adaptor::mesh::batch::{Collector, SHORT};
use assured_rdma::adaptor::mesh::limits::{WINDOW_BYTES, WINDOW_REQUESTS};
use assured_rdma::adaptor::mesh::packet::{Body, Incarnation, Packet, Progress, Stamp};
use assured_rdma::adaptor::mesh::sequence::{Epoch, Sequence};
use assured_rdma::adaptor::mesh::versions::Versions;
use assured_rdma::adaptor::random::Random;
use assured_rdma::adaptor::status::Code;
use assured_rdma::adaptor::transaction::RequestKind;
use assured_rdma::adaptor::{Adaptor, Instant, LoadTag, Region, Settings};
use bytes::Bytes;

use crate::world::{DEADLINE, TIMING, WINDOW};

const OWN: NodeId = NodeId(1);
const PEER: NodeId = NodeId(2);

struct Attack {
    adaptor: Adaptor,
    random: Random,
    now: Instant,
    /// Packets that the victim sent, newest last.
    heard: VecDeque<Packet>,
    /// Packets of the attacker, to be replayed.
    said: Vec<Packet>,
    victim: Incarnation,
    own: u64,
    executed: u64,
}

impl Attack {
    fn begin_session(&mut self) {
        self.adaptor.handle_store(self.now, Region::Config, 4, &[6, 0]).unwrap();
        self.adaptor.handle_store(self.now, Region::Registers, 0x1d0, &1u32.to_le_bytes()).unwrap();
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.next() % limit
    }

    fn near(&mut self, value: u32) -> u32 {
        match self.below(8) {
            0..5 => value,
            5 => value.wrapping_add(self.random.next() as u32 % 4),
            6 => value.wrapping_sub(self.random.next() as u32 % 4),
            _ => self.random.next() as u32,
        }
    }

    /// A packet that fits to the last ones that the victim sent, or almost.
    fn packet(&mut self) -> Packet {
        if self.below(10) == 0 && !self.said.is_empty() {
            let index = self.below(self.said.len() as u64) as usize;
            return self.said[index].clone();
        }
        let (mut epoch, mut sequence, mut stamp, mut nonce) = (0, 0, 0, 0);
        for packet in &self.heard {
            match packet.body {
                Body::Hello { nonce: n, epoch: e, .. } => (nonce, epoch) = (n, e.0),
                Body::Write { progress, sequence: s, .. }
                | Body::Read { progress, sequence: s, .. }
                | Body::Batch { progress, first: s, .. }
                | Body::Atomic { progress, sequence: s, .. } => {
                    (epoch, sequence) = (progress.epoch.0, s.0);
                }
                Body::Done { stamp: t, .. } | Body::Nak { stamp: t, .. } | Body::Ask { stamp: t, .. } => {
                    stamp = t.0
                }
                Body::Confirm { progress, .. } => epoch = progress.epoch.0,
                Body::Lend { .. }
                | Body::Inquire
                | Body::Inventory { .. }
                | Body::Join { .. }
                | Body::Refuse { .. }
                | Body::Routes(_)
                | Body::Unknown(_) => {}
            }
        }
        let epoch = Epoch(self.near(epoch));
        let sequence = Sequence(self.near(sequence));
        let echo = Stamp(if self.below(4) == 0 { self.random.next() } else { stamp });
        let acknowledge = Sequence(self.near(sequence.0));
        let progress = Progress { epoch, acknowledge, echo };
        let len = [0, 1, 8, 4096, 65_536][self.below(5) as usize];
        let offset = [0, 8, 0xfff8, 0xffff, WINDOW, (1 << 48) - 1][self.below(6) as usize];
        let at = if self.below(4) == 0 { Location::io(offset) } else { Location::memory(offset) };
        let data = Bytes::from(vec![0x66; len]);
        let code = Code::ALL[self.below(Code::ALL.len() as u64) as usize];
        let code = if self.below(2) == 0 { Code::Ok } else { code };
        let body = match self.below(13) {
            0 => Body::Hello {
                versions: Versions::OWN,
                epoch,
                nonce: if self.below(2) == 0 { self.random.next() } else { 0 },
                echo: if self.below(4) == 0 { 1 } else { nonce },
                lease: self.near(150_000),
                inventory: self.near(1),
            },
            1 | 2 => Body::Write { progress, sequence, at, data },
            3 => Body::Read { progress, sequence, at, len: self.near(len as u32) },
            4 => Body::Confirm { progress, sent: sequence },
            5 | 6 => Body::Done { epoch, first: sequence, count: self.near(1), code, stamp: echo, data },
            7 => Body::Inquire,
            8 => Body::Inventory { version: self.near(1), entries: data },
            10 => {
                let operands = vec![0x66; [8, 16, 9][self.below(3) as usize]].into();
                Body::Atomic { progress, sequence, at, operands }
            }
            11 => {
                let mut batch = Collector::default();
                let short = data.slice(..len.min(SHORT));
                (0..self.below(4)).for_each(|_| batch.push(at, &RequestKind::Write(short.clone())));
                batch.push(at, &RequestKind::Read { len: self.near(len as u32) });
                Body::Batch { progress, first: sequence, batch: batch.finish().unwrap() }
            }
            9 => Body::Nak { epoch, expected: sequence, stamp: echo },
            _ => Body::Ask { epoch, stamp: echo },
        };
        let (wrong_source, wrong_target) = (self.below(50) == 0, self.below(50) == 0);
        let bulk = self.below(10) == 0;
        if self.below(200) == 0 {
            self.own += 1;
        }
        Packet {
            source: if wrong_source { NodeId(3) } else { PEER },
            destination: if wrong_target { NodeId(3) } else { OWN },
            source_incarnation: Incarnation(self.own),
            destination_incarnation: self.victim,
            channel: if bulk && body.is_of_a_flow() { Channel::Bulk } else { Channel::Small },
            body,
        }
    }

    fn drain(&mut self) {
        let mut operations = 0;
        while let Some(operation) = self.adaptor.poll_memory(self.now) {
            operations += 1;
            assert!(operations < 2000);
            let (id, result) = match operation {
                MemoryOperation::Read { id, segments, .. } => {
                    (id, Ok(Bytes::from(vec![1; segments.iter().map(|s| s.len).sum()])))
                }
                MemoryOperation::Touch { id, .. } => (id, Ok(Bytes::new())),
                MemoryOperation::Write { id, .. } => {
                    self.executed += 1;
                    (id, Ok(Bytes::new()))
                }
                MemoryOperation::Descriptor { .. } => panic!("nobody gives commands"),
                MemoryOperation::Transfer { .. } => panic!("a packet of a link lends memory"),
                MemoryOperation::Atomic { id, .. } => {
                    self.executed += 1;
                    (id, Ok(Bytes::from_static(&[0; 8])))
                }
            };
            self.adaptor.handle_memory_done(self.now, id, result);
        }
        let (mut packets, mut bytes) = (0, 0);
        while let Some(packet) = self.adaptor.poll_packet(self.now, PEER, &mut |_| Err(MemoryFault::Unmapped))
        {
            packets += 1;
            let mut wire = Vec::new();
            packet.emit(&mut wire);
            bytes += wire.len();
            assert!(
                packets < 3 * WINDOW_REQUESTS && bytes < 3 * WINDOW_BYTES,
                "{packets} packets, {bytes} bytes"
            );
            self.victim = packet.source_incarnation;
            self.heard.push_back(packet);
            if self.heard.len() > 16 {
                self.heard.pop_front();
            }
        }
        while self.adaptor.poll_event().is_some() || self.adaptor.poll_interrupt().is_some() {}
    }
}

#[test]
fn a_peer_that_sends_anything_neither_breaks_the_node_nor_holds_a_load_beyond_the_deadline() {
    let seeds = std::env::var("SIM_SCHEDULES").map_or(20, |n| n.parse().unwrap());
    for seed in 0..seeds {
        let settings = Settings {
            node: OWN,
            geometry: Geometry::new(16, WINDOW).unwrap(),
            peers: [OWN, PEER].into_iter().collect(),
            timing: TIMING,
            gather: Duration::from_micros(50),
            seed,
        };
        let adaptor = Adaptor::new(settings);
        let victim = adaptor.incarnation();
        let mut attack = Attack {
            adaptor,
            random: Random::new(seed),
            now: Instant::from_nanos(1_000_000),
            heard: VecDeque::new(),
            said: Vec::new(),
            victim,
            own: 1,
            executed: 0,
        };
        attack.begin_session();
        attack.adaptor.handle_link_up(attack.now, PEER);
        attack.drain();
        let mut waiting: Option<(LoadTag, Instant)> = None;
        for step in 0..5000u64 {
            let pause = Duration::from_micros(attack.random.next() % 2000);
            attack.now = attack.now.after(pause);
            let mut timeouts = 0;
            while attack.adaptor.poll_timeout().is_some_and(|at| at <= attack.now) {
                attack.adaptor.handle_timeout(attack.now);
                timeouts += 1;
                assert!(timeouts < 20, "seed {seed}: a timeout that does not go away");
                attack.drain();
            }
            match attack.below(20) {
                0 => {
                    let (now, offset) = (attack.now, 2 * WINDOW + 8 * attack.below(1000));
                    let _ = attack.adaptor.handle_store(now, Region::Access, offset, &[5; 8]);
                }
                1 if waiting.is_none() => {
                    let region = if attack.below(2) == 0 { Region::Access } else { Region::Assurance };
                    waiting = Some((LoadTag(step), attack.now));
                    attack.adaptor.handle_load(attack.now, LoadTag(step), region, 2 * WINDOW, 8);
                }
                2 => attack.adaptor.handle_idle(attack.now),
                3 if attack.below(50) == 0 => {
                    attack.adaptor.handle_reset(attack.now);
                    attack.begin_session();
                }
                4 if attack.below(20) == 0 => {
                    attack.adaptor.handle_link_down(attack.now, PEER);
                    attack.adaptor.handle_link_up(attack.now, PEER);
                }
                5 if attack.below(5) == 0 => attack.adaptor.handle_corrupt(PEER),
                _ => {
                    let packet = attack.packet();
                    attack.said.push(packet.clone());
                    attack.adaptor.handle_packet(attack.now, PEER, packet);
                }
            }
            attack.drain();
            while let Some(completion) = attack.adaptor.poll_completion() {
                let (tag, _) = waiting.take().unwrap();
                assert_eq!(tag, completion.tag);
            }
            if let Some((_, since)) = waiting {
                assert!(attack.now.since(since) <= DEADLINE + Duration::from_millis(2), "seed {seed}");
            }
        }
        assert_eq!(attack.executed, 0, "seed {seed}: isolation: nothing is exported");
    }
}
