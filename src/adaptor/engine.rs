//! The DMA engine among the units: its memory operations take turns with the master unit's, and its transactions go to the mesh.

use core::time::Duration;

use super::channel::Channel;
use super::function::event;
use super::memory::MemoryOperation;
use super::{Adaptor, Instant};

impl Adaptor {
    /// How long the DMA engine looks at a queue's ring after work before it needs a doorbell. (At first it does not.) Call
    /// [`Self::poll_probe`] again and again while [`Self::is_polling`].
    pub const fn set_queue_poll(&mut self, poll: Duration) {
        self.engine.set_poll(poll);
    }

    /// Whether the DMA engine looks at rings without a doorbell now.
    pub const fn is_polling(&self) -> bool {
        self.engine.is_awake()
    }

    /// The next look at a ring, as [`Self::poll_memory`]; `None` once after all that are to be looked at.
    pub fn poll_probe(&mut self, now: Instant) -> Option<MemoryOperation> {
        if self.function.config.bus_master_enabled() { self.engine.poll_probe(now) } else { None }
    }

    /// The next memory operation of any unit: of the engine and the master unit in turn.
    pub(super) fn next_operation(&mut self, now: Instant) -> Option<MemoryOperation> {
        let engine_first = !core::mem::take(&mut self.engine_was_last);
        if engine_first && let operation @ Some(_) = self.poll_engine(now) {
            return operation;
        }
        let operation = self.poll_master(now);
        if engine_first || operation.is_some() { operation } else { self.poll_engine(now) }
    }

    /// The master unit's next memory operation.
    fn poll_master(&mut self, now: Instant) -> Option<MemoryOperation> {
        let mesh = &self.mesh;
        let may_execute = |origin, direction| mesh.may_execute(now, origin, direction);
        let operation = self.master.poll_operation(may_execute);
        self.collect_answers();
        self.tell_of_messages(now);
        operation
    }

    /// The engine's next memory operation.
    fn poll_engine(&mut self, now: Instant) -> Option<MemoryOperation> {
        let operation = self.engine.poll_operation(now);
        self.pass_on_engine(now);
        self.engine_was_last = operation.is_some();
        operation
    }

    /// Passes on what the engine has for other units.
    pub(super) fn pass_on_engine(&mut self, now: Instant) {
        let mut has_run = false;
        while let Some(request) = self.engine.poll_request() {
            has_run = true;
            self.mesh.submit(Channel::Bulk, request);
        }
        if let Some(result) = self.engine.poll_order_done() {
            self.master.finish_order(result);
            has_run = true;
        }
        if self.engine.take_event() {
            self.function.raise(event::QUEUE);
        }
        // Where they are refused at once, or somebody has to be told.
        if has_run {
            self.run(now);
        }
    }
}
