//! Checks: no false OK, no lost error, flush first.

use super::*;

const ALL_ERRORS: [Code; 3] = [Code::LinkDown, Code::NoWindow, Code::PeerRestarted];

fn small_log(logged_blocks: usize) -> Rig {
    Rig::with_limits(Limits { logged_blocks, ..Limits::default() })
}

#[test]
fn flush_first_a_check_sends_the_posted_writes_of_its_node_and_waits_for_them() {
    let mut rig = Rig::new();
    rig.store(1, 0, &[1; 8]);
    rig.store(2, 0, &[1; 8]);
    let tag = rig.check(1, 8, 4);
    let requests = rig.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(written(&requests[0]), (1, 0, vec![1; 8]));
    assert_eq!(rig.answer(), None);
    rig.complete(&requests[0], Code::TargetFault);
    let code = Code::TargetFault.bits();
    assert_eq!(rig.answer(), Some((tag, vec![code, 0, 0, 0])));
}

#[test]
fn flush_first_a_check_of_another_block_sends_but_does_not_wait() {
    let mut rig = Rig::new();
    rig.store(1, 0, &[1; 8]);
    assert_eq!(rig.status(1, 4096), 0);
    assert_eq!(rig.requests().len(), 1);
}

#[test]
fn flush_first_a_check_waits_for_both_directions_and_for_every_transaction() {
    let mut rig = Rig::new();
    rig.store(1, 0, &[1; 8]);
    rig.store(1, 64, &[1; 8]);
    rig.load(1, 128, 8);
    rig.check(1, 0, 4);
    let requests = rig.requests();
    assert_eq!(requests.len(), 3);
    for request in &requests {
        assert_eq!(rig.answer(), None);
        rig.complete(request, Code::Ok);
    }
    assert_eq!(rig.answer().unwrap().1, [0x5a; 8]);
    assert_eq!(rig.answer().unwrap().1, [0; 4]);
}

#[test]
fn flush_first_a_check_across_blocks_waits_for_a_write_across_them_once() {
    let mut rig = Rig::new();
    rig.store(1, 4092, &[1; 8]);
    rig.check(1, 4094, 4);
    let request = rig.request().unwrap();
    rig.complete(&request, Code::Timeout);
    assert_eq!(rig.answer().unwrap().1, [Code::Timeout.bits(), 0, 0, 0]);
    // The first block's error was returned; the second one's stands.
    assert_eq!(rig.status(1, 0), 0);
    assert_eq!(rig.status(1, 4096), word(Code::Ok, Code::Timeout));
    assert_eq!(rig.status(1, 4096), 0);
}

#[test]
fn flush_first_what_is_started_after_a_check_is_not_waited_for() {
    let mut rig = Rig::new();
    rig.store(1, 0, &[1; 8]);
    rig.check(1, 0, 4);
    rig.store(1, 8, &[2; 8]);
    rig.load(1, 0, 8);
    let requests = rig.requests();
    rig.complete(&requests[0], Code::Ok);
    assert_eq!(rig.answer().unwrap().1, [0; 4]);
}

#[test]
fn flush_first_the_tag_ram_knows_what_is_under_way() {
    let mut rig = Rig::new();
    let first = block(1, 0);
    assert_eq!(rig.target.tag(first), Tag::default());
    rig.store(1, 0, &[1; 8]);
    rig.load(1, 4092, 8);
    let tag = rig.target.tag(first);
    assert_eq!(tag.writes, Tally { outstanding: 1, last_buffer: Some(0) });
    assert_eq!(tag.reads, Tally { outstanding: 1, last_buffer: Some(0) });
    assert_eq!(rig.target.tag(block(1, 4096)).reads.outstanding, 1);
    for request in rig.requests() {
        rig.complete(&request, Code::Ok);
    }
    assert_eq!(rig.target.tag(first), Tag::default());
}

#[test]
fn no_false_ok_each_code_of_each_direction_is_returned_once() {
    for code in Code::ALL.iter().copied().filter(|code| !code.is_ok()) {
        let mut rig = Rig::new();
        rig.write(1, 8, code);
        assert_eq!(rig.status(1, 100), word(Code::Ok, code));
        assert_eq!(rig.status(1, 100), 0);
        assert_eq!(rig.read(1, 8, 4, code), [0xff; 4]);
        assert_eq!(rig.status(1, 100), word(code, Code::Ok));
        assert_eq!(rig.status(1, 100), 0);
        assert_eq!(rig.target.logged_blocks(), 0);
    }
}

#[test]
fn no_false_ok_a_joined_write_and_a_write_across_blocks_fail_as_one_on_every_block() {
    let mut rig = Rig::new();
    rig.write(1, 4096, Code::Ok);
    rig.store(1, 4092, &[1; 8]);
    let request = rig.request().unwrap();
    rig.complete(&request, Code::LinkLost);
    assert_eq!(rig.status(1, 4096), word(Code::Ok, Code::LinkLost));
    assert_eq!(rig.status(1, 0), word(Code::Ok, Code::LinkLost));
}

#[test]
fn no_false_ok_a_read_with_other_than_the_asked_length_is_corrupt() {
    for len in [0, 7, 9] {
        let mut rig = Rig::new();
        rig.load(1, 0, 8);
        let request = rig.request().unwrap();
        rig.target.complete(rig.now, request.id, Code::Ok, vec![0; len].into());
        assert_eq!(rig.answer().unwrap().1, [0xff; 8]);
        assert_eq!(rig.status(1, 0), word(Code::Corrupt, Code::Ok));
    }
}

#[test]
fn no_false_ok_a_failed_read_never_delivers_data() {
    let mut rig = Rig::new();
    rig.load(1, 0, 8);
    let request = rig.request().unwrap();
    rig.target.complete(rig.now, request.id, Code::Timeout, vec![0; 8].into());
    assert_eq!(rig.answer().unwrap().1, [0xff; 8]);
}

#[test]
fn no_false_ok_stale_unknown_and_premature_completions_are_ignored() {
    let mut rig = Rig::new();
    rig.store(1, 0, &[1; 8]);
    for id in 0..4 {
        rig.target.complete(rig.now, TransactionId(id), Code::Ok, Bytes::new());
    }
    rig.check(1, 0, 4);
    for id in 0..4 {
        rig.target.complete(rig.now, TransactionId(id), Code::Ok, Bytes::new());
    }
    assert_eq!(rig.answer(), None);
    let request = rig.request().unwrap();
    rig.complete(&request, Code::Timeout);
    rig.complete(&request, Code::Ok);
    assert_eq!(rig.answer().unwrap().1, [Code::Timeout.bits(), 0, 0, 0]);
    rig.complete(&request, Code::Timeout);
    assert_eq!(rig.status(1, 0), 0);
}

#[test]
fn no_lost_error_the_transaction_started_first_sticks() {
    for (first, second) in [(0, 1), (1, 0)] {
        let mut rig = Rig::new();
        rig.store(1, 0, &[1; 8]);
        rig.store(1, 64, &[1; 8]);
        rig.load(1, 0, 8);
        let requests = rig.requests();
        for index in [first, second] {
            rig.complete(&requests[index], ALL_ERRORS[index]);
        }
        rig.complete(&requests[2], ALL_ERRORS[2]);
        assert_eq!(rig.answer().unwrap().1, [0xff; 8]);
        assert_eq!(rig.status(1, 0), word(ALL_ERRORS[2], ALL_ERRORS[0]));
        assert_eq!(rig.status(1, 0), 0);
    }
}

#[test]
fn no_lost_error_a_check_of_one_block_leaves_the_others_alone() {
    let mut rig = Rig::new();
    rig.write(1, 0, Code::NoWindow);
    rig.write(1, 4096, Code::NoWindow);
    rig.write(2, 0, Code::NoWindow);
    assert_eq!(rig.status(1, 0), word(Code::Ok, Code::NoWindow));
    assert_eq!(rig.status(1, 4096), word(Code::Ok, Code::NoWindow));
    assert_eq!(rig.status(2, 0), word(Code::Ok, Code::NoWindow));
}

#[test]
fn no_lost_error_what_failed_after_a_check_was_begun_is_left_for_the_next() {
    let mut rig = Rig::new();
    rig.store(1, 0, &[1; 8]);
    rig.store(1, 64, &[1; 8]);
    rig.check(1, 0, 4);
    rig.store(1, 128, &[1; 8]);
    rig.check(1, 0, 4);
    let requests = rig.requests();
    rig.complete(&requests[0], Code::NoWindow);
    // The third write fails while the first check still waits for the second.
    rig.complete(&requests[2], Code::AccessDenied);
    assert_eq!(rig.answer(), None);
    rig.complete(&requests[1], Code::Ok);
    assert_eq!(rig.answer().unwrap().1, [Code::NoWindow.bits(), 0, 0, 0]);
    assert_eq!(rig.answer().unwrap().1, [Code::AccessDenied.bits(), 0, 0, 0]);
    assert_eq!(rig.status(1, 0), 0);
}

#[test]
fn no_lost_error_a_check_does_not_report_what_was_started_after_it() {
    let mut rig = Rig::new();
    rig.store(1, 0, &[1; 8]);
    rig.check(1, 0, 4);
    rig.store(1, 64, &[1; 8]);
    rig.check(1, 0, 4);
    let requests = rig.requests();
    rig.complete(&requests[1], Code::AccessDenied);
    rig.complete(&requests[0], Code::Ok);
    assert_eq!(rig.answer().unwrap().1, [0; 4]);
    assert_eq!(rig.answer().unwrap().1, [Code::AccessDenied.bits(), 0, 0, 0]);
}

#[test]
fn no_lost_error_a_check_that_returns_nothing_clears_nothing() {
    let mut rig = Rig::new();
    rig.write(3, WINDOW - 1, Code::NoWindow);
    rig.check(3, WINDOW - 1, 0);
    assert_eq!(rig.answer().unwrap().1, [0u8; 0]);
    // One byte beyond the space: nothing answers there.
    rig.check(3, WINDOW - 1, 2);
    assert_eq!(rig.answer().unwrap().1, [0xff; 2]);
    assert_eq!(rig.status(3, WINDOW - 4), word(Code::Ok, Code::NoWindow));
}

#[test]
fn no_lost_error_one_byte_clears_only_the_direction_it_returns() {
    let mut rig = Rig::new();
    rig.read(1, 0, 4, Code::NoWindow);
    rig.write(1, 0, Code::AccessDenied);
    for expected in [Code::AccessDenied, Code::NoWindow, Code::Ok] {
        rig.check(1, 3, 1);
        assert_eq!(rig.answer().unwrap().1, [expected.bits()]);
    }
}

#[test]
fn no_lost_error_a_full_log_degrades_to_overflow_for_the_node() {
    let mut rig = small_log(2);
    rig.write(1, 0, Code::NoWindow);
    rig.write(1, 4096, Code::NoWindow);
    // The other direction of a logged block still finds room.
    rig.read(1, 0, 4, Code::AccessDenied);
    assert!(!rig.target.overflowed(NodeId(1)));
    rig.read(2, 0, 4, Code::AccessDenied);
    rig.write(1, 8192, Code::NoWindow);
    assert!(rig.target.overflowed(NodeId(1)) && rig.target.overflowed(NodeId(2)));
    assert_eq!(rig.target.logged_blocks(), 2);

    // Own errors are returned, and every other block may be the one that was lost.
    let lost = Code::LogOverflow;
    assert_eq!(rig.status(1, 0), word(Code::AccessDenied, Code::NoWindow));
    assert_eq!(rig.status(1, 4096), word(lost, Code::NoWindow));
    for offset in [0, 4096, 8192, 12288] {
        assert_eq!(rig.status(1, offset), word(lost, lost));
        assert_eq!(rig.status(2, offset), word(lost, lost));
        assert_eq!(rig.status(3, offset), 0);
    }

    // Only the acknowledgement ends it, for the one node.
    rig.target.acknowledge_overflow(NodeId(1));
    assert_eq!(rig.status(1, 0), 0);
    assert_eq!(rig.status(2, 0), word(lost, lost));
    rig.target.reset();
    assert_eq!(rig.status(2, 0), 0);
}

#[test]
fn no_lost_error_acknowledging_an_overflow_keeps_what_is_logged() {
    let mut rig = small_log(1);
    rig.write(1, 0, Code::NoWindow);
    rig.write(1, 4096, Code::NoWindow);
    rig.target.acknowledge_overflow(NodeId(1));
    rig.write(1, 8192, Code::NoWindow);
    assert!(rig.target.overflowed(NodeId(1)));
    rig.target.acknowledge_overflow(NodeId(1));
    assert_eq!(rig.status(1, 0), word(Code::Ok, Code::NoWindow));
}

#[test]
fn no_lost_error_events_tell_of_the_first_error_and_of_an_overflow() {
    let mut rig = small_log(1);
    assert!(!rig.target.poll_error_event());
    rig.write(1, 0, Code::NoWindow);
    assert!(rig.target.poll_error_event());
    assert!(!rig.target.poll_error_event());
    rig.write(1, 0, Code::NoWindow);
    assert!(!rig.target.poll_error_event());
    rig.write(1, 4096, Code::NoWindow);
    assert!(rig.target.poll_error_event());
    rig.write(1, 4096, Code::NoWindow);
    assert!(!rig.target.poll_error_event());
    rig.status(1, 0);
    rig.write(1, 0, Code::NoWindow);
    assert!(rig.target.poll_error_event());
}

#[test]
fn no_lost_error_a_reset_answers_what_waits() {
    let mut rig = Rig::new();
    rig.store(1, 0, &[1; 8]);
    let load = rig.load(1, 0, 8);
    let check = rig.check(1, 0, 4);
    let byte = rig.check(1, 0, 1);
    rig.target.reset();
    let dropped = Code::LogOverflow.bits();
    assert_eq!(rig.answer(), Some((load, vec![0xff; 8])));
    assert_eq!(rig.answer(), Some((check, vec![dropped, dropped, 0, 0])));
    assert_eq!(rig.answer(), Some((byte, vec![dropped])));
    assert_eq!(rig.answer(), None);
}

#[test]
fn no_lost_error_a_reset_forgets_log_and_counters() {
    let mut rig = Rig::new();
    rig.write(1, 0, Code::NoWindow);
    rig.read(1, 0, 4, Code::Timeout);
    rig.status(2, 0);
    let counters = Counters { stores: 1, loads: 1, checks: 1, errors: 2 };
    assert_eq!(rig.target.counters(), counters);
    rig.target.reset();
    assert_eq!(rig.target.counters(), Counters::default());
    assert_eq!(rig.target.logged_blocks(), 0);
    assert!(!rig.target.poll_error_event());
}

#[test]
fn a_peek_waits_and_answers_as_a_check_and_clears_nothing() {
    let mut rig = Rig::new();
    rig.store(1, 0, &[1; 8]);
    let tag = rig.peek(1, 8, 4);
    let request = rig.request().unwrap();
    assert_eq!(rig.answer(), None);
    rig.complete(&request, Code::Timeout);
    let answer = vec![Code::Timeout.bits(), 0, 0, 0];
    assert_eq!(rig.answer(), Some((tag, answer.clone())));
    let tag = rig.peek(1, 0, 4);
    assert_eq!(rig.answer(), Some((tag, answer)));
    assert_eq!(rig.status(1, 0), word(Code::Ok, Code::Timeout));
    let tag = rig.peek(1, 0, 4);
    assert_eq!(rig.answer(), Some((tag, vec![0; 4])));
}
