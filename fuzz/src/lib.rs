//! What the fuzz targets share: packets made from fields, a count of the memory that is held, and the stage on which a
//! hostile peer meets a whole adaptor.

pub mod held;
pub mod hostile;
pub mod packets;
pub mod stage;
