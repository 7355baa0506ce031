//! A node that is let in at a router, and does harm with that.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use assured_rdma::adaptor::address::NodeId;
use assured_rdma::adaptor::mesh::neighbour::{Identity, Role};
use assured_rdma::adaptor::mesh::packet::{Body, Incarnation, Packet};
use assured_rdma::adaptor::mesh::versions::Versions;

use super::BUFFER;
use super::guest::{Guest, READ, WRITE};
use super::node::Place;

const LASTS: Duration = Duration::from_secs(2);

fn join(node: u8, life: u64) -> Vec<u8> {
    let body = Body::Join { role: Role::NODE, versions: Versions::OWN, wants_reply: false };
    let mut wire = Vec::new();
    Packet::between(Identity::Node(NodeId(node)), NodeId(0), Incarnation(life), body).emit(&mut wire);
    wire
}

/// A link with a router, which takes whatever the router says.
fn joined(router: SocketAddr, node: u8) -> TcpStream {
    let mut stream = TcpStream::connect(router).unwrap();
    stream.write_all(&join(node, 7)).unwrap();
    let mut reader = stream.try_clone().unwrap();
    thread::spawn(move || {
        let mut bytes = [0; 1 << 16];
        while reader.read(&mut bytes).is_ok_and(|len| len > 0) {}
    });
    stream
}

#[test]
fn a_node_that_is_another_without_end_holds_up_nobody_and_fills_no_log() {
    let place = Place::new();
    let mut router = place.start_router(100, &[], &[]);
    let _nodes = [1, 2].map(|id| place.start_behind(id, &[100], &[]));
    let [mut near, mut far] = [1, 2].map(|id| Guest::attach(&place.socket(id)));
    near.wait_for_life(2, far.incarnation());
    let window = far.export(BUFFER, 0x1000, READ | WRITE);
    // The more nodes there are, the more has to be told.
    let _crowd: Vec<_> = (10..90).map(|node| joined(place.address(100), node)).collect();
    let address = place.address(100);
    let begin = Instant::now();
    let talker = thread::spawn(move || {
        let mut life = 1000;
        while begin.elapsed() < LASTS {
            let mut hostile = joined(address, 200);
            hostile.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
            let lives: Vec<u8> = (life..life + 500).flat_map(|life| join(200, life)).collect();
            // It may be that the router does not take that.
            let _ = hostile.write_all(&lives);
            life += 500;
        }
    });
    let (mut checks, mut failed) = (0, 0);
    while begin.elapsed() < LASTS {
        near.load::<8>(2, window);
        checks += 1;
        failed += u32::from(near.check(2, window) != 0);
    }
    talker.join().unwrap();
    assert!(checks > 20 && failed <= 2, "{failed} of {checks} loads failed");
    // The crowd's links, which never say anything, end meanwhile or do not.
    let lines = router.log().iter().filter(|line| line.contains("node 200")).count();
    assert!(lines < 300, "{lines} lines about it");
}
