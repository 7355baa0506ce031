//! The registers of assurance beyond the check of a block: ranges, failed blocks; and where the spaces lie.
//!
//! Invariant: a load that touches RANGE_STATUS is answered when its range check is, and by nothing else.

use std::collections::BTreeMap;

use super::address::{BLOCK_SIZE, Block, IO_WINDOW_SIZE, OFFSET_BITS, Space};
use super::bus::{Completion, LoadTag};
use super::pci::{Register, RegisterWrite, registers};
use super::{Adaptor, Instant, Region};

/// The loads from registers that wait for a range check.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RangeLoads {
    /// Where each loads from, and how many bytes. Bounded by the checks that the target unit lets wait.
    waiting: BTreeMap<LoadTag, (u64, usize)>,
    /// The answer of the last range check.
    status: u32,
}

impl Default for RangeLoads {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), status: u32::MAX }
    }
}

impl RangeLoads {
    /// RANGE_STATUS as the load has it that is being answered.
    pub(super) const fn status(&self) -> u32 {
        self.status
    }
}

impl Adaptor {
    /// A load from BAR0. It is answered at once, unless it touches RANGE_STATUS.
    pub(super) fn load_registers(&mut self, now: Instant, tag: LoadTag, offset: u64, len: usize) {
        if registers::touches(Register::RangeStatus, offset, len) {
            let written = self.function.written;
            self.ranges.waiting.insert(tag, (offset, len));
            // A space that does not exist has no addresses.
            let space = Space::from_bits(written.range_space.into());
            let (start, end) = space.map_or((0, 0), |_| (written.range_start, written.range_end));
            self.target.check_range(now, tag, space.unwrap_or(Space::Memory), start, end);
        } else {
            let completion = self.read_registers(tag, offset, len);
            self.completions.push_back(completion);
        }
    }

    /// What the target unit answers is passed on, but for a range check: that completes the load from the registers.
    pub(super) fn finish_register_load(&mut self, completion: Completion) -> Completion {
        let Some((offset, len)) = self.ranges.waiting.remove(&completion.tag) else { return completion };
        self.ranges.status =
            completion.data.first_chunk().map_or(u32::MAX, |bytes| u32::from_le_bytes(*bytes));
        self.read_registers(completion.tag, offset, len)
    }

    fn read_registers(&mut self, tag: LoadTag, offset: u64, len: usize) -> Completion {
        if registers::covers_lowest(Register::FailedBlock, offset, len) {
            self.target.take_failed();
        }
        let pops_ready = registers::covers_lowest(Register::QueueReady, offset, len);
        let mut data = vec![0; len];
        let register = |register| self.register(register);
        let node = |node| self.node_entry(node);
        let doorbells = self.master.messages().doorbells();
        registers::read(offset, &mut data, register, node, doorbells, &self.function.msix);
        if pops_ready {
            self.engine.pop_ready();
        }
        Completion { tag, data: data.into() }
    }

    /// FAILED_BLOCK: the block that software was shown, as an address with the space's number in its low bits.
    pub(super) fn failed_block(&self) -> u64 {
        self.target.taken_failed().map_or(u64::MAX, |Block { space, node, index }| {
            u64::from(node.0) << OFFSET_BITS | index.saturating_mul(BLOCK_SIZE) | u64::from(space.bits())
        })
    }

    /// Base or extent of a space.
    pub(super) fn space_register(&self, register: Register) -> u64 {
        let geometry = self.settings.geometry;
        let base = |region: Region| self.function.config.base(region, region.size(geometry));
        match register {
            Register::RegisterBase => base(Region::Registers),
            Register::RegisterExtent => Region::Registers.size(geometry),
            Register::IoBase => base(Region::Io),
            Register::IoExtent => geometry.io().space_size(),
            Register::AccessBase => base(Region::Access),
            Register::AssuranceBase => base(Region::Assurance),
            Register::AccessExtent | Register::AssuranceExtent => geometry.space_size(),
            Register::IoWindowSize => IO_WINDOW_SIZE,
            _ => 0,
        }
    }

    /// A write to one of these registers.
    pub(super) fn write_assurance_register(&mut self, write: RegisterWrite) {
        if write.register == Register::FailedPop {
            self.target.pop_failed();
            return;
        }
        let low = u32::try_from(write.value & u64::from(u32::MAX)).unwrap_or(0);
        let written = &mut self.function.written;
        match write.register {
            Register::RangeStart => written.range_start = write.value,
            Register::RangeEnd => written.range_end = write.value,
            Register::RangeSpace => written.range_space = low,
            _ => {}
        }
    }
}
