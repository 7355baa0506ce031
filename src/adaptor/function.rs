//! The state of the PCI function that no other unit keeps: configuration space, vectors, events, and the registers that hold what was written.

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
    /// All of them.
    pub const ALL: u32 = LINK | ERROR | COMMAND | MEMORY | DUPLICATE | INVENTORY;
}

/// The MSI-X vector of events.
const EVENT_VECTOR: u16 = 0;

/// Registers that hold what the guest wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Written {
    pub(super) event_enable: u32,
    pub(super) command_address: u64,
    pub(super) command_cookie: u32,
    pub(super) command: u32,
    pub(super) log_select: u32,
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
            Register::LogSelect => self.log_select.into(),
            Register::InventorySelect => self.inventory_select.into(),
            _ => 0,
        }
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
        if !self.events & event & self.written.event_enable != 0 {
            self.msix.raise(EVENT_VECTOR);
        }
        self.events |= event;
    }

    pub(super) const fn clear_events(&mut self, bits: u32) {
        self.events &= !bits;
    }

    /// Events that already happened are raised when they are enabled, so that none is missed in between.
    pub(super) fn enable_events(&mut self, bits: u32) {
        let bits = bits & event::ALL;
        if bits & !self.written.event_enable & self.events != 0 {
            self.msix.raise(EVENT_VECTOR);
        }
        self.written.event_enable = bits;
    }
}
