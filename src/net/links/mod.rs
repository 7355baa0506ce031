//! The set of links: makes connections, finds out whose they are, and moves packets.
//!
//! Invariant: a peer has at most one link, and `Up` and `Down` alternate for each node. Everything here is bounded:
//! connections of unknown origin in number, time and bytes, links by their buffers.

mod setup;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use thiserror::Error;

use super::credentials::Credentials;
use super::identity::{Identity, check_claim};
use super::link::{CHUNK, Connection};
use super::listener::{Listener, RateLimit};
use super::peer::Peer;
use super::socket;
use crate::adaptor::Instant;
use crate::adaptor::address::NodeId;
use crate::adaptor::mesh::framing::FrameError;
use crate::adaptor::mesh::packet::{HEADER_LEN, Packet};
use crate::adaptor::random::Random;
use crate::poller::{Poller, Report, Token};

/// Within this time a connection has to be made.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Within this time after a connection that we made was made, TLS has to be ready on it.
const HANDSHAKE_TIME: Duration = Duration::from_secs(2);
/// Within this time after it was made, the other side has to introduce itself; where it was accepted, the TLS handshake is within it.
const HELLO_TIME: Duration = Duration::from_secs(2);
/// Connections that have not introduced themselves yet; one more, and the oldest is closed.
const MAX_STRANGERS: usize = 64;
/// Connections accepted in one turn.
const ACCEPTS_A_TURN: usize = 16;
/// Chunks written to one link in one turn.
const CHUNKS_A_TURN: usize = 4;

/// What the links need to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This node.
    pub node: NodeId,
    /// Where to listen.
    pub listen: Option<SocketAddr>,
    /// The other nodes, and where to dial them.
    pub peers: BTreeMap<NodeId, Option<SocketAddr>>,
    /// TCP congestion control, where the user asked for one.
    pub congestion: Option<String>,
    /// For TLS on all links; without, they are plain TCP.
    pub credentials: Option<Credentials>,
    /// For the jitter of the back-off.
    pub seed: u64,
}

/// Why the links could not be set up.
#[derive(Debug, Error)]
pub enum StartError {
    /// The port can't be listened on.
    #[error("listen: {0}: {1}")]
    Listen(SocketAddr, io::Error),
    /// The congestion control is not there.
    #[error("congestion: {0} is not available on this host: {1}")]
    Congestion(String, io::Error),
}

/// What happened on the links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// There is a connection to the node.
    Up(NodeId),
    /// There is none any more.
    Down(NodeId),
    /// A packet arrived on the node's link.
    Packet(NodeId, Packet),
    /// A packet arrived that was not intact.
    Corrupt(NodeId),
}

/// What a connection is for.
#[derive(Debug)]
enum Role {
    /// We are making it.
    Dialing(NodeId),
    /// We have made it, and TLS is not ready on it.
    Securing(NodeId),
    /// It was accepted, and has not said whose it is.
    Stranger,
    /// It is kept aside, see [`super::peer::Verdict::Park`]; with the Hello that came on it.
    Parked(NodeId, Packet),
    /// It is the node's link.
    Link(Link),
}

#[derive(Debug)]
struct Link {
    node: NodeId,
    dialed: bool,
    /// When the first packet came.
    proven: Option<Instant>,
    /// Why it is over, once it is; what arrived before is still delivered.
    over: Option<String>,
}

#[derive(Debug)]
struct Entry {
    connection: Connection,
    role: Role,
    remote: SocketAddr,
    /// When to give up waiting for what the role waits for.
    deadline: Option<Instant>,
}

/// All links of a node. Everything that happens is taken out with [`Links::poll_event`].
#[derive(Debug)]
pub struct Links {
    poller: Rc<Poller>,
    node: NodeId,
    congestion: Option<String>,
    credentials: Option<Credentials>,
    listener: Option<Listener>,
    peers: BTreeMap<NodeId, Peer>,
    entries: BTreeMap<Token, Entry>,
    next_token: u64,
    events: VecDeque<LinkEvent>,
    /// Connections that may have a packet.
    readable: VecDeque<Token>,
    scratch: Box<[u8]>,
    rejects: RateLimit,
    random: Random,
}

impl Links {
    /// Listens, and begins to dial at the first [`Links::handle_timeout`]. Tokens from `first_token` on are the links' own.
    ///
    /// # Errors
    /// Where the port or the congestion control is not to be had.
    pub fn new(
        now: Instant,
        poller: &Rc<Poller>,
        settings: Settings,
        first_token: Token,
    ) -> Result<Self, StartError> {
        if let Some(name) = &settings.congestion {
            socket::check_congestion(name).map_err(|error| StartError::Congestion(name.clone(), error))?;
        }
        let listener = match settings.listen {
            None => None,
            Some(address) => Some(
                socket::listen(address)
                    .and_then(|socket| Listener::new(socket, poller, first_token))
                    .map_err(|error| StartError::Listen(address, error))?,
            ),
        };
        let peer = |(node, address)| {
            let waits = settings.listen.is_some() && settings.node > node;
            (node, Peer::new(now, node, address, waits))
        };
        Ok(Self {
            poller: Rc::clone(poller),
            node: settings.node,
            congestion: settings.congestion,
            credentials: settings.credentials,
            listener,
            peers: settings.peers.into_iter().map(peer).collect(),
            entries: BTreeMap::new(),
            next_token: first_token.0.saturating_add(1),
            events: VecDeque::new(),
            readable: VecDeque::new(),
            scratch: vec![0; CHUNK].into_boxed_slice(),
            rejects: RateLimit::default(),
            random: Random::new(settings.seed),
        })
    }

    /// Does what a report makes possible. A report about something that is closed by now is ignored.
    pub fn handle_report(&mut self, now: Instant, report: Report) {
        if self.listener.as_ref().is_some_and(|listener| listener.token() == report.token) {
            self.accept(now);
            return;
        }
        let Some(entry) = self.entries.get_mut(&report.token) else {
            return;
        };
        match &mut entry.role {
            Role::Dialing(node) => {
                let node = *node;
                if report.writable || report.closed {
                    self.finish_dial(now, report.token, node);
                }
            }
            Role::Securing(node) => {
                let node = *node;
                self.secure(now, report.token, node);
            }
            Role::Stranger => match receive_hello(&mut entry.connection, &self.poller, &mut self.scratch) {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.close(now, report.token, &error.to_string());
                }
                // A Hello whose sender has gone again is no reason to give up a link.
                Ok(true) if !report.closed => self.readable.push_back(report.token),
                _ => {
                    log::debug!("{} closed its connection before it introduced itself", entry.remote);
                    self.entries.remove(&report.token);
                }
            },
            Role::Parked(..) => {
                if report.closed {
                    self.close(now, report.token, "closed by the other side");
                }
            }
            Role::Link(link) => {
                if report.writable {
                    entry.connection.unblock();
                }
                if report.readable && link.over.is_none() {
                    match entry.connection.receive(&self.poller, &mut self.scratch, CHUNK) {
                        Ok(Some(0)) => link.over = Some("closed by the other side".to_owned()),
                        Err(error) => link.over = Some(error.to_string()),
                        Ok(_) => {}
                    }
                    self.readable.push_back(report.token);
                }
            }
        }
    }

    /// The earliest time at which [`Links::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let dials = self.peers.values().filter_map(|peer| peer.next_dial);
        let deadlines = self.entries.values().filter_map(|entry| entry.deadline);
        let pause = self.listener.as_ref().and_then(Listener::poll_timeout);
        dials.chain(deadlines).chain(pause).min()
    }

    /// Gives up what took too long, and dials whom it is time to dial.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some(listener) = &mut self.listener {
            listener.handle_timeout(now, &self.poller);
        }
        let due = |time: Option<Instant>| time.is_some_and(|time| time <= now);
        let late: Vec<_> =
            self.entries.iter().filter(|(_, entry)| due(entry.deadline)).map(|(&token, _)| token).collect();
        for token in late {
            let why = match self.entries.get(&token).map(|entry| &entry.role) {
                Some(Role::Dialing(_)) => "no answer to the attempt to connect",
                _ if !self.entries.get(&token).is_some_and(|entry| entry.connection.is_ready()) => {
                    "the TLS handshake was not done in time"
                }
                _ => "the other side did not introduce itself in time",
            };
            self.close(now, token, why);
        }
        let dials: Vec<_> =
            self.peers.values().filter(|peer| due(peer.next_dial)).map(|peer| peer.node).collect();
        for node in dials {
            self.dial(now, node);
        }
    }

    /// The next thing that happened. Takes the packets that arrived apart one by one, so drain it in every turn.
    pub fn poll_event(&mut self, now: Instant) -> Option<LinkEvent> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let token = *self.readable.front()?;
            if let Some(event) = self.next_packet(now, token) {
                return Some(event);
            }
            self.readable.pop_front();
        }
    }

    /// Sends what `next` gives for each node whose link can take more. Returns whether anything was sent.
    pub fn transmit(&mut self, mut next: impl FnMut(NodeId) -> Option<Packet>) -> bool {
        let mut progress = false;
        for peer in self.peers.values() {
            let Some(token) = peer.link else { continue };
            let Some(Entry { connection, role: Role::Link(link), .. }) = self.entries.get_mut(&token) else {
                continue;
            };
            if link.over.is_some() {
                continue;
            }
            match connection.send(&self.poller, CHUNKS_A_TURN, || next(peer.node)) {
                Ok(sent) => progress |= sent,
                Err(error) => {
                    link.over = Some(error.to_string());
                    self.readable.push_back(token);
                    progress = true;
                }
            }
        }
        progress
    }

    /// Closes the link to a node that gives no sign of life.
    pub fn cut(&mut self, now: Instant, node: NodeId) {
        if let Some(token) = self.peers.get(&node).and_then(|peer| peer.link) {
            self.close(now, token, "no sign of life on the link");
        }
    }

    /// What the next packet on the connection brings; `None` where there is no whole packet, or it only changed the connection's role.
    fn next_packet(&mut self, now: Instant, token: Token) -> Option<LinkEvent> {
        let entry = self.entries.get_mut(&token)?;
        let link = match &mut entry.role {
            Role::Link(link) => link,
            Role::Stranger => {
                match entry.connection.next_packet() {
                    None if entry.connection.held() < HEADER_LEN => {}
                    None => self.close(now, token, "it does not begin with a Hello"),
                    Some(Ok(packet)) => self.introduce(now, token, packet),
                    Some(Err(FrameError::Corrupt)) => {
                        self.close(now, token, "its first packet is not intact")
                    }
                    Some(Err(FrameError::Broken(error))) => self.close(now, token, &error.to_string()),
                }
                return None;
            }
            Role::Dialing(_) | Role::Securing(_) | Role::Parked(..) => return None,
        };
        let node = link.node;
        let why = match entry.connection.next_packet() {
            Some(Ok(packet)) if link.proven.is_some() => return Some(LinkEvent::Packet(node, packet)),
            Some(Ok(packet))
                if packet.is_hello() && packet.source == node && packet.destination == self.node =>
            {
                link.proven = Some(now);
                entry.deadline = None;
                self.settle(node);
                return Some(LinkEvent::Packet(node, packet));
            }
            Some(Ok(packet)) => format!("{} is node {}", entry.remote, packet.source),
            Some(Err(FrameError::Corrupt)) if link.proven.is_some() => return Some(LinkEvent::Corrupt(node)),
            Some(Err(FrameError::Corrupt)) => "its first packet is not intact".to_owned(),
            Some(Err(FrameError::Broken(error))) => error.to_string(),
            None => link.over.take()?,
        };
        self.close(now, token, &why);
        None
    }
}

#[cfg(test)]
impl Links {
    /// The two addresses of each connection.
    pub fn ends(&self) -> Vec<(SocketAddr, SocketAddr)> {
        let ends = |entry: &Entry| {
            let stream = entry.connection.stream();
            Some((stream.local_addr().ok()?, stream.peer_addr().ok()?))
        };
        self.entries.values().filter_map(ends).collect()
    }

    /// Dials every peer that is to be dialed some time.
    pub fn dial_now(&mut self, now: Instant) {
        for peer in self.peers.values_mut().filter(|peer| peer.next_dial.is_some()) {
            peer.next_dial = Some(now);
        }
    }
}

/// Reads as much of a Hello as is there, and without TLS nothing behind it. Returns whether the connection is still of use.
fn receive_hello(connection: &mut Connection, poller: &Poller, scratch: &mut [u8]) -> io::Result<bool> {
    let room = HEADER_LEN.saturating_sub(connection.held());
    Ok(matches!(connection.receive(poller, scratch, room)?, None | Some(1..)))
}
