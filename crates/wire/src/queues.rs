//! Queues in host memory, for PCIe controllers: Create and Delete I/O Completion and Submission
//! Queue (Base 5.4 to 5.7), Doorbell Buffer Config (Base 5.8).
//!
//! All of these commands have addresses in PRP1 and PRP2, with PSDT 00b.

use crate::opcode::AdminOpcode;
use crate::open::open_enum;
use crate::sqe::Sqe;

/// Minimum entries of a queue (Base 3.3.3).
pub const QUEUE_ENTRIES_MIN: u32 = 2;

/// Maximum entries of an I/O queue (Base 3.3.3), if CAP.MQES allows them.
pub const QUEUE_ENTRIES_MAX: u32 = 1 << 16;

/// Maximum entries of an admin queue (Base 3.1.3.8).
pub const ADMIN_QUEUE_ENTRIES_MAX: u32 = 4096;

const CONTIGUOUS: u32 = 1 << 0;
const INTERRUPTS: u32 = 1 << 1;

/// CDW10 of both Create commands: QID, and QSIZE, which is 0's based.
fn encode_size(qid: u16, entries: u32) -> u32 {
    u32::from(qid) | (entries.clamp(1, QUEUE_ENTRIES_MAX) - 1) << 16
}

fn parse_size(cdw10: u32) -> (u16, u32) {
    let [q0, q1, s0, s1] = cdw10.to_le_bytes();
    (u16::from_le_bytes([q0, q1]), u32::from(u16::from_le_bytes([s0, s1])) + 1)
}

/// Create I/O Completion Queue (Base 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateIoCq {
    /// Queue identifier.
    pub qid: u16,
    /// Entries (QSIZE is 0's based); the valid range is 2 to 65536.
    pub entries: u32,
    /// Start of the queue, or of its PRP list if it is not contiguous.
    pub prp1: u64,
    /// Physically Contiguous.
    pub contiguous: bool,
    /// Interrupt vector, if interrupts are enabled (IEN, IV).
    pub vector: Option<u16>,
}

impl CreateIoCq {
    /// Parses the fields of `sqe`, which is a Create I/O Completion Queue.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let (qid, entries) = parse_size(sqe.cdw10.get());
        let cdw11 = sqe.cdw11.get();
        Self {
            qid,
            entries,
            prp1: sqe.prp().0,
            contiguous: cdw11 & CONTIGUOUS != 0,
            vector: (cdw11 & INTERRUPTS != 0).then_some(high_half(cdw11)),
        }
    }

    /// Returns the command. `entries` is clamped to 1 to 65536.
    #[must_use]
    pub fn encode(&self, cid: u16) -> Sqe {
        let vector = self.vector.map_or(0, |vector| INTERRUPTS | u32::from(vector) << 16);
        Sqe::admin(AdminOpcode::CREATE_IO_CQ, cid, 0)
            .with_prp(self.prp1, 0)
            .with_cdw10([encode_size(self.qid, self.entries), u32::from(self.contiguous) | vector])
    }
}

open_enum! {
    /// Queue Priority (Base 5.5); used only with weighted round robin.
    pub struct QueuePriority(pub u8) {
        URGENT = 0x0 => "urgent",
        HIGH = 0x1 => "high",
        MEDIUM = 0x2 => "medium",
        LOW = 0x3 => "low",
    }
}

/// Create I/O Submission Queue (Base 5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateIoSq {
    /// Queue identifier.
    pub qid: u16,
    /// Entries (QSIZE is 0's based); the valid range is 2 to 65536.
    pub entries: u32,
    /// Start of the queue, or of its PRP list if it is not contiguous.
    pub prp1: u64,
    /// Physically Contiguous.
    pub contiguous: bool,
    /// Priority, 2 bits.
    pub priority: QueuePriority,
    /// Completion queue of its commands.
    pub cqid: u16,
    /// Associated NVM Set; 0 is none.
    pub nvm_set: u16,
}

impl CreateIoSq {
    /// Parses the fields of `sqe`, which is a Create I/O Submission Queue.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let (qid, entries) = parse_size(sqe.cdw10.get());
        let cdw11 = sqe.cdw11.get();
        Self {
            qid,
            entries,
            prp1: sqe.prp().0,
            contiguous: cdw11 & CONTIGUOUS != 0,
            priority: QueuePriority(cdw11.to_le_bytes()[0] >> 1 & 3),
            cqid: high_half(cdw11),
            nvm_set: low_half(sqe.cdw12.get()),
        }
    }

    /// Returns the command. `entries` is clamped to 1 to 65536.
    #[must_use]
    pub fn encode(&self, cid: u16) -> Sqe {
        let cdw11 = u32::from(self.contiguous)
            | u32::from(self.priority.0 & 3) << 1
            | u32::from(self.cqid) << 16;
        Sqe::admin(AdminOpcode::CREATE_IO_SQ, cid, 0).with_prp(self.prp1, 0).with_cdw10([
            encode_size(self.qid, self.entries),
            cdw11,
            u32::from(self.nvm_set),
        ])
    }
}

/// Delete I/O Completion Queue (Base 5.6) or Delete I/O Submission Queue (Base 5.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteIoQueue {
    /// Queue identifier.
    pub qid: u16,
}

impl DeleteIoQueue {
    /// Parses the fields of `sqe`, which is one of the two.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        Self { qid: low_half(sqe.cdw10.get()) }
    }

    /// Delete I/O Completion Queue.
    #[must_use]
    pub fn encode_cq(self, cid: u16) -> Sqe {
        self.encode(AdminOpcode::DELETE_IO_CQ, cid)
    }

    /// Delete I/O Submission Queue.
    #[must_use]
    pub fn encode_sq(self, cid: u16) -> Sqe {
        self.encode(AdminOpcode::DELETE_IO_SQ, cid)
    }

    fn encode(self, opcode: AdminOpcode, cid: u16) -> Sqe {
        Sqe::admin(opcode, cid, 0).without_data().with_cdw10([self.qid.into()])
    }
}

/// Doorbell Buffer Config (Base 5.8). The host writes doorbell values to one buffer in memory. To
/// the other the controller writes the values at which it needs a real doorbell write. Each is one
/// memory page with the layout of the doorbells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoorbellBufferConfig {
    /// Shadow Doorbell buffer (PRP1), aligned to the memory page size.
    pub shadow: u64,
    /// `EventIdx` buffer (PRP2), aligned to the memory page size.
    pub event_idx: u64,
}

impl DoorbellBufferConfig {
    /// Parses the fields of `sqe`, which is a Doorbell Buffer Config.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let (shadow, event_idx) = sqe.prp();
        Self { shadow, event_idx }
    }

    /// Returns the command.
    #[must_use]
    pub fn encode(self, cid: u16) -> Sqe {
        Sqe::admin(AdminOpcode::DOORBELL_BUFFER_CONFIG, cid, 0)
            .with_prp(self.shadow, self.event_idx)
    }
}

/// Returns true if a doorbell has to be written after its shadow changed from `old` to `new`. It
/// has to if `event_idx` lies in `old..new` modulo 2^16 (Base B.5, as the values wrap).
#[inline]
#[must_use]
pub const fn needs_doorbell(event_idx: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event_idx).wrapping_sub(1) < new.wrapping_sub(old)
}

fn low_half(dword: u32) -> u16 {
    let [b0, b1, ..] = dword.to_le_bytes();
    u16::from_le_bytes([b0, b1])
}

fn high_half(dword: u32) -> u16 {
    low_half(dword >> 16)
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;
    use crate::golden;

    const ADDRESS: u64 = 0x1122_3344_5566_7000;
    const ADDRESS_BYTES: [u8; 8] = [0x00, 0x70, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11];

    #[test]
    fn create_completion_queue_bytes() {
        let bytes: [u8; 64] = golden::bytes(&[
            (0, &[0x05, 0x00, 0x34, 0x12]),
            (24, &ADDRESS_BYTES),
            (40, &[0x02, 0x01, 0xff, 0x03]), // QID, QSIZE
            (44, &[0x03, 0, 0xcd, 0xab]),    // PC, IEN, IV
        ]);
        let create = CreateIoCq {
            qid: 0x0102,
            entries: 1024,
            prp1: ADDRESS,
            contiguous: true,
            vector: Some(0xabcd),
        };
        assert_eq!(create.encode(0x1234).as_bytes(), bytes);
        assert_eq!(CreateIoCq::parse(&Sqe::read_from_bytes(&bytes).unwrap()), create);
        let silent = CreateIoCq { vector: None, contiguous: false, entries: 1 << 16, ..create };
        assert_eq!(silent.encode(1).cdw11.get(), 0);
        assert_eq!(silent.encode(1).cdw10.get(), 0xffff_0102);
        assert_eq!(CreateIoCq::parse(&silent.encode(1)), silent);
    }

    #[test]
    fn create_submission_queue_bytes() {
        let bytes: [u8; 64] = golden::bytes(&[
            (0, &[0x01, 0x00, 0x34, 0x12]),
            (24, &ADDRESS_BYTES),
            (40, &[0x02, 0x01, 0xff, 0x03]),
            (44, &[0x05, 0, 0xcd, 0xab]), // PC, QPRIO 10b, CQID
            (48, &[0x04, 0x03]),          // NVMSETID
        ]);
        let create = CreateIoSq {
            qid: 0x0102,
            entries: 1024,
            prp1: ADDRESS,
            contiguous: true,
            priority: QueuePriority::MEDIUM,
            cqid: 0xabcd,
            nvm_set: 0x0304,
        };
        assert_eq!(create.encode(0x1234).as_bytes(), bytes);
        assert_eq!(CreateIoSq::parse(&Sqe::read_from_bytes(&bytes).unwrap()), create);
    }

    #[test]
    fn delete_queue_bytes() {
        for (opcode, encode) in [
            (0x00u8, DeleteIoQueue::encode_sq as fn(DeleteIoQueue, u16) -> Sqe),
            (0x04, DeleteIoQueue::encode_cq),
        ] {
            let bytes: [u8; 64] =
                golden::bytes(&[(0, &[opcode, 0, 0x34, 0x12]), (40, &[0xcd, 0xab])]);
            assert_eq!(encode(DeleteIoQueue { qid: 0xabcd }, 0x1234).as_bytes(), bytes);
            let parsed = DeleteIoQueue::parse(&Sqe::read_from_bytes(&bytes).unwrap());
            assert_eq!(parsed, DeleteIoQueue { qid: 0xabcd });
        }
    }

    #[test]
    fn doorbell_buffer_config_bytes() {
        let bytes: [u8; 64] = golden::bytes(&[
            (0, &[0x7c, 0x00, 0x34, 0x12]),
            (24, &ADDRESS_BYTES),
            (32, &[0, 0x80, 0, 0, 0, 0, 0, 0x22]),
        ]);
        let config = DoorbellBufferConfig { shadow: ADDRESS, event_idx: 0x2200_0000_0000_8000 };
        assert_eq!(config.encode(0x1234).as_bytes(), bytes);
        assert_eq!(DoorbellBufferConfig::parse(&Sqe::read_from_bytes(&bytes).unwrap()), config);
    }

    #[test]
    fn a_doorbell_is_needed_when_the_event_index_is_passed() {
        assert!(needs_doorbell(3, 4, 3));
        assert!(needs_doorbell(3, 9, 0));
        assert!(!needs_doorbell(4, 4, 3));
        assert!(!needs_doorbell(2, 4, 3));
        assert!(!needs_doorbell(0, 0, 0));
        // The values wrap: 65534 to 1 passes 65535 and 0.
        assert!(needs_doorbell(0xffff, 1, 0xfffe));
        assert!(needs_doorbell(0, 1, 0xfffe));
        assert!(!needs_doorbell(1, 1, 0xfffe));
    }
}
