//! What the fuzz targets share: packets made from fields, a count of the memory that is held, and the stages on which
//! hostile peers meet an adaptor, a router, or a process's links.

pub mod caller;
pub mod credentials;
pub mod doorstep;
pub mod held;
pub mod hostile;
pub mod junction;
pub mod packets;
pub mod stage;
pub mod ways;
