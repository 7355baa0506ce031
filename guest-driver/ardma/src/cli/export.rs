//! `ardma export`: memory, or another PCI device, that other nodes reach for as long as this command runs.
//!
//! Every command on standard input is answered by exactly one line on standard output, so that a script can
//! drive it through a pipe.

use super::commands::{Commands, LOOK_AGAIN, wait};
use super::{Failure, file_failure, signals};
use ardma::{Adaptor, Bar, ExportOptions, Function, Memory, Name, Nodes, PAGE, Space, parse_size};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};

const HELP: &str = "\
The first line on standard output is `exported NODE:0xOFFSET BYTES` (or `NODE:io:0xOFFSET`). Then each line on standard input is a command, answered by
one line:
  sha256 [LENGTH]     sha256 HEX
  fill BYTE           ok
  load FILE           loaded BYTES FILE
  dump FILE [LENGTH]  dumped BYTES FILE
  peek OFFSET LENGTH  peek HEX
  add OFFSET COUNT    added COUNT
  quit                the export ends
A command that fails is answered by `error TEXT`. At the end of its input it holds the export until SIGTERM, SIGINT or SIGHUP
(on a terminal, where that is Ctrl-D, it ends, unless --hold is given). With `&` behind it, it goes on in the background. A script drives it with a fifo which it keeps open itself:
  mkfifo commands; exec 3<>commands
  ardma export 16M <commands >answers &
  echo sha256 >&3";

/// Arguments of `ardma export`.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    /// Bytes; the export is rounded up to whole pages of 4 KiB. Of a PCI device all that it has from --start on, if it is not given.
    #[arg(value_parser = parse_size, required_unless_present = "pci")]
    size: Option<u64>,
    /// Export another PCI device of this machine, not memory: the function as lspci -D shows it, such as 0000:00:05.0.
    #[arg(long, value_name = "FUNCTION", conflicts_with_all = ["fill", "from", "dump", "sha256"])]
    pci: Option<Function>,
    /// Which of its BARs.
    #[arg(long, value_name = "NUMBER", requires = "pci", default_value = "0")]
    bar: u32,
    /// Where in the BAR the export begins.
    #[arg(long, value_name = "OFFSET", requires = "pci", value_parser = parse_size, default_value = "0")]
    start: u64,
    /// Offset in this node's window; the adaptor chooses where it is not given.
    #[arg(long, value_name = "OFFSET", value_parser = parse_size)]
    at: Option<u64>,
    /// Into the I/O space, where it has room from 0x1000 up to 0x10000.
    #[arg(long)]
    io: bool,
    /// Other nodes may only read.
    #[arg(long, conflicts_with = "write_only")]
    read_only: bool,
    /// Other nodes may only write.
    #[arg(long)]
    write_only: bool,
    /// Other nodes may do atomics on it.
    #[arg(long, conflicts_with_all = ["io", "pci"])]
    atomic: bool,
    /// It may lie beyond the window size, where DMA engines reach it (`ardma copy` does), and loads and stores do not.
    #[arg(long, conflicts_with_all = ["io", "pci"])]
    beyond: bool,
    /// Which nodes may: ids and ranges such as 1,3-5, or all.
    #[arg(long, default_value = "all")]
    nodes: Nodes,
    /// By which these find it in `ardma list`.
    #[arg(long)]
    name: Option<Name>,
    /// Set every byte before the export.
    #[arg(long, value_parser = parse_byte, conflicts_with = "from")]
    fill: Option<u8>,
    /// Put a file's contents at the start before the export.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// At the end write the memory to a file.
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
    /// At the end print the memory's SHA-256.
    #[arg(long)]
    sha256: bool,
    /// Hold the export after the end of the input on a terminal too.
    #[arg(long)]
    hold: bool,
}

fn parse_byte(text: &str) -> Result<u8, String> {
    parse_size(text)
        .ok()
        .and_then(|value| u8::try_from(value).ok())
        .ok_or_else(|| format!("'{text}' is not a byte: 0 to 255"))
}

/// What a line of input asks for.
#[derive(Debug, PartialEq, Eq)]
enum Command {
    Sha256(Option<u64>),
    Fill(u8),
    Load(PathBuf),
    Dump(PathBuf, Option<u64>),
    Peek(u64, u64),
    Add(u64, u64),
    Quit,
}

impl Command {
    fn parse(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let size = |text: &str| parse_size(text).map_err(|error| error.to_string());
        match words.as_slice() {
            ["sha256"] => Ok(Self::Sha256(None)),
            ["sha256", length] => Ok(Self::Sha256(Some(size(length)?))),
            ["fill", byte] => Ok(Self::Fill(parse_byte(byte)?)),
            ["load", file] => Ok(Self::Load(file.into())),
            ["dump", file] => Ok(Self::Dump(file.into(), None)),
            ["dump", file, length] => Ok(Self::Dump(file.into(), Some(size(length)?))),
            ["peek", offset, length] => Ok(Self::Peek(size(offset)?, size(length)?)),
            ["add", offset, count] => Ok(Self::Add(size(offset)?, size(count)?)),
            ["quit"] => Ok(Self::Quit),
            _ => Err(format!(
                "'{line}': use sha256 [LENGTH], fill BYTE, load FILE, dump FILE [LENGTH], peek OFFSET LENGTH, add OFFSET COUNT or quit"
            )),
        }
    }
}

/// Exports, and holds.
pub fn run(adaptor: &Adaptor, arguments: &Arguments, out: &mut dyn Write) -> Result<(), Failure> {
    let termination = signals::termination()?;
    let options = ExportOptions {
        space: if arguments.io { Space::Io } else { Space::Memory },
        offset: arguments.at,
        read: !arguments.write_only,
        write: !arguments.read_only,
        atomic: arguments.atomic,
        beyond: arguments.beyond,
        nodes: arguments.nodes,
        name: arguments.name.unwrap_or_default(),
    };
    if let Some(function) = arguments.pci {
        let (number, start, length) = (arguments.bar, arguments.start, arguments.size);
        let bar = Bar {
            function,
            number,
            start,
            length: length.map(|length| length.checked_next_multiple_of(PAGE).unwrap_or(length)),
        };
        let mut export = adaptor.export_bar(&bar, &options)?;
        say(out, &format!("exported {} {}", export.place(), export.length()))?;
        serve(&mut no_memory, arguments.hold, termination.as_raw_fd(), out)?;
        return Ok(export.end()?);
    }
    let size = arguments.size.unwrap_or(0);
    if size == 0 {
        return Err(Failure::Usage(
            "an export of 0 bytes has nothing in it: give a size such as 4K".to_owned(),
        ));
    }
    let memory = Memory::new(size)?;
    if let Some(byte) = arguments.fill {
        memory.fill(byte);
    }
    if let Some(path) = &arguments.from {
        load(&memory, path)?;
    }
    let mut export = adaptor.export(memory, &options)?;
    say(out, &format!("exported {} {}", export.place(), export.memory().length()))?;
    let mut answer = |command: &Command| execute(export.memory(), command, size);
    serve(&mut answer, arguments.hold, termination.as_raw_fd(), out)?;
    // What is told at the end is what remains: nothing lands any more.
    export.end()?;
    if arguments.sha256 {
        say(out, &format!("sha256 {}", sha256(export.memory(), size)?))?;
    }
    if let Some(path) = &arguments.dump {
        dump(export.memory(), path, size)?;
    }
    Ok(())
}

/// The commands' answer where a device is exported.
fn no_memory(_: &Command) -> Result<String, Failure> {
    Err(Failure::Usage("this export is of a device, and has no memory here: use quit".to_owned()))
}

/// Carries out commands until it is told to end.
fn serve(
    answer: &mut dyn FnMut(&Command) -> Result<String, Failure>,
    hold: bool,
    termination: RawFd,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let mut commands = Commands::new();
    let hold = hold || !io::stdin().is_terminal();
    loop {
        let file = commands.file();
        let pause = file.is_none().then_some(LOOK_AGAIN);
        let [is_ended, is_input] = wait([Some(termination), file], pause)?;
        if is_ended {
            return Ok(());
        }
        if !is_input {
            continue;
        }
        let Some(lines) = commands.take()? else {
            if hold {
                wait([Some(termination)], None)?;
            }
            return Ok(());
        };
        for text in lines {
            match Command::parse(&text) {
                Ok(Command::Quit) => return Ok(()),
                Ok(command) => match answer(&command) {
                    Ok(answer) => say(out, &answer)?,
                    Err(failure) => say(out, &format!("error {failure}"))?,
                },
                Err(explanation) => say(out, &format!("error {explanation}"))?,
            }
        }
    }
}

fn execute(memory: &Memory, command: &Command, size: u64) -> Result<String, Failure> {
    match command {
        Command::Sha256(length) => Ok(format!("sha256 {}", sha256(memory, length.unwrap_or(size))?)),
        Command::Fill(byte) => {
            memory.fill(*byte);
            Ok("ok".to_owned())
        }
        Command::Load(path) => Ok(format!("loaded {} {}", load(memory, path)?, path.display())),
        Command::Dump(path, length) => {
            let length = length.unwrap_or(size);
            dump(memory, path, length)?;
            Ok(format!("dumped {length} {}", path.display()))
        }
        Command::Peek(offset, length) => {
            let length = usize::try_from(*length).ok().filter(|&length| length <= 4096);
            let length = length.ok_or_else(|| Failure::Usage("peek shows at most 4096 bytes".to_owned()))?;
            let mut bytes = vec![0; length];
            memory.read(*offset, &mut bytes)?;
            Ok(format!("peek {}", hex(&bytes)))
        }
        Command::Add(offset, count) => {
            for _ in 0..*count {
                memory.fetch_add(*offset, 1)?;
            }
            Ok(format!("added {count}"))
        }
        Command::Quit => Ok(String::new()),
    }
}

fn say(out: &mut dyn Write, line: &str) -> Result<(), Failure> {
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn sha256(memory: &Memory, length: u64) -> Result<String, Failure> {
    let mut digest = Sha256::new();
    memory.for_each_part(length, |part| {
        digest.update(part);
        Ok::<_, Failure>(())
    })?;
    Ok(hex(&digest.finalize()))
}

fn dump(memory: &Memory, path: &Path, length: u64) -> Result<(), Failure> {
    let mut file = File::create(path).map_err(file_failure(path))?;
    memory.for_each_part(length, |part| file.write_all(part).map_err(file_failure(path)))
}

/// Copies a file to the start of the memory; returns its length.
fn load(memory: &Memory, path: &Path) -> Result<u64, Failure> {
    let mut file = File::open(path).map_err(file_failure(path))?;
    let (length, room) = (file.metadata().map_err(file_failure(path))?.len(), memory.length());
    if length > room {
        return Err(Failure::Usage(format!("{} has {length} bytes, and the export {room}", path.display())));
    }
    let mut buffer = vec![0; 64 << 10];
    let mut offset = 0_u64;
    loop {
        let length = file.read(&mut buffer).map_err(file_failure(path))?;
        let Some(part) = buffer.get(..length).filter(|part| !part.is_empty()) else { return Ok(offset) };
        memory.write(offset, part)?;
        offset = offset.saturating_add(part.len() as u64);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_words() {
        assert_eq!(Command::parse("sha256"), Ok(Command::Sha256(None)));
        assert_eq!(Command::parse(" sha256  9M "), Ok(Command::Sha256(Some(9 << 20))));
        assert_eq!(Command::parse("fill 0xa5"), Ok(Command::Fill(0xa5)));
        assert_eq!(Command::parse("dump /tmp/x 1K"), Ok(Command::Dump("/tmp/x".into(), Some(1024))));
        assert_eq!(Command::parse("peek 0x10 8"), Ok(Command::Peek(16, 8)));
        for line in ["", "sha", "fill", "fill 256", "fill x", "peek 1", "quit now", "sha256 1 2"] {
            assert!(Command::parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn commands_are_answered_from_the_memory() {
        let memory = Memory::new(5000).unwrap();
        let answer = |line: &str| execute(&memory, &Command::parse(line).unwrap(), 5000).unwrap();
        memory.write(3, b"abc").unwrap();
        assert_eq!(answer("peek 2 5"), "peek 0061626300");
        assert_eq!(answer("add 8 300"), "added 300");
        assert_eq!(answer("peek 8 2"), "peek 2c01");
        assert_eq!(answer("fill 97"), "ok");
        assert_eq!(
            answer("sha256 3"),
            "sha256 9834876dcfb05cb167a5c24953eba58c4ac89b1adf57f28f2f9d09af107ee8f0"
        );
        let file = std::env::temp_dir().join(format!("ardma-dump-{}", std::process::id()));
        assert_eq!(answer(&format!("dump {}", file.display())), format!("dumped 5000 {}", file.display()));
        assert_eq!(std::fs::read(&file).unwrap(), vec![b'a'; 5000]);
        assert_eq!(answer(&format!("load {}", file.display())), format!("loaded 5000 {}", file.display()));
        std::fs::remove_file(&file).unwrap();
        let failed = execute(&memory, &Command::Sha256(Some(9000)), 5000).unwrap_err();
        assert_eq!(
            failed.to_string(),
            "9000 bytes at offset 0x0 are not inside the 8192 bytes that there are"
        );
    }
}
