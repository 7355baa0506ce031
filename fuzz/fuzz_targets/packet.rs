//! `Packet::parse` takes exactly what `Packet::emit` makes, and never panics.
#![no_main]

use arbitrary::Arbitrary;
use assured_rdma::adaptor::mesh::packet::{HEADER_LEN, MAGIC, MAX_PAYLOAD, Packet, VERSION};
use assured_rdma_fuzz::packets::{Fields, wire};
use crc_fast::{CrcAlgorithm, checksum};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Input {
    Fields(Fields),
    /// Magic, version, length and CRC are set right, so that the rest is looked at.
    Wire {
        header: [u8; HEADER_LEN],
        data: Vec<u8>,
    },
    Raw(Vec<u8>),
}

fuzz_target!(|input: Input| {
    match input {
        Input::Fields(fields) => {
            let packet = Packet::from(fields);
            assert_eq!(Packet::parse(wire(&packet).into()), Ok(packet));
        }
        Input::Wire { header, mut data } => {
            data.truncate(MAX_PAYLOAD);
            let mut bytes = header.to_vec();
            bytes[..2].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[2] = VERSION;
            // Routers count in the upper half; as adaptors send it, it is 0.
            bytes[6] &= 0xf;
            bytes[8..12].copy_from_slice(&u32::try_from(data.len()).expect("is short").to_le_bytes());
            bytes[12..16].fill(0);
            bytes.extend(data);
            let crc = u32::try_from(checksum(CrcAlgorithm::Crc32Iscsi, &bytes)).expect("has 32 bits");
            bytes[12..16].copy_from_slice(&crc.to_le_bytes());
            if let Ok(packet) = Packet::parse(bytes.clone().into()) {
                assert_eq!(wire(&packet), bytes);
            }
        }
        Input::Raw(bytes) => {
            if let Ok(packet) = Packet::parse(bytes.clone().into()) {
                assert_eq!(wire(&packet), bytes);
            }
        }
    }
});
