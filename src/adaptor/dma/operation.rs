//! An operation of a queue between its entry and its completion: what of it was handed out, and how that ended.
//!
//! Invariant: it is given out in pieces of at most so many bytes, in order; after its first error no more of it is
//! given out, and it has ended when no piece is under way. A code that says "not executed" is in its completion only if
//! nothing of it was executed.

use super::entry::{Action, Completion, Malformed, Submission};
use crate::adaptor::address::NodeSet;
use crate::adaptor::mesh::limits::LENT_BYTES;
use crate::adaptor::mesh::packet::MAX_PAYLOAD;
use crate::adaptor::status::{Class, Code, StatusWord};

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
    /// The first byte that was not moved, as far as it is known, and why not.
    failure: Option<(u64, Code)>,
    /// A part was executed, or may have been.
    is_touched: bool,
    former: u64,
}

impl Operation {
    /// `beside` are the nodes of the same process.
    pub(super) fn new(submission: Result<Submission, Malformed>, beside: NodeSet) -> Self {
        let failure = submission.is_err().then_some((0, Code::BadRequest));
        let is_lent = |submission: &Submission| {
            matches!(submission.action, Action::Write | Action::Message { .. })
                && beside.contains(submission.node)
        };
        let longest = if submission.as_ref().is_ok_and(is_lent) { LENT_BYTES } else { MAX_PIECE };
        Self {
            submission,
            longest,
            next: 0,
            is_told: false,
            under_way: 0,
            failure,
            is_touched: false,
            former: 0,
        }
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

    /// The piece that began at byte `at` of it has ended. Of an atomic operation, `former` is what was there before.
    pub(super) fn end_piece(&mut self, at: u64, code: Code, former: u64) {
        self.under_way = self.under_way.saturating_sub(1);
        self.is_touched |= matches!(code.class(), Class::Ok | Class::Unknown);
        if code.is_ok() {
            self.former = former;
        } else {
            self.fail_at(at, code);
        }
    }

    /// It is not to go on; what is under way goes on all the same.
    pub(super) fn fail(&mut self, code: Code) {
        if !self.has_failed() {
            self.fail_at(self.next, code);
        }
    }

    /// Of several errors that of the lowest byte counts.
    fn fail_at(&mut self, at: u64, code: Code) {
        if self.failure.is_none_or(|(first, _)| at < first) {
            self.failure = Some((at, code));
        }
    }

    /// How it ended, where it begins to be undone, and what the last field of its completion says.
    fn outcome(&self) -> (Code, u64, u64) {
        let moved = match self.submission {
            Ok(Submission { action: Action::FetchAdd(_) | Action::CompareSwap { .. }, len, .. }) => len,
            _ => self.next,
        };
        match self.failure {
            None => (Code::Ok, moved, self.former),
            Some((at, code)) if self.is_touched && code.class() != Class::Unknown => {
                (Code::Partial, at, code.bits().into())
            }
            Some((at, Code::Partial)) => (Code::Partial, at, Code::Partial.bits().into()),
            Some((at, code)) => (code, at, 0),
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.under_way == 0 && self.piece() == Piece::Nothing
    }

    /// What its completion says, when it has ended.
    pub(super) fn completion(&self) -> Completion {
        let (code, done, former) = self.outcome();
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
        Completion { status: word.bits(), cookie, done, former }
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
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
        for at in [0, MAX_PIECE, 2 * MAX_PIECE] {
            assert!(!write.has_ended());
            write.end_piece(at, Code::Ok, 0);
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
    fn the_lowest_error_counts_and_bytes_behind_it_do_not() {
        let mut read = operation(Action::Read, 4 * MAX_PIECE);
        (0..3).for_each(|_| read.hand_out(read.piece()));
        read.end_piece(2 * MAX_PIECE, Code::NoWindow, 0);
        assert_eq!(read.piece(), Piece::Nothing, "the rest is not handed out");
        read.end_piece(MAX_PIECE, Code::AccessDenied, 0);
        assert!(!read.has_ended());
        read.end_piece(0, Code::Ok, 0);
        assert!(read.has_ended());
        read.fail(Code::Flushed);
        let expected = Completion { status: 0xc700, cookie: 1, done: MAX_PIECE, former: 0x83 };
        assert_eq!(read.completion(), expected, "a part was moved");
    }

    #[test]
    fn a_code_says_not_executed_only_if_nothing_was() {
        let ends = [Code::Ok, Code::NoWindow, Code::LinkDown, Code::Timeout, Code::Partial];
        for codes in ends.iter().flat_map(|a| ends.iter().map(move |b| [*a, *b])) {
            for order in [[0, 1], [1, 0]] {
                for (rest, is_flushed) in [(1, true), (0, false)] {
                    let mut write = operation(Action::Write, (2 + rest) * MAX_PIECE);
                    (0..2).for_each(|_| write.hand_out(write.piece()));
                    if is_flushed {
                        write.fail(Code::Flushed);
                    }
                    for index in order {
                        write.end_piece(index as u64 * MAX_PIECE, codes[index], 0);
                    }
                    assert!(write.has_ended());
                    let Completion { status, done, .. } = write.completion();
                    let code = Code::from_bits(status as u8).unwrap();
                    let prefix = codes.iter().take_while(|code| code.is_ok()).count() as u64;
                    let is_clean = codes.iter().all(|c| matches!(c.class(), Class::Retry | Class::Permanent));
                    let case = format!("{codes:?} {order:?} {is_flushed}: {code:?}");
                    assert_eq!(code.is_ok(), prefix == 2 && !is_flushed, "{case}");
                    assert_eq!(matches!(code.class(), Class::Retry | Class::Permanent), is_clean, "{case}");
                    assert_eq!(done, prefix * MAX_PIECE, "{case}");
                }
            }
        }
    }

    #[test]
    fn a_message_goes_after_its_data_was_written() {
        let message = Action::Message { doorbell: 1, data: 2 };
        let mut operation_ = operation(message, 8);
        operation_.hand_out(operation_.piece());
        assert_eq!(operation_.piece(), Piece::Later);
        operation_.end_piece(0, Code::Ok, 0);
        assert_eq!(operation_.piece(), Piece::Message);
        assert!(!operation_.has_ended());
        operation_.hand_out(Piece::Message);
        operation_.end_piece(8, Code::AccessDenied, 0);
        assert!(operation_.has_ended());
        let refused = Completion { status: 0xc7, cookie: 1, done: 8, former: 0x83 };
        assert_eq!(operation_.completion(), refused, "its data was written");
        let mut failed = operation(message, 8);
        failed.hand_out(failed.piece());
        failed.end_piece(0, Code::NoWindow, 0);
        assert_eq!(failed.completion(), Completion { status: 0x82, cookie: 1, done: 0, former: 0 });
        assert!(failed.has_ended(), "nobody is told of data that is not there");
        assert_eq!(hand_out_all(&mut operation(message, 0)), [Piece::Message]);
    }

    #[test]
    fn nothing_to_move_ends_at_once() {
        assert!(operation(Action::Fence, 0).has_ended());
        let malformed = Operation::new(Err(Malformed { cookie: 6 }), NodeSet::EMPTY);
        assert!(malformed.has_ended());
        assert_eq!((malformed.completion().cookie, malformed.completion().status), (6, 0x8787));
    }

    #[test]
    fn an_atomic_one_has_a_result_and_one_code_in_both_places() {
        let mut add = operation(Action::FetchAdd(1), 8);
        assert_eq!(hand_out_all(&mut add), [Piece::Atomic]);
        add.end_piece(0, Code::Ok, 41);
        assert_eq!((add.completion().former, add.completion().done), (41, 8));
        let mut failed = operation(Action::FetchAdd(1), 8);
        failed.hand_out(Piece::Atomic);
        failed.end_piece(0, Code::Timeout, 0);
        assert_eq!(failed.completion().status, 0xc1c1);
    }
}
