//! A completion that says "not executed" tells of an operation of which nothing was done, and the bytes moved are those that were.

use super::*;
use crate::queue::{FLAG_INLINE, FLAG_LIST, MESSAGE, list};
use crate::world::{EXPORT_LEN, EXPORTED};

const FLUSHED: u64 = 0x44;
const NO_WINDOW: u64 = 0x82;
const ACCESS_DENIED: u64 = 0x83;
const BAD_KEY: u64 = 0x86;
const PARTIAL: u32 = 0xc7;

/// Pieces of a long write.
const PIECES: u64 = 32;
const PIECE: u64 = 0x10_000;
/// Where in B's window there is room for all of them, each in the same memory.
const LONG: u64 = 0x10_0000;

/// The entries of a list page.
fn runs(world: &mut World, at: NodeId, address: u64) {
    let page = &mut world.memory(at)[0x1000..0x2000];
    page.fill(0);
    for run in page.chunks_exact_mut(16).take(PIECES as usize) {
        run[..8].copy_from_slice(&address.to_le_bytes());
        run[8..].copy_from_slice(&PIECE.to_le_bytes());
    }
}

/// A long window of B, and a key of A with as much memory.
fn long(world: &mut World) -> u32 {
    runs(world, B, EXPORTED);
    let len = PIECES * PIECE;
    let shape = [(0x18, len), (0x20, 3 | PIECES << 32), (0x28, 0x1000)];
    let export = [&shape[..], &[(0x10, LONG), (0x40, u64::MAX)]].concat();
    assert_eq!(world.command(B, 1, descriptor(&export)), 0);
    runs(world, A, BASE);
    let register = [&shape[..], &[(0x30, DOMAIN.into())]].concat();
    assert_eq!(world.command(A, REGISTER, descriptor(&register)), 0);
    world.register(A, 0x58) as u32
}

/// Bytes that B executed writes of, in pieces of a long write.
fn written(world: &World) -> u64 {
    let long = world.executions.iter().filter(|execution| execution.data.len() as u64 == PIECE);
    long.count() as u64 * PIECE
}

#[test]
fn a_write_that_is_cut_short_by_another_ones_error_tells_what_was_written() {
    for rate in [5, 20, 100] {
        let (mut world, mut a) = pair();
        let key = long(&mut world);
        world.network.rate = rate;
        let bad = a.write(1, 0, EXPORT_LEN, 8);
        let whole = Entry { key, local: 0, ..a.write(2, 0, LONG, PIECES * PIECE) };
        a.post_all(&mut world, &[bad, whole, whole]);
        assert_eq!(u64::from(a.wait(&mut world).status), NO_WINDOW);
        let (cut, behind) = (a.wait(&mut world), a.wait(&mut world));
        let moved = written(&world);
        assert!(moved > 0 && moved < PIECES * PIECE, "rate {rate}: {moved}");
        assert_eq!((cut.status, cut.done, cut.former), (PARTIAL, moved, FLUSHED), "rate {rate}");
        assert_eq!((u64::from(behind.status), behind.done, behind.former), (FLUSHED, 0, 0));
        world.run_for(DEADLINE);
        assert_eq!(written(&world), moved, "nothing comes after it");
    }
}

#[test]
fn a_write_whose_memory_is_taken_away_tells_what_was_written() {
    let (mut world, mut a) = pair();
    let key = long(&mut world);
    world.network.rate = 20;
    let whole = Entry { key, local: 0, ..a.write(1, 0, LONG, PIECES * PIECE) };
    a.post_all(&mut world, &[whole]);
    world.run_for(Duration::from_millis(8));
    world.command(A, DEREGISTER, descriptor(&[(0x30, u64::from(key) << 32)]));
    let cut = a.wait(&mut world);
    let moved = written(&world);
    assert!(moved > 0 && moved < PIECES * PIECE, "{moved}");
    assert_eq!((cut.status, cut.done, cut.former), (PARTIAL, moved, BAD_KEY));
}

#[test]
fn a_write_over_the_end_of_a_window_and_a_read_into_anothers_memory_are_done_in_part() {
    let (mut world, mut a) = pair();
    a.data(&mut world, 0, EXPORT_LEN).fill(7);
    let over = a.write(1, 0, 0, EXPORT_LEN + 8);
    let done = a.run(&mut world, &over);
    assert_eq!((done.status, done.done, done.former), (PARTIAL, EXPORT_LEN, NO_WINDOW));
    assert!(exported(&mut world, B, 0, EXPORT_LEN).iter().all(|&byte| byte == 7));
    a.resume(&mut world);
    // The second piece's landing place is no memory of the queue's domain.
    let key = long(&mut world);
    let entries = list(&[(key, 0, PIECE), (0, 0, 8)]);
    a.data(&mut world, 0x2_0000, entries.len() as u64).copy_from_slice(&entries);
    let read = Entry { flags: FLAG_LIST, list_entries: 2, ..a.read(2, 0x2_0000, LONG, PIECE + 8) };
    let done = a.run(&mut world, &read);
    assert_eq!((done.status, done.done, done.former), (PARTIAL << 8, PIECE, BAD_KEY));
}

#[test]
fn a_message_that_is_refused_after_its_data_was_written_says_so() {
    let (mut world, mut a) = pair();
    // No doorbell of B is open.
    let message = Entry { opcode: MESSAGE, doorbell: 5, flags: FLAG_INLINE, ..a.write(1, 0, 0, 8) };
    let data = Entry { inline: Some([9; 32]), ..message };
    let done = a.run(&mut world, &data);
    assert_eq!((done.status, done.done, done.former), (PARTIAL, 8, ACCESS_DENIED));
    assert_eq!(exported(&mut world, B, 0, 8), [9; 8]);
    a.resume(&mut world);
    // Alone, and with data that is refused, it is not executed.
    let alone = Entry { len: 0, ..message };
    let done = a.run(&mut world, &alone);
    assert_eq!((u64::from(done.status), done.done, done.former), (ACCESS_DENIED, 0, 0));
    a.resume(&mut world);
    let nowhere = Entry { remote: EXPORT_LEN, ..data };
    let done = a.run(&mut world, &nowhere);
    assert_eq!((u64::from(done.status), done.done, done.former), (NO_WINDOW, 0, 0));
    a.resume(&mut world);
    let none = Entry { doorbell: 64, ..alone };
    let done = a.run(&mut world, &none);
    assert_eq!((u64::from(done.status), done.done), (NO_WINDOW, 0));
}
