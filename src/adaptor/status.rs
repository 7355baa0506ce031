//! What a check answers: the status word and its codes.
//!
//! The document's status word has the read transactions' code in bits `[15:8]`, the
//! write transactions' in `[7:0]`, and `[31:16]` reserved. The two top bits of a code are
//! its [`Class`], so that software can decide by a mask.

/// Which way the data of a transaction goes, seen from the bus that started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// A store into the access space.
    Write,
    /// A load from the access space.
    Read,
}

/// What a code lets software conclude; bits `[7:6]` of the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Executed at the destination.
    Ok,
    /// Not executed; the same access may succeed later.
    Retry,
    /// Not executed; the same access will fail again until something is changed.
    Permanent,
    /// May have been executed, or not; it will not be executed any more.
    Unknown,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        /// How a transaction ended. [`Code::Ok`] is 0; see [`Class`] for the groups.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Code { $($(#[$doc])* $name = $value,)* }

        impl Code {
            /// Every code, in the order of its value.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The code with this value, or `None` where there is none.
            pub const fn from_bits(bits: u8) -> Option<Self> {
                match bits { $($value => Some(Self::$name),)* _ => None }
            }
        }

        impl core::fmt::Display for Code {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(match self { $(Self::$name => $text,)* })
            }
        }
    };
}

codes! {
    /// Executed at the destination.
    Ok = 0x00, "ok";
    /// There is no working link to the node; nothing was sent.
    LinkDown = 0x41, "link down";
    /// The deadline passed before the transaction was sent.
    NotSent = 0x42, "deadline passed before it was sent";
    /// The adaptor or the node had no buffer for it.
    NoResources = 0x43, "no resources";
    /// The destination was reset before it came to this transaction.
    Flushed = 0x44, "flushed by a reset, or behind a failed operation";
    /// No such node is configured.
    NoRoute = 0x81, "no route";
    /// The destination exports nothing there.
    NoWindow = 0x82, "no such window";
    /// The window does not grant this direction to this node.
    AccessDenied = 0x83, "access denied";
    /// Not 1, 2, 4 or 8 bytes, or not inside one node's window.
    BadSize = 0x84, "bad size";
    /// The memory, or the device, behind the window did not answer; nothing was done.
    TargetFault = 0x85, "target fault";
    /// The operation names local memory that is not registered for it, or can't be reached.
    BadKey = 0x86, "no such key";
    /// The entry that asks for the operation has no meaning.
    BadRequest = 0x87, "bad request";
    /// The memory of this node that was to be sent did not answer.
    LocalFault = 0x88, "local memory fault";
    /// The answer did not come before the deadline.
    Timeout = 0xc1, "timeout";
    /// The node was restarted or reset while the transaction was under way.
    PeerRestarted = 0xc2, "peer restarted";
    /// The link was lost while the transaction was under way.
    LinkLost = 0xc3, "link lost";
    /// Packets kept arriving corrupted until the deadline passed.
    Corrupt = 0xc4, "corrupt";
    /// Packets kept arriving out of sequence until the deadline passed.
    Sequence = 0xc5, "sequence";
    /// The error log overflowed: any earlier access to this node may have failed.
    LogOverflow = 0xc6, "log overflow";
    /// It failed in the midst: a part was executed, or may have been.
    Partial = 0xc7, "executed in part";
}

impl Code {
    /// The code as it stands in the status word.
    pub const fn bits(self) -> u8 {
        self as u8
    }

    /// What the code lets software conclude.
    pub const fn class(self) -> Class {
        match self.bits() >> 6 {
            0 => Class::Ok,
            1 => Class::Retry,
            2 => Class::Permanent,
            _ => Class::Unknown,
        }
    }

    /// Whether the transaction was executed.
    pub const fn is_ok(self) -> bool {
        matches!(self, Self::Ok)
    }
}

/// The 32-bit answer to a check: a code for each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusWord {
    /// The first error among the read transactions; bits `[15:8]`.
    pub read: Code,
    /// The first error among the write transactions; bits `[7:0]`.
    pub write: Code,
}

impl StatusWord {
    /// Nothing failed.
    pub const OK: Self = Self { read: Code::Ok, write: Code::Ok };

    /// The word as the guest reads it.
    pub const fn bits(self) -> u32 {
        (self.read.bits() as u32) << 8 | self.write.bits() as u32
    }

    /// The code for one direction.
    pub const fn code(self, direction: Direction) -> Code {
        match direction {
            Direction::Write => self.write,
            Direction::Read => self.read,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_has_read_code_above_write_code() {
        let word = StatusWord { read: Code::NoRoute, write: Code::Timeout };
        assert_eq!(word.bits(), 0x0000_81c1);
        assert_eq!(StatusWord::OK.bits(), 0);
    }

    #[test]
    fn every_code_survives_its_bits_and_has_the_class_of_its_top_bits() {
        for &code in Code::ALL {
            assert_eq!(Code::from_bits(code.bits()), Some(code));
            assert_eq!(code.is_ok(), code.class() == Class::Ok);
        }
        assert_eq!(Code::LinkDown.class(), Class::Retry);
        assert_eq!(Code::NoWindow.class(), Class::Permanent);
        assert_eq!(Code::PeerRestarted.class(), Class::Unknown);
        assert_eq!(Code::from_bits(0x01), None);
    }
}
