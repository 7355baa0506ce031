//! Bodies and headers of vfio-user messages: what is taken in is given out again, and nothing panics.
#![no_main]

use assured_rdma::vfio::message::{
    DeviceInfo, DmaAccess, DmaMap, DmaUnmap, HEADER_SIZE, Header, IrqInfo, MAX_TRANSFER, RegionAccess,
    RegionInfo, SetIrqs, Version,
};
use assured_rdma::vfio::{Agreement, MAX_RANGES};
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
    round_trips!(bytes, DmaAccess DmaMap DmaUnmap DeviceInfo RegionInfo IrqInfo SetIrqs RegionAccess);
    if let Some(header) = Header::parse(bytes) {
        let mut out = Vec::new();
        header.emit(&mut out);
        assert_eq!(out, bytes[..HEADER_SIZE]);
        assert!(header.message_size().is_none_or(|size| size >= HEADER_SIZE));
        let _ = (header.kind(), header.no_reply());
    }
    if let Ok(agreed) = Agreement::with_client(bytes) {
        assert!((4096..=MAX_TRANSFER).contains(&agreed.max_transfer));
        assert!((1..=MAX_RANGES).contains(&agreed.max_maps));
        assert!(agreed.page_sizes >= 4096 && agreed.page_sizes % 4096 == 0);
        let reply = agreed.reply();
        // Whoever is told what was agreed on agrees.
        assert_eq!(Agreement::with_client(&reply), Ok(agreed));
        assert_eq!(Version::parse(&reply), Some(Version { major: 0, minor: 0 }));
    }
});
