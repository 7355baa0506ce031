//! Adaptor processes that speak TLS, and the command that makes their certificates.

#![allow(missing_docs, clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::indexing_slicing)]
#![allow(clippy::panic)]

#[path = "process/guest.rs"]
#[allow(dead_code)]
mod guest;
#[path = "process/node.rs"]
#[allow(dead_code)]
mod node;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use guest::{Guest, READ, WRITE};
use node::{Node, Place};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};

const BUFFER: u64 = 0x4_0000;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_assured-rdma")).args(arguments).output().unwrap()
}

/// A directory with certificates as the command makes them.
fn certificates(directory: &Path, nodes: &str) -> PathBuf {
    let output = run(&["certs", directory.to_str().unwrap(), "--nodes", nodes]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    directory.to_owned()
}

/// The options for TLS as `certificate`'s owner; the files are in `directory`.
fn options(directory: &Path, certificate: &str) -> Vec<String> {
    let file = |name: &str| directory.join(name).display().to_string();
    [
        ("--tls-cert", file(&format!("{certificate}.pem"))),
        ("--tls-key", file(&format!("{certificate}.key"))),
        ("--tls-ca", file("ca.pem")),
    ]
    .into_iter()
    .flat_map(|(option, value)| [option.to_owned(), value])
    .collect()
}

fn start(place: &Place, node: u8, peers: &[u8], options: &[String]) -> Node {
    let options: Vec<_> = options.iter().map(String::as_str).collect();
    place.start(node, peers, &options)
}

/// Two nodes over TLS with their guests.
fn pair(place: &Place, directory: &Path) -> ([Node; 2], [Guest; 2]) {
    let mut nodes = [
        start(place, 1, &[2], &options(directory, "node-1")),
        start(place, 2, &[1], &options(directory, "node-2")),
    ];
    let mut guests = [Guest::attach(&place.socket(1)), Guest::attach(&place.socket(2))];
    for (own, other, id) in [(0, 1, 1), (1, 0, 2)] {
        let line = format!("node {id}: up, incarnation {:016x}", guests[own].incarnation());
        nodes[other].wait_for(&line);
    }
    guests[0].wait_for_node(2, true);
    guests[1].wait_for_node(1, true);
    (nodes, guests)
}

fn assert_exchange([near, far]: &mut [Guest; 2], seed: u8) {
    let window = far.export(BUFFER, 0x2000, READ | WRITE);
    for n in 0..1000u64 {
        near.store(2, window + 8 * n, &(n ^ u64::from(seed)).to_le_bytes());
    }
    assert_eq!((near.check(2, window), near.check(2, window + 0x1000)), (0, 0));
    for n in 0..1000 {
        assert_eq!(far.memory(BUFFER + 8 * n), (n ^ u64::from(seed)).to_le_bytes());
    }
    assert_eq!(near.load(2, window + 8), (1 ^ u64::from(seed)).to_le_bytes());
    assert_eq!(near.check(2, window), 0);
}

#[test]
fn a_pair_over_tls_exchanges_data_and_survives_a_restart() {
    let (place, directory) = (Place::new(), tempfile::tempdir().unwrap());
    let directory = certificates(directory.path(), "1-2");
    let ([mut one, two], mut guests) = pair(&place, &directory);
    assert_exchange(&mut guests, 0x5a);
    two.signal(libc::SIGKILL);
    drop(two.wait());
    let mut two = start(&place, 2, &[1], &options(&directory, "node-2"));
    guests[1] = Guest::attach(&place.socket(2));
    one.wait_for(&format!("node 2: up, incarnation {:016x}", guests[1].incarnation()));
    guests[0].wait_for_node(2, true);
    guests[1].wait_for_node(1, true);
    assert_exchange(&mut guests, 0xa5);
    assert!(!two.log().iter().chain(one.log()).any(|line| line.contains("WARN") && line.contains("tls")));
}

/// Starts nodes 1 and 2, of which 2 dials 1, and waits until each has said its `line`; and that neither is up after that.
fn assert_not_joined(what: &str, one: (&[String], &str), two: (&[String], &str)) {
    let place = Place::new();
    let mut listening = start(&place, 1, &[], &[one.0, &["--peer".to_owned(), "2".to_owned()]].concat());
    let mut dialing = start(&place, 2, &[1], two.0);
    listening.wait_for(one.1);
    dialing.wait_for(two.1);
    let both = [listening.log(), dialing.log()].concat();
    assert!(both.iter().all(|line| !line.contains(": up,")), "{what}: {both:#?}");
    assert!(both.len() < 20, "{what}: {both:#?}");
}

#[test]
fn whoever_is_refused_is_told_why() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (ours, theirs) = (certificates(ours.path(), "1-2"), certificates(theirs.path(), "1-2"));
    let (one, two) = (options(&ours, "node-1"), options(&ours, "node-2"));
    assert_not_joined(
        "plaintext to TLS",
        (&one, "refused: it does not speak TLS"),
        (&[], "it speaks TLS, and this node does not"),
    );
    assert_not_joined(
        "TLS to plaintext",
        (&[], "refused: it speaks TLS, and this node does not"),
        (&two, "by the other side before it said anything of TLS"),
    );
    assert_not_joined(
        "another authority",
        (&one, "refused: it refused: it does not trust the authority of this node's certificate"),
        (&options(&theirs, "node-2"), "its certificate is not of an authority that this node trusts"),
    );
    expired(&ours);
    assert_not_joined(
        "an expired certificate",
        (&one, "its certificate has expired"),
        (&options(&ours, "expired"), "this node's certificate is not valid at this time"),
    );
}

/// Makes `expired.pem`, node 2's of long ago, of the authority in `directory`.
fn expired(directory: &Path) {
    let read = |name| std::fs::read_to_string(directory.join(name)).unwrap();
    let mut authority = CertificateParams::default();
    authority.distinguished_name = rcgen::DistinguishedName::new();
    let authority_key = KeyPair::from_pem(&read("ca.key")).unwrap();
    let id = authority.key_identifier(&authority_key);
    let name = format!("assured-rdma private authority {:02x}{:02x}{:02x}{:02x}", id[0], id[1], id[2], id[3]);
    authority.distinguished_name.push(rcgen::DnType::CommonName, name);
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["node-2.assured-rdma.internal".to_owned()]).unwrap();
    params.not_after = date_time_ymd(2020, 2, 2);
    let certificate = params.signed_by(&key, &issuer).unwrap();
    std::fs::write(directory.join("expired.pem"), certificate.pem()).unwrap();
    std::fs::write(directory.join("expired.key"), key.serialize_pem()).unwrap();
}

#[test]
fn an_expired_certificate_is_a_warning() {
    let (place, directory) = (Place::new(), tempfile::tempdir().unwrap());
    let directory = certificates(directory.path(), "2");
    expired(&directory);
    let mut node = start(&place, 2, &[], &options(&directory, "expired"));
    let log = node.log().join("\n");
    assert!(log.contains("expired.pem: expired at 2020-02-02T00:00:00Z: no peer lets this node in"), "{log}");
    assert!(log.contains("expired.key: others may read it (mode 644); chmod 600"), "{log}");
}

#[test]
fn strangers_cost_little_and_harm_nobody() {
    let (place, directory) = (Place::new(), tempfile::tempdir().unwrap());
    let directory = certificates(directory.path(), "1-2");
    let ([one, _two], mut guests) = pair(&place, &directory);
    let before = one.memory();
    let begin = Instant::now();
    let mut strangers: Vec<_> = (0..100u8)
        .map(|n| {
            let mut stream = TcpStream::connect(place.address(1)).unwrap();
            // A record of the largest length that never ends.
            let _ = stream.write_all(&[0x16, 3, 1, 0x3f, 0xff, 1, 0, 0x3f, 0xfb]);
            let _ = stream.write_all(&vec![n; 15_000]);
            stream
        })
        .collect();
    assert_exchange(&mut guests, 1);
    for stranger in &mut strangers {
        stranger.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut rest = Vec::new();
        // The end or a reset, and no time-out.
        if let Err(error) = stranger.read_to_end(&mut rest) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
    }
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    let grown = one.memory().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes");
    assert_exchange(&mut guests, 2);
}

#[test]
fn bad_files_give_one_line_and_status_2() {
    let (place, directory) = (Place::new(), tempfile::tempdir().unwrap());
    let (other, directory) =
        (certificates(&directory.path().join("other"), "1"), certificates(directory.path(), "1-2"));
    let file = |name: &str| directory.join(name).display().to_string();
    let (cert, key, ca) = (file("node-1.pem"), file("node-1.key"), file("ca.pem"));
    let text = file("text");
    std::fs::write(&text, "node 1\n").unwrap();
    let half = file("half");
    let whole = std::fs::read_to_string(&cert).unwrap();
    std::fs::write(&half, &whole[..whole.len() / 2]).unwrap();
    let damaged = file("damaged");
    std::fs::write(&damaged, "-----BEGIN CERTIFICATE-----\n????\n-----END CERTIFICATE-----\n").unwrap();
    let nobody = file("nobody.pem");
    let nobodys = CertificateParams::new(["host.example.org".to_owned()]).unwrap();
    std::fs::write(&nobody, nobodys.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()).unwrap();
    let other_ca = other.join("ca.pem").display().to_string();
    let missing = file("missing");
    let none = "No such file or directory (os error 2)";
    for (cert, key, ca, line) in [
        (&missing, &key, &ca, format!("tls-cert: {missing}: {none}")),
        (&cert, &missing, &ca, format!("tls-key: {missing}: {none}")),
        (&cert, &key, &missing, format!("tls-ca: {missing}: {none}")),
        (&text, &key, &ca, format!("tls-cert: {text}: there is no certificate in PEM form in it")),
        (&key, &key, &ca, format!("tls-cert: {key}: there is no certificate in PEM form in it")),
        (&half, &key, &ca, format!("tls-cert: {half}: not a whole PEM file: a section in it has no end")),
        (
            &damaged,
            &key,
            &ca,
            format!("tls-cert: {damaged}: not a PEM file: what is in a section is not base64"),
        ),
        (
            &cert,
            &cert,
            &ca,
            format!("tls-key: {cert}: there is no private key in PEM form in it, or it is encrypted"),
        ),
        (
            &cert,
            &file("node-2.key"),
            &ca,
            format!("tls-key: {}: not the key of the certificate in {cert}", file("node-2.key")),
        ),
        (
            &file("node-2.pem"),
            &file("node-2.key"),
            &ca,
            format!(
                "tls-cert: {}: the certificate is that of node 2, and this is node 1",
                file("node-2.pem")
            ),
        ),
        (
            &file("router.pem"),
            &file("router.key"),
            &ca,
            format!(
                "tls-cert: {}: the certificate is that of a router, and this is node 1",
                file("router.pem")
            ),
        ),
        (
            &nobody,
            &key,
            &ca,
            format!("tls-cert: {nobody}: the certificate names neither a node nor a router"),
        ),
        (
            &ca,
            &file("ca.key"),
            &ca,
            format!("tls-cert: {ca}: the certificate names neither a node nor a router"),
        ),
        (
            &cert,
            &key,
            &other_ca,
            format!("tls-cert: {cert}: not issued by an authority in {other_ca} (tls-ca)"),
        ),
    ] {
        let socket = place.socket(1);
        let output = run(&[
            "adaptor",
            "--node-id",
            "1",
            "--socket-path",
            socket.to_str().unwrap(),
            "--tls-cert",
            cert,
            "--tls-key",
            key,
            "--tls-ca",
            ca,
        ]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with(&format!("assured-rdma: {line}")), "{said}\nfor {line}");
        assert_eq!((said.lines().count(), output.status.code()), (1, Some(2)), "{said}");
        assert!(!socket.exists());
    }
}

#[test]
fn an_adaptor_with_two_buses_has_one_certificate_for_both() {
    let (place, directory) = (Place::new(), tempfile::tempdir().unwrap());
    let directory = certificates(directory.path(), "1");
    let path = directory.to_str().unwrap();
    let made = run(&["certs", path, "--nodes", "4", "--buses", "2"]);
    let text = String::from_utf8(made.stdout).unwrap();
    assert!(text.contains("node-4.pem, node-4.key: nodes 4 to 5, valid until"), "{text}");
    let second = place.socket(5).display().to_string();
    let buses = ["--socket-path", &second].map(str::to_owned);
    let with_buses = |options: &[String]| [&buses[..], options].concat();
    let mut two = start(
        &place,
        4,
        &[],
        &with_buses(&[options(&directory, "node-4"), vec!["--peer".to_owned(), "1".to_owned()]].concat()),
    );
    let mut one = start(&place, 1, &[4], &options(&directory, "node-1"));
    for node in [4, 5] {
        one.wait_for_any(&format!("node {node}: up, incarnation"));
    }
    let mut guests = [4, 5, 1].map(|node| Guest::attach(&place.socket(node)));
    for at in 0..3 {
        let life = guests[at].incarnation();
        for other in (0..3).filter(|&other| other != at) {
            guests[other].wait_for_life([4, 5, 1][at], life);
        }
    }
    let window = guests[2].export(BUFFER, 0x1000, READ | WRITE);
    for bus in 0..2u8 {
        let offset = window + 8 * u64::from(bus);
        guests[usize::from(bus)].store(1, offset, &[bus + 1; 8]);
        assert_eq!(guests[usize::from(bus)].check(1, offset), 0);
        assert_eq!(guests[2].memory(BUFFER + 8 * u64::from(bus)), [bus + 1; 8]);
    }
    two.wait_for_any("bus 1 (node 5): node 1: up");
    drop((one, two));
    // One that names the first node only is not enough.
    assert!(run(&["certs", path, "--nodes", "4", "--force"]).status.success());
    let adaptor = [
        &["adaptor", "--node-id", "4", "--socket-path", &second, "--socket-path", "other.sock"]
            .map(str::to_owned)[..],
        &options(&directory, "node-4"),
    ]
    .concat();
    let output = run(&adaptor.iter().map(String::as_str).collect::<Vec<_>>());
    let line = String::from_utf8(output.stderr).unwrap();
    let problem =
        "the certificate is that of node 4, and this is nodes 4 to 5, so that it has to name all of these";
    assert_eq!(line, format!("assured-rdma: tls-cert: {path}/node-4.pem: {problem}\n"));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn the_certs_command_says_what_it_made_and_what_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let output = run(&["certs", path, "--nodes", "1-2"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said.lines().count(), 10, "{said}");
    assert!(said.contains(&format!(
        "  --tls-cert {path}/node-1.pem --tls-key {path}/node-1.key --tls-ca {path}/ca.pem\n"
    )));
    for (arguments, line) in [
        (&["--nodes", "2"][..], format!("{path}/node-2.pem: is there already; --force makes certificates and keys anew, and leaves the authority as it is")),
        (&["--nodes", "2-1"], "invalid value '2-1' for '--nodes <IDS>': '2-1' is not a node id from 0 to 255 or a range such as 1-8".to_owned()),
        (&[], "the following required arguments were not provided: --nodes <IDS>".to_owned()),
        (&["--nodes", "4-5", "--buses", "2"], "nodes: 5 can't be the node id of an adaptor with 2 buses, which is a multiple of 2".to_owned()),
        (&["--nodes", "4", "--buses", "0"], "invalid value '0' for '--buses <N>': '0' is not a number of buses from 1 to 256".to_owned()),
    ] {
        let output = run(&[&["certs", path][..], arguments].concat());
        assert_eq!(String::from_utf8(output.stderr).unwrap(), format!("assured-rdma: {line}\n"));
        assert_eq!(output.status.code(), Some(2));
    }
    assert!(run(&["certs", path, "--nodes", "2,3", "--force"]).status.success());
    assert!(directory.path().join("node-3.key").exists());
}

#[test]
fn a_router_joins_nodes_over_tls_and_believes_certificates_only() {
    let (place, directory) = (Place::new(), tempfile::tempdir().unwrap());
    let directory = certificates(directory.path(), "1-3");
    let own = |name: &str| options(&directory, name);
    let as_router = own("router");
    let as_router: Vec<_> = as_router.iter().map(String::as_str).collect();
    let mut router = place.start_router(100, &[], &as_router);
    let behind = |node: u8, certificate: &str| {
        let options = own(certificate);
        let options: Vec<_> = options.iter().map(String::as_str).collect();
        place.start_behind(node, &[100], &options)
    };
    let _nodes = [behind(1, "node-1"), behind(2, "node-2")];
    let mut guests = [Guest::attach(&place.socket(1)), Guest::attach(&place.socket(2))];
    let lives = [guests[0].incarnation(), guests[1].incarnation()];
    guests[0].wait_for_life(2, lives[1]);
    guests[1].wait_for_life(1, lives[0]);
    assert_exchange(&mut guests, 0x33);
    // A client of the router that has no TLS, or whose certificate is another node's.
    let mut plain = place.start_behind(3, &[100], &[]);
    plain.wait_for("it speaks TLS, and this node does not");
    drop(plain);
    let node_3 = own("node-3");
    let refused = run(&[
        &["adaptor", "--node-id", "1", "--socket-path", "x.sock", "--router", "127.0.0.1:1"][..],
        &node_3.iter().map(String::as_str).collect::<Vec<_>>(),
    ]
    .concat());
    assert_eq!(refused.status.code(), Some(2), "it does not even start: {refused:?}");
    router.wait_for_any("refused: it does not speak TLS");
}
