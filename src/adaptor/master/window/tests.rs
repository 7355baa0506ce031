//! The window table against a naive model, and each way in which a request or a window is refused.

#![allow(clippy::arithmetic_side_effects)]

use super::*;
use proptest::prelude::*;

const NODE: NodeId = NodeId(2);
const SIZE: u64 = 256 << 20;
const READ_WRITE: Rights = Rights { read: true, write: true, atomic: false };

fn nodes(ids: &[u8]) -> NodeSet {
    ids.iter().map(|&id| NodeId(id)).collect()
}

fn export(offset: Option<u64>, runs: &[(u64, u64)]) -> Export {
    let runs: Vec<Run> = runs.iter().map(|&(address, len)| Run { address, len }).collect();
    let len = runs.iter().fold(0u64, |sum, run| sum.wrapping_add(run.len));
    Export {
        offset,
        len,
        is_far: false,
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
    for (offset, len) in [(0xfff, 1), (0xfff, 2), (0x2000, 1), (0x1fff, 2), (u64::MAX, 1), (u64::MAX, 8)] {
        assert_eq!(table.resolve(NODE, Direction::Read, offset, len), Err(Code::NoWindow), "{offset:#x}");
    }
    assert_eq!(table.resolve(NODE, Direction::Read, 0x1fff, 1), Ok((Home::Guest, vec![segment(0x8fff, 1)])));
}

#[test]
fn a_request_has_from_one_byte_to_512_kib() {
    let mut table = WindowTable::new(SIZE);
    table.insert(&export(Some(0), &[(0, 0x90000)])).unwrap();
    for len in [0, 0x80001, u64::MAX] {
        assert_eq!(table.resolve(NODE, Direction::Write, 0, len), Err(Code::BadSize));
    }
    assert_eq!(
        table.resolve(NODE, Direction::Write, 1, 0x80000),
        Ok((Home::Guest, vec![segment(1, 0x80000)]))
    );
}

#[test]
fn a_direction_or_node_that_is_not_granted_is_denied() {
    let mut table = WindowTable::new(SIZE);
    let rights = Rights { read: true, write: false, atomic: false };
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
fn a_hosted_window_counts_as_one_run_and_only_the_guests_are_removed() {
    let mut table = WindowTable::above(0x1000, 0x10000);
    let window = |offset, len| HostedWindow {
        device: DeviceId(3),
        space: Space::Io,
        offset,
        len,
        rights: READ_WRITE,
        nodes: NodeSet::ALL,
        name: Name::default(),
    };
    assert_eq!(table.host(&window(None, 0x2000)), Ok(0x1000));
    assert_eq!(table.insert(&export(Some(0x3000), &[(0, 0x1000)])), Ok(0x3000));
    assert_eq!(table.host(&window(Some(0x3000), 0x1000)), Err(ExportError::NoSpace));
    for (offset, len) in [(None, 0), (None, 0x800), (Some(0), 0x1000), (Some(0xf000), 0x2000)] {
        assert_eq!(table.host(&window(offset, len)), Err(ExportError::BadArgument), "{offset:x?}");
    }
    let home = Home::Hosted(DeviceId(3));
    let found = table.resolve(NODE, Direction::Write, 0x2ff8, 8);
    assert_eq!(found, Ok((home, vec![segment(0x1ff8, 8)])), "addresses are the device's");
    assert_eq!(table.resolve(NODE, Direction::Write, 0x2ffc, 8), Err(Code::BadSize), "two homes");
    assert_eq!(table.remove(0x1000), None);
    table.clear();
    assert_eq!(table.free_runs(), MAX_RUNS - 1);
    assert_eq!(table.iter().map(|(offset, _)| offset).collect::<Vec<_>>(), [0x1000]);
}

#[test]
fn only_known_rights_and_at_least_one_are_taken() {
    assert_eq!([0, 4, 7, u32::MAX].map(Rights::from_bits), [None; 4]);
    assert_eq!(Rights::from_bits(2), Some(Rights { read: false, write: true, atomic: false }));
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
    if len == 0 || len > 0x80000 {
        return Err(Code::BadSize);
    }
    let bytes: Vec<u128> = (0..u128::from(len)).map(|index| u128::from(offset) + index).collect();
    let page = |byte: &u128| u64::try_from(byte / 4096).ok().and_then(|page| model.get(&page));
    if bytes.iter().any(|byte| page(byte).is_none()) {
        return Err(Code::NoWindow);
    }
    let granted = |export: &Export| export.rights.grant(direction.into()) && export.nodes.contains(NODE);
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
