//! How connections begin and end: accepting, dialing, introductions, and what follows when one is closed.

use core::time::Duration;

use super::super::link::{CHUNK, Connection};
use super::super::peer::{Existing, Verdict, judge};
use super::super::socket;
use super::super::transport::Transport;
use super::{
    ACCEPTS_A_TURN, CONNECT_TIME, Entry, HANDSHAKE_TIME, HELLO_TIME, Identity, Link, LinkEvent, Links,
    MAX_STRANGERS, Role, check_claim,
};
use crate::adaptor::Instant;
use crate::adaptor::address::NodeId;
use crate::adaptor::mesh::packet::Packet;
use crate::poller::{Interest, Token};

impl Links {
    pub(super) fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS_A_TURN {
            let Some(listener) = &mut self.listener else { return };
            let Some((stream, remote)) = listener.accept(now, &self.poller, self.congestion.as_deref())
            else {
                return;
            };
            let mut strangers = self
                .entries
                .iter()
                .filter(|(_, entry)| matches!(entry.role, Role::Stranger))
                .map(|(&token, _)| token);
            let oldest = strangers.next();
            if let Some(oldest) = oldest
                && strangers.count().saturating_add(1) >= MAX_STRANGERS
            {
                self.close(now, oldest, "too many connections that do not introduce themselves");
            }
            let token = self.new_token();
            let connection = Transport::accepted(stream, self.credentials.as_ref())
                .and_then(|transport| Connection::new(transport, &self.poller, token, Interest::READ));
            match connection {
                Ok(connection) => {
                    let deadline = Some(now.after(HELLO_TIME));
                    self.entries.insert(token, Entry { connection, role: Role::Stranger, remote, deadline });
                }
                Err(error) => log::warn!("connection from {remote} given up: {error}"),
            }
        }
    }

    pub(super) fn dial(&mut self, now: Instant, node: NodeId) {
        let token = self.new_token();
        let Some(peer) = self.peers.get_mut(&node) else { return };
        peer.next_dial = None;
        let Some(address) = peer.address else { return };
        let connection = socket::dial(address, self.congestion.as_deref())
            .and_then(|stream| Transport::dialed(stream, self.credentials.as_ref(), Identity::Node(node)))
            .and_then(|transport| Connection::new(transport, &self.poller, token, Interest::WRITE));
        match connection {
            Ok(connection) => {
                peer.attempt = Some(token);
                let (role, deadline) = (Role::Dialing(node), Some(now.after(CONNECT_TIME)));
                self.entries.insert(token, Entry { connection, role, remote: address, deadline });
            }
            Err(error) => {
                peer.report(&format!("can't connect to {address}: {error}; trying again"));
                peer.schedule_dial(now, Duration::ZERO, &mut self.random);
            }
        }
    }

    pub(super) fn finish_dial(&mut self, now: Instant, token: Token, node: NodeId) {
        let Some(entry) = self.entries.get_mut(&token) else { return };
        let connected = socket::finish_dial(entry.connection.stream())
            .and_then(|()| entry.connection.set_interest(&self.poller, Interest::READ));
        if let Err(error) = connected {
            self.close(now, token, &error.to_string());
            return;
        }
        entry.role = Role::Securing(node);
        entry.deadline = Some(now.after(HANDSHAKE_TIME));
        self.secure(now, token, node);
    }

    /// Goes on with the TLS handshake on a connection that we made; once it is done, or without TLS, the connection is the node's link.
    pub(super) fn secure(&mut self, now: Instant, token: Token, node: NodeId) {
        let (Some(entry), Some(peer)) = (self.entries.get_mut(&token), self.peers.get_mut(&node)) else {
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
        if let Err(error) = check_claim(connection.identity(), Identity::Node(node)) {
            return self.close(now, token, &error.to_string());
        }
        entry.deadline = Some(now.after(HELLO_TIME));
        entry.role = Role::Link(Link { node, dialed: true, proven: None, over: None });
        peer.attempt = None;
        peer.link = Some(token);
        self.events.push_back(LinkEvent::Up(node));
        // TLS may have brought more than the handshake.
        self.readable.push_back(token);
    }

    /// A stranger has said who it is.
    pub(super) fn introduce(&mut self, now: Instant, token: Token, packet: Packet) {
        let node = packet.source;
        let Some(peer) = self.peers.get_mut(&node).filter(|_| packet.is_hello()) else {
            let why = format!("node {node} is not among the peers, or did not begin with a Hello");
            return self.close(now, token, &why);
        };
        if packet.destination != self.node {
            let why =
                format!("node {node} looks for node {}, this is node {}", packet.destination, self.node);
            return self.close(now, token, &why);
        }
        let proven = self.entries.get(&token).and_then(|entry| entry.connection.identity());
        if let Err(error) = check_claim(proven, Identity::Node(node)) {
            return self.close(now, token, &error.to_string());
        }
        let existing = peer.link.and_then(|existing| match &self.entries.get(&existing)?.role {
            Role::Link(link) => {
                Some(Existing { dialed: link.dialed, proven: link.proven.is_some(), older: existing < token })
            }
            _ => None,
        });
        let verdict = judge(self.node, node, existing);
        log::debug!("node {node}: introduced itself on a connection it made: {verdict:?} ({existing:?})");
        match verdict {
            Verdict::Refuse => drop(self.entries.remove(&token)),
            Verdict::Park => {
                let replaced = peer.parked.replace(token);
                if let Some(entry) = self.entries.get_mut(&token) {
                    entry.deadline = None;
                    entry.role = Role::Parked(node, packet);
                    if let Err(error) = entry.connection.set_interest(&self.poller, Interest::NONE) {
                        self.close(now, token, &error.to_string());
                    }
                }
                if let Some(replaced) = replaced {
                    self.entries.remove(&replaced);
                }
            }
            Verdict::Take => {
                let (attempt, link, parked) = (peer.attempt.take(), peer.link.take(), peer.parked.take());
                if link.is_some() {
                    self.events.push_back(LinkEvent::Down(node));
                }
                for superseded in [attempt, link, parked].into_iter().flatten() {
                    self.entries.remove(&superseded);
                }
                self.take(now, token, node, packet);
            }
        }
    }

    /// Makes an accepted connection, on which `hello` came, the node's link.
    fn take(&mut self, now: Instant, token: Token, node: NodeId, hello: Packet) {
        let (Some(entry), Some(peer)) = (self.entries.get_mut(&token), self.peers.get_mut(&node)) else {
            return;
        };
        entry.deadline = None;
        entry.role = Role::Link(Link { node, dialed: false, proven: Some(now), over: None });
        peer.link = Some(token);
        peer.next_dial = None;
        self.events.push_back(LinkEvent::Up(node));
        self.events.push_back(LinkEvent::Packet(node, hello));
        // TLS may have brought more than the Hello.
        self.readable.push_back(token);
        if let Err(error) = entry.connection.set_interest(&self.poller, Interest::READ) {
            self.close(now, token, &error.to_string());
        }
        self.settle(node);
    }

    /// The node's link is good: what was kept in case it is not, is dropped.
    pub(super) fn settle(&mut self, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        peer.forget_problem();
        if let Some(parked) = peer.parked.take() {
            self.entries.remove(&parked);
        }
    }

    /// Closes a connection and does what follows from that.
    pub(super) fn close(&mut self, now: Instant, token: Token, why: &str) {
        let Some(Entry { role, remote, .. }) = self.entries.remove(&token) else {
            return;
        };
        match role {
            Role::Stranger => {
                // Without the port, which is another one each time.
                let line = format!("connection from {} refused: {why}", remote.ip());
                if let Some(withheld) = self.rejects.admit(now, &line) {
                    log::warn!("{line} ({withheld} more refused since the last such line)");
                }
            }
            Role::Parked(node, _) => {
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.parked = None;
                }
            }
            Role::Dialing(node) | Role::Securing(node) => {
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.attempt = None;
                    peer.report(&format!("can't connect to {remote}: {why}; trying again"));
                    peer.schedule_dial(now, Duration::ZERO, &mut self.random);
                }
            }
            Role::Link(link) => self.end_link(now, &link, &format!("connection with {remote}: {why}")),
        }
    }

    /// The node's link is closed: uses the connection that was kept for this, or dials again.
    fn end_link(&mut self, now: Instant, link: &Link, why: &str) {
        let Some(peer) = self.peers.get_mut(&link.node) else { return };
        peer.report(why);
        peer.link = None;
        self.events.push_back(LinkEvent::Down(link.node));
        if let Some(parked) = peer.parked.take()
            && let Some(entry) = self.entries.get_mut(&parked)
            && let Role::Parked(_, hello) = core::mem::replace(&mut entry.role, Role::Stranger)
        {
            self.take(now, parked, link.node, hello);
            return;
        }
        let lived = link.proven.map_or(Duration::ZERO, |since| now.since(since));
        peer.schedule_dial(now, lived, &mut self.random);
    }

    fn new_token(&mut self) -> Token {
        let token = Token(self.next_token);
        self.next_token = self.next_token.saturating_add(1);
        token
    }
}
