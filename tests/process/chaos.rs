//! Real processes under load, while a proxy, signals and restarts make their lives hard; every status is held against what the
//! target's memory holds.
//!
//! `CHAOS_SECONDS=n` makes it longer (default 8 for each story).

use std::time::{Duration, Instant};

use assured_rdma::adaptor::random::Random;

use super::BUFFER;
use super::guest::{Guest, READ, WRITE};
use super::judge::{Judge, WINDOW, seconds};
use super::node::{Node, Place};
use super::proxy::{Mode, Proxy};

/// Node 1 dials by a proxy, which leads to node 2 or to the router that node 2 is behind.
struct Stage {
    place: Place,
    proxy: Proxy,
    one: Node,
    two: Option<Node>,
    router: Option<Node>,
}

impl Stage {
    fn direct() -> (Self, Judge) {
        let place = Place::new();
        let proxy = Proxy::new(place.address(9), place.address(2));
        let two = place.start(2, &[], &["--peer", "1"]);
        let one = place.start(1, &[], &["--peer", &format!("2={}", proxy.address())]);
        Self::begin(place, proxy, one, two, None)
    }

    fn routed() -> (Self, Judge) {
        let place = Place::new();
        let proxy = Proxy::new(place.address(9), place.address(100));
        let router = place.start_router(100, &[], &[]);
        let two = place.start_behind(2, &[100], &[]);
        let one = place.start_behind(1, &[9], &[]);
        Self::begin(place, proxy, one, two, Some(router))
    }

    fn begin(place: Place, proxy: Proxy, mut one: Node, two: Node, router: Option<Node>) -> (Self, Judge) {
        let mut near = Guest::attach(&place.socket(1));
        let (far, window) = Self::far(&place, &mut one, &mut near);
        let judge = Judge::new(near, far, window);
        (Self { place, proxy, one, two: Some(two), router }, judge)
    }

    fn far(place: &Place, one: &mut Node, near: &mut Guest) -> (Guest, u64) {
        let mut far = Guest::attach(&place.socket(2));
        one.wait_for(&format!("node 2: up, incarnation {:016x}", far.incarnation()));
        near.wait_for_node(2, true);
        let window = far.export(BUFFER, WINDOW, READ | WRITE);
        (far, window)
    }

    /// When all is well again, stores arrive.
    fn heal(&mut self, judge: &mut Judge) {
        self.proxy.set(Mode::Pass);
        judge.recover();
    }
}

#[test]
fn a_link_that_is_cut_stalled_swallowed_and_corrupted() {
    break_link(Stage::direct(), 1);
}

#[test]
fn a_link_with_a_router_that_is_cut_stalled_swallowed_and_corrupted() {
    break_link(Stage::routed(), 3);
}

fn break_link((mut stage, mut judge): (Stage, Judge), seed: u64) {
    let mut random = Random::new(seed);
    let end = Instant::now() + seconds();
    let mut cuts = 0;
    while Instant::now() < end {
        // What goes wrong meets a link that carries something, or one that comes back.
        if random.next().is_multiple_of(2) {
            judge.near.wait_for_node(2, true);
        }
        let change = Instant::now() + Duration::from_millis(random.next() % 300);
        match random.next() % 8 {
            0..3 => {
                stage.proxy.cut();
                cuts += 1;
            }
            3 => stage.proxy.set(Mode::Stall),
            4 => stage.proxy.set(Mode::SwallowForward),
            5 => stage.proxy.set(Mode::SwallowBack),
            _ => stage.proxy.set(Mode::Flip),
        }
        while Instant::now() < change {
            judge.round();
        }
        stage.proxy.set(Mode::Pass);
        for _ in 0..20 {
            judge.round();
        }
    }
    println!("{cuts} cuts, {} bits flipped", stage.proxy.flipped());
    assert!(cuts > 0 && stage.proxy.flipped() > 0);
    stage.heal(&mut judge);
    assert!(judge.counts.ok > 0 && judge.counts.rounds() > judge.counts.ok, "{:?}", judge.counts);
}

#[test]
fn a_node_that_is_stopped_for_a_while_again_and_again() {
    stop(Stage::direct(), 2, |stage| stage.two.as_ref());
}

#[test]
fn a_router_that_is_stopped_for_a_while_again_and_again() {
    stop(Stage::routed(), 4, |stage| stage.router.as_ref());
}

fn stop((mut stage, mut judge): (Stage, Judge), seed: u64, whom: impl Fn(&Stage) -> Option<&Node>) {
    let mut random = Random::new(seed);
    let end = Instant::now() + seconds();
    let signal = |stage: &Stage, signal| whom(stage).expect("it runs").signal(signal);
    while Instant::now() < end {
        signal(&stage, libc::SIGSTOP);
        let wake = Instant::now() + Duration::from_millis(100 + random.next() % 900);
        while Instant::now() < wake {
            judge.round();
        }
        signal(&stage, libc::SIGCONT);
        for _ in 0..50 {
            judge.round();
        }
    }
    stage.heal(&mut judge);
    assert!(judge.counts.ok > 0 && judge.counts.unknown > 0, "{:?}", judge.counts);
}

#[test]
fn a_node_that_is_killed_and_started_again_and_again() {
    let (mut stage, mut judge) = Stage::direct();
    let end = Instant::now() + seconds();
    let mut kills = 0;
    while Instant::now() < end {
        for _ in 0..30 {
            judge.round();
        }
        if let Some(two) = &stage.two {
            two.signal(libc::SIGKILL);
        }
        judge.round();
        stage.two = None;
        for _ in 0..5 {
            judge.round();
        }
        judge.verdict();
        stage.two = Some(stage.place.start(2, &[], &["--peer", "1"]));
        let (far, window) = Stage::far(&stage.place, &mut stage.one, &mut judge.near);
        judge.replace_far(far, window);
        kills += 1;
    }
    println!("{kills} kills");
    stage.heal(&mut judge);
    assert!(judge.counts.ok > 0 && judge.counts.not_executed > 0, "{:?}", judge.counts);
}
