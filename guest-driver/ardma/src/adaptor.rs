//! An open adaptor: what it is, whom it reaches, what happened.

use crate::abi;
use crate::bar::{Bar, BarExport};
use crate::device::Device;
use crate::error::{CallKind, Error};
use crate::export::{Export, ExportOptions};
use crate::mapping::Memory;
use crate::message::{Doorbells, ListenOptions, Listener};
use crate::place::Place;
use crate::queue::{Queue, QueueOptions};
use crate::registered::{LocalRights, Registered};
use crate::remote::RemoteWindow;
use crate::status::Status;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use crate::abi::{Info, Node, Window};

/// The device file of the first adaptor.
pub const DEFAULT_DEVICE: &str = "/dev/ardma0";

/// An open adaptor. Clones share the open file, and so the windows and the events.
#[derive(Clone, Debug)]
pub struct Adaptor {
    file: Arc<Device>,
    info: Info,
    /// The number with which the adaptor answers checks: another one after each reset.
    session: Arc<AtomicU32>,
    taken: Arc<Mutex<Taken>>,
}

/// What was learned from events. The lock is held while the driver is asked: an event that it has handed out is here.
#[derive(Debug, Default)]
struct Taken {
    /// Not yet told by [`Adaptor::events`].
    events: u32,
    /// How many resets were seen, wrapping.
    resets: u32,
    /// How many of them, and of acknowledged overflows, were seen, wrapping.
    lapses: u32,
    /// The file is no adaptor's, and has no events.
    #[cfg(test)]
    silent: bool,
}

impl Info {
    /// The size of a block in bytes: the grain of errors and checks.
    pub fn block_size(&self) -> u64 {
        1_u64.checked_shl(self.block_bits).unwrap_or(0)
    }

    /// How often an event (`abi::EVENT_*`) happened since the driver took the adaptor.
    pub fn event_count(&self, event: u32) -> u64 {
        usize::try_from(event.trailing_zeros())
            .ok()
            .and_then(|bit| self.event_counts.get(bit))
            .copied()
            .unwrap_or(0)
    }
}

impl Node {
    /// Whether the adaptor's configuration names the node.
    pub const fn is_configured(&self) -> bool {
        self.state & abi::NODE_CONFIGURED != 0
    }

    /// Whether the link to it works.
    pub const fn is_up(&self) -> bool {
        self.state & abi::NODE_LINK_UP != 0
    }

    /// Whether errors of accesses to it were lost; see [`Adaptor::acknowledge_overflow`].
    pub const fn is_overflowed(&self) -> bool {
        self.state & abi::NODE_OVERFLOWED != 0
    }

    /// Whether it is the node of this adaptor.
    pub const fn is_self(&self) -> bool {
        self.state & abi::NODE_SELF != 0
    }
}

impl Taken {
    fn note(&mut self, events: u32) {
        self.events |= events;
        self.resets = self.resets.wrapping_add(u32::from(events & abi::EVENT_RESET != 0));
        let lapsed = events & (abi::EVENT_RESET | abi::EVENT_ACK) != 0;
        self.lapses = self.lapses.wrapping_add(u32::from(lapsed));
    }
}

impl Adaptor {
    /// Opens an adaptor's device file, such as [`DEFAULT_DEVICE`].
    ///
    /// # Errors
    /// Where it is not there, may not be opened, is something else, or its module is of another build.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let named = || path.to_owned();
        let file = open(path)?;
        let file = Device::new(file).map_err(|source| Error::Open { path: named(), source })?;
        let mut info = Info::default();
        file.ask(&mut info).map_err(|source| match source.raw_os_error() {
            Some(libc::ENOTTY | libc::EINVAL) => Error::NotAnAdaptor { path: named() },
            _ => Error::call(CallKind::Info, "asking for the adaptor", source),
        })?;
        if info.abi_version != abi::VERSION {
            return Err(Error::Version { module: info.abi_version, own: abi::VERSION });
        }
        let session = Arc::new(AtomicU32::new(info.session));
        Ok(Self { file: Arc::new(file), info, session, taken: Arc::default() })
    }

    /// An adaptor whose spaces are those of a file, which knows none of the calls.
    #[cfg(test)]
    pub(crate) fn on_file(file: File, info: Info) -> Self {
        let taken = Taken { silent: true, ..Taken::default() };
        let (file, session) = (Arc::new(Device::new(file).unwrap()), Arc::default());
        Self { file, info, session, taken: Arc::new(Mutex::new(taken)) }
    }

    /// As if the adaptor had been reset now.
    #[cfg(test)]
    pub(crate) fn pretend_reset(&self) {
        self.taken.lock().unwrap().note(abi::EVENT_RESET);
    }

    /// The adaptor and this node, as they are now.
    ///
    /// # Errors
    /// [`Error::Call`] where the adaptor is gone.
    pub fn info(&self) -> Result<Info, Error> {
        let mut info = Info::default();
        self.file
            .ask(&mut info)
            .map_err(|source| Error::call(CallKind::Info, "asking for the adaptor", source))?;
        self.session.store(info.session, Ordering::Relaxed);
        Ok(info)
    }

    /// Asks the adaptor where a status is all-ones, which says that none has answered the check.
    ///
    /// # Errors
    /// [`Error::Call`] where the adaptor does not answer, was disabled, or is another one.
    pub fn believe(&self, status: Status) -> Result<Status, Error> {
        #[cfg(test)]
        if self.taken.lock().unwrap_or_else(PoisonError::into_inner).silent {
            return Ok(status);
        }
        if status.bits() == u32::MAX {
            self.info()?;
        }
        Ok(status)
    }

    /// What never changes while the adaptor is open: node, geometry, deadline. Costs no call.
    pub const fn fixed(&self) -> &Info {
        &self.info
    }

    /// One node as this adaptor sees it.
    ///
    /// # Errors
    /// [`Error::Call`] where the adaptor is gone.
    pub fn node(&self, id: u8) -> Result<Node, Error> {
        let mut node = Node { node: id.into(), ..Node::default() };
        self.file
            .ask(&mut node)
            .map_err(|source| Error::call(CallKind::Node, format!("asking for node {id}"), source))?;
        Ok(node)
    }

    /// All nodes that the adaptor's configuration names, this one among them.
    ///
    /// # Errors
    /// As [`Adaptor::node`].
    pub fn nodes(&self) -> Result<Vec<Node>, Error> {
        let mut nodes = Vec::new();
        for id in 0..=u8::MAX {
            let node = self.node(id)?;
            if node.is_configured() || node.is_self() {
                nodes.push(node);
            }
        }
        Ok(nodes)
    }

    /// The windows that programs of this guest export, in the order of export.
    ///
    /// # Errors
    /// [`Error::Call`] where the adaptor is gone.
    pub fn windows(&self) -> Result<Vec<Window>, Error> {
        let mut windows = Vec::new();
        for index in 0.. {
            let mut window = Window { index, ..Window::default() };
            match self.file.ask(&mut window) {
                Ok(()) => windows.push(window),
                Err(source) if source.raw_os_error() == Some(libc::ENOENT) => break,
                Err(source) => {
                    return Err(Error::call(CallKind::Window, format!("asking for window {index}"), source));
                }
            }
        }
        Ok(windows)
    }

    /// Exports memory to other nodes until the returned guard is dropped.
    ///
    /// # Errors
    /// [`Error::Call`], which says what was wrong.
    pub fn export(&self, memory: Memory, options: &ExportOptions) -> Result<Export, Error> {
        Export::new(Arc::clone(&self.file), self.info.node, memory, options)
    }

    /// Exports what is behind a BAR of another PCI function of this machine, until the returned guard is dropped. Registers belong
    /// into the I/O space: in the other one, stores may be joined.
    ///
    /// # Errors
    /// [`Error::Call`], which says what was wrong.
    pub fn export_bar(&self, bar: &Bar, options: &ExportOptions) -> Result<BarExport, Error> {
        BarExport::new(Arc::clone(&self.file), self.info.node, bar, options)
    }

    /// Lets the DMA engine reach memory, until the last handle of it goes.
    ///
    /// # Errors
    /// [`Error::Call`], which says what was wrong.
    pub fn register(&self, memory: Memory, rights: LocalRights) -> Result<Registered, Error> {
        Registered::new(Arc::clone(&self.file), self.info.node, memory, rights)
    }

    /// The same for memory of the caller's own, of any size and alignment.
    ///
    /// # Errors
    /// As [`Adaptor::register`].
    ///
    /// # Safety
    /// Until [`Registered::end`] has returned without an error, or the last handle has gone, the memory stays mapped, and
    /// no Rust reference reaches what the engine or another node may write.
    pub unsafe fn register_foreign(
        &self,
        address: *mut u8,
        length: usize,
        rights: LocalRights,
    ) -> Result<Registered, Error> {
        let (file, address) = (Arc::clone(&self.file), address.expose_provenance() as u64);
        // SAFETY: the caller's contract.
        unsafe { Registered::raw(file, self.info.node, address, length as u64, rights, None) }
    }

    /// Makes a queue, which connects this program with the DMA engine.
    ///
    /// # Errors
    /// [`Error::Call`], which says what was wrong; [`Error::Outside`] where the number of entries is not as described.
    pub fn connect(&self, options: &QueueOptions) -> Result<Queue, Error> {
        Queue::new(self, options)
    }

    /// Maps `length` bytes of another node's window, for access and for checks.
    ///
    /// # Errors
    /// [`Error::Call`] where they are not inside one node's window. Whether the node exports
    /// them is not asked: a check tells.
    pub fn map(&self, place: Place, length: u64) -> Result<RemoteWindow, Error> {
        self.file.verify()?;
        RemoteWindow::new(self.as_fd(), &self.info, Arc::clone(&self.session), place, length)
    }

    /// The doorbells of another node, to be rung.
    ///
    /// # Errors
    /// [`Error::Call`] where there is no such node.
    pub fn doorbells(&self, node: u8) -> Result<Doorbells, Error> {
        Doorbells::new(self, node)
    }

    /// Opens doorbells of this node to others until the returned guard is dropped.
    ///
    /// # Errors
    /// [`Error::Call`], which says what was wrong.
    pub fn listen(&self, options: &ListenOptions) -> Result<Listener, Error> {
        self.file.verify()?;
        Listener::new(self.as_fd(), options)
    }

    /// Takes note that any earlier access to the node may have failed, after which checks of it no longer
    /// answer log overflow.
    ///
    /// # Errors
    /// [`Error::Call`] where the adaptor is gone.
    pub fn acknowledge_overflow(&self, node: u8) -> Result<(), Error> {
        let mut argument = abi::OverflowAck { node: node.into(), ..Default::default() };
        self.file.ask(&mut argument).map_err(|source| {
            Error::call(CallKind::OverflowAck, format!("acknowledging node {node}'s log overflow"), source)
        })
    }

    /// The events (`abi::EVENT_*`) since the file was opened or last asked. It does not wait.
    ///
    /// # Errors
    /// [`Error::Call`] where the adaptor is gone.
    pub fn events(&self) -> Result<u32, Error> {
        self.collect(|taken| std::mem::take(&mut taken.events))
    }

    /// How often errors that were not checked were dropped since the file was opened, wrapping: by a reset of the adaptor,
    /// or because a program acknowledged a log overflow. A check answers for earlier accesses only where this number is
    /// after it what it was before them.
    ///
    /// # Errors
    /// [`Error::Call`] where the adaptor is gone.
    pub fn lapses(&self) -> Result<u32, Error> {
        self.collect(|taken| taken.lapses)
    }

    /// How many resets of the adaptor were seen since the file was opened, wrapping. A reset ends queues.
    ///
    /// # Errors
    /// [`Error::Call`] where the adaptor is gone.
    pub fn resets(&self) -> Result<u32, Error> {
        self.collect(|taken| taken.resets)
    }

    /// Takes the driver's events, and answers from what is known then.
    fn collect(&self, answer: impl FnOnce(&mut Taken) -> u32) -> Result<u32, Error> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        #[cfg(test)]
        if taken.silent {
            return Ok(answer(&mut taken));
        }
        let mut events = abi::Events::default();
        self.file
            .ask(&mut events)
            .map_err(|source| Error::call(CallKind::Events, "asking for events", source))?;
        taken.note(events.events);
        if events.events & abi::EVENT_RESET != 0 {
            // Checks are answered in another session from now on. Where the adaptor does not answer they tell.
            drop(self.info());
        }
        Ok(answer(&mut taken))
    }

    /// Waits for an event, at most for `time`. Returns whether there is one.
    ///
    /// # Errors
    /// [`Error::Call`] where waiting is not possible.
    pub fn wait(&self, time: Duration) -> Result<bool, Error> {
        if self.taken.lock().unwrap_or_else(PoisonError::into_inner).events != 0 {
            return Ok(true);
        }
        let mut entry =
            libc::pollfd { fd: self.as_fd().as_raw_fd(), events: libc::POLLIN | libc::POLLPRI, revents: 0 };
        let time = i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the pointer is to one entry.
        match unsafe { libc::poll(&raw mut entry, 1, time) } {
            count if count >= 0 => Ok(count > 0),
            _ => match io::Error::last_os_error() {
                source if source.kind() == io::ErrorKind::Interrupted => Ok(false),
                source => Err(Error::call(CallKind::Events, "waiting for events", source)),
            },
        }
    }

    /// Waits until a link changes, at most for `time`. It takes the events that there are.
    ///
    /// # Errors
    /// As [`Adaptor::events`] and [`Adaptor::wait`].
    pub fn await_link_change(&self, time: Duration) -> Result<(), Error> {
        if time.is_zero() {
            return Ok(());
        }
        // Old events would end the wait at once.
        self.events()?;
        let start = std::time::Instant::now();
        while let Some(left) = time.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
            if self.wait(left)? && self.events()? & abi::EVENT_LINK != 0 {
                break;
            }
        }
        Ok(())
    }

    /// Resets the adaptor. The windows of all programs are lost, and so are logged errors.
    ///
    /// # Errors
    /// [`Error::Call`], above all for users other than root.
    pub fn reset(&self) -> Result<(), Error> {
        reset(self.file.own())
    }

    /// The same for a device file that is not open: an adaptor that is not the one that it was when the module took it can
    /// only be reset.
    ///
    /// # Errors
    /// As [`Adaptor::open`] and [`Adaptor::reset`].
    pub fn reset_device(path: impl AsRef<Path>) -> Result<(), Error> {
        reset(Ok(open(path.as_ref())?.as_fd()))
    }

    /// The open file.
    pub(crate) fn device(&self) -> &Device {
        &self.file
    }
}

fn open(path: &Path) -> Result<File, Error> {
    OpenOptions::new().read(true).write(true).open(path).map_err(|source| {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => Error::NoDevice { path },
            io::ErrorKind::PermissionDenied => Error::NoPermission { path },
            _ => Error::Open { path, source },
        }
    })
}

fn reset(device: io::Result<BorrowedFd<'_>>) -> Result<(), Error> {
    device.and_then(abi::reset).map_err(|source| Error::call(CallKind::Reset, "reset", source))
}

impl AsFd for Adaptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The calls that do not touch memory beyond their argument.
pub(crate) trait Question {}
impl Question for Info {}
impl Question for Node {}
impl Question for Window {}
impl Question for abi::OverflowAck {}
impl Question for abi::Events {}
impl Question for abi::Range {}
impl Question for abi::Inventory {}
impl Question for abi::Failed {}
impl Question for abi::Spaces {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_adaptor_is_told_apart() {
        let error = Adaptor::open("/dev/ardma-none").unwrap_err();
        assert!(error.to_string().starts_with("no /dev/ardma-none: is the module loaded"), "{error}");
        let error = Adaptor::open("/dev/null").unwrap_err();
        assert!(matches!(error, Error::NotAnAdaptor { .. }), "{error}");
    }
}
