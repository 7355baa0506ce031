//! x
pub mod window;
