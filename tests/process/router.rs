//! Adaptors that reach each other over routers.

use std::time::{Duration, Instant};

use super::guest::{Guest, READ, WRITE};
use super::node::{Node, PATIENCE, Place};

const BUFFER: u64 = 0x4_0000;
const BLOCK: u64 = 4096;
const NO_ROUTE: u32 = 0x81;

/// Three adaptors behind a router, each with a guest, who all know each other.
fn three(place: &Place, routers: [&[u8]; 3]) -> ([Node; 3], [Guest; 3]) {
    let nodes = [1, 2, 3].map(|id: u8| place.start_behind(id, routers[usize::from(id) - 1], &[]));
    let mut guests = [1, 2, 3].map(|id| Guest::attach(&place.socket(id)));
    for at in 0..3 {
        for other in [0, 1, 2].into_iter().filter(|&other| other != at) {
            let incarnation = guests[other].incarnation();
            guests[at].wait_for_life(u8::try_from(other + 1).unwrap(), incarnation);
        }
    }
    (nodes, guests)
}

/// Every guest writes to every other and reads it back.
fn exchange(guests: &mut [Guest; 3], windows: [u64; 3], value: u64) {
    for at in 0..3 {
        for other in [0, 1, 2].into_iter().filter(|&other| other != at) {
            let node = u8::try_from(other + 1).unwrap();
            let offset = u64::try_from(at).unwrap() * BLOCK;
            let value = (value + u64::from(node)).to_le_bytes();
            guests[at].store(node, windows[other] + offset, &value);
            assert_eq!(guests[at].check(node, windows[other] + offset), 0, "from {at} to {other}");
            assert_eq!(guests[other].memory(BUFFER + offset), value);
            assert_eq!(guests[at].load(node, windows[other] + offset), value);
            assert_eq!(guests[at].check(node, windows[other] + offset), 0);
        }
    }
}

#[test]
fn three_adaptors_need_no_list_of_each_other() {
    let place = Place::new();
    let mut lonely = place.start_behind(4, &[100], &[]);
    let mut guest = Guest::attach(&place.socket(4));
    guest.store(1, 0, &[1]);
    assert_eq!(guest.check(1, 0), NO_ROUTE, "a node that was never reached, at once");
    let _router = place.start_router(100, &[], &[]);
    let (_nodes, mut guests) = three(&place, [&[100]; 3]);
    let windows = [0, 1, 2].map(|n: usize| guests[n].export(BUFFER, 0x4000, READ | WRITE));
    exchange(&mut guests, windows, 7);
    // Node 4 was there all the time. It is known everywhere now, others are not.
    lonely.wait_for("node 3: up");
    guest.wait_for_node(1, true);
    guests[0].store(9, 0, &[1]);
    assert_eq!(guests[0].check(9, 0), NO_ROUTE);
}

#[test]
fn two_routers_in_a_row_lead_everywhere() {
    let place = Place::new();
    // Each dials the other, so that two links join them.
    let mut far = place.start_router(101, &[100], &[]);
    let mut near = place.start_router(100, &[101], &[]);
    let (nodes, mut guests) = three(&place, [&[100], &[101], &[101]]);
    let windows = [0, 1, 2].map(|n: usize| guests[n].export(BUFFER, 0x4000, READ | WRITE));
    exchange(&mut guests, windows, 7);
    near.wait_for("node 2: reached over 2 routers");
    far.wait_for("node 1: reached over 2 routers");
    // A node that is killed is gone on the other side of both.
    let [_one, two, _three] = nodes;
    drop(two);
    guests[0].wait_for_node(2, false);
    guests[0].store(2, 0, &[1]);
    assert_eq!(guests[0].check(2, 0), 0x41, "it was known, and is down");
}

/// One store of eight bytes to each place, by number, and what the checks said.
struct Load {
    next: u64,
    checks: u64,
    failed: u64,
    /// Stores whose check was not OK, which may have been done or not.
    unknown: u64,
}

impl Load {
    /// Fills one block of a window with rising numbers and checks it; holds the answer against the target's memory.
    fn block(&mut self, from: &mut Guest, node: u8, to: &Guest, window: u64, block: u64) {
        let first = self.next;
        let offset = block * BLOCK;
        for n in 0..32 {
            self.next += 1;
            from.store(node, window + offset + 8 * n, &self.next.to_le_bytes());
        }
        let begin = Instant::now();
        let word = from.check(node, window + offset);
        assert!(begin.elapsed() < Duration::from_millis(1500), "bounded: {:?}", begin.elapsed());
        self.checks += 1;
        let held: Vec<u64> =
            (0..32).map(|n| u64::from_le_bytes(to.memory(BUFFER + offset + 8 * n))).collect();
        let wanted: Vec<u64> = (1..=32).map(|n| first + n).collect();
        if word == 0 {
            assert_eq!(held, wanted, "no false OK");
            return;
        }
        self.failed += 1;
        if word & 0xc0 == 0xc0 {
            self.unknown += 1;
        } else {
            assert_ne!(held, wanted, "status {word:#x} says that not all was done");
        }
        // What was reported is not done later.
        let until = Instant::now() + Duration::from_millis(50);
        while Instant::now() < until {
            let now: Vec<u64> =
                (0..32).map(|n| u64::from_le_bytes(to.memory(BUFFER + offset + 8 * n))).collect();
            assert_eq!(now, held, "no ghost writes after status {word:#x}");
        }
    }
}

#[test]
fn a_router_killed_and_back_within_the_deadline_loses_nothing() {
    let place = Place::new();
    let mut router = Some(place.start_router(100, &[], &[]));
    // Longer than the router takes to start and the adaptors to come back, on a busy machine.
    let patient = ["--deadline", "4s"];
    let nodes = [1, 2].map(|id| place.start_behind(id, &[100], &patient));
    let [mut one, mut two] = [1, 2].map(|id| Guest::attach(&place.socket(id)));
    one.wait_for_life(2, two.incarnation());
    two.wait_for_life(1, one.incarnation());
    let window = two.export(BUFFER, 0x4000, READ | WRITE);
    let mut next = 0u64;
    for round in 0..8 {
        let mut written = Vec::new();
        let mut post = |one: &mut Guest, count: u64| {
            for _ in 0..count {
                next += 1;
                let offset = next * 8 % 0x4000;
                one.store(2, window + offset, &next.to_le_bytes());
                written.push((offset, next));
            }
        };
        post(&mut one, 100);
        drop(router.take());
        post(&mut one, 100);
        router = Some(place.start_router(100, &[], &[]));
        post(&mut one, 100);
        for block in 0..4 {
            assert_eq!(one.check(2, window + block * BLOCK), 0, "round {round}: nothing is lost");
        }
        for (offset, value) in written {
            assert_eq!(two.memory(BUFFER + offset), value.to_le_bytes(), "round {round}");
        }
    }
    drop(nodes);
}

#[test]
fn every_status_is_true_while_a_router_is_killed_and_started_under_load() {
    let place = Place::new();
    let mut router = Some(place.start_router(100, &[], &[]));
    let (_nodes, mut guests) = three(&place, [&[100]; 3]);
    let windows = [0, 1, 2].map(|n: usize| guests[n].export(BUFFER, 0x4000, READ | WRITE));
    let mut load = Load { next: 0, checks: 0, failed: 0, unknown: 0 };
    let mut kills = 0;
    let begin = Instant::now();
    let mut next_change = begin + Duration::from_millis(100);
    while begin.elapsed() < Duration::from_secs(6) {
        let [one, two, three] = &mut guests;
        load.block(one, 2, two, windows[1], load.next / 32 % 4);
        load.block(two, 3, three, windows[2], load.next / 32 % 4);
        load.block(three, 1, one, windows[0], load.next / 32 % 4);
        if Instant::now() > next_change {
            // Away for longer and longer, up to beyond the deadline.
            let away = Duration::from_millis(kills * 60);
            if router.take().is_some() {
                kills += 1;
                next_change = Instant::now() + away;
            } else {
                router = Some(place.start_router(100, &[], &[]));
                next_change = Instant::now() + Duration::from_millis(300);
            }
        }
    }
    if router.is_none() {
        router = Some(place.start_router(100, &[], &[]));
    }
    guests[0].wait_for_node(2, true);
    let [one, two, _] = &mut guests;
    one.check(2, windows[1]);
    one.store(2, windows[1], &[0x5a; 8]);
    assert_eq!(one.check(2, windows[1]), 0);
    assert_eq!(two.memory(BUFFER), [0x5a; 8]);
    println!(
        "{kills} kills of the router, {} checks, {} told of errors, {} of these of unknown outcome",
        load.checks, load.failed, load.unknown
    );
    assert!(kills > 3 && load.checks > load.failed);
    drop(router);
}

#[test]
fn a_second_adaptor_with_the_same_id_is_refused_and_told_wherever_it_comes() {
    let place = Place::new();
    let mut near = place.start_router(100, &[], &[]);
    let mut far = place.start_router(101, &[100], &[]);
    let one = place.start_behind(1, &[100], &[]);
    let two = place.start_behind(2, &[100], &[]);
    let mut guests = [1, 2].map(|id| Guest::attach(&place.socket(id)));
    let incarnation = guests[1].incarnation();
    guests[0].wait_for_life(2, incarnation);
    let window = guests[1].export(BUFFER, 0x1000, READ | WRITE);
    // At the same router, and at another one.
    for (file, router, log) in [(102, 100, &mut near), (103, 101, &mut far)] {
        let socket = place.socket(file).display().to_string();
        let address = place.address(router).to_string();
        let arguments = ["--node-id", "2", "--socket-path", &socket, "--router", &address];
        let mut second = Node::spawn("adaptor", &arguments.map(str::to_owned));
        second.wait_for("node 2 is in use by another adaptor");
        log.wait_for("its node id is in use");
        let mut guest = Guest::attach(&place.socket(file));
        guest.wait_for_duplicate(true);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(3) {
            guest.store(1, 0, &[1]);
            assert_eq!(guest.check(1, 0), NO_ROUTE, "it reaches nobody");
            guests[0].store(2, window, &begin.elapsed().as_nanos().to_le_bytes()[..8]);
            assert_eq!(guests[0].check(2, window), 0, "and the first notices nothing");
            assert!(guest.is_duplicate());
        }
        let tries = second.log().iter().filter(|line| line.contains("is in use by another")).count();
        assert!(tries <= 2, "{tries} lines in three seconds");
    }
    // When the first is gone, a second is let in.
    let socket = place.socket(104).display().to_string();
    let address = place.address(101).to_string();
    let arguments = ["--node-id", "2", "--socket-path", &socket, "--router", &address];
    let mut second = Node::spawn("adaptor", &arguments.map(str::to_owned));
    second.wait_for("node 2 is in use by another adaptor");
    let mut guest = Guest::attach(&place.socket(104));
    guest.wait_for_duplicate(true);
    guest.take_events();
    drop(two);
    guest.wait_for_duplicate(false);
    assert_eq!(guest.take_events() & 1 << 5, 1 << 5);
    guest.wait_for_node(1, true);
    drop(one);
}

#[test]
fn sixty_four_adaptors_come_to_a_router_at_once() {
    let place = Place::new();
    let mut router = place.start_router(100, &[], &[]);
    let address = place.address(100).to_string();
    let begin = Instant::now();
    let nodes: Vec<_> = (0..64u8)
        .map(|id| {
            let socket = place.socket(id).display().to_string();
            let (id, nodes) = (id.to_string(), "64".to_owned());
            // They poll less, since there are more of them than processors.
            let options = ["--node-id", &id, "--nodes", &nodes, "--window-size", "1M", "--poll", "0s"];
            let more = ["--socket-path", &socket, "--router", &address];
            Node::spawn(
                "adaptor",
                &[&options[..], &more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>(),
            )
        })
        .collect();
    for id in 0..64 {
        router.wait_for_any(&format!("node {id}: reached"));
    }
    let mut last = Guest::attach(&place.socket(63));
    for id in 0..63 {
        last.wait_for_node(id, true);
    }
    println!("64 adaptors reached each other in {:?}", begin.elapsed());
    assert!(begin.elapsed() < PATIENCE);
    drop(nodes);
}

#[test]
fn a_stopped_router_and_a_stopped_adaptor_are_found_by_keepalive() {
    let place = Place::new();
    let keepalive = ["--keepalive", "1s"];
    let router = place.start_router(100, &[], &keepalive);
    let nodes = [1, 2].map(|id| place.start_behind(id, &[100], &keepalive));
    let [mut one, mut two] = [1, 2].map(|id| Guest::attach(&place.socket(id)));
    let life = two.incarnation();
    one.wait_for_life(2, life);
    let window = two.export(BUFFER, 0x1000, READ | WRITE);
    let stopped = |process: &Node, guest: &mut Guest| {
        process.signal(libc::SIGSTOP);
        let begin = Instant::now();
        guest.wait_for_node(2, false);
        let took = begin.elapsed();
        assert!(took < Duration::from_millis(2500), "found after {took:?}");
        // Data that waits does not hide it.
        guest.store(2, window, &[1; 8]);
        assert_ne!(guest.check(2, window), 0);
        process.signal(libc::SIGCONT);
        guest.wait_for_node(2, true);
        guest.store(2, window, &[2; 8]);
        assert_eq!(guest.check(2, window), 0);
    };
    stopped(&nodes[1], &mut one);
    stopped(&router, &mut one);
    assert_eq!(two.memory(BUFFER), [2; 8]);
    assert_eq!(two.incarnation(), life);
}
