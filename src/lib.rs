//! A virtual PCI RDMA network adaptor for QEMU guests.
//!
//! A guest reads and writes the memory of another guest with plain loads and
//! stores to the adaptor's *access space*; a load from the *assurance space*, at
//! the same offset, says from local knowledge whether these were really done.

pub mod adaptor;
mod allowance;
pub mod certs;
pub mod config;
mod descriptors;
pub mod event_loop;
pub mod hosted;
pub mod logging;
mod mapped;
pub mod net;
pub mod node;
pub mod poller;
mod reaper;
pub mod router;
pub mod router_process;
pub mod vfio;
