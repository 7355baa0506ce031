//! Devices as they are written: what each key may be, and where windows go.

use super::raw::format_nodes;
use super::*;
use crate::adaptor::inventory::Name;
use crate::config::{Config, RawConfig};

fn config(devices: &str) -> Result<Config, ConfigError> {
    let text = format!("node-id = 1\n{devices}");
    Config::new(&toml::from_str::<RawConfig>(&text).unwrap())
}

/// A memory device `name`, and more keys.
fn memory(name: &str, more: &str) -> String {
    format!("[[device]]\nkind = 'memory'\nname = '{name}'\n{more}\n")
}

fn scratchpad(name: &str, more: &str) -> String {
    format!("[[device]]\nkind = 'scratchpad'\nname = '{name}'\n{more}\n")
}

/// Names, offsets and lengths of the windows.
fn places(devices: &str) -> Vec<(String, u64, u64)> {
    let devices = config(devices).unwrap().devices;
    devices.into_iter().map(|d| (d.name, d.window.offset.unwrap(), d.window.len)).collect()
}

#[test]
fn a_device_needs_its_kind_name_and_size_only() {
    let devices = config(&(memory("m", "size = '1M'") + &scratchpad("s", ""))).unwrap().devices;
    let [m, s] = devices.as_slice() else { panic!("{devices:?}") };
    assert_eq!((&m.kind, m.size), (&Kind::Memory { file: None }, 1 << 20));
    let window = HostedWindow {
        device: DeviceId(0),
        space: Space::Memory,
        offset: Some(0),
        len: 1 << 20,
        rights: Rights { read: true, write: true, atomic: true },
        nodes: NodeSet::ALL,
        name: Name::new("m").unwrap(),
    };
    assert_eq!(m.window, window);
    assert_eq!((&s.kind, s.size), (&Kind::Scratchpad, 1024));
    let (space, name) = (Space::Io, Name::new("s").unwrap());
    let io = HostedWindow { device: DeviceId(1), space, offset: Some(0x1000), len: 4096, name, ..window };
    assert_eq!(s.window, io);
}

#[test]
fn windows_with_an_offset_have_it_and_the_others_fill_the_gaps() {
    let list = memory("a", "size = '8K'")
        + &memory("b", "size = '4K'\noffset = '4K'")
        + &memory("c", "size = '4K'")
        + &memory("d", "size = '4K'\noffset = 0xffff000")
        + &scratchpad("e", "")
        + &scratchpad("f", "size = 8\noffset = '0x1000'")
        + &scratchpad("g", "size = 1368");
    let place = |name: &str, offset, len| (name.to_owned(), offset, len);
    assert_eq!(
        places(&list),
        [
            place("a", 0x2000, 0x2000),
            place("b", 0x1000, 0x1000),
            place("c", 0, 0x1000),
            place("d", 0xffff000, 0x1000),
            place("e", 0x2000, 0x1000),
            place("f", 0x1000, 0x1000),
            place("g", 0x3000, 0x2000),
        ]
    );
    // The whole of the window, and the whole of that for I/O.
    assert_eq!(places(&memory("a", "size = '256M'")), [place("a", 0, 256 << 20)]);
    assert_eq!(places(&scratchpad("a", "size = 20480")), [place("a", 0x1000, 60 << 10)]);
}

#[test]
fn each_bad_value_names_device_and_key() {
    let good = "size = '1M'";
    let twice = memory("a", good) + &memory("a", good);
    let overlap = memory("a", "size = '8K'\noffset = 0x4000") + &memory("b", "size = '8K'\noffset = 0x5000");
    let no_gap = memory("a", "size = '128M'\noffset = '64M'") + &memory("b", "size = '128M'");
    let no_io_gap = scratchpad("a", "size = 20480") + &scratchpad("b", "");
    let many: String = (0..257).map(|n| memory(&format!("d{n}"), "size = '4K'")).collect();
    for (devices, line) in [
        ("[[device]]\nname = 'a'".to_owned(), "device 'a': kind: missing"),
        (
            "[[device]]\nname = 'a'\nkind = 'disk'".to_owned(),
            "device 'a': kind: 'disk' is not a kind of device: memory or scratchpad",
        ),
        (memory("a", good) + "[[device]]\nkind = 'memory'", "device number 2: name: missing"),
        (memory("", good), "device '': name: '' is not a name of 1 to 24 letters, digits, '-', '_' and '.'"),
        (
            memory("a b", good),
            "device 'a b': name: 'a b' is not a name of 1 to 24 letters, digits, '-', '_' and '.'",
        ),
        (
            memory(&"a".repeat(25), good),
            "device 'aaaaaaaaaaaaaaaaaaaaaaaaa': name: 'aaaaaaaaaaaaaaaaaaaaaaaaa' is not a name of 1 to 24 letters, digits, '-', '_' and '.'",
        ),
        (twice, "device 'a': name: two devices have it"),
        (memory("a", ""), "device 'a': size: missing"),
        (
            memory("a", "size = 0"),
            "device 'a': size: '0' is not a size such as 64M or 1G, in whole pages of 4K",
        ),
        (
            memory("a", "size = 4097"),
            "device 'a': size: '4097' is not a size such as 64M or 1G, in whole pages of 4K",
        ),
        (
            memory("a", "size = '1X'"),
            "device 'a': size: '1X' is not a size such as 64M or 1G, in whole pages of 4K",
        ),
        (scratchpad("a", "size = 4"), "device 'a': size: '4' is not a size in bytes that is a multiple of 8"),
        (
            memory("a", "size = '1G'"),
            "device 'a': size: 1G is more than the 256M of this node's window; give a smaller size, or a larger --window-size",
        ),
        (
            scratchpad("a", "size = 20488"),
            "device 'a': size: 20488 is more than the 20480 bytes of registers for which this node's window for I/O has room; give a smaller size",
        ),
        (
            scratchpad("a", "size = '0xfffffffffffffff8'"),
            "device 'a': size: 18446744073709551608 is more than the 20480 bytes of registers for which this node's window for I/O has room; give a smaller size",
        ),
        (
            memory("a", "size = '4K'\noffset = 'x'"),
            "device 'a': offset: 'x' is not an offset such as 0x10000 or 64K",
        ),
        (
            memory("a", "size = '4K'\noffset = 2048"),
            "device 'a': offset: 0x800 is not a multiple of 4096 that leaves 4K between 0x0 and 0x10000000, where this node's windows can be",
        ),
        (
            memory("a", "size = '8K'\noffset = 0xffff000"),
            "device 'a': offset: 0xffff000 is not a multiple of 4096 that leaves 8K between 0x0 and 0x10000000, where this node's windows can be",
        ),
        (
            scratchpad("a", "offset = 0"),
            "device 'a': offset: 0x0 is not a multiple of 4096 that leaves 4K between 0x1000 and 0x10000, where this node's windows can be",
        ),
        (overlap, "device 'b': offset: 0x5000 to 0x7000 overlaps device 'a'"),
        (
            no_gap,
            "device 'b': size: beside the other devices no gap of 128M is left in this node's window; give a smaller size, or a larger --window-size",
        ),
        (
            no_io_gap,
            "device 'b': size: beside the other devices no gap of 4K is left in this node's window for I/O; give a smaller size",
        ),
        (
            many,
            "device 'd256': a node has at most 256 windows in a space, and the devices before it have them all",
        ),
        (memory("a", "size = '4K'\nfile = ''"), "device 'a': file: '' is not a path for a file"),
        (scratchpad("a", "file = 'f'"), "device 'a': file: not for a scratchpad"),
        (memory("a", "size = '4K'\nrights = 'x'"), "device 'a': rights: 'x' is not rw, ro or wo"),
        (memory("a", "size = '4K'\nnodes = 16"), "device 'a': nodes: node id 16 is not below nodes (16)"),
        (
            memory("a", "size = '4K'\nnodes = ['1-16']"),
            "device 'a': nodes: node id 16 is not below nodes (16)",
        ),
        (
            memory("a", "size = '4K'\nnodes = '3-1'"),
            "device 'a': nodes: '3-1' is not all, a node id from 0 to 255, or a range such as 1-8",
        ),
        (
            memory("a", "size = '4K'\nnodes = ['all', '1-+2']"),
            "device 'a': nodes: '1-+2' is not all, a node id from 0 to 255, or a range such as 1-8",
        ),
    ] {
        assert_eq!(config(&devices).unwrap_err().to_string(), line, "for {devices}");
    }
}

#[test]
fn nodes_are_ids_and_ranges_and_print_as_such() {
    let set = |text: &str| {
        let devices = config(&memory("a", &format!("size = '4K'\nnodes = {text}"))).unwrap().devices;
        devices[0].window.nodes
    };
    for (text, printed) in [
        ("3", &["3"][..]),
        ("'3'", &["3"]),
        ("[3, '1-2', 5, '7-9', 15]", &["1-3", "5", "7-9", "15"]),
        ("'all'", &["all"]),
        ("[]", &["all"]),
        ("['0-15']", &["0-15"]),
    ] {
        assert_eq!(format_nodes(set(text)), printed, "{text}");
    }
    assert!(set("'1-2'").contains(NodeId(2)) && !set("'1-2'").contains(NodeId(3)));
}

#[test]
fn an_option_is_read_as_qemus_are() {
    let text = |text: &str| Some(Text(text.to_owned()));
    let device: RawDevice =
        "kind=memory,name=vault,size=1G,file=/a=b,,c,offset=0,rights=ro,nodes=1,nodes=3-5".parse().unwrap();
    let expected = RawDevice {
        kind: text("memory"),
        name: text("vault"),
        size: text("1G"),
        offset: text("0"),
        file: text("/a=b,c"),
        rights: text("ro"),
        nodes: vec![Text("1".to_owned()), Text("3-5".to_owned())],
    };
    assert_eq!(device, expected);
    for (option, line) in [
        ("", "'' is not KEY=VALUE (a comma in a value is written twice)"),
        ("kind=memory,", "'' is not KEY=VALUE (a comma in a value is written twice)"),
        ("memory", "'memory' is not KEY=VALUE (a comma in a value is written twice)"),
        ("kind=memory,,name=a,size=1,x", "'x' is not KEY=VALUE (a comma in a value is written twice)"),
        (
            "kind=memory,path=a",
            "unknown key 'path', expected one of kind, name, size, offset, file, rights, nodes",
        ),
        ("size=1,size=2", "key 'size' is given twice"),
    ] {
        assert_eq!(option.parse::<RawDevice>().unwrap_err().to_string(), line, "{option}");
    }
}
