//! Nodes that host devices, with a guest and without.

use std::fs::{self, OpenOptions};
use std::path::Path;

use super::guest::{Guest, WRITE};
use super::node::{Node, Place};
use super::{attach, wait_for_reset};

const BLOCK: u64 = 4096;
const ACCESS_DENIED: u32 = 0x83;
const BAD_SIZE: u32 = 0x84;
const TARGET_FAULT: u32 = 0x85;
/// Where the first I/O device is.
const PAD: u64 = 0x1000;

fn vault(path: &Path) -> String {
    format!("kind=memory,name=vault,size=1M,file={}", path.display())
}

/// Node 2, without a guest, with these devices; nodes 1 and 3 may come.
fn serve(place: &Place, devices: &[&str]) -> Node {
    let peers = ["--peer", "1", "--peer", "3"];
    let devices = devices.iter().flat_map(|device| ["--device", device]);
    place.start_without_guest(2, &[], &peers.into_iter().chain(devices).collect::<Vec<_>>())
}

/// A node with a guest that knows node 2.
fn client(place: &Place, id: u8) -> (Node, Guest) {
    let node = place.start(id, &[2], &[]);
    let mut guest = Guest::attach(&place.socket(id));
    guest.wait_for_node(2, true);
    (node, guest)
}

fn word(path: &Path, offset: u64) -> u64 {
    let bytes = fs::read(path).unwrap();
    let at = usize::try_from(offset).unwrap();
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[test]
fn a_node_without_a_guest_is_a_memory_server() {
    let place = Place::new();
    let path = place.file("vault");
    let two = serve(&place, &[&vault(&path), "kind=memory,name=scratch,size=64K"]);
    assert!(!place.socket(2).exists());
    let (_one, mut near) = client(&place, 1);
    for (offset, value) in [(0, 1u64), (0x1004, 2), (0xf_fff8, 3), (0x10_0000, 4), (0x10_fff8, 5)] {
        near.store(2, offset, &value.to_le_bytes());
        assert_eq!(near.check(2, offset), 0, "at {offset:#x}");
        if offset < 0x10_0000 {
            assert_eq!(word(&path, offset), value, "the file has it when the check returns");
        }
        assert_eq!(near.load(2, offset), value.to_le_bytes());
    }
    assert_eq!(near.check(2, 0x10_0000), 0);
    near.store(2, 0x11_0000, &[1]);
    assert_eq!(near.check(2, 0x11_0000), 0x82, "behind the last device");
    near.store(2, 0xf_fffc, &[1; 8]);
    assert_eq!(near.check(2, 0xf_fff8), BAD_SIZE, "over the border of two devices");
    assert_eq!(word(&path, 0xf_fff8), 3);
    // What somebody else writes into the file is there for other nodes.
    let mut bytes = fs::read(&path).unwrap();
    bytes[0x2000..0x2008].copy_from_slice(&77u64.to_le_bytes());
    fs::write(place.file("copy"), &bytes).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &77u64.to_le_bytes(), 0x2000).unwrap();
    assert_eq!(near.load(2, 0x2000), 77u64.to_le_bytes());
    two.signal(libc::SIGTERM);
    let (status, log) = two.wait();
    assert!(status.success(), "{log:?}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
fn what_was_checked_is_in_the_vault_after_its_server_was_killed() {
    let place = Place::new();
    let path = place.file("vault");
    let mut two = serve(&place, &[&vault(&path)]);
    let (_one, mut near) = client(&place, 1);
    // What each block holds for sure, and what else it may hold since a check told of an error.
    let mut sure = [0u64; 16];
    let mut maybe = vec![Vec::new(); 16];
    let mut value = 0u64;
    for round in 0..4 {
        // The last stores are under way when it is killed.
        for step in 0..200u64 {
            value += 1;
            let block = value % 16;
            near.store(2, block * BLOCK, &value.to_le_bytes());
            let at = usize::try_from(block).unwrap();
            maybe[at].push(value);
            if step == 150 + round {
                two.signal(libc::SIGKILL);
            }
            if near.check(2, block * BLOCK) == 0 {
                sure[at] = value;
                maybe[at].clear();
            }
        }
        drop(two.wait());
        for block in 0..16 {
            let at = usize::try_from(block).unwrap();
            let held = word(&path, block * BLOCK);
            assert!(held == sure[at] || maybe[at].contains(&held), "block {block} has {held}");
            sure[at] = held;
            maybe[at].clear();
        }
        near.wait_for_node(2, false);
        two = serve(&place, &[&vault(&path)]);
        near.wait_for_node(2, true);
        for block in 0..16 {
            let at = usize::try_from(block).unwrap();
            assert_eq!(near.load(2, block * BLOCK), sure[at].to_le_bytes(), "round {round}, block {block}");
            assert_eq!(near.check(2, block * BLOCK), 0);
        }
    }
    assert!(sure.iter().all(|&value| value > 3 * 200), "{sure:?}");
}

#[test]
fn rights_and_nodes_are_kept() {
    let place = Place::new();
    let image = place.file("image");
    fs::write(&image, vec![7; 4096]).unwrap();
    let _two = serve(
        &place,
        &[
            &format!("kind=memory,name=image,size=4K,rights=ro,file={}", image.display()),
            "kind=memory,name=drop,size=4K,rights=wo",
            "kind=memory,name=private,size=4K,nodes=3",
            "kind=memory,name=range,size=4K,nodes=1,nodes=4-7",
        ],
    );
    let (_one, mut near) = client(&place, 1);
    let (_three, mut third) = client(&place, 3);
    assert_eq!(near.load(2, 8), [7; 8]);
    assert_eq!(near.check(2, 0), 0);
    near.store(2, 8, &[1; 8]);
    assert_eq!(near.check(2, 0), ACCESS_DENIED);
    near.store(2, 0x1000, &[1; 8]);
    assert_eq!(near.check(2, 0x1000), 0);
    assert_eq!(near.load(2, 0x1000), [0xff; 8]);
    assert_eq!(near.check(2, 0x1000), ACCESS_DENIED << 8);
    for (guest, denied, granted) in [(&mut near, 0x2000, 0x3000), (&mut third, 0x3000, 0x2000)] {
        assert_eq!(guest.load(2, denied), [0xff; 8]);
        assert_eq!(guest.check(2, denied), ACCESS_DENIED << 8);
        guest.store(2, granted, &[9; 8]);
        assert_eq!(guest.load(2, granted), [9; 8]);
        assert_eq!(guest.check(2, granted), 0);
    }
    assert_eq!(fs::read(&image).unwrap(), vec![7; 4096]);
}

#[test]
fn a_scratchpad_takes_whole_registers_only() {
    let place = Place::new();
    let _two = serve(&place, &["kind=scratchpad,name=pad,size=64"]);
    let (_one, mut near) = client(&place, 1);
    let (_three, mut third) = client(&place, 3);
    near.store_io(2, PAD + 8, &0x1122_3344u32.to_le_bytes());
    near.store_io(2, PAD + 16, &u64::MAX.to_le_bytes());
    assert_eq!(near.check_io(2, PAD), 0);
    assert_eq!(third.load_io(2, PAD + 8), 0x1122_3344u32.to_le_bytes());
    assert_eq!(third.load_io(2, PAD + 16), u64::MAX.to_le_bytes());
    // Each sets and clears bits of its own.
    near.store_io(2, PAD + 64 + 8, &0x8000_0000u32.to_le_bytes());
    third.store_io(2, PAD + 128 + 8, &0x0000_0044u32.to_le_bytes());
    assert_eq!((near.check_io(2, PAD), third.check_io(2, PAD)), (0, 0));
    assert_eq!(near.load_io(2, PAD + 8), 0x9122_3300u32.to_le_bytes());
    for (offset, data) in [
        (0, &[1][..]),
        (0, &[1; 2]),
        (2, &[1; 4]),
        (4, &[1; 8]),
        (60, &[1; 8]),
        (192, &[1; 4]),
        (4088, &[1; 8]),
    ] {
        near.store_io(2, PAD + offset, data);
        assert_eq!(near.check_io(2, PAD), TARGET_FAULT, "{} bytes at {offset}", data.len());
    }
    assert_eq!(near.load_io::<2>(2, PAD), [0xff; 2]);
    assert_eq!(near.check_io(2, PAD), TARGET_FAULT << 8);
    assert_eq!(near.load_io(2, PAD), [0; 8], "nothing of that was done");
    assert_eq!(near.check_io(2, PAD), 0);
    near.store_io(2, PAD + 0x1000, &[1; 4]);
    assert_eq!(near.check_io(2, PAD + 0x1000), 0x82);
}

#[test]
fn a_vault_that_is_cut_is_a_target_fault_and_nothing_else_suffers() {
    let place = Place::new();
    let path = place.file("vault");
    let mut two = serve(&place, &[&vault(&path), "kind=memory,name=scratch,size=64K"]);
    let (_one, mut near) = client(&place, 1);
    near.store(2, 0x8_0000, &[1; 8]);
    assert_eq!(near.check(2, 0x8_0000), 0);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    // Again and again, so that a copy may be under way.
    for round in 0..300u64 {
        file.set_len(0x4_0000).unwrap();
        for block in 0..4 {
            near.store(2, 0x8_0000 + block * BLOCK, &round.to_le_bytes());
        }
        file.set_len(if round % 2 == 0 { 0x10_0000 } else { 0x4_0000 }).unwrap();
        for block in 0..4 {
            let status = near.check(2, 0x8_0000 + block * BLOCK);
            assert!(status == 0 || status == TARGET_FAULT, "{status:#x}");
        }
    }
    file.set_len(0x4_0000).unwrap();
    near.store(2, 0x8_0000, &[1; 8]);
    assert_eq!(near.check(2, 0x8_0000), TARGET_FAULT);
    two.wait_for_any("device 'vault': its file was cut");
    near.store(2, 0x10_0000, &[1; 8]);
    assert_eq!(near.check(2, 0x10_0000), 0, "the other device");
    two.signal(libc::SIGTERM);
    assert!(two.wait().0.success());
}

#[test]
fn devices_outlive_the_guests_of_their_node() {
    let place = Place::new();
    let mut one = place.start(1, &[2], &[]);
    let device = ["--device", "kind=memory,name=scratch,size=1M,offset=1M"];
    let mut two = place.start(2, &[1], &device);
    let mut near = attach(&place, 1, &mut two, 2);
    near.store(2, 1 << 20, &[1; 8]);
    assert_eq!(near.check(2, 1 << 20), 0, "before there is a guest");
    for round in 2..4u8 {
        let mut far = attach(&place, 2, &mut one, 1);
        assert_eq!(far.export(0x4_0000, 0x1000, WRITE), 0);
        near.store(2, 0, &[round; 8]);
        near.store(2, 1 << 20, &[round; 8]);
        assert_eq!((near.check(2, 0), near.check(2, 1 << 20)), (0, 0), "round {round}");
        assert_eq!(far.memory(0x4_0000), [round; 8]);
        far.reset();
        near.wait_for_life(2, far.incarnation());
        assert_eq!(near.load(2, 1 << 20), [round; 8]);
        drop(far);
        two.wait_for("guest detached");
        wait_for_reset(&mut two, 2, &mut one);
        assert_eq!(near.load(2, 1 << 20), [round; 8]);
        assert_eq!(near.check(2, 1 << 20), 0);
        near.store(2, 0, &[round; 8]);
        assert_eq!(near.check(2, 0), 0x82);
    }
}
