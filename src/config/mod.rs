//! The configuration of an adaptor: what a user wrote, checked and turned into values that can't be wrong.
//!
//! Every error is one line that begins with the key at fault. Addresses are numeric: looking up a
//! name could hold up the event loop, and with it a guest's load, beyond every deadline.

mod buses;
mod device;
mod raw;
mod router;
mod units;

use core::time::Duration;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use log::LevelFilter;
use thiserror::Error;

use crate::adaptor::address::{Geometry, GeometryError, NodeId};
use crate::adaptor::buses::{Buses, Span};
use crate::adaptor::inventory::Name;
use crate::adaptor::mesh::limits::longest_lease;
use crate::hosted::Description;
use crate::net::TlsFiles;
pub use device::{DeviceError, RawDevice};
pub use raw::{RawConfig, RawTls, Text, read_file};
pub use router::{RawRouterConfig, RouterConfig};
pub use units::format_size;

/// The longest deadline: QEMU gives up after 5 s, and a reply after that would kill the device.
pub const MAX_DEADLINE: Duration = Duration::from_secs(4);
/// The largest access space in bytes: SeaBIOS and OVMF place its BARs in no guest where it is larger. They have room for this one
/// with 46 physical address bits, and with more bits not for more.
pub const MAX_SPACE_SIZE: u64 = 1 << 41;
/// The longest name of a congestion control that the kernel knows.
const MAX_CONGESTION_NAME: usize = 15;

/// A checked configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The nodes of this adaptor: one for each bus.
    pub buses: Buses,
    /// Where the QEMU of each bus attaches, in the order of bus numbers; none for a node that has no guest, but devices.
    pub socket_paths: Vec<PathBuf>,
    /// What the buses are called, in the order of bus numbers; those behind the last one have no name.
    pub names: Vec<Name>,
    /// Where peers may connect to us, if they may.
    pub listen: Option<SocketAddr>,
    /// The other nodes, and where to connect to them (`None`: they connect to us). No node of this adaptor is among them.
    pub peers: BTreeMap<NodeId, Option<SocketAddr>>,
    /// Where routers listen that this node connects to.
    pub routers: Vec<SocketAddr>,
    /// How the access space is cut.
    pub geometry: Geometry,
    /// The longest time that an access takes.
    pub deadline: Duration,
    /// The part of it that is kept for the lease.
    pub lease: Duration,
    /// Within this time a dead link is found.
    pub keepalive: Duration,
    /// How long a write buffer waits for neighbouring stores.
    pub gather: Duration,
    /// How long the event loop polls after activity before it sleeps.
    pub poll: Duration,
    /// How long the DMA engine looks at a queue's ring after work before it needs a doorbell.
    pub queue_poll: Duration,
    /// TCP congestion control where the user asked for one.
    pub congestion: Option<String>,
    /// Whether plain TCP beyond this host is accepted.
    pub allow_plaintext: bool,
    /// The least severe lines of the log, as far as RUST_LOG says nothing.
    pub log_level: LevelFilter,
    /// Where the certificate, the key and the authority for TLS are, where it is used.
    pub tls: Option<TlsFiles>,
    /// The devices that this node hosts, each with its place.
    pub devices: Vec<Description>,
}

/// What is wrong with a configuration; its text begins with the key.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A value that has no default is absent.
    #[error("{0}: missing; give --{0} or set it in the configuration file")]
    Missing(&'static str),
    /// There is nothing that the node could be for.
    #[error(
        "socket-path: missing; give --socket-path for a guest, --device for a node that hosts devices, or both"
    )]
    NothingThere,
    /// There are more names than buses.
    #[error(
        "name: {names} names are more than there are buses ({buses}); give one for each --socket-path at most"
    )]
    MoreNamesThanBuses {
        /// How many names.
        names: usize,
        /// How many buses.
        buses: u16,
    },
    /// A device is wrong.
    #[error("device {device}: {error}")]
    Device {
        /// Its name in quotes, or its number from 1 on.
        device: String,
        /// What is wrong with it.
        error: DeviceError,
    },
    /// A value is not of the key's kind.
    #[error("{key}: '{text}' is not {expected}")]
    Malformed {
        /// The key.
        key: &'static str,
        /// What was written.
        text: String,
        /// What would be right.
        expected: &'static str,
    },
    /// A duration is outside its range.
    #[error("{key}: {} is not between {} and {}", units::format_duration(*value), units::format_duration(*min), units::format_duration(*max))]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// What was written.
        value: Duration,
        /// The least that is accepted.
        min: Duration,
        /// The most that is accepted.
        max: Duration,
    },
    /// A part of the deadline is not shorter than it.
    #[error("{key}: {} must be shorter than the {whole} of {}", units::format_duration(*value), units::format_duration(*limit))]
    NotShorter {
        /// The key.
        key: &'static str,
        /// What was written.
        value: Duration,
        /// What it is a part of.
        whole: &'static str,
        /// How long that is.
        limit: Duration,
    },
    /// The access space can't be cut that way.
    #[error("{key}: {error}")]
    Geometry {
        /// The key.
        key: &'static str,
        /// Why not.
        error: GeometryError,
    },
    /// The access space is larger than a guest can place.
    #[error("window-size: {nodes} windows of {} are more than {}, the most for which a guest's firmware has room; give fewer nodes or smaller windows", units::format_size(*window_size), units::format_size(MAX_SPACE_SIZE))]
    SpaceTooLarge {
        /// How many windows.
        nodes: u16,
        /// Bytes in each.
        window_size: u64,
    },
    /// The node id has no window.
    #[error("{key}: node id {node} is not below nodes ({nodes})")]
    NodeBeyondSpace {
        /// The key.
        key: &'static str,
        /// The id.
        node: NodeId,
        /// The number of windows.
        nodes: u16,
    },
    /// There are more buses than node ids.
    #[error("socket-path: {0} buses are more than there are node ids (256)")]
    MoreBusesThanIds(usize),
    /// There are more buses than the bits of bus number that were asked for can tell apart.
    #[error("socket-path: {count} buses need bus-bits {needed} or more, not {bits}")]
    TooManyBuses {
        /// How many buses.
        count: usize,
        /// The bits that they need.
        needed: u32,
        /// The bits that were asked for.
        bits: u32,
    },
    /// The node id has a bus number in it.
    #[error("node-id: {node} is not a multiple of {}, as the id of bus 0 has to be (socket-paths: {count}, bus-bits: {bits})", 1u32 << bits)]
    NodeNotAligned {
        /// The id.
        node: NodeId,
        /// How many buses there are.
        count: usize,
        /// Bits of the bus number.
        bits: u32,
    },
    /// Not all node ids of the adaptor have a window.
    #[error("node-id: this adaptor has the ids of {span}, and not all of these are below nodes ({nodes})")]
    SpanBeyondSpace {
        /// The ids.
        span: Span,
        /// The number of windows.
        nodes: u16,
    },
    /// Two buses have one socket.
    #[error("socket-path: {} is given twice, and each bus needs one of its own", .0.display())]
    SocketPathTwice(PathBuf),
    /// A peer has this node's own id.
    #[error("peer: node id {0} is this node itself")]
    PeerIsSelf(NodeId),
    /// A peer has the id of one of this adaptor's buses.
    #[error("peer: node id {node} is one of this adaptor's own ({own}), whose buses need no link")]
    PeerIsOwnBus {
        /// The id.
        node: NodeId,
        /// All ids of this adaptor.
        own: Span,
    },
    /// A peer is named twice.
    #[error("peer: node id {0} is given twice")]
    PeerTwice(NodeId),
    /// A process is told to connect to itself.
    #[error("{key}: {address} is where this process itself listens")]
    OwnAddress {
        /// The key.
        key: &'static str,
        /// The address.
        address: SocketAddr,
    },
    /// A router is named twice.
    #[error("router: {0} is given twice")]
    RouterTwice(SocketAddr),
    /// Neither side could connect.
    #[error("peer: node {0} has no address, and without listen it can't connect to this node either")]
    PeerUnreachable(NodeId),
    /// Nobody would know where to connect to.
    #[error("listen: {0} has no port; give one other than 0, such as 7471")]
    NoPort(SocketAddr),
    /// An address to which nothing can connect.
    #[error("{key}: {address} is no address to connect to")]
    NotDialable {
        /// The key.
        key: &'static str,
        /// The address.
        address: SocketAddr,
    },
    /// Plain TCP beyond this host.
    #[error(
        "{key}: {address} is not a loopback address, and traffic would be neither encrypted nor authenticated; give --tls-cert, --tls-key and --tls-ca, or --allow-plaintext where you trust the network"
    )]
    Plaintext {
        /// The key.
        key: &'static str,
        /// The address.
        address: SocketAddr,
    },
    /// TLS needs three files.
    #[error("{0}: missing; TLS takes tls-cert, tls-key and tls-ca together")]
    TlsIncomplete(&'static str),
    /// Two keys that exclude each other.
    #[error("allow-plaintext: with tls-cert there is no plaintext; give one of the two")]
    PlaintextAndTls,
    /// The path does not fit into a socket's address.
    #[error(
        "socket-path: {length} bytes are too long for a socket's path; at most {}",
        buses::MAX_SOCKET_PATH
    )]
    SocketPathTooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// The configuration file can't be read.
    #[error("config: {}: {error}", path.display())]
    FileUnread {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// The configuration file is none, or never ends.
    #[error("config: {}: larger than 1 MiB, which no configuration is", path.display())]
    FileTooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The configuration file is not as it should be.
    #[error("config: {}, line {line}: {message}", path.display())]
    FileSyntax {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong there.
        message: String,
    },
}

impl Config {
    /// Checks what was written.
    ///
    /// # Errors
    /// The first thing that is wrong, by key.
    pub fn new(raw: &RawConfig) -> Result<Self, ConfigError> {
        let node = raw.node_id.as_ref().ok_or(ConfigError::Missing("node-id"))?;
        let node = parse_node("node-id", &node.0)?;
        let socket_paths = buses::socket_paths(&raw.socket_path, !raw.device.is_empty())?;
        let geometry = geometry(raw)?;
        if u16::from(node.0) >= geometry.nodes() {
            return Err(ConfigError::NodeBeyondSpace { key: "node-id", node, nodes: geometry.nodes() });
        }
        let buses = buses::buses(node, socket_paths.len().max(1), raw.bus_bits.as_ref(), geometry.nodes())?;
        let names = buses::names(&raw.name, buses.count())?;
        let geometry = geometry.with_bus_bits(buses.span().bits());
        let allow_plaintext = raw.allow_plaintext.unwrap_or(false);
        let tls = raw.tls.files()?;
        let any_address = any_address(allow_plaintext, tls.as_ref())?;
        let listen = raw.listen.as_ref().map(|text| listen_address(text, any_address)).transpose()?;
        let peers = peers(raw, buses.span(), geometry, listen.is_some(), any_address)?;
        let routers = routers(&raw.router, any_address)?;
        not_own("peer", listen, peers.values().flatten())?;
        not_own("router", listen, &routers)?;

        let millis = Duration::from_millis;
        let deadline = duration("deadline", raw.deadline.as_ref(), millis(500), millis(1), MAX_DEADLINE)?;
        let lease = duration("lease", raw.lease.as_ref(), millis(150), millis(1), MAX_DEADLINE)?;
        shorter("lease", lease, "deadline", deadline)?;
        let keepalive = keepalive(raw.keepalive.as_ref())?;
        let gather =
            duration("gather", raw.gather.as_ref(), Duration::from_micros(50), Duration::ZERO, millis(100))?;
        // Otherwise stores could expire before they are sent.
        let longest = longest_lease(deadline).max(lease);
        shorter("gather", gather, "deadline less the longest lease", deadline.saturating_sub(longest))?;
        let poll = poll(raw.poll.as_ref())?;
        let queue_poll = raw.queue_poll.as_ref();
        let queue_poll = duration(
            "queue-poll",
            queue_poll,
            Duration::from_micros(50),
            Duration::ZERO,
            Duration::from_secs(1),
        )?;
        let congestion = raw.congestion.as_ref().map(parse_congestion).transpose()?;
        let devices = device::devices(&raw.device, geometry)?;
        Ok(Self {
            buses,
            socket_paths,
            names,
            listen,
            peers,
            routers,
            geometry,
            deadline,
            lease,
            keepalive,
            gather,
            poll,
            queue_poll,
            congestion,
            allow_plaintext,
            log_level: log_level(raw.log_level.as_ref())?,
            tls,
            devices,
        })
    }

    /// The physical address bits with which both SeaBIOS and OVMF have room for the spaces. These take four times `space_size`,
    /// and OVMF gives 64-bit BARs an eighth of what can be addressed, SeaBIOS up to 46 bits no less.
    pub const fn guest_address_bits(&self) -> u32 {
        self.geometry.space_size().trailing_zeros().saturating_add(5)
    }

    /// The configuration as a TOML file that gives the same configuration again.
    pub fn to_toml(&self) -> String {
        let text = |value: &dyn ToString| Some(Text(value.to_string()));
        let time = |duration| Some(Text(units::format_duration(duration)));
        let raw = RawConfig {
            node_id: text(&self.buses.span().first()),
            socket_path: self.socket_paths.iter().map(|path| Text(path.display().to_string())).collect(),
            name: self.names.iter().map(|name| Text(name.to_string())).collect(),
            bus_bits: text(&self.buses.span().bits()),
            listen: self.listen.map(|address| Text(address.to_string())),
            peer: self
                .peers
                .iter()
                .map(|(node, address)| match address {
                    Some(address) => Text(format!("{node}={address}")),
                    None => Text(node.to_string()),
                })
                .collect(),
            router: self.routers.iter().map(|address| Text(address.to_string())).collect(),
            nodes: text(&self.geometry.nodes()),
            window_size: Some(Text(units::format_size(self.geometry.window_size()))),
            deadline: time(self.deadline),
            lease: time(self.lease),
            keepalive: time(self.keepalive),
            gather: time(self.gather),
            poll: time(self.poll),
            queue_poll: time(self.queue_poll),
            congestion: self.congestion.clone().map(Text),
            allow_plaintext: Some(self.allow_plaintext),
            log_level: Some(log_level_text(self.log_level)),
            tls: self.tls.as_ref().map(RawTls::from).unwrap_or_default(),
            device: self.devices.iter().map(RawDevice::from).collect(),
        };
        // Strings, booleans, lists and tables of strings always have a TOML form.
        toml::to_string(&raw).unwrap_or_default()
    }
}

fn parse_node(key: &'static str, text: &str) -> Result<NodeId, ConfigError> {
    let malformed =
        || ConfigError::Malformed { key, text: text.to_owned(), expected: "a node id from 0 to 255" };
    text.parse().map(NodeId).map_err(|_| malformed())
}

/// The name of a bus or a device.
fn parse_name(text: &str) -> Option<Name> {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    Name::new(text).filter(|_| !text.is_empty() && text.bytes().all(letter))
}

/// What that has to be.
const NAME_FORM: &str = "a name of 1 to 24 letters, digits, '-', '_' and '.'";

fn parse_address(key: &'static str, text: &str) -> Result<SocketAddr, ConfigError> {
    text.parse().map_err(|_| ConfigError::Malformed {
        key,
        text: text.to_owned(),
        expected: "an IP address and port such as 127.0.0.1:7471 or [::1]:7471 (names are not looked up)",
    })
}

fn listen_address(Text(text): &Text, any_address: bool) -> Result<SocketAddr, ConfigError> {
    let address = parse_address("listen", text)?;
    check_plaintext("listen", address, any_address)?;
    if address.port() == 0 { Err(ConfigError::NoPort(address)) } else { Ok(address) }
}

/// That nobody is to be called where this process itself listens.
fn not_own<'a>(
    key: &'static str,
    listen: Option<SocketAddr>,
    others: impl IntoIterator<Item = &'a SocketAddr>,
) -> Result<(), ConfigError> {
    match others.into_iter().find(|&&other| Some(other) == listen) {
        Some(&address) => Err(ConfigError::OwnAddress { key, address }),
        None => Ok(()),
    }
}

fn parse_congestion(text: &Text) -> Result<String, ConfigError> {
    let name = &text.0;
    let known_form = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if (1..=MAX_CONGESTION_NAME).contains(&name.len()) && name.bytes().all(known_form) {
        return Ok(name.clone());
    }
    Err(ConfigError::Malformed {
        key: "congestion",
        text: name.clone(),
        expected: "the name of a congestion control such as cubic",
    })
}

fn log_level(text: Option<&Text>) -> Result<LevelFilter, ConfigError> {
    let Some(Text(text)) = text else { return Ok(LevelFilter::Info) };
    text.parse().map_err(|_| ConfigError::Malformed {
        key: "log-level",
        text: text.clone(),
        expected: "one of off, error, warn, info, debug and trace",
    })
}

/// The level as it is written.
fn log_level_text(level: LevelFilter) -> Text {
    Text(level.as_str().to_ascii_lowercase())
}

fn check_plaintext(key: &'static str, address: SocketAddr, allowed: bool) -> Result<(), ConfigError> {
    if allowed || address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    Err(ConfigError::Plaintext { key, address })
}

fn geometry(raw: &RawConfig) -> Result<Geometry, ConfigError> {
    let nodes = match &raw.nodes {
        None => 16,
        Some(Text(text)) => text.parse().map_err(|_| ConfigError::Malformed {
            key: "nodes",
            text: text.clone(),
            expected: "a power of two from 2 to 256",
        })?,
    };
    let window_size = match &raw.window_size {
        None => 256 << 20,
        Some(Text(text)) => units::parse_size(text).ok_or_else(|| ConfigError::Malformed {
            key: "window-size",
            text: text.clone(),
            expected: "a size such as 256M or 1G",
        })?,
    };
    let geometry = Geometry::new(nodes, window_size).map_err(|error| ConfigError::Geometry {
        key: match error {
            GeometryError::Nodes => "nodes",
            GeometryError::Window => "window-size",
        },
        error,
    })?;
    if geometry.space_size() > MAX_SPACE_SIZE {
        return Err(ConfigError::SpaceTooLarge { nodes, window_size });
    }
    Ok(geometry)
}

fn peers(
    raw: &RawConfig,
    own: Span,
    geometry: Geometry,
    listening: bool,
    any_address: bool,
) -> Result<BTreeMap<NodeId, Option<SocketAddr>>, ConfigError> {
    let mut peers = BTreeMap::new();
    for Text(text) in &raw.peer {
        let (id, address) = match text.split_once('=') {
            Some((id, address)) => (id, Some(parse_address("peer", address)?)),
            None => (text.as_str(), None),
        };
        let node = parse_node("peer", id)?;
        if u16::from(node.0) >= geometry.nodes() {
            return Err(ConfigError::NodeBeyondSpace { key: "peer", node, nodes: geometry.nodes() });
        }
        if own == Span::single(node) {
            return Err(ConfigError::PeerIsSelf(node));
        }
        if own.contains(node) {
            return Err(ConfigError::PeerIsOwnBus { node, own });
        }
        match address {
            Some(address) => check_dialable("peer", address, any_address)?,
            None if !listening => return Err(ConfigError::PeerUnreachable(node)),
            None => {}
        }
        if peers.insert(node, address).is_some() {
            return Err(ConfigError::PeerTwice(node));
        }
    }
    Ok(peers)
}

/// Whether links may go beyond this host.
fn any_address(allow_plaintext: bool, tls: Option<&TlsFiles>) -> Result<bool, ConfigError> {
    if allow_plaintext && tls.is_some() {
        return Err(ConfigError::PlaintextAndTls);
    }
    Ok(allow_plaintext || tls.is_some())
}

fn routers(texts: &[Text], any_address: bool) -> Result<Vec<SocketAddr>, ConfigError> {
    let mut routers = Vec::new();
    for Text(text) in texts {
        let address = parse_address("router", text)?;
        check_dialable("router", address, any_address)?;
        if routers.contains(&address) {
            return Err(ConfigError::RouterTwice(address));
        }
        routers.push(address);
    }
    Ok(routers)
}

fn check_dialable(key: &'static str, address: SocketAddr, allow_plaintext: bool) -> Result<(), ConfigError> {
    if address.ip().is_unspecified() || address.port() == 0 {
        return Err(ConfigError::NotDialable { key, address });
    }
    check_plaintext(key, address, allow_plaintext)
}

fn duration(
    key: &'static str,
    text: Option<&Text>,
    default: Duration,
    min: Duration,
    max: Duration,
) -> Result<Duration, ConfigError> {
    let Some(Text(text)) = text else {
        return Ok(default);
    };
    let value = units::parse_duration(text).ok_or_else(|| ConfigError::Malformed {
        key,
        text: text.clone(),
        expected: "a time such as 500ms, 2s or 50us",
    })?;
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(ConfigError::OutOfRange { key, value, min, max })
    }
}

fn keepalive(text: Option<&Text>) -> Result<Duration, ConfigError> {
    let millis = Duration::from_millis;
    duration("keepalive", text, millis(2000), millis(100), millis(60_000))
}

fn poll(text: Option<&Text>) -> Result<Duration, ConfigError> {
    duration("poll", text, Duration::from_micros(50), Duration::ZERO, Duration::from_secs(1))
}

fn shorter(
    key: &'static str,
    value: Duration,
    whole: &'static str,
    limit: Duration,
) -> Result<(), ConfigError> {
    if value < limit { Ok(()) } else { Err(ConfigError::NotShorter { key, value, whole, limit }) }
}

#[cfg(test)]
mod tests;
