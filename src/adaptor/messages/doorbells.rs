//! The doorbell table: who may ring which doorbell, and what an interrupt for it is.
//!
//! Invariant: what is not in the map is as after a reset, closed to every node; so a table that nobody uses costs nothing.

use std::collections::BTreeMap;

use crate::adaptor::address::{NodeId, NodeSet};
use crate::adaptor::pci::VECTORS;

/// The number of doorbells.
pub const DOORBELLS: u8 = 64;
/// The size of a doorbell's entry in BAR0, in bytes.
pub const ENTRY_SIZE: usize = 64;
/// The size of the table in BAR0, in bytes.
pub const TABLE_SIZE: usize = DOORBELLS as usize * ENTRY_SIZE;

/// Control, `[7:0]`: the vector.
const VECTOR: u32 = 0xff;
/// Control: messages are refused for now.
const HOLD: u32 = 1 << 30;
/// Control: no interrupt is raised.
const MASKED: u32 = 1 << 31;
/// Where the nodes stand in an entry: four words of 64 bits.
const NODES: usize = 0x20;

/// A doorbell, as the guest has set it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Doorbell {
    control: u32,
    nodes: NodeSet,
}

impl Doorbell {
    /// Whether the node may ring it, and ask for its room.
    pub fn is_open_to(&self, node: NodeId) -> bool {
        self.nodes.contains(node)
    }

    /// Whether its messages are refused for now, as if the queue were full.
    pub const fn is_held(&self) -> bool {
        self.control & HOLD != 0
    }

    /// The vector to raise for its messages; `None` while it is masked, or where there is no such vector.
    pub fn vector(&self) -> Option<u16> {
        let vector = u16::try_from(self.control & VECTOR).ok()?;
        (self.control & MASKED == 0 && vector < VECTORS).then_some(vector)
    }

    fn to_bytes(self) -> [u8; ENTRY_SIZE] {
        let mut bytes = [0; ENTRY_SIZE];
        let (control, rest) = bytes.split_at_mut(NODES);
        let words = self.nodes.words().into_iter().flat_map(u64::to_le_bytes);
        rest.iter_mut().zip(words).for_each(|(to, from)| *to = from);
        control.iter_mut().zip(self.control.to_le_bytes()).for_each(|(to, from)| *to = from);
        bytes
    }

    /// Bytes that belong to no field are ignored.
    fn from_bytes(bytes: &[u8; ENTRY_SIZE]) -> Self {
        let mut control = [0; 4];
        control.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        let mut words = [[0; 8]; 4];
        let from = bytes.iter().skip(NODES);
        words.iter_mut().flatten().zip(from).for_each(|(to, from)| *to = *from);
        Self {
            control: u32::from_le_bytes(control) & (VECTOR | HOLD | MASKED),
            nodes: NodeSet::from_words(words.map(u64::from_le_bytes)),
        }
    }
}

/// The doorbell table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Doorbells(BTreeMap<u8, Doorbell>);

impl Doorbells {
    /// A doorbell; a closed one where there is none with this number.
    pub fn get(&self, number: u8) -> Doorbell {
        self.0.get(&number).copied().unwrap_or_default()
    }

    /// A byte of the table in BAR0; 0 beyond its end.
    pub fn byte(&self, at: usize) -> u8 {
        let Some((number, within)) = split(at) else { return 0 };
        self.get(number).to_bytes().get(within).copied().unwrap_or(0)
    }

    /// Writes a byte of the table; ignored beyond its end, and where it belongs to no field.
    pub fn set_byte(&mut self, at: usize, value: u8) {
        let Some((number, within)) = split(at) else { return };
        let mut bytes = self.get(number).to_bytes();
        if let Some(byte) = bytes.get_mut(within) {
            *byte = value;
        }
        match Doorbell::from_bytes(&bytes) {
            doorbell if doorbell == Doorbell::default() => self.0.remove(&number),
            doorbell => self.0.insert(number, doorbell),
        };
    }
}

/// The doorbell to which a byte of the table belongs, and the byte of its entry.
fn split(at: usize) -> Option<(u8, usize)> {
    let number = u8::try_from(at / ENTRY_SIZE).ok().filter(|&number| number < DOORBELLS)?;
    Some((number, at % ENTRY_SIZE))
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    fn set(table: &mut Doorbells, at: usize, bytes: &[u8]) {
        bytes.iter().enumerate().for_each(|(index, &byte)| table.set_byte(at + index, byte));
    }

    #[test]
    fn an_entry_has_a_vector_flags_and_nodes() {
        let mut table = Doorbells::default();
        set(&mut table, 3 * ENTRY_SIZE, &0x0000_0005_u32.to_le_bytes());
        set(&mut table, 3 * ENTRY_SIZE + 0x20 + 8, &(1u64 << 6).to_le_bytes());
        let doorbell = table.get(3);
        assert_eq!((doorbell.vector(), doorbell.is_held()), (Some(5), false));
        assert_eq!([69, 70, 71].map(|node| doorbell.is_open_to(NodeId(node))), [false, true, false]);
        assert_eq!(table.get(2), Doorbell::default());
        set(&mut table, 3 * ENTRY_SIZE + 3, &[0xc0]);
        assert_eq!((table.get(3).vector(), table.get(3).is_held()), (None, true));
    }

    #[test]
    fn what_is_no_field_reads_as_0() {
        let mut table = Doorbells::default();
        set(&mut table, 0, &[0xff; TABLE_SIZE + 64]);
        let mut entry = [0; ENTRY_SIZE];
        entry[..4].copy_from_slice(&0xc000_00ff_u32.to_le_bytes());
        entry[0x20..].fill(0xff);
        for at in 0..TABLE_SIZE {
            assert_eq!(table.byte(at), entry[at % ENTRY_SIZE], "byte {at:#x}");
        }
        assert_eq!((table.byte(TABLE_SIZE), table.byte(usize::MAX)), (0, 0));
    }

    #[test]
    fn a_vector_that_does_not_exist_is_none() {
        let mut table = Doorbells::default();
        for (vector, found) in [(0, Some(0)), (15, Some(15)), (16, None), (255, None)] {
            table.set_byte(0, vector);
            assert_eq!(table.get(0).vector(), found);
        }
    }

    #[test]
    fn a_table_that_is_as_after_a_reset_holds_nothing() {
        let mut table = Doorbells::default();
        set(&mut table, 0, &[0xff; TABLE_SIZE]);
        set(&mut table, 0, &[0; TABLE_SIZE]);
        assert_eq!(table, Doorbells::default());
    }
}
