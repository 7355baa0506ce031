//! How connections begin and end: accepting, dialing, and what follows when one is closed.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpStream};

use super::super::link::{CHUNK, Connection};
use super::super::peer::PeerKey;
use super::super::socket;
use super::super::transport::Transport;
use super::{
    ACCEPTS_A_TURN, CONNECT_TIME, Entry, HANDSHAKE_TIME, JOIN_TIME, Link, LinkEvent, Links, MAX_STRANGERS,
    Role,
};
use crate::adaptor::Instant;
use crate::adaptor::mesh::neighbour::{LinkId, Refusal};
use crate::logging::NODES;
use crate::poller::{Interest, Token};

impl Links {
    pub(super) fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS_A_TURN {
            let Some(listener) = &mut self.listener else { return };
            let Some((stream, remote)) = listener.accept(now, &self.poller, self.congestion.as_deref())
            else {
                return;
            };
            self.adopt(now, stream, remote);
        }
    }

    /// Takes in a connection that was accepted from `remote`, here or elsewhere: the other side has to introduce itself.
    pub fn adopt(&mut self, now: Instant, stream: TcpStream, remote: SocketAddr) {
        if let Some(stranger) = self.stranger_too_many(remote) {
            self.close(now, stranger, "too many connections that do not introduce themselves");
        }
        let token = self.new_token();
        let connection = Transport::accepted(stream, self.credentials.as_ref())
            .and_then(|transport| Connection::new(transport, &self.poller, token, Interest::READ));
        match connection {
            Ok(connection) => {
                let deadline = Some(now.after(JOIN_TIME));
                self.entries.insert(token, Entry { connection, role: Role::Stranger, remote, deadline });
            }
            Err(error) => log_refusal(remote, &error.to_string()),
        }
    }

    /// The connection that has to go if one more from `remote` is not to be one too many: the oldest from the network that has most, so that
    /// who opens many pushes out its own.
    fn stranger_too_many(&self, remote: SocketAddr) -> Option<Token> {
        let mut by_network: BTreeMap<_, (usize, Token)> = BTreeMap::new();
        let mut all = 0usize;
        for (&token, entry) in &self.entries {
            if matches!(entry.role, Role::Stranger | Role::Leaving) {
                let (count, _) = by_network.entry(network(entry.remote.ip())).or_insert((0, token));
                *count = count.saturating_add(1);
                all = all.saturating_add(1);
            }
        }
        if all < MAX_STRANGERS {
            return None;
        }
        if let Some((count, _)) = by_network.get_mut(&network(remote.ip())) {
            *count = count.saturating_add(1);
        }
        let most = by_network.into_values().max_by_key(|&(count, oldest)| (count, Reverse(oldest)));
        most.map(|(_, oldest)| oldest)
    }

    pub(super) fn dial(&mut self, now: Instant, key: PeerKey) {
        let token = self.new_token();
        let Some(peer) = self.peers.get_mut(&key) else { return };
        peer.next_dial = None;
        let Some(address) = peer.address else { return };
        let connection = socket::dial(address, self.congestion.as_deref())
            .and_then(|stream| Transport::dialed(stream, self.credentials.as_ref(), key.identity()))
            .and_then(|transport| Connection::new(transport, &self.poller, token, Interest::WRITE));
        match connection {
            Ok(connection) => {
                peer.attempt = Some(token);
                let (role, deadline) = (Role::Dialing(key), Some(now.after(CONNECT_TIME)));
                self.entries.insert(token, Entry { connection, role, remote: address, deadline });
            }
            Err(error) => {
                let problem = format!("can't connect to {address}: {error}; trying again");
                peer.report(log::Level::Info, &problem);
                peer.schedule_dial(now, Duration::ZERO, None, &mut self.random);
            }
        }
    }

    pub(super) fn finish_dial(&mut self, now: Instant, token: Token, key: PeerKey) {
        let Some(entry) = self.entries.get_mut(&token) else { return };
        let connected = socket::finish_dial(entry.connection.stream())
            .and_then(|()| entry.connection.set_interest(&self.poller, Interest::READ));
        if let Err(error) = connected {
            self.close(now, token, &error.to_string());
            return;
        }
        entry.role = Role::Securing(key);
        entry.deadline = Some(now.after(HANDSHAKE_TIME));
        self.secure(now, token, key);
    }

    /// Goes on with the TLS handshake on a connection that we made; once it is done, or without TLS, we introduce ourselves.
    pub(super) fn secure(&mut self, now: Instant, token: Token, key: PeerKey) {
        let (Some(entry), Some(peer)) = (self.entries.get_mut(&token), self.peers.get_mut(&key)) else {
            return;
        };
        let connection = &mut entry.connection;
        if !connection.is_ready() {
            match connection.receive(&self.poller, &mut self.scratch, CHUNK) {
                Err(error) => return self.close(now, token, &error.to_string()),
                Ok(_) if !connection.is_ready() => return,
                Ok(_) => {}
            }
        }
        entry.deadline = Some(now.after(JOIN_TIME));
        entry.role = Role::Link(Link::new(now, Some(key), true));
        peer.attempt = None;
        peer.link = Some(token);
        // TLS may have brought more than the handshake.
        self.readable.push_back(token);
    }

    /// Closes a connection and does what follows from that.
    pub(super) fn close(&mut self, now: Instant, token: Token, why: &str) {
        self.close_for(now, token, Some(why), None);
    }

    /// As [`Self::close`]; where the other side refused, that was said already.
    pub(super) fn close_for(
        &mut self,
        now: Instant,
        token: Token,
        why: Option<&str>,
        refusal: Option<Refusal>,
    ) {
        if let Some(Entry { role, remote, .. }) = self.entries.remove(&token) {
            self.end_role(now, token, role, remote, why, refusal);
        }
    }

    /// A connection that had this role has it no more.
    pub(super) fn end_role(
        &mut self,
        now: Instant,
        token: Token,
        role: Role,
        remote: SocketAddr,
        why: Option<&str>,
        refusal: Option<Refusal>,
    ) {
        match role {
            Role::Leaving => {}
            Role::Stranger => {
                if let Some(why) = why {
                    log_refusal(remote, why);
                }
            }
            Role::Parked(key, _) => {
                if let Some(peer) = self.peers.get_mut(&key)
                    && peer.parked == Some(token)
                {
                    peer.parked = None;
                }
            }
            Role::Dialing(key) | Role::Securing(key) => {
                if let Some(peer) = self.peers.get_mut(&key) {
                    peer.attempt = None;
                    if let Some(why) = why {
                        let problem = format!("can't connect to {remote}: {why}; trying again");
                        peer.report(log::Level::Info, &problem);
                    }
                    peer.schedule_dial(now, Duration::ZERO, refusal, &mut self.random);
                }
            }
            Role::Link(link) => {
                if link.joined.is_some() {
                    self.events.push_back(LinkEvent::Down(LinkId(token.0)));
                }
                let why = why.map(|why| format!("connection with {remote}: {why}"));
                self.end_link(now, &link, why.as_deref(), refusal);
            }
        }
    }

    /// The peer's link is closed: uses the connection that was kept for this, or dials again.
    fn end_link(&mut self, now: Instant, link: &Link, why: Option<&str>, refusal: Option<Refusal>) {
        let Some(key) = link.key else {
            if let Some(why) = why {
                log::info!(target: NODES, "router: {why}");
            }
            return;
        };
        let Some(peer) = self.peers.get_mut(&key) else { return };
        if let Some(why) = why {
            peer.report(log::Level::Info, why);
        }
        peer.link = None;
        if let Some(parked) = peer.parked.take()
            && let Some(Role::Parked(_, claim)) = self.entries.get(&parked).map(|entry| &entry.role)
        {
            let claim = *claim;
            self.place(now, parked, claim);
        }
        let Some(peer) = self.peers.get_mut(&key) else { return };
        // What was kept aside may be of this peer, and of use.
        if peer.link.is_some() {
            return;
        }
        let lived = link.joined.map_or(Duration::ZERO, |(_, since)| now.since(since));
        peer.schedule_dial(now, lived, refusal, &mut self.random);
        self.release_twins(now, key);
    }

    fn new_token(&mut self) -> Token {
        let token = Token(self.next_token);
        self.next_token = self.next_token.saturating_add(1);
        token
    }
}

pub(super) fn log_refusal(remote: SocketAddr, why: &str) {
    log::warn!("connection from {} refused: {why}", remote.ip());
}

/// Whose address it is, as far as that can be told: of IPv6 everyone has as many as there are in a /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}
