//! Holds this crate's copies of numbers against the C headers, which are the source.

#![allow(clippy::arithmetic_side_effects)]

use super::*;
use crate::status::Code;
use std::collections::BTreeMap;

fn header(path: &str) -> String {
    let path = format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// `struct ardma_NAME { ... }` as fields with natural alignment.
fn c_fields(text: &str, name: &str) -> Vec<Field> {
    let start =
        text.find(&format!("struct ardma_{name} {{")).unwrap_or_else(|| panic!("no struct ardma_{name}"));
    let body = text[start..].split_once('{').unwrap().1.split_once("};").unwrap().0;
    let mut offset: usize = 0;
    let mut fields = Vec::new();
    for line in body.lines() {
        let Some((declaration, _)) = line.trim().split_once(';') else { continue };
        let (kind, name) = declaration.split_once(' ').unwrap();
        let width = match kind {
            "__u8" => 1,
            "__u32" => 4,
            "__u64" => 8,
            other => panic!("type {other}"),
        };
        let (name, count) = match name.split_once('[') {
            Some((name, "ARDMA_EVENT_BITS]")) => (name, 8),
            Some((name, "ARDMA_NAME_SIZE]")) => (name, NAME_SIZE),
            Some((name, count)) => (name, count.trim_end_matches(']').parse().unwrap()),
            None => (name, 1),
        };
        offset = offset.next_multiple_of(width);
        fields.push(Field { name: name.to_owned(), offset, size: width * count });
        offset += width * count;
    }
    fields
}

/// `#define NAME value` lines whose value is a number or a shifted 1.
fn c_constants(text: &str) -> BTreeMap<String, u64> {
    let mut constants = BTreeMap::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("#define ") else { continue };
        let Some((name, value)) = rest.split_once([' ', '\t']) else { continue };
        let bits = if value.contains("ULL") { 64 } else { 32 };
        let value = value
            .split("/*")
            .next()
            .unwrap()
            .trim()
            .trim_matches(['(', ')'])
            .replace(['U', 'L', 'u', 'l'], "");
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        };
        let value = match value.split_once(" << ") {
            Some(("1", bit)) => number(bit).map(|bit| 1 << bit),
            _ if value == "~0" => Some(u64::MAX >> (64 - bits)),
            _ => number(&value),
        };
        if let Some(value) = value {
            constants.insert(name.to_owned(), value);
        }
    }
    constants
}

/// `OverflowAck` as C has it: `overflow_ack`.
fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

fn all_layouts() -> Vec<(&'static str, Vec<Field>, libc::Ioctl, usize)> {
    let mut layouts = layouts();
    layouts.extend(engine::layouts());
    layouts
}

#[test]
fn structures_and_call_numbers_are_those_of_the_header() {
    let text = header("include/uapi/assured_rdma.h");
    let layouts = all_layouts();
    for (name, fields, request, size) in &layouts {
        let c_name = snake_case(name);
        assert_eq!(fields, &c_fields(&text, &c_name), "struct ardma_{c_name}");
        let define = format!("#define ARDMA_IOC_{}", c_name.to_uppercase());
        let line =
            text.lines().find(|line| line.starts_with(&define)).unwrap_or_else(|| panic!("no {define}"));
        let arguments = line.split_once('(').unwrap().1;
        let direction = match line.split_once('_').map(|_| line.split("_IO").nth(2).unwrap()) {
            Some(kind) if kind.starts_with("WR(") => READ | WRITE,
            Some(kind) if kind.starts_with("R(") => READ,
            Some(kind) if kind.starts_with("W(") => WRITE,
            other => panic!("{line}: {other:?}"),
        };
        let number = arguments.split(", ").nth(1).unwrap().trim_start_matches("0x");
        let number = u32::from_str_radix(number, 16).unwrap();
        assert!(arguments.contains(&format!("struct ardma_{c_name})")), "{line}");
        assert_eq!(*request, super::request(direction, number, *size), "{line}");
    }
    // What read() gives is the argument of no call.
    assert_eq!(text.matches("\nstruct ardma_").count(), layouts.len() + 1, "a structure is missing here");
}

#[test]
fn messages_are_those_of_the_header() {
    let own = [
        ("data", std::mem::offset_of!(Message, data), 8),
        ("node", std::mem::offset_of!(Message, node), 4),
        ("doorbell", std::mem::offset_of!(Message, doorbell), 4),
        ("size", std::mem::offset_of!(Message, size), 4),
        ("reserved", std::mem::offset_of!(Message, reserved), 4),
    ];
    let own: Vec<_> =
        own.into_iter().map(|(name, offset, size)| Field { name: name.to_owned(), offset, size }).collect();
    assert_eq!(own, c_fields(&header("include/uapi/assured_rdma.h"), "message"));
    assert_eq!(size_of::<Message>(), 24);
}

#[test]
fn sizes_are_the_same_for_32_bit_and_64_bit_programs() {
    let sizes: Vec<_> = all_layouts().into_iter().map(|(name, _, _, size)| (name, size)).collect();
    let expected = [
        ("Info", 216),
        ("Node", 24),
        ("Export", 88),
        ("ExportBar", 104),
        ("Unexport", 16),
        ("Window", 64),
        ("Inventory", 72),
        ("OverflowAck", 8),
        ("Listen", 48),
        ("Mask", 16),
        ("Events", 8),
        ("Range", 24),
        ("Failed", 16),
        ("Spaces", 64),
        ("Register", 32),
        ("Deregister", 8),
        ("CreateQueue", 48),
        ("DestroyQueue", 8),
        ("ExportKey", 96),
    ];
    assert_eq!(sizes, expected);
}

#[test]
fn constants_are_those_of_the_header() {
    let constants = c_constants(&header("include/uapi/assured_rdma.h"));
    let own: &[(&str, u64)] = &[
        ("ARDMA_ABI_VERSION", VERSION.into()),
        ("ARDMA_IOC_MAGIC", MAGIC.into()),
        ("ARDMA_ADDR_IO", ADDRESS_IO),
        ("ARDMA_ADDR_ASSURANCE", ADDRESS_ASSURANCE),
        ("ARDMA_ADDR_PEEK", ADDRESS_PEEK),
        ("ARDMA_ADDR_NODE_SHIFT", ADDRESS_NODE_SHIFT.into()),
        ("ARDMA_STATUS_READY", STATUS_READY.into()),
        ("ARDMA_STATUS_MEMORY_SHARED", STATUS_MEMORY_SHARED.into()),
        ("ARDMA_STATUS_MEMORY_PRIVATE", STATUS_MEMORY_PRIVATE.into()),
        ("ARDMA_STATUS_DUPLICATE_ID", STATUS_DUPLICATE_ID.into()),
        ("ARDMA_STATUS_MEMORY_PARTLY", STATUS_MEMORY_PARTLY.into()),
        ("ARDMA_MEMORY_UNKNOWN", MEMORY_UNKNOWN.into()),
        ("ARDMA_MEMORY_SHARED", MEMORY_SHARED.into()),
        ("ARDMA_MEMORY_NOT_SHARED", MEMORY_NOT_SHARED.into()),
        ("ARDMA_EVENT_LINK", EVENT_LINK.into()),
        ("ARDMA_EVENT_ERROR", EVENT_ERROR.into()),
        ("ARDMA_EVENT_ACK", EVENT_ACK.into()),
        ("ARDMA_EVENT_MEMORY", EVENT_MEMORY.into()),
        ("ARDMA_EVENT_RESET", EVENT_RESET.into()),
        ("ARDMA_EVENT_DUPLICATE", EVENT_DUPLICATE.into()),
        ("ARDMA_EVENT_INVENTORY", EVENT_INVENTORY.into()),
        ("ARDMA_EVENT_FAILED", EVENT_FAILED.into()),
        ("ARDMA_EVENT_BITS", 8),
        ("ARDMA_NODE_CONFIGURED", NODE_CONFIGURED.into()),
        ("ARDMA_NODE_LINK_UP", NODE_LINK_UP.into()),
        ("ARDMA_NODE_OVERFLOWED", NODE_OVERFLOWED.into()),
        ("ARDMA_NODE_SELF", NODE_SELF.into()),
        ("ARDMA_RIGHT_READ", RIGHT_READ.into()),
        ("ARDMA_RIGHT_WRITE", RIGHT_WRITE.into()),
        ("ARDMA_SPACE_MEMORY", SPACE_MEMORY.into()),
        ("ARDMA_SPACE_IO", SPACE_IO.into()),
        ("ARDMA_NAME_SIZE", NAME_SIZE as u64),
        ("ARDMA_KIND_NONE", KIND_NONE.into()),
        ("ARDMA_KIND_BUS", KIND_BUS.into()),
        ("ARDMA_KIND_MEMORY", KIND_MEMORY.into()),
        ("ARDMA_KIND_BUS_WINDOW", KIND_BUS_WINDOW.into()),
        ("ARDMA_KIND_MEMORY_DEVICE", KIND_MEMORY_DEVICE.into()),
        ("ARDMA_KIND_IO_DEVICE", KIND_IO_DEVICE.into()),
        ("ARDMA_OFFSET_ANY", OFFSET_ANY),
        ("ARDMA_WINDOW_MINE", WINDOW_MINE.into()),
        ("ARDMA_WINDOW_LOST", WINDOW_LOST.into()),
        ("ARDMA_WINDOW_ORPHAN", WINDOW_ORPHAN.into()),
        ("ARDMA_LISTEN_MASKED", LISTEN_MASKED.into()),
        ("ARDMA_WINDOW_BAR", WINDOW_BAR.into()),
        ("ARDMA_WINDOW_KEY", WINDOW_KEY.into()),
        ("ARDMA_RIGHT_ATOMIC", RIGHT_ATOMIC.into()),
        ("ARDMA_ADDR_DOORBELL", ADDRESS_DOORBELL),
        ("ARDMA_LOCAL_READ", engine::LOCAL_READ.into()),
        ("ARDMA_LOCAL_WRITE", engine::LOCAL_WRITE.into()),
        ("ARDMA_RIGHT_BEYOND", RIGHT_BEYOND.into()),
        ("ARDMA_NO_EVENTFD", engine::NO_EVENTFD.into()),
        ("ARDMA_WINDOW_IO", WINDOW_IO.into()),
    ];
    for (name, value) in own {
        assert_eq!(constants.get(*name), Some(value), "{name}");
    }
    assert_eq!(constants.len(), own.len(), "the header has other constants: {constants:?}");
}

#[test]
fn status_codes_are_those_of_the_register_header() {
    let constants = c_constants(&header("driver/assured_rdma_regs.h"));
    let theirs: BTreeMap<u64, &str> = constants
        .iter()
        .filter_map(|(name, &value)| Some((value, name.strip_prefix("ARDMA_CODE_")?)))
        .collect();
    let own: BTreeMap<u64, &str> = Code::ALL.iter().map(|code| (code.bits().into(), code.name())).collect();
    assert!(!theirs.is_empty(), "the header has no ARDMA_CODE_ constants");
    assert_eq!(own, theirs);
}
