//! Operations that were handed out and are not begun at once, because their pages are not there.

use super::*;

/// Ends what an origin asked for: its epoch is over, or the function is reset.
const ENDS: [fn(&mut Master); 2] = [|master| master.discard(origin(2)), |master| drop(master.flush())];

/// A write or a read that was handed out, and what it was asked of.
fn handed_out(request: Inbound) -> (Master, MemoryOperation) {
    let (mut master, _) = exporting();
    master.push(request).unwrap();
    let operation = master.poll_operation(|_, _| true).unwrap();
    assert!(master.may_begin(operation.id(), |_, _| true));
    (master, operation)
}

fn requests() -> [Inbound; 2] {
    [write(2, 10, 0, b"assured!"), read(2, 10, 0, 8)]
}

#[test]
fn isolation_what_is_discarded_meanwhile_is_not_begun_whatever_the_next_epoch_may() {
    for (request, end) in requests().into_iter().flat_map(|request| ENDS.map(|end| (request.clone(), end))) {
        let (mut master, operation) = handed_out(request);
        end(&mut master);
        assert!(!master.may_begin(operation.id(), |_, _| true));
    }
}

#[test]
fn isolation_what_is_discarded_is_not_kept_for_its_pages() {
    for (request, end) in requests().into_iter().flat_map(|request| ENDS.map(|end| (request.clone(), end))) {
        let (mut master, operation) = handed_out(request);
        let id = operation.id();
        end(&mut master);
        master.put_back(operation);
        master.handle_pages(id, Ok(()));
        assert_eq!(master.poll_operation(|_, _| true), None);
        assert_eq!(answers(&mut master), []);
    }
}
