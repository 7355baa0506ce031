//! The buses of an adaptor: their sockets, and the node ids that they have.

use std::path::PathBuf;

use super::{ConfigError, NAME_FORM, Text, parse_name};
use crate::adaptor::address::NodeId;
use crate::adaptor::buses::{Buses, MAX_BUS_BITS, Span};
use crate::adaptor::inventory::Name;

/// The longest path of a UNIX socket.
pub(super) const MAX_SOCKET_PATH: usize = 107;

/// Where the bus of each guest is to be attached, in the order of bus numbers; there may be none where the adaptor `hosts` something.
pub(super) fn socket_paths(texts: &[Text], hosts: bool) -> Result<Vec<PathBuf>, ConfigError> {
    let mut paths = Vec::new();
    for text in texts {
        let path = socket_path(text)?;
        if paths.contains(&path) {
            return Err(ConfigError::SocketPathTwice(path));
        }
        paths.push(path);
    }
    if paths.is_empty() && !hosts { Err(ConfigError::NothingThere) } else { Ok(paths) }
}

/// The nodes of an adaptor with `count` buses, of which `node` is the first.
pub(super) fn buses(
    node: NodeId,
    count: usize,
    bits: Option<&Text>,
    nodes: u16,
) -> Result<Buses, ConfigError> {
    let too_many = ConfigError::MoreBusesThanIds(count);
    let needed = count.checked_next_power_of_two().map_or(usize::BITS, usize::trailing_zeros);
    if needed > MAX_BUS_BITS {
        return Err(too_many);
    }
    let bits = match bits {
        None => needed,
        Some(Text(text)) => text.parse().ok().filter(|&bits| bits <= MAX_BUS_BITS).ok_or_else(|| {
            let expected = "a number of bits from 0 to 8";
            ConfigError::Malformed { key: "bus-bits", text: text.clone(), expected }
        })?,
    };
    if needed > bits {
        return Err(ConfigError::TooManyBuses { count, needed, bits });
    }
    let span = Span::new(node, bits).ok_or(ConfigError::NodeNotAligned { node, count, bits })?;
    if u16::from(span.last().0) >= nodes {
        return Err(ConfigError::SpanBeyondSpace { span, nodes });
    }
    let buses = u16::try_from(count).ok().and_then(|count| Buses::new(span, count));
    buses.ok_or(too_many)
}

/// What the buses are called, in the order of bus numbers.
pub(super) fn names(texts: &[Text], buses: u16) -> Result<Vec<Name>, ConfigError> {
    if texts.len() > usize::from(buses) {
        return Err(ConfigError::MoreNamesThanBuses { names: texts.len(), buses });
    }
    let name = |Text(text): &Text| {
        parse_name(text).ok_or_else(|| ConfigError::Malformed {
            key: "name",
            text: text.replace('\0', "\\0"),
            expected: NAME_FORM,
        })
    };
    texts.iter().map(name).collect()
}

fn socket_path(Text(text): &Text) -> Result<PathBuf, ConfigError> {
    if text.is_empty() || text.contains('\0') {
        let expected = "a path for a socket";
        return Err(ConfigError::Malformed { key: "socket-path", text: text.replace('\0', "\\0"), expected });
    }
    if text.len() > MAX_SOCKET_PATH {
        return Err(ConfigError::SocketPathTooLong { length: text.len() });
    }
    Ok(PathBuf::from(text))
}
