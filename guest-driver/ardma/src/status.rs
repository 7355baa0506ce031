//! What a check answers, for programs and for people.
//!
//! The invariant: whatever the adaptor (or, once it is gone, the bus) returns, only the word 0
//! counts as OK for both directions, and a code that this library does not know never does.

use std::fmt;

/// Which way the data of an access goes, seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// A store into the access space.
    Write,
    /// A load from the access space.
    Read,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

/// What a code lets a program conclude.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "executed",
            Self::Retry => "not executed, retry makes sense",
            Self::Permanent => "not executed, permanent",
            Self::Unknown => "outcome unknown",
        })
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $value:literal, $name:literal, $text:literal;)*) => {
        /// How an access ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[$doc])* $variant,)*
            /// A code that this library does not know.
            Other(u8),
        }

        impl Code {
            /// Every code that the adaptor's specification names, in the order of its value.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The code with these bits.
            pub const fn from_bits(bits: u8) -> Self {
                match bits { $($value => Self::$variant,)* other => Self::Other(other) }
            }

            /// The code as it stands in the status word.
            pub const fn bits(self) -> u8 {
                match self { $(Self::$variant => $value,)* Self::Other(bits) => bits }
            }

            /// The code's name in the C header, without its prefix.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* Self::Other(_) => "OTHER" }
            }

            const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* Self::Other(_) => "a code unknown to this program" }
            }
        }
    };
}

codes! {
    /// Executed at the destination.
    Ok = 0x00, "OK", "ok";
    /// There is no working link to the node; nothing was sent.
    LinkDown = 0x41, "LINK_DOWN", "link down";
    /// The deadline passed before the access was sent.
    NotSent = 0x42, "NOT_SENT", "deadline passed before it was sent";
    /// The adaptor or the node had no buffer for it.
    NoResources = 0x43, "NO_RESOURCES", "no resources";
    /// The destination was reset before it came to this access.
    Flushed = 0x44, "FLUSHED", "flushed by a reset, or behind a failed operation";
    /// No such node is configured.
    NoRoute = 0x81, "NO_ROUTE", "no route";
    /// The destination exports nothing there.
    NoWindow = 0x82, "NO_WINDOW", "no such window";
    /// The window does not grant this direction to this node.
    AccessDenied = 0x83, "ACCESS_DENIED", "access denied";
    /// Not 1, 2, 4 or 8 bytes, or not inside one node's window.
    BadSize = 0x84, "BAD_SIZE", "bad size";
    /// The memory, or the device, behind the window did not answer; nothing was done.
    TargetFault = 0x85, "TARGET_FAULT", "target fault";
    /// The operation names local memory that is not registered for it, or can't be reached.
    BadKey = 0x86, "BAD_KEY", "no such key";
    /// The entry that asks for the operation has no meaning.
    BadRequest = 0x87, "BAD_REQUEST", "bad request";
    /// The memory of this node that was to be sent did not answer.
    LocalFault = 0x88, "LOCAL_FAULT", "local memory fault";
    /// The answer did not come before the deadline.
    Timeout = 0xc1, "TIMEOUT", "timeout";
    /// The node was restarted or reset while the access was under way.
    PeerRestarted = 0xc2, "PEER_RESTARTED", "peer restarted";
    /// The link was lost while the access was under way.
    LinkLost = 0xc3, "LINK_LOST", "link lost";
    /// Packets kept arriving corrupted until the deadline passed.
    Corrupt = 0xc4, "CORRUPT", "corrupt";
    /// Packets kept arriving out of sequence until the deadline passed.
    Sequence = 0xc5, "SEQUENCE", "sequence";
    /// The error log overflowed: any earlier access to this node may have failed.
    LogOverflow = 0xc6, "LOG_OVERFLOW", "log overflow";
    /// It failed in the midst: a part was executed, or may have been.
    Partial = 0xc7, "PARTIAL", "executed in part";
}

impl Code {
    /// What the code lets a program conclude. A code that is unknown here has the class of its top
    /// bits, but is never [`Class::Ok`].
    pub const fn class(self) -> Class {
        match (self, self.bits() >> 6) {
            (Self::Ok, _) => Class::Ok,
            (_, 1) => Class::Retry,
            (_, 2) => Class::Permanent,
            _ => Class::Unknown,
        }
    }

    /// Whether the access was executed.
    pub const fn is_ok(self) -> bool {
        matches!(self, Self::Ok)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => f.write_str("ok"),
            code => write!(f, "{}: {} ({:#04x})", code.class(), code.text(), code.bits()),
        }
    }
}

/// The answer to a check: a code for each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(u32);

impl Status {
    /// Nothing failed.
    pub const OK: Self = Self(0);

    /// The status with these bits, as they were loaded from the assurance space.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The word as it was loaded.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether neither direction has an error.
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }

    /// Whether this can be a status word. Where the adaptor is gone or did not answer in time the
    /// bus returns all-ones, whose reserved bits are not 0.
    pub const fn is_answer(self) -> bool {
        self.0 >> 16 == 0
    }

    /// The code for one direction; never OK where the word is not an answer.
    pub const fn code(self, direction: Direction) -> Code {
        if !self.is_answer() {
            return Code::Other(0xff);
        }
        let [write, read, _, _] = self.0.to_le_bytes();
        match direction {
            Direction::Write => Code::from_bits(write),
            Direction::Read => Code::from_bits(read),
        }
    }

    /// The first error among the stores since the block's last check.
    pub const fn write(self) -> Code {
        self.code(Direction::Write)
    }

    /// The first error among the loads since the block's last check.
    pub const fn read(self) -> Code {
        self.code(Direction::Read)
    }
}

impl fmt::Display for Status {
    /// The word in hex and its meaning: `0x00000041 write: not executed, retry makes sense: link down (0x41)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x} ", self.0)?;
        if !self.is_answer() {
            return f.write_str("outcome unknown: the adaptor did not answer the check");
        }
        match (self.write().is_ok(), self.read().is_ok()) {
            (true, true) => f.write_str("ok"),
            (false, true) => write!(f, "write: {}", self.write()),
            (true, false) => write!(f, "read: {}", self.read()),
            (false, false) => write!(f, "write: {}; read: {}", self.write(), self.read()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_has_the_read_code_above_the_write_code() {
        let status = Status::from_bits(0x81c1);
        assert_eq!((status.read(), status.write()), (Code::NoRoute, Code::Timeout));
        assert!(!status.is_ok());
        assert!(Status::OK.is_ok());
    }

    #[test]
    fn people_are_told_class_and_code() {
        let told = |bits| Status::from_bits(bits).to_string();
        assert_eq!(told(0), "0x00000000 ok");
        assert_eq!(told(0x41), "0x00000041 write: not executed, retry makes sense: link down (0x41)");
        assert_eq!(told(0x8200), "0x00008200 read: not executed, permanent: no such window (0x82)");
        assert_eq!(
            told(0xc2c3),
            "0x0000c2c3 write: outcome unknown: link lost (0xc3); read: outcome unknown: peer restarted (0xc2)"
        );
        assert_eq!(told(0x07), "0x00000007 write: outcome unknown: a code unknown to this program (0x07)");
    }

    #[test]
    fn what_is_not_a_status_is_never_ok() {
        for bits in [u32::MAX, 0x0001_0000, 0x8000_0000, 0x0000_0001, 0x0000_3f00] {
            let status = Status::from_bits(bits);
            assert!(!status.is_ok());
            assert!(!(status.read().is_ok() && status.write().is_ok()), "{bits:#x}");
        }
        assert_eq!(Status::from_bits(u32::MAX).write().class(), Class::Unknown);
        assert!(!Status::from_bits(0x0001_0000).read().is_ok());
    }

    #[test]
    fn every_code_survives_its_bits() {
        for bits in 0..=u8::MAX {
            let code = Code::from_bits(bits);
            assert_eq!(code.bits(), bits);
            assert_eq!(code.is_ok(), bits == 0);
            assert_eq!(code.class() == Class::Ok, bits == 0);
        }
        assert!(Code::ALL.is_sorted_by_key(|code| code.bits()));
    }
}
