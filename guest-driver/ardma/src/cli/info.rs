//! `ardma info` and `ardma wait`: this node, its peers, its windows.

use super::{Failure, human};
use ardma::{Adaptor, Info, Node, Nodes, Place, Space, Spaces, Window, abi, parse_node};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Arguments of `ardma wait`.
#[derive(Debug, clap::Args)]
pub struct WaitArguments {
    /// The node.
    #[arg(value_parser = parse_node)]
    node: u8,
    /// Wait until the link is down.
    #[arg(long)]
    down: bool,
    /// Give up after so many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    timeout: u32,
}

/// Shows everything, a line each: `key: value`.
pub fn run(device: &Path, adaptor: &Adaptor, out: &mut dyn Write) -> Result<(), Failure> {
    let info = adaptor.info()?;
    writeln!(out, "device: {}", device.display())?;
    general(&info, out)?;
    spaces(&adaptor.spaces()?, out)?;
    for node in adaptor.nodes()?.iter().filter(|node| !node.is_self()) {
        writeln!(out, "{}", peer(node))?;
    }
    for entry in adaptor.windows()? {
        writeln!(out, "{}", window(&info, &entry))?;
    }
    Ok(())
}

fn general(info: &Info, out: &mut dyn Write) -> Result<(), Failure> {
    let memory = match info.memory {
        abi::MEMORY_SHARED if info.status & abi::STATUS_MEMORY_PARTLY != 0 => {
            "partly shared with the adaptor, exports of the rest are refused (QEMU: share=on for every memory backend)"
        }
        abi::MEMORY_SHARED => "shared with the adaptor",
        abi::MEMORY_NOT_SHARED => {
            "NOT shared with the adaptor, exports are refused (QEMU: memory-backend-memfd,share=on)"
        }
        _ => "not known to be shared with the adaptor",
    };
    let ready = if info.status & abi::STATUS_READY != 0 { "ready" } else { "not ready" };
    writeln!(out, "node: {}", info.node)?;
    writeln!(out, "state: {ready}")?;
    if info.status & abi::STATUS_DUPLICATE_ID != 0 {
        writeln!(out, "state: another adaptor has this node id, so that this one is not let in")?;
    }
    writeln!(out, "memory: {memory}")?;
    writeln!(out, "incarnation: {:#018x}", info.incarnation)?;
    writeln!(
        out,
        "geometry: {} nodes x {}, blocks of {}, {} bus bits",
        info.node_count,
        human(info.window_size),
        human(info.block_size()),
        info.bus_bits
    )?;
    writeln!(
        out,
        "deadline: {} ms, {} ms of it for the lease",
        Duration::from_micros(info.deadline_us.into()).as_millis(),
        Duration::from_micros(info.lease_us.into()).as_millis()
    )?;
    let (major, minor) = (info.device_version >> 16, info.device_version & 0xffff);
    writeln!(out, "version: device {major}.{minor}, driver interface {}", info.abi_version)?;
    writeln!(out, "blocks with errors: {}", info.error_count)?;
    writeln!(
        out,
        "started here: {} stores, {} loads, {} checks, {} errors",
        info.stores, info.loads, info.checks, info.errors
    )?;
    writeln!(
        out,
        "served for others: {} writes, {} reads, {} refused",
        info.served_writes, info.served_reads, info.refused
    )?;
    writeln!(out, "messages: {} taken in, {} refused", info.messages_received, info.message_overflows)?;
    writeln!(
        out,
        "events: {} link, {} error, {} failed, {} memory, {} duplicate, {} inventory, {} acknowledged, {} reset",
        info.event_count(abi::EVENT_LINK),
        info.event_count(abi::EVENT_ERROR),
        info.event_count(abi::EVENT_FAILED),
        info.event_count(abi::EVENT_MEMORY),
        info.event_count(abi::EVENT_DUPLICATE),
        info.event_count(abi::EVENT_INVENTORY),
        info.event_count(abi::EVENT_ACK),
        info.event_count(abi::EVENT_RESET)
    )?;
    Ok(())
}

fn spaces(spaces: &Spaces, out: &mut dyn Write) -> Result<(), Failure> {
    for (name, base, extent) in [
        ("registers", spaces.register_base, spaces.register_extent),
        ("I/O space", spaces.io_base, spaces.io_extent),
        ("access space", spaces.access_base, spaces.access_extent),
        ("assurance space", spaces.assurance_base, spaces.assurance_extent),
    ] {
        let base = if base == 0 { "an unknown address".to_owned() } else { format!("{base:#x}") };
        writeln!(out, "{name}: {} at {base}", human(extent))?;
    }
    Ok(())
}

fn peer(node: &Node) -> String {
    let state = if node.is_up() { "up" } else { "down" };
    let seen = match node.incarnation {
        0 => "never seen".to_owned(),
        incarnation => format!("incarnation {incarnation:#018x}"),
    };
    let overflow = if node.is_overflowed() { ", errors were lost (see ardma ack)" } else { "" };
    format!("peer {}: {state}, {seen}, {} link changes{overflow}", node.node, node.link_changes)
}

fn window(info: &Info, window: &Window) -> String {
    let rights = match window.rights & (abi::RIGHT_READ | abi::RIGHT_WRITE) {
        abi::RIGHT_READ => "read only",
        abi::RIGHT_WRITE => "write only",
        _ => "read and write",
    };
    let space = if window.flags & abi::WINDOW_IO != 0 { Space::Io } else { Space::Memory };
    let node = u8::try_from(info.node).unwrap_or(u8::MAX);
    let mut text = format!(
        "window {}: {} bytes, {rights}, nodes {}, process {}",
        Place { node, space, offset: window.offset },
        window.length,
        Nodes::from_words(window.nodes),
        window.owner
    );
    let of_bar = window.flags & abi::WINDOW_BAR != 0;
    if of_bar {
        text.push_str(", of a PCI device");
    }
    if window.flags & abi::WINDOW_LOST != 0 {
        text.push_str(if of_bar { ", lost by a reset or with its device" } else { ", lost by a reset" });
    }
    if window.flags & abi::WINDOW_ORPHAN != 0 {
        text.push_str(", its file is closed");
    }
    text
}

/// Refuses a node to which there can be no link.
fn require_other(info: &Info, node: u8) -> Result<(), Failure> {
    let node = u32::from(node);
    if node >= info.node_count {
        let last = info.node_count.saturating_sub(1);
        return Err(Failure::Usage(format!(
            "there is no node {node}: this adaptor's nodes go from 0 to {last}"
        )));
    }
    if node == info.node {
        return Err(Failure::Usage(format!("node {node} is this node itself, to which there is no link")));
    }
    Ok(())
}

/// Takes note of a log overflow.
pub fn acknowledge(adaptor: &Adaptor, node: u8) -> Result<(), Failure> {
    require_other(&adaptor.info()?, node)?;
    Ok(adaptor.acknowledge_overflow(node)?)
}

/// Waits until the link to a node is up, or down.
pub fn wait(adaptor: &Adaptor, arguments: &WaitArguments, out: &mut dyn Write) -> Result<(), Failure> {
    require_other(&adaptor.info()?, arguments.node)?;
    let limit = Duration::from_secs(arguments.timeout.into());
    let start = Instant::now();
    loop {
        // Events first, then the state: a change between the two is seen by the next wait.
        adaptor.events()?;
        let node = adaptor.node(arguments.node)?;
        let left = limit.saturating_sub(start.elapsed());
        if node.is_up() != arguments.down || left.is_zero() {
            writeln!(out, "{}", peer(&node))?;
            return if node.is_up() != arguments.down { Ok(()) } else { Err(Failure::Told) };
        }
        adaptor.wait(left)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_that_is_not_known_is_said_to_be_so() {
        let mut out = Vec::new();
        let some = Spaces { access_base: 0x1_0000_0000, access_extent: 4 << 30, ..Spaces::default() };
        spaces(&some, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("\naccess space: 4 GiB at 0x100000000\n"), "{text}");
        assert!(text.starts_with("registers: 0 B at an unknown address\n"), "{text}");
    }

    #[test]
    fn a_node_to_which_there_can_be_no_link_is_refused() {
        let info = Info { node: 1, node_count: 16, ..Info::default() };
        let text = |node| require_other(&info, node).map_err(|failure| failure.to_string());
        assert_eq!(text(0), Ok(()));
        assert_eq!(text(15), Ok(()));
        assert_eq!(text(16), Err("there is no node 16: this adaptor's nodes go from 0 to 15".to_owned()));
        assert_eq!(text(1), Err("node 1 is this node itself, to which there is no link".to_owned()));
    }

    #[test]
    fn peers_and_windows_are_a_line_each() {
        let mut node = Node { node: 2, state: abi::NODE_CONFIGURED, ..Node::default() };
        assert_eq!(peer(&node), "peer 2: down, never seen, 0 link changes");
        node.state |= abi::NODE_LINK_UP;
        (node.incarnation, node.link_changes) = (0x12, 3);
        assert_eq!(peer(&node), "peer 2: up, incarnation 0x0000000000000012, 3 link changes");
        let entry = Window {
            offset: 0x4000,
            length: 8192,
            rights: 3,
            nodes: [2, 0, 0, 0],
            owner: 77,
            ..Window::default()
        };
        let info = Info { node: 1, ..Info::default() };
        assert_eq!(window(&info, &entry), "window 1:0x4000: 8192 bytes, read and write, nodes 1, process 77");
        let entry = Window { flags: abi::WINDOW_IO, ..entry };
        assert!(window(&info, &entry).starts_with("window 1:io:0x4000: "));
        let entry = Window { flags: abi::WINDOW_BAR | abi::WINDOW_LOST, ..entry };
        assert!(
            window(&info, &entry)
                .ends_with("process 77, of a PCI device, lost by a reset or with its device")
        );
    }
}
