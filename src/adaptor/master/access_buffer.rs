//! The master access buffer: requests of other nodes that wait to be executed.
//!
//! Invariant: requests of one origin leave in the order in which they came, one at a time; no origin
//! holds more than its share of the buffer, and none can keep another from being served.

use crate::adaptor::address::Location;
use crate::adaptor::channel::{Channel, Origin};
use crate::adaptor::memory::OperationId;
use crate::adaptor::mesh::limits::Window;
use crate::adaptor::mesh::packet::LONG_PAYLOAD;
use crate::adaptor::transaction::{Content, Extent, RequestKind};
use bytes::Bytes;
use std::collections::VecDeque;

/// The most requests of one origin that wait at a time, and the most bytes that these write: what its flow may have unanswered.
fn limits(channel: Channel) -> Window {
    Window::default().of(channel)
}

/// A request of another node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Inbound {
    /// Whose it is.
    pub origin: Origin,
    /// Names the request to the mesh; means nothing here.
    pub ticket: u64,
    /// Where in this node.
    pub at: Location,
    /// What it asks for.
    pub kind: RequestKind,
}

/// The origin's share of the buffer is used up: as much as its flow may have unanswered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// How many bytes a request holds in the buffer.
fn held(kind: &RequestKind) -> usize {
    match kind {
        RequestKind::Write(content) => content.extent(),
        RequestKind::Read { .. } | RequestKind::Atomic(_) => 0,
    }
}

/// Gives a request that has to wait its long payload in memory of its own (what is shorter has that already): a connection receives up to
/// 1 MiB together, and a peer that sends a long payload in each could have all of it kept.
fn own(kind: &mut RequestKind) {
    if let RequestKind::Write(Content::Bytes(data)) = kind
        && data.len() >= LONG_PAYLOAD
    {
        *data = Bytes::copy_from_slice(data);
    }
}

/// The requests of one origin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Queue {
    requests: VecDeque<Inbound>,
    bytes: usize,
    /// Where the oldest of them was begun once, and put back.
    fault: Option<Fault>,
}

/// The page faults of what was put back, by the name of its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fault {
    pub(super) id: OperationId,
    /// They were served.
    pub(super) is_served: bool,
}

/// The master access buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct AccessBuffer {
    /// In the order of origins; only queues that are not empty.
    queues: Vec<(Origin, Queue)>,
    /// The origin that was served last.
    last: Option<Origin>,
}

impl AccessBuffer {
    /// Puts a request behind the others of its origin.
    pub(super) fn push(&mut self, mut request: Inbound) -> Result<(), Full> {
        let (origin, more) = (request.origin, held(&request.kind));
        let limits = limits(origin.channel);
        match self.find(origin) {
            Ok(at) => {
                let (_, queue) = self.queues.get_mut(at).ok_or(Full)?;
                let bytes = queue.bytes.saturating_add(more);
                if queue.requests.len() >= limits.requests || bytes > limits.bytes {
                    return Err(Full);
                }
                queue.bytes = bytes;
                own(&mut request.kind);
                queue.requests.push_back(request);
            }
            Err(_) if more > limits.bytes => return Err(Full),
            Err(at) => {
                let queue = Queue { requests: VecDeque::from([request]), bytes: more, fault: None };
                self.queues.insert(at, (origin, queue));
            }
        }
        Ok(())
    }

    /// Where the queue of an origin is, or would be.
    fn find(&self, origin: Origin) -> Result<usize, usize> {
        self.queues.binary_search_by_key(&origin, |&(origin, _)| origin)
    }

    /// Takes a request back that was begun as operation `id`, before all others of its origin. They wait until [`Self::serve`] tells
    /// that its page faults were served.
    pub(super) fn put_back(&mut self, mut request: Inbound, id: OperationId) {
        let (origin, more) = (request.origin, held(&request.kind));
        own(&mut request.kind);
        let fault = Some(Fault { id, is_served: false });
        match self.find(origin) {
            Ok(at) => {
                if let Some((_, queue)) = self.queues.get_mut(at) {
                    queue.bytes = queue.bytes.saturating_add(more);
                    queue.requests.push_front(request);
                    queue.fault = fault;
                }
            }
            Err(at) => {
                let queue = Queue { requests: VecDeque::from([request]), bytes: more, fault };
                self.queues.insert(at, (origin, queue));
            }
        }
    }

    /// The page faults of operation `id` were served, if anything still waits for that.
    pub(super) fn serve(&mut self, id: OperationId) {
        let faults = self.queues.iter_mut().filter_map(|(_, queue)| queue.fault.as_mut());
        faults.filter(|fault| fault.id == id).for_each(|fault| fault.is_served = true);
    }

    /// Takes out the request whose operation `id` was put back, if it still waits.
    pub(super) fn give_up(&mut self, id: OperationId) -> Option<Inbound> {
        let at = self.queues.iter().position(|(_, queue)| queue.fault.is_some_and(|fault| fault.id == id))?;
        Some(self.take_at(at)?.0)
    }

    /// Takes out the oldest request of the next origin, in turn, whose oldest request `may_leave`; and the name that its operation had, where
    /// it was put back.
    pub(super) fn take(
        &mut self,
        may_leave: impl Fn(&Inbound) -> bool,
    ) -> Option<(Inbound, Option<OperationId>)> {
        let next = self.last.map_or(0, |last| self.queues.partition_point(|&(origin, _)| origin <= last));
        let ready = |(_, (_, queue)): &(usize, &(Origin, Queue))| {
            queue.fault.is_none_or(|fault| fault.is_served) && queue.requests.front().is_some_and(&may_leave)
        };
        let queues = || self.queues.iter().enumerate();
        let (at, _) = queues().skip(next).chain(queues().take(next)).find(ready)?;
        self.take_at(at)
    }

    /// Takes out the oldest request of the queue at this place.
    fn take_at(&mut self, at: usize) -> Option<(Inbound, Option<OperationId>)> {
        let (origin, queue) = self.queues.get_mut(at)?;
        self.last = Some(*origin);
        let request = queue.requests.pop_front()?;
        let fault = queue.fault.take();
        queue.bytes = queue.bytes.saturating_sub(held(&request.kind));
        if queue.requests.is_empty() {
            self.queues.remove(at);
        }
        Some((request, fault.map(|fault| fault.id)))
    }

    /// Drops every request of an origin.
    pub(super) fn discard(&mut self, origin: Origin) {
        if let Ok(at) = self.find(origin) {
            self.queues.remove(at);
        }
    }

    /// Takes out every request, those of one origin in their order.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Inbound> + use<> {
        core::mem::take(&mut self.queues).into_iter().flat_map(|(_, queue)| queue.requests)
    }

    /// How many requests wait.
    pub(super) fn len(&self) -> usize {
        self.queues.iter().map(|(_, queue)| queue.requests.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adaptor::address::NodeId;

    fn origin(node: u8) -> Origin {
        Origin { node: NodeId(node), channel: Channel::Small }
    }

    fn request(source: u8, ticket: u64, len: usize) -> Inbound {
        let kind = RequestKind::Write(Bytes::from(vec![0; len]).into());
        Inbound { origin: origin(source), ticket, at: Location::memory(0), kind }
    }

    fn taken(buffer: &mut AccessBuffer, may_leave: impl Fn(&Inbound) -> bool) -> Vec<(u8, u64)> {
        core::iter::from_fn(|| buffer.take(&may_leave)).map(|(r, _)| (r.origin.node.0, r.ticket)).collect()
    }

    #[test]
    fn sources_are_served_in_turn_and_each_in_order() {
        let mut buffer = AccessBuffer::default();
        for (source, ticket) in [(9, 0), (9, 1), (9, 2), (1, 0), (1, 1), (4, 0)] {
            buffer.push(request(source, ticket, 8)).unwrap();
        }
        assert_eq!(buffer.len(), 6);
        assert_eq!(taken(&mut buffer, |_| true), [(1, 0), (4, 0), (9, 0), (1, 1), (9, 1), (9, 2)]);
        assert!(buffer.queues.is_empty());
    }

    #[test]
    fn a_request_that_may_not_leave_holds_up_its_source_only() {
        let mut buffer = AccessBuffer::default();
        for (source, ticket) in [(1, 0), (1, 1), (2, 0), (2, 1)] {
            buffer.push(request(source, ticket, 8)).unwrap();
        }
        assert_eq!(
            taken(&mut buffer, |request| (request.origin.node.0, request.ticket) != (1, 0)),
            [(2, 0), (2, 1)]
        );
        assert_eq!(taken(&mut buffer, |_| true), [(1, 0), (1, 1)]);
    }

    #[test]
    fn a_request_that_is_put_back_is_the_next_of_its_source_once_its_pages_are_there() {
        let mut buffer = AccessBuffer::default();
        for (source, ticket) in [(1, 0), (1, 1), (2, 0), (2, 1)] {
            buffer.push(request(source, ticket, 8)).unwrap();
        }
        let (first, name) = buffer.take(|_| true).unwrap();
        assert_eq!((first.ticket, name), (0, None));
        buffer.put_back(first, OperationId(7));
        assert_eq!(taken(&mut buffer, |_| true), [(2, 0), (2, 1)], "the others go on");
        buffer.serve(OperationId(6));
        assert_eq!(taken(&mut buffer, |_| true), []);
        buffer.serve(OperationId(7));
        assert_eq!(taken(&mut buffer, |_| false), [], "it still has to be allowed");
        let (again, name) = buffer.take(|_| true).unwrap();
        assert_eq!((again.ticket, name), (0, Some(OperationId(7))));
        assert_eq!(taken(&mut buffer, |_| true), [(1, 1)]);
    }

    #[test]
    fn what_is_discarded_while_its_pages_are_brought_in_holds_up_nothing() {
        let mut buffer = AccessBuffer::default();
        buffer.push(request(1, 0, 8)).unwrap();
        let (first, _) = buffer.take(|_| true).unwrap();
        buffer.put_back(first, OperationId(7));
        buffer.discard(origin(1));
        assert_eq!(buffer.give_up(OperationId(7)), None);
        buffer.push(request(1, 5, 8)).unwrap();
        assert_eq!(taken(&mut buffer, |_| true), [(1, 5)]);
        // Given up alone, it leaves what comes after it.
        buffer.push(request(1, 6, 8)).unwrap();
        buffer.push(request(1, 7, 8)).unwrap();
        let (first, _) = buffer.take(|_| true).unwrap();
        buffer.put_back(first, OperationId(8));
        assert_eq!(buffer.give_up(OperationId(8)).map(|request| request.ticket), Some(6));
        assert_eq!(taken(&mut buffer, |_| true), [(1, 7)]);
    }

    #[test]
    fn a_source_holds_256_requests() {
        let mut buffer = AccessBuffer::default();
        for ticket in 0..256 {
            buffer.push(request(1, ticket, 1)).unwrap();
        }
        assert_eq!(buffer.push(request(1, 256, 1)), Err(Full));
        assert_eq!(buffer.push(request(2, 0, 1)), Ok(()));
        buffer.take(|request| request.origin.node == NodeId(1)).unwrap();
        assert_eq!(buffer.push(request(1, 257, 1)), Ok(()));
    }

    #[test]
    fn a_source_holds_1_mib() {
        let mut buffer = AccessBuffer::default();
        for ticket in 0..16 {
            buffer.push(request(1, ticket, 64 << 10)).unwrap();
        }
        assert_eq!(buffer.push(request(1, 16, 1)), Err(Full));
        let read = Inbound { kind: RequestKind::Read { len: 64 << 10 }, ..request(1, 16, 0) };
        assert_eq!(buffer.push(read), Ok(()), "a read holds no bytes");
        buffer.take(|_| true).unwrap();
        assert_eq!(buffer.push(request(1, 17, 64 << 10)), Ok(()));
        assert_eq!(buffer.push(request(2, 0, (1 << 20) + 1)), Err(Full));
        assert!(buffer.find(origin(2)).is_err());
    }

    #[test]
    fn what_waits_behind_others_keeps_nothing_that_was_received_with_it() {
        let mut buffer = AccessBuffer::default();
        // Each long payload is a small part of what was received with it.
        let received: Vec<_> = (0..8).map(|_| Bytes::from(vec![7; 1 << 20])).collect();
        for (ticket, received) in (0..).zip(&received) {
            let kind = RequestKind::Write(received.slice(64..64 + (64 << 10)).into());
            buffer.push(Inbound { kind, ..request(1, ticket, 0) }).unwrap();
        }
        let still_held = received.into_iter().filter(|bytes| !bytes.is_unique()).count();
        assert_eq!(still_held, 1, "the first may be executed at once");
        let taken = core::iter::from_fn(|| buffer.take(|_| true)).map(|(request, _)| request.kind.len());
        assert_eq!(taken.collect::<Vec<_>>(), [64 << 10; 8]);
    }

    #[test]
    fn discarding_a_source_leaves_the_others() {
        let mut buffer = AccessBuffer::default();
        for (source, ticket) in [(1, 0), (2, 0), (1, 1)] {
            buffer.push(request(source, ticket, 1 << 19)).unwrap();
        }
        buffer.discard(origin(1));
        assert_eq!(buffer.push(request(1, 2, 1 << 20)), Ok(()), "its bytes are free again");
        assert_eq!(taken(&mut buffer, |_| true), [(1, 2), (2, 0)]);
    }

    #[test]
    fn draining_gives_everything_in_the_order_of_each_source() {
        let mut buffer = AccessBuffer::default();
        for (source, ticket) in [(2, 0), (1, 0), (2, 1)] {
            buffer.push(request(source, ticket, 1)).unwrap();
        }
        let drained: Vec<_> = buffer.drain().map(|r| (r.origin.node.0, r.ticket)).collect();
        assert_eq!(drained, [(1, 0), (2, 0), (2, 1)]);
        assert_eq!(buffer.len(), 0);
    }
}
