//! MSI-X: which vectors wait to be signalled, and the table's bytes.
//!
//! Invariant: a raised vector stays pending until it was handed out while it was connected and
//! the function not masked, so that no interrupt is lost; only a reset drops it.

/// The number of MSI-X vectors.
pub const VECTORS: u16 = 16;
/// The size of the MSI-X table in bytes.
pub const TABLE_SIZE: usize = 256;
/// The size of one entry of the table in bytes.
const ENTRY_SIZE: usize = 16;
/// The byte of an entry whose bit 0 masks the vector.
const VECTOR_CONTROL: usize = 12;

/// The MSI-X unit of the function.
///
/// Whoever holds the function (QEMU) keeps the table itself and shows us only its effect: a vector
/// is connected, or not. The table here is what a client reads back that does not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Msix {
    connected: u16,
    pending: u16,
    function_masked: bool,
    table: [u8; TABLE_SIZE],
}

impl Default for Msix {
    fn default() -> Self {
        Self::new()
    }
}

impl Msix {
    /// No vector connected, none pending.
    pub fn new() -> Self {
        Self { connected: 0, pending: 0, function_masked: false, table: empty_table() }
    }

    /// Raises a vector: [`Msix::poll`] hands it out as soon as it can be signalled. Raised again
    /// before that, it is still handed out once. A vector that does not exist is ignored.
    pub fn raise(&mut self, vector: u16) {
        self.pending |= bit(vector);
    }

    /// A vector can be signalled from now on, or not any more.
    pub fn connect(&mut self, vector: u16, connected: bool) {
        if connected {
            self.connected |= bit(vector);
        } else {
            self.connected &= !bit(vector);
        }
    }

    /// Masks or unmasks all vectors at once, as MSI-X control in configuration space says.
    pub fn set_function_mask(&mut self, masked: bool) {
        self.function_masked = masked;
    }

    /// The next vector to signal, the lowest first; it is not pending any more.
    pub fn poll(&mut self) -> Option<u16> {
        if self.function_masked {
            return None;
        }
        let ready = self.pending & self.connected;
        let vector = u16::try_from(ready.trailing_zeros()).ok().filter(|_| ready != 0)?;
        self.pending &= !bit(vector);
        Some(vector)
    }

    /// The pending bits, bit n for vector n.
    pub fn pending(&self) -> u64 {
        u64::from(self.pending)
    }

    /// Drops what is pending and the function mask, and empties the table. Connections stay: they
    /// belong to whoever holds the function.
    pub fn reset(&mut self) {
        *self = Self { connected: self.connected, ..Self::new() };
    }

    /// A byte of the table; 0 beyond its end.
    pub fn table_byte(&self, at: usize) -> u8 {
        self.table.get(at).copied().unwrap_or(0)
    }

    /// Keeps a byte of the table; ignored beyond its end.
    pub fn set_table_byte(&mut self, at: usize, value: u8) {
        if let Some(byte) = self.table.get_mut(at) {
            *byte = value;
        }
    }
}

/// Every entry empty and its vector masked.
fn empty_table() -> [u8; TABLE_SIZE] {
    let mut table = [0; TABLE_SIZE];
    table.iter_mut().skip(VECTOR_CONTROL).step_by(ENTRY_SIZE).for_each(|control| *control = 1);
    table
}

/// The bit of a vector, 0 where it does not exist.
fn bit(vector: u16) -> u16 {
    1u16.checked_shl(u32::from(vector)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connected_vector_is_handed_out_once() {
        let mut msix = Msix::new();
        msix.connect(3, true);
        msix.raise(3);
        msix.raise(3);
        assert_eq!(msix.pending(), 1 << 3);
        assert_eq!((msix.poll(), msix.poll()), (Some(3), None));
        assert_eq!(msix.pending(), 0);
    }

    #[test]
    fn a_vector_raised_while_disconnected_waits_for_its_connection() {
        let mut msix = Msix::new();
        msix.raise(0);
        assert_eq!((msix.poll(), msix.pending()), (None, 1));
        msix.connect(0, true);
        assert_eq!((msix.poll(), msix.pending()), (Some(0), 0));
    }

    #[test]
    fn a_vector_disconnected_before_it_was_handed_out_stays_pending() {
        let mut msix = Msix::new();
        msix.connect(15, true);
        msix.raise(15);
        msix.connect(15, false);
        assert_eq!(msix.poll(), None);
        msix.connect(15, true);
        assert_eq!(msix.poll(), Some(15));
    }

    #[test]
    fn nothing_is_lost_while_the_function_is_masked() {
        let mut msix = Msix::new();
        msix.connect(0, true);
        msix.connect(1, true);
        msix.set_function_mask(true);
        msix.raise(1);
        msix.raise(0);
        assert_eq!((msix.poll(), msix.pending()), (None, 3));
        msix.set_function_mask(false);
        assert_eq!((msix.poll(), msix.poll(), msix.poll()), (Some(0), Some(1), None));
    }

    #[test]
    fn a_reset_drops_what_is_pending_and_keeps_connections() {
        let mut msix = Msix::new();
        msix.connect(0, true);
        msix.set_function_mask(true);
        msix.raise(0);
        msix.set_table_byte(0, 7);
        msix.reset();
        assert_eq!((msix.poll(), msix.pending(), msix.table_byte(0)), (None, 0, 0));
        msix.raise(0);
        assert_eq!(msix.poll(), Some(0));
    }

    #[test]
    fn a_vector_that_does_not_exist_is_ignored() {
        let mut msix = Msix::new();
        for vector in [16, 64, u16::MAX] {
            msix.connect(vector, true);
            msix.raise(vector);
            assert_eq!((msix.poll(), msix.pending()), (None, 0));
        }
    }

    #[test]
    fn the_table_keeps_bytes_and_starts_with_masked_vectors() {
        let mut msix = Msix::new();
        assert_eq!((msix.table_byte(0), msix.table_byte(12), msix.table_byte(252)), (0, 1, 1));
        msix.set_table_byte(255, 9);
        msix.set_table_byte(256, 9);
        assert_eq!((msix.table_byte(255), msix.table_byte(256), msix.table_byte(usize::MAX)), (9, 0, 0));
    }
}
