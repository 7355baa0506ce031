//! The window table: which parts of this node's offset space stand for what, and who may reach them.
//!
//! Invariant: windows do not overlap, lie inside the node's window of the space, and the
//! runs of each add up to its length. What resolves is granted, byte by byte; all else has a code.

use crate::adaptor::address::{BLOCK_SIZE, IO_OWN_SIZE, IO_WINDOW_SIZE, NodeId, NodeSet, Space};
use crate::adaptor::inventory::Name;
use crate::adaptor::memory::{Home, Segment};
use crate::adaptor::status::{Code, Direction};
use std::collections::BTreeMap;

/// The most windows that a node exports at a time.
pub const MAX_WINDOWS: usize = 256;
/// The most runs of memory in all windows together.
pub const MAX_RUNS: usize = 1 << 20;
/// The longest request in bytes.
pub const MAX_REQUEST: u64 = 64 << 10;
/// Offsets, lengths and addresses of windows and runs are multiples of this, in bytes.
pub const GRAIN: u64 = BLOCK_SIZE;

/// What other nodes may do with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rights {
    /// Other nodes may load from it.
    pub read: bool,
    /// Other nodes may store into it.
    pub write: bool,
}

impl Rights {
    /// The rights with these bits (bit 0 read, bit 1 write); `None` where none or an unknown bit is set.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits == 0 || bits > 0b11 {
            return None;
        }
        Some(Self { read: bits & 1 != 0, write: bits & 2 != 0 })
    }

    /// Whether the direction is granted.
    pub const fn grant(self, direction: Direction) -> bool {
        match direction {
            Direction::Read => self.read,
            Direction::Write => self.write,
        }
    }
}

/// A run of addresses in a window's home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// Its first address.
    pub address: u64,
    /// Its length in bytes.
    pub len: u64,
}

impl Run {
    /// Whether address and length are multiples of [`GRAIN`], the length is not 0 and the run does
    /// not wrap around the end of the address space.
    pub fn is_valid(self) -> bool {
        self.len != 0
            && self.address.is_multiple_of(GRAIN)
            && self.len.is_multiple_of(GRAIN)
            && self.address.checked_add(self.len.saturating_sub(1)).is_some()
    }
}

/// A window that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Export {
    /// Where it is to begin in the node's offset space; `None` lets the table choose.
    pub offset: Option<u64>,
    /// Its length in bytes.
    pub len: u64,
    /// What is granted.
    pub rights: Rights,
    /// To which nodes it is granted.
    pub nodes: NodeSet,
    /// Whose addresses the runs are.
    pub home: Home,
    /// What it is called.
    pub name: Name,
    /// What is behind it, in order; their lengths add up to `len`.
    pub runs: Vec<Run>,
}

/// Why a window was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportError {
    /// Offset, length or a run is misaligned, zero or out of range, or the runs do not add up.
    BadArgument,
    /// It overlaps another window, or no gap is large enough.
    NoSpace,
    /// The table holds no more windows or runs.
    TooMany,
}

/// A window that other nodes may reach.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    len: u64,
    rights: Rights,
    nodes: NodeSet,
    home: Home,
    name: Name,
    /// Of each run the distance of its first byte from the window's start, and its address.
    runs: Vec<(u64, u64)>,
}

impl Window {
    /// Its length in bytes.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes; never so for a window of a table.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What is granted.
    pub const fn rights(&self) -> Rights {
        self.rights
    }

    /// To which nodes it is granted.
    pub const fn nodes(&self) -> NodeSet {
        self.nodes
    }

    /// Whose addresses its runs are.
    pub const fn home(&self) -> Home {
        self.home
    }

    /// What it is called.
    pub const fn name(&self) -> Name {
        self.name
    }

    /// Of how many runs of addresses it consists; neighbouring ones count as one.
    pub fn run_count(&self) -> usize {
        self.runs.len()
    }

    /// Appends the memory behind `len` bytes from `start` on (both in bytes, inside the window).
    fn translate(&self, start: u64, len: u64, segments: &mut Vec<Segment>) -> Option<()> {
        let mut first = self.runs.partition_point(|&(begin, _)| begin <= start).checked_sub(1)?;
        let (mut start, mut left) = (start, len);
        while left > 0 {
            let &(begin, address) = self.runs.get(first)?;
            first = first.checked_add(1)?;
            let end = self.runs.get(first).map_or(self.len, |&(begin, _)| begin);
            let count = end.checked_sub(start)?.min(left);
            let address = address.checked_add(start.checked_sub(begin)?)?;
            segments.push(Segment { address, len: usize::try_from(count).ok()? });
            (start, left) = (end, left.checked_sub(count)?);
        }
        Some(())
    }
}

/// The windows that a node exports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WindowTable {
    windows: BTreeMap<u64, Window>,
    /// Runs in all windows together.
    runs: usize,
    /// How often windows were made or removed.
    changes: u32,
    /// Offsets below are the adaptor's own.
    low: u64,
    /// The size of the node's offset space.
    size: u64,
}

impl WindowTable {
    /// An empty table for an offset space of `size` bytes.
    pub const fn new(size: u64) -> Self {
        Self::above(0, size)
    }

    /// An empty table for an offset space of `size` bytes, of which the first `low` are the adaptor's own.
    pub const fn above(low: u64, size: u64) -> Self {
        Self { windows: BTreeMap::new(), runs: 0, changes: 0, low, size }
    }

    /// The size of the offset space in bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// How many more runs the table holds.
    pub fn free_runs(&self) -> usize {
        MAX_RUNS.saturating_sub(self.runs)
    }

    /// Whether the table holds one more window.
    pub fn has_room(&self) -> bool {
        self.windows.len() < MAX_WINDOWS
    }

    /// The windows with their offsets, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Window)> {
        self.windows.iter().map(|(&offset, window)| (offset, window))
    }

    /// Makes a window and returns its offset.
    ///
    /// # Errors
    /// Where it cannot be made; nothing has changed then.
    pub fn insert(&mut self, export: &Export) -> Result<u64, ExportError> {
        if !self.is_placeable(export.offset, export.len) {
            return Err(ExportError::BadArgument);
        }
        let runs = joined(&export.runs, export.len).ok_or(ExportError::BadArgument)?;
        if !self.has_room() || runs.len() > self.free_runs() {
            return Err(ExportError::TooMany);
        }
        let offset = match export.offset {
            Some(offset) if self.is_free(offset, export.len) => offset,
            Some(_) => return Err(ExportError::NoSpace),
            None => self.first_gap(export.len).ok_or(ExportError::NoSpace)?,
        };
        self.runs = self.runs.saturating_add(runs.len());
        let Export { len, rights, nodes, home, name, .. } = *export;
        let window = Window { len, rights, nodes, home, name, runs };
        self.windows.insert(offset, window);
        self.changes = self.changes.wrapping_add(1);
        Ok(offset)
    }

    /// Removes the guest's window that begins at exactly this offset and returns it, if there is one.
    pub fn remove(&mut self, offset: u64) -> Option<Window> {
        self.windows.get(&offset).filter(|window| !matches!(window.home, Home::Hosted(_)))?;
        let window = self.windows.remove(&offset)?;
        self.changes = self.changes.wrapping_add(1);
        self.runs = self.runs.saturating_sub(window.runs.len());
        Some(window)
    }

    /// Removes every window of the guest; those of hosted devices stay.
    pub fn clear(&mut self) {
        self.changes = self.changes.wrapping_add(1);
        self.windows.retain(|_, window| matches!(window.home, Home::Hosted(_)));
        self.runs = self.windows.values().map(|window| window.runs.len()).sum();
    }

    /// Whether a window of this offset and length (bytes) can lie in the offset space, were it empty.
    pub fn is_placeable(&self, offset: Option<u64>, len: u64) -> bool {
        let offset = offset.unwrap_or(self.low);
        let end = offset.checked_add(len);
        len != 0
            && len.is_multiple_of(GRAIN)
            && offset.is_multiple_of(GRAIN)
            && offset >= self.low
            && end.is_some_and(|end| end <= self.size)
    }

    /// What is behind `len` bytes at `offset`, in order, if `source` may access all of them.
    ///
    /// A request may go over the border between two windows that touch; it is granted if it is in
    /// each of them. They have to be of one home.
    ///
    /// # Errors
    /// [`Code::BadSize`] for no bytes, more than [`MAX_REQUEST`], or windows of several homes; [`Code::NoWindow`] if any byte
    /// lies in no window; else [`Code::AccessDenied`] if any byte's window does not grant it.
    pub fn resolve(
        &self,
        source: NodeId,
        direction: Direction,
        offset: u64,
        len: u64,
    ) -> Result<(Home, Vec<Segment>), Code> {
        if len == 0 || len > MAX_REQUEST {
            return Err(Code::BadSize);
        }
        let mut segments = Vec::new();
        let mut granted = true;
        let mut homes = None;
        let (mut at, mut left) = (offset, len);
        while left > 0 {
            let (begin, window) = self.windows.range(..=at).next_back().ok_or(Code::NoWindow)?;
            let start = at.wrapping_sub(*begin);
            let count = window.len.saturating_sub(start).min(left);
            if count == 0 {
                return Err(Code::NoWindow);
            }
            granted &= window.rights.grant(direction) && window.nodes.contains(source);
            let (home, one) = homes.unwrap_or((window.home, true));
            homes = Some((home, one && home == window.home));
            window.translate(start, count, &mut segments).ok_or(Code::TargetFault)?;
            left = left.saturating_sub(count);
            at = at.checked_add(count).ok_or(Code::NoWindow)?;
        }
        match homes {
            _ if !granted => Err(Code::AccessDenied),
            Some((home, true)) => Ok((home, segments)),
            _ => Err(Code::BadSize),
        }
    }

    /// Whether no window overlaps these bytes.
    fn is_free(&self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len);
        self.windows
            .range(..end)
            .next_back()
            .is_none_or(|(&begin, window)| begin.saturating_add(window.len) <= offset)
    }

    /// The lowest offset at which `len` bytes are free.
    fn first_gap(&self, len: u64) -> Option<u64> {
        let mut candidate = self.low;
        for (&begin, window) in &self.windows {
            if begin.saturating_sub(candidate) >= len {
                break;
            }
            candidate = begin.saturating_add(window.len);
        }
        self.is_placeable(Some(candidate), len).then_some(candidate)
    }
}

/// The windows of both spaces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Windows {
    memory: WindowTable,
    io: WindowTable,
}

impl Windows {
    /// No windows; the node's window of the access space has `size` bytes.
    pub(super) const fn new(size: u64) -> Self {
        Self { memory: WindowTable::new(size), io: WindowTable::above(IO_OWN_SIZE, IO_WINDOW_SIZE) }
    }

    pub(super) const fn get(&self, space: Space) -> &WindowTable {
        match space {
            Space::Memory => &self.memory,
            Space::Io => &self.io,
        }
    }

    pub(super) const fn get_mut(&mut self, space: Space) -> &mut WindowTable {
        match space {
            Space::Memory => &mut self.memory,
            Space::Io => &mut self.io,
        }
    }

    /// Differs after each change of a window.
    pub(super) const fn version(&self) -> u32 {
        self.memory.changes.wrapping_add(self.io.changes)
    }

    /// Removes every window of the guest.
    pub(super) fn clear(&mut self) {
        self.memory.clear();
        self.io.clear();
    }
}

/// The runs as a window keeps them, neighbours in memory joined; `None` if one is not valid or they
/// do not add up to `len`.
fn joined(runs: &[Run], len: u64) -> Option<Vec<(u64, u64)>> {
    let mut kept = Vec::new();
    let (mut sum, mut next) = (0u64, None);
    for run in runs {
        if !run.is_valid() {
            return None;
        }
        if next != Some(run.address) {
            kept.push((sum, run.address));
        }
        sum = sum.checked_add(run.len)?;
        next = run.address.checked_add(run.len);
    }
    (sum == len).then_some(kept)
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NODE: NodeId = NodeId(2);
    const SIZE: u64 = 256 << 20;
    const READ_WRITE: Rights = Rights { read: true, write: true };

    fn nodes(ids: &[u8]) -> NodeSet {
        ids.iter().map(|&id| NodeId(id)).collect()
    }

    fn export(offset: Option<u64>, runs: &[(u64, u64)]) -> Export {
        let runs: Vec<Run> = runs.iter().map(|&(address, len)| Run { address, len }).collect();
        let len = runs.iter().fold(0u64, |sum, run| sum.wrapping_add(run.len));
        Export {
            offset,
            len,
            rights: READ_WRITE,
            nodes: nodes(&[2]),
            home: Home::Guest,
            name: Name::default(),
            runs,
        }
    }

    fn segment(address: u64, len: usize) -> Segment {
        Segment { address, len }
    }

    #[test]
    fn a_request_inside_one_run_is_one_segment() {
        let mut table = WindowTable::new(SIZE);
        assert_eq!(table.insert(&export(Some(0x10000), &[(0x8000, 0x2000)])), Ok(0x10000));
        let found = table.resolve(NODE, Direction::Write, 0x11ff8, 8);
        assert_eq!(found, Ok((Home::Guest, vec![segment(0x9ff8, 8)])));
    }

    #[test]
    fn a_request_over_scattered_runs_is_cut_and_neighbours_are_joined() {
        let mut table = WindowTable::new(SIZE);
        let runs = [(0x8000, 0x1000), (0x9000, 0x1000), (0x3000, 0x1000)];
        assert_eq!(table.insert(&export(Some(0), &runs)), Ok(0));
        assert_eq!(table.iter().next().unwrap().1.run_count(), 2);
        let found = table.resolve(NODE, Direction::Read, 0xff0, 0x1020);
        assert_eq!(found, Ok((Home::Guest, vec![segment(0x8ff0, 0x1010), segment(0x3000, 0x10)])));
    }

    #[test]
    fn bytes_outside_windows_have_no_window() {
        let mut table = WindowTable::new(SIZE);
        assert_eq!(table.resolve(NODE, Direction::Read, 0, 1), Err(Code::NoWindow));
        table.insert(&export(Some(0x1000), &[(0x8000, 0x1000)])).unwrap();
        for (offset, len) in [(0xfff, 1), (0xfff, 2), (0x2000, 1), (0x1fff, 2), (u64::MAX, 1), (u64::MAX, 8)]
        {
            assert_eq!(table.resolve(NODE, Direction::Read, offset, len), Err(Code::NoWindow), "{offset:#x}");
        }
        assert_eq!(
            table.resolve(NODE, Direction::Read, 0x1fff, 1),
            Ok((Home::Guest, vec![segment(0x8fff, 1)]))
        );
    }

    #[test]
    fn a_request_has_from_one_byte_to_64_kib() {
        let mut table = WindowTable::new(SIZE);
        table.insert(&export(Some(0), &[(0, 0x20000)])).unwrap();
        for len in [0, 0x10001, u64::MAX] {
            assert_eq!(table.resolve(NODE, Direction::Write, 0, len), Err(Code::BadSize));
        }
        assert_eq!(
            table.resolve(NODE, Direction::Write, 1, 0x10000),
            Ok((Home::Guest, vec![segment(1, 0x10000)]))
        );
    }

    #[test]
    fn a_direction_or_node_that_is_not_granted_is_denied() {
        let mut table = WindowTable::new(SIZE);
        let rights = Rights { read: true, write: false };
        table.insert(&Export { rights, ..export(Some(0), &[(0x8000, 0x1000)]) }).unwrap();
        assert_eq!(table.resolve(NODE, Direction::Write, 0, 8), Err(Code::AccessDenied));
        assert_eq!(table.resolve(NodeId(3), Direction::Read, 0, 8), Err(Code::AccessDenied));
        assert!(table.resolve(NODE, Direction::Read, 0, 8).is_ok());
    }

    #[test]
    fn a_request_over_touching_windows_needs_both_grants() {
        let mut table = WindowTable::new(SIZE);
        table.insert(&export(Some(0), &[(0x8000, 0x1000)])).unwrap();
        let second = Export { nodes: nodes(&[2, 3]), ..export(Some(0x1000), &[(0x20000, 0x1000)]) };
        table.insert(&second).unwrap();
        let both = Ok((Home::Guest, vec![segment(0x8fff, 1), segment(0x20000, 1)]));
        assert_eq!(table.resolve(NODE, Direction::Read, 0xfff, 2), both);
        assert_eq!(table.resolve(NodeId(3), Direction::Read, 0xfff, 2), Err(Code::AccessDenied));
        assert_eq!(table.resolve(NodeId(3), Direction::Read, 0xfff, 0x1002), Err(Code::NoWindow));
    }

    #[test]
    fn overlap_is_refused_and_touching_is_not() {
        let mut table = WindowTable::new(SIZE);
        table.insert(&export(Some(0x4000), &[(0x8000, 0x2000)])).unwrap();
        for offset in [0x3000, 0x4000, 0x5000] {
            let refused = table.insert(&export(Some(offset), &[(0, 0x2000)]));
            assert_eq!(refused, Err(ExportError::NoSpace), "{offset:#x}");
        }
        assert_eq!(table.insert(&export(Some(0x2000), &[(0, 0x2000)])), Ok(0x2000));
        assert_eq!(table.insert(&export(Some(0x6000), &[(0, 0x2000)])), Ok(0x6000));
    }

    #[test]
    fn the_first_gap_that_is_large_enough_is_chosen() {
        let mut table = WindowTable::new(0x8000);
        assert_eq!(table.insert(&export(Some(0x1000), &[(0, 0x1000)])), Ok(0x1000));
        assert_eq!(table.insert(&export(None, &[(0, 0x2000)])), Ok(0x2000));
        assert_eq!(table.insert(&export(None, &[(0, 0x1000)])), Ok(0));
        assert_eq!(table.insert(&export(None, &[(0, 0x5000)])), Err(ExportError::NoSpace));
        assert_eq!(table.insert(&export(None, &[(0, 0x4000)])), Ok(0x4000));
        assert_eq!(table.insert(&export(None, &[(0, 0x1000)])), Err(ExportError::NoSpace));
    }

    #[test]
    fn arguments_that_are_not_as_specified_are_refused() {
        let good = export(Some(0), &[(0x8000, 0x2000)]);
        let bad = [
            Export { offset: Some(0x800), ..good.clone() },
            Export { offset: Some(SIZE - 0x1000), ..good.clone() },
            Export { offset: Some(u64::MAX - 0xfff), ..good.clone() },
            Export { len: 0x1000, ..good.clone() },
            Export { len: 0x3000, ..good.clone() },
            Export { len: 0x1800, ..export(Some(0), &[(0x8000, 0x1800)]) },
            export(Some(0), &[]),
            export(Some(0), &[(0x8000, 0x1000), (0x9000, 0)]),
            export(Some(0), &[(0x8800, 0x1000)]),
            export(Some(0), &[(u64::MAX - 0xfff, 0x2000)]),
            export(None, &[(0, 1 << 63), (0, 1 << 63), (0, 0x1000)]),
            export(None, &[(0, SIZE + 0x1000)]),
        ];
        for export in bad {
            let mut table = WindowTable::new(SIZE);
            assert_eq!(table.insert(&export), Err(ExportError::BadArgument), "{export:?}");
            assert_eq!(table.iter().count(), 0);
        }
        assert_eq!(WindowTable::new(SIZE).insert(&export(None, &[(0, SIZE)])), Ok(0));
    }

    #[test]
    fn only_known_rights_and_at_least_one_are_taken() {
        assert_eq!([0, 4, 7, u32::MAX].map(Rights::from_bits), [None; 4]);
        assert_eq!(Rights::from_bits(2), Some(Rights { read: false, write: true }));
    }

    #[test]
    fn windows_and_runs_are_bounded_and_come_back() {
        let mut table = WindowTable::new(1 << 40);
        for _ in 0..MAX_WINDOWS {
            table.insert(&export(None, &[(0, 0x1000)])).unwrap();
        }
        assert_eq!(table.insert(&export(None, &[(0, 0x1000)])), Err(ExportError::TooMany));
        table.clear();
        let scattered: Vec<_> = (0..MAX_RUNS as u64).map(|index| (index * 0x2000, 0x1000)).collect();
        let offset = table.insert(&export(None, &scattered)).unwrap();
        assert_eq!(table.free_runs(), 0);
        assert_eq!(table.insert(&export(None, &[(0, 0x1000)])), Err(ExportError::TooMany));
        assert!(table.remove(offset + 0x1000).is_none(), "only exactly at its offset");
        assert!(table.remove(offset).is_some());
        assert_eq!(table.free_runs(), MAX_RUNS);
        assert_eq!(table.resolve(NODE, Direction::Read, offset, 1), Err(Code::NoWindow));
    }

    /// What a byte's access gives in the naive model: a map from each exported page to its window
    /// and address.
    type Model = BTreeMap<u64, (Export, u64)>;

    fn model_resolve(model: &Model, direction: Direction, offset: u64, len: u64) -> Result<Vec<u64>, Code> {
        if len == 0 || len > 0x10000 {
            return Err(Code::BadSize);
        }
        let bytes: Vec<u128> = (0..u128::from(len)).map(|index| u128::from(offset) + index).collect();
        let page = |byte: &u128| u64::try_from(byte / 4096).ok().and_then(|page| model.get(&page));
        if bytes.iter().any(|byte| page(byte).is_none()) {
            return Err(Code::NoWindow);
        }
        let granted = |export: &Export| export.rights.grant(direction) && export.nodes.contains(NODE);
        if bytes.iter().any(|byte| !granted(&page(byte).unwrap().0)) {
            return Err(Code::AccessDenied);
        }
        Ok(bytes.iter().map(|byte| page(byte).unwrap().1 + (byte % 4096) as u64).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn resolves_like_a_naive_model(
            space in prop_oneof![Just(0x40_0000u64), Just(1u64 << 48)],
            exports in prop::collection::vec(
                (0u64..40, any::<bool>(), prop::collection::vec((0u64..32, 1u64..4), 1..5), 1u32..4, any::<bool>()),
                0..12,
            ),
            requests in prop::collection::vec(
                (0u64..45, -9i64..9, prop_oneof![0u64..20, 0u64..0x3000, Just(0x10000), Just(0x10001)], any::<bool>(), 0..3),
                1..12,
            ),
        ) {
            let mut table = WindowTable::new(space);
            let mut model = Model::new();
            for (page, at_end, runs, rights, granted) in exports {
                let runs: Vec<_> = runs.into_iter().map(|(page, pages)| (page << 12, pages << 12)).collect();
                let offset = if at_end { space - (page << 12) } else { page << 12 };
                let nodes = if granted { nodes(&[2]) } else { nodes(&[1, 66]) };
                let rights = Rights::from_bits(rights).unwrap();
                let export = Export { rights, nodes, ..export(Some(offset), &runs) };
                let pages: Vec<u64> = (offset >> 12..(offset + export.len) >> 12).collect();
                let expected = if offset + export.len > space {
                    Err(ExportError::BadArgument)
                } else if pages.iter().any(|page| model.contains_key(page)) {
                    Err(ExportError::NoSpace)
                } else {
                    Ok(offset)
                };
                prop_assert_eq!(table.insert(&export), expected);
                if expected.is_ok() {
                    let addresses = runs.iter().flat_map(|&(a, len)| (a..a + len).step_by(4096));
                    for (page, address) in pages.into_iter().zip(addresses) {
                        model.insert(page, (export.clone(), address));
                    }
                }
            }
            for (page, shift, len, write, base) in requests {
                // From the start, the end of the offset space, and the end of 64-bit arithmetic.
                let near = match base { 0 => page << 12, 1 => space - (page << 12), _ => 0 };
                let offset = near.wrapping_add_signed(shift);
                let direction = if write { Direction::Write } else { Direction::Read };
                let found = table.resolve(NODE, direction, offset, len);
                let found = found.map(|(_, segments)| {
                    segments.iter().flat_map(|s| s.address..s.address + s.len as u64).collect::<Vec<u64>>()
                });
                prop_assert_eq!(found, model_resolve(&model, direction, offset, len));
            }
        }
    }
}
