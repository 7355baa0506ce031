//! Windows of devices that a node hosts itself: served without a guest, kept over a reset, out of the guest's hands.

use std::time::Duration;

use assured_rdma::adaptor::Region;
use assured_rdma::adaptor::address::{IO_OWN_SIZE, IO_WINDOW_SIZE, Location, NodeId, Space};
use assured_rdma::adaptor::inventory::Kind;
use assured_rdma::adaptor::master::Rights;
use assured_rdma::adaptor::status::{Class, Code};

use crate::world::{DEADLINE, EXPORT_LEN, World};

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3);
const BOTH: Rights = Rights { read: true, write: true, atomic: false };
const LEN: u64 = 0x4000;
/// COMMAND_STATUS.
const NO_SPACE: u64 = 7;
const NOT_FOUND: u64 = 9;

/// Two nodes, and the offset of the device that B hosts, behind the window of its guest.
fn hosting() -> (World, u64) {
    let mut world = World::new(5, 2);
    let at = world.host(B, Space::Memory, LEN, BOTH);
    assert_eq!(at, Location::memory(EXPORT_LEN));
    (world, at.offset)
}

fn write_code(word: u32) -> Code {
    Code::from_bits(word as u8).unwrap()
}

fn put(world: &mut World, offset: u64, value: u64) {
    world.store(A, B, offset, &value.to_le_bytes()).unwrap();
}

fn held(world: &mut World, offset: usize) -> u64 {
    u64::from_le_bytes(world.device(B)[offset..][..8].try_into().unwrap())
}

/// Waits until A has found the life of B that began last.
fn wait_for_life(world: &mut World) {
    assert!(world.run_until(2 * DEADLINE, |world| world.knows(A, B)));
}

#[test]
fn a_device_is_served_while_the_function_may_not_be_bus_master() {
    let (mut world, at) = hosting();
    let now = world.now;
    // As there is no guest, nobody ever sets these bits.
    world.adaptor(B).handle_store(now, Region::Config, 4, &[0, 0]).unwrap();
    put(&mut world, at + 8, 0x1122_3344_5566_7788);
    assert_eq!(world.check(A, B, at + 8), 0);
    assert_eq!(held(&mut world, 8), 0x1122_3344_5566_7788);
    assert_eq!(world.read(A, B, at + 10, 4)[..], [0x66, 0x55, 0x44, 0x33]);
    assert_eq!(world.check(A, B, at + 8), 0);
    // The guest's own window is another matter.
    put(&mut world, 0, 1);
    assert_eq!(write_code(world.check(A, B, 0)), Code::TargetFault);
}

#[test]
fn a_reset_keeps_the_windows_and_what_is_in_the_device_and_is_a_new_life() {
    let (mut world, at) = hosting();
    put(&mut world, at, 7);
    assert_eq!(world.check(A, B, at), 0);
    let before = world.register(B, 0x18);
    world.reset(B);
    assert_ne!(world.register(B, 0x18), before);
    wait_for_life(&mut world);
    assert_eq!(world.read(A, B, at, 8)[..], 7u64.to_le_bytes());
    put(&mut world, at + 8, 8);
    assert_eq!(world.check(A, B, at), 0);
    assert_eq!((held(&mut world, 0), held(&mut world, 8)), (7, 8));
    put(&mut world, 0, 1);
    assert_eq!(write_code(world.check(A, B, 0)), Code::NoWindow, "the guest's window is gone");
}

#[test]
fn what_a_reset_meets_is_reported_and_not_executed_later() {
    let (mut world, at) = hosting();
    put(&mut world, at, 1);
    assert_eq!(world.check(A, B, at), 0);
    // Its packet waits at B when the reset comes.
    world.pause(B, Duration::from_millis(10));
    put(&mut world, at, 2);
    world.run_for(Duration::from_millis(5));
    world.reset(B);
    let code = write_code(world.check(A, B, at));
    assert!(code == Code::PeerRestarted || code == Code::Flushed, "{code}");
    world.run_for(Duration::from_secs(1));
    assert_eq!(held(&mut world, 0), 1);
}

#[test]
fn no_ghost_writes_into_a_device() {
    let (mut world, at) = hosting();
    put(&mut world, at, 1);
    assert_eq!(world.check(A, B, at), 0);
    world.pause(B, DEADLINE - Duration::from_millis(1));
    put(&mut world, at, 2);
    assert_eq!(write_code(world.check(A, B, at)).class(), Class::Unknown);
    world.run_for(Duration::from_secs(1));
    assert_eq!(held(&mut world, 0), 1);
}

#[test]
fn the_guest_neither_removes_a_devices_window_nor_lies_over_it() {
    let (mut world, at) = hosting();
    let mut descriptor = [0; 128];
    descriptor[0x10..0x18].copy_from_slice(&at.to_le_bytes());
    assert_eq!(world.command(B, 2, descriptor), NOT_FOUND);
    descriptor[0x18..0x20].copy_from_slice(&LEN.to_le_bytes());
    descriptor[0x20] = 3;
    descriptor[0x24] = 1;
    descriptor[0x28..0x30].copy_from_slice(&0x1000u64.to_le_bytes());
    world.memory(B)[0x1008..0x1010].copy_from_slice(&LEN.to_le_bytes());
    assert_eq!(world.command(B, 1, descriptor), NO_SPACE);
    put(&mut world, at, 3);
    assert_eq!(world.check(A, B, at), 0);
    assert_eq!(held(&mut world, 0), 3);
}

#[test]
fn rights_are_kept_and_no_access_goes_over_the_border_of_two_devices() {
    let mut world = World::new(5, 3);
    let ro = world.host(B, Space::Memory, LEN, Rights { read: true, write: false, atomic: false }).offset;
    let wo = world.host(B, Space::Memory, LEN, Rights { read: false, write: true, atomic: false }).offset;
    assert_eq!(wo, ro + LEN);
    for node in [A, C] {
        world.store(node, B, ro, &[1]).unwrap();
        assert_eq!(write_code(world.check(node, B, ro)), Code::AccessDenied);
        assert_eq!(world.read(node, B, ro, 8)[..], [0; 8]);
        assert_eq!(world.check(node, B, ro), 0);
        assert_eq!(world.read(node, B, wo, 8)[..], [0xff; 8]);
        assert_eq!(world.check(node, B, wo), u32::from(Code::AccessDenied.bits()) << 8);
    }
    let both = world.host(B, Space::Memory, LEN, BOTH).offset;
    world.store(A, B, both - 4, &[1; 8]).unwrap();
    assert_eq!(write_code(world.check(A, B, both)), Code::BadSize);
    assert_eq!(world.device(B)[..], [0; LEN as usize]);
}

#[test]
fn an_io_device_is_reached_in_the_io_space_behind_the_adaptors_own_part() {
    let mut world = World::new(5, 2);
    let at = world.host(B, Space::Io, 0x1000, BOTH);
    assert_eq!(at, Location::io(IO_OWN_SIZE));
    let offset = u64::from(B.0) * IO_WINDOW_SIZE + at.offset;
    let part = 16 * IO_WINDOW_SIZE;
    let now = world.now;
    world.adaptor(A).handle_store(now, Region::Io, offset + 4, &[1, 2, 3, 4]).unwrap();
    assert_eq!(world.load(A, Region::Io, part + offset, 4)[..], [0; 4], "the check");
    assert_eq!(world.device(B)[..8], [0, 0, 0, 0, 1, 2, 3, 4]);
    assert_eq!(world.load(A, Region::Io, offset + 4, 2)[..], [1, 2]);
    // A's guest can find it.
    world.set_register(A, 0x1c0, 2 << 8 | u32::from(B.0));
    assert!(world.run_until(DEADLINE, |world| world.register(A, 0x208) == IO_OWN_SIZE));
    assert_eq!(world.register(A, 0x200), 0b1011 << 32 | Kind::IoDevice as u64);
    assert_eq!(world.register(A, 0x218), u64::from_le_bytes(*b"device\0\0"));
    // The memory space has nothing at the same offset.
    world.unexport(B);
    assert_eq!(world.read(A, B, at.offset + 4, 4)[..], [0xff; 4]);
}
