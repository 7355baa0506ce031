//! The same with TLS, and those whom it keeps out.

use std::sync::Arc;

use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tempfile::TempDir;

use super::*;
use crate::adaptor::buses::{Buses, Span};
use crate::net::{Owner, TlsFiles};

const STRANGER: NodeId = NodeId(3);

/// An authority, and the files of those for whom it made certificates.
struct Authority {
    directory: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        std::fs::write(directory.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { directory, issuer: Issuer::new(params, key) }
    }

    /// Credentials of `own`, with a certificate that `change` has changed.
    fn changed(&self, own: Owner, change: impl FnOnce(&mut CertificateParams)) -> Option<Credentials> {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(own.names()).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let file = |name| self.directory.path().join(name);
        std::fs::write(file("cert"), params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        std::fs::write(file("key"), key.serialize_pem()).unwrap();
        let files = TlsFiles { cert: file("cert"), key: file("key"), ca: file("ca.pem") };
        Some(Credentials::load(&files, own).unwrap())
    }

    fn credentials(&self, own: Owner) -> Option<Credentials> {
        self.changed(own, |_| {})
    }

    fn node(&self, node: NodeId) -> Option<Credentials> {
        self.credentials(Owner::Nodes(Span::single(node)))
    }

    fn world(&self, test: u8, seed: u64) -> World {
        World::secured(test, seed, [self.node(LOW), self.node(HIGH)])
    }
}

#[test]
fn one_link_results_over_tls_too() {
    let authority = Authority::new();
    dial_at_once(40, |seed| authority.world(31, seed));
    break_things(20, |seed| authority.world(32, seed));
}

#[test]
fn bulk_arrives_whole_over_tls() {
    send_bulk(Authority::new().world(33, 1));
}

/// Two nodes of which the low one listens and the high one dials, asleep whenever nothing is to be done, for as long as `lasts`.
/// Gives the turns that both made together.
fn run(low: &mut Side, high: &mut Side, lasts: Duration) -> usize {
    let (mut now, mut turns) = (Instant::ZERO, 0);
    while now.since(Instant::ZERO) < lasts {
        let mut busy = false;
        for side in [&mut *low, &mut *high] {
            side.look();
            if !side.reports.is_empty() || side.links.poll_timeout().is_some_and(|time| time <= now) {
                side.act(now, 100);
                (busy, turns) = (true, turns + 1);
            }
        }
        if !busy {
            let next = [&*low, &*high].iter().filter_map(|side| side.links.poll_timeout()).min();
            now = next.unwrap_or_else(|| now.after(lasts)).max(now.after(Duration::from_millis(1)));
        }
    }
    turns
}

/// The high node dials the low one over `test`'s addresses for a minute and is not let in.
fn assert_kept_out(what: &str, test: u8, credentials: [Option<Credentials>; 2]) {
    let [low, high] = credentials;
    let now = Instant::ZERO;
    let mut low = Side::secured(now, test, LOW, &[(HIGH, None)], low);
    let mut high = Side::secured(now, test, HIGH, &[(LOW, Some(address(test, LOW)))], high);
    let turns = run(&mut low, &mut high, Duration::from_secs(60));
    assert_eq!((low.ups, low.received.len(), high.received.len()), (0, 0, 0), "{what}");
    assert!((30..1000).contains(&turns), "{what}: {turns} turns in a minute");
    assert!(low.links.ends().len() <= 1, "{what}");
}

#[test]
fn who_has_no_right_to_an_id_is_kept_out() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (low, high) = (Owner::Nodes(Span::single(LOW)), Owner::Nodes(Span::single(HIGH)));
    let longago = |params: &mut CertificateParams| params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let tomorrow = |params: &mut CertificateParams| params.not_before = rcgen::date_time_ymd(4000, 1, 1);
    for (what, credentials) in [
        ("both of another authority", [ours.credentials(low), theirs.credentials(high)]),
        ("another node's certificate", [ours.credentials(low), ours.node(STRANGER)]),
        ("a router's certificate", [ours.credentials(low), ours.credentials(Owner::Router)]),
        ("the node's own id", [ours.credentials(low), ours.credentials(low)]),
        ("an expired certificate", [ours.credentials(low), ours.changed(high, longago)]),
        ("one that is not valid yet", [ours.credentials(low), ours.changed(high, tomorrow)]),
        ("who was dialed is another node", [ours.node(STRANGER), ours.credentials(high)]),
        ("who was dialed is a router", [ours.credentials(Owner::Router), ours.credentials(high)]),
        ("who was dialed has expired", [ours.changed(low, longago), ours.credentials(high)]),
        ("plaintext to TLS", [ours.credentials(low), None]),
        ("TLS to plaintext", [None, ours.credentials(high)]),
    ] {
        assert_kept_out(what, 34, credentials);
    }
}

/// A TLS client of the low node.
fn client(authority: &Authority, with_certificate: bool, protocol: &[u8]) -> ClientConnection {
    client_of(Identity::Node(LOW), authority, with_certificate, protocol)
}

/// A TLS client of `server` as this program never makes one; with the certificate that the authority made last, or none.
fn client_of(
    server: Identity,
    authority: &Authority,
    with_certificate: bool,
    protocol: &[u8],
) -> ClientConnection {
    let pem = |name| std::fs::read(authority.directory.path().join(name)).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&pem("ca.pem")).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let mut config = if with_certificate {
        let chain = vec![CertificateDer::from_pem_slice(&pem("cert")).unwrap()];
        builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(&pem("key")).unwrap()).unwrap()
    } else {
        builder.with_no_client_auth()
    };
    config.alpn_protocols = if protocol.is_empty() { Vec::new() } else { vec![protocol.to_vec()] };
    ClientConnection::new(Arc::new(config), server.server_name().unwrap()).unwrap()
}

/// Drives `tls` on `stream` together with `side`; sends `data` as soon as it can. Returns whether it could.
fn converse(
    side: &mut Side,
    now: &mut Instant,
    tls: &mut ClientConnection,
    stream: &mut TcpStream,
    data: &[u8],
) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut sent = false;
    for _ in 0..10 {
        while tls.wants_write() && tls.write_tls(stream).is_ok() {}
        *now = now.after(Duration::from_millis(1));
        side.turn(*now, 100);
        let _ = tls.read_tls(stream);
        let _ = tls.process_new_packets();
        if !tls.is_handshaking() && !sent {
            tls.writer().write_all(data).unwrap();
            sent = true;
        }
    }
    sent
}

#[test]
fn a_node_shows_a_certificate_and_speaks_this_protocol() {
    let authority = Authority::new();
    let mut now = Instant::ZERO;
    let mut side = Side::secured(now, 35, LOW, &[(HIGH, None)], authority.node(LOW));
    drop(authority.node(HIGH));
    let join = wire(&join(HIGH, LOW, 2));
    let ours = b"assured-rdma/1";
    for (what, with_certificate, protocol, finishes, welcome) in [
        ("no certificate", false, &ours[..], true, false),
        ("no protocol", true, b"", true, false),
        ("another protocol", true, b"h2", false, false),
        ("all as it should be", true, ours, true, true),
    ] {
        let mut stream = TcpStream::connect(address(35, LOW)).unwrap();
        let mut tls = client(&authority, with_certificate, protocol);
        let finished = converse(&mut side, &mut now, &mut tls, &mut stream, &join);
        assert_eq!((finished, side.is_up(HIGH)), (finishes, welcome), "{what}");
        stream.set_nonblocking(false).unwrap();
        drop(tls);
        if !welcome {
            // What it was told is in front of the end.
            std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
        }
    }
}

#[test]
fn what_comes_with_the_first_packet_or_before_the_end_is_not_lost() {
    let authority = Authority::new();
    let mut now = Instant::ZERO;
    let mut side = Side::secured(now, 36, LOW, &[(HIGH, None)], authority.node(LOW));
    drop(authority.node(HIGH));
    let sent =
        [hello(HIGH, LOW), write(HIGH, LOW, 0, vec![1; 1000].into()), write(HIGH, LOW, 1, vec![2; 9].into())];
    let data: Vec<_> = [join(HIGH, LOW, 2)].iter().chain(&sent).flat_map(wire).collect();
    let mut stream = TcpStream::connect(address(36, LOW)).unwrap();
    let mut tls = client(&authority, true, b"assured-rdma/1");
    assert!(converse(&mut side, &mut now, &mut tls, &mut stream, &data));
    assert_eq!(side.received, sent);
    // The end of TLS ends the link, also where TCP stays open.
    tls.writer().write_all(&wire(&sent[2])).unwrap();
    tls.send_close_notify();
    while tls.wants_write() {
        tls.write_tls(&mut stream).unwrap();
    }
    side.turn(now, 100);
    assert_eq!(side.received.len(), 4);
    assert!(!side.is_up(HIGH) && side.links.ends().is_empty());
    // After it was said that no more comes, more is not read.
    let mut rest = Vec::new();
    stream.set_nonblocking(false).unwrap();
    stream.read_to_end(&mut rest).unwrap();
    assert!(!rest.is_empty());
}

/// What an honest client says first.
fn client_hello(authority: &Authority) -> Vec<u8> {
    let mut bytes = Vec::new();
    client(authority, true, b"assured-rdma/1").write_tls(&mut bytes).unwrap();
    bytes
}

/// An honest pair of which the low node can be troubled by others.
struct Troubled {
    now: Instant,
    low: Side,
    high: Side,
    authority: Authority,
}

impl Troubled {
    fn new(test: u8) -> Self {
        let (now, authority) = (Instant::ZERO, Authority::new());
        let low = Side::secured(now, test, LOW, &[(HIGH, None), (STRANGER, None)], authority.node(LOW));
        let peers = [(LOW, Some(address(test, LOW)))];
        let high = Side::secured(now, test, HIGH, &peers, authority.node(HIGH));
        Self { now, low, high, authority }
    }

    fn turn(&mut self, millis: u64) {
        self.now = self.now.after(Duration::from_millis(millis));
        self.low.turn(self.now, 100);
        self.high.turn(self.now, 100);
    }

    fn join(&mut self) {
        for _ in 0..20 {
            self.turn(10);
        }
        assert_eq!((self.low.received.len(), self.high.received.len()), (1, 1));
    }

    /// The link is the same as before, and carries packets; nobody else has one.
    fn assert_unharmed(&mut self, sequence: u32) {
        self.assert_harmless(sequence);
        assert_eq!(self.low.ups, 1);
    }

    /// The link is the same as before, and carries packets.
    fn assert_harmless(&mut self, sequence: u32) {
        let packet = write(HIGH, LOW, sequence, Bytes::from_static(&[7; 100]));
        self.high.outbox.get_mut(&LOW).unwrap().push_back(packet.clone());
        self.turn(1);
        self.turn(1);
        assert_eq!(self.low.received.last(), Some(&packet));
        assert_eq!(self.high.ups, 1);
    }
}

#[test]
fn garbage_is_turned_away_and_harms_nobody() {
    let mut world = Troubled::new(37);
    world.join();
    let mut random = Random::new(1);
    let honest = client_hello(&world.authority);
    for round in 0..300u32 {
        let mut bytes: Vec<u8> = (0..random.next() % 3000).map(|_| random.next().to_le_bytes()[0]).collect();
        match round % 4 {
            // Anything at all.
            0 => {}
            // TLS records of any content.
            1 => bytes
                .splice(0..0, [[0x14, 0x15, 0x16, 0x17][random.next() as usize % 4], 3, 3, 2, 0])
                .for_each(drop),
            // An honest beginning that goes bad.
            2 => bytes = [&honest[..random.next() as usize % honest.len()], &bytes].concat(),
            // One bit of it is wrong, and anything follows.
            _ => {
                let mut hello = honest.clone();
                hello[random.next() as usize % honest.len()] ^= 1 << (random.next() % 8);
                bytes = [hello, bytes].concat();
            }
        }
        let mut stream = TcpStream::connect(address(37, LOW)).unwrap();
        let middle = bytes.len() / 2;
        let _ = stream.write_all(&bytes[..middle]);
        world.turn(1);
        let _ = stream.write_all(&bytes[middle..]);
        world.turn(1);
        assert_eq!(world.low.ups, 1, "round {round}");
        if round % 30 == 0 {
            world.assert_unharmed(round);
        }
    }
    world.turn(2000);
    assert_eq!(world.low.links.ends().len(), 1);
}

#[test]
fn garbage_after_the_handshake_harms_nobody_either() {
    let mut world = Troubled::new(42);
    world.join();
    drop(world.authority.node(STRANGER));
    let mut random = Random::new(2);
    for round in 0..100u32 {
        let mut bytes: Vec<u8> =
            (0..1 + random.next() % 3000).map(|_| random.next().to_le_bytes()[0]).collect();
        let first = match round % 4 {
            0 => Vec::new(),
            // In another's name.
            1 => wire(&join(HIGH, LOW, 7)),
            2 => wire(&write(STRANGER, LOW, 0, vec![1; 60_000].into())),
            // As it should be, and then anything.
            _ => wire(&join(STRANGER, LOW, 7)),
        };
        bytes.splice(0..0, first).for_each(drop);
        let mut stream = TcpStream::connect(address(42, LOW)).unwrap();
        let mut tls = client(&world.authority, true, b"assured-rdma/1");
        let (low, now) = (&mut world.low, &mut world.now);
        assert!(converse(low, now, &mut tls, &mut stream, &bytes));
        if round % 8 == 3 {
            // Not even of this TLS session.
            stream.write_all(&bytes).unwrap();
        }
        drop(stream);
        world.turn(1);
        assert!(!world.low.is_up(STRANGER), "round {round}");
        if round % 20 == 0 {
            world.assert_harmless(round);
        }
    }
    world.turn(2000);
    assert_eq!(world.low.links.ends().len(), 1);
}

#[test]
fn an_endless_handshake_is_cut_by_its_bytes() {
    let mut world = Troubled::new(38);
    world.join();
    for (what, record) in [
        // A handshake message of 16 MiB, a record at a time.
        ("a long message", [&[0x16, 3, 1, 0x40, 0][..], &[1, 0xff, 0xff, 0xff], &[0; 0x4000 - 4]].concat()),
        // What TLS has to ignore, again and again.
        ("many changes of cipher", [0x14, 3, 3, 0, 1, 1].repeat(2000)),
        // Records of no content.
        ("empty records", [0x16, 3, 1, 0, 0].repeat(2000)),
    ] {
        let mut stream = TcpStream::connect(address(38, LOW)).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut taken = 0;
        while let Ok(len) = stream.write(&record[taken % record.len()..]) {
            taken += len;
            world.turn(1);
            assert!(taken < 1 << 20, "{what}");
        }
        world.turn(1);
        assert_eq!(world.low.links.ends().len(), 1, "{what}");
    }
    world.assert_unharmed(0);
}

#[test]
fn a_slow_handshake_is_cut_in_time() {
    let mut world = Troubled::new(39);
    world.join();
    let honest = client_hello(&world.authority);
    let mut stream = TcpStream::connect(address(39, LOW)).unwrap();
    let begin = world.now;
    for byte in honest {
        if stream.write_all(&[byte]).is_err() {
            break;
        }
        world.turn(100);
        if world.low.links.ends().len() == 1 {
            break;
        }
    }
    let lasted = world.now.since(begin);
    assert!((2000..2200).contains(&lasted.as_millis()), "{lasted:?}");
    // The same from the other side: who was dialed says nothing, or one byte at a time.
    let other = TcpListener::bind(address(39, NodeId(9))).unwrap();
    let peers = [(HIGH, Some(other.local_addr().unwrap()))];
    let mut low = Side::secured(world.now, 40, LOW, &peers, world.authority.node(LOW));
    low.turn(world.now, 10);
    let (mut stream, _) = other.accept().unwrap();
    let begin = world.now;
    while low.links.ends().len() == 1 {
        let _ = stream.write(&[0x16, 3, 3, 0x10, 0, 2, 0][..1]);
        world.now = world.now.after(Duration::from_millis(100));
        low.turn(world.now, 10);
        assert!(world.now.since(begin) <= Duration::from_millis(2200));
    }
    assert_eq!(low.ups, 0);
    world.assert_unharmed(0);
}

#[test]
fn many_half_made_handshakes_keep_nobody_out() {
    let mut world = Troubled::new(41);
    let honest = client_hello(&world.authority);
    let half: Vec<_> = (0..300)
        .map(|n| {
            let mut stream = TcpStream::connect(address(41, LOW)).unwrap();
            stream.write_all(&honest[..honest.len() * (n % 3) / 2]).unwrap();
            world.low.turn(world.now, 100);
            stream
        })
        .collect();
    assert_eq!(world.low.links.ends().len(), 256);
    world.join();
    world.assert_unharmed(0);
    world.turn(2000);
    assert_eq!(world.low.links.ends().len(), 1);
    drop(half);
}

#[test]
fn a_router_lets_in_whom_the_certificate_names() {
    let authority = Authority::new();
    let mut now = Instant::ZERO;
    let own = Neighbour { end: End::Router, incarnation: Incarnation(1) };
    let settings = Settings {
        own,
        company: Company::Everyone,
        ..Side::secured(now, 43, NodeId(9), &[], authority.credentials(Owner::Router)).settings
    };
    let mut side = Side::new(now, settings);
    drop(authority.node(HIGH));
    let router = Body::Join { role: Role::Router, versions: Versions::OWN, wants_reply: true };
    let router = Packet::between(Identity::Router, NodeId(0), Incarnation(7), router);
    for (what, first, welcome) in [
        ("another node", join(STRANGER, NodeId(0), 7), false),
        ("a router", router, false),
        ("who looks for a node", join(HIGH, LOW, 7), false),
        ("itself", join(HIGH, NodeId(0), 7), true),
    ] {
        let mut stream = TcpStream::connect(address(43, NodeId(9))).unwrap();
        let mut tls = client_of(Identity::Router, &authority, true, b"assured-rdma/1");
        assert!(converse(&mut side, &mut now, &mut tls, &mut stream, &wire(&first)));
        assert_eq!(side.ups, usize::from(welcome), "{what}");
    }
    assert!(side.is_up(HIGH));
}

#[test]
fn a_certificate_has_to_cover_every_node_of_the_adaptor() {
    let authority = Authority::new();
    let span = |first, bits| Span::new(NodeId(first), bits).unwrap();
    let buses = |first, bits| End::Adaptor(Buses::new(span(first, bits), 2).unwrap());
    let of = |span| authority.credentials(Owner::Nodes(span));
    // Of the one that dials, and of the one that is dialed.
    for (what, certificates, welcome) in [
        ("their own", [span(8, 1), span(12, 1)], true),
        ("for more than they have", [span(8, 2), span(12, 2)], true),
        ("the dialing side's for less", [span(8, 0), span(12, 1)], false),
        ("the dialing side's for others", [span(8, 1), span(8, 2)], false),
        ("the dialed side's for less", [span(8, 1), span(12, 0)], false),
    ] {
        let mut now = Instant::ZERO;
        let side = |first: u8, peer: u8, dials: bool, certificate| {
            let peer = NodeId(peer);
            let peers = [(peer, dials.then(|| address(44, peer)))];
            let settings = Side::secured(now, 44, NodeId(first), &peers, of(certificate)).settings;
            let own = Neighbour { end: buses(first, 1), incarnation: Incarnation(first.into()) };
            Side::new(now, Settings { own, ..settings })
        };
        let (mut dialed, mut dialing) =
            (side(12, 8, false, certificates[1]), side(8, 12, true, certificates[0]));
        for _ in 0..100 {
            now = now.after(Duration::from_millis(10));
            dialed.turn(now, 10);
            dialing.turn(now, 10);
        }
        let ups = usize::from(welcome);
        assert_eq!((dialed.received.len(), dialing.received.len()), (ups, ups), "{what}");
    }
}
