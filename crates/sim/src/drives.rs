//! Drives: a media latency that many commands share, behind a transfer that handles them one by
//! one.
//!
//! A read completes `transfer + latency` after its turn at the drive's link begins. `transfer` is
//! its bytes over the drive's bandwidth (commands queue for it in order). `latency` is `base +
//! tail`, with an exponential `tail` that has the rest of the mean after the fixed part. Parts of a
//! drive share all of this. A null device has none of it.
//!
//! # Writes
//! The measured rows have none. A write is the reverse of a read: the target pulls the data with
//! RDMA READ or R2T (NVMe over Fabrics). Direct cache access puts it where the drive then reads it:
//!
//! ```text
//! landed = request to the host + answer + bytes / port, in line with the port's other inbound data
//! fetch  = missed x (bytes / fetch_miss - bytes / fetch_hit), on the shared engine (module nic)
//! done   = max(drive's turn + bytes / write bandwidth, fetched) + write latency
//! ```
//!
//! `missed` is the fraction evicted from the cache between landing and the drive's fetch. A deep
//! queue of writes thus loses lines as reads do, but waits for the drives, not for a port. In a mix
//! both share the cache and the path to memory, and use the two directions of the ports separately.
//! The write numbers of the platforms are typical ones, not measured.

use nvmeof_random::SplitMix64;

use crate::numbers::{micros, whole};
use crate::platform::Platform;
use crate::scenario::Nanos;

/// All drives of the machine.
#[derive(Debug)]
pub(crate) struct Drives {
    /// Time at which each has transferred the accepted commands: reads and writes.
    read_free: Vec<Nanos>,
    write_free: Vec<Nanos>,
    read_latency: f64,
    write_latency: f64,
    tail: f64,
    path: Nanos,
    read_gbps: f64,
    write_gbps: f64,
    /// Each completes nothing before this time.
    stalled_until: Vec<Nanos>,
    rng: SplitMix64,
}

impl Drives {
    pub(crate) fn new(platform: &Platform, drives: usize, rng: SplitMix64) -> Self {
        Self {
            read_free: vec![0; drives],
            write_free: vec![0; drives],
            read_latency: platform.drive_read_us * 1000.0,
            write_latency: platform.drive_write_us * 1000.0,
            tail: platform.drive_tail,
            path: micros(platform.drive_path_us),
            read_gbps: platform.drive_read_gbps,
            write_gbps: platform.drive_write_gbps,
            stalled_until: vec![0; drives],
            rng,
        }
    }

    /// Returns the time at which a read submitted now completes: all of its data is in memory.
    pub(crate) fn read(&mut self, drive: u32, bytes: u32, now: Nanos) -> Nanos {
        let transfer = whole(f64::from(bytes) * 8.0 / self.read_gbps);
        let free = &mut self.read_free[drive as usize];
        *free = (*free).max(now) + transfer;
        // The measured latency includes the transfer, as a user measures it.
        let fixed = self.read_latency - transfer as f64;
        *free + self.path + whole(self.spread(fixed.max(0.0)))
    }

    /// Returns the time at which a write submitted now completes; its data is out of memory at
    /// `fetched`.
    pub(crate) fn write(&mut self, drive: u32, bytes: u32, fetched: Nanos, now: Nanos) -> Nanos {
        let transfer = whole(f64::from(bytes) * 8.0 / self.write_gbps);
        let free = &mut self.write_free[drive as usize];
        *free = ((*free).max(now) + transfer).max(fetched);
        let fixed = self.write_latency - transfer as f64;
        *free + self.path + whole(self.spread(fixed.max(0.0)))
    }

    fn spread(&mut self, mean: f64) -> f64 {
        mean * (1.0 - self.tail + self.tail * self.rng.exponential())
    }

    /// Lets one drive, or all, complete nothing until this time.
    pub(crate) fn stall(&mut self, drive: Option<u32>, until: Nanos) {
        let (from, many) = drive.map_or((0, usize::MAX), |drive| (drive as usize, 1));
        for stalled in self.stalled_until.iter_mut().skip(from).take(many) {
            *stalled = (*stalled).max(until);
        }
    }

    /// Returns the actual time of a completion that is due now, if it is later.
    pub(crate) fn held_until(&self, drive: u32, now: Nanos) -> Option<Nanos> {
        let until = self.stalled_until[drive as usize];
        (until > now).then_some(until)
    }
}
