//! Whoever is let in at a router, and does harm with that.

use super::*;

/// A router, and what became of those that came.
struct Hub {
    now: Instant,
    poller: Rc<Poller>,
    links: Links,
    reports: Reports,
    address: SocketAddr,
    linked: BTreeMap<LinkId, Neighbour>,
    ups: usize,
    packets: usize,
}

impl Hub {
    fn new(test: u8) -> Self {
        let address = address(test, NodeId(0));
        let poller = Rc::new(Poller::new().unwrap());
        let settings = Settings {
            own: Neighbour { end: End::Router, incarnation: Incarnation(1) },
            listen: Some(address),
            company: Company::Everyone,
            routers: Vec::new(),
            keepalive: Duration::from_secs(2),
            congestion: None,
            credentials: None,
            seed: 1,
        };
        let now = Instant::ZERO;
        let links = Links::new(now, &poller, settings, FIRST_TOKEN).unwrap();
        let linked = BTreeMap::new();
        let reports = Reports::default();
        Self { now, poller, links, reports, address, linked, ups: 0, packets: 0 }
    }

    fn turn(&mut self) {
        self.now = self.now.after(Duration::from_micros(10));
        self.poller.wait(&mut self.reports, Some(Duration::ZERO)).unwrap();
        for report in self.reports.iter() {
            self.links.handle_report(self.now, report);
        }
        self.links.handle_timeout(self.now);
        while let Some(event) = self.links.poll_event(self.now) {
            match event {
                LinkEvent::Up(link, neighbour) => {
                    assert!(self.linked.insert(link, neighbour).is_none());
                    self.ups += 1;
                }
                LinkEvent::Down(link) => assert!(self.linked.remove(&link).is_some()),
                LinkEvent::Packet(..) => self.packets += 1,
                other => panic!("{other:?}"),
            }
        }
        self.links.transmit(|_, _| false);
    }

    /// Turns until nothing is left to be done, as often as what was sent takes to arrive.
    fn rest(&mut self) {
        for _ in 0..50 {
            self.turn();
        }
    }

    /// The same over some time.
    fn wait(&mut self, time: Duration) {
        let end = self.now.after(time);
        while self.now < end {
            self.now = self.links.poll_timeout().unwrap_or(end).min(end).max(self.now);
            self.rest();
        }
    }

    fn connect(&mut self, identity: Identity, life: u64) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(&joins(identity, [life])).unwrap();
        stream
    }

    /// Another node comes, is let in and is heard.
    fn serves(&mut self, node: u8) {
        let (linked, packets) = (self.linked.len(), self.packets);
        let mut stream = self.connect(Identity::Node(NodeId(node)), 77);
        self.rest();
        stream.write_all(&wire(&hello(NodeId(node), NodeId(9)))).unwrap();
        self.rest();
        assert_eq!((self.linked.len(), self.packets), (linked + 1, packets + 1));
    }
}

fn joins(identity: Identity, lives: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let role = if identity == Identity::Router { Role::Router } else { Role::NODE };
    let body = Body::Join { role, versions: Versions::OWN, wants_reply: false };
    let packet = |life| Packet::between(identity, NodeId(0), Incarnation(life), body.clone());
    lives.into_iter().flat_map(|life| wire(&packet(life))).collect()
}

#[test]
fn a_node_that_says_it_is_another_has_to_come_again() {
    let mut hub = Hub::new(60);
    let node = Identity::Node(NodeId(5));
    for round in 0..200 {
        let mut stream = hub.connect(node, 2 + round);
        for _ in 0..3 {
            hub.turn();
        }
        stream.write_all(&joins(node, 1000..1100)).unwrap();
        for _ in 0..3 {
            hub.turn();
        }
        assert!(hub.linked.is_empty(), "round {round}: nobody becomes another on its link");
    }
    assert!((20..=34).contains(&hub.ups), "{}", hub.ups);
    hub.serves(6);
}

#[test]
fn a_node_that_comes_without_end_is_let_in_less_often() {
    let mut hub = Hub::new(61);
    let node = Identity::Node(NodeId(5));
    for _ in 0..200 {
        let stream = hub.connect(node, 5);
        for _ in 0..3 {
            hub.turn();
        }
        drop(stream);
        hub.turn();
    }
    assert!((20..=34).contains(&hub.ups), "{}", hub.ups);
    hub.serves(6);
    hub.wait(Duration::from_millis(600));
    let ups = hub.ups;
    let _stream = hub.connect(node, 5);
    hub.rest();
    assert_eq!(hub.ups, ups + 1, "it is welcome again");
}

#[test]
fn routers_are_few() {
    let mut hub = Hub::new(62);
    let mut routers: Vec<_> = (2..302)
        .map(|life| {
            let stream = hub.connect(Identity::Router, life);
            hub.turn();
            stream
        })
        .collect();
    hub.rest();
    assert_eq!((hub.linked.len(), hub.ups), (256, 256));
    hub.serves(6);
    drop(routers.remove(0));
    hub.rest();
    routers.push(hub.connect(Identity::Router, 999));
    hub.rest();
    assert_eq!((hub.linked.len(), hub.ups), (256, 258));
}

#[test]
fn who_opens_many_connections_pushes_out_its_own() {
    let mut hub = Hub::new(63);
    let from = |host: u8, hub: &mut Hub| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 9, 9, host], 0)).into()).unwrap();
        socket.connect(&hub.address.into()).unwrap();
        hub.turn();
        TcpStream::from(socket)
    };
    let (mut slow, first) = (from(1, &mut hub), from(2, &mut hub));
    let _flood: Vec<_> = (0..600).map(|_| from(2, &mut hub)).collect();
    hub.rest();
    assert_eq!(hub.links.ends().len(), 256);
    assert!(matches!((&first).read(&mut [0]), Ok(0) | Err(_)), "the oldest of the flood is closed");
    slow.write_all(&joins(Identity::Node(NodeId(5)), [5])).unwrap();
    hub.rest();
    assert_eq!(hub.linked.len(), 1, "who came from elsewhere has its time");
}
