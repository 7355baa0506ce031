//! Routing between links, without input or output.

mod paths;

pub use paths::{PathEvent, Paths};
