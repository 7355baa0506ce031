//! The function's configuration space: 4096 bytes, of which the guest may change a few bits.
//!
//! The base address registers are kept apart, in [`Bars`]: what is read here says only their types.
//!
//! Invariant: only the bits listed in `WRITABLE` and the power state ever differ from what
//! [`ConfigSpace::new`] laid down, so identity and capability list hold whatever is written.

use super::bars::Bars;
use super::region::Region;
use crate::adaptor::address::Geometry;
use crate::adaptor::memory::Segment;

/// The size of configuration space in bytes (PCI Express).
pub const CONFIG_SIZE: usize = 4096;

/// Vendor id.
pub const VENDOR_ID: u16 = 0x1234;
/// Device id.
pub const DEVICE_ID: u16 = 0x4152;
/// Subsystem vendor id.
pub const SUBSYSTEM_VENDOR_ID: u16 = 0x1234;
/// Subsystem id.
pub const SUBSYSTEM_ID: u16 = 0x0001;
/// Class code `[23:0]`: network controller, other.
pub const CLASS_CODE: u32 = 0x02_80_00;
/// Revision id.
pub const REVISION: u8 = 1;

/// Size of BAR0 in bytes: registers, node table, MSI-X table and pending bits.
pub const BAR0_SIZE: u64 = 64 << 10;
/// Where the MSI-X table lies in BAR0.
pub const MSIX_TABLE: u64 = 0x8000;
/// Where the MSI-X pending bits lie in BAR0.
pub const MSIX_PENDING: u64 = 0x9000;

/// The bytes that are laid down; all beyond read as 0, which in extended space (from 0x100)
/// means that there are no extended capabilities.
const LAID_DOWN: usize = 256;

const COMMAND: usize = 0x04;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_BUS_MASTER: u16 = 1 << 2;
const STATUS: usize = 0x06;
const STATUS_CAPABILITIES: u16 = 1 << 4;

const POWER_MANAGEMENT: usize = 0x40;
const POWER_CONTROL: usize = POWER_MANAGEMENT + 4;
const POWER_STATE: u8 = 0b11;
const D0: u8 = 0;
const D3_HOT: u8 = 3;

const EXPRESS: usize = 0x50;
const DEVICE_CONTROL: usize = EXPRESS + 0x08;
/// The byte and bit of Device Control bit 15, "Initiate Function Level Reset"; reads as 0.
const INITIATE_FLR: (usize, u8) = (DEVICE_CONTROL + 1, 1 << 7);

const MSIX: usize = 0x90;
const MSIX_CONTROL: usize = MSIX + 2;
const MSIX_ENABLE: u16 = 1 << 15;
const MSIX_FUNCTION_MASK: u16 = 1 << 14;

/// Byte offsets and the bits of them that simply hold what is written.
const WRITABLE: &[(usize, u8)] = &[
    (COMMAND, 0b0100_0110),            // memory space, bus master, parity error response
    (COMMAND + 1, 0b0000_0101),        // SERR# enable, interrupt disable
    (0x0c, 0xff),                      // cache line size
    (0x3c, 0xff),                      // interrupt line
    (DEVICE_CONTROL, 0b0001_1111),     // error reporting, relaxed ordering
    (DEVICE_CONTROL + 1, 0b0111_1000), // no snoop, largest read request
    (EXPRESS + 0x10, 0b1100_1000),     // link control: RCB, common clock, extended synch
    (EXPRESS + 0x28, 0b0001_0000),     // device control 2: completion timeout disable
    (MSIX_CONTROL + 1, 0b1100_0000),   // enable, function mask
];

/// What the adaptor has to do because of a write to configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigAction {
    /// The guest asked for a Function Level Reset: reset the device, this space included
    /// ([`ConfigSpace::reset_function`]).
    FunctionLevelReset,
}

/// The configuration space of the function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConfigSpace {
    bytes: [u8; LAID_DOWN],
    bars: Bars,
}

impl Default for ConfigSpace {
    fn default() -> Self {
        Self::new()
    }
}

impl ConfigSpace {
    /// Configuration space as it is after power-on.
    pub fn new() -> Self {
        let mut space = Self { bytes: [0; LAID_DOWN], bars: Bars::default() };
        space.lay_header();
        space.lay_power_management();
        space.lay_express();
        space.lay_msix();
        space
    }

    /// Back to the state after power-on: what the machine's reset does.
    pub fn reset(&mut self) {
        *self = Self::new();
    }

    /// What a Function Level Reset does: as [`ConfigSpace::reset`], but whoever holds the function leaves the regions where
    /// they are.
    pub fn reset_function(&mut self) {
        *self = Self { bars: self.bars, ..Self::new() };
    }

    /// The bus address at which a region of `size` bytes begins; 0 where it is not known.
    pub fn base(&self, region: Region, size: u64) -> u64 {
        self.bars.base(region, size)
    }

    /// Whether a segment of the bus touches a region of this function, as far as it is known where that is.
    pub fn is_own(&self, geometry: Geometry, segment: &Segment) -> bool {
        self.bars.overlap(geometry, segment)
    }

    /// Fills `out` with the bytes from `offset` on; bytes beyond configuration space are all-ones.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let mut position = usize::try_from(offset).unwrap_or(usize::MAX);
        for byte in out {
            *byte = match self.bytes.get(position) {
                Some(&laid) => laid,
                None if position < CONFIG_SIZE => 0,
                None => 0xff,
            };
            position = position.saturating_add(1);
        }
    }

    /// Takes a write of any length at any offset; what cannot be written is left as it is.
    ///
    /// Returns what the adaptor has to do about it.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Option<ConfigAction> {
        let written = |at: usize| {
            let index = u64::try_from(at).ok()?.checked_sub(offset)?;
            data.get(usize::try_from(index).ok()?).copied()
        };
        self.bars.write(offset, data);
        for &(at, mask) in WRITABLE {
            if let (Some(new), Some(byte)) = (written(at), self.bytes.get_mut(at)) {
                *byte = *byte & !mask | new & mask;
            }
        }
        if let (Some(new), Some(byte)) = (written(POWER_CONTROL), self.bytes.get_mut(POWER_CONTROL)) {
            // A state that the function does not have is discarded, as the power management
            // specification asks for.
            if matches!(new & POWER_STATE, D0 | D3_HOT) {
                *byte = *byte & !POWER_STATE | new & POWER_STATE;
            }
        }
        let (at, bit) = INITIATE_FLR;
        written(at).filter(|new| new & bit != 0).map(|_| ConfigAction::FunctionLevelReset)
    }

    /// Whether the function answers in its BARs: COMMAND, Memory Space Enable, and not in D3hot.
    pub fn memory_enabled(&self) -> bool {
        self.word(COMMAND) & COMMAND_MEMORY != 0 && !self.is_powered_down()
    }

    /// Whether the function may start transactions on its bus: COMMAND, Bus Master Enable, and not in D3hot.
    pub fn bus_master_enabled(&self) -> bool {
        self.word(COMMAND) & COMMAND_BUS_MASTER != 0 && !self.is_powered_down()
    }

    /// Whether MSI-X is enabled.
    pub fn msix_enabled(&self) -> bool {
        self.word(MSIX_CONTROL) & MSIX_ENABLE != 0
    }

    /// Whether all MSI-X vectors are masked at once.
    pub fn msix_function_masked(&self) -> bool {
        self.word(MSIX_CONTROL) & MSIX_FUNCTION_MASK != 0
    }

    /// Whether the function was put into D3hot.
    fn is_powered_down(&self) -> bool {
        self.bytes.get(POWER_CONTROL).is_some_and(|byte| byte & POWER_STATE == D3_HOT)
    }

    fn lay_header(&mut self) {
        self.put(0x00, &VENDOR_ID.to_le_bytes());
        self.put(0x02, &DEVICE_ID.to_le_bytes());
        self.put(STATUS, &STATUS_CAPABILITIES.to_le_bytes());
        self.put(0x08, &(CLASS_CODE << 8 | u32::from(REVISION)).to_le_bytes());
        // BAR0 is 32-bit memory and all zero; BAR2 and BAR4 are 64-bit prefetchable memory. The
        // bits say only the type: QEMU, or whoever holds the function, keeps the addresses.
        self.put(0x18, &[0x0c]);
        self.put(0x20, &[0x0c]);
        self.put(0x2c, &SUBSYSTEM_VENDOR_ID.to_le_bytes());
        self.put(0x2e, &SUBSYSTEM_ID.to_le_bytes());
        self.put_pointer(0x34, POWER_MANAGEMENT);
    }

    fn lay_power_management(&mut self) {
        self.put(POWER_MANAGEMENT, &[0x01]);
        self.put_pointer(POWER_MANAGEMENT + 1, EXPRESS);
        self.put(POWER_MANAGEMENT + 2, &3u16.to_le_bytes()); // version 1.2; no PME, D1 or D2
        self.put(POWER_CONTROL, &(1u16 << 3).to_le_bytes()); // No_Soft_Reset
    }

    fn lay_express(&mut self) {
        self.put(EXPRESS, &[0x10]);
        self.put_pointer(EXPRESS + 1, MSIX);
        self.put(EXPRESS + 0x02, &2u16.to_le_bytes()); // version 2, endpoint
        // Payloads of 128 bytes; any L0s and L1 latency does; role-based error reporting; FLR.
        let capabilities: u32 = 7 << 6 | 7 << 9 | 1 << 15 | 1 << 28;
        self.put(EXPRESS + 0x04, &capabilities.to_le_bytes());
        // Relaxed ordering and no snoop enabled, read requests up to 512 bytes: the defaults.
        let control: u16 = 1 << 4 | 1 << 11 | 2 << 12;
        self.put(DEVICE_CONTROL, &control.to_le_bytes());
        let link: u16 = 1 | 1 << 4; // 2.5 GT/s, one lane
        self.put(EXPRESS + 0x0c, &u32::from(link).to_le_bytes());
        self.put(EXPRESS + 0x12, &link.to_le_bytes());
        self.put(EXPRESS + 0x24, &(1u32 << 4).to_le_bytes()); // completion timeout can be disabled
        self.put(EXPRESS + 0x2c, &(1u32 << 1).to_le_bytes()); // supported link speeds: 2.5 GT/s
        self.put(EXPRESS + 0x30, &1u16.to_le_bytes()); // target link speed: 2.5 GT/s
    }

    fn lay_msix(&mut self) {
        self.put(MSIX, &[0x11]); // the last capability
        self.put(MSIX_CONTROL, &super::msix::VECTORS.saturating_sub(1).to_le_bytes());
        // Where table and pending bits lie; the three low bits of each say in which BAR: 0.
        self.put(MSIX + 4, &(MSIX_TABLE | MSIX_PENDING << 32).to_le_bytes());
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        for (byte, &value) in self.bytes.iter_mut().skip(at).zip(bytes) {
            *byte = value;
        }
    }

    /// Lays down a capability pointer.
    fn put_pointer(&mut self, at: usize, pointer: usize) {
        self.put(at, &[u8::try_from(pointer).unwrap_or(0)]);
    }

    fn word(&self, at: usize) -> u16 {
        let mut bytes = [0; 2];
        for (to, &from) in bytes.iter_mut().zip(self.bytes.iter().skip(at)) {
            *to = from;
        }
        u16::from_le_bytes(bytes)
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(space: &ConfigSpace) -> Vec<u8> {
        let mut bytes = vec![0xa5; CONFIG_SIZE];
        space.read(0, &mut bytes);
        bytes
    }

    /// The bits that a guest may change, from the specification and not from the code's table.
    fn may_change(at: usize) -> u8 {
        match at {
            0x04 => 0x46,
            0x05 => 0x05,
            0x0c | 0x3c => 0xff,
            0x44 => 0x03,
            0x58 => 0x1f,
            0x59 => 0x78,
            0x60 => 0xc8,
            0x78 => 0x10,
            0x93 => 0xc0,
            _ => 0,
        }
    }

    fn assert_sound(space: &ConfigSpace) {
        let (now, fresh) = (all(space), all(&ConfigSpace::new()));
        for at in 0..CONFIG_SIZE {
            assert_eq!((now[at] ^ fresh[at]) & !may_change(at), 0, "a fixed bit of byte {at:#x} changed");
        }
        let mut ids = Vec::new();
        let mut at = usize::from(now[0x34]);
        while at != 0 {
            assert!((0x40..0x100).contains(&at) && at % 4 == 0 && ids.len() < 8, "capability list broken");
            ids.push(now[at]);
            at = usize::from(now[at + 1]);
        }
        assert_eq!(ids, [0x01, 0x10, 0x11]);
    }

    #[test]
    fn identity_is_as_specified() {
        let bytes = all(&ConfigSpace::new());
        assert_eq!(bytes[..16], [0x34, 0x12, 0x52, 0x41, 0, 0, 0x10, 0, 1, 0, 0x80, 2, 0, 0, 0, 0]);
        assert_eq!(bytes[0x2c..0x30], [0x34, 0x12, 1, 0]);
        let bars: Vec<u8> = (0x10..0x28).step_by(4).map(|at| bytes[at]).collect();
        assert_eq!(bars, [0, 0, 0x0c, 0, 0x0c, 0]);
        assert_eq!(bytes[0x3d], 0, "there is no interrupt pin");
        assert_eq!(bytes[0x90..0x9c], [0x11, 0, 15, 0, 0, 0x80, 0, 0, 0, 0x90, 0, 0]);
        assert!(bytes[0x100..].iter().all(|&byte| byte == 0), "there are no extended capabilities");
    }

    #[test]
    fn config_space_sweep() {
        for value in [0xff, 0x00, 0x5a] {
            for size in [1, 2, 4] {
                let mut space = ConfigSpace::new();
                for offset in 0..CONFIG_SIZE as u64 {
                    space.write(offset, &[value; 4][..size]);
                    if offset < 0x104 {
                        assert_sound(&space);
                    }
                }
                assert_sound(&space);
            }
        }
    }

    #[test]
    fn every_writable_bit_holds_ones_and_zeros() {
        let mut space = ConfigSpace::new();
        space.write(0, &[0xff; CONFIG_SIZE]);
        let ones = all(&space);
        space.write(0, &[0; CONFIG_SIZE]);
        let zeros = all(&space);
        for at in 0..CONFIG_SIZE {
            assert_eq!(ones[at] & may_change(at), may_change(at), "byte {at:#x}");
            assert_eq!(zeros[at] & may_change(at), 0, "byte {at:#x}");
        }
    }

    #[test]
    fn a_read_beyond_the_end_is_all_ones() {
        let mut bytes = [0; 4];
        let space = ConfigSpace::new();
        space.read(0xffe, &mut bytes);
        assert_eq!(bytes, [0, 0, 0xff, 0xff]);
        space.read(u64::MAX - 1, &mut bytes);
        assert_eq!(bytes, [0xff; 4]);
    }

    #[test]
    fn only_bit_15_of_device_control_asks_for_a_reset() {
        let mut space = ConfigSpace::new();
        let flr = Some(ConfigAction::FunctionLevelReset);
        assert_eq!(space.write(0x58, &0x8000u16.to_le_bytes()), flr);
        assert_eq!(space.write(0x59, &[0x80]), flr);
        assert_eq!(space.write(0x58, &0x0000_ffffu32.to_le_bytes()), flr);
        assert_eq!(space.write(0x58, &0xffff_7fffu32.to_le_bytes()), None);
        assert_eq!(space.write(0x58, &[0xff]), None);
        assert_eq!(space.write(0x5a, &[0xff, 0xff]), None);
        assert_eq!(all(&space)[0x59] & 0x80, 0, "the bit reads as 0");
    }

    #[test]
    fn the_function_has_the_power_states_d0_and_d3hot() {
        let mut space = ConfigSpace::new();
        space.write(0x44, &[3, 0]);
        assert!(space.is_powered_down());
        space.write(0x44, &[1, 0]);
        assert!(space.is_powered_down(), "D1 is discarded");
        assert_eq!(all(&space)[0x44], 0x0b);
        space.write(0x44, &[0, 0]);
        assert!(!space.is_powered_down());
    }

    #[test]
    fn a_reset_clears_what_was_written() {
        let mut space = ConfigSpace::new();
        space.write(0x04, &[0xff, 0xff]);
        space.write(0x92, &[0xff, 0xff]);
        assert!(space.memory_enabled() && space.bus_master_enabled());
        assert!(space.msix_enabled() && space.msix_function_masked());
        space.write(0x10, &0xfebf_0000u32.to_le_bytes());
        space.reset_function();
        assert_eq!(all(&space), all(&ConfigSpace::new()));
        assert_eq!(space.base(Region::Registers, BAR0_SIZE), 0xfebf_0000);
        space.reset();
        assert_eq!(space, ConfigSpace::new());
        assert!(!space.memory_enabled() && !space.bus_master_enabled() && !space.msix_enabled());
    }

    proptest! {
        #[test]
        fn hostile_writes_leave_it_sound(
            writes in prop::collection::vec(
                (prop_oneof![0u64..0x110, 0xff0u64..0x1010, any::<u64>()], prop::collection::vec(any::<u8>(), 0..300)),
                0..20,
            )
        ) {
            let mut space = ConfigSpace::new();
            for (offset, data) in writes {
                space.write(offset, &data);
            }
            assert_sound(&space);
        }
    }
}
