//! Adaptors on several hosts, which are network namespaces of this machine, while their network fails; every status is held
//! against what the target's memory holds. Needs root.
//!
//! `CHAOS_SECONDS=n` makes each story longer (default 8).

#![allow(missing_docs, clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::indexing_slicing)]
#![allow(clippy::panic, clippy::expect_used)]

#[path = "../process/guest.rs"]
#[allow(dead_code)]
mod guest;
#[path = "../process/judge.rs"]
#[allow(dead_code)]
mod judge;
mod network;
#[path = "../process/node.rs"]
#[allow(dead_code)]
mod node;
mod wire;

use std::time::{Duration, Instant};

use assured_rdma::adaptor::random::Random;
use guest::{Guest, READ, WRITE};
use judge::{Judge, WINDOW, seconds};
use network::{NETWORK, Network};
use node::{Node, PATIENCE, Place};
use wire::Treatment;

const BUFFER: u64 = 0x4_0000;
/// After this time QEMU gives up on the device.
const QEMU_PATIENCE: Duration = Duration::from_secs(5);
/// The adaptors' default.
const KEEPALIVE: Duration = Duration::from_secs(2);
/// What a loaded machine may add to a time.
const SLACK: Duration = Duration::from_millis(1500);
const PORT: u16 = 7471;

/// Hosts with an adaptor each; node 1 dials node 2, all others dial node 2 as well.
struct Stage {
    // Before the network, so that no process loses its namespace.
    nodes: Vec<Option<Node>>,
    network: Network,
    place: Place,
}

impl Stage {
    fn new(count: u8) -> (Self, Judge) {
        let network = Network::new(count);
        let place = Place::in_network(NETWORK, PORT);
        let mut stage = Self { nodes: (0..count).map(|_| None).collect(), network, place };
        stage.start(2);
        for node in (1..=count).filter(|&node| node != 2) {
            stage.start(node);
        }
        let near = Guest::attach(&stage.place.socket(1));
        let (far, window) = stage.far();
        let mut judge = Judge::new(near, far, window);
        judge.recover();
        (stage, judge)
    }

    fn start(&mut self, node: u8) {
        let count = u8::try_from(self.nodes.len()).unwrap();
        let peers: &[u8] = if node == 2 { &[] } else { &[2] };
        let mut options = vec!["--allow-plaintext".to_owned()];
        if node == 2 {
            options.extend(
                (1..=count)
                    .filter(|&peer| peer != 2)
                    .flat_map(|peer| ["--peer".to_owned(), peer.to_string()]),
            );
        }
        if node > 2 {
            // A bystander's accesses have to end well also on a loaded machine.
            options.extend(["--deadline", "3s"].map(str::to_owned));
        }
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let place = &self.place;
        let started = self.network.host(node).enter(|| place.start(node, peers, &options));
        self.nodes[usize::from(node) - 1] = Some(started);
    }

    fn node(&mut self, node: u8) -> &mut Node {
        self.nodes[usize::from(node) - 1].as_mut().expect("the node runs")
    }

    /// A guest of node 2 that has exported the window.
    fn far(&mut self) -> (Guest, u64) {
        let mut far = Guest::attach(&self.place.socket(2));
        let line = format!("node 2: up, incarnation {:016x}", far.incarnation());
        for node in (1..=u8::try_from(self.nodes.len()).unwrap()).filter(|&node| node != 2) {
            self.node(node).wait_for(&line);
        }
        let window = far.export(BUFFER, WINDOW, READ | WRITE);
        (far, window)
    }

    /// Waits until host 1 has no connection with host 2 any more; gives the time since `begin`.
    fn wait_for_cut(&self, begin: Instant) -> Duration {
        let (one, two) = (self.network.host(1), self.network.host(2));
        while one.connections(two) > 0 {
            assert!(begin.elapsed() < PATIENCE, "the dead connection stays");
            std::thread::park_timeout(Duration::from_millis(5));
        }
        begin.elapsed()
    }
}

/// Rounds of stores and checks for a while.
fn rounds(judge: &mut Judge, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        judge.round();
    }
}

fn millis(random: &mut Random, from: u64, to: u64) -> Duration {
    Duration::from_millis(from + random.next() % (to - from))
}

#[test]
fn a_link_that_goes_down_and_up_under_load() {
    let (stage, mut judge) = Stage::new(2);
    let mut random = Random::new(1);
    let end = Instant::now() + seconds();
    let mut cuts = 0;
    while Instant::now() < end {
        let host = stage.network.host(1 + u8::try_from(random.next() % 2).unwrap());
        host.set_link(false);
        rounds(&mut judge, millis(&mut random, 10, 700));
        host.set_link(true);
        cuts += 1;
        rounds(&mut judge, millis(&mut random, 10, 700));
    }
    println!("links down and up: {cuts}; frames: {}", stage.network.report());
    judge.recover();
    assert!(judge.counts.ok > 0 && judge.counts.ok < judge.counts.rounds(), "{:?}", judge.counts);
}

#[test]
fn frames_that_are_lost_late_doubled_and_corrupted() {
    let (stage, mut judge) = Stage::new(2);
    let none = Treatment::default();
    let treatments = [
        Treatment { lost: 100, ..none },
        Treatment { lost: 300, ..none },
        Treatment { doubled: 300, ..none },
        Treatment { delay: Duration::from_millis(20), ..none },
        Treatment { flipped: 100, ..none },
        Treatment { forged: 30, ..none },
        Treatment { lost: 50, doubled: 50, flipped: 50, forged: 10, delay: Duration::from_millis(5) },
        none,
    ];
    let part = seconds() / u32::try_from(treatments.len()).unwrap();
    for treatment in treatments {
        stage.network.treat(treatment);
        rounds(&mut judge, part);
    }
    println!("frames: {}", stage.network.report());
    judge.recover();
    assert!(judge.counts.ok > 0 && judge.counts.ok < judge.counts.rounds(), "{:?}", judge.counts);
}

#[test]
fn an_address_that_is_gone_without_a_word_is_noticed_in_time() {
    let (mut stage, mut judge) = Stage::new(2);
    for under_load in [false, true] {
        assert!(stage.network.host(1).connections(stage.network.host(2)) > 0);
        let begin = Instant::now();
        stage.network.host(2).remove_address();
        if under_load {
            rounds(&mut judge, Duration::from_millis(300));
        }
        let took = stage.wait_for_cut(begin);
        println!("noticed after {took:?}, under load: {under_load}");
        assert!(took <= KEEPALIVE + SLACK, "half-open for {took:?}");
        judge.near.wait_for_node(2, false);
        judge.round();
        judge.verdict();
        // No packet of the old process gets out: it has no address to send from.
        stage.nodes[1] = None;
        stage.network.host(2).add_address();
        stage.start(2);
        let (far, window) = stage.far();
        judge.replace_far(far, window);
        judge.recover();
    }
}

#[test]
fn a_partition_of_one_direction_touches_no_bystander() {
    let (stage, mut judge) = Stage::new(3);
    let mut bystander = Guest::attach(&stage.place.socket(3));
    bystander.wait_for_node(2, true);
    let window = judge.far.export(BUFFER + WINDOW, 0x1000, READ | WRITE);
    let mut random = Random::new(2);
    let end = Instant::now() + seconds();
    let (mut cuts, mut witnessed) = (0, 0_u64);
    let mut watch = |judge: &mut Judge, time| {
        let end = Instant::now() + time;
        while Instant::now() < end {
            judge.round();
            witnessed += 1;
            bystander.store(2, window, &witnessed.to_le_bytes());
            assert_eq!(bystander.check(2, window), 0, "a bystander's store");
            assert_eq!(judge.far.memory(BUFFER + WINDOW), witnessed.to_le_bytes());
        }
    };
    while Instant::now() < end {
        let (from, to) = if random.next().is_multiple_of(2) { (1, 2) } else { (2, 1) };
        let routed = random.next().is_multiple_of(2);
        let set = |cut| {
            if routed {
                stage.network.host(from).set_blackhole(stage.network.host(to), cut);
            } else {
                stage.network.cut(from, to, cut);
            }
        };
        set(true);
        watch(&mut judge, millis(&mut random, 10, 1200));
        set(false);
        cuts += 1;
        watch(&mut judge, millis(&mut random, 10, 600));
    }
    println!(
        "{cuts} cuts of one direction, {witnessed} stores of a bystander; frames: {}",
        stage.network.report()
    );
    judge.recover();
    assert!(judge.counts.ok > 0 && judge.counts.ok < judge.counts.rounds(), "{:?}", judge.counts);
}
