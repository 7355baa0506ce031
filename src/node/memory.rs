//! Executes the core's memory operations, each where it belongs. What needs pages that are not there goes back to the core, and its pages
//! to the pager.
//!
//! Invariant: nothing here waits for pages; and after everything that takes time the core is asked again before the first byte.

use super::bus::Bus;
use super::{Local, Node};
use crate::adaptor::Instant;
use crate::adaptor::address::NodeId;
use crate::adaptor::memory::{
    Home, Lent, MemoryFault, MemoryOperation, MemoryResult, OperationId, Segment, Source,
};
use crate::event_loop::Clock;
use crate::mapped::pager::{Group, Pager, Place, Served, Waiter};
use crate::mapped::{Attempt, Begin};

/// Memory operations executed in a row. A command with a long list has thousands.
const OPERATIONS_AT_ONCE: usize = 256;
/// Bytes that they move, after which no more are begun.
const BYTES_AT_ONCE: usize = 1 << 20;

/// Rings that are looked at without a doorbell in one turn.
const LOOKS_A_TURN: usize = 256;

/// Whose memory an operation on bus `number` is about.
const fn group(number: usize, home: Home) -> Group {
    match home {
        Home::Guest | Home::Bus => Group::Guest(number),
        Home::Hosted(device) => Group::Device(device),
    }
}

/// What waits where an operation of bus `number` does. One that comes again may have been resolved to other memory.
fn waiter(number: usize, operation: &MemoryOperation) -> Waiter {
    let lent = match operation {
        MemoryOperation::Transfer { from, .. } => &from.source.segments[..],
        _ => &[],
    };
    Waiter::Operation(number, operation.id(), Place::of(&[operation.segments(), lent]))
}

/// Gives the bytes that the next packet of bus `number` for a node carries.
pub(super) fn load(pager: &mut Pager, bus: &Bus, number: usize, to: NodeId, source: &Source) -> MemoryResult {
    let (waiter, group) =
        (|| Waiter::Packet(number, to, Place::of(&[&source.segments])), group(number, source.home));
    // What is sent changes nothing here, whenever it was read.
    let served = pager.serves() && pager.has_served(waiter(), group);
    match bus.load(source, &Begin { served, lender_served: false, allowed: &|| true }) {
        Attempt::Done(result) => {
            if served {
                pager.forget(waiter());
            }
            result
        }
        Attempt::Absent(pages) | Attempt::LenderAbsent(pages) => {
            pager.bring_in(group, waiter(), pages)?;
            Err(MemoryFault::Absent)
        }
        Attempt::Late => Err(MemoryFault::Refused),
    }
}

impl Local {
    /// Attempts an operation where it belongs, or begins one on the guest's bus; `None` then.
    fn attempt(
        &mut self,
        clock: Clock,
        id: OperationId,
        operation: &MemoryOperation,
        served: bool,
    ) -> Option<Attempt> {
        let Self { adaptor, bus, devices, .. } = self;
        let begin = Begin { served, lender_served: false, allowed: &|| adaptor.may_begin(clock.now(), id) };
        match operation.home() {
            Home::Hosted(device) => Some(devices.execute(device, operation, &begin)),
            Home::Guest | Home::Bus => bus.execute(operation, &begin),
        }
    }

    /// Attempts a transfer of memory that is another bus's: into memory at once, else by way of bytes.
    fn transfer(
        &mut self,
        clock: Clock,
        operation: &MemoryOperation,
        from: &Lent,
        lender: &Self,
        (served, lender_served): (bool, bool),
    ) -> Option<Attempt> {
        let (id, home, segments) = (operation.id(), operation.home(), operation.segments());
        if !lender.adaptor.lends(from) {
            return Some(MemoryFault::Lender.into());
        }
        if home == Home::Guest {
            let allowed = || self.adaptor.may_begin(clock.now(), id);
            let begin = Begin { served, lender_served, allowed: &allowed };
            return Some(self.bus.copy_from(segments, &lender.bus, &from.source, &begin));
        }
        match lender
            .bus
            .load(&from.source, &Begin { served: lender_served, lender_served, allowed: &|| true })
        {
            Attempt::Done(Ok(data)) => {
                let segments: Vec<Segment> = segments.to_vec();
                let write = MemoryOperation::Write { id, home, segments, data };
                // What was read may have taken its time.
                if self.adaptor.may_begin(clock.now(), id) {
                    self.attempt(clock, id, &write, served)
                } else {
                    Some(Attempt::Late)
                }
            }
            Attempt::Absent(pages) | Attempt::LenderAbsent(pages) => Some(Attempt::LenderAbsent(pages)),
            Attempt::Done(Err(_)) | Attempt::Late => Some(MemoryFault::Lender.into()),
        }
    }
}

impl Node {
    /// Executes an operation of bus `number`, or begins what has to come before.
    fn perform(&mut self, now: Instant, number: usize, operation: MemoryOperation) {
        let (id, home) = (operation.id(), operation.home());
        let own = group(number, home);
        let mut lent = own;
        let serves = self.pager.serves();
        let served = serves && self.pager.has_served(waiter(number, &operation), own);
        let attempt = match &operation {
            MemoryOperation::Transfer { from, .. } => {
                let lender = self.paths.own().number(from.lender).unwrap_or(number);
                lent = group(lender, from.source.home);
                let lent_served = serves && self.pager.has_served(waiter(number, &operation), lent);
                let served = (served, lent_served);
                match self.locals.get_disjoint_mut([number, lender]) {
                    Ok([local, lender]) => local.transfer(self.clock, &operation, from, lender, served),
                    Err(_) => Some(MemoryFault::Lender.into()),
                }
            }
            operation => {
                let Some(local) = self.locals.get_mut(number) else { return };
                local.attempt(self.clock, id, operation, served)
            }
        };
        if let (MemoryOperation::Descriptor { .. }, Some(local)) = (&operation, self.locals.get_mut(number)) {
            local.adaptor.handle_memory_view(local.bus.memory_view());
        }
        let waits = match attempt {
            None => return,
            Some(Attempt::Absent(pages)) => self.pager.bring_in(own, waiter(number, &operation), pages),
            Some(Attempt::LenderAbsent(pages)) => {
                self.pager.bring_in(lent, waiter(number, &operation), pages)
            }
            Some(Attempt::Late) => {
                // It waits for another lease, and its pages are there.
                if let Some(local) = self.locals.get_mut(number) {
                    local.adaptor.handle_page_fault(now, operation);
                    local.adaptor.handle_pages(now, id, Ok(()));
                }
                return;
            }
            Some(Attempt::Done(result)) => {
                if serves {
                    self.pager.forget(waiter(number, &operation));
                }
                if let Some(local) = self.locals.get_mut(number) {
                    local.adaptor.handle_memory_done(now, id, result);
                }
                return;
            }
        };
        let Some(local) = self.locals.get_mut(number) else { return };
        match waits {
            Ok(()) => local.adaptor.handle_page_fault(now, operation),
            Err(fault) => local.adaptor.handle_memory_done(now, id, Err(fault)),
        }
    }

    /// Executes the core's operations for a bus, as many as others may be kept waiting for. Returns whether there were any, or any ended.
    pub(super) fn execute(&mut self, number: usize) -> bool {
        let mut progress = false;
        let mut bytes = 0usize;
        while let Some(local) = self.locals.get_mut(number)
            && let Some((id, result)) = local.bus.poll_done()
        {
            progress = true;
            local.adaptor.handle_memory_done(self.clock.now(), id, result);
        }
        for _ in 0..OPERATIONS_AT_ONCE {
            let Some(local) = self.locals.get_mut(number) else { return progress };
            if local.budget.is_spent() {
                break;
            }
            // An operation is executed under a lease that may run out while this turn lasts.
            let now = self.clock.now();
            local.adaptor.handle_bus_ready(local.bus.takes_bus_operations());
            let Some(operation) = local.adaptor.poll_memory(now) else { return progress };
            progress = true;
            local.budget.spend(operation.segments());
            if let MemoryOperation::Transfer { from, .. } = &operation {
                local.budget.spend(&from.source.segments);
            }
            bytes =
                operation.segments().iter().fold(bytes, |bytes, segment| bytes.saturating_add(segment.len));
            self.perform(now, number, operation);
            if bytes >= BYTES_AT_ONCE {
                break;
            }
        }
        progress
    }

    /// Looks at the rings that the core looks at without a doorbell. What is found in one comes out as operations.
    pub(super) fn probe(&mut self, now: Instant, number: usize) {
        for _ in 0..LOOKS_A_TURN {
            let operation = self.locals.get_mut(number).and_then(|local| local.adaptor.poll_probe(now));
            let Some(operation) = operation else { return };
            self.perform(now, number, operation);
        }
    }

    /// Tells the core which pages are there now. Returns whether any are.
    pub(super) fn serve_faults(&mut self, now: Instant) -> bool {
        let mut progress = false;
        while let Some(Served { waiter, group, result }) = self.pager.poll() {
            progress = true;
            let (Waiter::Operation(number, ..) | Waiter::Packet(number, ..)) = waiter;
            let Some(Local { adaptor, devices, .. }) = self.locals.get_mut(number) else { continue };
            if let (Group::Device(device), Err(_)) = (group, result) {
                devices.note_failure(device);
            }
            // What another bus lent can't be had.
            let is_lent = matches!(group, Group::Guest(of) if of != number);
            let result = if is_lent { result.map_err(|_| MemoryFault::Lender) } else { result };
            match waiter {
                Waiter::Operation(_, id, _) => adaptor.handle_pages(now, id, result),
                Waiter::Packet(_, to, _) => adaptor.handle_source_pages(to, result),
            }
        }
        progress
    }
}
