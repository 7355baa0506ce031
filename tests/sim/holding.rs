//! What a node holds of what it received.

use assured_rdma::adaptor::address::{Geometry, Location, NodeId};
use assured_rdma::adaptor::channel::Channel;
use assured_rdma::adaptor::memory::MemoryFault;
use assured_rdma::adaptor::mesh::batch::{Batch, Collector};
use assured_rdma::adaptor::mesh::packet::{Body, Incarnation, Packet, Progress, Stamp};
use assured_rdma::adaptor::mesh::sequence::{Epoch, Sequence};
use assured_rdma::adaptor::mesh::versions::Versions;
use assured_rdma::adaptor::transaction::RequestKind;
use assured_rdma::adaptor::{Adaptor, Instant, Settings};
use bytes::Bytes;

use crate::world::{TIMING, WINDOW};

#[test]
fn a_write_that_waits_for_its_lease_holds_its_own_bytes_only() {
    let now = Instant::from_nanos(1_000_000);
    let (own, peer) = (NodeId(1), NodeId(2));
    let mut adaptor = Adaptor::new(Settings {
        node: own,
        geometry: Geometry::new(16, WINDOW).unwrap(),
        peers: [own, peer].into_iter().collect(),
        timing: TIMING,
        gather: std::time::Duration::ZERO,
        seed: 1,
    });
    let destination_incarnation = adaptor.incarnation();
    let send = |adaptor: &mut Adaptor, body| {
        let source_incarnation = Incarnation(9);
        let packet = Packet {
            source: peer,
            destination: own,
            source_incarnation,
            destination_incarnation,
            channel: Channel::Small,
            body,
        };
        adaptor.handle_packet(now, peer, packet);
    };
    adaptor.handle_link_up(now, peer);
    let hello = adaptor.poll_packet(now, peer, &mut |_| Err(MemoryFault::Unmapped)).unwrap();
    let Body::Hello { nonce, .. } = hello.body else { panic!("{hello:?}") };
    let answer = Body::Hello {
        versions: Versions::OWN,
        epoch: Epoch(0),
        nonce: 0,
        echo: nonce,
        lease: 150_000,
        inventory: 0,
    };
    send(&mut adaptor, answer);
    // What one read of the socket brought, of which the write is a small part.
    let received = Bytes::from(vec![0; 1 << 16]);
    let progress = Progress { epoch: Epoch(0), acknowledge: Sequence(0), echo: Stamp(0) };
    let data = received.slice(..8);
    send(&mut adaptor, Body::Write { progress, sequence: Sequence(0), at: Location::memory(0), data });
    assert!(adaptor.poll_memory(now).is_none(), "it waits");
    assert!(received.is_unique(), "the rest is let go");
    let mut batch = Collector::default();
    batch.push(Location::memory(0), &RequestKind::Write(Bytes::from_static(&[1; 8])));
    let mut stream = batch.finish().unwrap().as_bytes().to_vec();
    let len = stream.len();
    stream.resize(1 << 16, 0);
    let received = Bytes::from(stream);
    let batch = Batch::parse(received.slice(..len)).unwrap();
    send(&mut adaptor, Body::Batch { progress, first: Sequence(1), batch });
    assert!(received.is_unique(), "as of a write among others");
}
