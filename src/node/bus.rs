//! The vfio-user socket, and the guest that is attached to it, if one is. A node that only hosts devices has no socket.
//!
//! There is one guest at a time, but a node outlives its guests: each begins and ends with a reset of the core, and
//! takes its memory and its interrupts with it.

use core::time::Duration;
use std::io;
use std::path::Path;
use std::rc::Rc;

use super::StartError;
use super::guest::Guest;
use crate::adaptor::address::Geometry;
use crate::adaptor::memory::{MemoryFault, MemoryOperation, MemoryResult, OperationId, Segment, Source};
use crate::adaptor::{Adaptor, Completion, Instant, MemoryView};
use crate::descriptors;
use crate::event_loop::Turn;
use crate::mapped::{Attempt, Begin};
use crate::poller::{Interest, Poller, Report, Token};
use crate::reaper;
use crate::vfio::{Connection, DeviceShape, Listener};

/// How long to leave a new guest waiting after the process ran out of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// See the module.
pub struct Bus {
    poller: Rc<Poller>,
    /// `None` where there never is a guest.
    listener: Option<Listener>,
    token: Token,
    paused_until: Option<Instant>,
    /// The last guest could not be let in for lack of something, which was told.
    is_failing: bool,
    shape: DeviceShape,
    /// How lines about it begin.
    label: Rc<str>,
    guest: Option<Guest>,
    next_token: u64,
}

impl Bus {
    /// Listens at `path`, if there is to be a guest. Tokens from `token` on are the bus's own; lines in the log begin with `label`.
    ///
    /// # Errors
    /// Where the path is not to be had.
    pub fn new(
        path: Option<&Path>,
        geometry: Geometry,
        poller: &Rc<Poller>,
        token: Token,
        label: &Rc<str>,
    ) -> Result<Self, StartError> {
        let listener = path.map(Listener::bind).transpose()?;
        if let Some(listener) = &listener {
            poller.add(listener, token, Interest::READ)?;
        }
        Ok(Self {
            poller: Rc::clone(poller),
            listener,
            token,
            paused_until: None,
            is_failing: false,
            shape: super::guest::shape(geometry),
            label: Rc::clone(label),
            guest: None,
            next_token: token.0.saturating_add(1),
        })
    }

    /// Does what a report makes possible. A report about a guest that is gone is ignored.
    pub fn handle_report(&mut self, now: Instant, adaptor: &mut Adaptor, report: Report) {
        if report.token == self.token {
            self.accept(now, adaptor);
        } else if let Some(guest) = self.guest.as_mut().filter(|guest| guest.token() == report.token)
            && let Err(why) = guest.handle_report(report)
        {
            self.detach(now, adaptor, &why);
        }
    }

    /// When [`Bus::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Ends a pause when it is time.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.paused_until.is_some_and(|end| end <= now) {
            self.set_paused(None);
        }
    }

    /// Hands the guest's requests to the core, as many as may be handed in now.
    pub fn feed(&mut self, now: Instant, adaptor: &mut Adaptor) -> Turn {
        let Some(guest) = &mut self.guest else { return Turn::Idle };
        guest.feed(now, adaptor).unwrap_or_else(|why| {
            self.detach(now, adaptor, &why);
            Turn::Done
        })
    }

    /// Whether an operation on the guest's bus can be begun; without a guest, it fails at once.
    pub fn takes_bus_operations(&self) -> bool {
        self.guest.as_ref().is_none_or(Guest::takes_bus_operations)
    }

    /// What is known of the guest's memory.
    pub fn memory_view(&self) -> MemoryView {
        self.guest.as_ref().map_or(MemoryView::Unknown, Guest::memory_view)
    }

    /// Executes an operation on the guest's memory, or begins one on its bus, whose end comes from [`Self::poll_done`]; `None` then.
    pub fn execute(&mut self, operation: &MemoryOperation, begin: &Begin<'_>) -> Option<Attempt> {
        match &mut self.guest {
            Some(guest) => guest.execute(operation, begin),
            None => Some(MemoryFault::Unmapped.into()),
        }
    }

    /// Copies bytes of the guest's memory out; without a guest there are none.
    pub fn load(&self, source: &Source, begin: &Begin<'_>) -> Attempt {
        let guest = self.guest.as_ref();
        guest.map_or(MemoryFault::Unmapped.into(), |guest| guest.load(source, begin))
    }

    /// Copies memory of the other bus's guest, whole or not at all, into segments of this one's.
    pub fn copy_from(
        &self,
        segments: &[Segment],
        other: &Self,
        source: &Source,
        begin: &Begin<'_>,
    ) -> Attempt {
        match (&self.guest, &other.guest) {
            (None, _) => MemoryFault::Unmapped.into(),
            (Some(_), None) => MemoryFault::Lender.into(),
            (Some(guest), Some(other)) => guest.copy_from(segments, other, source, begin),
        }
    }

    /// An operation on the guest's bus that has ended.
    pub fn poll_done(&mut self) -> Option<(OperationId, MemoryResult)> {
        self.guest.as_mut()?.poll_done()
    }

    /// Answers the guest's load. A load of a guest that is gone needs no answer.
    pub fn complete(&mut self, completion: &Completion) {
        if let Some(guest) = &mut self.guest {
            guest.complete(completion);
        }
    }

    /// Raises an interrupt.
    pub fn signal(&self, vector: u16) {
        if let Some(guest) = &self.guest {
            guest.signal(vector);
        }
    }

    /// Sends the answers. Returns whether there is more to be done for that.
    pub fn flush(&mut self, now: Instant, adaptor: &mut Adaptor) -> bool {
        let Some(guest) = &mut self.guest else { return false };
        guest.flush(&self.poller).unwrap_or_else(|why| {
            self.detach(now, adaptor, &why);
            true
        })
    }

    fn accept(&mut self, now: Instant, adaptor: &mut Adaptor) {
        // A guest that is started again may be back before its end was noticed.
        if self.guest.as_ref().is_some_and(Guest::is_gone) {
            self.detach(now, adaptor, "it is gone");
        }
        while let Some(listener) = &mut self.listener {
            let accepted = match listener.accept(self.guest.is_some(), &self.shape) {
                Ok(None) => return,
                Ok(Some(connection)) => self.attach(now, adaptor, connection),
                Err(error) => Err(error),
            };
            match accepted {
                Ok(()) => self.is_failing = false,
                Err(error) => {
                    if !core::mem::replace(&mut self.is_failing, true) {
                        let advice = descriptors::Advice(descriptors::limit());
                        let label = &self.label;
                        match error.raw_os_error() {
                            Some(libc::EMFILE) => {
                                log::warn!("{label}can't let a guest attach: {error}; {advice}")
                            }
                            _ => log::warn!("{label}can't let a guest attach: {error}"),
                        }
                    }
                    self.set_paused(Some(now.after(PAUSE)));
                    return;
                }
            }
        }
    }

    fn attach(&mut self, now: Instant, adaptor: &mut Adaptor, connection: Connection) -> io::Result<()> {
        if let Err(shortage) = descriptors::room_for_a_guest() {
            // It sees that the connection ends, and can try again.
            log::error!("{}guest turned away: {shortage}", self.label);
            connection.close();
            reaper::release(connection);
            return Ok(());
        }
        let token = Token(self.next_token);
        self.next_token = self.next_token.saturating_add(1);
        let guest = Guest::new(connection, &self.shape, &self.poller, token, &self.label)?;
        match guest.process() {
            Some(process) => log::info!("{}guest attached (process {process})", self.label),
            None => log::info!("{}guest attached", self.label),
        }
        self.guest = Some(guest);
        adaptor.handle_reset(now);
        Ok(())
    }

    fn detach(&mut self, now: Instant, adaptor: &mut Adaptor, why: &str) {
        if let Some(guest) = self.guest.take() {
            log::info!("{}guest detached: {why}", self.label);
            let ended = guest.end(adaptor, &self.poller);
            adaptor.handle_reset(now);
            for (operation, result) in ended {
                adaptor.handle_memory_done(now, operation, result);
            }
        }
    }

    fn set_paused(&mut self, until: Option<Instant>) {
        self.paused_until = until;
        let interest = if until.is_some() { Interest::NONE } else { Interest::READ };
        if let Some(listener) = &self.listener
            && let Err(error) = self.poller.modify(listener, self.token, interest)
        {
            log::error!("{}can't wait for guests: {error}", self.label);
        }
    }
}
