//! Numbers in the header of a packet, written and read one after the other.

/// Fills from the front; what does not fit is left out (the fields of a header fit).
pub(super) struct Writer<'a>(pub(super) &'a mut [u8]);

impl Writer<'_> {
    pub(super) fn put<const N: usize>(&mut self, value: [u8; N]) {
        if let Some((field, rest)) = core::mem::take(&mut self.0).split_first_chunk_mut() {
            *field = value;
            self.0 = rest;
        }
    }
}

/// Takes little-endian numbers off the front; beyond the end they are 0 (lengths are checked before).
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (value, rest) = self.0.split_first_chunk().map_or(([0; N], &[][..]), |(v, r)| (*v, r));
        self.0 = rest;
        value
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}
