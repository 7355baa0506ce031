//! An operation of a queue between its entry and its completion: what of it was handed out, and how that ended.
//!
//! Invariant: it is given out in pieces of at most so many bytes, in order; after its first error no more of it is
//! given out, and it has ended when no piece is under way.

use super::entry::{Action, Completion, Malformed, Submission};
use crate::adaptor::address::NodeSet;
use crate::adaptor::mesh::limits::LENT_BYTES;
use crate::adaptor::mesh::packet::MAX_PAYLOAD;
use crate::adaptor::status::{Code, StatusWord};

/// The most bytes of a piece that is to go over a link.
pub const MAX_PIECE: u64 = MAX_PAYLOAD as u64;

/// What is to be handed out next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// So many bytes from this one of the operation on.
    Data { at: u64, len: u64 },
    /// The one transaction of an atomic operation.
    Atomic,
    /// The message, after the data.
    Message,
    /// Something, but not before what is under way has ended.
    Later,
    /// Nothing more.
    Nothing,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Operation {
    pub(super) submission: Result<Submission, Malformed>,
    /// The most bytes of a piece.
    longest: u64,
    /// Bytes that were handed out.
    next: u64,
    /// What comes after the data, or instead of it, was handed out.
    is_told: bool,
    /// Pieces under way.
    under_way: u32,
    /// Bytes that were moved, before the first error.
    done: u64,
    failure: Option<Code>,
    former: u64,
}

impl Operation {
    /// `beside` are the nodes of the same process.
    pub(super) fn new(submission: Result<Submission, Malformed>, beside: NodeSet) -> Self {
        let failure = submission.is_err().then_some(Code::BadRequest);
        let is_lent = |submission: &Submission| {
            matches!(submission.action, Action::Write | Action::Message { .. })
                && beside.contains(submission.node)
        };
        let longest = if submission.as_ref().is_ok_and(is_lent) { LENT_BYTES } else { MAX_PIECE };
        Self { submission, longest, next: 0, is_told: false, under_way: 0, done: 0, failure, former: 0 }
    }

    /// Whether anything of it was handed out.
    pub(super) const fn is_started(&self) -> bool {
        self.next > 0 || self.is_told
    }

    pub(super) const fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// What to hand out next; to be noted by [`Self::hand_out`].
    pub(super) fn piece(&self) -> Piece {
        let Ok(submission) = self.submission else { return Piece::Nothing };
        if self.has_failed() {
            return Piece::Nothing;
        }
        let left = submission.len.saturating_sub(self.next);
        match submission.action {
            Action::Fence => Piece::Nothing,
            Action::FetchAdd(_) | Action::CompareSwap { .. } if self.is_told => Piece::Nothing,
            Action::FetchAdd(_) | Action::CompareSwap { .. } => Piece::Atomic,
            Action::Write | Action::Read | Action::Message { .. } if left > 0 => {
                Piece::Data { at: self.next, len: left.min(self.longest) }
            }
            Action::Message { .. } if self.is_told => Piece::Nothing,
            Action::Message { .. } if self.under_way > 0 => Piece::Later,
            Action::Message { .. } => Piece::Message,
            Action::Write | Action::Read => Piece::Nothing,
        }
    }

    /// A piece is under way.
    pub(super) fn hand_out(&mut self, piece: Piece) {
        match piece {
            Piece::Data { at, len } => self.next = at.saturating_add(len),
            Piece::Atomic | Piece::Message => self.is_told = true,
            Piece::Later | Piece::Nothing => return,
        }
        self.under_way = self.under_way.saturating_add(1);
    }

    /// A piece that moved `bytes` ended, the oldest under way. Of an atomic operation, `former` is what was there before.
    pub(super) fn end_piece(&mut self, code: Code, bytes: u64, former: u64) {
        self.under_way = self.under_way.saturating_sub(1);
        if !code.is_ok() {
            self.fail(code);
        } else if !self.has_failed() {
            self.done = self.done.saturating_add(bytes);
            self.former = former;
        }
    }

    /// It is not to go on; what is under way goes on all the same.
    pub(super) fn fail(&mut self, code: Code) {
        self.failure.get_or_insert(code);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.under_way == 0 && self.piece() == Piece::Nothing
    }

    /// What its completion says.
    pub(super) fn completion(&self) -> Completion {
        let code = self.failure.unwrap_or(Code::Ok);
        let (cookie, word) = match &self.submission {
            Ok(Submission { action: Action::Write | Action::Message { .. }, cookie, .. }) => {
                (*cookie, StatusWord { read: Code::Ok, write: code })
            }
            Ok(Submission { action: Action::Read, cookie, .. }) => {
                (*cookie, StatusWord { read: code, write: Code::Ok })
            }
            Ok(Submission { cookie, .. }) | Err(Malformed { cookie }) => {
                (*cookie, StatusWord { read: code, write: code })
            }
        };
        Completion { status: word.bits(), cookie, done: self.done, former: self.former }
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::Local;
    use super::*;
    use crate::adaptor::address::NodeId;

    fn operation(action: Action, len: u64) -> Operation {
        let (node, local) = (NodeId(2), Local::None);
        Operation::new(
            Ok(Submission { action, fence: false, node, cookie: 1, remote: 0, len, local }),
            NodeSet::EMPTY,
        )
    }

    fn hand_out_all(operation: &mut Operation) -> Vec<Piece> {
        let mut pieces = Vec::new();
        loop {
            let piece = operation.piece();
            if matches!(piece, Piece::Nothing | Piece::Later) {
                return pieces;
            }
            operation.hand_out(piece);
            pieces.push(piece);
        }
    }

    #[test]
    fn a_long_one_is_cut_and_its_bytes_add_up() {
        let mut write = operation(Action::Write, 2 * MAX_PIECE + 1);
        let data = |at, len| Piece::Data { at, len };
        let expected = [data(0, MAX_PIECE), data(MAX_PIECE, MAX_PIECE), data(2 * MAX_PIECE, 1)];
        assert_eq!(hand_out_all(&mut write), expected);
        for len in [MAX_PIECE, MAX_PIECE, 1] {
            assert!(!write.has_ended());
            write.end_piece(Code::Ok, len, 0);
        }
        assert!(write.has_ended());
        assert_eq!((write.completion().done, write.completion().status), (2 * MAX_PIECE + 1, 0));
    }

    #[test]
    fn what_is_lent_to_a_bus_beside_goes_in_longer_pieces_and_what_comes_from_there_does_not() {
        let longest = |action, node| {
            let submission = Submission {
                action,
                fence: false,
                node,
                cookie: 1,
                remote: 0,
                len: 1 << 20,
                local: Local::None,
            };
            let operation = Operation::new(Ok(submission), [NodeId(2)].into_iter().collect());
            operation.piece()
        };
        let message = Action::Message { doorbell: 1, data: 2 };
        for (action, node, len) in [
            (Action::Write, 2, LENT_BYTES),
            (message, 2, LENT_BYTES),
            (Action::Read, 2, MAX_PIECE),
            (Action::Write, 3, MAX_PIECE),
        ] {
            assert_eq!(longest(action, NodeId(node)), Piece::Data { at: 0, len });
        }
    }

    #[test]
    fn the_first_error_counts_and_bytes_behind_it_do_not() {
        let mut read = operation(Action::Read, 4 * MAX_PIECE);
        (0..3).for_each(|_| read.hand_out(read.piece()));
        read.end_piece(Code::Ok, MAX_PIECE, 0);
        read.end_piece(Code::AccessDenied, MAX_PIECE, 0);
        assert_eq!(read.piece(), Piece::Nothing, "the rest is not handed out");
        assert!(!read.has_ended());
        read.end_piece(Code::Ok, MAX_PIECE, 0);
        assert!(read.has_ended());
        read.fail(Code::Flushed);
        assert_eq!((read.completion().done, read.completion().status), (MAX_PIECE, 0x8300));
    }

    #[test]
    fn a_message_goes_after_its_data_was_written() {
        let message = Action::Message { doorbell: 1, data: 2 };
        let mut operation_ = operation(message, 8);
        operation_.hand_out(operation_.piece());
        assert_eq!(operation_.piece(), Piece::Later);
        operation_.end_piece(Code::Ok, 8, 0);
        assert_eq!(operation_.piece(), Piece::Message);
        assert!(!operation_.has_ended());
        operation_.hand_out(Piece::Message);
        operation_.end_piece(Code::Ok, 0, 0);
        assert!(operation_.has_ended());
        let mut failed = operation(message, 8);
        failed.hand_out(failed.piece());
        failed.end_piece(Code::NoWindow, 8, 0);
        assert!(failed.has_ended(), "nobody is told of data that is not there");
        assert_eq!(hand_out_all(&mut operation(message, 0)), [Piece::Message]);
    }

    #[test]
    fn nothing_to_move_ends_at_once() {
        assert!(operation(Action::Write, 0).has_ended());
        assert!(operation(Action::Fence, 0).has_ended());
        let malformed = Operation::new(Err(Malformed { cookie: 6 }), NodeSet::EMPTY);
        assert!(malformed.has_ended());
        assert_eq!((malformed.completion().cookie, malformed.completion().status), (6, 0x8787));
    }

    #[test]
    fn an_atomic_one_has_a_result_and_one_code_in_both_places() {
        let mut add = operation(Action::FetchAdd(1), 8);
        assert_eq!(hand_out_all(&mut add), [Piece::Atomic]);
        add.end_piece(Code::Ok, 8, 41);
        assert_eq!((add.completion().former, add.completion().done), (41, 8));
        let mut failed = operation(Action::FetchAdd(1), 8);
        failed.hand_out(Piece::Atomic);
        failed.end_piece(Code::Timeout, 8, 0);
        assert_eq!(failed.completion().status, 0xc1c1);
    }
}
