//! Stores into the access space and the I/O space.

use super::{Blocks, Target, count};
use crate::adaptor::Instant;
use crate::adaptor::address::{Place, Space};
use crate::adaptor::bus::Busy;
use crate::adaptor::status::{Code, Direction};

impl Target {
    /// A store into the access space, or into the I/O space, where it is a transaction of its own. It is posted: an error
    /// shows in a check only.
    ///
    /// Stores of other than 1, 2, 4 or 8 bytes, or that leave the window of their node, are not executed,
    /// and are logged as [`Code::BadSize`] on the blocks they touch in it; beyond the space there is no
    /// block, and nothing happens.
    ///
    /// # Errors
    /// [`Busy`] where no write buffer is free. Nothing changed: hand the same store in again after a
    /// completion, at latest at [`Target::poll_timeout`]. When the backlog's time is used up, the store is
    /// not executed, and is logged as [`Code::NoResources`].
    pub fn store(&mut self, now: Instant, space: Space, space_offset: u64, data: &[u8]) -> Result<(), Busy> {
        self.bus_is_idle = false;
        let Some(place) = self.geometry.of(space).place(space_offset) else {
            self.backlog.go_on(now);
            count(&mut self.counters.stores);
            return Ok(());
        };
        let valid = self.is_valid(place, data.len());
        if valid && !self.write_buffers.join(place, data) {
            if self.write_buffers.is_free(place.node) {
                self.open_write_buffer(now, place, data);
            } else if self.backlog.wait(now) {
                return Err(Busy);
            } else {
                self.refuse(place, data.len(), Direction::Write, Code::NoResources);
            }
        } else if !valid {
            self.refuse(place, data.len(), Direction::Write, Code::BadSize);
        }
        self.backlog.go_on(now);
        count(&mut self.counters.stores);
        let full = self.write_buffers.close_full(place.node);
        self.requests.extend(full);
        Ok(())
    }

    fn open_write_buffer(&mut self, now: Instant, place: Place, data: &[u8]) {
        self.close(place.node);
        let id = self.start();
        if let Some(number) = self.write_buffers.open(now, id, place, data) {
            let blocks = Blocks::in_window(self.geometry, place, data.len());
            self.tags.start(blocks, Direction::Write, number);
        }
    }
}
