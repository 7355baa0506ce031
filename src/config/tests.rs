//! Every bad input and the line that it gives.

use super::raw::MAX_FILE;
use super::*;
use crate::adaptor::buses::{Buses, Span};

/// The settings that the table's rows add to or change, written as a TOML file.
const GOOD: &str =
    "node-id = 1\nsocket-path = 'a.sock'\nlisten = '127.0.0.1:7471'\npeer = ['2=127.0.0.1:7472', 3]\n";

fn raw(toml: &str) -> RawConfig {
    toml::from_str(toml).unwrap()
}

/// `change`'s settings over the good ones.
fn changed(change: &str) -> Result<Config, ConfigError> {
    Config::new(&raw(change).or(raw(GOOD)))
}

#[test]
fn defaults_are_as_documented() {
    let config = changed("").unwrap();
    assert_eq!((config.buses, config.geometry.bus_bits()), (Buses::single(NodeId(1)), 0));
    assert_eq!(config.socket_paths, [PathBuf::from("a.sock")]);
    assert_eq!(config.geometry, Geometry::new(16, 256 << 20).unwrap());
    assert_eq!(config.deadline, Duration::from_millis(500));
    assert_eq!(config.lease, Duration::from_millis(150));
    assert_eq!(config.keepalive, Duration::from_secs(2));
    assert_eq!(config.gather, Duration::from_micros(50));
    assert_eq!(config.poll, Duration::from_micros(50));
    assert_eq!(config.queue_poll, Duration::from_micros(50));
    assert_eq!(config.peers.len(), 2);
    assert_eq!(config.peers[&NodeId(2)], Some("127.0.0.1:7472".parse().unwrap()));
    assert_eq!(config.peers[&NodeId(3)], None);
    assert!(!config.allow_plaintext);
}

#[test]
fn good_values_are_taken() {
    for change in [
        "peer = ['2=[::1]:7472']",
        "listen = '[::1]:7471'",
        "listen = '0.0.0.0:7471'\nallow-plaintext = true",
        "peer = ['2=192.168.1.2:7472']\nallow-plaintext = true",
        "peer = ['2=[::ffff:127.0.0.1]:7472']",
        "nodes = 256\nwindow-size = '8G'",
        "nodes = '2'\nwindow-size = 4096\nnode-id = 0\npeer = [1]",
        "deadline = '4s'",
        "gather = '0s'\npoll = 0",
        "congestion = 'cubic'",
        "listen = '0.0.0.0:7471'\npeer = ['2=192.168.1.2:7472']\n[tls]\ncert = 'a'\nkey = 'b'\nca = 'c'",
    ] {
        changed(change).unwrap_or_else(|error| panic!("{change}: {error}"));
    }
    let alone = Config::new(&raw("node-id = 1\nsocket-path = 'a.sock'")).unwrap();
    assert!(alone.peers.is_empty() && alone.listen.is_none());
}

#[test]
fn each_bad_value_gives_its_line() {
    for (change, line) in [
        ("node-id = 'one'", "node-id: 'one' is not a node id from 0 to 255"),
        ("node-id = 256", "node-id: '256' is not a node id from 0 to 255"),
        ("node-id = -1", "node-id: '-1' is not a node id from 0 to 255"),
        ("node-id = 16", "node-id: node id 16 is not below nodes (16)"),
        ("name = ''", "name: '' is not a name of 1 to 24 letters, digits, '-', '_' and '.'"),
        ("name = 'a b'", "name: 'a b' is not a name of 1 to 24 letters, digits, '-', '_' and '.'"),
        (
            "name = 'abcdefghijklmnopqrstuvwxy'",
            "name: 'abcdefghijklmnopqrstuvwxy' is not a name of 1 to 24 letters, digits, '-', '_' and '.'",
        ),
        (
            "name = ['a', 'b']",
            "name: 2 names are more than there are buses (1); give one for each --socket-path at most",
        ),
        ("socket-path = ''", "socket-path: '' is not a path for a socket"),
        (
            "listen = 'localhost:7471'",
            "listen: 'localhost:7471' is not an IP address and port such as 127.0.0.1:7471 or [::1]:7471 (names are not looked up)",
        ),
        (
            "listen = '7471'",
            "listen: '7471' is not an IP address and port such as 127.0.0.1:7471 or [::1]:7471 (names are not looked up)",
        ),
        (
            "listen = '0.0.0.0:7471'",
            "listen: 0.0.0.0:7471 is not a loopback address, and traffic would be neither encrypted nor authenticated; give --tls-cert, --tls-key and --tls-ca, or --allow-plaintext where you trust the network",
        ),
        (
            "peer = ['2=[2001:db8::1]:7471']",
            "peer: [2001:db8::1]:7471 is not a loopback address, and traffic would be neither encrypted nor authenticated; give --tls-cert, --tls-key and --tls-ca, or --allow-plaintext where you trust the network",
        ),
        ("listen = '[::1]:0'", "listen: [::1]:0 has no port; give one other than 0, such as 7471"),
        (
            "listen = '127.0.0.1:7471'\npeer = '2=127.0.0.1:7471'",
            "peer: 127.0.0.1:7471 is where this process itself listens",
        ),
        (
            "listen = '127.0.0.1:7471'\nrouter = '127.0.0.1:7471'",
            "router: 127.0.0.1:7471 is where this process itself listens",
        ),
        ("peer = [1]", "peer: node id 1 is this node itself"),
        ("peer = 1", "peer: node id 1 is this node itself"),
        ("peer = [2, '2=127.0.0.1:1']", "peer: node id 2 is given twice"),
        ("peer = ['16=127.0.0.1:1']", "peer: node id 16 is not below nodes (16)"),
        ("peer = ['=127.0.0.1:1']", "peer: '' is not a node id from 0 to 255"),
        (
            "peer = ['2=']",
            "peer: '' is not an IP address and port such as 127.0.0.1:7471 or [::1]:7471 (names are not looked up)",
        ),
        ("peer = ['2=127.0.0.1:0']", "peer: 127.0.0.1:0 is no address to connect to"),
        ("peer = ['2=0.0.0.0:7472']", "peer: 0.0.0.0:7472 is no address to connect to"),
        ("router = ['127.0.0.1:7400', '127.0.0.1:7400']", "router: 127.0.0.1:7400 is given twice"),
        ("router = ['127.0.0.1:0']", "router: 127.0.0.1:0 is no address to connect to"),
        (
            "router = ['r1']",
            "router: 'r1' is not an IP address and port such as 127.0.0.1:7471 or [::1]:7471 (names are not looked up)",
        ),
        (
            "router = ['192.0.2.1:7400']",
            "router: 192.0.2.1:7400 is not a loopback address, and traffic would be neither encrypted nor authenticated; give --tls-cert, --tls-key and --tls-ca, or --allow-plaintext where you trust the network",
        ),
        ("nodes = 3", "nodes: the number of nodes must be a power of two from 2 to 256"),
        ("nodes = 512", "nodes: the number of nodes must be a power of two from 2 to 256"),
        ("nodes = 'many'", "nodes: 'many' is not a power of two from 2 to 256"),
        ("window-size = '100M'", "window-size: the window size must be a power of two from 4 KiB to 256 TiB"),
        ("window-size = '1K'", "window-size: the window size must be a power of two from 4 KiB to 256 TiB"),
        ("window-size = 'big'", "window-size: 'big' is not a size such as 256M or 1G"),
        (
            "window-size = '512G'",
            "window-size: 16 windows of 512G are more than 2T, the most for which a guest's firmware has room; give fewer nodes or smaller windows",
        ),
        ("deadline = '5s'", "deadline: 5s is not between 1ms and 4s"),
        ("deadline = '0s'", "deadline: 0s is not between 1ms and 4s"),
        ("deadline = 500", "deadline: '500' is not a time such as 500ms, 2s or 50us"),
        ("deadline = '100ms'", "lease: 150ms must be shorter than the deadline of 100ms"),
        ("lease = '500ms'", "lease: 500ms must be shorter than the deadline of 500ms"),
        ("lease = '0s'", "lease: 0s is not between 1ms and 4s"),
        ("keepalive = '10ms'", "keepalive: 10ms is not between 100ms and 1m"),
        ("gather = '1s'", "gather: 1s is not between 0s and 100ms"),
        (
            "deadline = '20ms'\nlease = '7ms'\ngather = '13ms'",
            "gather: 13ms must be shorter than the deadline less the longest lease of 13ms",
        ),
        ("poll = '2s'", "poll: 2s is not between 0s and 1s"),
        ("queue-poll = '2s'", "queue-poll: 2s is not between 0s and 1s"),
        ("[tls]\ncert = 'a'", "tls-key: missing; TLS takes tls-cert, tls-key and tls-ca together"),
        ("[tls]\nca = 'a'\nkey = 'b'", "tls-cert: missing; TLS takes tls-cert, tls-key and tls-ca together"),
        (
            "[tls]\ncert = 'a'\nkey = 'b'\nca = ''",
            "tls-ca: missing; TLS takes tls-cert, tls-key and tls-ca together",
        ),
        (
            "allow-plaintext = true\n[tls]\ncert = 'a'\nkey = 'b'\nca = 'c'",
            "allow-plaintext: with tls-cert there is no plaintext; give one of the two",
        ),
        ("congestion = ''", "congestion: '' is not the name of a congestion control such as cubic"),
        ("congestion = 'a b'", "congestion: 'a b' is not the name of a congestion control such as cubic"),
    ] {
        assert_eq!(changed(change).unwrap_err().to_string(), line, "for {change}");
    }
}

#[test]
fn each_socket_path_is_a_bus_with_a_node_id_of_its_own() {
    let buses = |first, bits, count| Buses::new(Span::new(NodeId(first), bits).unwrap(), count).unwrap();
    for (change, expected) in [
        ("node-id = 4\nsocket-path = ['a', 'b']", buses(4, 1, 2)),
        ("node-id = 4\nsocket-path = ['a', 'b', 'c']", buses(4, 2, 3)),
        ("node-id = 8\nsocket-path = 'a'\nbus-bits = 3", buses(8, 3, 1)),
        ("node-id = 0\nsocket-path = ['a', 'b']\nnodes = 2\npeer = []", buses(0, 1, 2)),
        ("node-id = 5\nsocket-path = ['a']\nbus-bits = '0'", buses(5, 0, 1)),
    ] {
        let change = if change.contains("peer") { raw(change) } else { raw(change).or(raw(GOOD)) };
        let config = Config::new(&change).unwrap();
        assert_eq!(
            (config.buses, config.geometry.bus_bits()),
            (expected, expected.span().bits()),
            "{change:?}"
        );
        assert_eq!(Config::new(&raw(&config.to_toml())).unwrap(), config);
    }
    let many: Vec<_> = (0..257).map(|n| format!("'{n}'")).collect();
    for (change, line) in [
        ("socket-path = []", None),
        (
            "node-id = 5\nsocket-path = ['a', 'b']",
            Some(
                "node-id: 5 is not a multiple of 2, as the id of bus 0 has to be (socket-paths: 2, bus-bits: 1)",
            ),
        ),
        (
            "node-id = 4\nsocket-path = ['a', 'b', 'c']\nbus-bits = 1",
            Some("socket-path: 3 buses need bus-bits 2 or more, not 1"),
        ),
        (
            &format!("node-id = 0\nsocket-path = [{}]", many.join(",")),
            Some("socket-path: 257 buses are more than there are node ids (256)"),
        ),
        ("bus-bits = 9", Some("bus-bits: '9' is not a number of bits from 0 to 8")),
        ("bus-bits = 'one'", Some("bus-bits: 'one' is not a number of bits from 0 to 8")),
        (
            "node-id = 0\nbus-bits = 5",
            Some(
                "node-id: this adaptor has the ids of nodes 0 to 31, and not all of these are below nodes (16)",
            ),
        ),
        (
            "socket-path = ['a', 'b', 'a']",
            Some("socket-path: a is given twice, and each bus needs one of its own"),
        ),
        ("socket-path = ['a', '']", Some("socket-path: '' is not a path for a socket")),
        (
            "node-id = 2\nsocket-path = ['a', 'b']",
            Some("peer: node id 2 is one of this adaptor's own (nodes 2 to 3), whose buses need no link"),
        ),
        (
            "node-id = 0\nbus-bits = 2",
            Some("peer: node id 2 is one of this adaptor's own (nodes 0 to 3), whose buses need no link"),
        ),
    ] {
        let error = changed(change).err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), line, "for {change}");
    }
}

#[test]
fn buses_are_named_in_their_order() {
    let names = |change: &str| changed(change).unwrap().names.iter().map(Name::to_string).collect::<Vec<_>>();
    assert_eq!(names(""), [""; 0]);
    assert_eq!(names("name = 'abcdefghijklmnopqrstuvwx'"), ["abcdefghijklmnopqrstuvwx"]);
    let two = "node-id = 4\nsocket-path = ['a', 'b']\n";
    assert_eq!(names(&format!("{two}name = ['db-1', 'web_2.x']")), ["db-1", "web_2.x"]);
    assert_eq!(names(&format!("{two}name = 'db'")), ["db"]);
}

#[test]
fn what_has_no_default_must_be_given() {
    let line = |toml| Config::new(&raw(toml)).unwrap_err().to_string();
    assert_eq!(line(""), "node-id: missing; give --node-id or set it in the configuration file");
    assert_eq!(
        line("node-id = 1"),
        "socket-path: missing; give --socket-path for a guest, --device for a node that hosts devices, or both"
    );
    assert_eq!(
        line("node-id = 1\nsocket-path = 'a'\npeer = [2]"),
        "peer: node 2 has no address, and without listen it can't connect to this node either"
    );
    assert_eq!(
        line(&format!("node-id = 1\nsocket-path = '{}'", "a".repeat(108))),
        "socket-path: 108 bytes are too long for a socket's path; at most 107"
    );
}

#[test]
fn command_line_goes_over_the_file() {
    let line = RawConfig { node_id: Some(Text("5".into())), ..RawConfig::default() };
    let config = Config::new(&line.or(raw(GOOD))).unwrap();
    assert_eq!(config.buses, Buses::single(NodeId(5)));
    assert_eq!(config.peers.len(), 2);
    let line = RawConfig { peer: vec![Text("4".into())], ..RawConfig::default() };
    let config = Config::new(&line.or(raw(GOOD))).unwrap();
    assert_eq!(config.peers.keys().copied().collect::<Vec<_>>(), [NodeId(4)]);
}

#[test]
fn printed_configuration_reads_back_the_same() {
    for change in [
        "",
        "router = ['127.0.0.1:7400', '[::1]:7400']",
        "name = 'a'",
        "node-id = 4\nsocket-path = ['a', 'b']\nname = ['c', 'd']",
        "listen = '[::1]:7471'\ncongestion = 'cubic'\nwindow-size = '1G'\nallow-plaintext = true",
        "[tls]\ncert = 'node-1.pem'\nkey = '/etc/node 1.key'\nca = 'ca.pem'",
        "[[device]]\nkind = 'memory'\nname = 'a'\nsize = '1M'\nfile = '/tmp/a, b'\nrights = 'wo'\nnodes = [1, '3-5', 7]
[[device]]\nkind = 'scratchpad'\nname = 'b'",
    ] {
        let config = changed(change).unwrap();
        assert_eq!(Config::new(&raw(&config.to_toml())).unwrap(), config);
    }
}

#[test]
fn routers_are_configured_in_the_same_way() {
    let config = |toml: &str| RouterConfig::new(&toml::from_str(toml).unwrap());
    let good = config("listen = '127.0.0.1:7400'").unwrap();
    assert_eq!((good.buffer, good.keepalive), (256 << 20, Duration::from_secs(2)));
    let more = config("listen = '[::1]:7400'\nrouter = ['127.0.0.1:7401']\nbuffer = '64M'\nkeepalive = '1s'")
        .unwrap();
    for config in [good, more] {
        assert_eq!(RouterConfig::new(&toml::from_str(&config.to_toml()).unwrap()).unwrap(), config);
    }
    for (toml, line) in [
        ("", "listen: missing; give --listen or set it in the configuration file"),
        (
            "listen = '127.0.0.1:7400'\nrouter = ['127.0.0.1:7400']",
            "router: 127.0.0.1:7400 is where this process itself listens",
        ),
        ("listen = '127.0.0.1:0'", "listen: 127.0.0.1:0 has no port; give one other than 0, such as 7471"),
        ("listen = '127.0.0.1:7400'\nbuffer = '1M'", "buffer: '1M' is not a size of 8M or more such as 256M"),
        (
            "listen = '127.0.0.1:7400'\nbuffer = 'big'",
            "buffer: 'big' is not a size of 8M or more such as 256M",
        ),
        (
            "listen = '0.0.0.0:7400'",
            "listen: 0.0.0.0:7400 is not a loopback address, and traffic would be neither encrypted nor authenticated; give --tls-cert, --tls-key and --tls-ca, or --allow-plaintext where you trust the network",
        ),
    ] {
        assert_eq!(config(toml).unwrap_err().to_string(), line, "for {toml}");
    }
}

#[test]
fn file_errors_name_file_and_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.toml");
    for (text, problem) in [
        ("node-id = 1\nnodez = 2\n", "line 2: unknown field `nodez`, expected one of"),
        ("node-id = [1]\n", "line 1: invalid type: sequence, expected a string or a whole number"),
        (
            "socket-path = true\n",
            "line 1: invalid type: boolean `true`, expected a string, a whole number, or a list of these",
        ),
        (
            "node-id = 1.5\n",
            "line 1: invalid type: floating point `1.5`, expected a string or a whole number",
        ),
        ("\n\nnode-id 1\n", "line 3: "),
        (
            "[device]\nkind = 'memory'\n",
            "line 1: invalid type: map, expected a table [[device]] for each device",
        ),
        ("[tls]\ncrt = 'a'\n", "line 2: unknown field `crt`, expected one of"),
        ("allow-plaintext = 'yes'\n", "line 1: invalid type: string \"yes\", expected a boolean"),
    ] {
        std::fs::write(&path, text).unwrap();
        let line = read_file::<RawConfig>(&path).unwrap_err().to_string();
        assert!(line.starts_with(&format!("config: {}, {problem}", path.display())), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
    }
    std::fs::write(&path, "#".repeat(MAX_FILE as usize)).unwrap();
    assert!(read_file::<RawConfig>(&path).is_ok());
    for (path, what) in
        [(path.as_path(), "larger than 1 MiB"), (std::path::Path::new("/dev/zero"), "endless")]
    {
        if what != "endless" {
            std::fs::write(path, "#".repeat(MAX_FILE as usize + 1)).unwrap();
        }
        assert_eq!(
            read_file::<RawConfig>(path).unwrap_err().to_string(),
            format!("config: {}: larger than 1 MiB, which no configuration is", path.display()),
            "{what}"
        );
    }
    std::fs::remove_file(&path).unwrap();
    assert_eq!(
        read_file::<RawConfig>(&path).unwrap_err().to_string(),
        format!("config: {}: No such file or directory (os error 2)", path.display())
    );
}

#[test]
fn the_address_bits_that_a_guest_needs_grow_with_the_spaces() {
    for (nodes, window, bits) in
        [(16, "256M", 37), (256, "256M", 41), (16, "16G", 43), (16, "128G", 46), (2, "4K", 18)]
    {
        let text = format!("node-id = 1\nsocket-path = 's'\nnodes = {nodes}\nwindow-size = '{window}'");
        assert_eq!(Config::new(&raw(&text)).unwrap().guest_address_bits(), bits, "{nodes} x {window}");
    }
}
