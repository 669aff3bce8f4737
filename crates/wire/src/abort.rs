//! Abort (Base 5.1).

use crate::opcode::AdminOpcode;
use crate::sqe::Sqe;

/// Identifies the command to abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// Submission Queue Identifier: the QID of its queue.
    pub sqid: u16,
    /// Command Identifier of the command to abort.
    pub cid: u16,
}

/// Dword 0 of the completion: the command was not aborted (bit 0). 0 means it was.
pub const NOT_ABORTED: u64 = 1;

impl Abort {
    /// Parses the fields of `sqe`, which is an Abort.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [s0, s1, c0, c1] = sqe.cdw10.get().to_le_bytes();
        Self { sqid: u16::from_le_bytes([s0, s1]), cid: u16::from_le_bytes([c0, c1]) }
    }

    /// Returns the Abort command, itself with identifier `cid`.
    #[must_use]
    pub fn encode(self, cid: u16) -> Sqe {
        let dword = u32::from(self.sqid) | u32::from(self.cid) << 16;
        Sqe::admin(AdminOpcode::ABORT, cid, 0).with_cdw10([dword])
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;
    use crate::golden;

    #[test]
    fn bytes() {
        let bytes: [u8; 64] =
            golden::bytes(&[(0, &[0x08, 0x40, 9]), (40, &[0x02, 0x01, 0x04, 0x03])]);
        let abort = Abort { sqid: 0x0102, cid: 0x0304 };
        assert_eq!(abort.encode(9).as_bytes(), bytes);
        assert_eq!(Abort::parse(&Sqe::read_from_bytes(&bytes).unwrap()), abort);
    }
}
