//! Silence: what took too long, and links whose other end may be gone.

use core::time::Duration;

use super::{Entry, Link, Links, Role, is_due};
use crate::adaptor::Instant;
use crate::adaptor::mesh::limits::KEEPALIVE_PARTS;
use crate::adaptor::mesh::neighbour::Refusal;
use crate::poller::Token;

/// The longest time that the holder of a node id is waited for.
const CONTEST_TIME: Duration = Duration::from_millis(500);

impl Links {
    /// The time between two looks whether a link is alive.
    pub(super) fn patience(&self) -> Duration {
        self.keepalive.checked_div(KEEPALIVE_PARTS).unwrap_or_default()
    }

    /// The time in which the holder of a node id has to give a sign of life; the claimant does not wait for long.
    pub(super) fn contest_time(&self) -> Duration {
        self.patience().min(CONTEST_TIME)
    }

    /// A connection waited long enough.
    pub(super) fn handle_late(&mut self, now: Instant, token: Token) {
        let Some(entry) = self.entries.get(&token) else { return };
        let why = match &entry.role {
            Role::Dialing(_) => "no answer to the attempt to connect",
            Role::Parked(..) => return self.end_contest(now, token),
            Role::Link(Link { paused: Some(until), .. }) if *until <= now => {
                return self.pause(now, token, None);
            }
            Role::Link(link) if link.joined.is_some() && !is_due(now, entry.deadline) => {
                return self.look_for_life(now, token);
            }
            Role::Leaving => "it did not close its end",
            _ if !entry.connection.is_ready() => "the TLS handshake was not done in time",
            _ => "the other side did not introduce itself in time",
        };
        self.close(now, token, why);
    }

    /// Leaves what arrives on the link in its socket until then, or not any more.
    pub(super) fn pause(&mut self, now: Instant, token: Token, until: Option<Instant>) {
        let Some(Entry { connection, role: Role::Link(link), .. }) = self.entries.get_mut(&token) else {
            return;
        };
        link.paused = until;
        if let Err(error) = connection.hold_back(&self.poller, until.is_some()) {
            return self.close(now, token, &error.to_string());
        }
        self.readable.push_back(token);
    }

    /// Asks for a sign of life where nothing came for a while, and closes the link after a few questions without an answer.
    fn look_for_life(&mut self, now: Instant, token: Token) {
        // Where this process stood still, the answer may be here already.
        self.receive(now, token);
        let patience = self.patience();
        let Some(Role::Link(link)) = self.entries.get_mut(&token).map(|entry| &mut entry.role) else {
            return;
        };
        let next = link.heard.after(patience);
        if next > now {
            link.look_at = next;
            return;
        }
        if link.asked >= KEEPALIVE_PARTS.saturating_sub(1) {
            return self.close(now, token, "no sign of life on the link");
        }
        link.asked = link.asked.saturating_add(1);
        link.look_at = now.after(patience);
        link.want_join(true);
    }

    /// The time is over in which the holder of a node id had to give a sign of life.
    fn end_contest(&mut self, now: Instant, token: Token) {
        let Some(Role::Parked(key, _)) = self.entries.get(&token).map(|entry| &entry.role) else { return };
        let Some(holder) = self.peers.get(key).and_then(|peer| peer.link) else {
            return self.close(now, token, "nothing to contest");
        };
        self.receive(now, holder);
        let end = self.entries.get(&token).and_then(|entry| entry.deadline).unwrap_or(now);
        // What came in the first half may have been under way since before the holder died.
        let half = self.contest_time().checked_div(2).unwrap_or_default();
        let alive = match self.entries.get(&holder).map(|entry| &entry.role) {
            Some(Role::Link(link)) => link.over.is_none() && link.heard.after(half) > end,
            _ => false,
        };
        if alive {
            self.dismiss(now, token, Refusal::Duplicate, "its node id is in use");
        } else {
            self.close(now, holder, "no sign of life, and another connection claims to be it");
        }
    }
}
