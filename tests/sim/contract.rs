//! The contract's lines, each by the shortest story that could break it.

use std::time::Duration;

use assured_rdma::adaptor::address::NodeId;
use assured_rdma::adaptor::mesh::Timing;
use assured_rdma::adaptor::status::{Class, Code};
use assured_rdma::adaptor::{Event, Region};

use crate::network::Faults;
use crate::world::{DEADLINE, EXPORT_LEN, EXPORTED, KEEPALIVE, LEASE, TIMING, World};

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3);

fn write_code(word: u32) -> Code {
    Code::from_bits(word as u8).unwrap()
}

fn read_code(word: u32) -> Code {
    Code::from_bits((word >> 8) as u8).unwrap()
}

fn put(world: &mut World, value: u64, offset: u64) {
    world.store(A, B, offset, &value.to_le_bytes()).unwrap();
}

fn held(world: &mut World, offset: u64) -> u64 {
    let at = (EXPORTED + offset) as usize;
    u64::from_le_bytes(world.memory(B)[at..at + 8].try_into().unwrap())
}

mod no_false_ok {
    use super::*;

    #[test]
    fn a_checked_store_is_in_the_targets_memory() {
        let mut world = World::new(1, 2);
        put(&mut world, 0x1122_3344_5566_7788, 0x2008);
        assert_eq!(world.check(A, B, 0x2008), 0);
        assert_eq!(held(&mut world, 0x2008), 0x1122_3344_5566_7788);
    }

    #[test]
    fn a_load_brings_exactly_the_remote_data() {
        let mut world = World::new(1, 2);
        for (index, byte) in world.memory(B)[EXPORTED as usize..].iter_mut().enumerate() {
            *byte = (index % 251) as u8;
        }
        for len in [1, 2, 4, 8] {
            for offset in 0x0ff0..0x1008 {
                let data = world.read(A, B, offset, len);
                let expected: Vec<u8> = (offset..).take(len).map(|o| (o % 251) as u8).collect();
                assert_eq!(data[..], expected[..], "{len} bytes at {offset:#x}");
            }
        }
        assert_eq!(world.check(A, B, 0x1000), 0);
    }

    #[test]
    fn a_refused_store_changes_nothing_and_says_so() {
        let mut world = World::new(1, 2);
        let before = world.memory(B).to_vec();
        put(&mut world, 1, EXPORT_LEN);
        put(&mut world, 2, EXPORT_LEN - 4);
        assert_eq!(write_code(world.check(A, B, EXPORT_LEN)), Code::NoWindow);
        assert_eq!(write_code(world.check(A, B, EXPORT_LEN - 8)), Code::NoWindow);
        // Beyond the command's pages, nothing may differ.
        assert_eq!(world.memory(B)[0x2000..], before[0x2000..]);
    }

    #[test]
    fn an_answer_with_a_flipped_bit_is_never_taken() {
        let mut world = World::new(1, 2);
        world.memory(B)[EXPORTED as usize..].fill(0x5a);
        world.faults = Faults { flip: 300, ..Faults::NONE };
        for index in 0..50 {
            let data = world.read(A, B, index * 8, 8);
            let word = world.check(A, B, index * 8);
            assert!(read_code(word) != Code::Ok || data[..] == [0x5a; 8]);
        }
    }
}

mod no_lost_error {
    use super::*;

    #[test]
    fn an_error_stays_until_it_is_checked_and_only_until_then() {
        let mut world = World::new(1, 2);
        put(&mut world, 1, EXPORT_LEN);
        put(&mut world, 1, 0x1000);
        world.run_for(Duration::from_secs(3));
        assert_eq!(world.check(A, B, 0x1000), 0, "another block");
        assert_eq!(write_code(world.check(A, B, EXPORT_LEN)), Code::NoWindow);
        assert_eq!(world.check(A, B, EXPORT_LEN), 0);
    }

    #[test]
    fn directions_are_kept_apart() {
        let mut world = World::new(1, 2);
        assert_eq!(world.read(A, B, EXPORT_LEN, 4)[..], [0xff; 4]);
        let word = world.check(A, B, EXPORT_LEN);
        assert_eq!((read_code(word), write_code(word)), (Code::NoWindow, Code::Ok));
    }

    #[test]
    fn a_full_log_answers_overflow_for_the_node_until_acknowledged() {
        let mut world = World::new(1, 2);
        let blocks = crate::world::WINDOW / 4096;
        // As many failing blocks as the log holds, of nodes that are not there, and then one more.
        for node in [4, 5, 6, 7].map(NodeId) {
            for block in 0..blocks {
                world.store(A, node, block * 4096, &[1]).unwrap();
            }
        }
        world.idle(A);
        assert_eq!(world.register(A, 0x64) & 0xffff_ffff, 4096, "ERROR_COUNT");
        let node = NodeId(8);
        world.store(A, node, 0x5000, &[1]).unwrap();
        world.idle(A);
        assert_eq!(world.register(A, 0x1000 + 16 * 8) & 4, 4, "the node's overflow bit");
        for block in [5, 0, 5] {
            assert_eq!(write_code(world.check(A, node, block * 4096)), Code::LogOverflow);
        }
        assert_eq!(write_code(world.check(A, NodeId(4), 0)), Code::NoRoute, "what was logged is kept");
        assert_eq!(world.check(A, NodeId(4), 0), 0, "another node does not overflow");
        world.set_register(A, 0x60, u32::from(node.0));
        assert_eq!(world.check(A, node, 0), 0);
    }

    #[test]
    fn a_reset_drops_the_log_and_says_so_by_a_new_incarnation() {
        let mut world = World::new(1, 2);
        put(&mut world, 1, EXPORT_LEN);
        let before = world.register(A, 0x18);
        world.reset(A);
        assert_ne!(world.register(A, 0x18), before);
        assert_eq!(world.check(A, B, EXPORT_LEN), 0);
    }

    #[test]
    fn an_error_raises_its_event_and_interrupt() {
        let mut world = World::new(1, 2);
        world.adaptor(A).handle_vector(0, true);
        world.set_register(A, 0x30, 0xf);
        world.set_register(A, 0x34, 0b10);
        put(&mut world, 1, EXPORT_LEN);
        world.run_for(Duration::from_millis(1));
        assert_eq!(world.register(A, 0x30) & 0xf, 0b10);
        assert_eq!(world.interrupts, [(A, 0)]);
    }
}

mod interrupts {
    use super::*;

    #[test]
    fn a_reset_by_register_leaves_the_function_masked() {
        let mut world = World::new(1, 2);
        let now = world.now;
        world.adaptor(A).handle_vector(0, true);
        world.adaptor(A).handle_store(now, Region::Config, 0x93, &[0xc0]).unwrap();
        world.set_register(A, 0x38, 1);
        world.set_register(A, 0x34, 0b10);
        world.store(A, NodeId(9), 0, &[1]).unwrap();
        world.idle(A);
        assert_eq!(world.register(A, 0x30) & 0b10, 0b10);
        assert_eq!(world.interrupts, []);
        world.adaptor(A).handle_store(now, Region::Config, 0x93, &[0x80]).unwrap();
        world.idle(A);
        assert_eq!(world.interrupts, [(A, 0)]);
    }
}

mod flush_first {
    use super::*;

    #[test]
    fn a_check_pushes_out_what_is_still_in_the_write_buffer() {
        let mut world = World::new(1, 2);
        put(&mut world, 7, 0x3000);
        assert_eq!(held(&mut world, 0x3000), 0, "it is still gathering");
        assert_eq!(world.check(A, B, 0x3ff8), 0, "the same block");
        assert_eq!(held(&mut world, 0x3000), 7);
    }

    #[test]
    fn neighbouring_stores_travel_in_one_packet() {
        let mut world = World::new(1, 2);
        put(&mut world, 1, 0);
        world.check(A, B, 0);
        let before = world.packets;
        for index in 0..512 {
            put(&mut world, index, index * 8);
        }
        assert_eq!(world.check(A, B, 0), 0);
        assert_eq!(held(&mut world, 511 * 8), 511);
        assert!(world.packets - before <= 2, "{} packets for a block", world.packets - before);
    }
}

mod order_exactly_once {
    use super::*;

    #[test]
    fn reads_do_not_pass_earlier_writes() {
        let mut world = World::new(1, 2);
        world.faults = Faults { jitter: 3_000, loss: 100, double: 300, ..Faults::NONE };
        for value in 1..200u64 {
            put(&mut world, value, 0x100);
            let read = world.read(A, B, 0x100, 8);
            let word = world.check(A, B, 0x100);
            assert!(read_code(word) != Code::Ok || read[..] == value.to_le_bytes());
        }
    }

    #[test]
    fn a_doubled_packet_is_executed_once() {
        let mut world = World::new(1, 2);
        world.faults = Faults { double: 1000, ..Faults::NONE };
        let before = world.executions.len();
        for value in 0..20 {
            put(&mut world, value, value * 16);
        }
        assert_eq!(world.check(A, B, 0), 0);
        world.run_for(Duration::from_millis(100));
        assert_eq!(world.executions.len() - before, 20);
    }

    #[test]
    fn a_cut_link_loses_and_repeats_nothing_when_it_comes_back_in_time() {
        let mut world = World::new(1, 2);
        let before = world.executions.len();
        for value in 0..100 {
            put(&mut world, value, value * 16);
        }
        world.idle(A);
        world.cut(A, B);
        world.run_for(Duration::from_millis(100));
        world.link(A, B);
        assert_eq!(world.check(A, B, 0), 0);
        assert_eq!(world.executions.len() - before, 100);
    }
}

mod no_ghost_writes {
    use super::*;

    /// A packet is kept by the network until after its failure was reported.
    fn hold_back(release_after: Duration) -> (World, u64) {
        let mut world = World::new(1, 2);
        put(&mut world, 1, 0);
        assert_eq!(world.check(A, B, 0), 0);
        // The target stands still with the packet in its socket.
        world.pause(B, release_after);
        put(&mut world, 0xdead, 8);
        let word = world.check(A, B, 8);
        assert_eq!(write_code(word), Code::Timeout);
        world.run_for(release_after + Duration::from_secs(1));
        let value = held(&mut world, 8);
        (world, value)
    }

    #[test]
    fn a_write_is_not_executed_after_it_was_reported() {
        let (mut world, value) = hold_back(Duration::from_millis(600));
        assert_eq!(value, 0);
        assert!(world.is_up(A, B));
        put(&mut world, 0xbeef, 8);
        assert_eq!(world.check(A, B, 8), 0);
        assert_eq!(held(&mut world, 8), 0xbeef);
    }

    #[test]
    fn nor_when_the_target_wakes_before_the_report_but_after_the_lease() {
        let (_, value) = hold_back(DEADLINE - Duration::from_millis(1));
        assert_eq!(value, 0);
    }

    #[test]
    fn nor_where_the_target_was_configured_with_a_longer_lease() {
        let short = Duration::from_millis(10);
        fn timing(node: NodeId) -> Timing {
            Timing { lease: if node == A { Duration::from_millis(10) } else { LEASE }, ..TIMING }
        }
        let mut world = World::with_timing(1, 2, timing);
        put(&mut world, 1, 0);
        assert_eq!(world.check(A, B, 0), 0);
        // The write arrives just after its report, while confirmations came until just before the end.
        world.write_delay = DEADLINE + Duration::from_millis(5);
        put(&mut world, 0xdead, 8);
        world.idle(A);
        world.run_for(DEADLINE - short - Duration::from_millis(1));
        world.fill(A, B);
        assert_eq!(write_code(world.check(A, B, 8)).class(), Class::Unknown);
        assert_eq!(held(&mut world, 8), 0);
        world.run_for(Duration::from_millis(20));
        assert_eq!(held(&mut world, 8), 0);
    }

    #[test]
    fn a_write_needs_a_lease_once_the_last_one_is_over() {
        let mut world = World::new(1, 2);
        put(&mut world, 1, 0);
        assert_eq!(world.check(A, B, 0), 0);
        world.run_for(LEASE);
        let before = world.packets;
        put(&mut world, 2, 0);
        assert_eq!(world.check(A, B, 0), 0);
        assert_eq!(world.packets - before, 4, "write, ask, confirm, done");
        let before = world.packets;
        put(&mut world, 3, 0);
        assert_eq!(world.check(A, B, 0), 0);
        assert_eq!(world.packets - before, 2, "write, done: the lease came with the answer");
    }

    #[test]
    fn a_lease_that_is_over_is_asked_for_at_once_however_short_it_was() {
        let mut world = World::with_timing(1, 2, |_| Timing { lease: Duration::from_millis(5), ..TIMING });
        for value in 1..10 {
            let start = world.now;
            put(&mut world, value, 0);
            assert_eq!(world.check(A, B, 0), 0);
            assert!(world.now.since(start) < Duration::from_millis(1), "{:?}", world.now.since(start));
            world.run_for(Duration::from_millis(6));
        }
    }

    #[test]
    fn requests_of_a_reset_node_are_not_executed_later() {
        let mut world = World::new(1, 2);
        world.faults = Faults { survive_cut: true, jitter: 5_000, ..Faults::NONE };
        put(&mut world, 5, 0x40);
        world.idle(A);
        world.reset(A);
        world.run_for(Duration::from_millis(200));
        put(&mut world, 6, 0x40);
        assert_eq!(world.check(A, B, 0x40), 0);
        world.run_for(Duration::from_secs(1));
        assert_eq!(held(&mut world, 0x40), 6);
    }
}

mod bounded {
    use super::*;

    #[test]
    fn a_load_from_a_silent_node_is_answered_within_the_deadline_and_then_at_once() {
        let mut world = World::new(1, 2);
        world.pause(B, Duration::from_secs(20));
        let start = world.now;
        assert_eq!(world.read(A, B, 0, 8)[..], [0xff; 8]);
        assert!(world.now.since(start) <= DEADLINE);
        assert_eq!(read_code(world.check(A, B, 0)), Code::Timeout);
        let start = world.now;
        assert_eq!(world.read(A, B, 0, 8)[..], [0xff; 8]);
        assert!(world.now.since(start) < Duration::from_millis(1));
        assert_eq!(read_code(world.check(A, B, 0)), Code::LinkDown);
    }

    #[test]
    fn stores_to_silent_nodes_do_not_hold_a_later_load_up_for_long() {
        let mut world = World::new(1, 3);
        world.pause(B, Duration::from_secs(20));
        world.pause(C, Duration::from_secs(20));
        let start = world.now;
        for index in 0..3000u64 {
            for node in [B, C] {
                let offset = index * 16 % EXPORT_LEN;
                while world.store(A, node, offset, &index.to_le_bytes()).is_err() {
                    world.step();
                }
            }
        }
        world.read(A, C, 0, 8);
        let waited = world.now.since(start);
        assert!(waited <= 2 * DEADLINE, "{waited:?}");
    }

    #[test]
    fn with_the_longest_deadline_a_load_behind_stores_that_wait_is_answered_before_qemu_gives_up() {
        let deadline = Duration::from_secs(4);
        let mut world = World::with_timing(1, 3, |_| Timing { deadline: Duration::from_secs(4), ..TIMING });
        for silent in [B, C] {
            world.pause(silent, 20 * deadline);
        }
        let start = world.now;
        for index in 0..600u64 {
            while world.store(A, B, index * 16, &index.to_le_bytes()).is_err() {
                world.step();
            }
        }
        let tag = world.begin_load(A, Region::Access, World::space(C, 0), 8);
        assert!(world.run_until(2 * deadline, |world| world.answer(A, tag).is_some()));
        let waited = world.now.since(start);
        assert!(waited < Duration::from_secs(5), "{waited:?}");
    }

    #[test]
    fn a_silent_link_is_cut_by_keepalive() {
        let mut world = World::new(1, 2);
        world.pause(B, Duration::from_secs(20));
        world.run_for(Duration::from_secs(3));
        assert!(world.events.contains(&(A, Event::CutLink(B))));
    }

    #[test]
    fn a_link_that_takes_nothing_more_is_cut_and_keeps_nobody_awake() {
        let mut world = World::new(1, 2);
        world.run_for(Duration::from_secs(1));
        world.events.clear();
        // The target stands still until the socket is full, and in it is a write for which the other side has to ask.
        put(&mut world, 1, 0);
        world.idle(A);
        world.pause(B, Duration::from_secs(20));
        world.fill(A, B);
        put(&mut world, 2, 0);
        let start = world.now;
        for _ in 0..200 {
            world.step();
            if world.events.contains(&(A, Event::CutLink(B))) {
                break;
            }
        }
        let waited = world.now.since(start);
        assert!(world.events.contains(&(A, Event::CutLink(B))), "not cut after 200 turns in {waited:?}");
        assert!(waited <= KEEPALIVE * 3 / 2, "{waited:?}");
    }

    #[test]
    fn a_lease_that_can_not_be_asked_for_keeps_nobody_awake() {
        let mut world = World::new(1, 2);
        world.run_for(Duration::from_secs(1));
        world.fill(B, A);
        put(&mut world, 1, 0);
        world.idle(A);
        let start = world.now;
        for _ in 0..200 {
            world.step();
        }
        assert!(world.now.since(start) > DEADLINE, "200 turns in {:?}", world.now.since(start));
    }

    #[test]
    fn a_short_pause_raises_no_alarm() {
        let mut world = World::new(1, 2);
        world.run_for(Duration::from_secs(1));
        world.events.clear();
        world.pause(B, Duration::from_millis(1500));
        world.run_for(Duration::from_secs(5));
        assert_eq!(world.events, []);
    }

    #[test]
    fn an_unknown_node_is_answered_at_once() {
        let mut world = World::new(1, 2);
        let start = world.now;
        for node in [A, NodeId(9)] {
            assert_eq!(world.read(A, node, 0, 8)[..], [0xff; 8]);
            world.store(A, node, 0, &[1]).unwrap();
            let word = world.check(A, node, 0);
            assert_eq!((read_code(word), write_code(word)), (Code::NoRoute, Code::NoRoute));
        }
        assert_eq!(world.now, start);
    }
}

mod isolation {
    use super::*;

    #[test]
    fn only_granted_directions_are_executed() {
        let mut world = World::new(1, 2);
        for (rights, write, read) in
            [(0b01, Code::AccessDenied, Code::Ok), (0b10, Code::Ok, Code::AccessDenied)]
        {
            world.unexport(B);
            world.export(B, rights, u64::MAX);
            let before = held(&mut world, 0);
            put(&mut world, 77, 0);
            let data = world.read(A, B, 0, 8);
            let word = world.check(A, B, 0);
            assert_eq!((write_code(word), read_code(word)), (write, read));
            assert_eq!(held(&mut world, 0) == before, write != Code::Ok);
            assert_eq!(data[..] == [0xff; 8], read != Code::Ok);
        }
    }

    #[test]
    fn only_granted_nodes_are_served() {
        let mut world = World::new(1, 3);
        world.unexport(B);
        world.export(B, 0b11, 1 << C.0);
        put(&mut world, 1, 0);
        assert_eq!(write_code(world.check(A, B, 0)), Code::AccessDenied);
        world.store(C, B, 0, &[1; 8]).unwrap();
        assert_eq!(world.check(C, B, 0), 0);
    }

    #[test]
    fn nothing_lands_after_a_window_is_closed() {
        let mut world = World::new(1, 2);
        world.unexport(B);
        put(&mut world, 1, 0);
        assert_eq!(write_code(world.check(A, B, 0)), Code::NoWindow);
        assert_eq!(held(&mut world, 0), 0);
    }

    #[test]
    fn nothing_lands_after_a_reset_and_the_other_side_is_told() {
        let mut world = World::new(1, 2);
        put(&mut world, 1, 0);
        world.idle(A);
        world.reset(B);
        assert!(!write_code(world.check(A, B, 0)).is_ok());
        assert_eq!(held(&mut world, 0), 0);
        assert!(world.events.iter().any(|e| matches!(e, (A, Event::PeerRestarted(B, _)))));
        world.run_until(DEADLINE, |world| world.is_up(A, B));
        put(&mut world, 2, 0);
        assert_eq!(write_code(world.check(A, B, 0)), Code::NoWindow);
    }

    #[test]
    fn a_function_that_is_not_bus_master_reaches_no_memory() {
        let mut world = World::new(1, 2);
        let now = world.now;
        world.adaptor(B).handle_store(now, Region::Config, 4, &[2, 0]).unwrap();
        put(&mut world, 1, 0);
        assert_eq!(write_code(world.check(A, B, 0)), Code::TargetFault);
        assert_eq!(held(&mut world, 0), 0);
    }
}

mod life_of_nodes {
    use super::*;

    #[test]
    fn a_killed_node_leaves_unknown_outcomes_and_then_link_down() {
        let mut world = World::new(1, 2);
        world.pause(B, Duration::from_secs(60));
        put(&mut world, 1, 0);
        world.idle(A);
        world.cut(A, B);
        assert_eq!(write_code(world.check(A, B, 0)), Code::LinkLost);
        put(&mut world, 2, 0);
        assert_eq!(write_code(world.check(A, B, 0)), Code::LinkDown);
        assert!(!world.is_up(A, B));
    }

    #[test]
    fn a_node_that_comes_back_is_another_incarnation() {
        let mut world = World::new(1, 2);
        let before = world.register(A, 0x1000 + 32 + 8);
        put(&mut world, 1, 0);
        world.idle(A);
        world.restart(B);
        let code = write_code(world.check(A, B, 0));
        assert!(matches!(code, Code::PeerRestarted | Code::Ok), "{code}");
        assert!(world.run_until(DEADLINE, |world| world.is_up(A, B)));
        assert_ne!(world.register(A, 0x1000 + 32 + 8), before);
        world.export(B, 0b11, u64::MAX);
        put(&mut world, 3, 0);
        assert_eq!(world.check(A, B, 0), 0);
        assert_eq!(held(&mut world, 0), 3);
    }

    #[test]
    fn memory_that_is_not_the_guests_is_refused() {
        let mut world = World::new(1, 2);
        world.unexport(B);
        let memory = world.memory(B).to_vec();
        // What the adaptor sees stays as it was when the guest writes a new command.
        let probe = world.command(B, 3, [0; 128]);
        assert_eq!(probe, 0);
        world.memory(B).copy_from_slice(&memory);
        for opcode in [3, 1] {
            world.set_register(B, 0x48, 0x1234);
            world.set_register(B, 0x4c, opcode);
            assert_eq!(world.register(B, 0x50) & 0xffff_ffff, 4, "not shared");
            assert_eq!(world.register(B, 0x8) & 0b110, 0b100);
        }
        assert!(world.events.contains(&(B, Event::MemoryNotShared)));
        assert_eq!(world.command(B, 3, [0; 128]), 0);
        assert_eq!(world.register(B, 0x8) & 0b110, 0b010);
    }
}
