//! Buffers for long reads of guest memory, used again when nobody holds what was read into them.
//!
//! What is read for another node is held until it has acknowledged it, and soon not any more. New memory each time would have to be cleared first, which
//! costs a good part of the copy itself. A peer that acknowledges nothing keeps what it was sent, in buffers that may be far longer; so these
//! are few, and all else has memory of its own length.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::adaptor::mesh::packet::MAX_PAYLOAD;

/// Shorter reads get memory of their own.
const SHORTEST: usize = 32 << 10;
/// Of these not even that is cleared, which for the allocator is another way than all others, and slower.
const TINY: usize = 512;
/// Buffers that there are, of [`MAX_PAYLOAD`] bytes each.
const MOST: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub struct Buffers {
    /// All whole, in the order of their use.
    used: VecDeque<Bytes>,
}

impl Buffers {
    /// `len` bytes as `fill` leaves them.
    ///
    /// # Errors
    /// Those of `fill`.
    pub fn read<E>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Bytes, E> {
        if len <= TINY {
            let mut bytes = [0; TINY];
            let bytes = bytes.get_mut(..len).unwrap_or_default();
            fill(bytes)?;
            return Ok(Bytes::copy_from_slice(bytes));
        }
        let buffer = if (SHORTEST..=MAX_PAYLOAD).contains(&len) { self.take() } else { None };
        let Some(mut buffer) = buffer else {
            let mut bytes = vec![0; len];
            fill(&mut bytes)?;
            return Ok(bytes.into());
        };
        let result = fill(buffer.get_mut(..len).unwrap_or_default());
        let whole = buffer.freeze();
        let bytes = whole.slice(..len);
        self.used.push_back(whole);
        result.map(|()| bytes)
    }

    /// The buffer that was used last, if nobody holds it any more: it is the one that is in the processor's cache. Or that which has been in use
    /// for longest, or a new one; `None` where there are enough.
    fn take(&mut self) -> Option<BytesMut> {
        let is_free = |bytes: &mut Bytes| bytes.is_unique();
        let free = self.used.pop_back_if(is_free).or_else(|| self.used.pop_front_if(is_free));
        let free = free.and_then(|bytes| bytes.try_into_mut().ok());
        free.or_else(|| (self.used.len() < MOST).then(|| BytesMut::zeroed(MAX_PAYLOAD)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(buffers: &mut Buffers, len: usize, value: u8) -> Bytes {
        let filled: Result<_, ()> = buffers.read(len, |bytes| {
            bytes.fill(value);
            Ok(())
        });
        filled.unwrap()
    }

    #[test]
    fn a_buffer_is_used_again_only_when_nobody_holds_it() {
        let mut buffers = Buffers::default();
        let first = read(&mut buffers, SHORTEST, 1);
        let second = read(&mut buffers, MAX_PAYLOAD, 2);
        assert!(first.iter().all(|&byte| byte == 1) && first.len() == SHORTEST);
        let place = first.as_ptr();
        drop(first);
        let third = read(&mut buffers, SHORTEST + 1, 3);
        assert_eq!(third.as_ptr(), place, "the first one's buffer");
        assert!(second.iter().all(|&byte| byte == 2) && third.iter().all(|&byte| byte == 3));
        assert_eq!((second.len(), third.len()), (MAX_PAYLOAD, SHORTEST + 1));
    }

    #[test]
    fn however_many_are_held_only_so_many_are_kept() {
        let mut buffers = Buffers::default();
        let held: Vec<_> = (0..=255).map(|value| read(&mut buffers, SHORTEST, value)).collect();
        assert!(held.iter().zip(0..=255).all(|(bytes, value)| bytes.iter().all(|&byte| byte == value)));
        assert_eq!(buffers.used.len(), MOST);
        // A peer that takes no answers has the others held in what they need, not in whole buffers.
        let kept: usize =
            held.into_iter().skip(MOST).map(|bytes| bytes.try_into_mut().unwrap().capacity()).sum();
        assert!(kept <= (256 - MOST) * SHORTEST, "{kept} bytes");
    }

    #[test]
    fn other_lengths_get_memory_of_their_own() {
        let mut buffers = Buffers::default();
        for len in [0, 1, TINY, TINY + 1, SHORTEST - 1, MAX_PAYLOAD + 1] {
            assert_eq!(read(&mut buffers, len, 7).len(), len);
        }
        assert!(buffers.used.is_empty());
    }

    #[test]
    fn what_can_not_be_read_is_told() {
        assert_eq!(Buffers::default().read(SHORTEST, |_| Err("gone")), Err("gone"));
    }
}
