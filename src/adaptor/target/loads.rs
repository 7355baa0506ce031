//! Loads from the access space and the I/O space.

use super::{Blocks, Target, count};
use crate::adaptor::Instant;
use crate::adaptor::address::Space;
use crate::adaptor::bus::{Completion, LoadTag};
use crate::adaptor::status::{Code, Direction};
use crate::adaptor::transaction::{Request, RequestKind};

impl Target {
    /// A load from the access space, or from the I/O space. The answer comes from [`Target::poll_completion`]: the data, or
    /// all-ones of `len` bytes where the load failed, with the reason in the log.
    ///
    /// The lengths are those of [`Target::store`]; with any other the load is not executed. The caller
    /// bounds `len`.
    pub fn load(&mut self, now: Instant, tag: LoadTag, space: Space, space_offset: u64, len: usize) {
        self.bus_is_idle = false;
        self.backlog.go_on(now);
        count(&mut self.counters.loads);
        let failed = Completion::all_ones(tag, len);
        let Some(place) = self.geometry.of(space).place(space_offset) else {
            self.completions.push_back(failed);
            return;
        };
        // A read does not pass the writes before it.
        self.close(place.node);
        if !self.is_valid(place, len) {
            self.refuse(place, len, Direction::Read, Code::BadSize);
            self.completions.push_back(failed);
            return;
        }
        let id = self.start();
        let Some(number) = self.fetch_buffers.start(id, tag, place, len) else {
            self.fail(id, place, len, Direction::Read, Code::NoResources);
            self.completions.push_back(failed);
            return;
        };
        self.tags.start(Blocks::in_window(self.geometry, place, len), Direction::Read, number);
        let kind = RequestKind::Read { len: u32::try_from(len).unwrap_or(u32::MAX) };
        self.requests.push_back(Request { id, place, kind, posted: now });
    }
}
