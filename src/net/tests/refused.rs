//! A node id that is somebody else's, as long as somebody says so.

use super::*;

/// Turns of `side` over so long.
fn run(side: &mut Side, now: &mut Instant, lasts: Duration) {
    let end = now.after(lasts);
    while *now < end {
        side.turn(*now, 10);
        *now = now.after(Duration::from_millis(10));
    }
}

/// As [`run`]; whoever comes to `listener` meanwhile is told that its id is in use. Gives how many came.
fn refuse(side: &mut Side, now: &mut Instant, lasts: Duration, listener: &TcpListener) -> usize {
    let (end, mut refused) = (now.after(lasts), 0);
    while *now < end {
        run(side, now, Duration::from_millis(10));
        if let Ok((mut stream, _)) = listener.accept() {
            let refuse = Body::Refuse { reason: Refusal::Duplicate };
            stream.write_all(&wire(&packet(HIGH, LOW, refuse))).unwrap();
            refused += 1;
        }
    }
    refused
}

#[test]
fn a_refusal_holds_as_long_as_it_is_repeated_and_is_over_when_who_refused_is_gone() {
    let mut now = Instant::ZERO;
    let listener = TcpListener::bind(address(14, HIGH)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut low = Side::at(now, 14, LOW, &[(HIGH, Some(address(14, HIGH)))]);
    let refused = refuse(&mut low, &mut now, Duration::from_secs(40), &listener);
    assert!(refused > 10 && low.duplicate == [true], "{refused}");
    drop(listener);
    run(&mut low, &mut now, Duration::from_secs(5));
    assert_eq!(low.duplicate, [true], "it may be away for a moment only");
    run(&mut low, &mut now, Duration::from_secs(10));
    assert_eq!(low.duplicate, [true, false]);
}

#[test]
fn a_refusal_is_over_when_its_reason_is_another_now() {
    let mut now = Instant::ZERO;
    let listener = TcpListener::bind(address(15, HIGH)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut low = Side::at(now, 15, LOW, &[(HIGH, Some(address(15, HIGH)))]);
    refuse(&mut low, &mut now, Duration::from_secs(3), &listener);
    assert_eq!(low.duplicate, [true]);
    let mut stream = loop {
        run(&mut low, &mut now, Duration::from_millis(10));
        if let Ok((stream, _)) = listener.accept() {
            break stream;
        }
    };
    let refuse = Body::Refuse { reason: Refusal::NotConfigured };
    stream.write_all(&wire(&packet(HIGH, LOW, refuse))).unwrap();
    run(&mut low, &mut now, Duration::from_millis(100));
    assert_eq!(low.duplicate, [true, false]);
}
