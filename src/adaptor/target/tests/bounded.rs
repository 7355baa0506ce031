//! What is bounded: buffers, the time stores wait, checks that wait, the work of hostile lengths.

use super::*;

fn few(write_buffers: u16, write_buffers_per_node: usize) -> Rig {
    Rig::with_limits(Limits { write_buffers, write_buffers_per_node, ..Limits::default() })
}

impl Rig {
    /// A store that does not join the one before it.
    fn try_store(&mut self, node: u8, index: u64) -> Result<(), Busy> {
        self.target.store(self.now, Space::Memory, space(node, index * 4), &[1])
    }
}

#[test]
fn bounded_a_stalled_node_leaves_buffers_to_the_others() {
    let mut rig = Rig::new();
    for index in 0..256 {
        rig.try_store(1, index).unwrap();
    }
    assert_eq!(rig.try_store(1, 256), Err(Busy));
    for node in [0, 2, 3] {
        for index in 0..256 {
            rig.try_store(node, index).unwrap();
        }
    }
    assert_eq!(rig.requests().len(), 4 * 255);
}

#[test]
fn bounded_busy_changes_nothing_and_ends_with_a_completion() {
    let mut rig = few(8, 2);
    rig.try_store(1, 0).unwrap();
    rig.try_store(1, 1).unwrap();
    let request = rig.request().unwrap();
    let counters = rig.target.counters();
    assert_eq!(rig.try_store(1, 2), Err(Busy));
    assert_eq!(rig.target.counters(), counters);
    assert_eq!(rig.request(), None);
    // Joining needs no buffer.
    rig.store(1, 5, &[2]);
    rig.complete(&request, Code::Ok);
    rig.try_store(1, 2).unwrap();
    assert_eq!(written(&rig.request().unwrap()), (1, 4, vec![1, 2]));
}

#[test]
fn bounded_the_pool_is_shared_by_all_nodes() {
    let mut rig = few(2, 2);
    rig.try_store(1, 0).unwrap();
    rig.try_store(2, 0).unwrap();
    assert_eq!(rig.try_store(3, 0), Err(Busy));
    rig.idle();
    let request = rig.request().unwrap();
    rig.complete(&request, Code::Ok);
    rig.try_store(3, 0).unwrap();
}

#[test]
fn bounded_a_backlog_waits_for_the_deadline_and_no_longer() {
    let mut rig = few(1, 1);
    rig.try_store(1, 0).unwrap();
    rig.idle();
    let request = rig.request().unwrap();
    rig.now = at(100);
    assert_eq!(rig.try_store(2, 0), Err(Busy));
    assert_eq!(rig.target.poll_timeout(), Some(at(500_100)));
    rig.now = at(500_099);
    assert_eq!(rig.try_store(2, 0), Err(Busy));
    rig.now = at(500_100);
    rig.target.handle_timeout(rig.now);
    assert_eq!(rig.target.poll_timeout(), None);
    rig.try_store(2, 0).unwrap();
    rig.try_store(2, 1025).unwrap();
    assert_eq!(rig.status(2, 0), word(Code::Ok, Code::NoResources));
    assert_eq!(rig.status(2, 4096), word(Code::Ok, Code::NoResources));
    // A store that finds a buffer is still taken.
    rig.complete(&request, Code::Ok);
    rig.try_store(2, 0).unwrap();
    rig.try_store(2, 1).unwrap();
    assert_eq!(rig.target.counters().errors, 3);
    // After a pause of the bus the next backlog has its own time.
    rig.idle();
    assert_eq!(rig.try_store(2, 1), Err(Busy));
}

#[test]
fn bounded_several_nodes_that_stall_share_one_deadline() {
    let mut rig = few(1, 1);
    rig.try_store(1, 0).unwrap();
    for node in [2, 3, 0] {
        // What holds the buffer ends after 200 ms, and the next store waits for that.
        rig.target.handle_timeout(rig.now.after(GATHER));
        let request = rig.request().unwrap();
        let end = rig.now.after(Duration::from_millis(200));
        while rig.try_store(node, 0).is_err() {
            rig.now = rig.target.poll_timeout().unwrap().min(end);
            if rig.now == end {
                rig.complete(&request, Code::Timeout);
            }
        }
    }
    // Twice 200 ms, and then only the 100 that were left.
    assert_eq!(rig.now, at(500_000));
    assert_eq!(rig.status(0, 0), word(Code::Ok, Code::NoResources));
}

#[test]
fn bounded_idle_does_not_renew_the_time_of_a_store_that_waits() {
    let mut rig = few(1, 1);
    rig.try_store(1, 0).unwrap();
    for step in 0..5 {
        rig.now = at(step * 100_000);
        assert_eq!(rig.try_store(2, 0), Err(Busy));
        rig.idle();
    }
    rig.now = at(500_000);
    rig.try_store(2, 0).unwrap();
    assert_eq!(rig.status(2, 0), word(Code::Ok, Code::NoResources));
}

#[test]
fn bounded_loads_beyond_the_fetch_buffers_fail_at_once() {
    let mut rig = Rig::with_limits(Limits { fetch_buffers: 2, ..Limits::default() });
    rig.load(1, 0, 4);
    rig.load(1, 0, 4);
    let tag = rig.load(1, 4096, 4);
    assert_eq!(rig.answer(), Some((tag, vec![0xff; 4])));
    assert_eq!(rig.status(1, 4096), word(Code::NoResources, Code::Ok));
    for request in rig.requests() {
        rig.complete(&request, Code::Ok);
        assert_eq!(rig.answer().unwrap().1, [0x5a; 4]);
    }
    assert_eq!(rig.read(1, 0, 2, Code::Ok), [0x5a; 2]);
}

#[test]
fn bounded_checks_beyond_the_list_fail_at_once_and_clear_nothing() {
    let mut rig = Rig::with_limits(Limits { checks: 1, ..Limits::default() });
    rig.write(1, 0, Code::NoWindow);
    rig.store(1, 0, &[1]);
    rig.check(1, 4096, 4);
    assert!(rig.answer().is_some());
    rig.check(1, 0, 4);
    let tag = rig.check(1, 0, 4);
    let none = Code::NoResources.bits();
    assert_eq!(rig.answer(), Some((tag, vec![none, none, 0, 0])));
    let request = rig.request().unwrap();
    rig.complete(&request, Code::Ok);
    assert_eq!(rig.answer().unwrap().1, [Code::NoWindow.bits(), 0, 0, 0]);
}

#[test]
fn bounded_an_access_of_a_hostile_length_is_logged_in_its_first_window_only() {
    let data = vec![1; 1 << 20];
    let mut rig = Rig::new();
    rig.target.store(rig.now, Space::Memory, space(1, 8192), &data).unwrap();
    assert_eq!(rig.target.logged_blocks(), 14);
    assert_eq!(rig.requests(), []);
    assert_eq!(rig.read(2, WINDOW - 1, 1 << 20, Code::Ok), vec![0xff; 1 << 20]);
    assert_eq!(rig.target.logged_blocks(), 15);
    assert_eq!(rig.status(1, 4096), 0);
    assert_eq!(rig.status(1, 8192), word(Code::Ok, Code::BadSize));
    assert_eq!(rig.status(2, 0), 0);
    assert_eq!(rig.status(2, WINDOW - 4), word(Code::BadSize, Code::Ok));
}

#[test]
fn bounded_a_check_of_a_hostile_length_answers_for_all_its_blocks() {
    let mut rig = Rig::new();
    rig.write(1, 4096, Code::NoWindow);
    rig.read(2, 0, 4, Code::Timeout);
    rig.store(2, 4096, &[1]);
    rig.check(1, 0, 100_000);
    assert_eq!(rig.answer(), None);
    let request = rig.request().unwrap();
    rig.complete(&request, Code::Ok);
    let (_, data) = rig.answer().unwrap();
    assert_eq!(data.len(), 100_000);
    assert_eq!(data[..4], [Code::NoWindow.bits(), Code::Timeout.bits(), 0, 0]);
    assert!(data[4..].iter().all(|&byte| byte == 0));
}

#[test]
fn bounded_nothing_beyond_the_space_is_executed_or_logged() {
    let mut rig = Rig::new();
    let size = WINDOW * u64::from(NODES);
    for offset in [size, size + 1, u64::MAX - 3, u64::MAX] {
        for len in [0, 1, 4, 8, 1 << 20] {
            rig.target.store(rig.now, Space::Memory, offset, &vec![1; len]).unwrap();
            rig.target.load(rig.now, LoadTag(1), Space::Memory, offset, len);
            assert_eq!(rig.answer().unwrap().1, vec![0xff; len]);
            rig.target.check(rig.now, LoadTag(2), Look::Clear, Space::Memory, offset, len);
            assert_eq!(rig.answer().unwrap().1, vec![0xff; len]);
        }
    }
    assert_eq!((rig.requests(), rig.target.logged_blocks()), (vec![], 0));
}
