//! What passes between a bus and the adaptor, whichever unit answers.

use core::fmt;

use bytes::Bytes;

/// Names a load until its [`Completion`]. The bus chooses it; the adaptor only hands it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LoadTag(pub u64);

/// The answer to a load.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Completion {
    /// Which load it answers.
    pub tag: LoadTag,
    /// The bytes loaded, exactly as many as were asked for.
    pub data: Bytes,
}

impl Completion {
    /// The answer of a bus on which nothing answers: all-ones of `len` bytes.
    pub fn all_ones(tag: LoadTag, len: usize) -> Self {
        Self { tag, data: vec![0xff; len].into() }
    }
}

/// The adaptor has no buffer for a store now. Nothing was changed; the same store has to be handed in
/// again, before anything else of that bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no write buffer is free: hand the store in again later")
    }
}

impl core::error::Error for Busy {}
