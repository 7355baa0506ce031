//! Adaptor processes with several buses, each with a guest of its own.

use std::time::{Duration, Instant};

use super::guest::{Guest, READ, WRITE};
use super::node::{Node, Place};

const BUFFER: u64 = 0x4_0000;
const BLOCK: u64 = 4096;
const LINK_DOWN: u32 = 0x41;
const NO_ROUTE: u32 = 0x81;
const NO_WINDOW: u32 = 0x82;
/// The two buses of one adaptor, of four ids that it could have, and a node elsewhere.
const A: u8 = 4;
const B: u8 = 5;
const C: u8 = 1;
const NO_BUS: u8 = 6;

/// Starts the adaptor with the two buses, with more options of its own.
fn start(place: &Place, peers: &[u8], options: &[&str]) -> Node {
    let second = place.socket(B).display().to_string();
    let buses = ["--socket-path", &second, "--bus-bits", "2"];
    place.start(A, peers, &[&buses, options].concat())
}

/// A node called C and the adaptor, linked directly or over a router, with their guests A, B and C, who all know each other.
fn world(place: &Place, routed: bool) -> (Vec<Node>, [Guest; 3]) {
    let nodes = if routed {
        let router = place.start_router(100, &[], &[]);
        let address = place.address(100).to_string();
        let adaptor = start(place, &[], &["--router", &address]);
        vec![router, adaptor, place.start_behind(C, &[100], &[])]
    } else {
        vec![start(place, &[C], &[]), place.start(C, &[A], &[])]
    };
    let mut guests = [A, B, C].map(|id| Guest::attach(&place.socket(id)));
    meet(&mut guests);
    (nodes, guests)
}

/// Waits until all three know each other as what they are.
fn meet(guests: &mut [Guest; 3]) {
    for at in 0..3 {
        let life = guests[at].incarnation();
        for (other, guest) in guests.iter_mut().enumerate() {
            if other != at {
                guest.wait_for_life([A, B, C][at], life);
            }
        }
    }
}

/// Every guest writes to every other one and reads it back.
fn exchange(guests: &mut [Guest; 3], windows: [u64; 3], value: u64) {
    for at in 0..3 {
        for other in (0..3).filter(|&other| other != at) {
            let node = [A, B, C][other];
            let offset = u64::try_from(at).unwrap() * BLOCK;
            for n in 0..100 {
                guests[at].store(node, windows[other] + offset + 8 * n, &(value + n).to_le_bytes());
            }
            assert_eq!(guests[at].check(node, windows[other] + offset), 0, "from {at} to {other}");
            for n in 0..100 {
                assert_eq!(guests[other].memory(BUFFER + offset + 8 * n), (value + n).to_le_bytes());
            }
            assert_eq!(guests[at].load(node, windows[other] + offset), value.to_le_bytes());
            assert_eq!(guests[at].check(node, windows[other] + offset), 0);
            // Each refusal is the transaction's own.
            guests[at].store(node, windows[other] + 0x4000, &[1]);
            assert_eq!(guests[at].load(node, windows[other] + 0x4000), [0xff; 4]);
            assert_eq!(guests[at].check(node, windows[other] + 0x4000), NO_WINDOW << 8 | NO_WINDOW);
        }
        let begin = Instant::now();
        guests[at].store(NO_BUS, 0, &[1]);
        assert_eq!(guests[at].check(NO_BUS, 0), NO_ROUTE, "an id of the adaptor that is no bus");
        assert!(begin.elapsed() < Duration::from_millis(500), "at once");
    }
}

#[test]
fn guests_of_one_adaptor_and_of_another_reach_each_other() {
    for routed in [false, true] {
        let place = Place::new();
        let (mut nodes, mut guests) = world(&place, routed);
        for (guest, (id, bits)) in guests.iter_mut().zip([(A, 2), (B, 2), (C, 0)]) {
            assert_eq!((guest.register(0x0c), guest.register(0x14) >> 8 & 0xff), (id.into(), bits));
        }
        let windows = [0, 1, 2].map(|n: usize| guests[n].export(BUFFER, 0x4000, READ | WRITE));
        for value in [7, 1 << 40] {
            exchange(&mut guests, windows, value);
        }
        if routed {
            nodes[0].wait_for_any("node 4: reached over 1 router");
            nodes[0].wait_for_any("node 5: reached over 1 router");
            assert!(!nodes[0].log().iter().any(|line| line.contains("node 6: ")), "it is no node");
        }
    }
}

/// Stores 200 numbers from `base` on; does not check.
fn post(guest: &mut Guest, node: u8, window: u64, base: u64) {
    for n in 0..200 {
        guest.store(node, window + 8 * n, &(base + n).to_le_bytes());
    }
}

/// Whether all that [`post`] stored is there.
fn holds(guest: &Guest, address: u64, base: u64) -> bool {
    (0..200).all(|n| guest.memory(address + 8 * n) == (base + n).to_le_bytes())
}

#[test]
fn a_guest_that_is_gone_or_reset_disturbs_no_other() {
    for routed in [false, true] {
        let place = Place::new();
        let (mut nodes, [mut a, b, mut c]) = world(&place, routed);
        let adaptor = usize::from(routed);
        let mut b = Some(b);
        let window_a = a.export(BUFFER, 0x4000, READ | WRITE);
        let window_c = c.export(BUFFER, 0x4000, READ | WRITE);
        let lives = (a.incarnation(), c.incarnation());
        let ends = |node: &mut Node| {
            let of_both = |line: &&String| line.contains("bus 0 (node 4): node 1: down");
            node.log().iter().filter(of_both).count()
        };
        let before = ends(&mut nodes[adaptor]);
        for round in 1..=6u64 {
            let mut guest = b.take().unwrap_or_else(|| Guest::attach(&place.socket(B)));
            let life = guest.incarnation();
            a.wait_for_life(B, life);
            c.wait_for_life(B, life);
            guest.wait_for_life(A, lives.0);
            guest.wait_for_life(C, lives.1);
            let window_b = guest.export(BUFFER, 0x4000, READ | WRITE);
            // All are in the midst of writing to each other.
            let base = 1000 * round;
            post(&mut a, B, window_b, base);
            post(&mut c, B, window_b + BLOCK, base);
            post(&mut a, C, window_c, base);
            post(&mut guest, C, window_c + BLOCK, base);
            post(&mut c, A, window_a, base);
            if round % 2 == 0 {
                guest.reset();
                // Nothing lands any more.
                let (of_a, of_c) = (holds(&guest, BUFFER, base), holds(&guest, BUFFER + BLOCK, base));
                for (from, offset, all) in [(&mut a, 0, of_a), (&mut c, BLOCK, of_c)] {
                    assert!(from.check(B, window_b + offset) != 0 || all, "round {round}: no false OK");
                    assert_eq!(holds(&guest, BUFFER + offset, base), all, "round {round}: no ghost writes");
                }
                b = Some(guest);
            } else {
                drop(guest);
                nodes[adaptor].wait_for("bus 1 (node 5): guest detached");
                let begin = Instant::now();
                a.check(B, window_b);
                assert!(begin.elapsed() < Duration::from_secs(1), "bounded");
            }
            assert_eq!((a.check(C, window_c), c.check(A, window_a)), (0, 0), "round {round}");
            assert!(holds(&c, BUFFER, base) && holds(&a, BUFFER, base), "round {round}");
            assert_eq!((a.incarnation(), c.incarnation()), lives, "they are who they were");
        }
        assert_eq!(ends(&mut nodes[adaptor]), before, "nor has any session of A with C ended");
    }
}

#[test]
fn a_bus_that_waits_for_a_node_does_not_hold_up_the_other_bus() {
    let place = Place::new();
    let (nodes, [mut a, mut b, mut c]) = world(&place, false);
    let window = b.export(BUFFER, 0x4000, READ | WRITE);
    c.export(BUFFER, 0x1000, READ);
    nodes[1].signal(libc::SIGSTOP);
    let rounds = std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let begin = Instant::now();
            assert_eq!(b.load(C, 0), [0xff; 8]);
            begin.elapsed()
        });
        let mut rounds = 0u64;
        while !waits.is_finished() {
            rounds += 1;
            a.store(B, window, &rounds.to_le_bytes());
            assert_eq!(a.check(B, window), 0);
        }
        let waited = waits.join().unwrap();
        println!("{rounds} checks while the other bus waited for {waited:?}");
        assert!(waited > Duration::from_millis(200) && rounds > 10, "{rounds} in {waited:?}");
        rounds
    });
    assert_eq!(b.memory(BUFFER), rounds.to_le_bytes());
    nodes[1].signal(libc::SIGCONT);
}

#[test]
fn an_adaptor_is_a_peer_by_its_first_node() {
    let place = Place::new();
    let mut adaptor = start(&place, &[], &["--peer", "1"]);
    // Somebody has taken each bus for a peer.
    let address = place.address(A).to_string();
    let peers = [A, B].map(|id| format!("{id}={address}"));
    let mut node = place.start(C, &[], &["--peer", &peers[0], "--peer", &peers[1]]);
    node.wait_for_any("node 5: up");
    node.wait_for_any("there is node 4 (an adaptor with several buses is given by its first node id only)");
    adaptor.wait_for_any("node 1 looks for node 5, this is nodes 4 to 7");
    let mut guest = Guest::attach(&place.socket(C));
    for id in [A, B] {
        guest.wait_for_node(id, true);
    }
}

#[test]
fn an_adaptor_takes_its_buses_with_it_and_brings_them_back() {
    let place = Place::new();
    let (mut nodes, [a, b, mut c]) = world(&place, false);
    nodes[0].signal(libc::SIGKILL);
    drop(nodes.remove(0).wait());
    drop((a, b));
    for node in [A, B] {
        c.wait_for_node(node, false);
        c.store(node, 0, &[1]);
        assert_eq!(c.check(node, 0), LINK_DOWN);
    }
    // The sockets were left behind, and are replaced.
    let adaptor = start(&place, &[C], &[]);
    let mut guests = [Guest::attach(&place.socket(A)), Guest::attach(&place.socket(B)), c];
    meet(&mut guests);
    let windows = [0, 1, 2].map(|n: usize| guests[n].export(BUFFER, 0x4000, READ | WRITE));
    exchange(&mut guests, windows, 7);
    adaptor.signal(libc::SIGTERM);
    let (status, log) = adaptor.wait();
    assert!(status.success(), "{log:?}");
    assert!(!place.socket(A).exists() && !place.socket(B).exists());
}

#[test]
fn of_two_adaptors_that_share_an_id_the_second_is_refused_and_all_its_guests_are_told() {
    let place = Place::new();
    let _near = place.start_router(100, &[], &[]);
    let mut far = place.start_router(101, &[100], &[]);
    // Node 5 alone, and then the adaptor that would have it too, at another router.
    let one = place.start_behind(B, &[100], &[]);
    far.wait_for("node 5: reached");
    let path = |name: &str| place.socket(B).with_file_name(name);
    let (first, second) = (path("first.sock"), path("second.sock"));
    let sockets = [&first, &second].map(|path| path.display().to_string());
    let address = place.address(101).to_string();
    let [first_path, second_path] = &sockets;
    let arguments =
        ["--node-id", "4", "--socket-path", first_path, "--socket-path", second_path, "--router", &address];
    let mut adaptor = Node::spawn("adaptor", &arguments.map(str::to_owned));
    adaptor.wait_for("one of nodes 4 to 5 is in use by another adaptor");
    far.wait_for("its node id is in use");
    let mut guests = [&first, &second].map(|path| Guest::attach(path));
    for guest in &mut guests {
        guest.wait_for_duplicate(true);
    }
    // Meanwhile they have each other.
    let life = guests[1].incarnation();
    guests[0].wait_for_life(B, life);
    let window = guests[1].export(BUFFER, 0x1000, READ | WRITE);
    guests[0].store(B, window, &[7; 8]);
    assert_eq!(guests[0].check(B, window), 0);
    // When node 5 is gone, both are let in.
    drop(one);
    for guest in &mut guests {
        guest.wait_for_duplicate(false);
    }
    for node in [A, B] {
        far.wait_for_any(&format!("node {node}: reached over 1 router"));
    }
}

#[test]
fn buses_and_devices_are_found_by_their_names() {
    let place = Place::new();
    let device = "kind=memory,name=vault,size=64K";
    let _adaptor = start(&place, &[C], &["--name", "left", "--name", "right", "--device", device]);
    let _far = place.start(C, &[A], &["--name", "far"]);
    let mut guests = [A, B, C].map(|id| Guest::attach(&place.socket(id)));
    for guest in &mut guests {
        for (node, index, name) in [(A, 0, "left"), (B, 0, "right"), (C, 0, "far"), (A, 1, "vault")] {
            guest.wait_for_name(node, index, name);
        }
    }
}
