//! Registers that hold what was written, for nodes to leave each other notes.
//!
//! They are there three times: stores to the first set replace the bits, to the second set those that are 1, to the third
//! clear those that are 1; loads are the same from all. So nodes that each own some bits of a register need not know the
//! others'.

use core::ops::Range;

use super::HostedDevice;
use crate::adaptor::memory::MemoryFault;

/// How often the registers are there.
pub(super) const ALIASES: u64 = 3;

/// What a store does to the bits of a register.
#[derive(Clone, Copy)]
enum Effect {
    Replace,
    Set,
    Clear,
}

/// See the module.
pub(super) struct Scratchpad {
    registers: Vec<u8>,
}

impl Scratchpad {
    /// Registers of `size` bytes together, a multiple of 8; all 0.
    pub(super) fn new(size: u64) -> Self {
        Self { registers: vec![0; usize::try_from(size).unwrap_or(0)] }
    }

    /// Which bytes an access means. It has 4 bytes or 8, and is aligned.
    fn decode(&self, offset: u64, len: usize) -> Result<(Effect, Range<usize>), MemoryFault> {
        let offset = usize::try_from(offset).map_err(|_| MemoryFault::Refused)?;
        if !matches!(len, 4 | 8) || !offset.is_multiple_of(len) {
            return Err(MemoryFault::Refused);
        }
        let size = self.registers.len();
        let effect = match offset.checked_div(size) {
            Some(0) => Effect::Replace,
            Some(1) => Effect::Set,
            Some(2) => Effect::Clear,
            _ => return Err(MemoryFault::Refused),
        };
        let begin = offset.checked_rem(size).unwrap_or(0);
        Ok((effect, begin..begin.saturating_add(len)))
    }
}

impl HostedDevice for Scratchpad {
    fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), MemoryFault> {
        let (_, range) = self.decode(offset, data.len())?;
        data.copy_from_slice(self.registers.get(range).ok_or(MemoryFault::Refused)?);
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), MemoryFault> {
        let (effect, range) = self.decode(offset, data.len())?;
        let register = self.registers.get_mut(range).ok_or(MemoryFault::Refused)?;
        for (byte, &bits) in register.iter_mut().zip(data) {
            *byte = match effect {
                Effect::Replace => bits,
                Effect::Set => *byte | bits,
                Effect::Clear => *byte & !bits,
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(pad: &mut Scratchpad, offset: u64) -> u32 {
        let mut data = [0; 4];
        pad.read(offset, &mut data).unwrap();
        u32::from_le_bytes(data)
    }

    #[test]
    fn each_alias_has_its_effect_and_reads_the_same() {
        let mut pad = Scratchpad::new(16);
        pad.write(4, &0x00ff_00ff_u32.to_le_bytes()).unwrap();
        pad.write(16 + 4, &0xf000_0000_u32.to_le_bytes()).unwrap();
        pad.write(32 + 4, &0x0000_000f_u32.to_le_bytes()).unwrap();
        for alias in 0..ALIASES {
            assert_eq!(word(&mut pad, 16 * alias + 4), 0xf0ff_00f0);
            assert_eq!(word(&mut pad, 16 * alias), 0);
            assert_eq!(word(&mut pad, 16 * alias + 8), 0);
        }
        let mut wide = [0; 8];
        pad.read(0, &mut wide).unwrap();
        assert_eq!(u64::from_le_bytes(wide), 0xf0ff_00f0_0000_0000);
        pad.write(8, &u64::MAX.to_le_bytes()).unwrap();
        pad.write(32 + 8, &0xffff_0000_0000_ffff_u64.to_le_bytes()).unwrap();
        assert_eq!((word(&mut pad, 8), word(&mut pad, 12)), (0xffff_0000, 0xffff));
    }

    #[test]
    fn other_sizes_misaligned_accesses_and_what_is_behind_the_end_are_refused() {
        let mut pad = Scratchpad::new(24);
        for (offset, len) in
            [(0, 0), (0, 1), (0, 2), (0, 3), (0, 16), (2, 4), (4, 8), (20, 8), (72, 4), (u64::MAX - 3, 4)]
        {
            let mut data = vec![0xff; len];
            assert_eq!(pad.read(offset, &mut data), Err(MemoryFault::Refused), "{len} bytes at {offset}");
            assert_eq!(pad.write(offset, &data), Err(MemoryFault::Refused), "{len} bytes at {offset}");
        }
        assert_eq!(pad.registers, [0; 24]);
        for offset in [20, 44, 68] {
            pad.write(offset, &[0; 4]).unwrap();
        }
    }
}
