//! Peers of other versions than the present one, written in bytes: what version 1 is has to stay, so nothing here is taken from
//! the product's own packets.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::node::{Node, PATIENCE, Place};

const JOIN: u8 = 9;
const REFUSE: u8 = 10;
const HELLO: u8 = 1;
const WRITE: u8 = 3;
const READ: u8 = 4;
const CONFIRM: u8 = 5;
const DONE: u8 = 6;
const ASK: u8 = 8;

const LIFE: u64 = 0x1122_3344_5566_7788;

/// A packet as version 1 has it, see the table in `docs/protocol.md`.
#[derive(Clone, Default)]
struct Bytes {
    version: u8,
    command: u8,
    code: u8,
    to_life: u64,
    epoch: u32,
    sequence: u32,
    acknowledge: u32,
    count: u32,
    address: u64,
    stamp: u64,
    payload: Vec<u8>,
}

impl Bytes {
    fn new(command: u8) -> Self {
        Self { version: 1, command, ..Self::default() }
    }

    fn wire(&self) -> Vec<u8> {
        let mut wire = vec![b'A', b'R', self.version, self.command, 2, 1, 0, self.code];
        wire.extend((self.payload.len() as u32).to_le_bytes());
        wire.extend([0; 4]);
        wire.extend([LIFE, self.to_life].map(u64::to_le_bytes).concat());
        wire.extend([self.epoch, self.sequence, self.acknowledge, self.count].map(u32::to_le_bytes).concat());
        wire.extend([self.address, self.stamp].map(u64::to_le_bytes).concat());
        wire.extend(&self.payload);
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &wire) as u32;
        wire[12..16].copy_from_slice(&crc.to_le_bytes());
        wire
    }
}

/// Node 2, which speaks these versions with node 1.
struct Peer {
    stream: TcpStream,
    versions: u32,
    /// The life of node 1.
    life: u64,
}

impl Peer {
    fn connect(place: &Place, versions: [u8; 2], features: u16) -> Self {
        let stream = TcpStream::connect(place.address(1)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let [low, high] = features.to_le_bytes();
        let versions = u32::from_le_bytes([versions[0], versions[1], low, high]);
        let mut peer = Self { stream, versions, life: 0 };
        let join = Bytes { sequence: 1, count: 1, acknowledge: versions, ..Bytes::new(JOIN) };
        peer.send(&join);
        peer
    }

    fn send(&mut self, bytes: &Bytes) {
        self.stream.write_all(&Bytes { to_life: self.life, ..bytes.clone() }.wire()).unwrap();
    }

    fn next(&mut self) -> Bytes {
        let mut header = [0; 64];
        self.stream.read_exact(&mut header).unwrap();
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap());
        let mut payload = vec![0; word(8) as usize];
        self.stream.read_exact(&mut payload).unwrap();
        assert_eq!((&header[..3], header[4]), (&b"AR\x01"[..], 1));
        // One who is not let in yet is nobody.
        assert!(header[5] == 2 || header[3] == REFUSE && header[5] == 0);
        Bytes {
            version: header[2],
            command: header[3],
            code: header[7],
            // Of node 1, which sends it.
            to_life: long(16),
            epoch: word(32),
            sequence: word(36),
            acknowledge: word(40),
            count: word(44),
            address: long(48),
            stamp: long(56),
            payload,
        }
    }

    /// The next packet with one of these commands; questions for a sign of life are answered.
    fn wait_for(&mut self, commands: &[u8]) -> Bytes {
        loop {
            let packet = self.next();
            if packet.command == HELLO {
                self.life = packet.to_life;
                if packet.address != 0 {
                    self.greet(0, packet.address);
                }
            }
            if commands.contains(&packet.command) {
                return packet;
            }
        }
    }

    fn greet(&mut self, nonce: u64, echo: u64) {
        let (count, acknowledge) = (150_000, self.versions);
        self.send(&Bytes { acknowledge, count, address: nonce, stamp: echo, ..Bytes::new(HELLO) });
    }

    /// Proves its life, and makes sure of node 1's.
    fn meet(&mut self) {
        let join = self.wait_for(&[JOIN]);
        assert_eq!((join.sequence, join.acknowledge & 0xffff), (0, 0x0101), "node 1 speaks version 1");
        self.greet(7, 0);
        while self.wait_for(&[HELLO]).stamp != 7 {}
    }

    /// Writes a number into node 1 and reads it back.
    fn write_and_read(&mut self, first: u32, value: u64) {
        let data = value.to_le_bytes();
        let write = Bytes { sequence: first, acknowledge: first, address: 64, ..Bytes::new(WRITE) };
        self.send(&Bytes { payload: data.to_vec(), ..write });
        // Where the lease is over, node 1 asks for another.
        let mut done = self.wait_for(&[ASK, DONE]);
        if done.command == ASK {
            let stamp = done.stamp;
            self.send(&Bytes { sequence: first + 1, acknowledge: first, stamp, ..Bytes::new(CONFIRM) });
            done = self.wait_for(&[DONE]);
        }
        assert_eq!((done.code, done.sequence, done.count), (0, first, 1));
        let (sequence, acknowledge) = (first + 1, first + 1);
        self.send(&Bytes { sequence, acknowledge, count: 8, address: 64, ..Bytes::new(READ) });
        let done = self.wait_for(&[DONE]);
        assert_eq!((done.code, done.sequence, done.payload), (0, first + 1, data.to_vec()));
    }
}

/// Node 1, which has memory for node 2.
fn serve(place: &Place) -> Node {
    place.start_without_guest(1, &[], &["--peer", "2", "--device", "kind=memory,name=memory,size=64K"])
}

#[test]
fn a_peer_that_speaks_only_this_version_joins() {
    let place = Place::new();
    let _node = serve(&place);
    let mut peer = Peer::connect(&place, [1, 1], 0);
    peer.meet();
    peer.write_and_read(0, 0x0807_0605_0403_0201);
}

#[test]
fn a_newer_peer_joins_and_what_only_it_knows_is_skipped() {
    let place = Place::new();
    let mut node = serve(&place);
    let mut peer = Peer::connect(&place, [1, 9], 0xffff);
    peer.meet();
    peer.write_and_read(0, 1);
    let strange =
        Bytes { code: 0xee, epoch: 5, sequence: 6, count: 7, payload: vec![9; 100], ..Bytes::default() };
    for (version, command) in
        [(1, 2), (1, 16), (1, 191), (1, 192), (1, 255), (2, WRITE), (9, HELLO), (0, DONE)]
    {
        peer.send(&Bytes { version, command, ..strange.clone() });
    }
    peer.write_and_read(2, 2);
    assert!(
        !node.log().iter().any(|line| line.contains("WARN") || line.contains("ERROR")),
        "{:?}",
        node.log()
    );
}

#[test]
fn a_peer_without_a_version_in_common_is_refused_by_name() {
    let place = Place::new();
    let mut node = serve(&place);
    let mut peer = Peer::connect(&place, [2, 9], 0);
    assert_eq!(peer.wait_for(&[REFUSE]).code, 4);
    node.wait_for("it speaks versions 2 to 9 of the protocol, and this program version 1");
}
