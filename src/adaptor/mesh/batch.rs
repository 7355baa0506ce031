//! Several short requests that travel in one packet, one behind the other in their flow.
//!
//! Each is a head of 16 bytes (address, length, command, zeros), and behind it what it writes or its operands. Invariant: a batch
//! has at least one request and at most [`MAX_BATCH`] bytes, and one form only.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::packet::{address_of, command, location_of};
use crate::adaptor::address::Location;
use crate::adaptor::transaction::{Atomic, Extent, Payload, RequestKind};

/// Bytes of a batch. A short write keeps the batch that it came with while it waits, so that this times the requests of a flow's window
/// is no more than the window's bytes.
pub const MAX_BATCH: usize = 4 << 10;
/// The most bytes of a write, or of an answer, that travels with others: its own packet costs as much as a copy of so many.
pub const SHORT: usize = 512;
/// Bytes of a request's head.
const HEAD: usize = 16;
/// The most bytes of an atomic operation's operands.
const OPERANDS: usize = 16;

/// Requests as they stand on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Batch {
    list: Bytes,
    count: u32,
}

impl Batch {
    /// A batch from the wire; `None` where it is not in its one form.
    pub fn parse(list: Bytes) -> Option<Self> {
        if list.len() > MAX_BATCH {
            return None;
        }
        let (mut rest, mut count) = (&list[..], 0u32);
        while !rest.is_empty() {
            let (_, _, end) = first(rest)?;
            (_, rest) = rest.split_at_checked(end)?;
            count = count.saturating_add(1);
        }
        (count > 0).then_some(Self { list, count })
    }

    /// Its wire form.
    pub const fn as_bytes(&self) -> &Bytes {
        &self.list
    }

    /// How many requests it has.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// The same in memory of its own.
    pub(super) fn detach(&mut self) {
        self.list = Bytes::copy_from_slice(&self.list);
    }

    /// The requests, in order.
    pub fn requests(self) -> impl Iterator<Item = (Location, RequestKind<Bytes>)> {
        let mut rest = self.list;
        core::iter::from_fn(move || {
            let (at, kind, end) = first(&rest)?;
            let kind = match kind {
                RequestKind::Write(data) => RequestKind::Write(rest.slice_ref(data)),
                RequestKind::Read { len } => RequestKind::Read { len },
                RequestKind::Atomic(atomic) => RequestKind::Atomic(atomic),
            };
            rest.advance(end.min(rest.len()));
            Some((at, kind))
        })
    }
}

/// The first request of a list, and where it ends; `None` where it is not in its one form.
fn first(list: &[u8]) -> Option<(Location, RequestKind<&[u8]>, usize)> {
    let (&[a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, command, zeros @ ..], behind) =
        list.split_first_chunk::<HEAD>()?;
    let at = location_of(u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]))?;
    let len = u32::from_le_bytes([l0, l1, l2, l3]);
    let carried = if command == command::READ { 0 } else { usize::try_from(len).ok()? };
    let data = behind.get(..carried)?;
    if zeros != [0; 3] {
        return None;
    }
    let kind = match command {
        command::READ => RequestKind::Read { len },
        command::WRITE => RequestKind::Write(data),
        command::ATOMIC => RequestKind::Atomic(Atomic::from_operands(data)?),
        _ => return None,
    };
    Some((at, kind, HEAD.checked_add(carried)?))
}

/// Whether a request may travel with others.
pub fn is_short(kind: &RequestKind<Payload>) -> bool {
    match kind {
        RequestKind::Write(data) => data.extent() <= SHORT,
        RequestKind::Read { .. } | RequestKind::Atomic(_) => true,
    }
}

/// Puts a batch together.
#[derive(Debug, Default)]
pub struct Collector {
    list: BytesMut,
    count: u32,
}

impl Collector {
    /// Whether a request fits in, too.
    pub fn has_room(&self, kind: &RequestKind<Payload>) -> bool {
        is_short(kind) && self.list.len().saturating_add(HEAD).saturating_add(carried(kind)) <= MAX_BATCH
    }

    /// Appends a request, which has room.
    pub fn push(&mut self, at: Location, kind: &RequestKind<Bytes>) {
        match kind {
            RequestKind::Read { len } => self.put(at, *len, command::READ, &[]),
            RequestKind::Write(data) => self.put(at, length(data), command::WRITE, data),
            RequestKind::Atomic(atomic) => {
                let operands = atomic.operands();
                self.put(at, length(&operands), command::ATOMIC, &operands);
            }
        }
    }

    fn put(&mut self, at: Location, len: u32, command: u8, data: &[u8]) {
        if self.list.capacity() == 0 {
            self.list.reserve(MAX_BATCH);
        }
        self.list.put_u64_le(address_of(at));
        self.list.put_u32_le(len);
        self.list.put_slice(&[command, 0, 0, 0]);
        self.list.put_slice(data);
        self.count = self.count.saturating_add(1);
    }

    /// The batch; `None` where nothing was appended.
    pub fn finish(self) -> Option<Batch> {
        let Self { list, count } = self;
        (count > 0).then(|| Batch { list: list.freeze(), count })
    }
}

/// Bytes of a request behind its head.
fn carried(kind: &RequestKind<Payload>) -> usize {
    match kind {
        RequestKind::Write(data) => data.extent(),
        RequestKind::Read { .. } => 0,
        RequestKind::Atomic(_) => OPERANDS,
    }
}

fn length(data: &[u8]) -> u32 {
    u32::try_from(data.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
pub(super) mod tests {
    use super::*;

    pub fn batch(requests: &[(Location, RequestKind<Bytes>)]) -> Batch {
        let mut collector = Collector::default();
        requests.iter().for_each(|(at, kind)| collector.push(*at, kind));
        collector.finish().unwrap()
    }

    fn requests() -> Vec<(Location, RequestKind<Bytes>)> {
        vec![
            (Location::memory(0x1000), RequestKind::Write(Bytes::from_static(b"abc"))),
            (Location::memory(8), RequestKind::Read { len: 65536 }),
            (Location::io(16), RequestKind::Write(Bytes::new())),
            (Location::memory(24), RequestKind::Atomic(Atomic::Add(5))),
            (Location::memory(32), RequestKind::Atomic(Atomic::CompareSwap { compare: 1, swap: 2 })),
        ]
    }

    #[test]
    fn what_was_put_in_comes_out() {
        let batch = batch(&requests());
        assert_eq!(batch.count(), 5);
        assert_eq!(Batch::parse(batch.as_bytes().clone()), Some(batch.clone()));
        assert_eq!(batch.requests().collect::<Vec<_>>(), requests());
        assert_eq!(Collector::default().finish(), None);
    }

    #[test]
    fn a_list_that_is_cut_or_has_another_form_is_none() {
        let whole = batch(&requests());
        let ends = (1..=requests().len()).map(|count| batch(&requests()[..count]).as_bytes().len());
        let ends: Vec<_> = ends.collect();
        for len in 0..=whole.as_bytes().len() {
            let is_whole = Batch::parse(whole.as_bytes().slice(..len)).is_some();
            assert_eq!(is_whole, ends.contains(&len), "{len} bytes");
        }
        let mut first = batch(&requests()[..1]).as_bytes().to_vec();
        for (at, value) in [(7, 1), (6, 2), (12, 5), (13, 1), (15, 1), (8, 4), (8, 2)] {
            let before = core::mem::replace(&mut first[at], value);
            assert_eq!(Batch::parse(first.clone().into()), None, "byte {at} is {value}");
            first[at] = before;
        }
        assert!(Batch::parse(first.into()).is_some());
        assert_eq!(Batch::parse(vec![0; MAX_BATCH + 16].into()), None);
    }

    #[test]
    fn a_batch_ends_before_it_is_too_long() {
        let write = |len| RequestKind::Write(Payload::Bytes(vec![0; len].into()));
        let mut collector = Collector::default();
        assert!(collector.has_room(&write(SHORT)) && !collector.has_room(&write(SHORT + 1)));
        while collector.has_room(&write(SHORT)) {
            collector.push(Location::memory(0), &RequestKind::Write(vec![0; SHORT].into()));
        }
        assert_eq!(collector.count, 7);
        while collector.has_room(&RequestKind::Read { len: 1 << 16 }) {
            collector.push(Location::memory(0), &RequestKind::Read { len: 1 << 16 });
        }
        let batch = collector.finish().unwrap();
        assert_eq!(batch.as_bytes().len(), MAX_BATCH);
        assert!(Batch::parse(batch.as_bytes().clone()).is_some());
    }
}
