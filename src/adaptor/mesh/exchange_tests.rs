//! Inventories of a peer that keeps to no rule, and of a node whose life ends meanwhile.

use bytes::Bytes;

use super::InventoryNews;
use super::packet::{Body, Incarnation, Packet};
use super::stalled_tests::{PEER, from_peer, linked, no_memory, prove, start};
use super::versions::Versions;

#[test]
fn a_list_that_was_not_asked_for_is_no_news() {
    let mut mesh = linked();
    prove(&mut mesh, start(), 1);
    let mut arrivals = 0;
    for round in 0..100u8 {
        let list = Body::Inventory { version: round.into(), entries: Bytes::from(vec![round; 64]) };
        mesh.handle_packet(start(), PEER, from_peer(list));
        let news = core::iter::from_fn(|| mesh.poll_inventory());
        arrivals += news.filter(|(_, news)| matches!(news, InventoryNews::Arrived { .. })).count();
    }
    assert_eq!(arrivals, 0, "nothing was sent to the peer yet");
    let inquiry = mesh.poll_packet(start(), PEER, &mut no_memory);
    assert!(matches!(inquiry, Some(Packet { body: Body::Inquire, .. })), "{inquiry:?}");
    let list = || from_peer(Body::Inventory { version: 1, entries: Bytes::new() });
    mesh.handle_packet(start(), PEER, list());
    mesh.handle_packet(start(), PEER, list());
    let arrived = InventoryNews::Arrived { version: 1, entries: Bytes::new() };
    assert_eq!(mesh.poll_inventory(), Some((PEER, arrived)));
    assert_eq!(mesh.poll_inventory(), None, "one answer to one question");
}

#[test]
fn a_list_of_the_life_before_a_reset_is_not_sent_as_one_of_the_next() {
    let mut mesh = linked();
    prove(&mut mesh, start(), 0);
    mesh.handle_packet(start(), PEER, from_peer(Body::Inquire));
    mesh.send_inventory(PEER, Bytes::from_static(&[1; 64]));
    let next = Incarnation(12);
    mesh.reincarnate(start(), next, &[]);
    let hello = mesh.poll_packet(start(), PEER, &mut no_memory);
    let Some(Packet { body: Body::Hello { nonce, epoch, .. }, .. }) = hello else { panic!("{hello:?}") };
    let welcome =
        Body::Hello { versions: Versions::OWN, epoch, nonce: 0, echo: nonce, lease: 1, inventory: 0 };
    mesh.handle_packet(start(), PEER, Packet { destination_incarnation: next, ..from_peer(welcome) });
    while let Some(packet) = mesh.poll_packet(start(), PEER, &mut no_memory) {
        assert!(!matches!(packet.body, Body::Inventory { .. }), "{packet:?}");
    }
}
