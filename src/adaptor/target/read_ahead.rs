//! Read-ahead: what was fetched of a block behind a load, for the loads that follow.
//!
//! It is done for nodes for which software asked for it, and in the memory space only. It is no transaction of the bus:
//! where it fails nothing is logged, and loads that waited for it are sent as they are.
//!
//! Invariant: of a node at most one fetch is kept, so that the bytes held are bounded; each byte is handed out at most
//! once; nothing is handed out that was asked for before the last [`ReadAhead::drop`], or longer than `time` ago.

use core::time::Duration;
use std::collections::BTreeMap;

use bytes::Bytes;

use crate::adaptor::Instant;
use crate::adaptor::address::{BLOCK_SIZE, Location, NodeId, NodeSet, Place, Space};
use crate::adaptor::status::Code;
use crate::adaptor::transaction::{Request, RequestKind, TransactionId};

/// What was fetched behind a load, or is being fetched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Fetch {
    id: TransactionId,
    begun: Instant,
    /// The offset in bytes of what is left of it.
    from: u64,
    /// The offset in bytes of its end.
    end: u64,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    /// It began at `start`; the loads that will have parts of it wait, in the order of the bus.
    UnderWay { start: u64, riders: Vec<Request> },
    /// What is left of it.
    Here(Bytes),
}

/// Where the data of a load comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// It is here.
    Here(Bytes),
    /// It is on its way: the load can wait for it by [`ReadAhead::ride`].
    OnItsWay,
    /// The node has to be asked.
    Node,
}

/// What became of the loads that waited for a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Riders {
    /// They have these bytes.
    Served(Vec<(TransactionId, Bytes)>),
    /// They have to be sent.
    Left(Vec<Request>),
}

/// The read-ahead of a bus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReadAhead {
    nodes: NodeSet,
    time: Duration,
    fetches: BTreeMap<NodeId, Fetch>,
}

impl ReadAhead {
    /// From now on it is done for these nodes, and what was fetched is handed out for `time`. Hands back the loads that
    /// have to be sent.
    pub fn set(&mut self, nodes: NodeSet, time: Duration) -> Vec<Request> {
        (self.nodes, self.time) = (nodes, time);
        let off: Vec<NodeId> = self.fetches.keys().copied().filter(|&node| !nodes.contains(node)).collect();
        off.into_iter().flat_map(|node| self.drop(node)).collect()
    }

    /// Whether the data of a load is here, or on its way. What is here is handed out, and what lies before it dropped.
    pub fn find(&mut self, now: Instant, place: Place, len: usize) -> Source {
        let Some((start, end)) = extent(place, len) else { return Source::Node };
        let usable = |fetch: &&mut Fetch| {
            fetch.from <= start && end <= fetch.end && now.since(fetch.begun) <= self.time
        };
        let Some(fetch) = self.fetches.get_mut(&place.node).filter(usable) else { return Source::Node };
        let State::Here(data) = &mut fetch.state else { return Source::OnItsWay };
        let skipped = usize::try_from(start.saturating_sub(fetch.from)).unwrap_or(usize::MAX).min(data.len());
        drop(data.split_to(skipped));
        let part = data.split_to(len.min(data.len()));
        fetch.from = end;
        if data.is_empty() {
            self.fetches.remove(&place.node);
        }
        Source::Here(part)
    }

    /// A load for which [`Self::find`] said so waits for what is on its way.
    pub fn ride(&mut self, load: Request) {
        if let Some(fetch) = self.fetches.get_mut(&load.place.node)
            && let State::UnderWay { riders, .. } = &mut fetch.state
        {
            let len = u64::try_from(load.kind.len()).unwrap_or(u64::MAX);
            fetch.from = load.place.at.offset.saturating_add(len);
            riders.push(load);
        }
    }

    /// Whether a load waits for what is on its way.
    pub fn carries(&self, id: TransactionId) -> bool {
        self.fetches.values().any(|fetch| match &fetch.state {
            State::UnderWay { riders, .. } => riders.iter().any(|rider| rider.id == id),
            State::Here(_) => false,
        })
    }

    /// What to fetch behind a load: the rest of the block, as a place and a length in bytes. `None` where nothing is
    /// wanted.
    pub fn wanted(&self, place: Place, len: usize) -> Option<(Place, u32)> {
        if !self.nodes.contains(place.node) || self.time.is_zero() {
            return None;
        }
        let (_, from) = extent(place, len)?;
        let end = from.checked_next_multiple_of(BLOCK_SIZE).filter(|&end| end > from)?;
        let len = u32::try_from(end.saturating_sub(from)).ok()?;
        Some((Place { at: Location::memory(from), ..place }, len))
    }

    /// The request that fetches this, under the name `id`. The node has to be dropped before.
    pub fn begin(&mut self, now: Instant, id: TransactionId, place: Place, len: u32) -> Request {
        let start = place.at.offset;
        let end = start.saturating_add(len.into());
        let state = State::UnderWay { start, riders: Vec::new() };
        self.fetches.insert(place.node, Fetch { id, begun: now, from: start, end, state });
        Request { id, place, kind: RequestKind::Read { len }, posted: now }
    }

    /// A fetch ended. Says what becomes of the loads that waited for it; `None` where it is nobody's any more.
    pub fn finish(&mut self, id: TransactionId, code: Code, data: &Bytes) -> Option<Riders> {
        let (&node, fetch) = self.fetches.iter_mut().find(|(_, fetch)| fetch.id == id)?;
        let State::UnderWay { start, riders } = &mut fetch.state else { return None };
        let (start, riders) = (*start, core::mem::take(riders));
        let position = |offset: u64| usize::try_from(offset.saturating_sub(start)).unwrap_or(usize::MAX);
        if !code.is_ok() || data.len() != position(fetch.end) {
            self.fetches.remove(&node);
            return Some(Riders::Left(riders));
        }
        let part = |from: usize, len: usize| {
            let bytes = data.get(from..).and_then(|rest| rest.get(..len));
            // A copy, so that what is left holds no packet.
            Bytes::copy_from_slice(bytes.unwrap_or_default())
        };
        let served =
            riders.iter().map(|rider| (rider.id, part(position(rider.place.at.offset), rider.kind.len())));
        let served = served.collect();
        if fetch.from < fetch.end {
            let left = position(fetch.from);
            fetch.state = State::Here(part(left, data.len().saturating_sub(left)));
        } else {
            self.fetches.remove(&node);
        }
        Some(Riders::Served(served))
    }

    /// What was fetched from the node is not handed out any more. Hands back the loads that have to be sent.
    pub fn drop(&mut self, node: NodeId) -> Vec<Request> {
        match self.fetches.remove(&node).map(|fetch| fetch.state) {
            Some(State::UnderWay { riders, .. }) => riders,
            Some(State::Here(_)) | None => Vec::new(),
        }
    }
}

/// First byte of a load and the one behind its last; `None` for what is not in memory.
fn extent(place: Place, len: usize) -> Option<(u64, u64)> {
    let Location { space, offset } = place.at;
    let end = offset.checked_add(u64::try_from(len).ok()?)?;
    (space == Space::Memory).then_some((offset, end))
}
