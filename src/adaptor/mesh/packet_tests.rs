//! The packet format by golden bytes, by round trips and by random bytes.

use crate::adaptor::transaction::{Atomic, RequestKind};
use bytes::Bytes;
use proptest::prelude::*;

use super::batch::tests::batch;
use super::framing::{FrameError, Framer};
use super::neighbour::{End, Identity, MAX_HOPS, Refusal, Role, Route, Routes};
use super::packet::*;
use super::sequence::{Epoch, Sequence};
use super::versions::Versions;
use crate::adaptor::address::{Location, NodeId};
use crate::adaptor::buses::{Buses, Span};
use crate::adaptor::channel::Channel;
use crate::adaptor::status::Code;

fn write_packet() -> Packet {
    Packet {
        source: NodeId(1),
        destination: NodeId(2),
        source_incarnation: Incarnation(0x1111_2222_3333_4444),
        destination_incarnation: Incarnation(0x5555_6666_7777_8888),
        channel: Channel::Small,
        body: Body::Write {
            progress: Progress { epoch: Epoch(3), acknowledge: Sequence(9), echo: Stamp(0xabcd) },
            sequence: Sequence(10),
            at: Location::memory(0x1000_2000),
            data: Bytes::from_static(b"assured!"),
        },
    }
}

#[rustfmt::skip]
const WRITE_BYTES: [u8; 72] = [
    b'A', b'R', 1, 3, 1, 2, 0, 0,
    8, 0, 0, 0, 0x22, 0x19, 0x38, 0xe4,
    0x44, 0x44, 0x33, 0x33, 0x22, 0x22, 0x11, 0x11,
    0x88, 0x88, 0x77, 0x77, 0x66, 0x66, 0x55, 0x55,
    3, 0, 0, 0, 10, 0, 0, 0,
    9, 0, 0, 0, 0, 0, 0, 0,
    0x00, 0x20, 0x00, 0x10, 0, 0, 0, 0,
    0xcd, 0xab, 0, 0, 0, 0, 0, 0,
    b'a', b's', b's', b'u', b'r', b'e', b'd', b'!',
];

fn emitted(packet: &Packet) -> Vec<u8> {
    // A dirty start shows bytes that were not written.
    let mut out = vec![0xa5; 3];
    packet.emit(&mut out);
    out.split_off(3)
}

#[test]
fn golden_bytes_of_a_write() {
    assert_eq!(emitted(&write_packet()), WRITE_BYTES);
    assert_eq!(Packet::parse(Bytes::from_static(&WRITE_BYTES)), Ok(write_packet()));
}

#[test]
fn golden_bytes_of_atomic_operations() {
    let write = write_packet();
    let Body::Write { progress, sequence, at, .. } = write.body else { panic!("{write:?}") };
    let swap = Atomic::CompareSwap { compare: 0x0102_0304_0506_0708, swap: 0x1112_1314_1516_1718 };
    for (atomic, operands) in [
        (Atomic::Add(0x0102_0304_0506_0708), &[8, 7, 6, 5, 4, 3, 2, 1][..]),
        (swap, &[8, 7, 6, 5, 4, 3, 2, 1, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]),
    ] {
        let body = Body::Atomic { progress, sequence, at, operands: atomic.operands() };
        let packet = Packet { body, ..write_packet() };
        let mut wire = [&WRITE_BYTES[..64], operands].concat();
        (wire[3], wire[8]) = (14, operands.len() as u8);
        let wire = sealed(wire);
        assert_eq!(emitted(&packet), wire);
        assert_eq!(Packet::parse(Bytes::from(wire)), Ok(packet));
        assert_eq!(Atomic::from_operands(operands), Some(atomic));
    }
    for len in [0, 7, 9, 15, 17, 24] {
        let mut wire = [&WRITE_BYTES[..64], &vec![0; len]].concat();
        (wire[3], wire[8]) = (14, len as u8);
        assert_eq!(
            Packet::parse(Bytes::from(sealed(wire))),
            Err(ParseError::Field),
            "{len} bytes of operands"
        );
    }
}

#[rustfmt::skip]
const BATCH_BYTES: [u8; 104] = [
    b'A', b'R', 1, 15, 1, 2, 1, 0,
    40, 0, 0, 0, 0, 0, 0, 0,
    0x44, 0x44, 0x33, 0x33, 0x22, 0x22, 0x11, 0x11,
    0x88, 0x88, 0x77, 0x77, 0x66, 0x66, 0x55, 0x55,
    3, 0, 0, 0, 10, 0, 0, 0,
    9, 0, 0, 0, 2, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
    0xcd, 0xab, 0, 0, 0, 0, 0, 0,
    0x00, 0x20, 0x00, 0x10, 0, 0, 0, 0, 8, 0, 0, 0, 3, 0, 0, 0,
    b'a', b's', b's', b'u', b'r', b'e', b'd', b'!',
    0x10, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 4, 0, 0, 0,
];

#[test]
fn golden_bytes_of_a_batch() {
    let write = write_packet();
    let Body::Write { progress, sequence: first, at, data } = write.body else { panic!("{write:?}") };
    let requests =
        [(at, RequestKind::Write(data)), (Location::io(0x10), RequestKind::Read { len: 0x1_0000 })];
    let body = Body::Batch { progress, first, batch: batch(&requests) };
    let packet = Packet { channel: Channel::Bulk, body, ..write_packet() };
    let wire = sealed(BATCH_BYTES.to_vec());
    assert_eq!(emitted(&packet), wire);
    assert_eq!(Packet::parse(Bytes::from(wire.clone())), Ok(packet));
    let mut miscounted = wire;
    miscounted[44] = 3;
    assert_eq!(Packet::parse(Bytes::from(sealed(miscounted))), Err(ParseError::Field));
}

#[rustfmt::skip]
const JOIN_BYTES: [u8; 64] = [
    b'A', b'R', 1, 9, 3, 2, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
    0x44, 0x44, 0x33, 0x33, 0x22, 0x22, 0x11, 0x11,
    0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 1, 0, 0, 0,
    1, 1, 0, 0, 1, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
];

/// The first 3 of the 4 buses that there can be.
#[rustfmt::skip]
const JOIN_OF_SEVERAL_BYTES: [u8; 64] = [
    b'A', b'R', 1, 9, 4, 2, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
    0x44, 0x44, 0x33, 0x33, 0x22, 0x22, 0x11, 0x11,
    0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
    1, 1, 0, 0, 1, 0, 0, 0,
    2, 2, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
];

#[rustfmt::skip]
const REFUSE_BYTES: [u8; 64] = [
    b'A', b'R', 1, 10, 0, 3, 0, 2,
    0, 0, 0, 0, 0, 0, 0, 0,
    0x44, 0x44, 0x33, 0x33, 0x22, 0x22, 0x11, 0x11,
    0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
];

#[rustfmt::skip]
const ROUTES_BYTES: [u8; 84] = [
    b'A', b'R', 1, 11, 0, 3, 0, 0,
    20, 0, 0, 0, 0, 0, 0, 0,
    0x44, 0x44, 0x33, 0x33, 0x22, 0x22, 0x11, 0x11,
    0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
    1, 1, 5, 0, 0, 0, 0, 0, 0, 0,
    7, 15, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
];

/// Puts the right CRC into a packet.
fn sealed(mut wire: Vec<u8>) -> Vec<u8> {
    wire[12..16].fill(0);
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &wire) as u32;
    wire[12..16].copy_from_slice(&crc.to_le_bytes());
    wire
}

fn routes(list: &[(u8, u8, u64)]) -> Routes {
    let route = |&(node, distance, incarnation): &(u8, u8, u64)| Route {
        node: NodeId(node),
        distance,
        incarnation: Incarnation(incarnation),
    };
    Routes::new(list.iter().map(route))
}

#[test]
fn golden_bytes_of_what_the_ends_of_a_link_say() {
    let life = Incarnation(0x1111_2222_3333_4444);
    let node = Identity::Node(NodeId(3));
    let join = Packet::between(
        node,
        NodeId(2),
        life,
        Body::Join { role: Role::NODE, versions: Versions::OWN, wants_reply: true },
    );
    let several = Body::Join {
        role: Role::Adaptor { bus_bits: 2, further: 2 },
        versions: Versions::OWN,
        wants_reply: false,
    };
    let several = Packet::between(Identity::Node(NodeId(4)), NodeId(2), life, several);
    let refuse = Body::Refuse { reason: Refusal::Duplicate };
    let refuse = Packet::between(Identity::Router, NodeId(3), life, refuse);
    let list = Body::Routes(routes(&[(1, 1, 5), (7, 15, 0x1122_3344_5566_7788)]));
    let list = Packet::between(Identity::Router, NodeId(3), life, list);
    for (packet, bytes) in [
        (join, &JOIN_BYTES[..]),
        (several, &JOIN_OF_SEVERAL_BYTES),
        (refuse, &REFUSE_BYTES),
        (list, &ROUTES_BYTES),
    ] {
        let bytes = sealed(bytes.to_vec());
        assert_eq!(emitted(&packet), bytes);
        assert_eq!(Packet::parse(Bytes::from(bytes)), Ok(packet));
    }
}

#[test]
fn a_hello_names_an_incarnation() {
    let parsed = |nonce, incarnation| {
        let (versions, epoch, echo, lease, inventory) = (Versions::OWN, Epoch(1), 0, 150_000, 1);
        let body = Body::Hello { versions, epoch, nonce, echo, lease, inventory };
        let source_incarnation = Incarnation(incarnation);
        let packet = Packet { source_incarnation, body, ..write_packet() };
        Packet::parse(Bytes::from(emitted(&packet))).map(|found| assert_eq!(found, packet))
    };
    for nonce in [5, 0] {
        assert_eq!(parsed(nonce, 7), Ok(()));
        assert_eq!(parsed(nonce, 0), Err(ParseError::Field));
    }
}

#[test]
fn what_the_ends_of_a_link_say_is_for_no_incarnation() {
    for body in [
        Body::Join { role: Role::NODE, versions: Versions::OWN, wants_reply: true },
        Body::Refuse { reason: Refusal::Duplicate },
        Body::Routes(routes(&[(1, 1, 5)])),
    ] {
        let parsed = |incarnation| {
            let destination_incarnation = Incarnation(incarnation);
            let packet = Packet { destination_incarnation, body: body.clone(), ..write_packet() };
            Packet::parse(Bytes::from(emitted(&packet))).map(|_| ())
        };
        assert_eq!(parsed(0), Ok(()));
        assert_eq!(parsed(4), Err(ParseError::Field), "{body:?}");
    }
}

#[test]
fn a_join_names_its_sender() {
    let join = |source, role, incarnation| {
        let body = Body::Join { role, versions: Versions::OWN, wants_reply: false };
        let packet = Packet { source: NodeId(source), body, ..write_packet() };
        Packet { source_incarnation: Incarnation(incarnation), ..packet }.joiner()
    };
    let several = |bus_bits, further| Role::Adaptor { bus_bits, further };
    let adaptor = |first, bits, count| {
        Some(End::Adaptor(Buses::new(Span::new(NodeId(first), bits).unwrap(), count).unwrap()))
    };
    assert_eq!(join(3, Role::NODE, 1), Some(End::node(NodeId(3))));
    assert_eq!(join(0, Role::NODE, 1), Some(End::node(NodeId(0))));
    assert_eq!(join(0, Role::Router, 1), Some(End::Router));
    assert_eq!(join(3, Role::Router, 1), None);
    assert_eq!(join(3, Role::NODE, 0), None);
    assert_eq!(write_packet().joiner(), None);
    assert_eq!(join(4, several(2, 2), 1), adaptor(4, 2, 3));
    assert_eq!(join(4, several(2, 0), 1), adaptor(4, 2, 1));
    assert_eq!(join(0, several(8, 255), 1), adaptor(0, 8, 256));
    for (source, role) in [
        (5, several(1, 1)),
        (4, several(1, 2)),
        (4, several(0, 1)),
        (0, several(9, 0)),
        (0, several(255, 255)),
    ] {
        assert_eq!(join(source, role, 1), None, "{source}, {role:?}");
    }
    for end in [End::Router, End::node(NodeId(7)), adaptor(4, 2, 3).unwrap(), adaptor(0, 8, 256).unwrap()] {
        assert_eq!(join(end.identity().id().0, Role::of(end), 1), Some(end));
    }
}

#[test]
fn lists_of_routes_have_one_form() {
    for (list, good) in [
        (&[][..], true),
        (&[(0, 1, 1), (255, MAX_HOPS, u64::MAX)], true),
        (&[(1, 1, 1), (1, 1, 1)], false),
        (&[(2, 1, 1), (1, 1, 1)], false),
        (&[(1, 0, 1)], false),
        (&[(1, MAX_HOPS + 1, 1)], false),
        (&[(1, 1, 0)], false),
    ] {
        let list = Bytes::copy_from_slice(routes(list).as_bytes());
        assert_eq!(Routes::parse(list.clone()).is_some(), good, "{list:?}");
    }
    assert_eq!(Routes::parse(Bytes::from_static(&[1; 9])), None);
}

#[test]
fn hops_count_without_touching_the_crc() {
    let mut wire = WRITE_BYTES;
    for passed in 0..20u8 {
        assert_eq!(hops(&wire), passed.min(MAX_HOPS));
        assert_eq!(Packet::parse(Bytes::copy_from_slice(&wire)), Ok(write_packet()));
        count_hop(&mut wire);
    }
}

#[test]
fn crc32c_has_its_published_check_value() {
    // The check value of CRC-32/ISCSI over the digits 1 to 9.
    assert_eq!(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, b"123456789"), 0xe306_9283);
}

#[test]
fn every_single_bit_flip_is_refused() {
    // The hops count on the way.
    for bit in (0..WRITE_BYTES.len() * 8).filter(|bit| !(52..56).contains(bit)) {
        let mut wire = WRITE_BYTES;
        wire[bit / 8] ^= 1 << (bit % 8);
        assert!(Packet::parse(Bytes::copy_from_slice(&wire)).is_err(), "bit {bit}");
    }
}

#[test]
fn unused_fields_must_be_zero() {
    let mut wire = WRITE_BYTES.to_vec();
    wire[44] = 1; // count, which a write does not use
    assert_eq!(Packet::parse(sealed(wire).into()), Err(ParseError::Field));
    for at in [32, 56] {
        let mut wire = JOIN_BYTES.to_vec();
        wire[at] = 1; // epoch and stamp, which a join does not use
        assert_eq!(Packet::parse(sealed(wire).into()), Err(ParseError::Field));
    }
}

#[test]
fn what_later_versions_have_is_kept_as_it_is() {
    for (what, at, value) in
        [("a version", 2, 2), ("a version", 2, 255), ("a command", 3, 16), ("a command", 3, 255)]
    {
        let mut wire = WRITE_BYTES.to_vec();
        (wire[at], wire[7], wire[44], wire[56]) = (value, 0xee, 1, 9);
        let wire = sealed(wire);
        let packet = Packet::parse(wire.clone().into()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let Body::Unknown(unknown) = &packet.body else { panic!("{what}: {packet:?}") };
        assert_eq!(unknown.is_between_ends(), value == 255 && at == 3, "{what}");
        assert_eq!(packet.destination, write_packet().destination);
        assert_eq!(emitted(&packet), wire, "{what}");
    }
    let mut damaged = WRITE_BYTES;
    damaged[2] = 2;
    assert_eq!(Packet::parse(Bytes::copy_from_slice(&damaged)), Err(ParseError::Corrupt));
}

#[test]
fn who_speaks_no_version_says_nothing() {
    for versions in [[0, 1], [2, 1], [0, 0]] {
        let mut wire = JOIN_BYTES.to_vec();
        wire[40..42].copy_from_slice(&versions);
        assert_eq!(Packet::parse(sealed(wire).into()), Err(ParseError::Field), "{versions:?}");
    }
}

#[test]
fn a_corrupt_packet_is_skipped_and_the_stream_goes_on() {
    let mut stream = WRITE_BYTES.to_vec();
    stream[70] ^= 1;
    stream.extend_from_slice(&WRITE_BYTES);
    let mut framer = Framer::default();
    framer.push(&stream);
    assert_eq!(framer.next_packet(), Some(Err(FrameError::Corrupt)));
    assert_eq!(framer.next_packet(), Some(Ok(write_packet())));
    assert_eq!(framer.next_packet(), None);
}

#[test]
fn a_stream_out_of_step_is_broken_for_good() {
    let mut framer = Framer::default();
    framer.push(b"GET / HTTP/1.1\r\n");
    let broken = Some(Err(FrameError::Broken(ParseError::NotAPacket)));
    assert_eq!(framer.next_packet(), broken);
    framer.push(&WRITE_BYTES);
    assert_eq!(framer.next_packet(), broken);
    assert_eq!(framer.held(), 0);
}

fn request() -> impl Strategy<Value = RequestKind<Bytes>> {
    prop_oneof![
        any::<u32>().prop_map(|len| RequestKind::Read { len }),
        proptest::collection::vec(any::<u8>(), 0..100).prop_map(|data| RequestKind::Write(data.into())),
        any::<u64>().prop_map(|value| RequestKind::Atomic(Atomic::Add(value))),
    ]
}

fn body() -> impl Strategy<Value = Body> {
    let progress = (any::<u32>(), any::<u32>(), any::<u64>()).prop_map(|(e, a, s)| Progress {
        epoch: Epoch(e),
        acknowledge: Sequence(a),
        echo: Stamp(s),
    });
    let versions = (1..=u8::MAX, any::<u8>(), any::<u16>()).prop_map(|(smallest, more, features)| {
        Versions::new(smallest, smallest.saturating_add(more), features).unwrap()
    });
    let data = proptest::collection::vec(any::<u8>(), 0..100).prop_map(Bytes::from);
    let sequence = any::<u32>().prop_map(Sequence);
    let epoch = any::<u32>().prop_map(Epoch);
    let stamp = any::<u64>().prop_map(Stamp);
    let at = (0..1u64 << 48, any::<bool>())
        .prop_map(|(offset, io)| if io { Location::io(offset) } else { Location::memory(offset) });
    prop_oneof![
        (versions.clone(), epoch.clone(), any::<[u64; 2]>(), any::<[u32; 2]>()).prop_map(
            |(versions, epoch, [nonce, echo], [lease, inventory])| Body::Hello {
                versions,
                epoch,
                nonce,
                echo,
                lease,
                inventory
            }
        ),
        Just(Body::Inquire),
        (any::<u32>(), data.clone()).prop_map(|(version, entries)| Body::Inventory { version, entries }),
        (progress.clone(), sequence.clone(), at.clone(), data.clone())
            .prop_map(|(progress, sequence, at, data)| Body::Write { progress, sequence, at, data }),
        (progress.clone(), sequence.clone(), at.clone(), any::<u32>())
            .prop_map(|(progress, sequence, at, len)| Body::Read { progress, sequence, at, len }),
        (progress.clone(), sequence.clone(), at.clone(), any::<[u64; 2]>(), any::<bool>()).prop_map(
            |(progress, sequence, at, [value, swap], swaps)| {
                let atomic = match swaps {
                    true => Atomic::CompareSwap { compare: value, swap },
                    false => Atomic::Add(value),
                };
                Body::Atomic { progress, sequence, at, operands: atomic.operands() }
            }
        ),
        (progress.clone(), sequence.clone(), proptest::collection::vec((at, request()), 1..20))
            .prop_map(|(progress, first, requests)| Body::Batch { progress, first, batch: batch(&requests) }),
        (progress, sequence.clone()).prop_map(|(progress, sent)| Body::Confirm { progress, sent }),
        (
            epoch.clone(),
            sequence.clone(),
            any::<u32>(),
            proptest::sample::select(Code::ALL),
            stamp.clone(),
            data
        )
            .prop_map(|(epoch, first, count, code, stamp, data)| Body::Done {
                epoch,
                first,
                count,
                code,
                stamp,
                data
            }),
        (epoch.clone(), sequence, stamp.clone()).prop_map(|(epoch, expected, stamp)| Body::Nak {
            epoch,
            expected,
            stamp
        }),
        (epoch, stamp).prop_map(|(epoch, stamp)| Body::Ask { epoch, stamp }),
        (proptest::option::of((any::<u8>(), any::<u8>())), versions, any::<bool>()).prop_map(
            |(adaptor, versions, wants_reply)| {
                let role =
                    adaptor.map_or(Role::Router, |(bus_bits, further)| Role::Adaptor { bus_bits, further });
                Body::Join { role, versions, wants_reply }
            }
        ),
        proptest::sample::select(&Refusal::ALL[..]).prop_map(|reason| Body::Refuse { reason }),
        proptest::collection::btree_map(any::<u8>(), (1..=MAX_HOPS, 1..u64::MAX), 0..20).prop_map(|map| {
            let list: Vec<_> = map.into_iter().map(|(n, (d, i))| (n, d, i)).collect();
            Body::Routes(routes(&list))
        }),
    ]
}

fn packet() -> impl Strategy<Value = Packet> {
    let ids = (any::<u8>(), any::<u8>(), any::<u64>(), any::<u64>(), any::<bool>());
    (ids, body()).prop_map(|((s, d, si, di, bulk), body)| Packet {
        source: NodeId(s),
        destination: NodeId(d),
        source_incarnation: Incarnation(si.max(1)),
        destination_incarnation: Incarnation(match body {
            Body::Join { .. } | Body::Refuse { .. } | Body::Routes(_) => 0,
            _ => di,
        }),
        channel: if bulk && body.is_of_a_flow() { Channel::Bulk } else { Channel::Small },
        body,
    })
}

proptest! {
    #[test]
    fn what_is_emitted_is_parsed_again(packet in packet()) {
        prop_assert_eq!(Packet::parse(Bytes::from(emitted(&packet))), Ok(packet));
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Packet::parse(Bytes::from(bytes.clone()));
        let mut framer = Framer::default();
        framer.push(&bytes);
        while let Some(Ok(_) | Err(FrameError::Corrupt)) = framer.next_packet() {}
    }

    #[test]
    fn random_bytes_behind_a_true_beginning_never_panic(bytes in proptest::collection::vec(any::<u8>(), 61..200)) {
        let mut wire = vec![b'A', b'R', VERSION];
        wire.extend_from_slice(&bytes);
        let len = u32::try_from(wire.len() - HEADER_LEN).unwrap();
        wire[8..12].copy_from_slice(&len.to_le_bytes());
        wire[12..16].fill(0);
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &wire) as u32;
        wire[12..16].copy_from_slice(&crc.to_le_bytes());
        if let Ok(packet) = Packet::parse(Bytes::from(wire.clone())) {
            prop_assert_eq!(emitted(&packet), wire);
        }
    }

    #[test]
    fn any_chunking_gives_the_same_packets(
        packets in proptest::collection::vec(packet(), 1..6),
        cuts in proptest::collection::vec(1usize..90, 1..40),
    ) {
        let stream: Vec<u8> = packets.iter().flat_map(emitted).collect();
        let mut framer = Framer::default();
        let mut seen = Vec::new();
        let mut rest = &stream[..];
        for cut in cuts.iter().cycle() {
            let (chunk, behind) = rest.split_at((*cut).min(rest.len()));
            framer.push(chunk);
            while let Some(next) = framer.next_packet() {
                seen.push(next.unwrap());
            }
            rest = behind;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(seen, packets);
    }
}
