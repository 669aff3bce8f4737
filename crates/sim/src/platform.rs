//! Numbers of a machine, from one file: at most 25, each a physical quantity.

use std::path::Path;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::cache::{BEST, EDGE};
use crate::nic::{STATE_BYTES, STATES};

/// A target server, its drives, its network and the path to its hosts. The files under
/// `configs/platforms` document the source of each number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Platform {
    /// Network ports.
    pub ports: u32,
    /// Goodput of one port in Gb/s.
    pub port_gbps: f64,
    /// Bits on the link per bit of data.
    pub wire_bits: f64,
    /// Mean number of commands of one core that a port sends in a row, while the core has any.
    pub port_run: f64,
    /// Latency from host to target or back, in µs, without the transfer time of the data on the
    /// link.
    pub one_way_us: f64,
    /// Latency that the Linux initiator adds to every command, in µs.
    pub kernel_us: f64,
    /// Maximum number of commands of one queue at the target.
    pub queue_commands: u32,
    /// Maximum number of commands of one queue of a userspace host, including those at the target.
    pub queue_requests: u32,
    /// Fraction of a userspace host's queues that exchanged cores with those of another host.
    pub stray_queues: f64,
    /// Read latency of one drive, alone and local, at 128 KiB, in µs.
    pub drive_read_us: f64,
    /// Read bandwidth of one drive in Gb/s.
    pub drive_read_gbps: f64,
    /// Write latency of one drive, alone and local, at 128 KiB, in µs.
    pub drive_write_us: f64,
    /// Write bandwidth of one drive in Gb/s.
    pub drive_write_gbps: f64,
    /// Fraction of a drive's latency that varies (exponentially).
    pub drive_tail: f64,
    /// Latency that the target adds to a drive's, in µs.
    pub drive_path_us: f64,
    /// Latency that a part of a drive adds to that, in µs.
    pub split_us: f64,
    /// Latency that a delay device adds to its configured delay, in µs.
    pub delay_us: f64,
    /// Time of a core's turn with work, in µs.
    pub turn_us: f64,
    /// Time of a core for a command at each of its three steps, in µs.
    pub step_us: f64,
    /// Time that every command in io_pacing's waiting list of a core adds to its turns, in ns.
    pub waiting_ns: f64,
    /// Time from one poll of its timers by an io_pacing core to the next, in µs.
    pub timer_us: f64,
    /// Part of the cache that DMA may use, in MiB.
    pub cache_share_mib: f64,
    /// Rate at which the NIC fetches from the cache, in Gb/s.
    pub fetch_hit_gbps: f64,
    /// Rate at which the NIC fetches from memory while drives write to memory, in Gb/s.
    pub fetch_miss_gbps: f64,
    /// As above, while nothing writes to memory.
    pub fetch_quiet_gbps: f64,
}

/// Platform file that cannot be used.
#[derive(Debug, Error)]
pub enum PlatformError {
    /// It cannot be read.
    #[error("cannot read the platform {path}: {why}")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's reason.
        why: std::io::Error,
    },
    /// A key is missing, unknown or of the wrong type.
    #[error("platform {path}: {why}")]
    Malformed {
        /// The file.
        path: String,
        /// Line, key and error.
        why: Box<toml::de::Error>,
    },
    /// An impossible number.
    #[error("platform: {key} = {value} cannot be: it must be {allowed}")]
    Impossible {
        /// The key of the number.
        key: &'static str,
        /// Its value.
        value: f64,
        /// The valid values.
        allowed: &'static str,
    },
}

impl Platform {
    /// Reads a platform file.
    ///
    /// # Errors
    /// [`PlatformError`] names the file, the key and the reason.
    pub fn load(path: &Path) -> Result<Self, PlatformError> {
        let name = || path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|why| PlatformError::Unreadable { path: name(), why })?;
        let platform: Self = toml::from_str(&text)
            .map_err(|why| PlatformError::Malformed { path: name(), why: Box::new(why) })?;
        platform.check()?;
        Ok(platform)
    }

    /// Returns it with other numbers: `timer-us=13,step-us=1`.
    ///
    /// # Errors
    /// [`PlatformError`] names the unknown key or the impossible number.
    pub fn with(&self, numbers: &str) -> Result<Self, PlatformError> {
        let malformed = |why| PlatformError::Malformed { path: numbers.into(), why: Box::new(why) };
        let mut table = toml::Table::try_from(self).unwrap_or_default();
        let changed = numbers.replace(',', "\n");
        table.extend(changed.parse::<toml::Table>().map_err(malformed)?);
        let platform: Self = table.try_into().map_err(malformed)?;
        platform.check()?;
        Ok(platform)
    }

    /// Checks that a machine can have these numbers.
    ///
    /// # Errors
    /// [`PlatformError::Impossible`] names the first invalid one.
    pub fn check(&self) -> Result<(), PlatformError> {
        let bad = |key, value, allowed| Err(PlatformError::Impossible { key, value, allowed });
        for (key, value) in self.numbers() {
            if !value.is_finite() || value < 0.0 {
                return bad(key, value, "finite and not negative");
            }
            let rate = key.ends_with("gbps") || key == "ports" || key.starts_with("queue");
            if rate && value <= 0.0 {
                return bad(key, value, "more than 0");
            }
            if key == "port-run" && value < 1.0 {
                return bad(key, value, "at least 1");
            }
            if matches!(key, "drive-tail" | "stray-queues") && value > 1.0 {
                return bad(key, value, "0 to 1");
            }
        }
        Ok(())
    }

    /// Returns every number by name, in the order of the file.
    #[must_use]
    pub fn numbers(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("ports", f64::from(self.ports)),
            ("port-gbps", self.port_gbps),
            ("wire-bits", self.wire_bits),
            ("port-run", self.port_run),
            ("one-way-us", self.one_way_us),
            ("kernel-us", self.kernel_us),
            ("queue-commands", f64::from(self.queue_commands)),
            ("queue-requests", f64::from(self.queue_requests)),
            ("stray-queues", self.stray_queues),
            ("drive-read-us", self.drive_read_us),
            ("drive-read-gbps", self.drive_read_gbps),
            ("drive-write-us", self.drive_write_us),
            ("drive-write-gbps", self.drive_write_gbps),
            ("drive-tail", self.drive_tail),
            ("drive-path-us", self.drive_path_us),
            ("split-us", self.split_us),
            ("delay-us", self.delay_us),
            ("turn-us", self.turn_us),
            ("step-us", self.step_us),
            ("waiting-ns", self.waiting_ns),
            ("timer-us", self.timer_us),
            ("cache-share-mib", self.cache_share_mib),
            ("fetch-hit-gbps", self.fetch_hit_gbps),
            ("fetch-miss-gbps", self.fetch_miss_gbps),
            ("fetch-quiet-gbps", self.fetch_quiet_gbps),
        ]
    }

    /// Returns a short number that changes with any number of the platform, or with those that
    /// all platforms share.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let shared =
            [("edge", EDGE), ("best", BEST), ("states", STATES), ("state-bytes", STATE_BYTES)];
        for (key, value) in self.numbers().into_iter().chain(shared) {
            for byte in key.bytes().chain(value.to_bits().to_le_bytes()) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        hash
    }

    /// Returns the goodput of all ports together in Gb/s.
    #[must_use]
    pub fn link_gbps(&self) -> f64 {
        f64::from(self.ports) * self.port_gbps
    }

    /// Returns the same machine with every rate, cache size and latency multiplied.
    #[must_use]
    pub fn scaled(&self, rate: f64, cache: f64, time: f64) -> Self {
        Self {
            port_gbps: self.port_gbps * rate,
            drive_read_gbps: self.drive_read_gbps * rate,
            drive_write_gbps: self.drive_write_gbps * rate,
            fetch_hit_gbps: self.fetch_hit_gbps * rate,
            fetch_miss_gbps: self.fetch_miss_gbps * rate,
            fetch_quiet_gbps: self.fetch_quiet_gbps * rate,
            cache_share_mib: self.cache_share_mib * cache,
            one_way_us: self.one_way_us * time,
            kernel_us: self.kernel_us * time,
            drive_read_us: self.drive_read_us * time,
            drive_write_us: self.drive_write_us * time,
            drive_path_us: self.drive_path_us * time,
            split_us: self.split_us * time,
            delay_us: self.delay_us * time,
            turn_us: self.turn_us * time,
            step_us: self.step_us * time,
            waiting_ns: self.waiting_ns * time,
            timer_us: self.timer_us * time,
            ..self.clone()
        }
    }
}
