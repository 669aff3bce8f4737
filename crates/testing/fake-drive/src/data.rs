//! Data pointers of commands, resolved to host memory (Base 4.1).

use nvmeof_wire::prp::{self, Prp2};
use nvmeof_wire::sqe::Psdt;
use nvmeof_wire::{Sgl, SglDescriptor, Sqe, Status};
use zerocopy::FromBytes;

use crate::memory::{IommuFault, Space};

/// Maximum descriptors in an SGL walk; real controllers have a limit, too.
const DESCRIPTORS_MAX: usize = 1 << 16;

/// Segments of host memory, in the order of the data.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, Copy)]
struct Piece {
    /// `None` is a bit bucket.
    iova: Option<u64>,
    len: u64,
}

/// Reason for refusing a data pointer: the status, and the violated rule. Without a rule, the table
/// of IOMMU faults has the details.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refused {
    pub(crate) status: Status,
    pub(crate) rule: Option<&'static str>,
}

const fn refused(status: Status, rule: &'static str) -> Refused {
    Refused { status, rule: Some(rule) }
}

impl From<IommuFault> for Refused {
    fn from(_: IommuFault) -> Self {
        Self { status: Status::DATA_TRANSFER_ERROR, rule: None }
    }
}

/// Controller properties for the walk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) page_size: u64,
    /// SGLS of Identify Controller; 0 for the admin queue.
    pub(crate) sgls: u32,
    /// The data goes to the host, so bit buckets are allowed.
    pub(crate) to_host: bool,
}

impl Pieces {
    /// Returns the memory for `len` bytes of data of `sqe`.
    pub(crate) fn of(sqe: &Sqe, len: u64, rules: Rules, space: &Space) -> Result<Self, Refused> {
        match sqe.psdt() {
            Psdt::Prp => Self::prps(sqe, len, rules.page_size, space),
            Psdt::Sgl if rules.sgls & 3 != 0 => Self::sgl(sqe.dptr, len, rules, space),
            Psdt::Sgl => Err(refused(Status::INVALID_FIELD, "an SGL where only PRPs are taken")),
            Psdt::SglMetadataSgl => Err(refused(Status::INVALID_FIELD, "an SGL for metadata")),
            Psdt::Reserved => Err(refused(Status::INVALID_FIELD, "PSDT 11b")),
        }
    }

    /// Copies bytes from the host.
    pub(crate) fn read(&self, space: &Space, mut to: &mut [u8]) -> Result<(), IommuFault> {
        for piece in &self.pieces {
            let (part, rest) = to.split_at_mut(piece.len(to.len()));
            if let Some(iova) = piece.iova {
                space.read(iova, part)?;
            }
            to = rest;
        }
        Ok(())
    }

    /// Copies bytes to the host.
    pub(crate) fn write(&self, space: &Space, mut from: &[u8]) -> Result<(), IommuFault> {
        for piece in &self.pieces {
            let (part, rest) = from.split_at(piece.len(from.len()));
            if let Some(iova) = piece.iova {
                space.write(iova, part)?;
            }
            from = rest;
        }
        Ok(())
    }

    fn push(&mut self, iova: Option<u64>, len: u64) {
        self.pieces.push(Piece { iova, len });
    }

    fn prps(sqe: &Sqe, len: u64, page: u64, space: &Space) -> Result<Self, Refused> {
        let (prp1, prp2) = sqe.prp();
        let offset = |_| refused(Status::PRP_OFFSET_INVALID, "a PRP with a wrong offset");
        let mut this = Self::default();
        prp::check_first(prp1).map_err(offset)?;
        let first = len.min(page - prp1 % page);
        this.push(Some(prp1), first);
        match prp::second(prp1, len, page) {
            Prp2::Unused if prp2 != 0 => {
                return Err(refused(Status::INVALID_FIELD, "PRP2 is reserved and not 0"));
            }
            Prp2::Unused => (),
            Prp2::Page => {
                prp::check_next(prp2, page).map_err(offset)?;
                this.push(Some(prp2), len - first);
            }
            Prp2::List(entries) => {
                prp::check_list(prp2).map_err(offset)?;
                this.prp_list(prp2, entries, len - first, page, space)?;
            }
        }
        Ok(this)
    }

    fn prp_list(
        &mut self,
        mut at: u64,
        mut entries: u64,
        mut len: u64,
        page: u64,
        space: &Space,
    ) -> Result<(), Refused> {
        while entries > 0 {
            let mut bytes = [0; 8];
            space.read(at, &mut bytes)?;
            let entry = u64::from_le_bytes(bytes);
            prp::check_next(entry, page).map_err(|_| {
                refused(Status::PRP_OFFSET_INVALID, "a PRP of a list has an offset")
            })?;
            if prp::is_chain(at, entries, page) {
                at = entry;
                continue;
            }
            self.push(Some(entry), len.min(page));
            len = len.saturating_sub(page);
            entries -= 1;
            at += prp::PRP_SIZE;
        }
        Ok(())
    }

    fn sgl(first: SglDescriptor, len: u64, rules: Rules, space: &Space) -> Result<Self, Refused> {
        let mut this = Self::default();
        let mut segment = match first.parse() {
            Sgl::Segment { address, length, offset: false } => Some((address, length, false)),
            Sgl::LastSegment { address, length, offset: false } => Some((address, length, true)),
            data => {
                this.data_descriptor(data, rules)?;
                None
            }
        };
        let mut seen = 0;
        while let Some((address, length, last)) = segment.take() {
            let count = usize::try_from(length / 16).unwrap_or(usize::MAX);
            seen += count;
            if length == 0 || !length.is_multiple_of(16) {
                let rule = "an SGL segment whose length is no multiple of 16";
                return Err(refused(Status::INVALID_SGL_SEGMENT, rule));
            }
            if seen > DESCRIPTORS_MAX {
                return Err(refused(Status::INVALID_SGL_COUNT, "too many SGL descriptors"));
            }
            let mut bytes = vec![0; count * 16];
            space.read(address, &mut bytes)?;
            for (index, bytes) in bytes.chunks_exact(16).enumerate() {
                let sgl = SglDescriptor::read_from_bytes(bytes).unwrap_or_default().parse();
                match sgl {
                    Sgl::Segment { address, length, offset: false }
                        if !last && index + 1 == count =>
                    {
                        segment = Some((address, length, false));
                    }
                    Sgl::LastSegment { address, length, offset: false }
                        if !last && index + 1 == count =>
                    {
                        segment = Some((address, length, true));
                    }
                    Sgl::Segment { .. } | Sgl::LastSegment { .. } => {
                        let rule = "an SGL segment descriptor where none may be";
                        return Err(refused(Status::INVALID_SGL_SEGMENT, rule));
                    }
                    data => this.data_descriptor(data, rules)?,
                }
            }
            if !last && segment.is_none() {
                let rule = "an SGL segment that is not the last leads nowhere";
                return Err(refused(Status::INVALID_SGL_SEGMENT, rule));
            }
        }
        this.check_length(len, rules)?;
        Ok(this)
    }

    fn data_descriptor(&mut self, sgl: Sgl, rules: Rules) -> Result<(), Refused> {
        use nvmeof_wire::identify::sgls;
        match sgl {
            Sgl::DataBlock { address, length } => {
                let dwords = rules.sgls & sgls::SUPPORT_MASK == sgls::SUPPORTED_DWORD;
                if dwords && (address | u64::from(length)) & 3 != 0 {
                    let rule = "an SGL data block that is not dword aligned";
                    return Err(refused(Status::SGL_GRANULARITY_INVALID, rule));
                }
                self.push(Some(address), length.into());
                Ok(())
            }
            Sgl::BitBucket { length } if rules.sgls & sgls::BIT_BUCKET != 0 && rules.to_host => {
                self.push(None, length.into());
                Ok(())
            }
            _ => {
                let rule = "an SGL descriptor a PCIe controller does not take";
                Err(refused(Status::SGL_TYPE_INVALID, rule))
            }
        }
    }

    fn check_length(&self, len: u64, rules: Rules) -> Result<(), Refused> {
        let described: u64 = self.pieces.iter().map(|piece| piece.len).sum();
        let larger = rules.sgls & nvmeof_wire::identify::sgls::LARGER_THAN_TRANSFER != 0;
        if described < len || (described > len && !larger) {
            let rule = "an SGL that describes another length than the command's";
            return Err(refused(Status::DATA_SGL_LENGTH_INVALID, rule));
        }
        Ok(())
    }
}

impl Piece {
    /// Returns the segment's length, limited to the `left` bytes still to move.
    fn len(&self, left: usize) -> usize {
        usize::try_from(self.len).unwrap_or(left).min(left)
    }
}
