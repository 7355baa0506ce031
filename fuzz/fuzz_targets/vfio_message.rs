//! Bodies and headers of vfio-user messages: what is taken in is given out again, and nothing panics.
#![no_main]

use assured_rdma::vfio::message::{
    DeviceInfo, DmaMap, DmaUnmap, HEADER_SIZE, Header, IrqInfo, RegionAccess, RegionInfo, SetIrqs, Version,
};
use libfuzzer_sys::fuzz_target;

/// Checks that each of these types gives back the bytes that it took.
macro_rules! round_trips {
    ($bytes:ident, $($body:ident)*) => {$(
        let parsed = $body::parse($bytes);
        assert_eq!(parsed.is_some(), $bytes.len() >= $body::SIZE);
        if let Some(parsed) = parsed {
            let mut out = Vec::new();
            parsed.emit(&mut out);
            assert_eq!(out, $bytes[..$body::SIZE]);
        }
    )*};
}

fuzz_target!(|bytes: &[u8]| {
    round_trips!(bytes, DmaMap DmaUnmap DeviceInfo RegionInfo IrqInfo SetIrqs RegionAccess);
    if let Some(header) = Header::parse(bytes) {
        let mut out = Vec::new();
        header.emit(&mut out);
        assert_eq!(out, bytes[..HEADER_SIZE]);
        assert!(header.message_size().is_none_or(|size| size >= HEADER_SIZE));
        let _ = (header.kind(), header.no_reply());
    }
    if let Ok(reply) = Version::negotiate(bytes) {
        assert_eq!(Version::parse(&reply), Some(Version { major: 0, minor: 0 }));
    }
});
