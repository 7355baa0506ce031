//! An adaptor and the routers that it dials.

use super::*;

/// An end that only counts its links.
struct End {
    poller: Rc<Poller>,
    links: Links,
    reports: Reports,
    up: BTreeMap<LinkId, Neighbour>,
    ups: usize,
}

impl End {
    fn new(now: Instant, own: Neighbour, listen: Option<SocketAddr>, routers: &[SocketAddr]) -> Self {
        let poller = Rc::new(Poller::new().unwrap());
        let company = match own.identity {
            Identity::Node(_) => Company::Nodes(BTreeMap::new()),
            Identity::Router => Company::Everyone,
        };
        let settings = Settings {
            own,
            listen,
            company,
            routers: routers.to_vec(),
            keepalive: Duration::from_secs(2),
            congestion: None,
            credentials: None,
            seed: own.incarnation.0,
        };
        let links = Links::new(now, &poller, settings, FIRST_TOKEN).unwrap();
        Self { poller, links, reports: Reports::default(), up: BTreeMap::new(), ups: 0 }
    }

    fn turn(&mut self, now: Instant) {
        self.poller.wait(&mut self.reports, Some(Duration::ZERO)).unwrap();
        for report in self.reports.iter() {
            self.links.handle_report(now, report);
        }
        self.links.handle_timeout(now);
        while let Some(event) = self.links.poll_event(now) {
            match event {
                LinkEvent::Up(link, neighbour) => {
                    assert!(self.up.insert(link, neighbour).is_none());
                    self.ups += 1;
                }
                LinkEvent::Down(link) => assert!(self.up.remove(&link).is_some()),
                other => panic!("{other:?}"),
            }
        }
        self.links.transmit(|_, _| false);
    }
}

fn run(ends: &mut [&mut End], now: &mut Instant, lasts: Duration) {
    let end = now.after(lasts);
    while *now < end {
        ends.iter_mut().for_each(|end| end.turn(*now));
        *now = now.after(Duration::from_millis(5));
    }
}

fn router(now: Instant, life: u64, port: u16) -> End {
    let own = Neighbour { identity: Identity::Router, incarnation: Incarnation(life) };
    // Every address of this host leads there.
    End::new(now, own, Some(SocketAddr::from(([0, 0, 0, 0], port))), &[])
}

#[test]
fn of_several_addresses_of_one_router_one_is_used_and_another_when_that_fails() {
    let mut now = Instant::ZERO;
    // No other test has this port, as it is taken at all addresses.
    let port = address(16, LOW).port() + 10_000;
    let [first, second, third] = [1, 2, 3].map(|host| SocketAddr::from(([127, 0, 0, host], port)));
    let own = Neighbour { identity: Identity::Node(LOW), incarnation: Incarnation(1) };
    let mut node = End::new(now, own, None, &[first, second, third]);
    let mut there = router(now, 7, port);
    run(&mut [&mut node, &mut there], &mut now, Duration::from_secs(2));
    assert_eq!((node.up.len(), there.up.len()), (1, 1));
    let ups = node.ups;
    assert!(ups <= 3, "{ups} links to find that out");
    run(&mut [&mut node, &mut there], &mut now, Duration::from_secs(30));
    assert_eq!((node.up.len(), there.up.len(), node.ups), (1, 1, ups), "the link stays");
    // It is cut: one of them is up soon.
    for life in [7, 8, 9] {
        if life == 7 {
            let &link = there.up.keys().next().unwrap();
            there.links.cut(now, link, "for the test");
        } else {
            drop(there);
            there = router(now, life, port);
        }
        run(&mut [&mut node, &mut there], &mut now, Duration::from_secs(3));
        let ups = node.ups;
        run(&mut [&mut node, &mut there], &mut now, Duration::from_secs(30));
        assert_eq!((node.up.len(), there.up.len(), node.ups), (1, 1, ups), "life {life}");
    }
    // Where an address turns out to be that of another router, both are used.
    drop(there);
    let listen = |life, address| {
        let own = Neighbour { identity: Identity::Router, incarnation: Incarnation(life) };
        End::new(now, own, Some(address), &[])
    };
    let (mut one, mut two) = (listen(20, first), listen(21, second));
    run(&mut [&mut node, &mut one, &mut two], &mut now, Duration::from_secs(10));
    assert_eq!((node.up.len(), one.up.len(), two.up.len()), (2, 1, 1));
}
