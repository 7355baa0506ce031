//! What nodes export, as they announce it: windows, devices and their names.
//!
//! All of it is another machine's word. Names are shown so that no terminal obeys them.

use crate::abi::{self, NAME_SIZE};
use crate::adaptor::Adaptor;
use crate::error::{CallKind, Error};
use crate::place::{ParseError, Place, Space};
use std::fmt;
use std::io;
use std::str::FromStr;

/// How often a list is read again that has changed meanwhile.
const TRIES: u32 = 16;

/// The name of a node, window or device: up to 24 bytes, by convention UTF-8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Name([u8; NAME_SIZE]);

impl Name {
    /// No name.
    pub const NONE: Self = Self([0; NAME_SIZE]);

    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// The name as the module has it, with zeros behind it.
    pub const fn bytes(&self) -> [u8; NAME_SIZE] {
        self.0
    }
}

impl FromStr for Name {
    type Err = ParseError;

    /// A name is not empty, and has no control characters.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut name = Self::NONE;
        let room = name.0.get_mut(..text.len());
        match room.filter(|_| !text.is_empty() && !text.contains(char::is_control)) {
            Some(room) => room.copy_from_slice(text.as_bytes()),
            None => return Err(ParseError::Name(text.escape_debug().to_string())),
        }
        Ok(name)
    }
}

impl fmt::Display for Name {
    /// As text; what no terminal should see is escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(&self.0);
        f.pad(&text.trim_end_matches('\0').escape_debug().to_string())
    }
}

/// What an entry of a node's list is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// The node itself: the length is that of its window on its own adaptor.
    Node,
    /// A window of its guest's memory.
    Memory,
    /// A window of other devices of its guest.
    Bus,
    /// A memory device that its adaptor hosts.
    MemoryDevice,
    /// An I/O device that its adaptor hosts.
    IoDevice,
    /// Something that this library does not know.
    Other(u32),
}

impl EntryKind {
    const fn from_number(number: u32) -> Self {
        match number {
            abi::KIND_BUS => Self::Node,
            abi::KIND_MEMORY => Self::Memory,
            abi::KIND_BUS_WINDOW => Self::Bus,
            abi::KIND_MEMORY_DEVICE => Self::MemoryDevice,
            abi::KIND_IO_DEVICE => Self::IoDevice,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for EntryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.pad("node"),
            Self::Memory => f.pad("memory"),
            Self::Bus => f.pad("bus"),
            Self::MemoryDevice => f.pad("memory-device"),
            Self::IoDevice => f.pad("io-device"),
            Self::Other(number) => f.pad(&format!("kind-{number}")),
        }
    }
}

/// An entry of a node's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub kind: EntryKind,
    /// Where it begins.
    pub place: Place,
    /// Its length in bytes.
    pub length: u64,
    /// Whether this node may read it.
    pub read: bool,
    /// Whether this node may write it.
    pub write: bool,
    /// Its name.
    pub name: Name,
}

impl Entry {
    fn new(node: u8, entry: &abi::Inventory) -> Self {
        let space = if entry.space == abi::SPACE_IO { Space::Io } else { Space::Memory };
        Self {
            kind: EntryKind::from_number(entry.kind),
            place: Place { node, space, offset: entry.offset },
            length: entry.length,
            read: entry.rights & abi::RIGHT_READ != 0,
            write: entry.rights & abi::RIGHT_WRITE != 0,
            name: Name(entry.name),
        }
    }
}

impl Adaptor {
    /// What a node exports to this one, by its own account; of this node itself, all that it exports. The first entry is the
    /// node. There are none where the node was never reached; for one that is down they are what they were. The
    /// event `abi::EVENT_INVENTORY` says when some node's list may be another one.
    ///
    /// # Errors
    /// [`Error::Call`] where the adaptor is gone, or the list changes faster than it can be read.
    pub fn inventory(&self, node: u8) -> Result<Vec<Entry>, Error> {
        let failed =
            |source| Error::call(CallKind::Inventory, format!("asking what node {node} exports"), source);
        for _ in 0..TRIES {
            if let Some(entries) = self.inventory_once(node).map_err(failed)? {
                return Ok(entries);
            }
        }
        Err(failed(io::Error::from_raw_os_error(libc::EAGAIN)))
    }

    /// The list, where all its answers are of one version.
    fn inventory_once(&self, node: u8) -> io::Result<Option<Vec<Entry>>> {
        let mut entries = Vec::new();
        let mut list = None;
        for index in 0.. {
            let mut entry = abi::Inventory { node: node.into(), index, ..abi::Inventory::default() };
            self.device().ask(&mut entry)?;
            let now = (entry.count, entry.version);
            if *list.get_or_insert(now) != now {
                return Ok(None);
            }
            if index >= entry.count {
                break;
            }
            entries.push(Entry::new(node, &entry));
        }
        Ok(Some(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_text() {
        let name: Name = "vault".parse().unwrap();
        assert_eq!(&name.bytes()[..6], b"vault\0");
        assert_eq!((name.to_string(), name.is_none()), ("vault".to_owned(), false));
        let longest = "abcdefghijklmnopqrstuvw\u{78}";
        assert_eq!(longest.parse::<Name>().unwrap().to_string(), longest);
        for text in ["", "abcdefghijklmnopqrstuvwxy", "a\nb", "a\0", "\u{1b}[2J"] {
            let error = text.parse::<Name>().unwrap_err().to_string();
            assert!(error.starts_with('\'') && !error.contains(char::is_control), "{error}");
        }
    }

    #[test]
    fn a_name_of_another_machine_is_harmless() {
        let mut bytes = [0; NAME_SIZE];
        bytes[..9].copy_from_slice(b"\x1b[31m\n\xff\0a");
        assert_eq!(Name(bytes).to_string(), "\\u{1b}[31m\\n\u{fffd}\\0a");
        assert_eq!(Name::NONE.to_string(), "");
    }

    #[test]
    fn an_entry_is_taken_apart() {
        let entry = abi::Inventory {
            kind: abi::KIND_IO_DEVICE,
            rights: abi::RIGHT_WRITE,
            space: abi::SPACE_IO,
            offset: 0x1000,
            length: 4096,
            ..abi::Inventory::default()
        };
        let name = Name::NONE;
        let (kind, place) = (EntryKind::IoDevice, Place::io(7, 0x1000));
        assert_eq!(
            Entry::new(7, &entry),
            Entry { kind, place, length: 4096, read: false, write: true, name }
        );
        let entry = abi::Inventory { kind: 99, rights: !0, space: 77, offset: u64::MAX, ..entry };
        let entry = Entry::new(7, &entry);
        assert_eq!((entry.kind, entry.place), (EntryKind::Other(99), Place::memory(7, u64::MAX)));
        assert_eq!(format!("{:<8}|", entry.kind), "kind-99 |");
    }
}
