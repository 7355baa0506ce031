//! Introductions: what becomes of a connection whose other side has said who it is.

use super::super::admission::{Claim, Company};
use super::super::identity::Owner;
use super::super::peer::{Existing, Peer, PeerKey, Verdict, judge};
use super::setup::log_refusal;
use super::{Entry, LEAVE_TIME, Link, LinkEvent, Links, MAX_ROUTERS, Role, is_due};
use crate::adaptor::Instant;
use crate::adaptor::address::NodeId;
use crate::adaptor::mesh::neighbour::{Identity, LinkId, Neighbour, Refusal};
use crate::adaptor::mesh::packet::{Body, Packet};
use crate::logging::NODES;
use crate::poller::{Interest, Token};

impl Links {
    /// Whether a claim is good. The only place where one is judged.
    fn admit(
        &self,
        packet: &Packet,
        dialed: Option<Identity>,
        certified: Option<Owner>,
    ) -> Result<Claim, (Refusal, String)> {
        let Some(claim) = Claim::from_join(packet, dialed, certified) else {
            return Err((Refusal::WrongIdentity, "it does not begin with a Join".to_owned()));
        };
        claim.examine(self.own, &self.company)?;
        Ok(claim)
    }

    /// A stranger has said who it is.
    pub(super) fn introduce(&mut self, now: Instant, token: Token, packet: &Packet) {
        let certified = self.entries.get(&token).and_then(|entry| entry.connection.owner());
        match self.admit(packet, None, certified) {
            Ok(claim) => self.place(now, token, claim),
            Err((refusal, why)) => self.dismiss(now, token, refusal, &why),
        }
    }

    /// Finds out what becomes of an accepted connection with a good claim, in view of the links that there are.
    pub(super) fn place(&mut self, now: Instant, token: Token, claim: Claim) {
        let identity = claim.neighbour.identity();
        let Identity::Node(node) = identity else {
            return if self.has_room_for_router() {
                self.take(now, token, None, claim);
            } else {
                self.dismiss(now, token, Refusal::Busy, "too many routers are linked with this one");
            };
        };
        let key = PeerKey::Node(node);
        if let Some(holder) = self.holder_besides(key, &claim.neighbour) {
            log::debug!("{}: {holder} has some of its node ids", claim.neighbour.end);
            return self.park(now, token, holder, claim, Verdict::Contest);
        }
        let peer = match &self.company {
            Company::Everyone => self.peers.entry(key).or_insert_with(|| Peer::new(now, key, None, false)),
            Company::Nodes(_) => match self.peers.get_mut(&key) {
                Some(peer) => peer,
                None => return,
            },
        };
        let link = peer.link;
        if let Some(link) = link
            && let Some(Role::Link(Link { over: Some(_), .. })) = self.entries.get(&link).map(|e| &e.role)
        {
            self.close(now, link, "closed by the other side, which comes again");
        }
        let existing = link.and_then(|existing| match &self.entries.get(&existing)?.role {
            Role::Link(link) => Some(Existing {
                dialed: link.dialed,
                joined: link.joined.is_some(),
                older: existing < token,
                same_life: link.joined.is_some_and(|(neighbour, _)| neighbour == claim.neighbour),
            }),
            _ => None,
        });
        let verdict = judge(self.own.identity(), identity, existing);
        log::debug!("{identity}: introduced itself on a connection it made: {verdict:?} ({existing:?})");
        match verdict {
            Verdict::Refuse => self.dismiss(now, token, Refusal::Superseded, "it has a newer connection"),
            Verdict::Park | Verdict::Contest => self.park(now, token, key, claim, verdict),
            Verdict::Take if !self.may_arrive(now, key) => {
                self.dismiss(now, token, Refusal::Busy, "it comes and goes too often");
            }
            Verdict::Take => {
                let Some(peer) = self.peers.get_mut(&key) else { return };
                let (attempt, link, parked) = (peer.attempt.take(), peer.link.take(), peer.parked.take());
                for superseded in [attempt, link, parked].into_iter().flatten() {
                    self.drop_silently(superseded);
                }
                self.take(now, token, Some(key), claim);
            }
        }
    }

    /// Whether one more router may dial this one.
    fn has_room_for_router(&self) -> bool {
        let is_router = |entry: &&Entry| matches!(entry.role, Role::Link(Link { key: None, .. }));
        self.entries.values().filter(is_router).count() < MAX_ROUTERS
    }

    /// Whether the peer may come once more.
    fn may_arrive(&mut self, now: Instant, key: PeerKey) -> bool {
        self.peers.get_mut(&key).is_none_or(|peer| peer.arrivals.take(now))
    }

    /// Another peer than `key` that is linked and has some of the node ids that `claimed` has.
    fn holder_besides(&self, key: PeerKey, claimed: &Neighbour) -> Option<PeerKey> {
        let holds = |peer: &&Peer| {
            let link = peer.link.and_then(|link| self.entries.get(&link));
            let Some(Role::Link(Link { joined: Some((holder, _)), .. })) = link.map(|entry| &entry.role)
            else {
                return false;
            };
            peer.key != key && holder.end.overlaps(claimed.end)
        };
        self.peers.values().find(holds).map(|peer| peer.key)
    }

    /// Keeps an accepted connection aside, until the link of the peer `key` turns out to be good or not.
    fn park(&mut self, now: Instant, token: Token, key: PeerKey, claim: Claim, verdict: Verdict) {
        let mut deadline = (verdict == Verdict::Contest).then(|| now.after(self.contest_time()));
        let Some(peer) = self.peers.get_mut(&key) else { return };
        let (link, replaced) = (peer.link, peer.parked.replace(token));
        if let Some(replaced) = replaced.and_then(|replaced| self.entries.remove(&replaced)) {
            // Coming again and again gives no more time.
            deadline = replaced.deadline.or(deadline);
        }
        if verdict == Verdict::Contest
            && let Some(holder) = link.and_then(|link| self.entries.get_mut(&link))
            && let Role::Link(holder) = &mut holder.role
        {
            holder.want_join(true);
        }
        let Some(entry) = self.entries.get_mut(&token) else { return };
        entry.deadline = deadline;
        entry.role = Role::Parked(key, claim);
        if let Err(error) = entry.connection.set_interest(&self.poller, Interest::NONE) {
            self.close(now, token, &error.to_string());
        }
    }

    /// Makes an accepted connection a link.
    pub(super) fn take(&mut self, now: Instant, token: Token, key: Option<PeerKey>, claim: Claim) {
        let Some(entry) = self.entries.get_mut(&token) else { return };
        let mut link = Link::new(now, key, false);
        link.joined = Some((claim.neighbour, now));
        entry.deadline = None;
        entry.role = Role::Link(link);
        let interest = entry.connection.set_interest(&self.poller, Interest::READ);
        if let Some(peer) = key.and_then(|key| self.peers.get_mut(&key)) {
            peer.link = Some(token);
            peer.next_dial = None;
        }
        self.events.push_back(LinkEvent::Up(LinkId(token.0), claim.neighbour));
        // TLS may have brought more than the Join.
        self.readable.push_back(token);
        if let Err(error) = interest {
            return self.close(now, token, &error.to_string());
        }
        self.settle(now, key);
    }

    /// The other end of a link says who it is: for the first time, after a reset, or as a sign of life.
    pub(super) fn handle_join(&mut self, now: Instant, token: Token, packet: &Packet) {
        let Some(entry) = self.entries.get(&token) else { return };
        let Role::Link(link) = &entry.role else { return };
        let (key, before, certified) = (link.key, link.joined, entry.connection.owner());
        let expected = match before {
            Some((neighbour, _)) => Some(neighbour.identity()),
            None => key.map(PeerKey::identity),
        };
        let claim = match self.admit(packet, expected, certified) {
            Ok(claim) => claim,
            Err((refusal, why)) => return self.dismiss(now, token, refusal, &why),
        };
        if before.is_some_and(|(neighbour, _)| neighbour != claim.neighbour) {
            let why = format!("it is {} now, and was another before", claim.neighbour.end);
            return self.dismiss(now, token, Refusal::WrongIdentity, &why);
        }
        if let Some(key) = key
            && before.is_none()
            && let Some(holder) = self.holder_besides(key, &claim.neighbour)
        {
            let why = format!("it is {}, and {holder} has some of these node ids", claim.neighbour.end);
            return self.dismiss(now, token, Refusal::Duplicate, &why);
        }
        let patience = self.patience();
        let Some(entry) = self.entries.get_mut(&token) else { return };
        let Role::Link(link) = &mut entry.role else { return };
        let Body::Join { wants_reply, .. } = packet.body else { return };
        if wants_reply {
            link.want_join(false);
        }
        let id = LinkId(token.0);
        if before.is_none() {
            entry.deadline = None;
            link.joined = Some((claim.neighbour, now));
            link.look_at = now.after(patience);
            self.events.push_back(LinkEvent::Up(id, claim.neighbour));
            self.note_router(key, claim.neighbour);
        }
        if before.is_none() || !wants_reply {
            self.settle(now, key);
        }
    }

    /// The peer's link is good: what was kept in case it is not, is refused.
    fn settle(&mut self, now: Instant, key: Option<PeerKey>) {
        let Some(peer) = key.and_then(|key| self.peers.get_mut(&key)) else { return };
        peer.forget_problem();
        let (link, parked) = (peer.link, peer.parked.take());
        if matches!(key, Some(PeerKey::Node(_))) {
            self.note_admission(key);
        }
        let Some(parked) = parked else { return };
        let role = |token| self.entries.get(&token).map(|entry| &entry.role);
        let (Some(Role::Link(link)), Some(Role::Parked(_, claim))) = (link.and_then(role), role(parked))
        else {
            return;
        };
        if link.joined.is_some_and(|(neighbour, _)| neighbour == claim.neighbour) {
            self.dismiss(now, parked, Refusal::Superseded, "there is another connection with it");
        } else {
            self.dismiss(now, parked, Refusal::Duplicate, "its node id is in use");
        }
    }

    /// The other end does not let us in, or not any more.
    pub(super) fn handle_refusal(&mut self, now: Instant, token: Token, from: NodeId, refusal: Refusal) {
        let Some(entry) = self.entries.get(&token) else { return };
        let Role::Link(Link { key, dialed, .. }) = entry.role else { return };
        let remote = entry.remote;
        let own = self.own.end;
        if let Some(peer) = key.and_then(|key| self.peers.get_mut(&key)) {
            if refusal == Refusal::Duplicate && dialed {
                peer.note_duplicate(now);
                let several = if own.span().is_some_and(|span| span.size() > 1) { "one of " } else { "" };
                let problem = format!(
                    "{several}{own} is in use by another adaptor, says {remote}, so this one is not let in; give each adaptor \
                     ids of its own"
                );
                peer.report(log::Level::Error, &problem);
            } else if refusal != Refusal::Superseded {
                peer.calls_us_duplicate = None;
                let mut problem = format!("{remote} refuses {own}: {refusal}");
                if refusal == Refusal::WrongIdentity {
                    problem.push_str(&who_is_there(peer.key, from));
                }
                peer.report(log::Level::Error, &problem);
            }
        }
        self.note_duplicate();
        self.close_for(now, token, None, Some(refusal));
    }

    /// The peer lets us in.
    pub(super) fn note_admission(&mut self, key: Option<PeerKey>) {
        if let Some(peer) = key.and_then(|key| self.peers.get_mut(&key)) {
            peer.calls_us_duplicate = None;
            self.note_duplicate();
        }
    }

    /// Peers that called this node a duplicate and are not heard of any more have no say.
    pub(super) fn forget_refusals(&mut self, now: Instant) {
        for peer in self.peers.values_mut().filter(|peer| is_due(now, peer.calls_us_duplicate)) {
            peer.calls_us_duplicate = None;
        }
        self.note_duplicate();
    }

    pub(super) fn note_duplicate(&mut self) {
        let is_duplicate = self.peers.values().any(|peer| peer.calls_us_duplicate.is_some());
        if core::mem::replace(&mut self.is_duplicate, is_duplicate) != is_duplicate {
            self.events.push_back(LinkEvent::Duplicate(is_duplicate));
        }
    }

    /// Refuses a connection: tells the other side why, and waits a moment for it to close.
    pub(super) fn dismiss(&mut self, now: Instant, token: Token, refusal: Refusal, why: &str) {
        let Some(entry) = self.entries.get_mut(&token) else { return };
        let remote = entry.remote;
        let own = self.own;
        let (to, is_link) = match &entry.role {
            Role::Link(link) => (link.joined.map(|(neighbour, _)| neighbour.identity()), true),
            Role::Parked(_, claim) => (Some(claim.neighbour.identity()), false),
            _ => (None, false),
        };
        let claimed = if is_link { None } else { to };
        let to = to.unwrap_or(Identity::Router).id();
        let mut packet =
            Some(Packet::between(own.identity(), to, own.incarnation, Body::Refuse { reason: refusal }));
        let sent =
            entry.connection.send(&self.poller, |out| packet.take().map(|packet| packet.emit(out)).is_some());
        let quiet = entry.connection.set_interest(&self.poller, Interest::NONE);
        let leaving = sent.is_ok() && quiet.is_ok() && entry.connection.finish().is_ok();
        let deadline = Some(now.after(LEAVE_TIME));
        if is_link {
            log::warn!(target: NODES, "connection with {remote} ended: {why}");
        } else if refusal != Refusal::Superseded {
            match claimed {
                Some(identity) => log_refusal(remote, &format!("{why} ({identity})")),
                None => log_refusal(remote, why),
            }
        }
        let Some(entry) = self.entries.get_mut(&token) else { return };
        let role = core::mem::replace(&mut entry.role, Role::Leaving);
        entry.deadline = deadline;
        if !leaving {
            self.entries.remove(&token);
        }
        self.end_role(now, token, role, remote, None, Some(refusal));
    }

    /// Drops a connection in favour of a better one of the same peer.
    pub(super) fn drop_silently(&mut self, token: Token) {
        if let Some(entry) = self.entries.remove(&token)
            && let Role::Link(Link { joined: Some(_), .. }) = entry.role
        {
            self.events.push_back(LinkEvent::Down(LinkId(token.0)));
        }
    }
}

/// What to say of who refused, with source `from`, where `wanted` was looked for. Node 0 and routers have the same source.
fn who_is_there(wanted: PeerKey, from: NodeId) -> String {
    match (wanted, from) {
        (PeerKey::Node(node), from) if node == from => String::new(),
        (PeerKey::Node(_), NodeId(0)) => {
            "; there is a router (which is given by --router), or node 0".to_owned()
        }
        (PeerKey::Node(_), from) => {
            format!(
                "; there is node {from} (an adaptor with several buses is given by its first node id only)"
            )
        }
        (PeerKey::Router(_), NodeId(0)) => String::new(),
        (PeerKey::Router(_), from) => {
            format!("; there is node {from} and no router (nodes are given by --peer)")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_there_is_told_where_it_helps() {
        let (node, router) = (PeerKey::Node(NodeId(2)), PeerKey::Router(([127, 0, 0, 1], 7400).into()));
        for (wanted, from, text) in [
            (node, 2, ""),
            (node, 0, "is given by --router"),
            (node, 3, "there is node 3 (an adaptor with several buses"),
            (router, 0, ""),
            (router, 3, "there is node 3 and no router"),
        ] {
            let told = who_is_there(wanted, NodeId(from));
            assert!(told.contains(text) && told.is_empty() == text.is_empty(), "{wanted:?} {from}: {told}");
        }
    }
}
