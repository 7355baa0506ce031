//! The registers of BAR0 as the units give their values and take what is written. `pci::registers` has their places and their fields.

use core::time::Duration;

use super::address::{BLOCK_SIZE, NodeId};
use super::inventory::Entry;
use super::master::{CommandStatus, MemoryView, Sharing};
use super::messages::{self, Message};
use super::pci::{NodeEntry, Register, RegisterWrite};
use super::{Adaptor, Instant, Settings};

impl Adaptor {
    pub(super) fn node_entry(&self, node: NodeId) -> NodeEntry {
        let mut entry = NodeEntry::default();
        if node == self.settings.node {
            entry.state = 1 << 3;
            entry.incarnation = self.incarnation.0;
        } else if let Some(peer) = self.mesh.peer(node) {
            entry.state = 1
                | u32::from(peer.up) << 1
                | u32::from(peer.too_far) << 4
                | u32::from(peer.lease_differs) << 5;
            entry.changes = peer.changes;
            entry.incarnation = peer.incarnation;
        }
        entry.state |= u32::from(self.target.overflowed(node)) << 2;
        entry
    }

    /// Number of entries and version of the inventory that the guest has selected.
    fn selected_inventory(&self) -> (usize, u32) {
        match NodeId(self.function.written.inventory_select.to_le_bytes()[0]) {
            own if own == self.settings.node => {
                self.inventory.own_summary(&self.master, self.settings.geometry.window_size())
            }
            peer => self.inventory.summary(peer),
        }
    }

    /// The entry of it that the guest has selected; zeros where there is none.
    fn selected_entry(&self) -> Entry {
        let select = self.function.written.inventory_select;
        let index = usize::try_from(select >> 8).unwrap_or(usize::MAX);
        let entry = match NodeId(select.to_le_bytes()[0]) {
            own if own == self.settings.node => {
                self.inventory.own_entry(&self.master, self.settings.geometry.window_size(), index)
            }
            peer => self.inventory.entry(peer, index),
        };
        entry.unwrap_or_default()
    }

    pub(super) fn register(&self, register: Register) -> u64 {
        let Settings { node, geometry, timing, .. } = self.settings;
        let counters = self.target.counters();
        let messages = self.master.messages();
        match register {
            Register::Magic => u32::from_le_bytes(*b"ARDM").into(),
            Register::Version => 1 << 16 | 2,
            Register::Status => {
                let sharing = match self.master.sharing() {
                    Sharing::Unknown => 0b001,
                    Sharing::Shared => 0b011,
                    Sharing::NotShared => 0b101,
                };
                let partly = self.master.memory_view() == MemoryView::Partly;
                sharing | u64::from(self.duplicate) << 3 | u64::from(partly) << 4
            }
            Register::NodeId => node.0.into(),
            Register::NodeCount => geometry.nodes().into(),
            Register::AddressSplit => u64::from(
                geometry.window_bits() | geometry.bus_bits() << 8 | BLOCK_SIZE.trailing_zeros() << 16,
            ),
            Register::Incarnation => self.incarnation.0,
            Register::WindowSize => geometry.window_size(),
            Register::Deadline => micros(timing.deadline),
            Register::Lease => micros(timing.lease),
            Register::Event => self.function.events().into(),
            Register::CommandStatus => self.master.command_status() as u64,
            Register::CommandResult => self.master.command_result(),
            Register::ErrorCount => u64::try_from(self.target.logged_blocks()).unwrap_or(u64::MAX),
            Register::Stores => counters.stores,
            Register::Loads => counters.loads,
            Register::Checks => counters.checks,
            Register::Errors => counters.errors,
            Register::ServedWrites => self.master.served_writes(),
            Register::ServedReads => self.master.served_reads(),
            Register::Refused => self.master.refused(),
            Register::FailedOperations => self.engine.failed(),
            Register::UnknownPackets => self.mesh.unknown_packets(),
            Register::LateLeases => self.mesh.late_leases(),
            Register::RegisterBase
            | Register::RegisterExtent
            | Register::IoBase
            | Register::IoExtent
            | Register::AccessBase
            | Register::AccessExtent
            | Register::AssuranceBase
            | Register::AssuranceExtent
            | Register::IoWindowSize => self.space_register(register),
            Register::RangeStatus => self.ranges.status().into(),
            Register::FailedBlock => self.failed_block(),
            Register::FailedCount => u64::try_from(self.target.failed_blocks()).unwrap_or(u64::MAX),
            Register::MessageInfo => messages.front().map_or(0, Message::info),
            Register::MessageCount => messages.count().into(),
            Register::MessageData => messages.front().map_or(0, |message| message.data),
            Register::MessageNumber => messages.number().into(),
            Register::MessageLimit => messages::LIMIT.into(),
            Register::MessageOverflows => messages.overflows().into(),
            Register::MessagesReceived => messages.received(),
            Register::InventoryCount => u64::try_from(self.selected_inventory().0).unwrap_or(u64::MAX),
            Register::InventoryVersion => self.selected_inventory().1.into(),
            Register::InventoryKind => self.selected_entry().kind.into(),
            Register::InventoryRights => self.selected_entry().rights.into(),
            Register::InventoryOffset => self.selected_entry().offset,
            Register::InventoryLength => self.selected_entry().len,
            Register::InventoryName0 => self.selected_entry().name.word(0),
            Register::InventoryName1 => self.selected_entry().name.word(1),
            Register::InventoryName2 => self.selected_entry().name.word(2),
            Register::QueueReady => u64::from(self.engine.next_ready().unwrap_or(u32::MAX)),
            Register::Control | Register::OverflowAck | Register::FailedPop | Register::MessagePop => 0,
            Register::EventEnable
            | Register::CommandAddress
            | Register::CommandCookie
            | Register::Command
            | Register::RangeStart
            | Register::RangeEnd
            | Register::RangeSpace
            | Register::MessageCoalesceCount
            | Register::MessageCoalesceTime
            | Register::EventVector
            | Register::QueueVector
            | Register::InventorySelect
            | Register::Session => self.function.written.get(register),
        }
    }

    pub(super) fn write_register(&mut self, now: Instant, write: RegisterWrite) {
        let low = u32::try_from(write.value & u64::from(u32::MAX)).unwrap_or(0);
        let written = &mut self.function.written;
        match write.register {
            Register::Event => self.function.clear_events(low),
            Register::EventEnable => self.function.enable_events(low),
            Register::CommandAddress => written.command_address = write.value,
            Register::CommandCookie => written.command_cookie = low,
            Register::EventVector => self.function.set_event_vector(low),
            Register::QueueVector => self.function.set_queue_vector(low),
            Register::MessagePop => self.master.messages_mut().pop(low),
            Register::MessageCoalesceCount => {
                written.message_coalesce_count = low;
                self.master.messages_mut().set_coalescing(written.coalescing());
            }
            Register::MessageCoalesceTime => {
                written.message_coalesce_time = low;
                self.master.messages_mut().set_coalescing(written.coalescing());
            }
            Register::InventorySelect => written.inventory_select = low,
            Register::Session => {
                written.session = low;
                self.target.set_session(low);
            }
            Register::OverflowAck => {
                if let Ok(node) = u8::try_from(low) {
                    self.target.acknowledge_overflow(NodeId(node));
                }
            }
            Register::Control if low & 1 != 0 => {
                self.function.reset_registers();
                let masked = self.function.config.msix_function_masked();
                self.function.msix.set_function_mask(masked);
                self.begin_new_life(now);
            }
            // Ignored while another command is under way.
            Register::Command if self.master.command_status() != CommandStatus::Busy => {
                written.command = low;
                let (address, cookie) = (written.command_address, written.command_cookie);
                self.master.start_command(low, address, cookie);
            }
            _ => self.write_assurance_register(write),
        }
    }
}

/// A duration as the registers have it.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
