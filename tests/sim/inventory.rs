//! Nodes learn what the others export to them, and that it has changed.

use std::time::Duration;

use assured_rdma::adaptor::Region;
use assured_rdma::adaptor::address::{NodeId, Space};
use assured_rdma::adaptor::inventory::{Kind, Name};
use assured_rdma::adaptor::master::Rights;

use crate::network::Station;
use crate::world::{EXPORT_LEN, TIMING, World};

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3);
const R: Station = Station::Router(0);
const SOON: Duration = Duration::from_secs(1);
const INVENTORY_EVENT: u64 = 1 << 6;

/// Kind, rights, offset and length of an entry of the node's inventory as the guest at `at` reads it.
fn entry(world: &mut World, at: NodeId, node: NodeId, index: u32) -> (u64, u64, u64, u64) {
    world.set_register(at, 0x1c0, index << 8 | u32::from(node.0));
    let head = world.register(at, 0x200);
    (head & 0xffff_ffff, head >> 32, world.register(at, 0x208), world.register(at, 0x210))
}

fn count(world: &mut World, at: NodeId, node: NodeId) -> u64 {
    world.set_register(at, 0x1c0, node.0.into());
    world.register(at, 0x1c4) & 0xffff_ffff
}

fn clear_events(world: &mut World, at: NodeId) {
    world.set_register(at, 0x30, u32::MAX);
}

fn has_news(world: &mut World, at: NodeId) -> bool {
    world.register(at, 0x30) & INVENTORY_EVENT != 0
}

fn window() -> (u64, u64, u64, u64) {
    (Kind::Memory as u64, 3, 0, EXPORT_LEN)
}

/// B exports to A only: A sees it come and go, C sees nothing of it.
fn comes_and_goes(mut world: World) {
    world.unexport(B);
    world.adaptor(B).set_name(Name::new("vault").unwrap());
    assert!(world.run_until(SOON, |world| count(world, A, B) == 1 && count(world, C, B) == 1));
    clear_events(&mut world, A);
    clear_events(&mut world, C);
    world.export(B, 3, 1 << A.0);
    assert_eq!((count(&mut world, B, B), entry(&mut world, B, B, 1)), (2, window()), "of itself, at once");
    assert!(world.run_until(SOON, |world| has_news(world, A)));
    assert_eq!((count(&mut world, A, B), entry(&mut world, A, B, 1)), (2, window()));
    assert_eq!(entry(&mut world, A, B, 0).0, Kind::Bus as u64);
    assert_eq!(world.register(A, 0x218), u64::from_le_bytes(*b"vault\0\0\0"));
    assert_eq!(entry(&mut world, A, B, 2), (0, 0, 0, 0), "there is no third");
    world.run_for(SOON);
    assert_eq!(count(&mut world, C, B), 1);
    world.unexport(B);
    assert!(world.run_until(SOON, |world| count(world, A, B) == 1));
}

#[test]
fn a_window_is_announced_to_whom_it_is_granted() {
    comes_and_goes(World::new(7, 3));
}

#[test]
fn a_window_is_announced_over_a_router() {
    let links = [(A.into(), R), (B.into(), R), (C.into(), R)];
    comes_and_goes(World::with_routers(7, 3, 1, &links, |_| TIMING));
}

#[test]
fn another_life_of_a_node_has_another_inventory() {
    let mut world = World::new(8, 2);
    assert!(world.run_until(SOON, |world| count(world, A, B) == 2));
    clear_events(&mut world, A);
    world.reset(B);
    assert!(world.run_until(SOON, |world| has_news(world, A) && count(world, A, B) == 1));
    world.export(B, 1, 1 << A.0);
    assert!(world.run_until(SOON, |world| count(world, A, B) == 2));
    world.restart(B);
    assert!(world.run_until(SOON, |world| count(world, A, B) == 1));
}

#[test]
fn a_node_that_was_reset_begins_without_news() {
    let mut world = World::new(8, 2);
    assert!(world.run_until(SOON, |world| count(world, A, B) == 2 && count(world, A, A) == 2));
    clear_events(&mut world, A);
    world.reset(A);
    assert_eq!(world.register(A, 0x30) & 0xffff_ffff, 0, "as the specification has it");
    world.set_register(A, 0x38, 1);
    assert_eq!(world.register(A, 0x30) & 0xffff_ffff, 0);
    assert_eq!(count(&mut world, A, A), 1);
}

#[test]
fn changes_that_come_fast_end_with_the_last_one() {
    let mut world = World::new(9, 2);
    world.unexport(B);
    world.run_for(SOON);
    for round in 0..50 {
        world.export(B, 1 + round % 3, 1 << A.0);
        world.run_for(Duration::from_micros(u64::from(round) * 200));
        world.unexport(B);
    }
    world.export(B, 2, 1 << A.0);
    assert!(world.run_until(SOON, |world| entry(world, A, B, 1) == (Kind::Memory as u64, 2, 0, EXPORT_LEN)));
    let data = world.load(A, Region::Registers, 0x1c4, 4);
    assert_eq!(data[..], 2u32.to_le_bytes());
}

#[test]
fn a_list_is_known_in_the_end_whatever_of_its_exchange_is_lost_under_steady_traffic() {
    // HELLO, the answers to it among them, INQUIRE and INVENTORY.
    for (command, losses) in [(1, 1), (1, 2), (1, 3), (1, 4), (12, 1), (13, 1)] {
        let mut world = World::new(10, 2);
        assert!(world.run_until(SOON, |world| count(world, A, B) == 2));
        world.unexport(B);
        assert!(world.run_until(SOON, |world| count(world, A, B) == 1));
        world.run_for(SOON);
        world.network.losses.insert(command, losses);
        world.export(B, 3, u64::MAX);
        let mut rounds = 0u64;
        while count(&mut world, A, B) != 2 {
            rounds += 1;
            assert!(rounds < 1000, "not known after 5 s, {losses} of command {command} lost");
            for (from, to) in [(A, B), (B, A)] {
                world.store(from, to, 0, &rounds.to_le_bytes()).unwrap();
                world.idle(from);
            }
            world.run_for(Duration::from_millis(5));
        }
        assert_eq!(world.network.losses[&command], 0, "as many of command {command} are lost");
    }
}

#[test]
fn atomic_operations_are_announced_where_they_are_done() {
    let mut world = World::new(9, 2);
    let all = Rights { read: true, write: true, atomic: true };
    world.host(B, Space::Memory, 0x1000, all);
    world.host(B, Space::Io, 0x1000, all);
    let entries = [2, 3].map(|index| entry(&mut world, B, B, index));
    let kinds_and_rights = entries.map(|(kind, rights, ..)| (kind, rights));
    assert_eq!(kinds_and_rights, [(Kind::MemoryDevice as u64, 0b1_0011), (Kind::IoDevice as u64, 0b0_1011)]);
}
