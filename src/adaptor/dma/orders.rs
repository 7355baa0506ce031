//! What commands ask of the engine: keys and queues come and go.
//!
//! Invariant: at most one order is under way, as the mailbox gives them; one that takes away ends only when nothing uses any
//! more what it took.

use super::Engine;
use super::keys::{Key, LocalRights};
use super::queue::{Number, Queue, QueueShape};
use crate::adaptor::Instant;
use crate::adaptor::master::CommandStatus;
use crate::adaptor::runs::Runs;
use crate::adaptor::status::Code;

/// What a command asks of the engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Register memory; the result is its key.
    Register {
        /// Whose queues may name it.
        domain: u32,
        /// What the engine may do with it.
        rights: LocalRights,
        /// Where it is.
        runs: Runs,
    },
    /// Take a key back.
    Deregister(Key),
    /// Make a queue; the result is its number.
    Create(QueueShape),
    /// Remove the queue with this number.
    Destroy(u64),
}

/// What an order waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Waiting {
    /// That nothing uses the memory of the key.
    Key(Key),
    /// That nothing of the queue is under way.
    Queue(Number),
}

impl Engine {
    /// Begins an order; how it ends comes from [`Self::poll_order_done`].
    pub fn handle_order(&mut self, now: Instant, order: Order) {
        let result = match order {
            Order::Register { domain, rights, runs } => {
                self.keys.register(domain, rights, runs).map(|key| Some(key.0.into()))
            }
            Order::Deregister(key) => self.deregister(now, key).map(|is_gone| is_gone.then_some(0)),
            Order::Create(shape) => self.create(shape).map(|number| Some(number.into())),
            Order::Destroy(number) => self.destroy(now, number).map(|number| {
                self.waiting = Some(Waiting::Queue(number));
                None
            }),
        };
        self.finished = result.transpose();
        self.settle();
    }

    /// How the order ended: COMMAND_RESULT, or why not.
    pub const fn poll_order_done(&mut self) -> Option<Result<u64, CommandStatus>> {
        self.finished.take()
    }

    /// From now on nobody finds the memory, and what waits for its pages is not begun. Whether nothing uses it any more.
    fn deregister(&mut self, now: Instant, key: Key) -> Result<bool, CommandStatus> {
        if self.keys.deregister(key)? {
            return Ok(true);
        }
        self.drop_faults_of_key(now, key);
        self.waiting = Some(Waiting::Key(key));
        Ok(false)
    }

    fn create(&mut self, shape: QueueShape) -> Result<Number, CommandStatus> {
        let ranges = shape.ranges()?;
        let free = self.queues.iter().position(Option::is_none).unwrap_or(self.queues.len());
        let number = Number::try_from(free).map_err(|_| CommandStatus::TooMany)?;
        if number >= self.limit {
            return Err(CommandStatus::TooMany);
        }
        self.keys.pin(shape.domain, shape.key, &ranges)?;
        if free == self.queues.len() {
            self.queues.push(None);
        }
        if let Some(place) = self.queues.get_mut(free) {
            *place = Some(Box::new(Queue::new(shape)));
        }
        Ok(number)
    }

    /// From now on nothing of the queue is begun.
    fn destroy(&mut self, now: Instant, number: u64) -> Result<Number, CommandStatus> {
        let number = Number::try_from(number).map_err(|_| CommandStatus::NotFound)?;
        let queue = self.queue(number).ok_or(CommandStatus::NotFound)?;
        queue.is_closing = true;
        // What waits here is not to land.
        let landings = core::mem::take(&mut queue.landings);
        self.drop_faults(now, number);
        for (id, _) in landings {
            self.end_transfer(now, id, Code::Flushed, 0);
        }
        Ok(number)
    }

    /// Ends the order under way if what it waits for is so.
    pub(super) fn settle(&mut self) {
        let is_over = match self.waiting {
            None => false,
            Some(Waiting::Key(key)) => !self.keys.is_closing(key),
            Some(Waiting::Queue(number)) => self.get(number).is_none_or(Queue::is_quiet),
        };
        if !is_over {
            return;
        }
        if let Some(Waiting::Queue(number)) = self.waiting.take() {
            self.remove(number);
        }
        self.finished = Some(Ok(0));
    }

    fn remove(&mut self, number: Number) {
        let place = usize::try_from(number).ok().and_then(|at| self.queues.get_mut(at));
        if let Some(queue) = place.and_then(Option::take) {
            self.keys.unpin(queue.shape.key);
            self.taken = self.taken.saturating_sub(queue.taken());
        }
        self.stalled.retain(|&other| other != number);
        self.active.retain(|&other| other != number);
        self.awake.retain(|&other| other != number);
        self.ready.retain(|&other| other != number);
        self.alarms.retain(|&(_, other)| other != number);
    }
}
