//! Stores on their way out: joining, closing, and the order of the bus.

use super::*;
use crate::adaptor::address::Location;

fn lens(requests: &[Request]) -> Vec<(u8, u64, usize)> {
    requests.iter().map(written).map(|(node, offset, data)| (node, offset, data.len())).collect()
}

#[test]
fn order_neighbouring_stores_are_joined_into_one_transaction() {
    let mut rig = Rig::new();
    rig.store(1, 16, &[1, 2, 3, 4]);
    rig.store(1, 20, &[5]);
    rig.store(1, 21, &[6, 7]);
    assert_eq!(rig.request(), None);
    rig.idle();
    assert_eq!(written(&rig.request().unwrap()), (1, 16, vec![1, 2, 3, 4, 5, 6, 7]));
    assert_eq!(rig.request(), None);
}

#[test]
fn order_stores_to_the_same_byte_are_never_collapsed() {
    let mut rig = Rig::new();
    rig.store(1, 16, &[1, 1, 1, 1]);
    rig.store(1, 16, &[2, 2, 2, 2]);
    rig.store(1, 18, &[3, 3]);
    rig.idle();
    assert_eq!(lens(&rig.requests()), [(1, 16, 4), (1, 16, 4)]);
    // The last one is open until one of the two before it completes.
    rig.now = rig.now.after(GATHER);
    assert_eq!(lens(&rig.requests()), [(1, 18, 2)]);
}

#[test]
fn order_a_store_backwards_or_with_a_gap_closes_the_buffer() {
    for second in [12, 21, 4096 + 20] {
        let mut rig = Rig::new();
        rig.store(1, 16, &[1; 4]);
        rig.store(1, second, &[2; 4]);
        assert_eq!(lens(&rig.requests()), [(1, 16, 4)]);
    }
}

#[test]
fn order_a_buffer_that_reaches_the_end_of_its_block_is_closed() {
    let mut rig = Rig::new();
    for offset in (0..4096).step_by(8) {
        assert_eq!(rig.request(), None);
        rig.store(1, offset, &[7; 8]);
    }
    assert_eq!(lens(&rig.requests()), [(1, 0, 4096)]);
    rig.store(1, 4096, &[7; 8]);
    assert_eq!(rig.request(), None);
}

#[test]
fn order_a_store_across_a_block_does_not_join_and_is_closed_at_once() {
    let mut rig = Rig::new();
    rig.store(1, 4084, &[1; 8]);
    rig.store(1, 4092, &[2; 8]);
    assert_eq!(lens(&rig.requests()), [(1, 4084, 8), (1, 4092, 8)]);
    rig.store(1, 4100, &[3; 4]);
    assert_eq!(rig.request(), None);
}

#[test]
fn order_stores_to_other_nodes_leave_a_buffer_open() {
    let mut rig = Rig::new();
    rig.store(1, 0, &[1; 8]);
    rig.store(2, 0, &[2; 8]);
    rig.store(1, 8, &[1; 8]);
    rig.store(2, 8, &[2; 8]);
    assert_eq!(rig.request(), None);
    rig.idle();
    assert_eq!(lens(&rig.requests()), [(1, 0, 16), (2, 0, 16)]);
}

#[test]
fn order_reads_do_not_pass_writes_of_the_node() {
    for len in [4, 3] {
        let mut rig = Rig::new();
        rig.store(1, 0, &[1; 8]);
        rig.store(2, 0, &[2; 8]);
        rig.load(1, 64, len);
        let requests = rig.requests();
        assert_eq!(lens(&requests[..1]), [(1, 0, 8)]);
        assert_eq!(requests.len(), if len == 4 { 2 } else { 1 });
        if let [write, read] = &requests[..] {
            assert_eq!(read.kind, RequestKind::Read { len: 4 });
            assert_eq!(read.place, Place { node: NodeId(1), at: Location::memory(64) });
            assert!(read.id > write.id);
        }
    }
}

#[test]
fn order_requests_come_in_the_order_of_the_bus() {
    let mut rig = Rig::new();
    for turn in 0..10 {
        rig.store(1, 100 - turn * 2, &[1]);
        rig.load(1, 0, 1);
    }
    let ids: Vec<_> = rig.requests().iter().map(|request| request.id).collect();
    assert_eq!(ids.len(), 20);
    assert!(ids.is_sorted());
}

#[test]
fn order_an_idle_bus_sends_at_once_where_nothing_is_under_way() {
    let mut rig = Rig::new();
    rig.store(1, 0, &[1; 8]);
    rig.idle();
    assert_eq!(lens(&rig.requests()), [(1, 0, 8)]);
}

#[test]
fn order_an_idle_bus_gathers_while_something_is_under_way() {
    let mut rig = Rig::new();
    rig.store(1, 0, &[1; 8]);
    rig.idle();
    let first = rig.request().unwrap();
    rig.store(1, 8, &[2; 8]);
    rig.idle();
    assert_eq!(rig.request(), None);
    rig.store(1, 16, &[3; 8]);
    rig.idle();
    assert_eq!(rig.request(), None);
    rig.complete(&first, Code::Ok);
    assert_eq!(lens(&rig.requests()), [(1, 8, 16)]);
}

#[test]
fn order_a_load_under_way_counts_for_its_own_node_only() {
    let mut rig = Rig::new();
    rig.load(1, 0, 8);
    let load = rig.request().unwrap();
    rig.store(1, 8, &[1; 8]);
    rig.store(2, 8, &[2; 8]);
    rig.idle();
    assert_eq!(lens(&rig.requests()), [(2, 8, 8)]);
    rig.complete(&load, Code::Ok);
    assert_eq!(lens(&rig.requests()), [(1, 8, 8)]);
}

#[test]
fn order_a_completion_while_stores_keep_coming_closes_nothing() {
    let mut rig = Rig::new();
    rig.store(1, 0, &[1; 8]);
    rig.idle();
    let first = rig.request().unwrap();
    rig.store(1, 8, &[2; 8]);
    rig.complete(&first, Code::Ok);
    assert_eq!(rig.request(), None);
    rig.idle();
    assert_eq!(lens(&rig.requests()), [(1, 8, 8)]);
}

#[test]
fn bounded_a_buffer_waits_no_longer_than_the_gather_time() {
    let mut rig = Rig::new();
    rig.store(1, 0, &[1; 8]);
    rig.now = at(5);
    rig.store(2, 0, &[1; 8]);
    rig.store(1, 8, &[1; 8]);
    assert_eq!(rig.target.poll_timeout(), Some(at(20)));
    rig.target.handle_timeout(at(19));
    assert_eq!(rig.request(), None);
    rig.target.handle_timeout(at(20));
    let request = rig.request().unwrap();
    assert_eq!((request.posted, written(&request).2.len()), (at(0), 16));
    assert_eq!(rig.target.poll_timeout(), Some(at(25)));
    // No timer is needed where requests are asked for anyhow.
    rig.now = at(25);
    assert_eq!(rig.request().unwrap().posted, at(5));
    assert_eq!(rig.target.poll_timeout(), None);
}

#[test]
fn order_stores_that_are_not_executed_do_not_disturb_joining() {
    let mut rig = Rig::new();
    rig.store(1, 0, &[1; 8]);
    rig.store(1, 8, &[2; 3]);
    rig.store(1, 8, &[3; 8]);
    rig.idle();
    let requests = rig.requests();
    assert_eq!(lens(&requests), [(1, 0, 16)]);
    assert_eq!(written(&requests[0]).2[8..], [3; 8]);
}

#[test]
fn order_ids_never_repeat_after_a_reset() {
    let mut rig = Rig::new();
    rig.store(1, 0, &[1; 8]);
    rig.idle();
    let before = rig.request().unwrap();
    rig.target.reset();
    rig.store(1, 0, &[1; 8]);
    rig.idle();
    let after = rig.request().unwrap();
    assert!(after.id > before.id);
    // The late completion of the first one says nothing about the second.
    rig.complete(&before, Code::Timeout);
    assert_eq!(rig.target.logged_blocks(), 0);
    rig.check(1, 0, 4);
    assert_eq!(rig.answer(), None);
    rig.complete(&after, Code::Ok);
    assert_eq!(rig.answer().unwrap().1, [0; 4]);
}

#[test]
fn order_a_reset_sends_nothing_that_was_posted_before() {
    let mut rig = Rig::new();
    rig.store(1, 0, &[1; 8]);
    rig.store(1, 100, &[1; 8]);
    rig.load(1, 0, 8);
    rig.target.reset();
    assert_eq!(rig.requests(), []);
    assert_eq!(rig.target.poll_timeout(), None);
}
