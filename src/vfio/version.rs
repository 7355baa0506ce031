//! The first exchange of a connection: versions, and what both sides can do.
//!
//! Each side names its limits; both keep to the lower ones. `max_msg_fds` is not shared so: it is how many descriptors the one
//! who names it can receive, and this server sends none.

use super::message::{MAX_DESCRIPTORS, MAX_TRANSFER, Version};
use core::fmt;
use serde_json::{Map, Value};

/// The least `max_data_xfer_size` that is of use, in bytes: configuration space is read at once.
const MIN_TRANSFER: u64 = 4096;
/// The page sizes (a sum of powers of two, in bytes) in which memory can be mapped.
const PAGE_SIZES: u64 = !0xfff;

/// The most ranges that this server says it maps: QEMU takes no greater number. (More are taken, see [`super::MAX_RANGES`].)
const MAX_MAPS: usize = 65_535;

/// What a client that does not name a limit means by that, as the protocol has it.
const DEFAULT_TRANSFER: u64 = 1 << 20;
const DEFAULT_DESCRIPTORS: u64 = 1;
const DEFAULT_MAPS: u64 = 65_535;
const DEFAULT_PAGE_SIZES: u64 = 4096;

/// Why a client's version is not accepted.
#[derive(Debug, PartialEq, Eq)]
pub enum VersionError {
    /// The body is shorter than the two version numbers.
    Short,
    /// A major version that this server does not speak.
    Major(u16),
    /// The capabilities are not a JSON object, or something in there is not what the protocol says.
    Malformed(String),
    /// The client can do less than this server needs.
    TooLittle {
        /// The capability's name.
        name: &'static str,
        /// What the client says.
        client: u64,
        /// What is needed.
        needed: &'static str,
    },
}

impl fmt::Display for VersionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => f.write_str("a VERSION message that is too short"),
            Self::Major(major) => {
                write!(f, "a VERSION message of vfio-user {major}.x, while this server speaks 0.0")
            }
            Self::Malformed(why) => write!(f, "a VERSION message with malformed capabilities: {why}"),
            Self::TooLittle { name, client, needed } => {
                write!(f, "a VERSION message with {name} {client}, while this server needs {needed}")
            }
        }
    }
}

impl core::error::Error for VersionError {}

/// What a client and this server have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The most data bytes in one message (`max_data_xfer_size`), [`MAX_TRANSFER`] at most.
    pub max_transfer: usize,
    /// The most ranges of memory that are mapped at a time (`max_dma_maps`), as many as the protocol's default at most.
    pub max_maps: usize,
    /// The page sizes in which the client maps memory (`pgsizes`), a sum of powers of two in bytes.
    pub page_sizes: u64,
}

impl Agreement {
    /// Checks the client's VERSION body.
    ///
    /// Capabilities may be absent, empty, or lack their NUL.
    ///
    /// # Errors
    /// Where the client's version or capabilities are not usable.
    pub fn with_client(body: &[u8]) -> Result<Self, VersionError> {
        let version = Version::parse(body).ok_or(VersionError::Short)?;
        if version.major != 0 {
            return Err(VersionError::Major(version.major));
        }
        let text = body.get(Version::SIZE..).unwrap_or_default();
        let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
        let client = capabilities(text).map_err(VersionError::Malformed)?;
        let number = |name, default| match client.get(name) {
            None => Ok(default),
            Some(value) => value.as_u64().ok_or_else(|| {
                VersionError::Malformed(format!("\"{name}\" is {value}, which is no number from 0 on"))
            }),
        };
        let transfer = number("max_data_xfer_size", DEFAULT_TRANSFER)?;
        let maps = number("max_dma_maps", DEFAULT_MAPS)?;
        let page_sizes = number("pgsizes", DEFAULT_PAGE_SIZES)?;
        number("max_msg_fds", DEFAULT_DESCRIPTORS)?;
        let too_little = |name, client, needed| Err(VersionError::TooLittle { name, client, needed });
        if transfer < MIN_TRANSFER {
            return too_little("max_data_xfer_size", transfer, "4096 or more to show configuration space");
        }
        if maps == 0 {
            return too_little("max_dma_maps", maps, "1 or more to reach the guest's memory");
        }
        if page_sizes & PAGE_SIZES == 0 {
            return too_little("pgsizes", page_sizes, "a page size of 4096 or more");
        }
        let at_most = |value, own: usize| usize::try_from(value).unwrap_or(own).min(own);
        Ok(Self {
            max_transfer: at_most(transfer, MAX_TRANSFER),
            max_maps: at_most(maps, MAX_MAPS),
            page_sizes: page_sizes & PAGE_SIZES,
        })
    }

    /// The body of the reply. It names version 0.0, which every 0.x client has to accept. QEMU refuses one that is longer than its
    /// own message (about 200 bytes).
    pub fn reply(&self) -> Vec<u8> {
        let mut reply = Vec::new();
        Version { major: 0, minor: 0 }.emit(&mut reply);
        let Self { max_transfer, max_maps, page_sizes } = self;
        let capabilities = format!(
            "{{\"capabilities\":{{\"max_msg_fds\":{MAX_DESCRIPTORS},\"max_data_xfer_size\":{max_transfer},\
             \"max_dma_maps\":{max_maps},\"pgsizes\":{page_sizes}}}}}\0"
        );
        reply.extend_from_slice(capabilities.as_bytes());
        reply
    }
}

/// The object `capabilities` in the client's JSON, empty where there is none.
fn capabilities(text: &[u8]) -> Result<Map<String, Value>, String> {
    if text.is_empty() {
        return Ok(Map::new());
    }
    let mut all: Map<String, Value> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    match all.remove("capabilities") {
        None => Ok(Map::new()),
        Some(Value::Object(capabilities)) => Ok(capabilities),
        Some(_) => Err("\"capabilities\" is not an object".into()),
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What QEMU 11.1.3 sends first, without its header.
    const QEMU_VERSION: &[u8] =
        b"\0\0\0\0{\"capabilities\": {\"migration\": {\"max_bitmap_size\": 268435456, \
        \"pgsize\": 4096}, \"max_msg_fds\": 16, \"max_data_xfer_size\": 1048576, \"pgsizes\": 4096, \
        \"max_dma_maps\": 65535, \"write_multiple\": true}}\0";

    fn with(capabilities: &str) -> Result<Agreement, VersionError> {
        Agreement::with_client(format!("\0\0\0\0{{\"capabilities\":{{{capabilities}}}}}\0").as_bytes())
    }

    #[test]
    fn the_reply_fits_where_qemu_expects_it() {
        let agreed = Agreement::with_client(QEMU_VERSION).unwrap();
        assert_eq!(agreed, Agreement { max_transfer: 1 << 20, max_maps: MAX_MAPS, page_sizes: 4096 });
        let reply = agreed.reply();
        assert!(reply.len() <= QEMU_VERSION.len());
        assert_eq!(reply.get(..4), Some(&[0; 4][..]));
        assert_eq!(reply.last(), Some(&0));
        let json: Value = serde_json::from_slice(&reply[4..reply.len() - 1]).unwrap();
        let expected = serde_json::json!({"capabilities": {
            "max_msg_fds": 16, "max_data_xfer_size": 1_048_576, "max_dma_maps": 65_535, "pgsizes": 4096,
        }});
        assert_eq!(json, expected);
    }

    #[test]
    fn the_lower_limit_of_both_sides_holds() {
        let agreed =
            with("\"max_data_xfer_size\":4096,\"max_dma_maps\":1,\"pgsizes\":2101247,\"max_msg_fds\":0");
        assert_eq!(agreed, Ok(Agreement { max_transfer: 4096, max_maps: 1, page_sizes: 0x20_0000 }));
        let most = "\"max_data_xfer_size\":18446744073709551615,\"max_dma_maps\":18446744073709551615,\
                    \"pgsizes\":18446744073709551615,\"max_msg_fds\":18446744073709551615";
        let agreed = Agreement { max_transfer: MAX_TRANSFER, max_maps: MAX_MAPS, page_sizes: !0xfff };
        assert_eq!(with(most), Ok(agreed));
        assert!(agreed.reply().len() <= QEMU_VERSION.len());
        let default = Agreement { max_transfer: 1 << 20, max_maps: MAX_MAPS, page_sizes: 4096 };
        assert_eq!(with(""), Ok(default));
    }

    #[test]
    fn too_little_is_refused_by_name() {
        for (capability, needed) in [
            ("max_data_xfer_size 4095", "4096 or more"),
            ("max_data_xfer_size 0", "4096 or more"),
            ("max_dma_maps 0", "1 or more"),
            ("pgsizes 0", "page size"),
            ("pgsizes 2048", "page size"),
        ] {
            let (name, value) = capability.split_once(' ').unwrap();
            let error = with(&format!("\"{name}\":{value}")).unwrap_err().to_string();
            assert!(error.contains(capability) && error.contains(needed), "{error}");
        }
        for value in ["-1", "1.5", "\"4096\"", "null", "[]", "18446744073709551616"] {
            for name in ["max_data_xfer_size", "max_dma_maps", "pgsizes", "max_msg_fds"] {
                let error = with(&format!("\"{name}\":{value}")).unwrap_err().to_string();
                assert!(error.contains(name), "{error}");
            }
        }
    }

    #[test]
    fn odd_versions() {
        for polite in [&b"\0\0\x01\0"[..], b"\0\0\0\0\0", b"\0\0\0\0{}", b"\0\0\0\0{}\0", b"\0\0\0\0{}\0{\0"]
        {
            assert!(Agreement::with_client(polite).is_ok(), "{polite:?}");
        }
        assert_eq!(Agreement::with_client(b"\0\0\0"), Err(VersionError::Short));
        assert_eq!(Agreement::with_client(b"\x01\0\0\0{}\0"), Err(VersionError::Major(1)));
        for rude in [&b"\0\0\0\0{"[..], b"\0\0\0\0[]\0", b"\0\0\0\0{\"capabilities\":1}\0", b"\0\0\0\0\xff\0"]
        {
            assert!(matches!(Agreement::with_client(rude), Err(VersionError::Malformed(_))), "{rude:?}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Agreement::with_client(&bytes);
        }
    }
}
