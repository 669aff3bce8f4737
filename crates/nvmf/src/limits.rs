//! The bounds of a target: what the config sets, and everything derived from it, in one place.

/// Largest namespace ID a subsystem may have; the NN and MNAN fields of Identify Controller.
pub const MAX_NSID: u32 = 1024;

/// Asynchronous Event Requests a controller holds at once (AERL + 1).
pub const ASYNC_EVENTS: u8 = 4;

/// Abort commands a controller works on at once (ACL + 1).
pub const ABORTS: u8 = 4;

/// Entries of the error information log (ELPE + 1).
pub const ERROR_LOG_ENTRIES: usize = 64;

/// Entries of an admin queue at least: what Base 3.3.2.2 has hosts rely on over fabrics.
pub const ADMIN_QUEUE_MIN: u16 = 32;

/// Most ranges of one Dataset Management command (its NR field has 8 bits, 0's based).
pub const DSM_RANGES: u16 = 256;

/// Most logical blocks of one range of Dataset Management (DMRSL). With blocks of 512 bytes that is
/// 4 GiB, the most that a Linux host ever puts in one range (a bio counts its bytes in 32 bits):
/// hosts that do not read DMRSL keep to it as well.
pub const DSM_RANGE_BLOCKS: u32 = 1 << 23;

/// Most logical blocks of one Dataset Management command (DMSL): every range may be the largest.
pub const DSM_BLOCKS: u64 = DSM_RANGE_BLOCKS as u64 * DSM_RANGES as u64;

/// WZSL: Write Zeroes covers at most 2 to this power pages of [`PAGE`] bytes, 32 MiB. That is what
/// NLB's 16 bits can say with blocks of 512 bytes; hosts that take WZSL as their limit must not be
/// led beyond them.
pub const WZSL: u8 = 13;
const _: () = assert!((PAGE as u64) << WZSL == 512 << 16);

/// Bytes of the pieces that Write Zeroes is cut into. A device that has no command for it writes
/// them: this is what takes any device some milliseconds, so that others' commands come between,
/// and an Abort in time.
pub const ZEROES_PIECE: u64 = 4 << 20;

/// Bytes of the pieces that Deallocate is cut into: no data moves, but each piece is a command of
/// the drive or a call of the system. A TiB is 16384 of them, which takes a drive seconds.
pub const DEALLOCATE_PIECE: u64 = 64 << 20;

/// Unit of MDTS and of memory pages in bytes: 2 to the (12 + CAP.MPSMIN).
pub const PAGE: u32 = 4096;

/// Highest controller ID (Base 5.17.2.1: FFF0h and above are reserved).
pub const CNTLID_MAX: u16 = 0xffef;

/// Seconds an association may stay not enabled, or a discovery controller without keep-alive idle,
/// before it is given up (Base 3.1.2.3 and 3.3.2.2 leave it at two minutes).
pub const ASSOCIATION_TIMEOUT_SECONDS: u64 = 120;

/// What the config bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of the largest queue a host may ask for, 2 to 65535 (CAP.MQES + 1).
    pub queue_depth: u16,
    /// I/O queues one controller may have, at least 1.
    pub io_queues: u16,
    /// Most bytes one command moves; MDTS is its power of two below.
    pub max_transfer: u32,
    /// Bytes of in-capsule data an I/O queue takes (IOCCSZ - 64).
    pub in_capsule: u32,
    /// Shortest keep-alive timeout in milliseconds; a shorter one is rounded up.
    pub keep_alive_min_ms: u32,
    /// Connected queues of the whole target.
    pub connections: u32,
    /// How long a new connection may take until its Connect is accepted, in milliseconds.
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
    /// Discovery controllers there may be: a quarter of the connections, so that they leave room for hosts, which need
    /// discovery only to begin with.
    #[must_use]
    pub fn discovery_controllers(&self) -> u32 {
        (self.connections / 4).max(1)
    }

    /// Connected queues that hosts which no subsystem lists may have, where any lists hosts: the rest is kept for those
    /// that are listed.
    #[must_use]
    pub fn unlisted_connections(&self) -> u32 {
        self.connections - self.connections / 4
    }

    /// Entries an admin queue may have at most.
    #[must_use]
    pub fn admin_queue_depth(&self) -> u16 {
        self.queue_depth.max(ADMIN_QUEUE_MIN)
    }

    /// Entries an I/O queue may have at most; a queue has two at least.
    #[must_use]
    pub fn io_queue_depth(&self) -> u16 {
        self.queue_depth.max(2)
    }

    /// CAP.MQES, 0's based: of I/O queues (Base 3.1.3.1).
    #[must_use]
    pub fn mqes(&self) -> u16 {
        self.io_queue_depth() - 1
    }

    /// MDTS: most data of a command is 2 to this power pages of [`PAGE`] bytes (Base 5.17.2.1); at
    /// least 1 because 0 would mean no limit.
    #[must_use]
    pub fn mdts(&self) -> u8 {
        let power = (self.max_transfer / PAGE).max(2).ilog2();
        u8::try_from(power).unwrap_or(u8::MAX)
    }

    /// Most bytes one command moves: what MDTS says.
    #[must_use]
    pub fn max_transfer(&self) -> u32 {
        PAGE << self.mdts()
    }

    /// KAS: granularity of keep-alive timeouts, in 100 ms; never coarser than the minimum or 1 s.
    #[must_use]
    pub fn kas(&self) -> u16 {
        u16::try_from((self.keep_alive_min_ms / 100).clamp(1, 10)).unwrap_or(1)
    }

    /// The keep-alive timeout a host gets that asks for `kato` milliseconds: 0 (none), or rounded up to
    /// the granularity and the minimum (Base 3.9 and 5.27.1.12).
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
