//! Operations of a queue, and their completions.

use crate::handles::{QueueHandle, Region};
use crate::{outcome, refused, told};
use ardma::{Operation, Place};
use std::ffi::{c_int, c_uint, c_void};
use std::time::Duration;

/// `struct ardma_completion`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Completion {
    cookie: u64,
    bytes: u64,
    former: u64,
    status: u32,
    reserved: u32,
}

impl From<ardma::Completion> for Completion {
    fn from(completion: ardma::Completion) -> Self {
        let ardma::Completion { cookie, bytes, former, status, .. } = completion;
        Self { cookie, bytes, former, status: status.bits(), reserved: 0 }
    }
}

/// Posts what `make` makes of the place.
///
/// # Safety
/// `queue` is a handle that no other thread uses now, or null.
unsafe fn post(
    queue: *mut QueueHandle,
    (node, offset): (c_uint, u64),
    cookie: u64,
    make: impl FnOnce(Place) -> Result<Operation, ardma::Error>,
) -> c_int {
    // SAFETY: the caller's contract.
    let Some(queue) = (unsafe { queue.as_mut() }) else { return refused("no queue was given") };
    let Ok(node) = u8::try_from(node) else { return refused("node ids go from 0 to 255") };
    let operation = make(Place::memory(node, offset));
    outcome(operation.and_then(|operation| queue.0.post(operation.cookie(cookie))))
}

/// A part of the region.
///
/// # Safety
/// `region` is a handle or null.
unsafe fn part(region: *mut Region, offset: usize, length: usize) -> Result<ardma::Part, ardma::Error> {
    let none = ardma::Error::Outside { offset: offset as u64, length: length as u64, available: 0 };
    // SAFETY: the caller's contract.
    let region = unsafe { region.as_ref() }.ok_or(none)?;
    region.0.part(offset as u64, length as u64)
}

/// `ardma_write`
///
/// # Safety
/// `queue` and `region` are handles or null; no other thread uses the queue now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_write(
    queue: *mut QueueHandle,
    region: *mut Region,
    from: usize,
    length: usize,
    node: c_uint,
    to: u64,
    cookie: u64,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        post(queue, (node, to), cookie, |place| Ok(Operation::write(part(region, from, length)?, place)))
    }
}

/// `ardma_read`
///
/// # Safety
/// As of [`ardma_write`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_read(
    queue: *mut QueueHandle,
    node: c_uint,
    from: u64,
    region: *mut Region,
    to: usize,
    length: usize,
    cookie: u64,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        post(queue, (node, from), cookie, |place| Ok(Operation::read(place, part(region, to, length)?)))
    }
}

/// `ardma_write_bytes`
///
/// # Safety
/// As of [`ardma_write`]; `from` has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_write_bytes(
    queue: *mut QueueHandle,
    from: *const c_void,
    length: usize,
    node: c_uint,
    to: u64,
    cookie: u64,
) -> c_int {
    if length > ardma::INLINE || (from.is_null() && length > 0) {
        return refused("up to 32 bytes can be given");
    }
    let bytes = if length == 0 {
        &[]
    } else {
        // SAFETY: the caller vouches for the bytes, and nobody changes them during this call.
        unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) }
    };
    // SAFETY: the caller's contract.
    unsafe { post(queue, (node, to), cookie, |place| Operation::write_bytes(bytes, place)) }
}

/// `ardma_write_message`
///
/// # Safety
/// As of [`ardma_write`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_write_message(
    queue: *mut QueueHandle,
    region: *mut Region,
    from: usize,
    length: usize,
    node: c_uint,
    to: u64,
    doorbell: c_uint,
    message: u64,
    cookie: u64,
) -> c_int {
    let doorbell = u8::try_from(doorbell).ok().filter(|&doorbell| doorbell < ardma::DOORBELLS);
    let Some(doorbell) = doorbell else { return refused("doorbells go from 0 to 63") };
    let make = |place| {
        // SAFETY: the caller's contract.
        let part = unsafe { part(region, from, length) }?;
        Ok(Operation::write(part, place).with_message(doorbell, message))
    };
    // SAFETY: the caller's contract.
    unsafe { post(queue, (node, to), cookie, make) }
}

/// `ardma_fetch_add`
///
/// # Safety
/// `queue` is a handle or null; no other thread uses it now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_fetch_add(
    queue: *mut QueueHandle,
    node: c_uint,
    at: u64,
    value: u64,
    cookie: u64,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { post(queue, (node, at), cookie, |place| Ok(Operation::fetch_add(place, value))) }
}

/// `ardma_compare_swap`
///
/// # Safety
/// As of [`ardma_fetch_add`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_compare_swap(
    queue: *mut QueueHandle,
    node: c_uint,
    at: u64,
    expected: u64,
    value: u64,
    cookie: u64,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { post(queue, (node, at), cookie, |place| Ok(Operation::compare_swap(place, expected, value))) }
}

/// `ardma_fence`
///
/// # Safety
/// As of [`ardma_fetch_add`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_fence(queue: *mut QueueHandle, cookie: u64) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { post(queue, (0, 0), cookie, |_| Ok(Operation::fence())) }
}

/// `ardma_poll`
///
/// # Safety
/// As of [`ardma_fetch_add`]; `completions` has room for `max`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_poll(
    queue: *mut QueueHandle,
    completions: *mut Completion,
    max: c_uint,
) -> c_int {
    // SAFETY: the caller's contract.
    let Some(queue) = (unsafe { queue.as_mut() }) else { return refused("no queue was given") };
    if completions.is_null() && max > 0 {
        return refused("no room for completions was given");
    }
    let mut count = 0_u32;
    while count < max {
        match queue.0.poll() {
            Ok(Some(completion)) => {
                // SAFETY: the caller vouches for `max` entries, and `count` is below.
                unsafe { completions.add(count as usize).write(completion.into()) };
                count = count.saturating_add(1);
            }
            Ok(None) => break,
            // What was taken is not lost: the error comes again.
            Err(error) if count == 0 => return told(&error),
            Err(_) => break,
        }
    }
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// `ardma_wait`
///
/// # Safety
/// As of [`ardma_fetch_add`]; `completion` has room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_wait(
    queue: *mut QueueHandle,
    completion: *mut Completion,
    milliseconds: c_uint,
) -> c_int {
    // SAFETY: the caller's contract.
    let (Some(queue), Some(room)) = (unsafe { (queue.as_mut(), completion.as_mut()) }) else {
        return refused("no queue, or no room for a completion, was given");
    };
    match queue.0.wait(Duration::from_millis(milliseconds.into())) {
        Ok(Some(completion)) => {
            *room = completion.into();
            1
        }
        Ok(None) => 0,
        Err(error) => told(&error),
    }
}

/// `ardma_under_way`
///
/// # Safety
/// As of [`ardma_fetch_add`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_under_way(queue: *const QueueHandle) -> c_uint {
    // SAFETY: the caller's contract.
    unsafe { queue.as_ref() }.map_or(0, |queue| c_uint::try_from(queue.0.under_way()).unwrap_or(c_uint::MAX))
}

/// `ardma_resume`
///
/// # Safety
/// As of [`ardma_fetch_add`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_resume(queue: *mut QueueHandle) -> c_int {
    // SAFETY: the caller's contract.
    let Some(queue) = (unsafe { queue.as_mut() }) else { return refused("no queue was given") };
    outcome(queue.0.resume())
}
