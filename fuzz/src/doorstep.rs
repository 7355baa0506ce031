//! The stage of the target `link`: the links of node 1, an honest node 2 that is linked with it, and up to [`CALLERS`] hostile connections, among
//! them those that the links make to a router. The sockets are real ones, the time is made up.
//!
//! What has to hold, whatever the callers do: nothing panics or goes on without end; a link comes up only with whom it is configured, who has
//! introduced itself there and, with TLS, has shown that it is who it says; no node has two; nothing comes out of a link but what was sent
//! on one; nobody is sent anything before it introduced itself, and nothing but whole packets after; the bytes held stay bounded;
//! callers that do no more are gone within seconds; and the honest node's link stays.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use assured_rdma::adaptor::Instant;
use assured_rdma::adaptor::address::NodeId;
use assured_rdma::adaptor::channel::Channel;
use assured_rdma::adaptor::mesh::neighbour::{End, LinkId, Neighbour, Refusal, Role};
use assured_rdma::adaptor::mesh::packet::{Body, Incarnation, Packet, Sink as _};
use assured_rdma::adaptor::mesh::versions::Versions;
use assured_rdma::net::{Company, LinkEvent, Links, Owner, Settings};
use assured_rdma::poller::{Poller, Reports, Token};

use crate::caller::{Caller, Damage};
use crate::credentials::{HONEST, HOSTILE, Mesh, OWN, Voice, connect, owner};
use crate::held::held;
use crate::packets::{confirm, crc, wire, write};

/// How many hostile connections there are at once.
pub const CALLERS: u8 = 6;
/// The honest node's life.
const HONEST_LIFE: u64 = 2;

/// More than this may not be held above what the links hold at their beginning: each connection two chunks each way, and what TLS keeps.
const HELD_LIMIT: usize = 8 << 20;
/// Turns at one moment before it counts as going on without end.
const TURNS: usize = 300;
/// Packets that wait for one link.
const OUTBOX: usize = 16;
/// By then every connection that says nothing is closed.
const SECONDS: Duration = Duration::from_secs(5);

thread_local! {
    static MESH: Mesh = Mesh::new();
    /// Where the links dial a router.
    static ROUTER: TcpListener = {
        let listener = TcpListener::bind(address(9)).expect("the address is free");
        listener.set_nonblocking(true).expect("it can be made non-blocking");
        listener
    };
}

/// An address that no other process uses.
fn address(host: u8) -> SocketAddr {
    let run = std::process::id().to_le_bytes();
    SocketAddr::from(([127, 64 | run[0] & 63, run[1], host], 30_000 + u16::from(run[2])))
}

/// See the module.
pub struct Doorstep {
    now: Instant,
    tls: bool,
    poller: Rc<Poller>,
    links: Links,
    reports: Reports,
    honest: Caller,
    /// Packets that the honest node was sent.
    honest_heard: u64,
    callers: BTreeMap<u8, Caller>,
    /// How the router answers that the links dial.
    router: Voice,
    up: BTreeMap<LinkId, Neighbour>,
    outbox: BTreeMap<LinkId, VecDeque<Vec<u8>>>,
    /// Who was rightly claimed to be on some connection.
    claims: BTreeSet<(End, u64)>,
    /// By their CRC, the packets that were sent by such.
    sent: BTreeSet<u32>,
    arrived: BTreeSet<u32>,
    /// Somebody said, without TLS, that it is this very life of the honest node, and then that is believed.
    robbed: bool,
    is_duplicate: bool,
    at_rest: usize,
}

impl Doorstep {
    /// Links with TLS or without. `router` is how the router speaks.
    pub fn new(tls: bool, router: Voice) -> Self {
        let poller = Rc::new(Poller::new().expect("a poller is to be had"));
        let now = Instant::from_nanos(1_000_000);
        let settings = Settings {
            own: Neighbour { end: End::node(OWN), incarnation: Incarnation(1) },
            listen: None,
            company: Company::Nodes(BTreeMap::from([(HONEST, None), (HOSTILE, None)])),
            routers: vec![address(9)],
            keepalive: Duration::from_secs(2),
            congestion: None,
            credentials: tls.then(|| MESH.with(|mesh| mesh.own.clone())),
            seed: 1,
        };
        // Of an earlier input.
        ROUTER.with(|router| while router.accept().is_ok() {});
        let mut links = Links::new(now, &poller, settings, Token(16)).expect("the address is free");
        let security = tls.then(|| MESH.with(|mesh| connect(&mesh.honest, owner(HONEST))));
        let honest = dial(now, &mut links, security);
        let mut doorstep = Self {
            now,
            tls,
            poller,
            links,
            reports: Reports::default(),
            honest,
            honest_heard: 0,
            callers: BTreeMap::new(),
            router,
            up: BTreeMap::new(),
            outbox: BTreeMap::new(),
            claims: BTreeSet::new(),
            sent: BTreeSet::new(),
            arrived: BTreeSet::new(),
            robbed: false,
            is_duplicate: false,
            at_rest: held(),
        };
        doorstep.honest.say(&wire(&join(End::node(HONEST), OWN, HONEST_LIFE, true)));
        doorstep.settle();
        assert!(doorstep.honest_is_up(), "the honest node is let in");
        doorstep
    }

    fn honest_is_up(&self) -> bool {
        self.up.values().any(|neighbour| neighbour.end == End::node(HONEST))
    }

    /// Another connection, in the place of an earlier one.
    pub fn call(&mut self, slot: u8, voice: Voice) {
        let security = MESH.with(|mesh| {
            let (credentials, owner) = mesh.of(voice)?;
            Some(connect(credentials, owner))
        });
        let mut caller = dial(self.now, &mut self.links, security);
        caller.is_deaf = self.tls && matches!(voice, Voice::Plain);
        self.callers.insert(slot % CALLERS, caller);
        self.settle();
    }

    /// Lets a caller do something.
    pub fn with(&mut self, slot: u8, act: impl FnOnce(&mut Caller)) {
        if let Some(caller) = self.callers.get_mut(&(slot % CALLERS)) {
            act(caller);
            self.settle();
        }
    }

    /// Goes on with a caller's TLS as far as the links let it; nothing that the fuzzer would find by itself.
    pub fn shake_hands(&mut self, slot: u8) {
        for _ in 0..3 {
            self.with(slot, |caller| caller.go_on(Damage::default()));
            self.hear(slot);
        }
    }

    /// A caller's connection is gone.
    pub fn drop_caller(&mut self, slot: u8) {
        self.callers.remove(&(slot % CALLERS));
        self.settle();
    }

    /// Packets for everyone who is linked.
    pub fn push(&mut self, count: u8) {
        for queue in self.outbox.values_mut() {
            let room = OUTBOX.saturating_sub(queue.len()).min(count.into());
            queue.extend(core::iter::repeat_n(wire(&write(OWN, HOSTILE, Channel::Small, 60_000)), room));
        }
        self.settle();
    }

    /// Cuts one of the links, or refuses who is there.
    pub fn cut(&mut self, nth: u8, refuse: bool) {
        let hostile =
            |(&link, neighbour): (&LinkId, &Neighbour)| (neighbour.end != End::node(HONEST)).then_some(link);
        let links: Vec<_> = self.up.iter().filter_map(hostile).collect();
        if let Some(&link) = links.get(usize::from(nth) % links.len().max(1)) {
            if refuse {
                self.links.refuse(self.now, link, Refusal::Duplicate, "for the test");
            } else {
                self.links.cut(self.now, link, "for the test");
            }
            self.settle();
        }
    }

    /// The honest node comes again, on another connection.
    pub fn come_again(&mut self) {
        self.listen();
        let security = self.tls.then(|| MESH.with(|mesh| connect(&mesh.honest, owner(HONEST))));
        self.honest = dial(self.now, &mut self.links, security);
        self.honest.say(&wire(&join(End::node(HONEST), OWN, HONEST_LIFE, true)));
        self.settle();
        assert!(self.robbed || self.honest_is_up(), "the honest node is let in at once");
    }

    /// Time passes, and the links do what is due as an event loop has them do it.
    pub fn wait(&mut self, time: Duration) {
        let end = self.now.after(time);
        while let Some(due) = self.links.poll_timeout().filter(|&due| due <= end) {
            self.now = self.now.max(due);
            self.settle();
        }
        self.now = end;
        self.settle();
    }

    /// Turns until nothing is to be done at this moment.
    fn settle(&mut self) {
        for _ in 0..TURNS {
            self.listen();
            self.poller.wait(&mut self.reports, Some(Duration::ZERO)).expect("it polls");
            let idle = self.reports.is_empty() && self.links.poll_timeout().is_none_or(|due| due > self.now);
            if !self.turn() && idle {
                self.check();
                return;
            }
        }
        panic!("it does not come to rest");
    }

    fn turn(&mut self) -> bool {
        for report in self.reports.iter() {
            self.links.handle_report(self.now, report);
        }
        self.links.handle_timeout(self.now);
        let mut progress = false;
        while let Some(event) = self.links.poll_event(self.now) {
            progress = true;
            self.follow(event);
        }
        let outbox = &mut self.outbox;
        progress |= self.links.transmit(|link, out| {
            let packet = outbox.get_mut(&link).and_then(VecDeque::pop_front);
            packet.map(|packet| out.put(&packet)).is_some()
        });
        progress
    }

    fn follow(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Up(link, neighbour) => {
                self.check_claim(neighbour);
                let is_apart = |there: &Neighbour| {
                    there.identity() != neighbour.identity() && !there.end.overlaps(neighbour.end)
                };
                assert!(
                    self.up.values().all(is_apart),
                    "{} has one link, and its ids are its own",
                    neighbour.end
                );
                assert!(self.up.insert(link, neighbour).is_none(), "a link comes up once");
                self.outbox.insert(link, VecDeque::from([wire(&confirm(OWN, HOSTILE))]));
            }
            LinkEvent::Down(link) => {
                assert!(self.up.remove(&link).is_some(), "a link goes down once");
                self.outbox.remove(&link);
            }
            LinkEvent::Packet(link, frame) => {
                assert!(self.up.contains_key(&link), "a packet comes over a link");
                assert!(!matches!(frame.packet.body, Body::Join { .. } | Body::Refuse { .. }));
                let crc = crc(&frame.wire);
                assert!(self.sent.contains(&crc), "somebody who was let in has sent it");
                self.arrived.insert(crc);
            }
            LinkEvent::Corrupt(link) => assert!(self.up.contains_key(&link), "it comes over a link"),
            LinkEvent::Duplicate(is_duplicate) => {
                assert_ne!(core::mem::replace(&mut self.is_duplicate, is_duplicate), is_duplicate);
            }
        }
    }

    fn check_claim(&self, Neighbour { end, incarnation }: Neighbour) {
        assert!(self.claims.contains(&(end, incarnation.0)), "{end} has introduced itself");
    }

    /// Everyone reads, the honest node answers, and what was said is noted.
    fn listen(&mut self) {
        for packet in self.honest.listen() {
            self.honest_heard += u64::from(!matches!(packet.body, Body::Join { .. }));
            if matches!(packet.body, Body::Join { wants_reply: true, .. }) {
                let alive = join(End::node(HONEST), OWN, HONEST_LIFE, false);
                self.honest.say(&wire(&alive));
            }
        }
        self.honest.go_on(Damage::default());
        while let Ok((stream, _)) = ROUTER.with(TcpListener::accept) {
            // So that the port is free at once.
            let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            let security = MESH.with(|mesh| {
                let (credentials, owner) = mesh.of(self.router)?;
                Some((credentials.accept().expect("random numbers are to be had"), owner))
            });
            let mut caller = Caller::new(self.now, stream, true, security);
            caller.is_deaf = self.tls && matches!(self.router, Voice::Plain);
            self.callers.insert(0, caller);
        }
        let honest = (End::node(HONEST), HONEST_LIFE);
        for caller in self.callers.values_mut() {
            let claims = note(caller, self.tls, &mut self.sent);
            self.robbed |= claims.contains(&honest);
            self.claims.extend(claims);
        }
        self.claims.extend(note(&mut self.honest, self.tls, &mut self.sent));
    }

    fn check(&self) {
        let held = held().saturating_sub(self.at_rest);
        assert!(held < HELD_LIMIT, "bounded: {held} bytes are held");
    }

    /// A caller reads what came.
    pub fn hear(&mut self, slot: u8) {
        if let Some(caller) = self.callers.get_mut(&(slot % CALLERS)) {
            caller.listen();
            assert!(
                !caller.greeted || caller.dialed || caller.has_claim,
                "nobody is greeted before it spoke"
            );
            self.settle();
        }
    }

    /// However it went, whoever says nothing more is gone, and the honest node's link is as it was.
    pub fn end(mut self) {
        let begin = self.now;
        self.wait(SECONDS);
        for caller in self.callers.values_mut().filter(|caller| caller.since <= begin) {
            caller.listen();
            assert!(caller.is_over, "who says nothing is not kept");
        }
        if self.robbed {
            return;
        }
        assert!(self.honest_is_up(), "the honest node's link stays");
        let packet = wire(&confirm(HONEST, OWN));
        self.arrived.remove(&crc(&packet));
        self.honest.say(&packet);
        let queues = self.up.iter().filter(|(_, there)| there.end == End::node(HONEST));
        let link = queues.map(|(&link, _)| link).next().expect("it is up");
        self.outbox.entry(link).or_default().push_back(wire(&confirm(OWN, HONEST)));
        let before = self.honest_heard;
        self.settle();
        assert!(self.arrived.contains(&crc(&packet)) && self.honest_heard > before, "packets go both ways");
    }
}

/// Notes what a caller said: gives who it rightly said it is, and adds the packets that it sent as such.
fn note(caller: &mut Caller, tls: bool, sent: &mut BTreeSet<u32>) -> Vec<(End, u64)> {
    let mut claims = Vec::new();
    while let Some((packet, crc)) = caller.next_said() {
        let Some(end) = packet.joiner() else {
            if caller.has_claim {
                sent.insert(crc);
            }
            continue;
        };
        let life = packet.source_incarnation.0;
        let is_known = match end {
            End::Router => caller.dialed,
            End::Adaptor(_) => !caller.dialed && [HONEST, HOSTILE].contains(&end.identity().id()),
        };
        let is_proven = caller.certified.map_or(!tls, |certified| tls && certified.includes(Owner::of(end)));
        let is_other = life != 1 && !end.overlaps(End::node(OWN));
        if is_known && is_proven && is_other && packet.destination == OWN {
            claims.push((end, life));
            caller.has_claim = true;
        }
    }
    claims
}

/// A connection as if it had been accepted. A pair of sockets brings everything at once, which the loopback device need not do when the
/// machine is busy, and the time here is made up.
fn dial(now: Instant, links: &mut Links, security: Option<(rustls::Connection, Owner)>) -> Caller {
    let [ours, theirs] = <[UnixStream; 2]>::from(UnixStream::pair().expect("a pair is to be had"))
        .map(|end| TcpStream::from(OwnedFd::from(end)));
    theirs.set_nonblocking(true).expect("it can be made non-blocking");
    links.adopt(now, theirs, address(2));
    Caller::new(now, ours, false, security)
}

/// What `end` says of itself first.
pub fn join(end: End, looks_for: NodeId, life: u64, wants_reply: bool) -> Packet {
    let body = Body::Join { role: Role::of(end), versions: Versions::OWN, wants_reply };
    Packet::between(end.identity(), looks_for, Incarnation(life), body)
}
