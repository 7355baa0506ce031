//! Devices, regions, grants: what a program makes and gives back.

use crate::{outcome, refused, told};
use ardma::{Adaptor, ExportOptions, KeyExport, LocalRights, Nodes, Queue, QueueOptions, Registered};
use std::ffi::{OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

/// `ardma_device`
pub struct Device(pub(crate) Adaptor);
/// `ardma_region`
pub struct Region(pub(crate) Registered);
/// `ardma_grant`
pub struct Grant(KeyExport);
/// `ardma_queue`
pub struct QueueHandle(pub(crate) Queue);

const READABLE: c_uint = 1;
const WRITABLE: c_uint = 2;
const GRANT_READ: c_uint = 1;
const GRANT_WRITE: c_uint = 2;
const GRANT_ATOMIC: c_uint = 16;
const GRANT_BEYOND: c_uint = 32;

/// Gives out a handle, or null where there is an error.
fn give<T, U>(result: Result<U, ardma::Error>, wrap: fn(U) -> T) -> *mut T {
    match result {
        Ok(value) => Box::into_raw(Box::new(wrap(value))),
        Err(error) => {
            told(&error);
            ptr::null_mut()
        }
    }
}

/// Takes a handle back.
///
/// # Safety
/// It was given out by [`give`] and is not used any more, or is null.
unsafe fn take<T>(handle: *mut T) -> Option<Box<T>> {
    // SAFETY: the caller's contract.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle) })
}

/// `ardma_open`
///
/// # Safety
/// `path` is a C string or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_open(path: *const c_char) -> *mut Device {
    // SAFETY: the caller's contract.
    let Some(path) = (unsafe { crate::text(path) }) else {
        refused("no path of a device file was given");
        return ptr::null_mut();
    };
    give(Adaptor::open(OsStr::from_bytes(path.to_bytes())), Device)
}

/// `ardma_close`
///
/// # Safety
/// `device` is a handle that is not used any more, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_close(device: *mut Device) {
    // SAFETY: the caller's contract.
    drop(unsafe { take(device) });
}

/// `ardma_node`
///
/// # Safety
/// `device` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_node(device: *const Device) -> c_int {
    // SAFETY: the caller's contract.
    match unsafe { device.as_ref() } {
        Some(device) => c_int::try_from(device.0.fixed().node).unwrap_or(c_int::MAX),
        None => refused("no device was given"),
    }
}

/// `ardma_register`
///
/// # Safety
/// `device` is a handle or null; the memory stays mapped until the region was given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_register(
    device: *mut Device,
    address: *mut c_void,
    length: usize,
    rights: c_uint,
) -> *mut Region {
    // SAFETY: the caller's contract.
    let Some(device) = (unsafe { device.as_ref() }) else {
        refused("no device was given");
        return ptr::null_mut();
    };
    if rights & !(READABLE | WRITABLE) != 0 {
        refused("the rights are ARDMA_READABLE and ARDMA_WRITABLE");
        return ptr::null_mut();
    }
    let rights = LocalRights { read: rights & READABLE != 0, write: rights & WRITABLE != 0 };
    // SAFETY: the caller's contract; C has no references.
    give(unsafe { device.0.register_foreign(address.cast(), length, rights) }, Region)
}

/// `ardma_deregister`
///
/// # Safety
/// `region` is a handle that is not used any more, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_deregister(region: *mut Region) -> c_int {
    // SAFETY: the caller's contract.
    let Some(held) = (unsafe { region.as_ref() }) else { return 0 };
    let code = outcome(held.0.end());
    if code != libc::EBUSY.wrapping_neg() {
        // SAFETY: the caller's contract; the reference from above is not used any more.
        drop(unsafe { take(region) });
    }
    code
}

/// `ardma_export`
///
/// # Safety
/// `region` is a handle or null, `nodes` points to four words or is null, `offset` to one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_export(
    region: *mut Region,
    start: usize,
    length: usize,
    rights: c_uint,
    nodes: *const [u64; 4],
    offset: *mut u64,
) -> *mut Grant {
    // SAFETY: the caller's contract.
    let (Some(region), Some(offset)) = (unsafe { (region.as_ref(), offset.as_mut()) }) else {
        refused("no region, or no place for the offset, was given");
        return ptr::null_mut();
    };
    // SAFETY: the caller's contract.
    let nodes = unsafe { nodes.as_ref() }.map_or(Nodes::ALL, |&words| Nodes::from_words(words));
    let options = ExportOptions {
        offset: (*offset != u64::MAX).then_some(*offset),
        read: rights & GRANT_READ != 0,
        write: rights & GRANT_WRITE != 0,
        atomic: rights & GRANT_ATOMIC != 0,
        beyond: rights & GRANT_BEYOND != 0,
        nodes,
        ..ExportOptions::default()
    };
    let export = region.0.export(start as u64, length as u64, &options);
    if let Ok(export) = &export {
        *offset = export.place().offset;
    }
    give(export, Grant)
}

/// `ardma_unexport`
///
/// # Safety
/// `grant` is a handle that is not used any more, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_unexport(grant: *mut Grant) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { take(grant) }.map_or(0, |mut grant| outcome(grant.0.end()))
}

/// `ardma_connect`
///
/// # Safety
/// `device` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_connect(device: *mut Device, entries: c_uint) -> *mut QueueHandle {
    // SAFETY: the caller's contract.
    let Some(device) = (unsafe { device.as_ref() }) else {
        refused("no device was given");
        return ptr::null_mut();
    };
    let options = QueueOptions { entries, scatter: 0, ..QueueOptions::default() };
    give(device.0.connect(&options), QueueHandle)
}

/// `ardma_disconnect`
///
/// # Safety
/// `queue` is a handle that is not used any more, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_disconnect(queue: *mut QueueHandle) {
    // SAFETY: the caller's contract.
    drop(unsafe { take(queue) });
}
