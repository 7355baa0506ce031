//! Copies from mapping to mapping without a buffer in between.
//!
//! Invariant: what is copied so is there until the copy has ended, and is not changed by it.

use super::Piece;
use super::ordered::fill_in_order;
use core::slice::Iter;
use vm_memory::VolatileSlice;

/// Copies the bytes of `from`, one piece after the other, into `to`, which is as long; in the order in which [`Piece::store`] would. False
/// where it was not done because it needs a buffer: pages may be gone in the midst of it, or both may be the same bytes.
pub fn copy(to: &[Piece<'_>], from: &[Piece<'_>]) -> bool {
    let files = |pieces: &[Piece<'_>]| {
        let mut files: Vec<_> = pieces.iter().map(|piece| piece.mapping.file).collect();
        files.dedup();
        files
    };
    let from_files = files(from);
    let are_apart = files(to).iter().all(|file| !from_files.contains(file));
    let is_direct = are_apart && to.iter().chain(from).all(|piece| piece.mapping.steady);
    if is_direct {
        let mut source = Source { pieces: from.iter(), rest: None };
        to.iter().for_each(|piece| fill_in_order(&piece.slice, |place| source.copy_to(place)));
    }
    is_direct
}

/// The bytes that were not copied yet.
struct Source<'a> {
    pieces: Iter<'a, Piece<'a>>,
    /// Of the last piece that was taken.
    rest: Option<VolatileSlice<'a>>,
}

impl Source<'_> {
    /// Copies as many bytes as `place` has.
    fn copy_to(&mut self, mut place: VolatileSlice<'_>) {
        while !place.is_empty() {
            let Some(rest) = self.rest.take().or_else(|| self.pieces.next().map(|piece| piece.slice)) else {
                return;
            };
            let len = rest.len().min(place.len());
            let (Ok((now, later)), Ok((start, behind))) = (rest.split_at(len), place.split_at(len)) else {
                return;
            };
            now.copy_to_volatile_slice(start);
            self.rest = (!later.is_empty()).then_some(later);
            place = behind;
        }
    }
}
