//! Limits of a target, from the config, and all values that are derived from them.

use nvmeof_wire::sqe::NSID_ALL;

/// Maximum namespace ID (Base 3.2.1.2): FFFFFFFFh is the broadcast value.
pub const MAX_NSID: u32 = NSID_ALL - 1;

/// Maximum namespaces of a subsystem; the MNAN field of Identify Controller.
pub const MAX_NAMESPACES: u32 = 1024;

/// Maximum number of outstanding Asynchronous Event Requests per controller (AERL + 1).
pub const ASYNC_EVENTS: u8 = 4;

/// Maximum number of concurrent Abort commands per controller (ACL + 1).
pub const ABORTS: u8 = 4;

/// Entries of the error information log (ELPE + 1).
pub const ERROR_LOG_ENTRIES: usize = 64;

/// Minimum entries of an admin queue, which hosts rely on over fabrics (Base 3.3.2.2).
pub const ADMIN_QUEUE_MIN: u16 = 32;

/// Maximum ranges of one Dataset Management command (its NR field has 8 bits, 0's based).
pub const DSM_RANGES: u16 = 256;

/// Maximum logical blocks of one Dataset Management range (DMRSL).
///
/// With blocks of 512 bytes that is 4 GiB. A Linux host never puts more into one range, because a
/// bio counts its bytes in 32 bits. Hosts that do not read DMRSL therefore respect it, too.
pub const DSM_RANGE_BLOCKS: u32 = 1 << 23;

/// Maximum logical blocks of one Dataset Management command (DMSL): every range can be maximal.
pub const DSM_BLOCKS: u64 = DSM_RANGE_BLOCKS as u64 * DSM_RANGES as u64;

/// WZSL: Write Zeroes covers at most 2 to this power pages of [`PAGE`] bytes, 32 MiB.
///
/// With blocks of 512 bytes, 32 MiB is the most that the 16 bits of NLB can express. A larger value
/// would mislead hosts that use WZSL as their limit.
pub const WZSL: u8 = 13;
const _: () = assert!((PAGE as u64) << WZSL == 512 << 16);

/// Bytes per piece of Write Zeroes.
///
/// A device without a command for it writes the zeroes. A piece takes any device some milliseconds,
/// so other commands run in between and an Abort takes effect in time.
pub const ZEROES_PIECE: u64 = 4 << 20;

/// Bytes per piece of Deallocate.
///
/// No data moves, but each piece is a command of the drive or a system call. A TiB is 16384 pieces,
/// which take a drive seconds.
pub const DEALLOCATE_PIECE: u64 = 64 << 20;

/// Unit of MDTS and of memory pages in bytes: 2 to the (12 + CAP.MPSMIN).
pub const PAGE: u32 = 4096;

/// Highest controller ID (Base 5.17.2.1: FFF0h and above are reserved).
pub const CNTLID_MAX: u16 = 0xffef;

/// Timeout in seconds of an association that stays disabled.
///
/// It also applies to an idle discovery controller without keep-alive.
///
/// Base 3.1.2.3 and 3.3.2.2 set it to two minutes.
pub const ASSOCIATION_TIMEOUT_SECONDS: u64 = 120;

/// Limits from the config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum entries of a queue, 2 to 65535 (CAP.MQES + 1).
    pub queue_depth: u16,
    /// Maximum I/O queues per controller, at least 1.
    pub io_queues: u16,
    /// Maximum bytes per command; MDTS is the power of two at or below.
    pub max_transfer: u32,
    /// Bytes of in-capsule data that an I/O queue accepts (IOCCSZ - 64).
    pub in_capsule: u32,
    /// Minimum keep-alive timeout in milliseconds; a shorter one is rounded up.
    pub keep_alive_min_ms: u32,
    /// Maximum connected queues of the whole target.
    pub connections: u32,
    /// Maximum time from connection to accepted Connect, in milliseconds.
    pub connect_timeout_ms: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue_depth: 128,
            io_queues: 16,
            max_transfer: 1 << 20,
            in_capsule: 8192,
            keep_alive_min_ms: 1000,
            connections: 1024,
            connect_timeout_ms: 30_000,
        }
    }
}

impl Limits {
    /// Maximum number of discovery controllers: 1/4 of the connections.
    ///
    /// The rest remains for other controllers; hosts need discovery only at the start.
    #[must_use]
    pub fn discovery_controllers(&self) -> u32 {
        (self.connections / 4).max(1)
    }

    /// Maximum connected queues of hosts that no subsystem lists, if any subsystem lists hosts.
    ///
    /// The rest is reserved for listed hosts.
    #[must_use]
    pub fn unlisted_connections(&self) -> u32 {
        self.connections - self.connections / 4
    }

    /// Maximum entries of an admin queue.
    #[must_use]
    pub fn admin_queue_depth(&self) -> u16 {
        self.queue_depth.max(ADMIN_QUEUE_MIN)
    }

    /// Maximum entries of an I/O queue; a queue has at least two.
    #[must_use]
    pub fn io_queue_depth(&self) -> u16 {
        self.queue_depth.max(2)
    }

    /// CAP.MQES, 0's based, for I/O queues (Base 3.1.3.1).
    #[must_use]
    pub fn mqes(&self) -> u16 {
        self.io_queue_depth() - 1
    }

    /// MDTS: a command has at most 2 to this power pages of [`PAGE`] bytes (Base 5.17.2.1).
    ///
    /// At least 1, because 0 would mean no limit.
    #[must_use]
    pub fn mdts(&self) -> u8 {
        let power = (self.max_transfer / PAGE).max(2).ilog2();
        u8::try_from(power).unwrap_or(u8::MAX)
    }

    /// Maximum bytes per command, as MDTS reports it.
    #[must_use]
    pub fn max_transfer(&self) -> u32 {
        PAGE << self.mdts()
    }

    /// KAS: granularity of keep-alive timeouts, in 100 ms; never coarser than the minimum or 1 s.
    #[must_use]
    pub fn kas(&self) -> u16 {
        u16::try_from((self.keep_alive_min_ms / 100).clamp(1, 10)).unwrap_or(1)
    }

    /// The keep-alive timeout for a host that requests `kato` milliseconds.
    ///
    /// It is 0 (none), or rounded up to the granularity and the minimum (Base 3.9 and 5.27.1.12).
    #[must_use]
    pub fn keep_alive(&self, kato: u32) -> u32 {
        if kato == 0 {
            return 0;
        }
        let unit = u32::from(self.kas()) * 100;
        let wanted = kato.max(self.keep_alive_min_ms);
        wanted.div_ceil(unit).checked_mul(unit).unwrap_or(u32::MAX / unit * unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mdts_is_the_power_of_two_below() {
        let limits = |max_transfer| Limits { max_transfer, ..Limits::default() };
        assert_eq!(limits(1 << 20).mdts(), 8);
        assert_eq!(limits(1 << 20).max_transfer(), 1 << 20);
        assert_eq!(limits((1 << 20) - 1).max_transfer(), 1 << 19);
        assert_eq!(limits(0).max_transfer(), 8192);
        assert_eq!(limits(u32::MAX).max_transfer(), 1 << 31);
    }

    #[test]
    fn keep_alive_is_rounded_up() {
        let limits = Limits { keep_alive_min_ms: 5000, ..Limits::default() };
        assert_eq!(limits.kas(), 10);
        assert_eq!(limits.keep_alive(0), 0);
        assert_eq!(limits.keep_alive(1), 5000);
        assert_eq!(limits.keep_alive(5001), 6000);
        assert_eq!(limits.keep_alive(u32::MAX), 4_294_967_000);
        let fine = Limits { keep_alive_min_ms: 10, ..Limits::default() };
        assert_eq!(fine.kas(), 1);
        assert_eq!(fine.keep_alive(110), 200);
    }
}
