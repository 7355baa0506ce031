//! Random loads and stores of every size, through a network that is only slow, against a flat array.

use assured_rdma::adaptor::address::NodeId;
use assured_rdma::adaptor::random::Random;
use proptest::prelude::*;

use crate::network::Faults;
use crate::world::{EXPORT_LEN, EXPORTED, World};

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);

#[derive(Clone, Debug)]
enum Access {
    Store {
        offset: u64,
        data: Vec<u8>,
    },
    /// Several stores, each beginning where the one before ended.
    Run {
        offset: u64,
        sizes: Vec<usize>,
    },
    Load {
        offset: u64,
        len: usize,
    },
    Check {
        offset: u64,
    },
}

fn size() -> impl Strategy<Value = usize> {
    proptest::sample::select(vec![1usize, 2, 4, 8])
}

/// Offsets gather around the borders of blocks and of the window.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![0..EXPORT_LEN - 8, 4080..4112u64, EXPORT_LEN - 24..EXPORT_LEN - 7]
}

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![
        (offset(), size(), any::<u64>()).prop_map(|(offset, size, value)| Access::Store {
            offset,
            data: value.to_le_bytes()[..size].to_vec()
        }),
        (0..EXPORT_LEN - 400, proptest::collection::vec(size(), 1..50))
            .prop_map(|(offset, sizes)| Access::Run { offset, sizes }),
        (offset(), size()).prop_map(|(offset, len)| Access::Load { offset, len }),
        offset().prop_map(|offset| Access::Check { offset }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn remote_memory_is_like_a_flat_array(
        seed in any::<u64>(),
        accesses in proptest::collection::vec(access(), 1..120),
    ) {
        let mut world = World::new(seed, 2);
        world.faults = Faults { jitter: 500, ..Faults::NONE };
        let mut flat = vec![0u8; EXPORT_LEN as usize];
        let mut random = Random::new(seed);
        for access in accesses {
            match access {
                Access::Store { offset, data } => {
                    flat[offset as usize..][..data.len()].copy_from_slice(&data);
                    world.store(A, B, offset, &data).unwrap();
                }
                Access::Run { mut offset, sizes } => {
                    for size in sizes {
                        let data = random.next().to_le_bytes();
                        flat[offset as usize..][..size].copy_from_slice(&data[..size]);
                        world.store(A, B, offset, &data[..size]).unwrap();
                        offset += size as u64;
                    }
                }
                Access::Load { offset, len } => {
                    let data = world.read(A, B, offset, len);
                    prop_assert_eq!(&data[..], &flat[offset as usize..][..len]);
                }
                Access::Check { offset } => prop_assert_eq!(world.check(A, B, offset), 0),
            }
        }
        for block in 0..EXPORT_LEN / 4096 {
            prop_assert_eq!(world.check(A, B, block * 4096), 0);
        }
        let held = &world.memory(B)[EXPORTED as usize..][..EXPORT_LEN as usize];
        prop_assert!(held == &flat[..]);
    }
}
