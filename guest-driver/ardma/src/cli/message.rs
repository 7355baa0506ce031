//! `ardma ring` and `ardma listen`: messages to another node's doorbells, and from others to this node's.

use super::commands::{Commands, LOOK_AGAIN, wait};
use super::{Failure, signals};
use ardma::{
    Adaptor, Class, Code, Direction, Doorbells, ListenOptions, Listener, Message, Nodes, parse_doorbells,
    parse_node, parse_size,
};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// Between two tries of a message for which there was no room.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// Arguments of `ardma ring`.
#[derive(Debug, clap::Args)]
pub struct RingArguments {
    /// Which doorbell, 0 to 63, of which node.
    #[arg(value_name = "NODE:DOORBELL", value_parser = parse_target)]
    target: (u8, u8),
    /// The message.
    #[arg(value_parser = parse_size, required_unless_present = "ask")]
    value: Option<u64>,
    /// Its size in bytes.
    #[arg(long, value_parser = ["4", "8"], default_value = "8")]
    size: String,
    /// So many messages: VALUE, VALUE + 1 and so on.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    count: u64,
    /// Send all of them before the check, which then answers for all at once.
    #[arg(long, conflicts_with = "retry")]
    burst: bool,
    /// Send a message again that was not executed and may be with a retry, for so many seconds in all.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    retry: u32,
    /// Send nothing: show the room there, and how many messages of this node the doorbell has taken.
    #[arg(long, conflicts_with_all = ["value", "burst", "retry"])]
    ask: bool,
}

/// Arguments of `ardma listen`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The first line on standard output is `listening`. Then each message is a line, `message NODE:DOORBELL VALUE SIZE`. The lines `mask`
and `unmask` on standard input let messages raise no interrupt, or again; `pause` and `resume` let it take none, or again; each
is answered by a line `ok`. It ends after --count messages, or at SIGTERM, SIGINT or SIGHUP.")]
pub struct ListenArguments {
    /// Which doorbells: numbers and ranges such as 0,4-7, or all.
    #[arg(long, value_parser = parse_doorbells, default_value = "all")]
    doorbells: u64,
    /// Which nodes may ring: ids and ranges such as 1,3-5, or all.
    #[arg(long, default_value = "all")]
    nodes: Nodes,
    /// End after so many messages.
    #[arg(long, value_name = "NUMBER")]
    count: Option<u64>,
    /// Fail where so many seconds pass without a message.
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u32>,
    /// Begin masked.
    #[arg(long)]
    masked: bool,
}

fn parse_target(text: &str) -> Result<(u8, u8), String> {
    let malformed =
        || format!("'{text}' is not a doorbell: use NODE:DOORBELL, such as 2:0; doorbells go from 0 to 63");
    let (node, doorbell) = text.split_once(':').ok_or_else(malformed)?;
    let node = parse_node(node).map_err(|error| error.to_string())?;
    let doorbell = parse_node(doorbell).ok().filter(|&doorbell| doorbell < ardma::DOORBELLS);
    Ok((node, doorbell.ok_or_else(malformed)?))
}

/// Rings, and checks.
pub fn ring(adaptor: &Adaptor, arguments: &RingArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let (node, doorbell) = arguments.target;
    let doorbells = adaptor.doorbells(node)?;
    let lapses = adaptor.lapses()?;
    let Some(first) = arguments.value else {
        let room = doorbells.ask(doorbell)?;
        writeln!(out, "room {node}:{doorbell} {} accepted {}", room.left, room.accepted)?;
        return Ok(());
    };
    let last = first.checked_add(arguments.count.saturating_sub(1));
    let is_short = arguments.size == "4";
    if last.is_none_or(|last| is_short && u32::try_from(last).is_err()) {
        return Err(Failure::Usage(format!(
            "{first:#x} and the values after it do not fit into {} bytes",
            arguments.size
        )));
    }
    let send = |value: u64| match u32::try_from(value) {
        Ok(value) if is_short => doorbells.ring_short(doorbell, value),
        _ => doorbells.ring(doorbell, value),
    };
    // Errors of an earlier program are no answer to this one.
    doorbells.check()?;
    let deadline = Instant::now().checked_add(Duration::from_secs(arguments.retry.into()));
    let group = if arguments.burst { arguments.count.max(1) } else { 1 };
    let mut done = 0_u64;
    while done < arguments.count {
        for value in (first.saturating_add(done)..).take(usize::try_from(group).unwrap_or(usize::MAX)) {
            send(value)?;
        }
        let code = write_code(adaptor, &doorbells, doorbell, lapses)?;
        if code.class() == Class::Retry && deadline.is_some_and(|deadline| Instant::now() < deadline) {
            std::thread::sleep(RETRY_PAUSE);
            continue;
        }
        if !code.is_ok() {
            writeln!(out, "ring {node}:{doorbell} {}", what_failed(done, group, code))?;
            return Err(Failure::Told);
        }
        done = done.saturating_add(group);
    }
    writeln!(out, "ring {node}:{doorbell} {done} executed, {}", Code::Ok)?;
    Ok(())
}

/// What there is to say where the check after `done` messages and another `group` of them told an error: of one it is that one's, of
/// several nobody knows which, and the others may have been taken.
fn what_failed(done: u64, group: u64, code: Code) -> String {
    match group {
        0 | 1 => format!("{done} executed, then: {code}"),
        _ => format!("{group} sent, of which at least one failed: {code}"),
    }
}

/// What the check says of the messages; unless the adaptor was reset since `lapses` was asked for.
fn write_code(adaptor: &Adaptor, doorbells: &Doorbells, doorbell: u8, lapses: u32) -> Result<Code, Failure> {
    let status = doorbells.check()?;
    if adaptor.lapses()? != lapses {
        let place = doorbells.place(doorbell);
        return Err(ardma::Error::Reset { direction: Direction::Write, place, length: 8 }.into());
    }
    Ok(status.write())
}

/// Shows messages until it is told to end.
pub fn listen(adaptor: &Adaptor, arguments: &ListenArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let termination = signals::termination()?;
    let options =
        ListenOptions { doorbells: arguments.doorbells, nodes: arguments.nodes, masked: arguments.masked };
    let listener = adaptor.listen(&options)?;
    say(out, "listening")?;
    let mut commands = Some(Commands::new());
    let mut is_paused = false;
    let mut left = arguments.count.unwrap_or(u64::MAX);
    let limit = arguments.timeout.map(|seconds| Duration::from_secs(seconds.into()));
    let mut last_message = Instant::now();
    while left > 0 {
        let input = commands.as_ref().and_then(Commands::file);
        let rest = limit.map(|limit| limit.saturating_sub(last_message.elapsed()));
        let pause = (commands.is_some() && input.is_none()).then_some(LOOK_AGAIN);
        let files =
            [Some(termination.as_raw_fd()), input, (!is_paused).then(|| listener.as_fd().as_raw_fd())];
        match wait(files, rest.into_iter().chain(pause).min())? {
            [true, ..] => return Ok(()),
            [_, true, _] => match commands.as_mut().map(Commands::take).transpose()?.flatten() {
                None => commands = None,
                Some(lines) => {
                    for line in lines {
                        say(out, &obey(&listener, &line, &mut is_paused))?;
                    }
                }
            },
            [.., true] => {
                last_message = Instant::now();
                for message in listener.read()? {
                    left = left.saturating_sub(1);
                    say(out, &show(&message))?;
                }
            }
            _ if rest.is_none_or(|rest| !rest.is_zero()) => {}
            _ => return Err(Failure::Nothing("no message came in that time".to_owned())),
        }
    }
    Ok(())
}

fn obey(listener: &Listener, command: &str, is_paused: &mut bool) -> String {
    let result = match command {
        "mask" => listener.set_masked(true),
        "unmask" => listener.set_masked(false),
        "pause" | "resume" => {
            *is_paused = command == "pause";
            Ok(())
        }
        _ => return format!("error '{command}': use mask, unmask, pause or resume"),
    };
    result.map_or_else(|error| format!("error {error}"), |()| "ok".to_owned())
}

fn show(message: &Message) -> String {
    format!("message {}:{} {:#x} {}", message.node, message.doorbell, message.data, message.size)
}

fn say(out: &mut dyn Write, line: &str) -> Result<(), Failure> {
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doorbell_is_node_and_number() {
        assert_eq!(parse_target("2:63"), Ok((2, 63)));
        for text in ["2", "2:64", "256:0", "2:x", ":", "2:"] {
            assert!(parse_target(text).is_err(), "{text}");
        }
    }

    #[test]
    fn one_answer_for_several_messages_counts_none_of_them() {
        let code = Code::NoResources;
        assert!(what_failed(7, 1, code).starts_with("7 executed, then: not executed, retry makes sense"));
        let text = what_failed(0, 3000, code);
        assert!(text.starts_with("3000 sent, of which at least one failed: not executed"), "{text}");
    }

    #[test]
    fn a_message_is_a_line() {
        let message = Message { data: 42, node: 1, doorbell: 3, size: 8, reserved: 0 };
        assert_eq!(show(&message), "message 1:3 0x2a 8");
    }
}
