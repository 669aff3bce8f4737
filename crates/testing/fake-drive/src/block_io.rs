//! I/O commands of the NVM command set (NVM 3).

use nvmeof_wire::identify::{nsattr, oncs, vwc};
use nvmeof_wire::nvm::{BlockIo, BlockRange, DatasetManagement, DsmRange};
use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::sqe::NSID_ALL;
use nvmeof_wire::{Sqe, Status};
use zerocopy::FromBytes;

use crate::controller::FakeController;
use crate::media::Media;
use crate::work::Outcome;

impl FakeController {
    pub(crate) fn io(&mut self, qid: u16, sqe: &Sqe) -> Outcome {
        let needs = match sqe.io_opcode() {
            IoOpcode::READ | IoOpcode::WRITE | IoOpcode::FLUSH => 0,
            IoOpcode::COMPARE => oncs::COMPARE,
            IoOpcode::WRITE_ZEROES => oncs::WRITE_ZEROES,
            IoOpcode::DATASET_MANAGEMENT => oncs::DATASET_MANAGEMENT,
            IoOpcode::VERIFY => oncs::VERIFY,
            _ => u16::MAX,
        };
        if needs & !self.config.identify.oncs.get() != 0 {
            self.broke(qid, sqe, "a command that is not supported");
            return Status::INVALID_OPCODE.with_dnr().into();
        }
        if self.logs.sanitize.left.is_some() {
            return Status::SANITIZE_IN_PROGRESS.into();
        }
        if self.sanitize_failed() {
            return Status::SANITIZE_FAILED.with_dnr().into();
        }
        let result = match sqe.io_opcode() {
            IoOpcode::FLUSH => self.flush(qid, sqe),
            IoOpcode::DATASET_MANAGEMENT => self.dataset_management(qid, sqe),
            _ => self.block_io(qid, sqe),
        };
        result.into()
    }

    fn flush(&mut self, qid: u16, sqe: &Sqe) -> Result<(), Status> {
        self.expect_no_data(qid, sqe);
        let all = sqe.nsid.get() == NSID_ALL;
        if all && self.config.identify.vwc & vwc::FLUSH_ALL_SUPPORTED != vwc::FLUSH_ALL_SUPPORTED {
            return Err(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
        }
        if !all {
            self.namespace(sqe.nsid.get())?;
        }
        let nsid = sqe.nsid.get();
        self.media.iter_mut().filter(|media| all || media.nsid == nsid).for_each(Media::flush);
        Ok(())
    }

    fn block_io(&mut self, qid: u16, sqe: &Sqe) -> Result<(), Status> {
        let io = BlockIo::parse(sqe);
        let opcode = sqe.io_opcode();
        let index = self.namespace(sqe.nsid.get())?;
        self.check_reserved(qid, sqe, io);
        let media = &self.media[index];
        let len = u64::from(io.range.blocks) * media.block();
        let moves_data = matches!(opcode, IoOpcode::READ | IoOpcode::WRITE | IoOpcode::COMPARE);
        if moves_data && self.is_beyond_mdts(len) {
            self.broke(qid, sqe, "a transfer of more than MDTS");
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        if !io.range.is_within(media.blocks()) {
            self.broke(qid, sqe, "blocks beyond the end of the namespace");
            return Err(Status::LBA_OUT_OF_RANGE.with_dnr());
        }
        if matches!(opcode, IoOpcode::READ | IoOpcode::WRITE) {
            self.check_noiob(qid, sqe, index, io.range);
        }
        self.check_writable(index, opcode)?;
        match opcode {
            IoOpcode::READ => self.read_blocks(qid, sqe, index, io.range),
            IoOpcode::WRITE => self.write_blocks(qid, sqe, index, io),
            IoOpcode::COMPARE => self.compare(qid, sqe, index, io.range),
            IoOpcode::WRITE_ZEROES => {
                self.expect_no_data(qid, sqe);
                self.zero(index, io.range, io.fua)
            }
            _ => {
                self.expect_no_data(qid, sqe);
                Ok(())
            }
        }
    }

    fn read_blocks(
        &mut self,
        qid: u16,
        sqe: &Sqe,
        index: usize,
        range: BlockRange,
    ) -> Result<(), Status> {
        // Removed during the transfer, to avoid a copy of the data.
        let media = self.media.swap_remove(index);
        let result = match media.get(range) {
            Some(data) => self.return_data(qid, sqe, data),
            None => Err(Status::UNRECOVERED_READ_ERROR),
        };
        self.media.push(media);
        let last = self.media.len() - 1;
        self.media.swap(index, last);
        self.count(true, u64::from(range.blocks) * self.media[index].block());
        result
    }

    fn write_blocks(
        &mut self,
        qid: u16,
        sqe: &Sqe,
        index: usize,
        io: BlockIo,
    ) -> Result<(), Status> {
        let data = self.take_blocks(qid, sqe, index, io.range)?;
        self.count(false, data.len() as u64);
        self.store(index, io.range, &data, io.fua)
    }

    fn compare(
        &mut self,
        qid: u16,
        sqe: &Sqe,
        index: usize,
        range: BlockRange,
    ) -> Result<(), Status> {
        let data = self.take_blocks(qid, sqe, index, range)?;
        match self.media[index].get(range) {
            Some(there) if there == data => Ok(()),
            Some(_) => Err(Status::COMPARE_FAILURE),
            None => Err(Status::UNRECOVERED_READ_ERROR),
        }
    }

    fn take_blocks(
        &mut self,
        qid: u16,
        sqe: &Sqe,
        index: usize,
        range: BlockRange,
    ) -> Result<Vec<u8>, Status> {
        let len = u64::from(range.blocks) * self.media[index].block();
        let mut data = vec![0; usize::try_from(len).unwrap_or(0)];
        self.take_data(qid, sqe, &mut data)?;
        Ok(data)
    }

    fn zero(&mut self, index: usize, range: BlockRange, fua: bool) -> Result<(), Status> {
        let len = u64::from(range.blocks) * self.media[index].block();
        let zeroes = vec![0; usize::try_from(len).unwrap_or(0)];
        self.store(index, range, &zeroes, fua)
    }

    fn store(
        &mut self,
        index: usize,
        range: BlockRange,
        data: &[u8],
        fua: bool,
    ) -> Result<(), Status> {
        let cached = !fua && self.has_write_cache() && self.features.write_cache;
        self.media[index].put(range, data, cached).ok_or(Status::WRITE_FAULT)
    }

    fn dataset_management(&mut self, qid: u16, sqe: &Sqe) -> Result<(), Status> {
        let dsm = DatasetManagement::parse(sqe);
        let index = self.namespace(sqe.nsid.get())?;
        let mut bytes = vec![0; usize::try_from(dsm.data_len()).unwrap_or(0)];
        self.take_data(qid, sqe, &mut bytes)?;
        self.check_writable(index, sqe.io_opcode())?;
        for bytes in bytes.chunks_exact(size_of::<DsmRange>()) {
            let range = DsmRange::read_from_bytes(bytes).unwrap_or_default().range();
            if !range.is_within(self.media[index].blocks()) {
                self.broke(qid, sqe, "blocks beyond the end of the namespace");
                return Err(Status::LBA_OUT_OF_RANGE.with_dnr());
            }
            if dsm.deallocate {
                self.zero(index, range, false)?;
            }
        }
        Ok(())
    }

    /// Returns the index of the namespace that a command names.
    fn namespace(&self, nsid: u32) -> Result<usize, Status> {
        let is_it = |media: &Media| media.nsid == nsid && media.attached && media.block() > 0;
        let found = self.media.iter().position(is_it);
        found.ok_or(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr())
    }

    fn check_writable(&self, index: usize, opcode: IoOpcode) -> Result<(), Status> {
        let writes = matches!(
            opcode,
            IoOpcode::WRITE | IoOpcode::WRITE_ZEROES | IoOpcode::DATASET_MANAGEMENT
        );
        if writes && self.media[index].identify.nsattr & nsattr::WRITE_PROTECTED != 0 {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
        }
        Ok(())
    }

    fn check_reserved(&mut self, qid: u16, sqe: &Sqe, io: BlockIo) {
        let is_zero = sqe.cdw2.get() | sqe.cdw3.get() | sqe.cdw14.get() | sqe.cdw15.get() == 0;
        if !is_zero || sqe.mptr.get() != 0 || io.prinfo != 0 || io.storage_tag_check {
            self.broke(qid, sqe, "protection information or metadata, which there is none of");
        }
        if io.deallocate && sqe.io_opcode() != IoOpcode::WRITE_ZEROES {
            self.broke(qid, sqe, "DEAC is set and it is no Write Zeroes");
        }
    }

    fn check_noiob(&mut self, qid: u16, sqe: &Sqe, index: usize, range: BlockRange) {
        let Some(boundary) = self.media[index].identify.io_boundary().map(u64::from) else {
            return;
        };
        let last = range.slba + u64::from(range.blocks) - 1;
        if self.config.check_boundary && range.slba / boundary != last / boundary {
            self.broke(qid, sqe, "blocks on both sides of a boundary (NOIOB)");
        }
    }

    /// Updates the counters of the SMART log.
    fn count(&mut self, read: bool, bytes: u64) {
        let smart = &mut self.logs.smart;
        let (commands, units) = if read {
            (&mut smart.host_reads, &mut smart.data_units_read)
        } else {
            (&mut smart.host_writes, &mut smart.data_units_written)
        };
        commands.set(commands.get() + 1);
        units.set(units.get() + u128::from(bytes.div_ceil(512_000)));
    }
}
