//! Stores into guest memory that become visible in the order of their addresses.
//!
//! Stores of the other guest may have been joined. A reader that waits for the last of them has to see those before it, and
//! never half of an aligned one. So bytes go out in ascending order, in aligned words of 8 bytes wherever possible. What is longer than joined
//! stores ever are is a part of a transfer: there only the last bytes have to come last, and the rest goes as fast as it can.

use core::sync::atomic::{Ordering, fence};
use vm_memory::{Bytes, VolatileMemory, VolatileSlice};

/// Bytes in a word.
const WORD: usize = 8;
/// The longest joined stores in bytes: a block.
const LONG: usize = 4 << 10;
/// The bytes at the end of a longer write that become visible after the others, in order.
const LONG_TAIL: usize = 64;

/// Copies `data` to the start of `memory`. What does not fit is left out.
pub fn store_in_order(memory: &VolatileSlice<'_>, data: &[u8]) {
    let (bulk, data) = data.split_at(unordered(data.len()));
    memory.copy_from(bulk);
    if let Ok(rest) = memory.offset(bulk.len()) {
        store_words(&rest, data);
    }
}

/// The same with what `fill` puts into the two parts that all of `memory` is filled from: the first one is a part of it, the second one is not.
pub fn fill_in_order(memory: &VolatileSlice<'_>, mut fill: impl FnMut(VolatileSlice<'_>)) {
    let Ok((bulk, rest)) = memory.split_at(unordered(memory.len())) else { return };
    fill(bulk);
    let mut buffer = [0; LONG];
    let Some(data) = buffer.get_mut(..rest.len()) else { return };
    fill(VolatileSlice::from(&mut *data));
    store_words(&rest, data);
}

/// Of so many bytes, how many at the beginning may become visible in any order.
const fn unordered(len: usize) -> usize {
    if len > LONG { len.saturating_sub(LONG_TAIL) } else { 0 }
}

/// Copies `data` to the start of `memory`, all of it in order.
fn store_words(memory: &VolatileSlice<'_>, data: &[u8]) {
    let guard = memory.ptr_guard();
    let misaligned = guard.as_ptr().addr().wrapping_neg() & (WORD - 1);
    let (head, rest) = data.split_at(misaligned.min(data.len()));
    let words = rest.len() & !(WORD - 1);
    let (body, tail) = rest.split_at(words);

    let at = store_small(memory, 0, head);
    if let Ok(place) = memory.get_array_ref::<u64>(at, words / WORD) {
        for (index, word) in body.chunks_exact(WORD).enumerate() {
            let word = word.try_into().map_or(0, u64::from_ne_bytes);
            fence(Ordering::Release);
            place.ref_at(index).store(word);
        }
    }
    store_small(memory, at.saturating_add(words), tail);
}

/// Stores fewer than 8 bytes, in aligned stores of 4, 2 and 1 as their place allows; gives the place behind them.
fn store_small(memory: &VolatileSlice<'_>, mut at: usize, mut bytes: &[u8]) -> usize {
    while !bytes.is_empty() {
        let Ok(place) = memory.offset(at) else { break };
        let address = place.ptr_guard().as_ptr().addr();
        let size =
            [4_usize, 2, 1].into_iter().find(|&n| bytes.len() >= n && address.is_multiple_of(n)).unwrap_or(1);
        let (now, rest) = bytes.split_at(size);
        fence(Ordering::Release);
        // An error is not possible: the place was checked. The source is aligned, so that it is one store.
        let _ = match *now {
            [a, b, c, d] => memory.write_obj(u32::from_ne_bytes([a, b, c, d]), at),
            [a, b] => memory.write_obj(u16::from_ne_bytes([a, b]), at),
            [a, ..] => memory.write_obj(a, at),
            [] => Ok(()),
        };
        bytes = rest;
        at = at.saturating_add(size);
    }
    at
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    #[test]
    fn every_alignment_and_length_is_copied_exactly() {
        let data: Vec<u8> = (0..=255).cycle().skip(1).take(4200).collect();
        let lengths = (0..40).chain([511, 512, 513, 1024, 1100, 4096, 4097, 4200]);
        for len in lengths {
            for offset in 0..16 {
                let mut memory = vec![0xa5_u8; 4300];
                // SAFETY: the slice covers the vector, which outlives it and is not touched meanwhile.
                let all = unsafe { VolatileSlice::new(memory.as_mut_ptr(), memory.len()) };
                store_in_order(&all.subslice(offset, len).unwrap(), &data[..len]);
                assert_eq!(memory[offset..offset + len], data[..len]);
                assert!(memory[..offset].iter().chain(&memory[offset + len..]).all(|&b| b == 0xa5));
            }
        }
    }
}
