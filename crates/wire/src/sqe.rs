//! Submission queue entry (Base 3.3.3.1, Common Command Format).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::opcode::{AdminOpcode, FabricsType, IoOpcode};
use crate::sgl::SglDescriptor;

/// Size of a submission queue entry in bytes.
pub const SQE_SIZE: usize = 64;

/// NSID that stands for every namespace (Base 3.2.1).
pub const NSID_ALL: u32 = 0xffff_ffff;

/// A submission queue entry: 64 bytes.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Sqe {
    /// Byte 0, Opcode (OPC).
    pub opcode: u8,
    /// Byte 1: FUSE in bits 1:0, PSDT in bits 7:6.
    pub flags: u8,
    /// Bytes 2-3, Command Identifier (CID).
    pub cid: U16,
    /// Bytes 4-7, Namespace Identifier; in a fabrics command byte 4 is FCTYPE.
    pub nsid: U32,
    /// Bytes 8-11.
    pub cdw2: U32,
    /// Bytes 12-15.
    pub cdw3: U32,
    /// Bytes 16-23, Metadata Pointer.
    pub mptr: U64,
    /// Bytes 24-39, Data Pointer (SGL1).
    pub dptr: SglDescriptor,
    /// Bytes 40-43.
    pub cdw10: U32,
    /// Bytes 44-47.
    pub cdw11: U32,
    /// Bytes 48-51.
    pub cdw12: U32,
    /// Bytes 52-55.
    pub cdw13: U32,
    /// Bytes 56-59.
    pub cdw14: U32,
    /// Bytes 60-63.
    pub cdw15: U32,
}
const _: () = assert!(size_of::<Sqe>() == SQE_SIZE);

/// PRP or SGL for Data Transfer, bits 7:6 of CDW0 byte 1 (Base 3.3.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Psdt {
    /// 00b: PRPs. Not allowed over fabrics.
    Prp,
    /// 01b: SGL; MPTR is a contiguous buffer. Fabrics hosts use this one.
    Sgl,
    /// 10b: SGL; MPTR is the address of an SGL segment.
    SglMetadataSgl,
    /// 11b.
    Reserved,
}

/// Fused operation, bits 1:0 of CDW0 byte 1 (Base 3.3.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fuse {
    /// 00b: normal.
    None,
    /// 01b: first of two.
    First,
    /// 10b: second of two.
    Second,
    /// 11b.
    Reserved,
}

/// `flags` of a command whose data pointer is an SGL (PSDT 01b).
pub const FLAGS_SGL: u8 = 0x40;

const PSDT_MASK: u8 = 0xc0;

impl Sqe {
    /// Creates a command with an SGL data pointer; all other fields are zero.
    #[inline]
    #[must_use]
    pub fn new(opcode: u8, cid: u16, nsid: u32) -> Self {
        Self {
            opcode,
            flags: FLAGS_SGL,
            cid: U16::new(cid),
            nsid: U32::new(nsid),
            ..Self::default()
        }
    }

    /// Creates an admin command.
    #[inline]
    #[must_use]
    pub fn admin(opcode: AdminOpcode, cid: u16, nsid: u32) -> Self {
        Self::new(opcode.0, cid, nsid)
    }

    /// Creates a command of the NVM command set.
    #[inline]
    #[must_use]
    pub fn io(opcode: IoOpcode, cid: u16, nsid: u32) -> Self {
        Self::new(opcode.0, cid, nsid)
    }

    /// Creates a fabrics command.
    #[inline]
    #[must_use]
    pub fn fabrics(fctype: FabricsType, cid: u16) -> Self {
        Self::new(AdminOpcode::FABRICS.0, cid, u32::from(fctype.0))
    }

    /// Sets the data pointer.
    #[inline]
    #[must_use]
    pub fn with_sgl(mut self, sgl: impl Into<SglDescriptor>) -> Self {
        self.dptr = sgl.into();
        self
    }

    /// Sets PRP entries as the data pointer (PSDT 00b), for PCIe controllers.
    #[inline]
    #[must_use]
    pub fn with_prp(mut self, prp1: u64, prp2: u64) -> Self {
        self.flags &= !PSDT_MASK;
        self.dptr = SglDescriptor { address: U64::new(prp1), rest: U64::new(prp2) };
        self
    }

    /// Sets no data pointer and PSDT 00b, which a PCIe controller expects of a command without
    /// data.
    #[inline]
    #[must_use]
    pub fn without_data(self) -> Self {
        self.with_prp(0, 0)
    }

    /// Sets the first `N` of command dwords 10 to 15, and leaves the rest unchanged. `N` is at most
    /// 6.
    #[inline]
    #[must_use]
    pub fn with_cdw10<const N: usize>(mut self, dwords: [u32; N]) -> Self {
        const { assert!(N <= 6, "a command has dwords 10 to 15") };
        let fields = [
            &mut self.cdw10,
            &mut self.cdw11,
            &mut self.cdw12,
            &mut self.cdw13,
            &mut self.cdw14,
            &mut self.cdw15,
        ];
        for (field, value) in fields.into_iter().zip(dwords) {
            field.set(value);
        }
        self
    }

    /// The opcode on an admin queue.
    #[inline]
    #[must_use]
    pub const fn admin_opcode(&self) -> AdminOpcode {
        AdminOpcode(self.opcode)
    }

    /// The opcode on an I/O queue.
    #[inline]
    #[must_use]
    pub const fn io_opcode(&self) -> IoOpcode {
        IoOpcode(self.opcode)
    }

    /// Returns true for opcode 7Fh.
    #[inline]
    #[must_use]
    pub const fn is_fabrics(&self) -> bool {
        self.opcode == AdminOpcode::FABRICS.0
    }

    /// Fabrics command type (byte 4), meaningful for opcode 7Fh.
    #[inline]
    #[must_use]
    pub fn fctype(&self) -> FabricsType {
        FabricsType(self.nsid.get().to_le_bytes()[0])
    }

    /// Type of the data pointer.
    #[inline]
    #[must_use]
    pub const fn psdt(&self) -> Psdt {
        match self.flags >> 6 {
            0 => Psdt::Prp,
            1 => Psdt::Sgl,
            2 => Psdt::SglMetadataSgl,
            _ => Psdt::Reserved,
        }
    }

    /// PRP1 and PRP2, valid for PSDT 00b.
    #[inline]
    #[must_use]
    pub const fn prp(&self) -> (u64, u64) {
        (self.dptr.address.get(), self.dptr.rest.get())
    }

    /// Returns the part of a fused operation.
    #[inline]
    #[must_use]
    pub const fn fuse(&self) -> Fuse {
        match self.flags & 3 {
            0 => Fuse::None,
            1 => Fuse::First,
            2 => Fuse::Second,
            _ => Fuse::Reserved,
        }
    }

    /// CDW10 and CDW11 as one number, low dword first (a starting LBA, NVM 3.2).
    #[inline]
    #[must_use]
    pub fn cdw10_11(&self) -> u64 {
        u64::from(self.cdw10.get()) | u64::from(self.cdw11.get()) << 32
    }

    /// CDW12 and CDW13 as one number, low dword first (a log page offset, Base 5.16).
    #[inline]
    #[must_use]
    pub fn cdw12_13(&self) -> u64 {
        u64::from(self.cdw12.get()) | u64::from(self.cdw13.get()) << 32
    }
}

#[cfg(test)]
mod tests;
