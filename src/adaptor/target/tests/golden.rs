//! Golden tables: each access size at each kind of offset.

use super::*;

/// Store length, offset in the window, and the blocks that are logged as BadSize (none: it is executed).
const STORES: &[(usize, u64, &[u64])] = &[
    (1, 0, &[]),
    (1, 4095, &[]),
    (1, WINDOW - 1, &[]),
    (2, 1, &[]),
    (2, 4095, &[]),
    (2, WINDOW - 2, &[]),
    (2, WINDOW - 1, &[15]),
    (4, 3, &[]),
    (4, 4093, &[]),
    (4, WINDOW - 4, &[]),
    (4, WINDOW - 3, &[15]),
    (8, 5, &[]),
    (8, 4089, &[]),
    (8, WINDOW - 8, &[]),
    (8, WINDOW - 7, &[15]),
    (0, 0, &[0]),
    (0, 4096, &[1]),
    (0, WINDOW - 1, &[15]),
    (3, 0, &[0]),
    (3, 4094, &[0, 1]),
    (5, 4096, &[1]),
    (6, 4090, &[0]),
    (7, 4090, &[0, 1]),
    (9, 0, &[0]),
    (16, 4088, &[0, 1]),
    (4096, 0, &[0]),
    (4097, 0, &[0, 1]),
    (8192, 4095, &[0, 1, 2]),
];

#[test]
fn no_false_ok_golden_accesses_are_executed_or_logged_on_each_block_they_touch() {
    for &(len, offset, bad) in STORES {
        let mut rig = Rig::new();
        rig.store(2, offset, &vec![0x33; len]);
        rig.idle();
        let requests = rig.requests();
        if bad.is_empty() {
            assert_eq!(written(&requests[0]), (2, offset, vec![0x33; len]));
            rig.complete(&requests[0], Code::Ok);
            assert_eq!(rig.read(2, offset, len, Code::Ok), vec![0x5a; len]);
        } else {
            assert_eq!(requests, [], "store of {len} bytes at {offset}");
            assert_eq!(rig.read(2, offset, len, Code::Ok), vec![0xff; len]);
        }
        for node in 0..4 {
            for block in 0..16 {
                let code = if node == 2 && bad.contains(&block) { Code::BadSize } else { Code::Ok };
                let found = rig.status(node, block * 4096);
                assert_eq!(found, word(code, code), "{len} bytes at {offset}, node {node} block {block}");
            }
        }
    }
}

/// Length and offset of a check, its answer, and what the blocks 0 and 1 still hold. Before it block 0
/// holds read error 0x81, write error 0xc1; block 1 read error 0x42, write error 0x83.
const CHECKS: &[(usize, u64, &[u8], [u32; 2])] = &[
    (1, 0, &[0xc1], [0x8100, 0x4283]),
    (1, 4095, &[0xc1], [0x8100, 0x4283]),
    (1, 4096, &[0x83], [0x81c1, 0x4200]),
    (2, 0, &[0xc1, 0x81], [0, 0x4283]),
    (2, 1, &[0xc1, 0x81], [0, 0x4283]),
    (2, 4095, &[0xc1, 0x81], [0, 0x4283]),
    (3, 4, &[0xc1, 0x81, 0], [0, 0x4283]),
    (4, 0, &[0xc1, 0x81, 0, 0], [0, 0x4283]),
    (4, 2, &[0xc1, 0x81, 0, 0], [0, 0x4283]),
    (4, 4094, &[0xc1, 0x81, 0, 0], [0, 0x4283]),
    (4, 4096, &[0x83, 0x42, 0, 0], [0x81c1, 0]),
    (5, 0, &[0xc1, 0x81, 0, 0, 0], [0, 0x4283]),
    (8, 0, &[0xc1, 0x81, 0, 0, 0, 0, 0, 0], [0, 0x4283]),
    (8, 4089, &[0xc1, 0x81, 0, 0, 0, 0, 0, 0], [0, 0x4283]),
    (8, 8184, &[0x83, 0x42, 0, 0, 0, 0, 0, 0], [0x81c1, 0]),
    (12, 8192, &[0; 12], [0x81c1, 0x4283]),
];

#[test]
fn no_lost_error_golden_checks_clear_exactly_what_they_return() {
    for &(len, offset, answer, left) in CHECKS {
        let mut rig = Rig::new();
        rig.read(1, 0, 1, Code::NoRoute);
        rig.write(1, 0, Code::Timeout);
        rig.read(1, 4096, 1, Code::NotSent);
        rig.write(1, 4096, Code::AccessDenied);
        rig.check(1, offset, len);
        assert_eq!(rig.answer().unwrap().1, answer, "check of {len} bytes at {offset}");
        assert_eq!([rig.status(1, 0), rig.status(1, 4096)], left, "after a check of {len} bytes at {offset}");
    }
}

#[test]
fn no_lost_error_golden_a_check_across_two_blocks_takes_each_direction_where_it_is_first() {
    let mut rig = Rig::new();
    rig.read(1, 0, 1, Code::NoRoute);
    rig.read(1, 4096, 1, Code::NotSent);
    rig.write(1, 4096, Code::AccessDenied);
    rig.check(1, 4094, 4);
    assert_eq!(rig.answer().unwrap().1, [0x83, 0x81, 0, 0]);
    rig.check(1, 4094, 4);
    assert_eq!(rig.answer().unwrap().1, [0, 0x42, 0, 0]);
    assert_eq!(rig.target.logged_blocks(), 0);
}

#[test]
fn no_false_ok_golden_a_misaligned_check_split_into_bytes_is_truthful() {
    let mut rig = Rig::new();
    rig.read(1, 0, 1, Code::NoRoute);
    rig.write(1, 0, Code::Timeout);
    let mut bytes = Vec::new();
    for offset in 3..7 {
        rig.check(1, offset, 1);
        bytes.extend(rig.answer().unwrap().1);
    }
    assert_eq!(bytes, [0xc1, 0x81, 0, 0]);
}

#[test]
fn no_false_ok_golden_a_check_across_two_windows_answers_for_both() {
    let mut rig = Rig::new();
    rig.write(2, 0, Code::Timeout);
    rig.check(1, WINDOW - 2, 4);
    assert_eq!(rig.answer().unwrap().1, [0xc1, 0, 0, 0]);
}
