//! An I/O queue: the NVM command set (NVM 3). No lock and no allocation per command.
//!
//! No namespace has metadata, so the queue ignores protection information fields (PRINFO, tags) and
//! MPTR. It also ignores hints: access frequency, latency, Limited Retry, integral datasets.

use std::sync::Arc;

use nvmeof_wire::nvm::{BlockIo, BlockRange, DatasetManagement, DsmRange};
use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::sqe::{Fuse, NSID_ALL, Psdt};
use nvmeof_wire::zerocopy::FromBytes;
use nvmeof_wire::{Sgl, Sqe};

use super::{Outcome, data};
use crate::controller::{Controller, IoCounters, TeardownReason};
use crate::disposition::{Extent, IoCommand, IoKind};
use crate::failure::Failure;
use crate::hosts::QueueLease;
use crate::limits::{DSM_RANGE_BLOCKS, PAGE, WZSL};
use crate::namespace::{Lookup, Namespace, NamespaceTable};
use crate::spec::TransportKind;

/// A connected I/O queue's view of its controller.
#[derive(Debug)]
pub(super) struct IoQueue {
    pub(super) controller: Arc<Controller>,
    /// Right of the host to this queue.
    _lease: QueueLease,
    pub(super) qid: u16,
    pub(super) counters: Arc<IoCounters>,
    /// [`Controller::incarnation`] at Connect; any other value ends the queue.
    incarnation: u32,
    /// Snapshot of the subsystem's namespaces, and a generation that is not newer than it.
    namespaces: Arc<NamespaceTable>,
    generation: u32,
    /// Maximum bytes per command (MDTS).
    max_transfer: u32,
    transport: TransportKind,
    /// A Disconnect command that waits until every other command has completed.
    pub(super) disconnecting: Option<u16>,
}

impl IoQueue {
    pub(super) fn new(
        controller: Arc<Controller>,
        lease: QueueLease,
        qid: u16,
        counters: Arc<IoCounters>,
        incarnation: u32,
    ) -> Self {
        let generation = controller.subsystem.generation();
        Self {
            _lease: lease,
            qid,
            counters,
            incarnation,
            namespaces: controller.namespaces(),
            generation,
            max_transfer: controller.limits.max_transfer(),
            transport: controller.transport,
            disconnecting: None,
            controller,
        }
    }

    /// Reason to close the queue, if any.
    #[inline]
    pub(super) fn death(&self) -> Option<TeardownReason> {
        if self.controller.incarnation() == self.incarnation {
            return None;
        }
        Some(self.controller.death().unwrap_or(TeardownReason::Reset))
    }

    /// Handles every command except fabrics commands.
    #[inline]
    pub(super) fn command(&mut self, sqe: &Sqe, inline_len: u32) -> Result<Outcome, Failure> {
        if self.controller.incarnation() != self.incarnation || self.disconnecting.is_some() {
            return Err(Failure::QueueDeleted);
        }
        let generation = self.controller.subsystem.generation();
        if generation != self.generation {
            self.namespaces = self.controller.namespaces();
            self.generation = generation;
        }
        if sqe.psdt() != Psdt::Sgl || sqe.fuse() != Fuse::None {
            return Err(self.refusal(sqe));
        }
        let io = match sqe.io_opcode() {
            IoOpcode::READ => self.read(sqe)?,
            IoOpcode::WRITE => self.write(sqe, inline_len)?,
            IoOpcode::FLUSH => self.flush(sqe)?,
            IoOpcode::COMPARE => self.compare(sqe, inline_len)?,
            IoOpcode::WRITE_ZEROES => self.write_zeroes(sqe)?,
            IoOpcode::VERIFY => self.verify(sqe)?,
            IoOpcode::DATASET_MANAGEMENT => return self.dataset_management(sqe, inline_len),
            _ => return Err(Failure::InvalidOpcode),
        };
        Ok(Outcome::Io(io))
    }

    /// The ranges of a Deallocate in bytes. Empty ranges are omitted.
    pub(super) fn ranges(
        &self,
        io: &IoCommand,
        ranges: u16,
        data: &[u8],
    ) -> Result<Vec<Extent>, Failure> {
        let namespace = self.namespace(io.nsid)?;
        if namespace.spec.device != io.device {
            // Another device has this NSID by now; the NSID of the command's own device is
            // inactive.
            return Err(Failure::InvalidField);
        }
        extents(namespace, ranges, data)
    }

    #[inline]
    fn read(&self, sqe: &Sqe) -> Result<IoCommand, Failure> {
        let io = BlockIo::parse(sqe);
        let namespace = self.namespace(sqe.nsid.get())?;
        let (extent, len) = self.transfer(namespace, io.range)?;
        let sgl = data::to_host(sqe, len, self.transport)?;
        self.counters.count_read(extent.len);
        Ok(IoCommand { sgl, fua: io.fua, ..command(sqe, namespace, IoKind::Read, extent) })
    }

    #[inline]
    fn write(&self, sqe: &Sqe, inline_len: u32) -> Result<IoCommand, Failure> {
        let io = BlockIo::parse(sqe);
        let namespace = self.writable_namespace(sqe.nsid.get())?;
        // DTYPE and DSPEC are ignored without support for directives, as other targets do; SPDK's
        // bdev layer leaves them uninitialized.
        let (extent, len) = self.transfer(namespace, io.range)?;
        let source = data::from_host(sqe, len, inline_len, self.transport)?;
        self.counters.count_write(extent.len);
        Ok(IoCommand {
            source: Some(source),
            fua: io.fua || self.must_be_durable(namespace),
            ..command(sqe, namespace, IoKind::Write, extent)
        })
    }

    fn flush(&self, sqe: &Sqe) -> Result<IoCommand, Failure> {
        let nsid = sqe.nsid.get();
        if nsid == NSID_ALL {
            // VWC bits 2:1 report this (Base 5.17.2.1).
            return Err(Failure::InvalidNamespace);
        }
        let namespace = self.namespace(nsid)?;
        Ok(command(sqe, namespace, IoKind::Flush, Extent { offset: 0, len: 0 }))
    }

    fn compare(&self, sqe: &Sqe, inline_len: u32) -> Result<IoCommand, Failure> {
        let io = BlockIo::parse(sqe);
        let namespace = self.namespace(sqe.nsid.get())?;
        let (extent, len) = self.transfer(namespace, io.range)?;
        let source = data::from_host(sqe, len, inline_len, self.transport)?;
        self.counters.count_read(extent.len);
        Ok(IoCommand {
            source: Some(source),
            fua: io.fua,
            ..command(sqe, namespace, IoKind::Compare, extent)
        })
    }

    fn write_zeroes(&self, sqe: &Sqe) -> Result<IoCommand, Failure> {
        let io = BlockIo::parse(sqe);
        let namespace = self.writable_namespace(sqe.nsid.get())?;
        let extent = extent(namespace, io.range)?;
        if extent.len > u64::from(PAGE) << WZSL {
            // NVM 4.1.5.3, WZSL.
            return Err(Failure::InvalidField);
        }
        let deallocate = io.deallocate && namespace.spec.deallocate;
        Ok(IoCommand {
            fua: io.fua || self.must_be_durable(namespace),
            ..command(sqe, namespace, IoKind::WriteZeroes { deallocate }, extent)
        })
    }

    fn verify(&self, sqe: &Sqe) -> Result<IoCommand, Failure> {
        let io = BlockIo::parse(sqe);
        let namespace = self.namespace(sqe.nsid.get())?;
        // The Verify Size Limit (VSL) equals MDTS.
        let (extent, _) = self.transfer(namespace, io.range)?;
        Ok(IoCommand { fua: io.fua, ..command(sqe, namespace, IoKind::Verify, extent) })
    }

    fn dataset_management(&self, sqe: &Sqe, inline_len: u32) -> Result<Outcome, Failure> {
        let dsm = DatasetManagement::parse(sqe);
        let nsid = sqe.nsid.get();
        if !dsm.deallocate {
            // The target ignores these hints.
            self.namespace(nsid)?;
            return Ok(Outcome::Done(0));
        }
        let namespace = self.writable_namespace(nsid)?;
        let len = dsm.data_len();
        let source = data::from_host(sqe, len, inline_len, self.transport)?;
        if !namespace.spec.deallocate {
            // `dataset_management_data` still checks the ranges.
            return Ok(Outcome::Receive { len, source });
        }
        let kind = IoKind::Deallocate { ranges: dsm.ranges };
        Ok(Outcome::Io(IoCommand {
            source: Some(source),
            fua: self.must_be_durable(namespace),
            ..command(sqe, namespace, kind, Extent { offset: 0, len: 0 })
        }))
    }

    /// Checks the ranges of a Deallocate that the device does not support, and completes it.
    pub(super) fn dataset_management_data(
        &self,
        sqe: &Sqe,
        data: &[u8],
    ) -> Result<Outcome, Failure> {
        let dsm = DatasetManagement::parse(sqe);
        extents(self.namespace(sqe.nsid.get())?, dsm.ranges, data)?;
        Ok(Outcome::Done(0))
    }

    /// The namespace of a command.
    #[inline]
    fn namespace(&self, nsid: u32) -> Result<&Namespace, Failure> {
        match self.namespaces.get(nsid) {
            Some(namespace) => Ok(namespace),
            None => Err(self.no_namespace(nsid)),
        }
    }

    /// Failure for an NSID without an active namespace (Base 3.2.1.5 and Figure 87).
    ///
    /// An inactive NSID and an unsupported broadcast are invalid fields.
    #[cold]
    fn no_namespace(&self, nsid: u32) -> Failure {
        match self.namespaces.lookup(nsid) {
            Lookup::Invalid if nsid != NSID_ALL => Failure::InvalidNamespace,
            _ => Failure::InvalidField,
        }
    }

    #[inline]
    fn writable_namespace(&self, nsid: u32) -> Result<&Namespace, Failure> {
        let namespace = self.namespace(nsid)?;
        if namespace.spec.read_only { Err(Failure::WriteProtected) } else { Ok(namespace) }
    }

    /// Returns true if a write must be durable at its completion even without FUA.
    #[inline]
    fn must_be_durable(&self, namespace: &Namespace) -> bool {
        namespace.spec.volatile_cache && self.controller.write_through()
    }

    /// The extent of a command that MDTS limits, and its length.
    #[inline]
    fn transfer(&self, namespace: &Namespace, range: BlockRange) -> Result<(Extent, u32), Failure> {
        let extent = extent(namespace, range)?;
        match u32::try_from(extent.len) {
            Ok(len) if len <= self.max_transfer => Ok((extent, len)),
            _ => Err(Failure::InvalidField),
        }
    }

    /// Failure for an unsupported PSDT or FUSE; an unknown opcode takes precedence.
    #[cold]
    fn refusal(&self, sqe: &Sqe) -> Failure {
        let is_known = crate::admin::effects::has_io_command(sqe.io_opcode());
        if is_known { Failure::InvalidField } else { Failure::InvalidOpcode }
    }
}

/// The ranges of a list in bytes, without empty ones.
fn extents(namespace: &Namespace, ranges: u16, data: &[u8]) -> Result<Vec<Extent>, Failure> {
    let (ranges, _) = <[DsmRange]>::ref_from_prefix_with_elems(data, usize::from(ranges))
        .map_err(|_| Failure::DataTransfer)?;
    let mut extents = Vec::with_capacity(ranges.len());
    for range in ranges {
        let range = range.range();
        let extent = extent(namespace, range)?;
        // DMSL is the maximum number of ranges, each of maximum length.
        if range.blocks > DSM_RANGE_BLOCKS {
            return Err(Failure::SizeLimit);
        }
        if extent.len > 0 {
            extents.push(extent);
        }
    }
    Ok(extents)
}

/// Converts blocks to an extent in bytes.
#[inline]
fn extent(namespace: &Namespace, range: BlockRange) -> Result<Extent, Failure> {
    if !range.is_within(namespace.spec.blocks) {
        return Err(Failure::LbaOutOfRange);
    }
    // The size of the namespace in bytes fits into 63 bits.
    let shift = namespace.block_shift;
    Ok(Extent { offset: range.slba << shift, len: u64::from(range.blocks) << shift })
}

#[inline]
fn command(sqe: &Sqe, namespace: &Namespace, kind: IoKind, extent: Extent) -> IoCommand {
    IoCommand {
        cid: sqe.cid.get(),
        nsid: namespace.nsid(),
        device: namespace.spec.device,
        kind,
        offset: extent.offset,
        len: extent.len,
        fua: false,
        sgl: Sgl::Transport { length: 0 },
        source: None,
    }
}
