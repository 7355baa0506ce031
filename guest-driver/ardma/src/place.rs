//! How people name sizes, nodes and places.
//!
//! Numbers are decimal or `0x` hex, may have underscores, and take the suffixes K, M, G and T (powers
//! of 1024, `KiB` too). A place is `NODE:OFFSET`, or `NODE:io:OFFSET` in the I/O space. Every function refuses
//! what it does not fully understand, and names it.

use crate::abi;
use std::fmt;
use std::str::FromStr;

/// A malformed text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Not a number.
    #[error("'{0}' is not a number: use decimal or 0x hex, with K, M, G or T for powers of 1024")]
    Number(String),
    /// A number above 2^64 - 1.
    #[error("'{0}' does not fit into 64 bits")]
    TooLarge(String),
    /// Not a node id.
    #[error("'{0}' is not a node id: they go from 0 to 255")]
    Node(String),
    /// An empty or backward range of nodes.
    #[error("'{0}' is not a set of nodes: use ids and ranges such as 1,3-5, or all")]
    Nodes(String),
    /// Not a place.
    #[error("'{0}' is not a place: use NODE:OFFSET, such as 2:0x1000, or NODE:io:OFFSET in the I/O space")]
    Place(String),
    /// An offset above 2^48 - 1.
    #[error("the offset in '{0}' is not below 2^48")]
    Offset(String),
    /// Not a PCI function.
    #[error("'{0}' is not a PCI function: use [DOMAIN:]BUS:DEVICE.FUNCTION in hex, such as 0000:00:05.0")]
    Function(String),
    /// Not a name.
    #[error("'{0}' is not a name: use 1 to 24 bytes without control characters")]
    Name(String),
    /// Not hex digits in pairs.
    #[error("'{0}' is not hex data: use pairs of hex digits, such as 00ff17")]
    Hex(String),
}

/// Parses a size or an offset in bytes.
///
/// # Errors
/// Where the text is not a number or does not fit.
///
/// ```
/// assert_eq!(ardma::parse_size("1_024").ok(), Some(1024));
/// assert_eq!(ardma::parse_size("16M").ok(), Some(16 << 20));
/// assert_eq!(ardma::parse_size("0x10K").ok(), Some(16 << 10));
/// ```
pub fn parse_size(text: &str) -> Result<u64, ParseError> {
    let malformed = || ParseError::Number(text.to_owned());
    let plain = text.strip_suffix("iB").unwrap_or(text);
    let shift = match plain.chars().next_back() {
        Some('k' | 'K') => 10_u32,
        Some('m' | 'M') => 20,
        Some('g' | 'G') => 30,
        Some('t' | 'T') => 40,
        _ if plain.len() == text.len() => 0,
        _ => return Err(malformed()),
    };
    let digits = if shift == 0 { plain } else { plain.get(..plain.len().saturating_sub(1)).unwrap_or("") };
    let (digits, radix) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None => (digits, 10),
    };
    if digits.starts_with('_') || digits.ends_with('_') {
        return Err(malformed());
    }
    let digits = digits.replace('_', "");
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return Err(malformed());
    }
    let too_large = || ParseError::TooLarge(text.to_owned());
    let number = u64::from_str_radix(&digits, radix).map_err(|_| too_large())?;
    number.checked_mul(1_u64.checked_shl(shift).unwrap_or(0)).ok_or_else(too_large)
}

/// Parses a node id.
///
/// # Errors
/// Where it is not a number from 0 to 255.
pub fn parse_node(text: &str) -> Result<u8, ParseError> {
    parse_size(text)
        .ok()
        .and_then(|id| u8::try_from(id).ok())
        .ok_or_else(|| ParseError::Node(text.to_owned()))
}

/// Parses pairs of hex digits, with or without spaces between them.
///
/// # Errors
/// Where a character is not a hex digit or one is left over.
pub fn parse_hex(text: &str) -> Result<Vec<u8>, ParseError> {
    let malformed = || ParseError::Hex(text.to_owned());
    let digits: Vec<u32> = text
        .chars()
        .filter(|character| !character.is_whitespace())
        .map(|digit| digit.to_digit(16).ok_or_else(malformed))
        .collect::<Result<_, _>>()?;
    if digits.is_empty() {
        return Err(malformed());
    }
    digits
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => u8::try_from(high << 4 | low).map_err(|_| malformed()),
            _ => Err(malformed()),
        })
        .collect()
}

/// Which of a node's spaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Space {
    /// Memory: neighbouring stores may be joined on their way.
    #[default]
    Memory,
    /// I/O: every access is carried alone, exactly as it was made.
    Io,
}

impl Space {
    /// The space as the module takes it.
    pub const fn number(self) -> u32 {
        match self {
            Self::Memory => abi::SPACE_MEMORY,
            Self::Io => abi::SPACE_IO,
        }
    }
}

/// A place in a node's window of one of its spaces, written `NODE:OFFSET` or `NODE:io:OFFSET`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The node's id.
    pub node: u8,
    /// Which of its spaces.
    pub space: Space,
    /// Bytes from the start of its window; below 2^48.
    pub offset: u64,
}

impl Place {
    /// A place in a node's memory.
    pub const fn memory(node: u8, offset: u64) -> Self {
        Self { node, space: Space::Memory, offset }
    }

    /// A place in a node's I/O space.
    pub const fn io(node: u8, offset: u64) -> Self {
        Self { node, space: Space::Io, offset }
    }

    /// The place `bytes` further on.
    pub const fn plus(self, bytes: u64) -> Self {
        Self { offset: self.offset.saturating_add(bytes), ..self }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = match self.space {
            Space::Memory => "",
            Space::Io => "io:",
        };
        write!(f, "{}:{space}{:#x}", self.node, self.offset)
    }
}

impl FromStr for Place {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let malformed = || ParseError::Place(text.to_owned());
        let (node, rest) = text.split_once(':').ok_or_else(malformed)?;
        let (space, offset) = match rest.split_once(':') {
            None => (Space::Memory, rest),
            Some(("io", offset)) => (Space::Io, offset),
            Some(_) => return Err(malformed()),
        };
        let (node, offset) = (parse_node(node)?, parse_size(offset)?);
        if offset >> 48 != 0 {
            return Err(ParseError::Offset(text.to_owned()));
        }
        Ok(Self { node, space, offset })
    }
}

/// A set of node ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes([u64; 4]);

impl Nodes {
    /// No node.
    pub const NONE: Self = Self([0; 4]);
    /// Every node.
    pub const ALL: Self = Self([u64::MAX; 4]);

    /// The set with just this node.
    pub fn only(node: u8) -> Self {
        Self::NONE.with(node)
    }

    /// The set with this node too.
    #[must_use]
    pub fn with(mut self, node: u8) -> Self {
        if let Some(word) = self.0.get_mut(usize::from(node >> 6)) {
            *word |= 1 << (node & 63);
        }
        self
    }

    /// Whether the node is in the set.
    pub fn contains(&self, node: u8) -> bool {
        self.0.get(usize::from(node >> 6)).is_some_and(|word| word >> (node & 63) & 1 == 1)
    }

    /// The set as the module takes it: node `n` is bit `n % 64` of word `n / 64`.
    pub const fn words(self) -> [u64; 4] {
        self.0
    }

    /// The inverse of [`Nodes::words`].
    pub const fn from_words(words: [u64; 4]) -> Self {
        Self(words)
    }
}

impl fmt::Display for Nodes {
    /// `all`, `none`, or ids and ranges.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ALL {
            return f.write_str("all");
        }
        let mut separator = "";
        let mut first = None;
        for id in 0..=256_u16 {
            let inside = u8::try_from(id).is_ok_and(|id| self.contains(id));
            match (first, inside) {
                (None, true) => first = Some(id),
                (Some(start), false) => {
                    let end = id.saturating_sub(1);
                    write!(f, "{separator}{start}")?;
                    if end > start {
                        write!(f, "-{end}")?;
                    }
                    (first, separator) = (None, ",");
                }
                _ => {}
            }
        }
        if separator.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

impl FromStr for Nodes {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        if text == "all" {
            return Ok(Self::ALL);
        }
        let mut nodes = Self::NONE;
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (parse_node(first)?, parse_node(last)?);
            if first > last {
                return Err(ParseError::Nodes(text.to_owned()));
            }
            nodes = (first..=last).fold(nodes, Self::with);
        }
        Ok(nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_suffixes_hex_and_underscores() {
        let good = [
            ("0", 0),
            ("4096", 4096),
            ("1_000", 1000),
            ("4K", 4096),
            ("4k", 4096),
            ("4KiB", 4096),
            ("2M", 2 << 20),
            ("3G", 3 << 30),
            ("1T", 1 << 40),
            ("0x1000", 4096),
            ("0XfF", 255),
            ("0x1_0000", 65536),
            ("0x10K", 16384),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, value) in good {
            assert_eq!(parse_size(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn other_sizes_are_refused_by_name() {
        for text in [
            "", "K", "0x", "-1", "+1", "1.5M", "4 K", "4KB", "4iB", "_1", "1_", "0xg", "ff", "KK", "\u{b2}",
            "1\u{e9}",
        ] {
            assert_eq!(parse_size(text), Err(ParseError::Number(text.to_owned())), "{text}");
        }
        for text in ["18446744073709551616", "0x10000000000000000", "16777216T"] {
            assert_eq!(parse_size(text), Err(ParseError::TooLarge(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn places_are_node_and_offset() {
        let place: Place = "2:0x1000".parse().unwrap();
        assert_eq!(place, Place::memory(2, 4096));
        assert_eq!(place.to_string(), "2:0x1000");
        assert_eq!("255:1M".parse(), Ok(Place::memory(255, 1 << 20)));
        assert_eq!("0x1000".parse::<Place>(), Err(ParseError::Place("0x1000".into())));
        assert_eq!("256:0".parse::<Place>(), Err(ParseError::Node("256".into())));
        assert_eq!("1:x".parse::<Place>(), Err(ParseError::Number("x".into())));
        assert_eq!("1:256T".parse::<Place>(), Err(ParseError::Offset("1:256T".into())));
        assert_eq!("1:2:3".parse::<Place>(), Err(ParseError::Place("1:2:3".into())));
    }

    #[test]
    fn places_in_the_io_space_say_so() {
        let place: Place = "2:io:0x1000".parse().unwrap();
        assert_eq!(place, Place::io(2, 4096));
        assert_eq!(place.to_string(), "2:io:0x1000");
        assert_eq!(place.plus(4), Place::io(2, 4100));
        for text in ["2:io", "io:0", "2:io:", "2:IO:0", "2:io:io:0", "2:io:0:0"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }

    #[test]
    fn node_sets_are_ids_and_ranges() {
        let nodes: Nodes = "1,3-5,255".parse().unwrap();
        assert!([1, 3, 4, 5, 255].iter().all(|&node| nodes.contains(node)));
        assert!([0, 2, 6, 254].iter().all(|&node| !nodes.contains(node)));
        assert_eq!(nodes.to_string(), "1,3-5,255");
        assert_eq!("all".parse(), Ok(Nodes::ALL));
        assert_eq!("0-255".parse(), Ok(Nodes::ALL));
        assert_eq!(Nodes::NONE.to_string(), "none");
        assert_eq!(Nodes::only(64).words(), [0, 1, 0, 0]);
        for text in ["", "1,", "5-3", "1-", "-", "a", "256"] {
            assert!(text.parse::<Nodes>().is_err(), "{text}");
        }
    }

    #[test]
    fn hex_data_is_pairs_of_digits() {
        assert_eq!(parse_hex("00fF 17"), Ok(vec![0, 255, 0x17]));
        for text in ["", "0", "0g", "0x00"] {
            assert_eq!(parse_hex(text), Err(ParseError::Hex(text.into())), "{text}");
        }
    }
}
