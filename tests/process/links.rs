//! Direct links: how they begin, fail and come back.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use assured_rdma::adaptor::address::NodeId;
use assured_rdma::adaptor::mesh::neighbour::{Identity, Role};
use assured_rdma::adaptor::mesh::packet::{Body, Incarnation, Packet};
use assured_rdma::adaptor::mesh::versions::Versions;

use super::guest::{Guest, READ, WRITE};
use super::node::{Node, PATIENCE, Place};
use super::{BUFFER, attach};

#[test]
fn both_dial_at_once_and_end_with_one_link() {
    for _ in 0..5 {
        let place = Place::new();
        // The second is there only when the first dials already, or not yet: both dial as soon as they can.
        let mut one = place.start(1, &[2], &[]);
        let mut two = place.start(2, &[1], &[]);
        one.wait_for("node 2: up");
        two.wait_for("node 1: up");
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(500) {
            for node in [&mut one, &mut two] {
                assert!(!node.log().iter().any(|line| line.contains(": down")), "the link stays");
            }
        }
        assert_eq!(place.connections(&[1, 2]), 1);
    }
}

#[test]
fn an_adaptor_killed_and_started_within_100_ms_is_another_life_and_let_in_at_once() {
    let place = Place::new();
    let mut one = place.start(1, &[2], &[]);
    let mut two = Some(place.start(2, &[1], &[]));
    let mut near = attach(&place, 1, two.as_mut().unwrap(), 2);
    for _ in 0..5 {
        let begin = Instant::now();
        let killed = two.take().unwrap();
        killed.signal(libc::SIGKILL);
        drop(killed);
        two = Some(place.start(2, &[1], &[]));
        let away = begin.elapsed();
        let mut far = Guest::attach(&place.socket(2));
        near.wait_for_life(2, far.incarnation());
        let back = begin.elapsed();
        assert!(back < Duration::from_secs(2), "away for {away:?}, back after {back:?}");
        let window = far.export(BUFFER, 0x1000, READ | WRITE);
        near.check(2, window);
        near.store(2, window, &[3; 8]);
        assert_eq!(near.check(2, window), 0);
        assert_eq!(far.memory(BUFFER), [3; 8]);
        assert!(!far.is_duplicate());
    }
    assert!(!one.log().iter().any(|line| line.contains("in use")));
}

#[test]
fn a_second_adaptor_with_the_same_id_is_refused_and_told() {
    let place = Place::new();
    let mut one = place.start(1, &[2], &[]);
    let mut two = place.start(2, &[1], &[]);
    let mut near = attach(&place, 1, &mut two, 2);
    let mut far = attach(&place, 2, &mut one, 1);
    let window = far.export(BUFFER, 0x1000, READ | WRITE);
    let socket = place.socket(3).display().to_string();
    let peer = format!("1={}", place.address(1));
    let arguments = ["--node-id", "2", "--socket-path", &socket, "--peer", &peer];
    let mut second = Node::spawn("adaptor", &arguments.map(str::to_owned));
    second.wait_for("node 2 is in use by another adaptor");
    one.wait_for("its node id is in use (node 2)");
    let mut guest = Guest::attach(&place.socket(3));
    guest.wait_for_duplicate(true);
    for life in ["attached", "reset"] {
        assert_eq!(guest.take_events() & 1 << 5, 1 << 5, "{life}: told of what was so before");
        assert_eq!(guest.take_events() & 1 << 5, 0, "{life}: once");
        guest.reset();
    }
    for round in 0..100u64 {
        near.store(2, window, &round.to_le_bytes());
        assert_eq!(near.check(2, window), 0);
        assert_eq!(far.memory(BUFFER), round.to_le_bytes());
        guest.store(1, 0, &[1]);
        assert_eq!(guest.check(1, 0), 0x41);
    }
    // It takes the place of the first when that is gone, but not one that does not answer for a moment.
    two.signal(libc::SIGKILL);
    drop(two.wait());
    guest.wait_for_duplicate(false);
    guest.wait_for_node(1, true);
    near.wait_for_life(2, guest.incarnation());
}

#[test]
fn a_silent_adaptor_is_found_by_keepalive_with_data_queued() {
    let place = Place::new();
    let keepalive = ["--keepalive", "1s"];
    let mut one = place.start(1, &[2], &keepalive);
    let mut two = place.start(2, &[1], &keepalive);
    let mut near = attach(&place, 1, &mut two, 2);
    let mut far = attach(&place, 2, &mut one, 1);
    let window = far.export(BUFFER, 0x1000, READ | WRITE);
    near.store(2, window, &[1; 8]);
    assert_eq!(near.check(2, window), 0);
    two.signal(libc::SIGSTOP);
    let begin = Instant::now();
    near.store(2, window, &[2; 8]);
    assert_eq!(near.check(2, window), 0xc1, "timeout, outcome unknown");
    one.wait_for("no sign of life on the link");
    let took = begin.elapsed();
    assert!(took < Duration::from_millis(2500), "found after {took:?}");
    two.signal(libc::SIGCONT);
    near.wait_for_node(2, true);
    assert_eq!(far.memory(BUFFER), [1; 8], "no ghost writes");
    near.store(2, window, &[3; 8]);
    assert_eq!(near.check(2, window), 0);
}

#[test]
fn a_connection_that_says_nothing_costs_nobody_anything() {
    let place = Place::new();
    // Something else listens where the peer should be.
    let silent = TcpListener::bind(place.address(2)).unwrap();
    let mut one = place.start(1, &[2], &[]);
    let (mut dialed, _) = silent.accept().unwrap();
    let mut join = [0; 64];
    dialed.read_exact(&mut join).unwrap();
    assert_eq!((&join[..4], join[4], join[5]), (&b"AR\x01\x09"[..], 1, 2));
    one.wait_for("the other side did not introduce itself in time");
    assert_eq!(dialed.read(&mut join).unwrap(), 0);
    // And a stranger that says nothing is closed.
    let mut stranger = TcpStream::connect(place.address(1)).unwrap();
    stranger.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let begin = Instant::now();
    assert_eq!(stranger.read(&mut join).unwrap(), 0);
    assert!(begin.elapsed() > Duration::from_millis(1500));
}

/// Bytes are a sign of life of a link, but not of the node behind it.
#[test]
fn a_direct_link_over_which_only_introductions_come_is_cut_because_the_node_is_silent() {
    let place = Place::new();
    let node = place.start(1, &[], &["--peer", "2"]);
    let mut stream = TcpStream::connect(place.address(1)).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let join = |wants_reply| {
        let body = Body::Join { role: Role::NODE, versions: Versions::OWN, wants_reply };
        let mut wire = Vec::new();
        Packet::between(Identity::Node(NodeId(2)), NodeId(1), Incarnation(77), body).emit(&mut wire);
        wire
    };
    stream.write_all(&join(true)).unwrap();
    let begin = Instant::now();
    let mut received = 0;
    loop {
        match stream.read(&mut [0; 4096]) {
            Ok(0) => break,
            Ok(len) => received += len,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
        assert!(begin.elapsed() < PATIENCE, "it is not cut");
        if stream.write_all(&join(false)).is_err() {
            break;
        }
    }
    assert!(received > 3 * 64, "an answer and HELLOs came");
    assert!(begin.elapsed() > Duration::from_secs(1), "it was given time");
    drop(node);
}
