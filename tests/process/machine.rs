//! A machine around a guest: it passes on what the guest and its adaptor have for each other, and answers what the adaptor asks of
//! the guest's bus, as QEMU does, from a device of its own.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use super::node::PATIENCE;

/// Where the device's registers are on the bus; it has a page of them.
pub const DEVICE: u64 = 0xfe00_0000;
const DEVICE_END: u64 = DEVICE + 0x1000;
/// A register that answers by what the machine loads from BAR0 of the adaptor.
pub const NESTED: u64 = DEVICE + 0x100;

const HEADER: usize = 16;
const REGION_READ: u16 = 9;
const DMA_READ: u16 = 11;
const DMA_WRITE: u16 = 12;
const REPLY: u32 = 1;
const ERROR: u32 = 1 << 5;
/// The id of the machine's own requests, which no client uses.
const OWN_ID: u16 = 0xffee;

/// What the machine does, and what it has seen.
#[derive(Default)]
struct State {
    registers: BTreeMap<u64, u8>,
    /// Addresses and lengths of accesses, in order.
    seen: Vec<(u64, usize)>,
    /// Answers nothing for now.
    is_stopped: bool,
    waiting: Vec<Vec<u8>>,
}

/// See the module. It ends with its guest.
pub struct Machine {
    path: PathBuf,
    state: Arc<Mutex<State>>,
    adaptor: UnixStream,
}

impl Machine {
    /// Connects to an adaptor, and waits for a guest.
    pub fn start(adaptor: &Path) -> Self {
        let path = adaptor.with_extension("machine");
        let listener = UnixListener::bind(&path).unwrap();
        let adaptor = UnixStream::connect(adaptor).unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let machine = Self { path, state, adaptor: adaptor.try_clone().unwrap() };
        let state = Arc::clone(&machine.state);
        thread::spawn(move || {
            let (guest, _) = listener.accept().unwrap();
            thread::scope(|scope| {
                scope.spawn(|| pass_on(&guest, &adaptor, &state));
                run(&guest, &adaptor, &state);
            });
        });
        machine
    }

    /// Where the guest attaches.
    pub fn socket(&self) -> &Path {
        &self.path
    }

    /// The accesses that were seen since the last call.
    pub fn take_seen(&self) -> Vec<(u64, usize)> {
        std::mem::take(&mut self.state.lock().unwrap().seen)
    }

    /// Waits until something was seen that has not been taken.
    pub fn wait_for_access(&self) {
        let begin = Instant::now();
        while self.state.lock().unwrap().seen.is_empty() {
            assert!(begin.elapsed() < PATIENCE, "nothing comes");
            thread::yield_now();
        }
    }

    /// A byte of the device.
    pub fn byte(&self, address: u64) -> Option<u8> {
        self.state.lock().unwrap().registers.get(&address).copied()
    }

    /// Carries out nothing that comes from now on.
    pub fn stop(&self) {
        self.state.lock().unwrap().is_stopped = true;
    }

    /// Carries out what has come, and what comes.
    pub fn go_on(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_stopped = false;
        for message in std::mem::take(&mut state.waiting) {
            (&self.adaptor).write_all(&state.answer(&message)).unwrap();
        }
    }
}

impl State {
    /// The answer to a command, with what it does done.
    fn answer(&mut self, message: &[u8]) -> Vec<u8> {
        let command = u16_at(message, 2);
        let (address, count) = (u64_at(message, 16), u64_at(message, 24));
        let data = &message[32..];
        let mut answer = message[..HEADER].to_vec();
        let mut body = Vec::new();
        let mut flags = REPLY;
        let inside = DEVICE..DEVICE_END;
        if !inside.contains(&address) || address + count > DEVICE_END {
            // As QEMU does: what is inside is done, and a fault reported.
            let part = (address..).zip(data.iter().copied()).filter(|(at, _)| inside.contains(at));
            self.registers.extend(part);
            flags |= ERROR;
            answer[12..16].copy_from_slice(&u32::try_from(libc::ENODEV).unwrap().to_le_bytes());
        } else if command == DMA_WRITE {
            assert_eq!(data.len() as u64, count);
            self.registers.extend((address..).zip(data.iter().copied()));
        } else {
            assert_eq!(command, DMA_READ);
            body.extend(&message[16..32]);
            body.extend((address..address + count).map(|at| self.registers.get(&at).copied().unwrap_or(0)));
        }
        answer[4..8].copy_from_slice(&u32::try_from(HEADER + body.len()).unwrap().to_le_bytes());
        answer[8..12].copy_from_slice(&flags.to_le_bytes());
        answer.extend(body);
        answer
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Passes on messages and descriptors until the guest closes. The state's lock keeps others' messages from between the parts of one.
fn pass_on(from: &UnixStream, to: &UnixStream, state: &Mutex<State>) {
    let (mut pending, mut pending_fds) = (Vec::new(), Vec::new());
    let mut bytes = [0u8; 65536];
    loop {
        let mut fds: [RawFd; 16] = [-1; 16];
        let mut part = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
        // SAFETY: the buffer outlives the call.
        let Ok((len, count)) = (unsafe { from.recv_with_fds(&mut part, &mut fds) }) else { break };
        if len == 0 {
            break;
        }
        pending.extend(&bytes[..len]);
        // SAFETY: they were just received and are nobody else's.
        pending_fds.extend(fds[..count].iter().map(|&fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        while pending.len() >= HEADER && pending.len() >= u32_at(&pending, 4) as usize {
            let rest = pending.split_off(u32_at(&pending, 4) as usize);
            let message = std::mem::replace(&mut pending, rest);
            // A client waits for the answer to a message with descriptors, so that they are this one's.
            let fds: Vec<RawFd> = pending_fds.iter().map(AsRawFd::as_raw_fd).collect();
            let _lock = state.lock().unwrap();
            assert_eq!(
                to.send_with_fds(&[&message[..]], &fds).ok(),
                Some(message.len()),
                "it is taken at once"
            );
            pending_fds.clear();
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// Takes in what comes from the adaptor: replies for the guest, and commands.
fn run(guest: &UnixStream, adaptor: &UnixStream, state: &Mutex<State>) {
    let mut nested = None;
    while let Some(message) = next(adaptor) {
        let is_reply = u32_at(&message, 8) & 0xf == REPLY;
        if is_reply && u16_at(&message, 0) == OWN_ID {
            let command: Vec<u8> = nested.take().unwrap();
            let mut state = state.lock().unwrap();
            let loaded = message[32..36].iter().copied();
            state.registers.extend((NESTED..).zip(loaded));
            let answer = state.answer(&command);
            { adaptor }.write_all(&answer).unwrap();
        } else if is_reply {
            if { guest }.write_all(&message).is_err() {
                return;
            }
        } else {
            let mut state = state.lock().unwrap();
            let address = u64_at(&message, 16);
            state.seen.push((address, usize::try_from(u64_at(&message, 24)).unwrap()));
            if state.is_stopped {
                state.waiting.push(message);
            } else if address == NESTED {
                // As a bus would on which the function itself is what is asked for.
                { adaptor }.write_all(&load(OWN_ID)).unwrap();
                nested = Some(message);
            } else {
                { adaptor }.write_all(&state.answer(&message)).unwrap();
            }
        }
    }
}

/// A load of MAGIC.
fn load(id: u16) -> Vec<u8> {
    let mut message = [id.to_le_bytes(), REGION_READ.to_le_bytes()].concat();
    for word in [32u32, 0, 0, 0, 0, 0, 4] {
        message.extend(word.to_le_bytes());
    }
    message
}

/// The next message; none where the stream has ended.
fn next(stream: &UnixStream) -> Option<Vec<u8>> {
    use std::io::Read;
    let mut message = vec![0; HEADER];
    { stream }.read_exact(&mut message).ok()?;
    message.resize(u32_at(&message, 4) as usize, 0);
    { stream }.read_exact(&mut message[HEADER..]).ok()?;
    Some(message)
}
