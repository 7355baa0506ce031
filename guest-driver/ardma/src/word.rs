//! Loads and stores that a device sees exactly as the program made them.
//!
//! The invariant: one call is one instruction of exactly that size, so that one access reaches the
//! adaptor. Aligned accesses are volatile ones. Misaligned ones are undefined as Rust volatile
//! accesses, so they are an instruction written out, for the processors that have one.

mod sealed {
    pub trait Sealed {}
}

/// A value that goes to or comes from a remote window in one access: `u8`, `u16`, `u32` or `u64`.
pub trait Word: Copy + Default + PartialEq + std::fmt::Debug + std::fmt::LowerHex + sealed::Sealed {
    /// Whether accesses need not be aligned to their size.
    const UNALIGNED: bool = cfg!(target_arch = "x86_64");

    /// All bits set: what a failed load returns.
    const ONES: Self;

    /// The value whose bytes in memory are these; `None` where the length is another.
    fn from_memory(bytes: &[u8]) -> Option<Self>;

    /// Puts the value's bytes in memory there; nothing where the length is another.
    fn to_memory(self, bytes: &mut [u8]);

    /// One load.
    ///
    /// # Safety
    /// `from` is valid for reads of this size for as long as anything maps it, and aligned unless
    /// [`Word::UNALIGNED`]; other parties may write it at the same time.
    unsafe fn load(from: *const u8) -> Self;

    /// One store.
    ///
    /// # Safety
    /// As [`Word::load`], for writes.
    unsafe fn store(to: *mut u8, value: Self);
}

macro_rules! word {
    ($type:ty, $class:ident, $modifier:literal) => {
        impl sealed::Sealed for $type {}

        impl Word for $type {
            const ONES: Self = <$type>::MAX;

            fn from_memory(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(<$type>::from_ne_bytes)
            }

            fn to_memory(self, bytes: &mut [u8]) {
                if bytes.len() == size_of::<Self>() {
                    bytes.copy_from_slice(&self.to_ne_bytes());
                }
            }

            #[inline]
            unsafe fn load(from: *const u8) -> Self {
                let pointer = from.cast::<Self>();
                #[cfg(target_arch = "x86_64")]
                if !pointer.is_aligned() {
                    let value;
                    // SAFETY: the caller vouches for the memory; the instruction does not care for alignment.
                    unsafe {
                        std::arch::asm!(
                            concat!("mov {value", $modifier, "}, [{pointer}]"),
                            value = out($class) value,
                            pointer = in(reg) pointer,
                            options(nostack, preserves_flags, readonly),
                        );
                    }
                    return value;
                }
                // SAFETY: the caller vouches for the memory, and it is aligned.
                unsafe { pointer.read_volatile() }
            }

            #[inline]
            unsafe fn store(to: *mut u8, value: Self) {
                let pointer = to.cast::<Self>();
                #[cfg(target_arch = "x86_64")]
                if !pointer.is_aligned() {
                    // SAFETY: the caller vouches for the memory; the instruction does not care for alignment.
                    unsafe {
                        std::arch::asm!(
                            concat!("mov [{pointer}], {value", $modifier, "}"),
                            value = in($class) value,
                            pointer = in(reg) pointer,
                            options(nostack, preserves_flags),
                        );
                    }
                    return;
                }
                // SAFETY: the caller vouches for the memory, and it is aligned.
                unsafe { pointer.write_volatile(value) }
            }
        }
    };
}

word!(u8, reg_byte, "");
word!(u16, reg, ":x");
word!(u32, reg, ":e");
word!(u64, reg, ":r");

/// Cuts `length` bytes from `offset` on into the widest aligned accesses, in ascending order.
pub fn pieces(offset: u64, length: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut done = 0_usize;
    std::iter::from_fn(move || {
        let left = length.saturating_sub(done);
        let at = offset.wrapping_add(done as u64);
        // As wide as the offset is aligned and as bytes are left, and at most 8.
        let width = (at | 8).trailing_zeros().min(left.checked_ilog2()?);
        let size = 1_usize << width;
        let piece = (done, size);
        done = done.saturating_add(size);
        Some(piece)
    })
}

/// Loads bytes by the widest aligned accesses.
///
/// # Safety
/// `from` is valid for reads of the slice's length; other parties may write it at the same time.
pub(crate) unsafe fn load_bytes(from: *const u8, to: &mut [u8]) {
    for (start, size) in pieces(from.addr() as u64, to.len()) {
        let Some(part) = to.get_mut(start..start.saturating_add(size)) else { return };
        // SAFETY: `start + size` is at most the slice's length, which the caller vouches for; `pieces` aligns.
        unsafe {
            let from = from.add(start);
            match size {
                8 => u64::load(from).to_memory(part),
                4 => u32::load(from).to_memory(part),
                2 => u16::load(from).to_memory(part),
                _ => u8::load(from).to_memory(part),
            }
        }
    }
}

/// Stores bytes by the widest aligned accesses, in ascending order.
///
/// # Safety
/// `to` is valid for writes of the slice's length; other parties may access it at the same time.
pub(crate) unsafe fn store_bytes(to: *mut u8, from: &[u8]) {
    for (start, size) in pieces(to.addr() as u64, from.len()) {
        let Some(part) = from.get(start..start.saturating_add(size)) else { return };
        // SAFETY: `start + size` is at most the slice's length, which the caller vouches for; `pieces` aligns.
        unsafe {
            let to = to.add(start);
            match size {
                8 => u64::store(to, u64::from_memory(part).unwrap_or_default()),
                4 => u32::store(to, u32::from_memory(part).unwrap_or_default()),
                2 => u16::store(to, u16::from_memory(part).unwrap_or_default()),
                _ => u8::store(to, u8::from_memory(part).unwrap_or_default()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_wide_in_the_middle_and_small_at_the_ends() {
        let cut = |offset, length| pieces(offset, length).map(|(_, size)| size).collect::<Vec<_>>();
        assert_eq!(cut(0, 16), [8, 8]);
        assert_eq!(cut(1, 16), [1, 2, 4, 8, 1]);
        assert_eq!(cut(6, 3), [2, 1]);
        assert_eq!(cut(3, 1), [1]);
        assert_eq!(cut(5, 0), [0_usize; 0]);
    }

    #[test]
    fn pieces_cover_every_byte_once_in_order() {
        for offset in 0..16 {
            for length in 0..64 {
                let mut next = 0;
                for (start, size) in pieces(offset, length) {
                    assert_eq!(start, next);
                    next += size;
                }
                assert_eq!(next, length);
            }
        }
    }

    #[test]
    fn words_of_all_sizes_go_to_any_offset() {
        let mut memory = [0xa5_u8; 32];
        let base = memory.as_mut_ptr();
        for offset in 0..16 {
            // SAFETY: all accesses are inside the array, which nothing else uses meanwhile.
            unsafe {
                let at = base.add(offset);
                u64::store(at, 0x0102_0304_0506_0708);
                assert_eq!(u64::load(at), 0x0102_0304_0506_0708);
                u32::store(at, 0x1122_3344);
                assert_eq!(u32::load(at), 0x1122_3344);
                u16::store(at, 0x5566);
                assert_eq!(u16::load(at), 0x5566);
                u8::store(at, 0x77);
                assert_eq!(u8::load(at), 0x77);
                assert_eq!(u64::load(at).to_le_bytes(), [0x77, 0x55, 0x22, 0x11, 4, 3, 2, 1]);
            }
        }
    }

    #[test]
    fn bytes_come_back_as_they_went() {
        let data: Vec<u8> = (0..61).collect();
        for offset in 0..8 {
            let mut memory = [0xa5_u8; 80];
            let mut back = vec![0; data.len()];
            // SAFETY: offset + 61 bytes are inside the array, which nothing else uses meanwhile.
            unsafe {
                store_bytes(memory.as_mut_ptr().add(offset), &data);
                load_bytes(memory.as_ptr().add(offset), &mut back);
            }
            assert_eq!(back, data);
            assert!(memory[..offset].iter().chain(&memory[offset + 61..]).all(|&byte| byte == 0xa5));
        }
    }
}
