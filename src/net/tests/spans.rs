//! Adaptors with several buses: whom a link is with, and whose node ids they are.

use super::*;
use crate::adaptor::buses::{Buses, Span};

fn buses(first: u8, bits: u32, count: u16) -> End {
    End::Adaptor(Buses::new(Span::new(NodeId(first), bits).unwrap(), count).unwrap())
}

fn says(end: End, looks_for: NodeId, life: u64, wants_reply: bool) -> Packet {
    let body = Body::Join { role: Role::of(end), versions: Versions::OWN, wants_reply };
    Packet::between(end.identity(), looks_for, Incarnation(life), body)
}

/// A router at `test`'s address of node 1.
fn router(now: Instant, test: u8) -> Side {
    let own = Neighbour { end: End::Router, incarnation: Incarnation(1) };
    let settings = Side::at(now, test, LOW, &[]).settings;
    Side::new(now, Settings { own, company: Company::Everyone, ..settings })
}

/// A connection of the test's own on which `end` introduces itself.
fn come(side: &mut Side, now: Instant, test: u8, end: End, life: u64) -> TcpStream {
    let mut stream = TcpStream::connect(address(test, LOW)).unwrap();
    stream.write_all(&wire(&says(end, side.node, life, true))).unwrap();
    for _ in 0..3 {
        side.turn(now, 100);
    }
    stream
}

/// Who is let in gets a Join, and the Hello that the stand-in for the core says.
fn is_welcome(stream: &mut TcpStream) -> bool {
    match next_packet(stream).body {
        Body::Join { .. } => matches!(next_packet(stream).body, Body::Hello { .. }),
        Body::Refuse { reason } => {
            assert_eq!(reason, Refusal::Duplicate);
            false
        }
        other => panic!("{other:?}"),
    }
}

/// Answers the question for a sign of life that `holder` has to have got.
fn live(side: &mut Side, now: Instant, holder: &mut TcpStream, end: End, life: u64) {
    assert!(matches!(next_packet(holder).body, Body::Join { wants_reply: true, .. }), "it is asked");
    holder.write_all(&wire(&says(end, side.node, life, false))).unwrap();
    side.turn(now, 100);
}

#[test]
fn what_an_end_says_of_itself_is_all_of_its_nodes() {
    let now = Instant::ZERO;
    let own = Neighbour { end: buses(4, 2, 3), incarnation: Incarnation(8) };
    let settings = Side::at(now, 50, LOW, &[(HIGH, None)]).settings;
    let mut side = Side::new(now, Settings { own, ..settings });
    let mut peer = come(&mut side, now, 50, buses(2, 1, 2), 7);
    assert_eq!(next_packet(&mut peer), says(own.end, HIGH, 8, false));
    // Who looks for another node than the first of them does not find it.
    for looks_for in [5, 6, 7] {
        let mut stranger = TcpStream::connect(address(50, LOW)).unwrap();
        stranger.write_all(&wire(&says(buses(2, 1, 2), NodeId(looks_for), 7, true))).unwrap();
        side.turn(now, 100);
        side.turn(now, 100);
        assert_eq!(next_packet(&mut stranger).body, Body::Refuse { reason: Refusal::WrongIdentity });
    }
}

#[test]
fn the_first_keeps_its_ids_from_whoever_has_one_of_them_too() {
    for (number, first, second) in [
        (51, buses(4, 1, 2), buses(5, 0, 1)),
        (52, buses(5, 0, 1), buses(4, 1, 1)),
        // Also the ids that have no bus.
        (53, buses(4, 2, 2), buses(7, 0, 1)),
        // The same adaptor with more buses is another one.
        (54, buses(4, 1, 1), buses(4, 1, 2)),
        (55, buses(4, 1, 2), buses(0, 8, 1)),
    ] {
        let mut now = Instant::ZERO;
        let mut side = router(now, number);
        let mut holder = come(&mut side, now, number, first, 7);
        assert!(is_welcome(&mut holder));
        // While the holder is there, the claim is refused.
        let mut claimant = come(&mut side, now, number, second, 8);
        assert_eq!(side.ups, 1, "{first}, then {second}");
        live(&mut side, now, &mut holder, first, 7);
        assert!(!is_welcome(&mut claimant), "{first}, then {second}");
        assert_eq!(side.ups, 1);
        // When it gives no sign of life, the claim wins.
        let mut claimant = come(&mut side, now, number, second, 8);
        now = now.after(Duration::from_millis(501));
        side.turn(now, 100);
        side.turn(now, 100);
        assert!(is_welcome(&mut claimant), "{first}, then {second}");
        assert!(!side.is_up(first.identity().id()) || first.identity() == second.identity());
        assert!(side.is_up(second.identity().id()));
    }
}

#[test]
fn a_claim_has_to_win_against_everyone_who_has_one_of_its_ids() {
    let mut now = Instant::ZERO;
    let mut side = router(now, 56);
    let ids = [4, 5, 6].map(|id| buses(id, 0, 1));
    let mut holders = ids.map(|end| come(&mut side, now, 56, end, 7));
    assert!(holders.iter_mut().all(is_welcome));
    let all = buses(4, 2, 4);
    // The last that is asked lives: the one that has the same first id.
    let mut claimant = come(&mut side, now, 56, all, 8);
    for _ in 0..2 {
        now = now.after(Duration::from_millis(501));
        side.turn(now, 100);
        side.turn(now, 100);
    }
    live(&mut side, now, &mut holders[0], ids[0], 7);
    assert!(!is_welcome(&mut claimant));
    assert_eq!(ids.map(|end| side.is_up(end.identity().id())), [true, false, false]);
    assert_eq!(side.ups, 3);
    // And now it does not.
    let mut claimant = come(&mut side, now, 56, all, 8);
    now = now.after(Duration::from_millis(501));
    side.turn(now, 100);
    side.turn(now, 100);
    assert!(is_welcome(&mut claimant));
    assert_eq!((side.nodes.len(), side.is_up(NodeId(4))), (1, true));
}

#[test]
fn who_was_dialed_is_left_where_another_one_has_its_ids() {
    let mut now = Instant::ZERO;
    let listener = TcpListener::bind(address(57, NodeId(5))).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut side = Side::at(now, 57, LOW, &[(NodeId(4), None), (NodeId(5), Some(address(57, NodeId(5))))]);
    let mut holder = come(&mut side, now, 57, buses(4, 1, 2), 7);
    assert!(is_welcome(&mut holder));
    let mut dials = 0;
    while now.since(Instant::ZERO) < Duration::from_secs(10) {
        side.turn(now, 100);
        now = now.after(Duration::from_millis(10));
        if let Ok((mut stream, _)) = listener.accept() {
            dials += 1;
            side.turn(now, 100);
            assert!(matches!(next_packet(&mut stream).body, Body::Join { .. }));
            stream.write_all(&wire(&says(buses(5, 0, 1), LOW, 9, true))).unwrap();
            side.turn(now, 100);
            side.turn(now, 100);
            assert_eq!(next_packet(&mut stream).body, Body::Refuse { reason: Refusal::Duplicate });
            holder.write_all(&wire(&says(buses(4, 1, 2), LOW, 7, false))).unwrap();
        }
    }
    assert!((4..=11).contains(&dials), "{dials} attempts in 10 s");
    assert!(side.ups == 1 && side.is_up(NodeId(4)));
}
