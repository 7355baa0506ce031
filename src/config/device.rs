//! Devices that the adaptor hosts, as they are checked.
//!
//! Where each has its window is decided here, so that what does not fit is told before anything is started.

mod raw;

use std::path::PathBuf;

use thiserror::Error;

use super::units::{format_size, parse_size};
use super::{ConfigError, NAME_FORM, Text, parse_name};
use crate::adaptor::address::{Geometry, NodeId, NodeSet, Space};
use crate::adaptor::master::{ExportError, GRAIN, HostedWindow, MAX_WINDOWS, Rights, WindowTable};
use crate::adaptor::memory::{DeviceId, Home};
use crate::hosted::{Description, Kind};
pub use raw::RawDevice;

/// How large a scratchpad is if nothing is said, in bytes: with its aliases it fits into one window of the least length.
const SCRATCHPAD_SIZE: u64 = 1024;
/// What a scratchpad's size is a multiple of, in bytes.
const REGISTER: u64 = 8;

/// What is wrong with a device; its text begins with the key where it is about one.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// A value that has no default is absent.
    #[error("{0}: missing")]
    Missing(&'static str),
    /// A value is not of the key's kind.
    #[error("{key}: '{text}' is not {expected}")]
    Malformed {
        /// The key.
        key: &'static str,
        /// What was written.
        text: String,
        /// What would be right.
        expected: &'static str,
    },
    /// Another device has this name.
    #[error("name: two devices have it")]
    NameTwice,
    /// Its kind has no such key.
    #[error("{key}: not for a {kind}")]
    NotForKind {
        /// The key.
        key: &'static str,
        /// The kind.
        kind: &'static str,
    },
    /// No node's window is so large.
    #[error("size: {} is more than the {} of this node's window; give a smaller size, or a larger --window-size", format_size(*size), format_size(*room))]
    TooLarge {
        /// What was asked for, in bytes.
        size: u64,
        /// How many there could be.
        room: u64,
    },
    /// The window for I/O has no room for so many registers, which are there several times.
    #[error(
        "size: {size} is more than the {room} bytes of registers for which this node's window for I/O has room; give a smaller size"
    )]
    TooManyRegisters {
        /// What was asked for, in bytes.
        size: u64,
        /// How many there could be.
        room: u64,
    },
    /// The window would be misaligned, or not all of it inside the node's.
    #[error("offset: {offset:#x} is not a multiple of 4096 that leaves {} between {first:#x} and {end:#x}, where this node's windows can be", format_size(*len))]
    Offset {
        /// What was written.
        offset: u64,
        /// The length of the window in bytes.
        len: u64,
        /// The first offset that there is.
        first: u64,
        /// The one behind the last.
        end: u64,
    },
    /// Two devices would be at the same place.
    #[error("offset: {offset:#x} to {:#x} overlaps device '{other}'", offset.saturating_add(*len))]
    Overlap {
        /// Where the window would begin.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// The other device.
        other: String,
    },
    /// There is room for it nowhere.
    #[error("size: beside the other devices no gap of {} is left in this node's window{}", format_size(*len), advice(*space))]
    NoGap {
        /// The length of the window in bytes.
        len: u64,
        /// Of which space.
        space: Space,
    },
    /// There are as many windows as there can be.
    #[error("a node has at most {MAX_WINDOWS} windows in a space, and the devices before it have them all")]
    TooMany,
    /// A node has no window.
    #[error("nodes: node id {node} is not below nodes ({nodes})")]
    NodeBeyondSpace {
        /// The id.
        node: NodeId,
        /// How many windows there are.
        nodes: u16,
    },
}

/// What can be done where there is no room.
const fn advice(space: Space) -> &'static str {
    match space {
        Space::Memory => "; give a smaller size, or a larger --window-size",
        Space::Io => " for I/O; give a smaller size",
    }
}

/// Checks the devices and gives each its place: first those that say where, then the others in their order.
pub fn devices(raw: &[RawDevice], geometry: Geometry) -> Result<Vec<Description>, ConfigError> {
    let mut devices: Vec<Description> = Vec::new();
    for (raw, number) in raw.iter().zip(0u16..) {
        let label = || match &raw.name {
            Some(Text(name)) => format!("'{name}'"),
            None => format!("number {}", number.saturating_add(1)),
        };
        let failed = |error| ConfigError::Device { device: label(), error };
        let device = describe(raw, DeviceId(number), geometry).map_err(failed)?;
        if devices.iter().any(|other| other.name == device.name) {
            return Err(failed(DeviceError::NameTwice));
        }
        devices.push(device);
    }
    for space in Space::ALL {
        let mut table = WindowTable::of(space, geometry.window_size());
        for is_fixed in [true, false] {
            for index in 0..devices.len() {
                let Some(device) = devices.get(index) else { continue };
                if device.window.space != space || device.window.offset.is_some() != is_fixed {
                    continue;
                }
                let offset = place(&mut table, device, &devices)
                    .map_err(|error| ConfigError::Device { device: format!("'{}'", device.name), error })?;
                if let Some(device) = devices.get_mut(index) {
                    device.window.offset = Some(offset);
                }
            }
        }
    }
    Ok(devices)
}

/// Puts a device into the table, in which some of the `others` are.
fn place(table: &mut WindowTable, device: &Description, others: &[Description]) -> Result<u64, DeviceError> {
    let HostedWindow { offset, len, space, .. } = device.window;
    table.host(&device.window).map_err(|error| match (error, offset) {
        (ExportError::TooMany, _) => DeviceError::TooMany,
        (ExportError::NoSpace, Some(offset)) => {
            let other = table.iter().find(|(begin, window)| {
                *begin < offset.saturating_add(len) && offset < begin.saturating_add(window.len())
            });
            let other = other.and_then(|(_, window)| {
                others.iter().find(|other| window.home() == Home::Hosted(other.window.device))
            });
            let other = other.map(|other| other.name.clone()).unwrap_or_default();
            DeviceError::Overlap { offset, len, other }
        }
        (ExportError::BadArgument, Some(offset)) => {
            let offsets = table.offsets();
            DeviceError::Offset { offset, len, first: offsets.start, end: offsets.end }
        }
        (ExportError::NoSpace | ExportError::BadArgument, None) => DeviceError::NoGap { len, space },
    })
}

/// Checks what concerns one device only.
fn describe(raw: &RawDevice, device: DeviceId, geometry: Geometry) -> Result<Description, DeviceError> {
    let Text(name) = raw.name.as_ref().ok_or(DeviceError::Missing("name"))?;
    let announced = parse_name(name).ok_or_else(|| DeviceError::Malformed {
        key: "name",
        text: name.clone(),
        expected: NAME_FORM,
    })?;
    let kind = kind(raw)?;
    let size = size(raw.size.as_ref(), &kind)?;
    let space = kind.space();
    let offsets = WindowTable::of(space, geometry.window_size()).offsets();
    let room = offsets.end.saturating_sub(offsets.start);
    let len = kind.window_len(size).unwrap_or(u64::MAX);
    if len > room {
        return Err(match space {
            Space::Memory => DeviceError::TooLarge { size, room },
            Space::Io => DeviceError::TooManyRegisters { size, room: kind.room(room) },
        });
    }
    let offset = raw.offset.as_ref().map(|Text(text)| {
        let expected = "an offset such as 0x10000 or 64K";
        parse_size(text).ok_or_else(|| DeviceError::Malformed { key: "offset", text: text.clone(), expected })
    });
    let window = HostedWindow {
        device,
        space,
        offset: offset.transpose()?,
        len,
        rights: rights(raw.rights.as_ref())?,
        nodes: nodes(&raw.nodes, geometry)?,
        name: announced,
    };
    Ok(Description { name: name.clone(), kind, size, window })
}

fn kind(raw: &RawDevice) -> Result<Kind, DeviceError> {
    let Text(text) = raw.kind.as_ref().ok_or(DeviceError::Missing("kind"))?;
    match (text.as_str(), &raw.file) {
        ("memory", None) => Ok(Kind::Memory { file: None }),
        ("memory", Some(Text(path))) if !path.is_empty() && !path.contains('\0') => {
            Ok(Kind::Memory { file: Some(PathBuf::from(path)) })
        }
        ("memory", Some(Text(path))) => {
            let text = path.replace('\0', "\\0");
            Err(DeviceError::Malformed { key: "file", text, expected: "a path for a file" })
        }
        ("scratchpad", None) => Ok(Kind::Scratchpad),
        ("scratchpad", Some(_)) => Err(DeviceError::NotForKind { key: "file", kind: "scratchpad" }),
        _ => {
            let expected = "a kind of device: memory or scratchpad";
            Err(DeviceError::Malformed { key: "kind", text: text.clone(), expected })
        }
    }
}

fn size(text: Option<&Text>, kind: &Kind) -> Result<u64, DeviceError> {
    let (default, grain, expected) = match kind {
        Kind::Memory { .. } => (None, GRAIN, "a size such as 64M or 1G, in whole pages of 4K"),
        Kind::Scratchpad => (Some(SCRATCHPAD_SIZE), REGISTER, "a size in bytes that is a multiple of 8"),
    };
    let Some(Text(text)) = text else { return default.ok_or(DeviceError::Missing("size")) };
    let size = parse_size(text).filter(|size| *size > 0 && size.is_multiple_of(grain));
    size.ok_or_else(|| DeviceError::Malformed { key: "size", text: text.clone(), expected })
}

fn rights(text: Option<&Text>) -> Result<Rights, DeviceError> {
    match text.map_or("rw", |Text(text)| text) {
        "rw" => Ok(Rights { read: true, write: true, atomic: true }),
        "ro" => Ok(Rights { read: true, write: false, atomic: false }),
        "wo" => Ok(Rights { read: false, write: true, atomic: false }),
        other => {
            let expected = "rw, ro or wo";
            Err(DeviceError::Malformed { key: "rights", text: other.to_owned(), expected })
        }
    }
}

fn nodes(list: &[Text], geometry: Geometry) -> Result<NodeSet, DeviceError> {
    if list.is_empty() {
        return Ok(NodeSet::ALL);
    }
    let mut nodes = NodeSet::EMPTY;
    for Text(text) in list {
        if text == "all" {
            nodes = NodeSet::ALL;
            continue;
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let id = |text: &str| text.parse::<u8>().ok().filter(|_| !text.starts_with('+'));
        let range = id(first).zip(id(last)).filter(|(first, last)| first <= last);
        let (first, last) = range.ok_or_else(|| {
            let expected = "all, a node id from 0 to 255, or a range such as 1-8";
            DeviceError::Malformed { key: "nodes", text: text.clone(), expected }
        })?;
        if u16::from(last) >= geometry.nodes() {
            return Err(DeviceError::NodeBeyondSpace { node: NodeId(last), nodes: geometry.nodes() });
        }
        (first..=last).for_each(|node| nodes.insert(NodeId(node)));
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests;
