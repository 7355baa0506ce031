//! A device that the adaptor hosts as it is written: a table of a TOML file, or an option of the command line.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::adaptor::address::{NodeId, NodeSet, Space};
use crate::adaptor::master::{HostedWindow, Rights};
use crate::config::raw::one_or_many;
use crate::config::{Text, format_size};
use crate::hosted::{Description, Kind};

/// A device as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawDevice {
    /// What it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Text>,
    /// How it is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Text>,
    /// Its size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Text>,
    /// Where its window begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<Text>,
    /// The file of a memory device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<Text>,
    /// What other nodes may do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rights: Option<Text>,
    /// Which nodes.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many::deserialize")]
    pub nodes: Vec<Text>,
}

impl From<&Description> for RawDevice {
    fn from(device: &Description) -> Self {
        let text = |value: &dyn ToString| Some(Text(value.to_string()));
        let HostedWindow { offset, rights, nodes, .. } = device.window;
        let file = match &device.kind {
            Kind::Memory { file } => file.as_ref(),
            Kind::Scratchpad => None,
        };
        Self {
            kind: text(&device.kind.name()),
            name: text(&device.name),
            size: text(&format_size(device.size)),
            offset: offset.map(|offset| Text(format!("{offset:#x}"))),
            file: file.and_then(|path| text(&path.display())),
            rights: text(&format_rights(rights)),
            nodes: format_nodes(nodes).into_iter().map(Text).collect(),
        }
    }
}

impl fmt::Display for Description {
    /// As the log tells it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostedWindow { offset, space, rights, nodes, .. } = self.window;
        write!(f, "device '{}': {} of {}", self.name, format_size(self.size), self.kind)?;
        if let Some(offset) = offset {
            write!(f, " at {offset:#x}")?;
        }
        if space == Space::Io {
            f.write_str(" of the I/O space")?;
        }
        write!(f, ", {} for nodes: {}", format_rights(rights), format_nodes(nodes).join(", "))
    }
}

/// What is not a list of keys and values.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SyntaxError {
    /// A part has no value.
    #[error("'{0}' is not KEY=VALUE (a comma in a value is written twice)")]
    NoValue(String),
    /// There is no such key.
    #[error("unknown key '{0}', expected one of kind, name, size, offset, file, rights, nodes")]
    UnknownKey(String),
    /// A key is there twice.
    #[error("key '{0}' is given twice")]
    Twice(&'static str),
}

impl FromStr for RawDevice {
    type Err = SyntaxError;

    /// Reads `kind=memory,name=vault,nodes=1,nodes=3-5`: as QEMU's options, a comma in a value is written twice, and a list
    /// is one key several times.
    fn from_str(text: &str) -> Result<Self, SyntaxError> {
        let mut device = Self::default();
        for part in split_at_commas(text) {
            let (key, value) = part.split_once('=').ok_or_else(|| SyntaxError::NoValue(part.clone()))?;
            let value = Text(value.to_owned());
            let (name, place) = match key {
                "kind" => ("kind", &mut device.kind),
                "name" => ("name", &mut device.name),
                "size" => ("size", &mut device.size),
                "offset" => ("offset", &mut device.offset),
                "file" => ("file", &mut device.file),
                "rights" => ("rights", &mut device.rights),
                "nodes" => {
                    device.nodes.push(value);
                    continue;
                }
                _ => return Err(SyntaxError::UnknownKey(key.to_owned())),
            };
            if place.replace(value).is_some() {
                return Err(SyntaxError::Twice(name));
            }
        }
        Ok(device)
    }
}

/// The parts between single commas; two in a row are one of a value.
fn split_at_commas(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut rest = text.chars().peekable();
    while let Some(next) = rest.next() {
        if next == ',' && rest.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(next);
        }
    }
    parts
}

/// The rights as they are written.
const fn format_rights(rights: Rights) -> &'static str {
    match rights {
        Rights { read: true, write: false, .. } => "ro",
        Rights { read: false, write: true, .. } => "wo",
        _ => "rw",
    }
}

/// The nodes as they are written: ids and ranges, or `all`.
pub(super) fn format_nodes(nodes: NodeSet) -> Vec<String> {
    if nodes == NodeSet::ALL {
        return vec!["all".to_owned()];
    }
    let mut ranges: Vec<(u8, u8)> = Vec::new();
    for node in (0..=u8::MAX).filter(|&node| nodes.contains(NodeId(node))) {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(node) => *last = node,
            _ => ranges.push((node, node)),
        }
    }
    let range = |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
    ranges.into_iter().map(range).collect()
}
