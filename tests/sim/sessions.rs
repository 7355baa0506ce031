//! A function answers in its spaces only in a session that a driver began on it: never with a 0 that a program takes for OK.

use assured_rdma::adaptor::Region;
use assured_rdma::adaptor::address::NodeId;
use assured_rdma::adaptor::status::Code;

use crate::world::{EXPORTED, SESSION, WINDOW, World};

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);

const SESSION_REGISTER: u64 = 0x1d0;
const STORES: u64 = 0x80;
const CHECKS: u64 = 0x90;
/// The parts of BAR1, with 16 nodes.
const IO_PART: u64 = 16 << 16;

fn configure(world: &mut World, node: NodeId, offset: u64, data: &[u8]) {
    let now = world.local(node);
    world.adaptor(node).handle_store(now, Region::Config, offset, data).unwrap();
    world.take_outputs();
}

/// Every place in which a program, or the driver for it, looks for data or a status.
fn places() -> Vec<(Region, u64)> {
    let of_b = WINDOW * u64::from(B.0);
    let in_io = |part| part * IO_PART + (u64::from(B.0) << 16) + 0x1000;
    vec![
        (Region::Access, of_b),
        (Region::Assurance, of_b),
        (Region::Assurance, 16 * WINDOW + of_b),
        (Region::Io, in_io(0)),
        (Region::Io, in_io(1)),
        (Region::Io, in_io(2)),
        (Region::Io, 3 * IO_PART),
        (Region::Registers, 0x118),
    ]
}

/// Stores change nothing, and whatever is loaded is all-ones.
fn assert_silent(world: &mut World, why: &str) {
    let before = world.memory(B).to_vec();
    assert!(world.store(A, B, 0, &[0xaa; 8]).is_ok());
    world.idle(A);
    world.run_for(crate::world::DEADLINE);
    assert!(world.memory(B) == before, "{why}: a store was executed");
    for (region, offset) in places() {
        for len in [4, 8] {
            // Behind RANGE_STATUS stands RANGE_SPACE.
            let len = if region == Region::Registers { 4 } else { len };
            let data = world.load(A, region, offset, len);
            assert!(data.iter().all(|&byte| byte == 0xff), "{why}: {region:?} {offset:#x}: {data:?}");
        }
    }
}

fn assert_served(world: &mut World) {
    world.store(A, B, 0, &7u64.to_le_bytes()).unwrap();
    assert_eq!(world.check(A, B, 0), 0);
    assert_eq!(world.memory(B)[EXPORTED as usize], 7);
}

#[test]
fn no_false_ok_from_a_function_that_no_driver_began_to_use() {
    let mut world = World::new(1, 2);
    assert_served(&mut world);
    // The function was replaced by a new one; its registers are there when memory space is.
    let now = world.local(A);
    world.adaptor(A).handle_reset(now);
    world.take_outputs();
    assert_silent(&mut world, "memory space is off");
    assert_eq!(world.register(A, STORES), u64::MAX);
    configure(&mut world, A, 4, &[6, 0]);
    assert_silent(&mut world, "no driver began a session");
    assert_eq!([STORES, CHECKS].map(|at| world.register(A, at)), [0; 2]);
    world.set_register(A, SESSION_REGISTER, u32::MAX);
    assert_silent(&mut world, "all-ones begins none");
    world.begin_session(A);
    assert!(world.run_until(crate::world::DEADLINE, |world| world.is_up(A, B)));
    assert_served(&mut world);
    world.set_register(A, SESSION_REGISTER, 0);
    assert_silent(&mut world, "the session was ended");
}

#[test]
fn each_reset_ends_the_session() {
    type Reset = fn(&mut World);
    let resets: [(&str, Reset); 3] = [
        ("CONTROL", |world| world.set_register(A, 0x38, 1)),
        ("FLR", |world| {
            configure(world, A, 0x58, &[0, 0x80]);
            configure(world, A, 4, &[6, 0]);
        }),
        ("machine", |world| {
            let now = world.local(A);
            world.adaptor(A).handle_reset(now);
            configure(world, A, 4, &[6, 0]);
        }),
    ];
    for (name, reset) in resets {
        let mut world = World::new(1, 2);
        assert_served(&mut world);
        reset(&mut world);
        assert_eq!(world.register(A, SESSION_REGISTER) as u32, 0, "{name}");
        assert_silent(&mut world, name);
    }
}

#[test]
fn a_check_of_8_bytes_shows_the_session_too() {
    let mut world = World::new(1, 2);
    let wide = |world: &mut World, part: u64| {
        let data = world.load(A, Region::Assurance, part * 16 * WINDOW + WINDOW * u64::from(B.0), 8);
        u64::from_le_bytes(data[..].try_into().unwrap())
    };
    let session = u64::from(SESSION) << 32;
    assert_eq!(wide(&mut world, 0), session);
    // Where nothing is exported; the block is the first one all the same.
    world.store(A, B, 0xff9, &[1; 8]).unwrap();
    let _ = world.load(A, Region::Access, WINDOW * 3 - 8, 8);
    let last = |world: &mut World| world.load(A, Region::Assurance, WINDOW * 3 - 8, 8);
    let failed = u64::from(Code::NoWindow.bits()) << 8;
    assert_eq!(last(&mut world)[..], (session | failed).to_le_bytes());
    world.set_register(A, SESSION_REGISTER, 9);
    assert_eq!(wide(&mut world, 1), 9 << 32, "the peek alias");
}

#[test]
fn a_function_in_d3hot_neither_answers_nor_reaches_memory_and_keeps_its_state() {
    let mut world = World::new(1, 2);
    assert_served(&mut world);
    let _ = world.load(A, Region::Access, WINDOW * 3 - 8, 8);
    configure(&mut world, A, 0x44, &[3]);
    assert_silent(&mut world, "D3hot");
    assert_eq!(world.register(A, 0), u64::MAX, "MAGIC and VERSION");
    configure(&mut world, A, 0x44, &[0]);
    let word =
        u32::from_le_bytes(world.load(A, Region::Assurance, WINDOW * 3 - 4, 4)[..].try_into().unwrap());
    assert_eq!(word >> 8, u32::from(Code::NoWindow.bits()), "an error outlives D3hot");
    assert_served(&mut world);

    configure(&mut world, B, 0x44, &[3]);
    world.store(A, B, 0, &9u64.to_le_bytes()).unwrap();
    assert_eq!(world.check(A, B, 0) as u8, Code::TargetFault.bits());
    configure(&mut world, B, 0x44, &[0]);
    assert_eq!(world.memory(B)[EXPORTED as usize], 7);
    assert_served(&mut world);
}
