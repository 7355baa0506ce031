//! The MSI-X vectors' event descriptors, by which QEMU (or KVM) is told of interrupts.

use super::descriptors::Descriptor;
use super::message::SetIrqs;
use log::debug;
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use vfio_bindings::bindings::vfio;
use vmm_sys_util::eventfd::EventFd;

/// A vector got or lost its descriptor: for `Adaptor::handle_vector`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorChange {
    /// Which vector.
    pub vector: u16,
    /// Whether it can be signalled now.
    pub connected: bool,
}

/// The function's MSI-X vectors. A new one for each client.
#[derive(Debug)]
pub struct Interrupts {
    vectors: Vec<Option<EventFd>>,
    changes: VecDeque<VectorChange>,
}

impl Interrupts {
    /// `vectors` vectors, none connected.
    pub fn new(vectors: u16) -> Self {
        Self { vectors: (0..vectors).map(|_| None).collect(), changes: VecDeque::new() }
    }

    /// Does what SET_IRQS says. QEMU enables MSI-X by naming vector 0 without a descriptor, then connects each vector when the
    /// guest unmasks it; no descriptors for a range disconnect it.
    ///
    /// # Errors
    /// An errno: EINVAL for vectors that there are not, descriptors that do not fit or are no eventfd, EOPNOTSUPP for what
    /// this device's interrupts do not do.
    pub fn apply(&mut self, set: &SetIrqs, events: Vec<OwnedFd>) -> Result<(), i32> {
        let events: Vec<_> = events.into_iter().map(Descriptor::from).collect();
        let data = set.flags & vfio::VFIO_IRQ_SET_DATA_TYPE_MASK;
        let action = set.flags & vfio::VFIO_IRQ_SET_ACTION_TYPE_MASK;
        let disable = data == vfio::VFIO_IRQ_SET_DATA_NONE && set.count == 0;
        if set.index >= vfio::VFIO_PCI_NUM_IRQS || (disable && set.start != 0) {
            return Err(libc::EINVAL);
        }
        if action != vfio::VFIO_IRQ_SET_ACTION_TRIGGER {
            return Err(libc::EOPNOTSUPP);
        }
        if set.index != vfio::VFIO_PCI_MSIX_IRQ_INDEX {
            // There are none of these, so that there is nothing to disable either.
            return if disable { Ok(()) } else { Err(libc::EINVAL) };
        }
        if disable {
            self.disconnect_all();
            return Ok(());
        }
        let first = u16::try_from(set.start).map_err(|_| libc::EINVAL)?;
        let end = set.start.checked_add(set.count).and_then(|end| u16::try_from(end).ok());
        let end = end.filter(|&end| usize::from(end) <= self.vectors.len()).ok_or(libc::EINVAL)?;
        match data {
            vfio::VFIO_IRQ_SET_DATA_NONE => (first..end).for_each(|vector| self.signal(vector)),
            vfio::VFIO_IRQ_SET_DATA_EVENTFD if events.is_empty() => {
                (first..end).for_each(|vector| self.connect(vector, None));
            }
            vfio::VFIO_IRQ_SET_DATA_EVENTFD => {
                if events.len() != (first..end).len() {
                    return Err(libc::EINVAL);
                }
                let events: Result<Vec<_>, _> = events.into_iter().map(event_from).collect();
                for (vector, event) in (first..end).zip(events.map_err(|_| libc::EINVAL)?) {
                    self.connect(vector, Some(event));
                }
            }
            _ => return Err(libc::EOPNOTSUPP),
        }
        Ok(())
    }

    /// Disconnects every vector, as when the client has gone.
    pub fn disconnect_all(&mut self) {
        let count = u16::try_from(self.vectors.len()).unwrap_or(u16::MAX);
        (0..count).for_each(|vector| self.connect(vector, None));
    }

    fn connect(&mut self, vector: u16, event: Option<EventFd>) {
        let Some(place) = self.vectors.get_mut(usize::from(vector)) else { return };
        let connected = event.is_some();
        if place.is_some() != connected {
            self.changes.push_back(VectorChange { vector, connected });
        }
        *place = event;
    }

    /// Takes out what has changed, in order.
    pub fn poll_change(&mut self) -> Option<VectorChange> {
        self.changes.pop_front()
    }

    /// Raises a vector; does nothing where it is not connected.
    pub fn signal(&self, vector: u16) {
        let event = self.vectors.get(usize::from(vector)).and_then(Option::as_ref);
        // It can only be full, and then the receiver has not yet seen the signals before.
        if let Some(event) = event
            && (!is_writable(event) || event.write(1).is_err())
        {
            debug!("vector {vector} was not signalled: its event descriptor is full");
        }
    }
}

/// Whether writing does not block, even if whoever sent the descriptor has made it blocking again.
fn is_writable(event: &EventFd) -> bool {
    let mut poll = libc::pollfd { fd: event.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one valid `pollfd`, which outlives the call.
    let ready = unsafe { libc::poll(&mut poll, 1, 0) };
    ready > 0 && poll.revents & libc::POLLOUT != 0
}

/// Takes over an event descriptor. Writing to it must never block: QEMU's do not, others are made so.
fn event_from(descriptor: Descriptor) -> io::Result<EventFd> {
    let link = fs::read_link(format!("/proc/self/fd/{}", descriptor.number()))?;
    if link.as_os_str() != "anon_inode:[eventfd]" {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let descriptor = descriptor.take().ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: F_GETFL takes no argument and touches no memory of ours.
    let flags = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    if flags & libc::O_NONBLOCK == 0 {
        // SAFETY: F_SETFL takes a number and touches no memory of ours.
        let result = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: the descriptor is an eventfd and its ownership goes over.
    Ok(unsafe { EventFd::from_raw_fd(descriptor.into_raw_fd()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTFD: u32 = vfio::VFIO_IRQ_SET_DATA_EVENTFD | vfio::VFIO_IRQ_SET_ACTION_TRIGGER;
    const NONE: u32 = vfio::VFIO_IRQ_SET_DATA_NONE | vfio::VFIO_IRQ_SET_ACTION_TRIGGER;

    fn set(flags: u32, index: u32, start: u32, count: u32) -> SetIrqs {
        SetIrqs { argsz: 20, flags, index, start, count }
    }

    fn event() -> (EventFd, OwnedFd) {
        let event = EventFd::new(0).unwrap();
        // SAFETY: the clone is owned by nobody else.
        let other = unsafe { OwnedFd::from_raw_fd(event.try_clone().unwrap().into_raw_fd()) };
        (event, other)
    }

    fn changes(interrupts: &mut Interrupts) -> Vec<(u16, bool)> {
        core::iter::from_fn(|| interrupts.poll_change()).map(|c| (c.vector, c.connected)).collect()
    }

    #[test]
    fn vectors_come_and_go_as_qemu_asks() {
        let mut interrupts = Interrupts::new(4);
        // Enabled without vectors.
        assert_eq!(interrupts.apply(&set(EVENTFD, 2, 0, 1), vec![]), Ok(()));
        assert_eq!(changes(&mut interrupts), []);
        let ((a, a_sent), (b, b_sent)) = (event(), event());
        assert_eq!(interrupts.apply(&set(EVENTFD, 2, 1, 2), vec![a_sent, b_sent]), Ok(()));
        assert_eq!(changes(&mut interrupts), [(1, true), (2, true)]);
        interrupts.signal(0);
        interrupts.signal(1);
        interrupts.signal(1);
        interrupts.signal(999);
        assert_eq!(a.read().unwrap(), 2);
        assert_eq!(b.read().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // Triggered by the client.
        assert_eq!(interrupts.apply(&set(NONE, 2, 2, 1), vec![]), Ok(()));
        assert_eq!(b.read().unwrap(), 1);
        assert_eq!(interrupts.apply(&set(EVENTFD, 2, 1, 1), vec![]), Ok(()));
        assert_eq!(changes(&mut interrupts), [(1, false)]);
        assert_eq!(interrupts.apply(&set(NONE, 2, 0, 0), vec![]), Ok(()));
        assert_eq!(changes(&mut interrupts), [(2, false)]);
    }

    #[test]
    fn a_full_eventfd_does_not_block() {
        let mut interrupts = Interrupts::new(1);
        let (a, sent) = event();
        assert_eq!(interrupts.apply(&set(EVENTFD, 2, 0, 1), vec![sent]), Ok(()));
        a.write(u64::MAX - 1).unwrap();
        interrupts.signal(0);
        assert_eq!(a.read().unwrap(), u64::MAX - 1);
    }

    #[test]
    fn nor_does_one_that_was_made_blocking_again() {
        let mut interrupts = Interrupts::new(1);
        let (a, sent) = event();
        assert_eq!(interrupts.apply(&set(EVENTFD, 2, 0, 1), vec![sent]), Ok(()));
        a.write(u64::MAX - 1).unwrap();
        // SAFETY: F_SETFL takes a number and touches no memory of ours.
        assert_eq!(unsafe { libc::fcntl(a.as_raw_fd(), libc::F_SETFL, 0) }, 0);
        let (sender, done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            interrupts.signal(0);
            let _ = sender.send(());
        });
        let in_time = done.recv_timeout(std::time::Duration::from_secs(5));
        // Lets the thread go where it was held.
        assert_eq!(a.read().unwrap(), u64::MAX - 1);
        assert_eq!(in_time, Ok(()));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut interrupts = Interrupts::new(4);
        let apply = |interrupts: &mut Interrupts, set, events| interrupts.apply(&set, events);
        assert_eq!(apply(&mut interrupts, set(EVENTFD, 2, 4, 1), vec![]), Err(libc::EINVAL));
        assert_eq!(apply(&mut interrupts, set(EVENTFD, 2, u32::MAX, 1), vec![]), Err(libc::EINVAL));
        assert_eq!(apply(&mut interrupts, set(EVENTFD, 2, 1, u32::MAX), vec![]), Err(libc::EINVAL));
        assert_eq!(apply(&mut interrupts, set(EVENTFD, 2, 0, 2), vec![event().1]), Err(libc::EINVAL));
        assert_eq!(apply(&mut interrupts, set(EVENTFD, 0, 0, 1), vec![event().1]), Err(libc::EINVAL));
        assert_eq!(apply(&mut interrupts, set(EVENTFD, 9, 0, 0), vec![]), Err(libc::EINVAL));
        let unmask = vfio::VFIO_IRQ_SET_DATA_NONE | vfio::VFIO_IRQ_SET_ACTION_UNMASK;
        assert_eq!(apply(&mut interrupts, set(unmask, 2, 0, 1), vec![]), Err(libc::EOPNOTSUPP));
        let bools = vfio::VFIO_IRQ_SET_DATA_BOOL | vfio::VFIO_IRQ_SET_ACTION_TRIGGER;
        assert_eq!(apply(&mut interrupts, set(bools, 2, 0, 1), vec![]), Err(libc::EOPNOTSUPP));
        // INTx, which there is none of, is disabled without an error.
        assert_eq!(apply(&mut interrupts, set(NONE, 0, 0, 0), vec![]), Ok(()));
        let not_an_event = fs::File::open("/dev/null").unwrap().into();
        assert_eq!(apply(&mut interrupts, set(EVENTFD, 2, 0, 1), vec![not_an_event]), Err(libc::EINVAL));
        assert_eq!(changes(&mut interrupts), []);
    }
}
