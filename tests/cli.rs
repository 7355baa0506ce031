//! What the command line answers, and how the process begins and ends.

#![allow(missing_docs, clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::indexing_slicing)]
#![allow(clippy::panic)]

#[path = "process/node.rs"]
#[allow(dead_code)]
mod node;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use node::{Node, PATIENCE, Place};

/// Starts a router at `address` with a filter for its log, tells it to stop once it listens, and gives what it said.
fn filtered_log(address: SocketAddr, filter: &str) -> String {
    log_of_router(address, filter, &[])
}

/// As [`filtered_log`], with these options besides.
fn log_of_router(address: SocketAddr, filter: &str, options: &[&str]) -> String {
    let child = Command::new(env!("CARGO_BIN_EXE_assured-rdma"))
        .args(["router", "--listen", &address.to_string()])
        .args(options)
        .env("RUST_LOG", filter)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let end = Instant::now() + PATIENCE;
    while TcpStream::connect(address).is_err() {
        assert!(Instant::now() < end, "it does not listen");
    }
    // SAFETY: `kill` only takes numbers, and the child has not been waited for, so that its id is still its own.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGTERM) };
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_log_is_filtered_by_module() {
    let place = Place::new();
    for (filter, stop) in [("off,assured_rdma::router_process=info", false), ("assured_rdma=info", true)] {
        let log = filtered_log(place.address(1), filter);
        assert!(log.contains("router: listening") && log.contains("packets passed on"), "{log}");
        // Of another module.
        assert_eq!(log.contains("told to stop"), stop, "{filter}: {log}");
    }
}

#[test]
fn a_filter_that_says_nothing_is_named_and_silences_nothing() {
    let place = Place::new();
    let log = filtered_log(place.address(1), "nonsense,hyper=debug,assured_rdma=loud");
    for line in
        ["'nonsense' is ignored: it is no level", "no module 'hyper'", "'loud' is no level", "told to stop"]
    {
        assert!(log.contains(line), "{line} in {log}");
    }
}

#[test]
fn the_log_begins_at_the_level_that_was_asked_for() {
    let place = Place::new();
    let file = place.file("router.toml");
    let path = file.display().to_string();
    let (level, config) = (["--log-level", "warn"], ["--config", &path]);
    for (id, filter, in_file, options, has_info) in [
        (1, "", "", &[][..], true),
        (2, "", "", &level, false),
        (3, "", "log-level = 'off'", &config, false),
        (4, "", "log-level = 'off'", &[config, ["--log-level", "info"]].concat(), true),
        (5, "info", "", &level, true),
        (6, "assured_rdma::router_process", "", &level, true),
        (7, "error", "log-level = 'trace'", &config, false),
    ] {
        std::fs::write(&file, in_file).unwrap();
        let log = log_of_router(place.address(id), filter, options);
        assert_eq!(log.contains("router: listening"), has_info, "{id}: {log}");
    }
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_assured-rdma")).args(arguments).output().unwrap()
}

/// Runs an adaptor that can't start: it says `line` and no more, ends with `status`, and leaves no `socket`.
fn assert_refused(arguments: &[&str], line: &str, status: i32, socket: &Path) {
    let output = run(&[&["adaptor"], arguments].concat());
    assert_eq!(String::from_utf8(output.stderr).unwrap(), format!("assured-rdma: {line}\n"));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "");
    assert_eq!(output.status.code(), Some(status), "{line}");
    assert!(!socket.exists(), "{line}");
}

#[test]
fn an_output_that_takes_nothing_is_one_line_and_no_panic() {
    for arguments in [&["--help"][..], &["router", "--listen", "127.0.0.1:7400", "--print-config"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_assured-rdma"));
        let output = command.args(arguments).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(line, "assured-rdma: standard output: No space left on device (os error 28)\n");
        assert_eq!(output.status.code(), Some(1));
        let output = command.stdout(std::io::pipe().unwrap().1).output().unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    }
}

#[test]
fn bad_configuration_gives_one_line_and_status_2_and_starts_nothing() {
    let place = Place::new();
    let socket = place.socket(1);
    let file = socket.with_extension("toml");
    let (path, file_path) = (socket.to_str().unwrap(), file.to_str().unwrap());
    let listen = place.address(1).to_string();
    let good = ["--node-id", "1", "--socket-path", path, "--listen", &listen];
    for (arguments, line) in [
        (&["--peer", "1=127.0.0.1:7472"][..], "peer: node id 1 is this node itself"),
        (&["--peer", "2", "--peer", "2"], "peer: node id 2 is given twice"),
        (&["--deadline", "10s"], "deadline: 10s is not between 1ms and 4s"),
        (&["--nodes", "2", "--peer", "2"], "peer: node id 2 is not below nodes (2)"),
        (
            &["--window-size", "3M"],
            "window-size: the window size must be a power of two from 4 KiB to 256 TiB",
        ),
        (&["--gather", "soon"], "gather: 'soon' is not a time such as 500ms, 2s or 50us"),
        (
            &["--deadlin", "1s"],
            "unexpected argument '--deadlin' found; tip: a similar argument exists: '--deadline'",
        ),
        (
            &["--socket-path", "b.sock"],
            "node-id: 1 is not a multiple of 2, as the id of bus 0 has to be (socket-paths: 2, bus-bits: 1)",
        ),
        (
            &["--socket-path", path],
            &format!("socket-path: {path} is given twice, and each bus needs one of its own"),
        ),
        (&["--log-level", "loud"], "log-level: 'loud' is not one of off, error, warn, info, debug and trace"),
        (&["--bus-bits", "9"], "bus-bits: '9' is not a number of bits from 0 to 8"),
        (&["--poll"], "a value is required for '--poll <TIME>' but none was supplied"),
    ] {
        assert_refused(&[&good, arguments].concat(), line, 2, &socket);
    }
    assert_refused(
        &["--socket-path", path],
        "node-id: missing; give --node-id or set it in the configuration file",
        2,
        &socket,
    );
    std::fs::write(&file, "node-id = 1\nlisten = '127.0.0.1'\n").unwrap();
    assert_refused(
        &["--config", file_path, "--socket-path", path],
        "listen: '127.0.0.1' is not an IP address and port such as 127.0.0.1:7471 or [::1]:7471 (names are not looked up)",
        2,
        &socket,
    );
    std::fs::write(&file, "node-id = 1\n\nwindows = 3\n").unwrap();
    let output = run(&["adaptor", "--config", file_path, "--socket-path", path]);
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(
        line.starts_with(&format!("assured-rdma: config: {file_path}, line 3: unknown field `windows`")),
        "{line}"
    );
    assert_eq!((line.lines().count(), output.status.code()), (1, Some(2)));
    assert!(!socket.exists());
}

#[test]
fn a_device_that_makes_no_sense_or_cannot_be_made_gives_one_line_and_starts_nothing() {
    let place = Place::new();
    let (socket, vault) = (place.socket(1), place.file("vault"));
    let listen = place.address(1).to_string();
    let good = ["--node-id", "1", "--socket-path", socket.to_str().unwrap(), "--listen", &listen];
    let made = format!("kind=memory,name=made,size=4K,file={}", vault.display());
    let folder = format!("kind=memory,name=folder,size=4K,file={}", vault.parent().unwrap().display());
    let is_folder =
        format!("device 'folder': file: {}: Is a directory (os error 21)", vault.parent().unwrap().display());
    for (devices, line, status) in [
        (vec!["kind=memory,name=a"], "device 'a': size: missing", 2),
        (
            vec!["kind=memory,nam=a"],
            "invalid value 'kind=memory,nam=a' for '--device <KEY=VALUE,...>': unknown key 'nam', expected one of kind, name, size, offset, file, rights, nodes",
            2,
        ),
        (vec![&made, "kind=scratchpad,name=made"], "device 'made': name: two devices have it", 2),
        (vec![&made, &folder], &is_folder, 1),
    ] {
        let devices = devices.into_iter().flat_map(|device| ["--device", device]);
        let arguments: Vec<_> = good.into_iter().chain(devices).collect();
        assert_refused(&arguments, line, status, &socket);
        assert!(!vault.exists(), "{line}");
    }
}

#[test]
fn what_is_taken_gives_one_line_and_status_1() {
    let place = Place::new();
    let socket = place.socket(1);
    let (path, listen) = (socket.to_str().unwrap(), place.address(1).to_string());
    let good = ["--node-id", "1", "--socket-path", path, "--listen", &listen];
    let other = TcpListener::bind(place.address(1)).unwrap();
    assert_refused(&good, &format!("listen: {listen}: Address already in use (os error 98)"), 1, &socket);
    drop(other);
    assert_refused(
        &[&good[..], &["--congestion", "nonesuch"]].concat(),
        "congestion: nonesuch is not available on this host (see net.ipv4.tcp_available_congestion_control): No such file or directory (os error 2)",
        1,
        &socket,
    );
    // A live socket stays with its owner, and the port is given back.
    let alive = UnixListener::bind(&socket).unwrap();
    let output = run(&[&["adaptor"][..], &good].concat());
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.starts_with("assured-rdma: socket-path: ") && line.contains("in use"), "{line}");
    assert_eq!((line.lines().count(), output.status.code()), (1, Some(1)));
    assert!(UnixStream::connect(&socket).is_ok());
    // Neither is the socket of a bus before it left behind, nor the file of a device.
    let (first, vault) = (place.socket(2), socket.with_file_name("vault"));
    let device = format!("name=vault,kind=memory,file={},size=4096", vault.display());
    let two = ["--socket-path", first.to_str().unwrap(), "--socket-path", path];
    let output = run(&[&["adaptor", "--node-id", "2", "--device", &device], &two[..]].concat());
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.starts_with("assured-rdma: socket-path: "), "{line}");
    assert_eq!((output.status.code(), first.exists(), vault.exists()), (Some(1), false, false));
    // A dead one is replaced.
    drop(alive);
    let node = place.start(1, &[], &[]);
    assert!(UnixStream::connect(&socket).is_ok());
    drop(node);
}

#[test]
fn a_told_node_ends_well_and_leaves_nothing() {
    let place = Place::new();
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut node = place.start(1, &[], &[]);
        node.signal(libc::SIGHUP);
        node.wait_for("SIGHUP has no meaning");
        assert!(place.socket(1).exists());
        node.signal(signal);
        let (status, log) = node.wait();
        assert!(status.success(), "{log:?}");
        assert!(!place.socket(1).exists());
    }
}

#[test]
fn the_printed_configuration_starts_the_same_node() {
    let place = Place::new();
    let socket = place.socket(1);
    let listen = place.address(1).to_string();
    let printed = run(&[
        "adaptor",
        "--print-config",
        "--node-id",
        "1",
        "--socket-path",
        socket.to_str().unwrap(),
        "--listen",
        &listen,
        "--peer",
        "3",
    ]);
    assert!(printed.status.success() && printed.stderr.is_empty());
    let file = socket.with_extension("toml");
    std::fs::write(&file, &printed.stdout).unwrap();
    let file = file.to_str().unwrap().to_owned();
    let again = run(&["adaptor", "--print-config", "--config", &file]);
    assert_eq!(again.stdout, printed.stdout);
    // The command line goes over the file.
    let other = run(&["adaptor", "--print-config", "--config", &file, "--node-id", "2"]);
    assert!(String::from_utf8(other.stdout).unwrap().contains("node-id = \"2\""));
    let mut node = Node::spawn("adaptor", &["--config".to_owned(), file.clone()]);
    node.wait_for("node 1: guest socket");
    drop(node);
    // The same with several buses.
    let paths = [2, 3].map(|bus| place.socket(bus).display().to_string());
    let [first, second] = &paths;
    let arguments = ["--node-id", "2", "--socket-path", first, "--socket-path", second];
    let printed = run(&[&["adaptor", "--print-config"][..], &arguments].concat());
    let text = String::from_utf8(printed.stdout).unwrap();
    assert!(
        text.contains(&format!("socket-path = [\n    \"{first}\""))
            || text.contains(&format!("socket-path = [\"{first}\"")),
        "{text}"
    );
    std::fs::write(&file, text).unwrap();
    let mut node = Node::spawn("adaptor", &["--config".to_owned(), file]);
    node.wait_for(&format!("nodes 2 to 3: guest sockets {first}, {second}"));
}

#[test]
fn a_router_is_configured_started_and_stopped_like_an_adaptor() {
    let place = Place::new();
    let listen = place.address(200).to_string();
    let refused = |arguments: &[&str], line: &str, status| {
        let output = run(&[&["router"], arguments].concat());
        assert_eq!(String::from_utf8(output.stderr).unwrap(), format!("assured-rdma: {line}\n"));
        assert_eq!((output.status.code(), output.stdout.len()), (Some(status), 0), "{line}");
    };
    refused(&[], "listen: missing; give --listen or set it in the configuration file", 2);
    refused(
        &["--listen", &listen, "--router", &listen],
        &format!("router: {listen} is where this process itself listens"),
        2,
    );
    let other = TcpListener::bind(place.address(200)).unwrap();
    refused(&["--listen", &listen], &format!("listen: {listen}: Address already in use (os error 98)"), 1);
    drop(other);
    let printed = run(&["router", "--print-config", "--listen", &listen, "--buffer", "64M"]);
    assert!(printed.status.success() && printed.stderr.is_empty());
    let file = place.socket(200).with_extension("toml");
    std::fs::write(&file, &printed.stdout).unwrap();
    let file = file.to_str().unwrap().to_owned();
    assert_eq!(run(&["router", "--print-config", "--config", &file]).stdout, printed.stdout);
    let mut router = Node::spawn("router", &["--config".to_owned(), file]);
    router.wait_for("router: listening");
    router.signal(libc::SIGTERM);
    let (status, log) = router.wait();
    assert!(status.success(), "{log:?}");
}

#[test]
fn help_and_version_are_no_errors() {
    for arguments in [&["--help"][..], &["--version"], &["adaptor", "--help"], &["router", "--help"]] {
        let output = run(arguments);
        assert!(output.status.success() && output.stderr.is_empty() && !output.stdout.is_empty());
    }
    assert_eq!(run(&[]).status.code(), Some(2));
    assert_eq!(run(&["juggle"]).stderr, b"assured-rdma: unrecognized subcommand 'juggle'\n");
}
