//! The shared memory: counters in its first page, blocks behind it. A block belongs to the sender until `POSTED` counts it, and again
//! when `TAKEN` does.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags, mmap};

/// Vendor and device of ivshmem, as sysfs has them. Its BAR 2 is the memory.
const DEVICE: [(&str, &str); 2] = [("vendor", "0x1af4"), ("device", "0x1110")];
const HEADER: usize = 4096;
/// Counters, each in a cache line of its own, by their offset: whether somebody serves, how many blocks were handed over, how many were
/// seen.
const SERVED: usize = 0;
const POSTED: usize = 64;
const TAKEN: usize = 128;
/// In `POSTED`: there will be no more.
const END: u64 = u64::MAX;
/// Blocks that are on their way at most.
const SLOTS: usize = 256;
/// How long one guest waits for the other.
const PATIENCE: Duration = Duration::from_secs(20);

/// The device's memory, mapped until the process ends.
pub struct Shared {
    base: NonNull<u8>,
    length: usize,
}

impl Shared {
    /// Finds the device and maps its memory.
    pub fn open() -> Result<Self, String> {
        let device = find().ok_or("this guest has no ivshmem device (PCI 1af4:1110)")?;
        let failed =
            |what: &str, error: &dyn std::fmt::Display| format!("{}: {what}: {error}", device.display());
        fs::write(device.join("enable"), "1").map_err(|error| failed("cannot be enabled", &error))?;
        let path = device.join("resource2");
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(|error| failed("its memory cannot be opened", &error))?;
        let length = file.metadata().map_or(0, |data| data.len());
        let length = usize::try_from(length).unwrap_or(0);
        if length <= HEADER {
            return Err(failed("its memory is too small", &length));
        }
        // SAFETY: a new mapping at a place that the kernel chooses; it is never unmapped.
        let base = unsafe {
            mmap(ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
        };
        let base = base.map_err(|error| failed("its memory cannot be mapped", &error))?;
        let base = NonNull::new(base.cast()).ok_or("its memory is mapped at 0")?;
        Ok(Self { base, length })
    }

    /// Sees what is handed over, until the sender ends.
    pub fn serve(&self) -> Result<(), String> {
        self.counter(TAKEN).store(0, Ordering::Relaxed);
        self.counter(POSTED).store(0, Ordering::Relaxed);
        self.counter(SERVED).store(1, Ordering::Release);
        let mut taken = 0;
        loop {
            let mut posted = taken;
            wait_until("nothing comes from the other guest", || {
                posted = self.counter(POSTED).load(Ordering::Acquire);
                posted != taken
            })?;
            if posted == END {
                return Ok(());
            }
            taken = posted;
            self.counter(TAKEN).store(taken, Ordering::Release);
        }
    }

    /// To send blocks of this size to who serves.
    pub fn sender(&self, size: usize) -> Result<Sender<'_>, String> {
        let room = self.length.saturating_sub(HEADER);
        let slots = room.checked_div(size).unwrap_or(0).min(SLOTS);
        if slots < 2 {
            return Err(format!("blocks have 1 to {} bytes, not {size}", room / 2));
        }
        wait_until("nobody serves in the other guest", || self.counter(SERVED).load(Ordering::Acquire) == 1)?;
        Ok(Sender { shared: self, size, slots: slots as u64, posted: 0 })
    }

    fn counter(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the counters lie in the first page, which is mapped as long as the process lives, and are aligned. All access to
        // them is atomic, on the other guest's side too.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).as_ptr().cast()) }
    }
}

/// The side that measures.
pub struct Sender<'a> {
    shared: &'a Shared,
    size: usize,
    slots: u64,
    posted: u64,
}

impl Sender<'_> {
    /// Copies a block, of the size that was said, into a place that is free, and hands it over.
    pub fn send(&mut self, block: &[u8]) -> Result<(), String> {
        self.wait_for(self.slots.saturating_sub(1))?;
        let slot = usize::try_from(self.posted.checked_rem(self.slots).unwrap_or(0)).unwrap_or(0);
        let offset = slot.saturating_mul(self.size).saturating_add(HEADER);
        // SAFETY: `slot` is less than `slots`, so that all of it is mapped. The other guest reads it only after it was handed over, and
        // it was seen before it comes to be used again.
        unsafe {
            let place = self.shared.base.add(offset).as_ptr();
            ptr::copy_nonoverlapping(block.as_ptr(), place, self.size.min(block.len()));
        }
        self.posted = self.posted.saturating_add(1);
        self.shared.counter(POSTED).store(self.posted, Ordering::Release);
        Ok(())
    }

    /// Waits until the other guest has seen all blocks.
    pub fn wait(&self) -> Result<(), String> {
        self.wait_for(0)
    }

    /// No more than so many blocks are on their way.
    fn wait_for(&self, most: u64) -> Result<(), String> {
        wait_until("the other guest takes nothing", || {
            self.posted.saturating_sub(self.shared.counter(TAKEN).load(Ordering::Acquire)) <= most
        })
    }

    /// Ends who serves, too.
    pub fn end(self) {
        self.shared.counter(SERVED).store(0, Ordering::Relaxed);
        self.shared.counter(POSTED).store(END, Ordering::Release);
    }
}

/// The device's folder in sysfs.
fn find() -> Option<PathBuf> {
    let is_shared_memory = |path: &Path| {
        DEVICE.iter().all(|(file, want)| {
            fs::read_to_string(path.join(file)).is_ok_and(|content| content.trim() == *want)
        })
    };
    let devices = fs::read_dir("/sys/bus/pci/devices").ok()?;
    devices.flatten().map(|entry| entry.path()).find(|path| is_shared_memory(path))
}

/// Looks all the time, as whoever wants a short latency does; a `pause` would only make an emulated processor stop.
fn wait_until(or_else: &str, mut condition: impl FnMut() -> bool) -> Result<(), String> {
    if condition() {
        return Ok(());
    }
    let begin = Instant::now();
    loop {
        for _ in 0..4096 {
            if condition() {
                return Ok(());
            }
        }
        if begin.elapsed() > PATIENCE {
            return Err(format!("{or_else} for {} s", PATIENCE.as_secs()));
        }
    }
}
