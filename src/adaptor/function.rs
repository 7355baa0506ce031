//! The state of the PCI function that no other unit keeps: configuration space, vectors, events, and the registers that hold what was written.

use core::time::Duration;

use super::messages::Coalescing;
use super::pci::{ConfigSpace, Msix, Register};

/// Events, as bits of EVENT and EVENT_ENABLE.
pub(super) mod event {
    /// A node's state changed.
    pub const LINK: u32 = 1 << 0;
    /// An error was logged in an empty log, or the log overflowed.
    pub const ERROR: u32 = 1 << 1;
    /// A command finished.
    pub const COMMAND: u32 = 1 << 2;
    /// The memory bits of STATUS changed.
    pub const MEMORY: u32 = 1 << 3;
    /// The duplicate bit of STATUS changed. Bit 4 is left to the driver, which has an event of its own there.
    pub const DUPLICATE: u32 = 1 << 5;
    /// What this node, or another one, exports has changed.
    pub const INVENTORY: u32 = 1 << 6;
    /// A block came into the queue of failed blocks.
    pub const FAILED: u32 = 1 << 7;
    /// A completion came that software waits for. It has a vector of its own.
    pub const QUEUE: u32 = 1 << 8;
    /// All of them.
    pub const ALL: u32 = LINK | ERROR | COMMAND | MEMORY | DUPLICATE | INVENTORY | FAILED | QUEUE;
}

/// Registers that hold what the guest wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct Written {
    pub(super) event_enable: u32,
    pub(super) command_address: u64,
    pub(super) command_cookie: u32,
    pub(super) command: u32,
    pub(super) range_start: u64,
    pub(super) range_end: u64,
    pub(super) range_space: u32,
    pub(super) message_coalesce_count: u32,
    pub(super) message_coalesce_time: u32,
    event_vector: u32,
    queue_vector: u32,
    pub(super) inventory_select: u32,
}

impl Written {
    /// The value of a register that is read back as it was written; 0 for all others.
    pub(super) fn get(&self, register: Register) -> u64 {
        match register {
            Register::EventEnable => self.event_enable.into(),
            Register::CommandAddress => self.command_address,
            Register::CommandCookie => self.command_cookie.into(),
            Register::Command => self.command.into(),
            Register::RangeStart => self.range_start,
            Register::RangeEnd => self.range_end,
            Register::RangeSpace => self.range_space.into(),
            Register::MessageCoalesceCount => self.message_coalesce_count.into(),
            Register::MessageCoalesceTime => self.message_coalesce_time.into(),
            Register::EventVector => self.event_vector.into(),
            Register::QueueVector => self.queue_vector.into(),
            Register::InventorySelect => self.inventory_select.into(),
            _ => 0,
        }
    }

    /// What the registers on coalescing say.
    pub(super) fn coalescing(&self) -> Coalescing {
        let time = Duration::from_micros(self.message_coalesce_time.into());
        Coalescing { count: self.message_coalesce_count, time }
    }
}

/// The function's own state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Function {
    pub(super) config: ConfigSpace,
    pub(super) msix: Msix,
    pub(super) written: Written,
    events: u32,
}

impl Function {
    /// Back to the state after power-on. Vectors stay connected: they are the host's.
    pub(super) fn reset(&mut self) {
        self.config.reset();
        self.reset_registers();
    }

    /// As [`Function::reset`], but the regions stay where they are on the bus.
    pub(super) fn reset_level(&mut self) {
        self.config.reset_function();
        self.reset_registers();
    }

    /// As [`Function::reset`], without configuration space.
    pub(super) fn reset_registers(&mut self) {
        self.msix.reset();
        self.written = Written::default();
        self.events = 0;
    }

    pub(super) const fn events(&self) -> u32 {
        self.events
    }

    /// An event happened.
    pub(super) fn raise(&mut self, event: u32) {
        self.raise_vectors(!self.events & event & self.written.event_enable);
        self.events |= event;
    }

    /// Raises the vectors of these events. One that does not exist is ignored.
    fn raise_vectors(&mut self, events: u32) {
        let Written { event_vector, queue_vector, .. } = self.written;
        let of_queues = events & event::QUEUE != 0;
        if events & !event::QUEUE != 0 || of_queues && queue_vector == event_vector {
            self.msix.raise(u16::try_from(event_vector).unwrap_or(u16::MAX));
        }
        if of_queues && queue_vector != event_vector {
            self.msix.raise(u16::try_from(queue_vector).unwrap_or(u16::MAX));
        }
    }

    /// Events go to this vector from now on; those that already happened are raised there too, so that none is missed.
    pub(super) fn set_event_vector(&mut self, vector: u32) {
        self.written.event_vector = vector;
        self.raise_vectors(self.written.event_enable & self.events & !event::QUEUE);
    }

    /// As [`Self::set_event_vector`], for the event of queues.
    pub(super) fn set_queue_vector(&mut self, vector: u32) {
        self.written.queue_vector = vector;
        self.raise_vectors(self.written.event_enable & self.events & event::QUEUE);
    }

    pub(super) const fn clear_events(&mut self, bits: u32) {
        self.events &= !bits;
    }

    /// Events that already happened are raised when they are enabled, so that none is missed in between.
    pub(super) fn enable_events(&mut self, bits: u32) {
        let bits = bits & event::ALL;
        self.raise_vectors(bits & !self.written.event_enable & self.events);
        self.written.event_enable = bits;
    }
}
