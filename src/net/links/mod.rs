//! The set of links: makes connections, finds out whose they are, and moves packets.
//!
//! Invariant: a node has at most one link, and `Up` and `Down` alternate for each link, once. Everything here is bounded:
//! connections of unknown origin in number, time and bytes, links by their buffers.

mod joining;
mod liveness;
mod setup;
mod twins;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use thiserror::Error;

use super::admission::{Claim, Company};
use super::credentials::Credentials;
use super::link::{CHUNK, Connection, MOST_AT_ONCE};
use super::listener::Listener;
use super::outgoing::Outgoing;
use super::peer::{Peer, PeerKey};
use super::socket;
use crate::adaptor::Instant;
use crate::adaptor::mesh::framing::{Frame, FrameError};
use crate::adaptor::mesh::neighbour::{End, Identity, LinkId, Neighbour, Refusal, Role as EndRole};
use crate::adaptor::mesh::packet::{Body, HEADER_LEN, Packet};
use crate::adaptor::mesh::versions::Versions;
use crate::adaptor::random::Random;
use crate::poller::{Poller, Report, Token};

/// Within this time a connection has to be made.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Within this time after a connection that we made was made, TLS has to be ready on it.
const HANDSHAKE_TIME: Duration = Duration::from_secs(2);
/// Within this time after it was made, the other side has to introduce itself; where it was accepted, the TLS handshake is within it.
const JOIN_TIME: Duration = Duration::from_secs(2);
/// Within this time who was refused has to close its end.
const LEAVE_TIME: Duration = Duration::from_millis(500);
/// Connections that have not introduced themselves yet or were refused; one more, and the oldest is closed. As many as there are nodes.
const MAX_STRANGERS: usize = 256;
/// Routers that dial this one.
const MAX_ROUTERS: usize = 256;
/// Connections accepted in one turn.
const ACCEPTS_A_TURN: usize = 16;
/// Packets of one link before the others have their turn.
const RUN: u32 = 64;

/// What the links need to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who this end is.
    pub own: Neighbour,
    /// Where to listen.
    pub listen: Option<SocketAddr>,
    /// Whom to let in, and which nodes to dial.
    pub company: Company,
    /// The routers to dial.
    pub routers: Vec<SocketAddr>,
    /// A link on which nothing comes for this time is cut.
    pub keepalive: Duration,
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
    #[error(
        "congestion: {0} is not available on this host (see net.ipv4.tcp_available_congestion_control): {1}"
    )]
    Congestion(String, io::Error),
}

/// What happened on the links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// There is a link with this neighbour.
    Up(LinkId, Neighbour),
    /// There is none any more.
    Down(LinkId),
    /// A packet arrived that is not the links' own.
    Packet(LinkId, Frame),
    /// A packet arrived that was not intact.
    Corrupt(LinkId),
    /// Somebody says that another adaptor has one of this one's node ids; or nobody does any more.
    Duplicate(bool),
}

/// What a connection is for.
#[derive(Debug)]
enum Role {
    /// We are making it.
    Dialing(PeerKey),
    /// We have made it, and TLS is not ready on it.
    Securing(PeerKey),
    /// It was accepted, and has not said whose it is.
    Stranger,
    /// It is kept aside, see [`Verdict::Park`](super::peer::Verdict::Park).
    Parked(PeerKey, Claim),
    /// It is a link, or will be when the other side has joined.
    Link(Link),
    /// It was refused, and is only to be closed by the other side.
    Leaving,
}

#[derive(Debug)]
struct Link {
    /// Whose; a router that dialed us is no peer, since we do nothing for its coming back.
    key: Option<PeerKey>,
    dialed: bool,
    /// Who is there, as soon as it has joined, and since when.
    joined: Option<(Neighbour, Instant)>,
    /// The Join that is to be sent, and whether it asks for an answer.
    join_to_send: Option<bool>,
    /// When something came last.
    heard: Instant,
    /// When to look whether something came.
    look_at: Instant,
    /// How often we asked for a sign of life since.
    asked: u32,
    /// Why it is over, once it is; what arrived before is still delivered.
    over: Option<String>,
}

impl Link {
    fn new(now: Instant, key: Option<PeerKey>, dialed: bool) -> Self {
        Self {
            key,
            dialed,
            joined: None,
            join_to_send: Some(dialed),
            heard: now,
            look_at: now,
            asked: 0,
            over: None,
        }
    }

    fn want_join(&mut self, asks: bool) {
        self.join_to_send = Some(asks || self.join_to_send == Some(true));
    }
}

#[derive(Debug)]
struct Entry {
    connection: Connection,
    role: Role,
    remote: SocketAddr,
    /// When to give up waiting for what the role waits for.
    deadline: Option<Instant>,
}

/// All links of a node or router. Everything that happens is taken out with [`Links::poll_event`].
#[derive(Debug)]
pub struct Links {
    poller: Rc<Poller>,
    own: Neighbour,
    company: Company,
    keepalive: Duration,
    congestion: Option<String>,
    credentials: Option<Credentials>,
    listener: Option<Listener>,
    peers: BTreeMap<PeerKey, Peer>,
    entries: BTreeMap<Token, Entry>,
    next_token: u64,
    events: VecDeque<LinkEvent>,
    /// Connections that may have a packet.
    readable: VecDeque<Token>,
    /// Packets in a row of the first of them.
    run: u32,
    /// Whether the last [`LinkEvent::Duplicate`] said so.
    is_duplicate: bool,
    scratch: Box<[u8]>,
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
        let Settings { own, listen, company, routers, keepalive, congestion, credentials, seed } = settings;
        if let Some(name) = &congestion {
            socket::check_congestion(name).map_err(|error| StartError::Congestion(name.clone(), error))?;
        }
        let listener = match listen {
            None => None,
            Some(address) => Some(
                socket::listen(address)
                    .and_then(|socket| Listener::new(socket, poller, first_token))
                    .map_err(|error| StartError::Listen(address, error))?,
            ),
        };
        let mut peers = BTreeMap::new();
        let mut add = |key: PeerKey, address| {
            let waits = listen.is_some() && own.identity() > key.identity();
            peers.insert(key, Peer::new(now, key, address, waits));
        };
        if let Company::Nodes(nodes) = &company {
            for (&node, &address) in nodes {
                add(PeerKey::Node(node), address);
            }
        }
        for address in routers {
            add(PeerKey::Router(address), Some(address));
        }
        Ok(Self {
            poller: Rc::clone(poller),
            own,
            company,
            keepalive,
            congestion,
            credentials,
            listener,
            peers,
            entries: BTreeMap::new(),
            next_token: first_token.0.saturating_add(1),
            events: VecDeque::new(),
            readable: VecDeque::new(),
            run: 0,
            is_duplicate: false,
            scratch: vec![0; CHUNK].into_boxed_slice(),
            random: Random::new(seed),
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
            Role::Dialing(key) => {
                let key = *key;
                if report.writable || report.closed {
                    self.finish_dial(now, report.token, key);
                }
            }
            Role::Securing(key) => {
                let key = *key;
                self.secure(now, report.token, key);
            }
            Role::Stranger => match receive_join(&mut entry.connection, &self.poller, &mut self.scratch) {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.close(now, report.token, &error.to_string());
                }
                // A Join whose sender has gone again is no reason to give up a link.
                Ok(true) if !report.closed => self.readable.push_back(report.token),
                _ => {
                    log::debug!("{} closed its connection before it introduced itself", entry.remote);
                    self.entries.remove(&report.token);
                }
            },
            Role::Parked(..) | Role::Leaving => {
                if report.closed {
                    self.close(now, report.token, "closed by the other side");
                }
            }
            Role::Link(_) => {
                if report.writable {
                    entry.connection.unblock();
                }
                // What came before has to be taken first; what is in the socket is reported again.
                if report.readable && !self.readable.contains(&report.token) {
                    self.receive(now, report.token);
                }
            }
        }
    }

    /// Reads what has arrived on a link. Returns whether there was anything.
    fn receive(&mut self, now: Instant, token: Token) -> bool {
        let Some(Entry { connection, role: Role::Link(link), .. }) = self.entries.get_mut(&token) else {
            return false;
        };
        if link.over.is_some() {
            return false;
        }
        let received = connection.receive(&self.poller, &mut self.scratch, MOST_AT_ONCE);
        match received {
            Ok(Some(0)) => link.over = Some("closed by the other side".to_owned()),
            Err(ref error) => link.over = Some(error.to_string()),
            Ok(Some(_)) => {
                link.heard = now;
                link.asked = 0;
            }
            Ok(None) => return false,
        }
        self.readable.push_back(token);
        true
    }

    /// The earliest time at which [`Links::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let dials = self.peers.values().filter_map(|peer| peer.next_dial);
        let deadlines = self.entries.values().filter_map(Entry::poll_timeout);
        let pause = self.listener.as_ref().and_then(Listener::poll_timeout);
        let refusals = self.peers.values().filter_map(|peer| peer.calls_us_duplicate);
        dials.chain(deadlines).chain(pause).chain(refusals).min()
    }

    /// Gives up what took too long, and dials whom it is time to dial.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some(listener) = &mut self.listener {
            listener.handle_timeout(now, &self.poller);
        }
        let late: Vec<_> =
            self.entries.iter().filter(|(_, e)| is_due(now, e.poll_timeout())).map(|(&t, _)| t).collect();
        for token in late {
            self.handle_late(now, token);
        }
        self.forget_refusals(now);
        let dials: Vec<_> =
            self.peers.values().filter(|peer| is_due(now, peer.next_dial)).map(|peer| peer.key).collect();
        for key in dials {
            self.dial(now, key);
        }
    }

    /// How many connections there are.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// The next thing that happened. Takes the packets that arrived apart one by one, of each link some in turn. Nothing more of a link is
    /// received before all of them were taken.
    pub fn poll_event(&mut self, now: Instant) -> Option<LinkEvent> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let token = *self.readable.front()?;
            if !self.take_packet(now, token) {
                self.readable.pop_front();
                self.run = 0;
            } else if self.run >= RUN {
                self.readable.rotate_left(1);
                self.run = 0;
            } else {
                self.run = self.run.saturating_add(1);
            }
        }
    }

    /// Sends what `next` appends for each link that can take more, until it says that there is no more for the link. Returns
    /// whether anything was sent.
    pub fn transmit(&mut self, mut next: impl FnMut(LinkId, &mut Outgoing) -> bool) -> bool {
        let mut progress = false;
        for (&token, entry) in &mut self.entries {
            let Entry { connection, role: Role::Link(link), .. } = entry else { continue };
            if link.over.is_some() {
                continue;
            }
            let (own, key) = (self.own, link.key);
            let Link { joined, join_to_send, over, .. } = link;
            let to = joined.map(|(neighbour, _)| neighbour.identity()).or(key.map(PeerKey::identity));
            let sent = connection.send(&self.poller, |out| {
                if let Some(wants_reply) = join_to_send.take() {
                    join(own, to, wants_reply).emit(out);
                    return true;
                }
                joined.is_some() && next(LinkId(token.0), out)
            });
            match sent {
                Ok(sent) => progress |= sent,
                Err(error) => {
                    *over = Some(error.to_string());
                    self.readable.push_back(token);
                    progress = true;
                }
            }
        }
        progress
    }

    /// Closes a link that is of no use.
    pub fn cut(&mut self, now: Instant, link: LinkId, why: &str) {
        self.close(now, Token(link.0), why);
    }

    /// Tells the other end of a link why it is not let in after all, and closes it.
    pub fn refuse(&mut self, now: Instant, link: LinkId, refusal: Refusal, why: &str) {
        self.dismiss(now, Token(link.0), refusal, why);
    }

    /// Takes one packet of the connection and does what it brings. Returns whether there may be another.
    fn take_packet(&mut self, now: Instant, token: Token) -> bool {
        let Some(entry) = self.entries.get_mut(&token) else { return false };
        let link = match &mut entry.role {
            Role::Link(link) => link,
            Role::Stranger => {
                match entry.connection.next_frame() {
                    None if entry.connection.held() < HEADER_LEN => {}
                    None => self.close(now, token, "it does not begin with a Join"),
                    Some(Ok(frame)) => self.introduce(now, token, &frame.packet),
                    Some(Err(FrameError::Corrupt)) => {
                        self.close(now, token, "its first packet is not intact");
                    }
                    Some(Err(FrameError::Broken(error))) => self.close(now, token, &error.to_string()),
                }
                return false;
            }
            Role::Dialing(_) | Role::Securing(_) | Role::Parked(..) | Role::Leaving => return false,
        };
        let id = LinkId(token.0);
        match entry.connection.next_frame() {
            Some(Ok(frame)) => match (&frame.packet.body, link.joined) {
                (Body::Join { .. }, _) => self.handle_join(now, token, &frame.packet),
                (&Body::Refuse { reason }, _) => {
                    self.handle_refusal(now, token, frame.packet.source, reason);
                }
                (_, None) => self.close(now, token, "it does not begin with a Join"),
                (body, Some((neighbour, _))) => {
                    if matches!(body, Body::Routes(_)) && neighbour.end == End::Router {
                        // Which it sends only to whom it has let in.
                        self.note_admission(link_key(&self.entries, token));
                    }
                    self.events.push_back(LinkEvent::Packet(id, frame));
                }
            },
            Some(Err(FrameError::Corrupt)) if link.joined.is_some() => {
                self.events.push_back(LinkEvent::Corrupt(id));
            }
            Some(Err(FrameError::Corrupt)) => self.close(now, token, "its first packet is not intact"),
            Some(Err(FrameError::Broken(error))) => self.close(now, token, &error.to_string()),
            None => {
                if let Some(why) = link.over.take() {
                    self.close(now, token, &why);
                }
                return false;
            }
        }
        true
    }
}

impl Entry {
    /// When something has to be done about it, if nothing comes.
    fn poll_timeout(&self) -> Option<Instant> {
        let look_at = match &self.role {
            Role::Link(link) => link.joined.map(|_| link.look_at),
            _ => None,
        };
        self.deadline.into_iter().chain(look_at).min()
    }
}

fn link_key(entries: &BTreeMap<Token, Entry>, token: Token) -> Option<PeerKey> {
    match &entries.get(&token)?.role {
        Role::Link(link) => link.key,
        _ => None,
    }
}

fn is_due(now: Instant, time: Option<Instant>) -> bool {
    time.is_some_and(|time| time <= now)
}

/// What `own` says to `to` about itself.
fn join(own: Neighbour, to: Option<Identity>, wants_reply: bool) -> Packet {
    let to = to.unwrap_or(Identity::Router).id();
    let body = Body::Join { role: EndRole::of(own.end), versions: Versions::OWN, wants_reply };
    Packet::between(own.identity(), to, own.incarnation, body)
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

/// Reads as much of a Join as is there, and without TLS nothing behind it. Returns whether the connection is still of use.
fn receive_join(connection: &mut Connection, poller: &Poller, scratch: &mut [u8]) -> io::Result<bool> {
    let room = HEADER_LEN.saturating_sub(connection.held());
    Ok(matches!(connection.receive(poller, scratch, room)?, None | Some(1..)))
}
