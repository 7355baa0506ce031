//! What each operation does where nothing goes wrong.

use super::*;
use crate::queue::{COMPARE_SWAP, FENCE, FETCH_ADD, FLAG_FENCE, FLAG_INLINE, FLAG_LIST, MESSAGE, list};
use crate::world::EXPORT_LEN;

const OK: u32 = 0;

#[test]
fn a_write_and_a_read_move_bytes_and_say_so() {
    let (mut world, mut a) = pair();
    let bytes = pattern(1, 1000);
    a.data(&mut world, 5, 1000).copy_from_slice(&bytes);
    let write = a.write(11, 5, 0x123, 1000);
    let done = Completion { status: OK, cookie: 11, done: 1000, former: 0 };
    assert_eq!(a.run(&mut world, &write), done);
    assert_eq!(exported(&mut world, B, 0x123, 1000), bytes);
    let read = a.read(12, 3001, 0x123, 1000);
    assert_eq!(a.run(&mut world, &read), Completion { cookie: 12, ..done });
    assert_eq!(a.data(&mut world, 3001, 1000), bytes);
    assert_eq!(a.data(&mut world, 3000, 1)[0], 0, "nothing beside it");
    assert_eq!(a.data(&mut world, 4001, 1)[0], 0, "nothing beside it");
}

#[test]
fn nothing_is_written_before_it_completes_and_ok_means_it_is_there() {
    let (mut world, mut a) = pair();
    world.write_delay = Duration::from_millis(3);
    a.data(&mut world, 0, 8).fill(9);
    let write = a.write(1, 0, 0, 8);
    a.post_all(&mut world, &[write]);
    world.run_for(Duration::from_millis(2));
    assert_eq!(a.poll(&mut world), None);
    assert_eq!(a.wait(&mut world).status, OK);
    assert_eq!(exported(&mut world, B, 0, 8), [9; 8]);
}

#[test]
fn a_full_ring_is_done_in_order_again_and_again() {
    let (mut world, mut a) = pair();
    let mut next = 0;
    for _ in 0..5 {
        let count = u64::from(a.queue.room());
        for cookie in next..next + count {
            a.data(&mut world, 8 * (cookie % 64), 8).copy_from_slice(&cookie.to_le_bytes());
            let write = a.write(cookie, 8 * (cookie % 64), 8 * (cookie % 64), 8);
            a.post(&mut world, &write);
        }
        a.post_all(&mut world, &[]);
        for cookie in next..next + count {
            let done = a.wait(&mut world);
            assert_eq!((done.cookie, done.status), (cookie, OK));
        }
        next += count;
        let last = next - 1;
        assert_eq!(exported(&mut world, B, 8 * (last % 64), 8), last.to_le_bytes());
    }
    // Of 320 writes: entries and answers are gathered.
    assert!(world.packets < 1000, "{} packets", world.packets);
}

#[test]
fn indices_wrap() {
    let mut world = World::new(7, 2);
    let key = register(&mut world, A, DOMAIN, 3);
    let mut a = create(&mut world, A, (DOMAIN, key), 0, 2, 0).unwrap();
    for cookie in 0..50 {
        let write = a.write(cookie, 0, 0, 1);
        assert_eq!(a.run(&mut world, &write).cookie, cookie);
    }
}

#[test]
fn a_large_one_is_cut_into_packets() {
    let (mut world, mut a) = pair();
    // More than one packet from a list of pieces that do not fit packets.
    let bytes = pattern(2, EXPORT_LEN);
    a.data(&mut world, 0x10, EXPORT_LEN).copy_from_slice(&bytes);
    let key = a.key;
    let parts =
        [(key, DATA + 0x10, 1), (key, DATA + 0x11, 0xfff0 - 1), (key, DATA, 0), (key, DATA + 0x1_0000, 0x10)];
    let at = DATA + 0x1_8000;
    let entries = list(&parts);
    a.data(&mut world, 0x1_8000, entries.len() as u64).copy_from_slice(&entries);
    let entry = Entry { flags: FLAG_LIST, list_entries: 4, local: at, ..a.write(1, 0, 0, EXPORT_LEN) };
    let done = a.run(&mut world, &entry);
    assert_eq!((done.status, done.done), (OK, EXPORT_LEN));
    assert_eq!(exported(&mut world, B, 0, EXPORT_LEN), bytes);
    let scattered = Entry { opcode: queue::READ, ..entry };
    a.data(&mut world, 0x10, EXPORT_LEN).fill(0);
    assert_eq!(a.run(&mut world, &scattered).status, OK);
    assert_eq!(a.data(&mut world, 0x10, EXPORT_LEN), bytes);
}

#[test]
fn a_list_of_many_small_pieces_is_gathered_and_scattered() {
    let (mut world, mut a) = pair();
    let count = 1024;
    let bytes = pattern(3, count);
    // Every other byte, so that no two pieces touch.
    for (at, &byte) in bytes.iter().enumerate() {
        a.data(&mut world, 2 * at as u64, 1)[0] = byte;
    }
    let parts: Vec<_> = (0..count).map(|at| (a.key, DATA + 2 * at, u64::from(at != 500))).collect();
    let entries = list(&parts);
    a.data(&mut world, 0x1_0000, entries.len() as u64).copy_from_slice(&entries);
    let local = DATA + 0x1_0000;
    let write = Entry { flags: FLAG_LIST, list_entries: count as u32, local, ..a.write(1, 0, 0, count - 1) };
    assert_eq!(a.run(&mut world, &write), Completion { status: OK, cookie: 1, done: count - 1, former: 0 });
    let expected = [&bytes[..500], &bytes[501..]].concat();
    assert_eq!(exported(&mut world, B, 0, count - 1), expected);
    a.data(&mut world, 0, 2 * count).fill(0);
    let read = Entry { opcode: queue::READ, ..write };
    assert_eq!(a.run(&mut world, &read).status, OK);
    let back: Vec<u8> = a.data(&mut world, 0, 2 * count).to_vec();
    assert!(back.iter().enumerate().all(|(at, &byte)| {
        let index = at / 2;
        byte == if at % 2 == 0 && index != 500 { bytes[index] } else { 0 }
    }));
    // A list of which the sum is found to be wrong at its end.
    let wrong = Entry { len: count, ..write };
    let done = a.run(&mut world, &wrong);
    assert_eq!((done.status, done.done, done.former), (0xc7, 15 * 64 - 1, 0x87));
}

#[test]
fn a_read_of_what_was_just_written_sees_it() {
    let (mut world, mut a) = pair();
    a.data(&mut world, 0, 4).copy_from_slice(b"new!");
    let entries = [a.write(1, 0, 0, 4), a.read(2, 8, 0, 4)];
    a.post_all(&mut world, &entries);
    assert_eq!([a.wait(&mut world).status, a.wait(&mut world).status], [OK, OK]);
    assert_eq!(a.data(&mut world, 8, 4), b"new!");
}

#[test]
fn a_fence_holds_back_what_depends_on_local_memory() {
    let (mut world, mut a) = pair();
    exported(&mut world, B, 0x100, 4).copy_from_slice(b"echo");
    let fenced = Entry { flags: FLAG_FENCE, ..a.write(2, 0, 0, 4) };
    let entries = [a.read(1, 0, 0x100, 4), fenced, Entry { opcode: FENCE, cookie: 3, ..Entry::default() }];
    a.post_all(&mut world, &entries);
    for cookie in 1..=3 {
        let done = a.wait(&mut world);
        assert_eq!((done.cookie, done.status), (cookie, OK));
    }
    assert_eq!(exported(&mut world, B, 0, 4), b"echo");
}

#[test]
fn inline_data_needs_no_key() {
    let (mut world, mut a) = pair();
    let inline = Entry { flags: FLAG_INLINE, inline: Some([7; 32]), ..a.write(1, 0, 0x40, 32) };
    assert_eq!(a.run(&mut world, &inline).done, 32);
    assert_eq!(exported(&mut world, B, 0x40, 32), [7; 32]);
}

#[test]
fn a_message_comes_after_its_data() {
    let (mut world, mut a) = pair();
    // Doorbell 5 is open to node 1.
    world.set_register(B, 0x3000 + 5 * 64 + 0x20, 1 << 1);
    for len in [0, 16, 1000] {
        a.data(&mut world, 0, 1000).fill(len as u8);
        let entry = Entry { opcode: MESSAGE, doorbell: 5, operand: 0xfeed, ..a.write(len, 0, 0, len) };
        a.post_all(&mut world, &[entry]);
        let told = world.run_until(DEADLINE, |world| world.register(B, 0x180) >> 31 & 1 == 1);
        assert!(told);
        assert_eq!(exported(&mut world, B, 0, len), vec![len as u8; len as usize]);
        assert_eq!(world.register(B, 0x188), 0xfeed);
        assert_eq!(world.register(B, 0x180) as u32 & 0xffff, 5 << 8 | 1);
        let number = world.register(B, 0x194) as u32;
        world.set_register(B, 0x190, number);
        assert_eq!(a.wait(&mut world), Completion { status: OK, cookie: len, done: len, former: 0 });
    }
}

#[test]
fn atomic_operations_bring_back_what_was_there() {
    let (mut world, mut a) = pair();
    exported(&mut world, B, 0x18, 8).copy_from_slice(&40u64.to_le_bytes());
    let add = Entry { opcode: FETCH_ADD, node: B.0, remote: 0x18, operand: 2, ..Entry::default() };
    let swap = |compare, operand| Entry { opcode: COMPARE_SWAP, compare, operand, ..add };
    // The export grants reading and writing only.
    assert_eq!(a.run(&mut world, &add).status, 0x8383);
    a.resume(&mut world);
    world.unexport(B);
    world.export(B, 0b1_0011, u64::MAX);
    let done = |former| Completion { status: OK, cookie: 0, done: 8, former };
    assert_eq!(a.run(&mut world, &add), done(40));
    assert_eq!(a.run(&mut world, &swap(41, 7)), done(42));
    assert_eq!(a.run(&mut world, &swap(42, 7)), done(42));
    assert_eq!(exported(&mut world, B, 0x18, 8), 7u64.to_le_bytes());
    let misaligned = Entry { remote: 0x1c, ..add };
    assert_eq!(a.run(&mut world, &misaligned).status, 0x8787);
}

#[test]
fn windows_beyond_the_access_space_are_reached_by_the_engine() {
    let (mut world, mut a) = pair();
    let far = 1u64 << 40;
    let mut fields = vec![(0x10, far), (0x18, 0x1000), (0x20, 0b10_0011 | 1 << 32), (0x28, 0x1000)];
    fields.push((0x40, u64::MAX));
    world.memory(B)[0x1000..0x1008].copy_from_slice(&BASE.to_le_bytes());
    world.memory(B)[0x1008..0x1010].copy_from_slice(&0x1000u64.to_le_bytes());
    assert_eq!(world.command(B, 1, descriptor(&fields)), 0);
    assert_eq!(world.register(B, 0x58), far);
    a.data(&mut world, 0, 3).copy_from_slice(b"far");
    let write = a.write(1, 0, far + 0x800, 3);
    assert_eq!(a.run(&mut world, &write).status, OK);
    assert_eq!(&world.memory(B)[BASE as usize + 0x800..][..3], b"far");
    let beyond = a.write(2, 0, far + 0xfff, 3);
    assert_eq!(a.run(&mut world, &beyond).status, 0x82);
    assert_eq!(world.register(A, 0x64), 0, "no block of the access space has failed");
}

#[test]
fn queues_take_turns() {
    let mut world = World::new(7, 2);
    let key = register(&mut world, A, DOMAIN, 3);
    let mut greedy = create(&mut world, A, (DOMAIN, key), 0, 6, 0).unwrap();
    let mut modest = create(&mut world, A, (DOMAIN, key), 0x2000, 6, 0).unwrap();
    world.network.rate = 100;
    let large = greedy.write(1, 0, 0, EXPORT_LEN);
    greedy.post_all(&mut world, &[large; 64]);
    let start = world.now;
    let small = modest.write(2, 0, 0, 8);
    assert_eq!(modest.run(&mut world, &small).status, OK);
    // What is under way already: 1 MiB, which takes 10 ms, and some more as the way is found to be fast.
    assert!(world.now.since(start) < Duration::from_millis(20), "{:?}", world.now.since(start));
    assert!((0..64).all(|_| greedy.wait(&mut world).status == OK), "a slow way is no error");
}

#[test]
fn a_small_operation_does_not_wait_long_behind_long_ones() {
    let mut world = World::new(7, 2);
    let key = register(&mut world, A, DOMAIN, 3);
    let mut greedy = create(&mut world, A, (DOMAIN, key), 0, 6, 0).unwrap();
    let mut modest = create(&mut world, A, (DOMAIN, key), 0x2000, 6, 0).unwrap();
    // 20 MB/s, so that a long one takes more than 3 ms, and what the flow may hold 200.
    world.network.rate = 20;
    let start = world.now;
    let (mut times, mut moved) = (Vec::new(), 0);
    while times.len() < 40 {
        while greedy.queue.room() > 0 {
            let large = greedy.write(1, 0, 0, EXPORT_LEN);
            greedy.post_all(&mut world, &[large]);
        }
        let begin = world.now;
        let small = modest.read(2, 0, 0, 8);
        assert_eq!(modest.run(&mut world, &small).status, OK);
        times.push(world.now.since(begin));
        while let Some(completion) = greedy.poll(&mut world) {
            assert_eq!(completion.status, OK);
            moved += EXPORT_LEN;
        }
    }
    let later = &mut times[10..];
    later.sort();
    assert!(later[later.len() - 1] < Duration::from_millis(35), "{times:?}");
    let whole = 20 * world.now.since(start).as_micros() as u64;
    assert!(moved > whole * 9 / 10, "the way is busy all the time: {moved} of {whole} bytes");
}
