//! The DMA engine: carries out operations that user processes post in rings in guest memory, on registered memory.
//!
//! A queue's ring is read, its operations are cut into transactions of the bulk channel, and when these have ended a
//! completion is written. Every step that needs the guest's memory is a memory operation, like those of the master unit.
//!
//! Invariant: a queue names memory of its own domain only; what was deregistered, destroyed or reset is not touched any more;
//! and what one queue does, or has in its ring, costs the others nothing but their turn.

pub mod entry;
mod faults;
mod keys;
mod list;
mod operation;
mod orders;
mod queue;
mod rings;
mod serve;
#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests;
mod transfers;
mod ways;

use bytes::Bytes;
use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

pub use keys::{Key, LocalRights, MAX_KEYS, MAX_RUNS};
pub use orders::Order;
pub use queue::{Number, QueueShape};

use self::faults::Fault;
use self::keys::Keys;
use self::orders::Waiting;
use self::queue::{Alarm, Queue, Rest};
use self::transfers::{Kind, Transfer, Transfers};
use self::ways::Ways;
use super::Instant;
use super::address::NodeSet;
use super::master::CommandStatus;
use super::memory::{MemoryFault, MemoryOperation, MemoryResult, OperationId};
use super::status::Code;
use super::transaction::{Finished, Request, TransactionId};

/// Queues for each node of the access space.
pub const QUEUES_PER_NODE: u32 = 16;
/// The bit that tells the engine's memory operations from others.
const OWN: u64 = 1 << 63;

/// Where in a doorbell page a queue's state stands.
const STATE: u64 = 0x18;
/// Pieces that are cut, and queues that are served, before others than the engine have their turn.
const WORK_AT_ONCE: usize = 1024;

/// What a memory operation under way is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Purpose {
    /// To look at the submission ring.
    Ring,
    /// To read a part of the scatter list of this operation, in the memory of this key.
    List(Key, u32),
    /// To put into memory what a transaction has read.
    Land(TransactionId),
    /// To write completions.
    Complete,
    /// To tell the guest that the queue is awake.
    Wake,
    /// To tell the guest that it is not.
    Doze,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Engine {
    /// How long a ring is looked at after work before a doorbell is needed.
    poll: Duration,
    /// The nodes of the same process, which memory is lent to.
    beside: NodeSet,
    limit: u32,
    keys: Keys,
    queues: Vec<Option<Box<Queue>>>,
    /// Queues that have something to do, in turn.
    active: VecDeque<Number>,
    /// Queues that are looked at without a doorbell.
    awake: Vec<Number>,
    /// The next of them in [`Self::poll_probe`].
    probed: usize,
    transfers: Transfers,
    ways: Ways,
    running: VecDeque<(OperationId, Number, Purpose)>,
    faults: VecDeque<Fault>,
    next: u64,
    requests: VecDeque<Request>,
    /// Operations that ended with an error.
    failed: u64,
    /// Entries of all queues that were taken and not completed.
    taken: u32,
    /// Queues whose rings could not be reached, and when that is tried again.
    stalled: Vec<Number>,
    retry_at: Option<Instant>,
    /// More was to be done than one call does.
    is_cut: bool,
    /// Queues with completions that the guest waits for.
    ready: VecDeque<Number>,
    ready_event: bool,
    /// When the guest is told of such completions at the latest.
    alarms: BTreeSet<(Instant, Number)>,
    waiting: Option<Waiting>,
    finished: Option<Result<u64, CommandStatus>>,
}

impl Engine {
    /// An engine without keys and queues, for an access space of so many nodes.
    pub fn new(nodes: u16) -> Self {
        Self {
            poll: Duration::ZERO,
            beside: NodeSet::EMPTY,
            limit: u32::from(nodes).saturating_mul(QUEUES_PER_NODE),
            keys: Keys::default(),
            queues: Vec::new(),
            active: VecDeque::new(),
            awake: Vec::new(),
            probed: 0,
            transfers: Transfers::default(),
            ways: Ways::default(),
            running: VecDeque::new(),
            faults: VecDeque::new(),
            next: 0,
            requests: VecDeque::new(),
            failed: 0,
            taken: 0,
            stalled: Vec::new(),
            retry_at: None,
            is_cut: false,
            ready: VecDeque::new(),
            ready_event: false,
            alarms: BTreeSet::new(),
            waiting: None,
            finished: None,
        }
    }

    /// How long a ring is looked at after work before a doorbell is needed; not at all at first.
    pub const fn set_poll(&mut self, poll: Duration) {
        self.poll = poll;
    }

    /// The nodes of the same process, which memory is lent to; none at first.
    pub const fn set_beside(&mut self, nodes: NodeSet) {
        self.beside = nodes;
    }

    /// The function is reset: there are no keys and queues any more, and what was under way has no effect here.
    pub fn reset(&mut self) {
        let mut keys = core::mem::take(&mut self.keys);
        keys.clear();
        let mut transfers = core::mem::take(&mut self.transfers);
        transfers.clear();
        let (poll, beside, limit, next) = (self.poll, self.beside, self.limit, self.next);
        *self = Self { poll, beside, limit, next, keys, transfers, ..Self::new(0) };
    }

    /// Whether a memory operation is the engine's.
    pub const fn is_own(id: OperationId) -> bool {
        id.0 & OWN != 0
    }

    /// Whether a transaction of the bulk channel is the engine's.
    pub const fn carries(id: TransactionId) -> bool {
        Transfers::is_own(id)
    }

    /// Whether any queue is looked at without a doorbell now.
    pub const fn is_awake(&self) -> bool {
        !self.awake.is_empty()
    }

    /// The guest writes to a queue's doorbell page. What is no register there, or a page without a queue, is ignored.
    pub fn ring(&mut self, now: Instant, number: Number, offset: u64, data: &[u8]) {
        let (4 | 8, Some(value)) = (data.len(), data.first_chunk()) else { return };
        let value = u32::from_le_bytes(*value);
        let Some(queue) = self.queue(number) else { return };
        match offset {
            0x00 => self.wake(now, number, true),
            0x08 => {
                (queue.armed, queue.due) = (Some(value), None);
                self.check_alarm(now, number);
            }
            0x10 => {
                queue.resume(value);
                self.list(number);
            }
            _ => {}
        }
    }

    /// The guest reads so many bytes of a queue's doorbell page: its state, and 0 all around it.
    pub fn peek(&self, number: Number, offset: u64, len: usize) -> Bytes {
        let state = self.get(number).map_or(0, Queue::state).to_le_bytes();
        let byte = |at: u64| {
            let within = at.checked_sub(STATE).and_then(|within| usize::try_from(within).ok());
            within.and_then(|within| state.get(within)).copied().unwrap_or(0)
        };
        (0u64..).take(len).map(|at| byte(offset.saturating_add(at))).collect()
    }

    /// The next queue with a completion that the guest waits for.
    pub fn next_ready(&self) -> Option<Number> {
        self.ready.front().copied()
    }

    /// The guest has seen it.
    pub fn pop_ready(&mut self) {
        if let Some(number) = self.ready.pop_front()
            && let Some(queue) = self.queue(number)
        {
            queue.is_ready = false;
        }
    }

    /// True once after a completion came that the guest waits for.
    pub const fn take_event(&mut self) -> bool {
        core::mem::replace(&mut self.ready_event, false)
    }

    /// A transaction for the bulk channel, in order.
    pub fn poll_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// Operations that ended with an error since the reset.
    pub const fn failed(&self) -> u64 {
        self.failed
    }

    /// A transaction has ended. One that is not known any more is ignored.
    pub fn complete(&mut self, now: Instant, finished: Finished) {
        let Finished { id, code, data } = finished;
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        let is_whole = u64::try_from(data.len()).is_ok_and(|len| len == transfer.bytes);
        let (number, brings, lands) =
            (transfer.queue, !matches!(transfer.kind, Kind::Write), matches!(transfer.kind, Kind::Read(_)));
        let former = data.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        match code {
            Code::Ok if brings && !is_whole => self.end_transfer(now, id, Code::Corrupt, 0),
            Code::Ok if lands => self.take_landing(now, number, id, data),
            _ => self.end_transfer(now, id, code, if brings { former } else { 0 }),
        }
    }

    /// What was read elsewhere waits for its turn to be put into local memory.
    fn take_landing(&mut self, now: Instant, number: Number, id: TransactionId, data: Bytes) {
        match self.queue(number) {
            Some(queue) if !queue.is_closing => {
                queue.landings.push_back((id, data));
                self.list(number);
            }
            _ => self.end_transfer(now, id, Code::Flushed, 0),
        }
    }

    /// A piece has ended, whether it was sent or not.
    fn end_transfer(&mut self, now: Instant, id: TransactionId, code: Code, former: u64) {
        let Some(transfer) = self.transfers.remove(id) else { return };
        let Transfer { queue: number, operation, at, place, bytes, held, sent, .. } = transfer;
        for &key in held.keys() {
            self.keys.release(key);
        }
        let mut woken = Vec::new();
        self.ways.free(now, place.node, bytes, sent, &mut woken);
        if let Some(queue) = self.queue(number) {
            queue.requests = queue.requests.saturating_sub(1);
            queue.bytes = queue.bytes.saturating_sub(bytes);
            if !code.is_ok() {
                queue.fail();
            }
            if let Some(operation) = queue.operation(operation) {
                operation.end_piece(at, code, former);
            }
            self.harvest(number);
        }
        // Those that have waited come before the one whose room it was.
        for number in woken {
            if let Some(queue) = self.queue(number) {
                queue.waits = false;
            }
            self.list(number);
        }
        self.list(number);
        self.settle();
    }

    /// The next memory operation, of the queues in turn. `None` comes also where much was done without one; then
    /// [`Self::poll_timeout`] says that there is more to do.
    pub fn poll_operation(&mut self, now: Instant) -> Option<MemoryOperation> {
        if let served @ Some(_) = self.next_served() {
            return served;
        }
        let mut work = 0usize;
        while let Some(number) = self.active.pop_front() {
            if let Some(queue) = self.queue(number) {
                queue.is_listed = false;
            }
            let operation = self.step(now, number, &mut work);
            if operation.is_some() {
                self.list(number);
                return operation;
            }
            work = work.saturating_add(1);
            if work >= WORK_AT_ONCE {
                self.is_cut = !self.active.is_empty();
                return None;
            }
        }
        self.is_cut = false;
        None
    }

    /// A look at the ring of the next queue that is awake; `None` once after all of them.
    pub fn poll_probe(&mut self, now: Instant) -> Option<MemoryOperation> {
        while let Some(&number) = self.awake.get(self.probed) {
            self.probed = self.probed.saturating_add(1);
            let Some(queue) = self.queue(number) else { continue };
            if let Rest::Awake(until) = queue.rest
                && until > now
                && !queue.is_listed
                && let Some(operation) = self.look(number)
            {
                return Some(operation);
            }
        }
        self.probed = 0;
        None
    }

    /// One step of a queue: what has to be done soonest.
    fn step(&mut self, now: Instant, number: Number, work: &mut usize) -> Option<MemoryOperation> {
        if self.queue(number)?.is_closing {
            return None;
        }
        // Operations are not small: each is handed on as it is, not through a chain of options.
        if let operation @ Some(_) = self.tell_rest(number) {
            return operation;
        }
        if self.queue(number)?.lands_first()
            && let operation @ Some(_) = self.land(number)
        {
            return operation;
        }
        if let operation @ Some(_) = self.write_completions(number) {
            return operation;
        }
        if let operation @ Some(_) = self.land(number) {
            return operation;
        }
        if let operation @ Some(_) = self.serve(now, number, work) {
            return operation;
        }
        // What was handed out may have ended at once.
        if let operation @ Some(_) = self.write_completions(number) {
            return operation;
        }
        if self.queue(number)?.look { self.look(number) } else { None }
    }

    /// A memory operation has ended. One that is not known any more is ignored.
    pub fn handle_done(&mut self, now: Instant, id: OperationId, result: MemoryResult) {
        let Some(at) = self.running.iter().position(|(running, ..)| *running == id) else { return };
        let Some((_, number, purpose)) = self.running.remove(at) else { return };
        if let Some(queue) = self.queue(number) {
            queue.running = queue.running.saturating_sub(1);
        }
        match purpose {
            Purpose::Ring => self.ring_was_read(now, number, result),
            Purpose::List(key, index) => self.list_was_read(number, key, index, result),
            Purpose::Land(id) => {
                let code = match result {
                    Ok(_) => Code::Ok,
                    Err(MemoryFault::Partial) => Code::Partial,
                    Err(_) => Code::LocalFault,
                };
                self.end_transfer(now, id, code, 0);
            }
            Purpose::Complete => self.completions_were_written(now, number, result.is_ok()),
            Purpose::Wake => self.woke(number),
            Purpose::Doze => self.dozed(now, number, result.is_ok()),
        }
        self.list(number);
        self.settle();
    }

    /// When to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_cut {
            return Some(Instant::ZERO);
        }
        let alarm = self.alarms.first().map(|&(at, _)| at);
        let until = |&number: &Number| match self.get(number)?.rest {
            Rest::Awake(until) => Some(until),
            Rest::Asleep | Rest::Dozing | Rest::LastLook => None,
        };
        self.awake.iter().filter_map(until).chain(alarm).chain(self.retry_at).min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.is_cut = false;
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry();
        }
        while let Some(&(at, number)) = self.alarms.first().filter(|(at, _)| *at <= now) {
            self.alarms.remove(&(at, number));
            if let Some(queue) = self.queue(number) {
                queue.alarm_at = None;
            }
            self.check_alarm(now, number);
        }
        self.put_to_rest(now);
    }

    /// Tells the guest of completions that it waits for, now or at a time.
    fn check_alarm(&mut self, now: Instant, number: Number) {
        let Some(queue) = self.queue(number) else { return };
        let alarm = queue.alarm(now);
        let at = if let Alarm::At(at) = alarm { Some(at) } else { None };
        let before = core::mem::replace(&mut queue.alarm_at, at);
        if before != at {
            before.map(|before| self.alarms.remove(&(before, number)));
            at.map(|at| self.alarms.insert((at, number)));
        }
        if alarm == Alarm::Now {
            self.tell_ready(number);
        }
    }

    /// The guest is told of the queue.
    fn tell_ready(&mut self, number: Number) {
        if self.queue(number).is_some_and(|queue| !core::mem::replace(&mut queue.is_ready, true)) {
            self.ready.push_back(number);
            self.ready_event = true;
        }
    }

    /// Names a memory operation of a queue.
    fn begin(&mut self, number: Number, purpose: Purpose) -> OperationId {
        let id = OperationId(OWN | self.next);
        self.next = self.next.wrapping_add(1) & !OWN;
        if let Some(queue) = self.queue(number) {
            queue.running = queue.running.saturating_add(1);
        }
        self.running.push_back((id, number, purpose));
        id
    }

    /// The queue has something to do.
    fn list(&mut self, number: Number) {
        if let Some(queue) = self.queue(number)
            && !core::mem::replace(&mut queue.is_listed, true)
        {
            self.active.push_back(number);
        }
    }

    fn queue(&mut self, number: Number) -> Option<&mut Queue> {
        self.queues.get_mut(usize::try_from(number).ok()?)?.as_deref_mut()
    }

    fn get(&self, number: Number) -> Option<&Queue> {
        self.queues.get(usize::try_from(number).ok()?)?.as_deref()
    }
}
