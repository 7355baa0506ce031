//! The PCI function as the guest's software sees it: configuration space, the register
//! table of BAR0, and MSI-X. `docs/device.md` is its specification.
//!
//! Invariant: whatever is read or written here, at any offset and of any length, is
//! answered; a guest's mistake never becomes an error of the adaptor.

mod bars;
pub mod config_space;
pub mod msix;
mod region;
pub mod registers;

pub use bars::Bars;
pub use config_space::{ConfigAction, ConfigSpace};
pub use msix::{Msix, VECTORS};
pub use region::{Meaning, Region};
pub use registers::{NodeEntry, Register, RegisterWrite};
