//! `ardma list`: all nodes, and what each exports to this one, as they announce it.
//!
//! A table of which each row has the same six columns, without spaces in any but the last one; `-` stands for what there is not.

use super::Failure;
use ardma::{Adaptor, Entry, EntryKind, Name, Node, parse_node};
use std::io::Write;
use std::time::{Duration, Instant};

const HELP: &str = "\
A row is a node, or something that a node exports to this one (of this node itself, to any). WHAT is `node`, `memory` of its guest, `bus` for other
devices of its guest, or `memory-device` or `io-device` that its adaptor hosts. STATE is `self`, `up`, `down` or `unknown` of a node,
and what this node may do with the rest: `rw`, `ro`, `wo`. All but the links is what the nodes themselves announce.";

/// Arguments of `ardma list`.
#[derive(Debug, Default, clap::Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    /// Only this node.
    #[arg(value_parser = parse_node)]
    node: Option<u8>,
    /// Only what has this name; it fails where nothing has.
    #[arg(long)]
    name: Option<Name>,
    /// Wait so many seconds for something to have it.
    #[arg(long, value_name = "SECONDS", requires = "name", default_value_t = 0)]
    wait: u32,
    /// The other way round: wait until nothing has that name, and fail where something has.
    #[arg(long, requires = "name")]
    gone: bool,
}

/// A node, and what it exports.
struct Listed {
    node: Node,
    entries: Vec<Entry>,
}

/// Shows the nodes and what they export.
pub fn run(adaptor: &Adaptor, arguments: &Arguments, out: &mut dyn Write) -> Result<(), Failure> {
    let limit = Duration::from_secs(arguments.wait.into());
    let start = Instant::now();
    loop {
        // Events first, then the lists: a change between the two is seen by the next wait.
        adaptor.events()?;
        let found = rows(&collect(adaptor, arguments.node)?, arguments.name);
        let is_right = arguments.name.is_none() || found.is_empty() == arguments.gone;
        let left = limit.saturating_sub(start.elapsed());
        if is_right || left.is_zero() {
            show(&found, out)?;
            return match arguments.name {
                _ if is_right => Ok(()),
                Some(name) if found.is_empty() => {
                    Err(Failure::Nothing(format!("nothing that this node may see is called '{name}'")))
                }
                _ => Err(Failure::Told),
            };
        }
        adaptor.wait(left)?;
    }
}

fn collect(adaptor: &Adaptor, only: Option<u8>) -> Result<Vec<Listed>, Failure> {
    let nodes = match only {
        Some(node) => vec![adaptor.node(node)?],
        None => adaptor.nodes()?,
    };
    let mut listed = Vec::new();
    for node in nodes {
        let entries = adaptor.inventory(u8::try_from(node.node).unwrap_or(u8::MAX))?;
        listed.push(Listed { node, entries });
    }
    Ok(listed)
}

/// The texts of a row's columns.
type Row = [String; 6];

fn rows(listed: &[Listed], name: Option<Name>) -> Vec<Row> {
    let mut rows = Vec::new();
    for Listed { node, entries } in listed {
        let (own, others) = match entries.split_first() {
            Some((first, others)) if first.kind == EntryKind::Node => (Some(first), others),
            _ => (None, entries.as_slice()),
        };
        let own_name = own.map_or(Name::NONE, |own| own.name);
        if name.is_none_or(|name| name == own_name) {
            rows.push(node_row(node, own));
        }
        rows.extend(others.iter().filter(|entry| name.is_none_or(|name| name == entry.name)).map(entry_row));
    }
    rows
}

fn node_row(node: &Node, own: Option<&Entry>) -> Row {
    let state = match (node.is_self(), node.is_configured(), node.is_up()) {
        (true, ..) => "self",
        (_, false, _) => "unknown",
        (_, _, true) => "up",
        (_, _, false) => "down",
    };
    let incarnation = match node.incarnation {
        0 => "-".to_owned(),
        incarnation => format!("{incarnation:#018x}"),
    };
    let length = own.map_or_else(|| "-".to_owned(), |own| size(own.length));
    let name = named(own.map_or(Name::NONE, |own| own.name));
    [node.node.to_string(), EntryKind::Node.to_string(), length, state.to_owned(), incarnation, name]
}

fn entry_row(entry: &Entry) -> Row {
    let rights = match (entry.read, entry.write) {
        (true, true) => "rw",
        (true, false) => "ro",
        (false, true) => "wo",
        (false, false) => "-",
    };
    let (place, kind) = (entry.place.to_string(), entry.kind.to_string());
    [place, kind, size(entry.length), rights.to_owned(), "-".to_owned(), named(entry.name)]
}

fn named(name: Name) -> String {
    if name.is_none() { "-".to_owned() } else { name.to_string() }
}

/// Exactly so many bytes, as short as this tool takes them: `1536`, `64K`, `256M`.
fn size(bytes: u64) -> String {
    let units = [("T", 40_u32), ("G", 30), ("M", 20), ("K", 10)];
    let exact = units.into_iter().find(|&(_, bits)| bytes != 0 && bytes.trailing_zeros() >= bits);
    exact.map_or_else(|| bytes.to_string(), |(unit, bits)| format!("{}{unit}", bytes >> bits))
}

fn show(rows: &[Row], out: &mut dyn Write) -> Result<(), Failure> {
    if rows.is_empty() {
        return Ok(());
    }
    let header = ["WHERE", "WHAT", "SIZE", "STATE", "INCARNATION", "NAME"].map(str::to_owned);
    let width = |column: usize| {
        let texts = rows.iter().chain([&header]).filter_map(|row| row.get(column));
        texts.map(|text| text.chars().count()).max().unwrap_or(0)
    };
    let widths = [width(0), width(1), width(2), width(3), width(4)];
    for [place, kind, size, state, incarnation, name] in [&header].into_iter().chain(rows) {
        let [w0, w1, w2, w3, w4] = widths;
        writeln!(out, "{place:w0$}  {kind:w1$}  {size:>w2$}  {state:w3$}  {incarnation:w4$}  {name}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ardma::{Place, abi};

    fn listed() -> Vec<Listed> {
        let entry = |kind, place, length, name: &str| {
            let name = name.parse().unwrap_or_default();
            Entry { kind, place, length, read: true, write: false, name }
        };
        let node = |node, state, incarnation| Node { node, state, incarnation, ..Node::default() };
        let up = abi::NODE_CONFIGURED | abi::NODE_LINK_UP;
        vec![
            Listed {
                node: node(1, abi::NODE_SELF | abi::NODE_CONFIGURED, 0x12),
                entries: vec![entry(EntryKind::Node, Place::memory(1, 0), 256 << 20, "")],
            },
            Listed {
                node: node(2, up, 0xa),
                entries: vec![
                    entry(EntryKind::Node, Place::memory(2, 0), 256 << 20, "right"),
                    entry(EntryKind::MemoryDevice, Place::memory(2, 0x1000), 4097, "the vault"),
                ],
            },
            Listed { node: node(3, abi::NODE_CONFIGURED, 0), entries: Vec::new() },
        ]
    }

    #[test]
    fn nodes_and_what_they_export_are_a_row_each() {
        let mut out = Vec::new();
        show(&rows(&listed(), None), &mut out).unwrap();
        let expected = "\
WHERE     WHAT           SIZE  STATE  INCARNATION         NAME
1         node           256M  self   0x0000000000000012  -
2         node           256M  up     0x000000000000000a  right
2:0x1000  memory-device  4097  ro     -                   the vault
3         node              -  down   -                   -
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn names_choose_rows() {
        let wheres = |name: &str| {
            let rows = rows(&listed(), Some(name.parse().unwrap()));
            rows.into_iter().map(|[place, ..]| place).collect::<Vec<_>>()
        };
        assert_eq!(wheres("right"), ["2"]);
        assert_eq!(wheres("the vault"), ["2:0x1000"]);
        assert_eq!(wheres("vault"), [""; 0]);
        let mut out = Vec::new();
        show(&[], &mut out).unwrap();
        assert_eq!(out, b"");
    }

    #[test]
    fn sizes_are_exact() {
        let told = [0, 1, 1024, 4097, 64 << 10, 3 << 30, 5 << 40, u64::MAX].map(size);
        assert_eq!(told, ["0", "1", "1K", "4097", "64K", "3G", "5T", "18446744073709551615"]);
    }
}
