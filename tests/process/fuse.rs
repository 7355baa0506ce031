//! A file system in user space with one file, whose pages come when the test lets them: the kernel's FUSE protocol, version 7.31, as
//! far as it is needed for a file that is mapped.

use std::collections::VecDeque;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::node::PATIENCE;

const ROOT: u64 = 1;
const FILE: u64 = 2;
const NAME: &str = "vault";
/// The longest request: a write of 128 KiB and its headers.
const LONGEST: usize = (128 << 10) + 4096;

/// A request's number and its operation.
#[derive(Clone, Copy)]
struct Request {
    opcode: u32,
    unique: u64,
    node: u64,
}

#[derive(Default)]
struct State {
    data: Vec<u8>,
    /// Reads are answered.
    open: bool,
    /// Reads that wait: their number, offset and size.
    waiting: VecDeque<(u64, usize, usize)>,
}

struct Shared {
    device: File,
    state: Mutex<State>,
    changed: Condvar,
}

/// A mounted file system.
pub struct SlowFile {
    directory: PathBuf,
    shared: Arc<Shared>,
}

fn words(list: &[u64]) -> Vec<u8> {
    list.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn halves(list: &[u32]) -> Vec<u8> {
    list.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

impl Shared {
    fn answer(&self, unique: u64, error: i32, body: &[u8]) {
        let len = u32::try_from(16 + body.len()).unwrap();
        let mut message = [&len.to_le_bytes()[..], &error.to_le_bytes(), &unique.to_le_bytes()].concat();
        message.extend_from_slice(body);
        // Who asked may be gone.
        let _ = (&self.device).write(&message);
    }

    fn attributes(node: u64, size: usize) -> Vec<u8> {
        let (mode, size) = match node {
            ROOT => (libc::S_IFDIR | 0o755, 0),
            _ => (libc::S_IFREG | 0o600, u64::try_from(size).unwrap()),
        };
        let numbers = words(&[node, size, size.div_ceil(512), 0, 0, 0]);
        [numbers, halves(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0])].concat()
    }

    fn handle(&self, Request { opcode, unique, node }: Request, body: &[u8]) {
        let mut state = self.state.lock().unwrap();
        let attributes = |node| Self::attributes(node, state.data.len());
        let answer = match opcode {
            1 if body == [NAME.as_bytes(), b"\0"].concat() => {
                [words(&[FILE, 0, 60, 60]), halves(&[0, 0]), attributes(FILE)].concat()
            }
            1 => return self.answer(unique, -libc::ENOENT, &[]),
            // Nobody waits for an answer to these.
            2 | 36 | 42 => return,
            3 | 4 => [words(&[60, 0]), attributes(node)].concat(),
            14 | 27 => words(&[1, 0]),
            15 => {
                let (offset, size) = (usize::try_from(word(body, 8)).unwrap(), half(body, 16) as usize);
                state.waiting.push_back((unique, offset, size));
                self.changed.notify_all();
                if state.open {
                    self.let_through(&mut state);
                }
                return;
            }
            16 => {
                let (offset, size) = (usize::try_from(word(body, 8)).unwrap(), half(body, 16) as usize);
                state.data[offset..offset + size].copy_from_slice(&body[40..40 + size]);
                halves(&[u32::try_from(size).unwrap(), 0])
            }
            17 => vec![0; 80],
            18 | 20 | 25 | 29 | 34 | 38 => Vec::new(),
            // Version, and nothing that is optional but a page of reading ahead.
            26 => [halves(&[7, 31, 4096, 0, 0, 128 << 10, 1, 0, 0]), vec![0; 28]].concat(),
            _ => return self.answer(unique, -libc::ENOSYS, &[]),
        };
        self.answer(unique, 0, &answer);
    }

    fn let_through(&self, state: &mut State) {
        while let Some((unique, offset, size)) = state.waiting.pop_front() {
            let end = state.data.len().min(offset + size);
            self.answer(unique, 0, &state.data[offset.min(end)..end]);
        }
    }

    fn serve(&self) {
        let mut message = vec![0; LONGEST];
        loop {
            match (&self.device).read(&mut message) {
                Ok(len) => {
                    let request = Request {
                        opcode: half(&message, 4),
                        unique: word(&message, 8),
                        node: word(&message, 16),
                    };
                    self.handle(request, &message[40..len]);
                }
                // A request that was taken back, and a signal.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // It is unmounted.
                Err(_) => return,
            }
        }
    }
}

impl SlowFile {
    /// Mounts it at a new directory. Its file has `size` bytes, all 0, and its pages come at once.
    pub fn mount(directory: &Path, size: usize) -> Self {
        std::fs::create_dir(directory).unwrap();
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let device = device.expect("this test needs /dev/fuse");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let (source, kind) = (c"slow", c"fuse");
        let (path, options) =
            (CString::new(directory.to_str().unwrap()).unwrap(), CString::new(options).unwrap());
        // SAFETY: all four are strings that live until the call has returned.
        let mounted =
            unsafe { libc::mount(source.as_ptr(), path.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast()) };
        assert_eq!(
            mounted,
            0,
            "this test mounts a file system, as root: {}",
            std::io::Error::last_os_error()
        );
        let state = Mutex::new(State { data: vec![0; size], open: true, waiting: VecDeque::new() });
        let shared = Arc::new(Shared { device, state, changed: Condvar::new() });
        let server = Arc::clone(&shared);
        thread::spawn(move || server.serve());
        Self { directory: directory.to_owned(), shared }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.join(NAME)
    }

    /// From now on pages come, or do not.
    pub fn set_open(&self, open: bool) {
        let mut state = self.shared.state.lock().unwrap();
        state.open = open;
        if open {
            self.shared.let_through(&mut state);
        }
    }

    /// Lets pages come when it is dropped, so that no process is left that waits for one.
    pub fn opens_at_end(&self) -> OpensAtEnd<'_> {
        OpensAtEnd(self)
    }

    /// Waits until somebody waits for a page.
    pub fn wait_for_reader(&self) {
        let end = Instant::now() + PATIENCE;
        let mut state = self.shared.state.lock().unwrap();
        while state.waiting.is_empty() {
            assert!(Instant::now() < end, "nobody asks for a page");
            let short = Duration::from_millis(100);
            state = self.shared.changed.wait_timeout(state, short).unwrap().0;
        }
    }

    /// What the file has at an offset, as all see it who read it.
    pub fn word(&self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        let file = File::open(self.path()).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, offset).unwrap();
        u64::from_le_bytes(bytes)
    }
}

/// See [`SlowFile::opens_at_end`].
pub struct OpensAtEnd<'a>(&'a SlowFile);

impl Drop for OpensAtEnd<'_> {
    fn drop(&mut self) {
        self.0.set_open(true);
    }
}

impl Drop for SlowFile {
    fn drop(&mut self) {
        self.set_open(true);
        let path = CString::new(self.directory.to_str().unwrap()).unwrap();
        // SAFETY: the string lives until the call has returned.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}
