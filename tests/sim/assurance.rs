//! What software learns beyond the check of a block: ranges, failed blocks, bases and extents. All of it by registers, as a driver does.

use std::time::Duration;

use assured_rdma::adaptor::Region;
use assured_rdma::adaptor::address::NodeId;
use assured_rdma::adaptor::status::Code;

use crate::world::{DEADLINE, EXPORT_LEN, EXPORTED, WINDOW, World};

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3);

const RANGE_STATUS: u64 = 0x118;
const FAILED: u32 = 1 << 7;

fn address(node: NodeId, offset: u64) -> u64 {
    u64::from(node.0) << 48 | offset
}

fn set_range(world: &mut World, start: u64, end: u64) {
    world.set_wide_register(A, 0x108, start);
    world.set_wide_register(A, 0x110, end);
}

fn ask(world: &mut World, start: u64, end: u64) -> u32 {
    set_range(world, start, end);
    world.register(A, RANGE_STATUS) as u32
}

fn write(world: &mut World, node: NodeId, offset: u64, value: u64) {
    world.store(A, node, offset, &value.to_le_bytes()).unwrap();
}

/// Takes the queue of failed blocks out, as software does.
fn drain(world: &mut World) -> Vec<u64> {
    std::iter::from_fn(|| {
        let block = world.register(A, 0x120);
        world.set_register(A, 0x128, 0);
        (block != u64::MAX).then_some(block)
    })
    .collect()
}

mod ranges {
    use super::*;

    #[test]
    fn flush_first_a_load_of_the_status_waits_for_what_was_posted() {
        let mut world = World::new(1, 2);
        write(&mut world, B, 0x1000, 1);
        write(&mut world, B, EXPORT_LEN, 2);
        set_range(&mut world, address(B, 0), address(B, WINDOW));
        let tag = world.begin_load(A, Region::Registers, RANGE_STATUS, 4);
        assert_eq!(world.answer(A, tag), None, "it is not known yet");
        assert!(world.run_until(DEADLINE, |world| world.is_answered(A, tag)));
        assert_eq!(world.answer(A, tag).unwrap()[..], [Code::NoWindow.bits(), 0, 0, 0]);
        assert_eq!(world.memory(B)[EXPORTED as usize + 0x1000], 1);
        assert_eq!(ask(&mut world, address(B, 0), address(B, EXPORT_LEN)), 0);
        assert_eq!(world.check(A, B, EXPORT_LEN), u32::from(Code::NoWindow.bits()), "it was not cleared");
        assert_eq!(ask(&mut world, 0, 1 << 56), 0);
    }

    #[test]
    fn bounded_a_silent_node_is_told_of_within_the_deadline() {
        let mut world = World::new(1, 2);
        world.pause(B, Duration::from_secs(20));
        write(&mut world, B, 0, 1);
        set_range(&mut world, 0, 1 << 56);
        let start = world.now;
        let data = world.load(A, Region::Registers, RANGE_STATUS, 4);
        assert_eq!(data[..], [Code::Timeout.bits(), 0, 0, 0]);
        assert!(world.now.since(start) <= DEADLINE);
    }

    #[test]
    fn an_access_that_touches_the_status_waits_and_brings_the_other_registers_too() {
        let mut world = World::new(1, 2);
        world.set_register(A, 0x11c, 0);
        set_range(&mut world, 0, 1 << 56);
        for (offset, len) in [(0x110, 16), (0x117, 2), (0x11b, 1), (0x118, 4)] {
            write(&mut world, B, 0, 1);
            let tag = world.begin_load(A, Region::Registers, offset, len);
            assert_eq!(world.answer(A, tag), None, "{len} bytes at {offset:#x}");
            world.run_until(DEADLINE, |world| world.is_answered(A, tag));
            let data = world.answer(A, tag).unwrap();
            assert_eq!(data.len(), len);
            if offset == 0x110 {
                assert_eq!(data[..8], (1u64 << 56).to_le_bytes());
            }
        }
        write(&mut world, B, 0, 1);
        for (offset, len) in [(0x110, 8), (0x11c, 4)] {
            let tag = world.begin_load(A, Region::Registers, offset, len);
            assert!(world.answer(A, tag).is_some(), "{len} bytes at {offset:#x}");
        }
    }

    #[test]
    fn what_is_no_range_reads_as_all_ones() {
        let mut world = World::new(1, 2);
        assert_eq!(ask(&mut world, 0, 0), u32::MAX);
        assert_eq!(ask(&mut world, address(NodeId(16), 0), 1 << 56), u32::MAX);
        world.set_register(A, 0x11c, 2);
        assert_eq!(ask(&mut world, 0, 1 << 56), u32::MAX, "no such space");
        world.set_register(A, 0x11c, 1);
        assert_eq!(ask(&mut world, 0, 1 << 56), 0);
    }

    #[test]
    fn a_reset_answers_what_waits() {
        let mut world = World::new(1, 2);
        world.pause(B, Duration::from_secs(20));
        write(&mut world, B, 0, 1);
        set_range(&mut world, 0, 1 << 56);
        let tag = world.begin_load(A, Region::Registers, RANGE_STATUS, 4);
        world.reset(A);
        let dropped = Code::LogOverflow.bits();
        assert_eq!(world.answer(A, tag).unwrap()[..], [dropped, dropped, 0, 0]);
    }
}

mod failed_blocks {
    use super::*;

    #[test]
    fn each_is_told_of_by_event_and_queue() {
        let mut world = World::new(1, 2);
        world.adaptor(A).handle_vector(0, true);
        world.set_register(A, 0x30, !0);
        world.set_register(A, 0x34, FAILED);
        write(&mut world, B, EXPORT_LEN + 0x3008, 1);
        world.run_for(Duration::from_millis(1));
        assert_eq!(world.interrupts, [(A, 0)]);
        assert_eq!(world.register(A, 0x30) as u32 & FAILED, FAILED);
        world.set_register(A, 0x30, FAILED);
        assert_eq!(world.register(A, 0x130) as u32, 1);
        assert_eq!(drain(&mut world), [address(B, EXPORT_LEN + 0x3000)]);
        assert_eq!(world.register(A, 0x130) as u32, 0);
        // The next one raises the vector again.
        write(&mut world, B, EXPORT_LEN, 1);
        world.run_for(Duration::from_millis(1));
        assert_eq!(world.interrupts.len(), 2);
        assert_eq!(drain(&mut world), [address(B, EXPORT_LEN)]);
        assert_eq!(world.register(A, 0x64) as u32, 2, "ERROR_COUNT: both are still to be checked");
    }

    #[test]
    fn the_io_space_is_told_apart() {
        let mut world = World::new(1, 2);
        let now = world.now;
        world.adaptor(A).handle_store(now, Region::Io, 2 << 16 | 0x2000, &[1]).unwrap();
        world.idle(A);
        world.run_for(Duration::from_millis(1));
        assert_eq!(drain(&mut world), [address(B, 0x2000) | 1]);
    }

    #[test]
    fn halves_are_of_one_block_even_where_that_is_checked_meanwhile() {
        let mut world = World::new(1, 3);
        write(&mut world, B, EXPORT_LEN, 1);
        write(&mut world, C, EXPORT_LEN, 1);
        world.run_for(Duration::from_millis(1));
        let half = |world: &mut World, offset| {
            let data = world.load(A, Region::Registers, offset, 4);
            u32::from_le_bytes(data[..].try_into().unwrap())
        };
        let low = half(&mut world, 0x120);
        world.check(A, B, EXPORT_LEN);
        let high = half(&mut world, 0x124);
        assert_eq!(u64::from(high) << 32 | u64::from(low), address(B, EXPORT_LEN));
        assert_eq!(drain(&mut world), [address(C, EXPORT_LEN)]);
        assert_eq!(half(&mut world, 0x124), u32::MAX);
    }
}

mod spaces {
    use super::*;

    fn wide(world: &mut World, offset: u64) -> u64 {
        world.register(A, offset)
    }

    fn configure(world: &mut World, offset: u64, value: u32) {
        let now = world.now;
        world.adaptor(A).handle_store(now, Region::Config, offset, &value.to_le_bytes()).unwrap();
    }

    #[test]
    fn extents_are_configured_and_bases_are_what_was_written() {
        let mut world = World::new(1, 2);
        let extents = [0xc8, 0xd8, 0xe8, 0xf8, 0x100].map(|at| wide(&mut world, at));
        assert_eq!(extents, [0x1_0000, 16 << 16, 16 * WINDOW, 16 * WINDOW, 0x1_0000]);
        let bases = |world: &mut World| [0xc0, 0xd0, 0xe0, 0xf0].map(|at| wide(world, at));
        assert_eq!(bases(&mut world), [0; 4]);
        configure(&mut world, 0x10, 0xfe00_0000);
        configure(&mut world, 0x14, 0xfd80_0000);
        configure(&mut world, 0x18, 0x800_000c);
        configure(&mut world, 0x1c, 0x40);
        configure(&mut world, 0x20, 0x1000_000c);
        configure(&mut world, 0x24, 0x41);
        let assigned = [0xfe00_0000, 0xfd80_0000, 0x40_0800_0000, 0x41_1000_0000];
        assert_eq!(bases(&mut world), assigned);
        // Resets of the function leave them.
        configure(&mut world, 0x58, 0x8000);
        assert_eq!(bases(&mut world), assigned);
        world.set_register(A, 0x38, 1);
        assert_eq!(bases(&mut world), assigned);
        world.reset(A);
        assert_eq!(bases(&mut world), [0; 4]);
    }
}
