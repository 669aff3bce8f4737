//! `nvme`: a namespace of a drive, through the VFIO driver.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{
    BlockDevice, BlockError, BlockOp, BlockOpKind, BlockQueue, Completed, DeviceInfo, Geometry,
    RejectReason, Rejected,
};
use crate::dma::CorePool;
use crate::nvme_driver::{
    BufferMaps, Controller, ControllerState, Io, IoKind, IoQueue, NamespaceInfo, OpenError,
    OpenErrorReason,
};

/// An NVMe namespace as a block device. Several may share a controller.
#[derive(Debug)]
pub struct NvmeDevice {
    info: DeviceInfo,
    controller: Arc<Controller>,
    maps: Arc<BufferMaps>,
    namespace: NamespaceInfo,
    /// [`Controller::namespace_changes`] when the drive last described the namespace.
    seen: AtomicU64,
}

impl NvmeDevice {
    /// Opens namespace `nsid` of `controller`, for buffers of the pool of `maps`.
    ///
    /// # Errors
    /// The namespace does not exist or cannot be served, or the buffers cannot be mapped for the
    /// drive.
    pub fn new(
        name: &str,
        controller: Arc<Controller>,
        nsid: u32,
        maps: Arc<BufferMaps>,
    ) -> Result<Self, OpenError> {
        // Read before the query: a change in between counts as a new one.
        let seen = AtomicU64::new(controller.namespace_changes());
        let namespace = controller.namespace(nsid)?;
        // Maps now, so that a limit on locked memory fails here and not in the first I/O.
        controller.attach(&maps).map_err(|error| OpenError {
            address: controller.address().to_owned(),
            reason: OpenErrorReason::System { what: "mapping buffers for the drive", error },
        })?;
        let abilities = controller.abilities();
        let info = DeviceInfo {
            name: name.to_owned(),
            size: namespace.size(),
            block_size: namespace.block_size,
            read_only: namespace.read_only,
            volatile_cache: abilities.volatile_cache,
            deallocate: abilities.deallocate,
            deallocate_reads_zero: namespace.deallocate_reads_zero,
            write_zeroes: abilities.write_zeroes,
            geometry: Geometry::from_blocks(&namespace.preferred, namespace.block_size),
            medium: namespace.wwid(controller.identity()),
        };
        Ok(Self { info, controller, maps, namespace, seen })
    }

    /// Returns the controller of the namespace.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// Returns the namespace as the drive describes it.
    pub fn namespace(&self) -> &NamespaceInfo {
        &self.namespace
    }

    /// Returns true if the namespace is the same as when this device was created. Queries the
    /// drive, which may take a while.
    ///
    /// # Errors
    /// The drive does not answer, or the namespace can no longer be served.
    pub fn is_current(&self) -> Result<bool, OpenError> {
        let changes = self.controller.namespace_changes();
        let answer = self.controller.namespace(self.namespace.nsid);
        let is_answer =
            |error: &OpenError| matches!(error.reason, OpenErrorReason::Namespace { .. });
        if answer.as_ref().err().is_none_or(is_answer) {
            self.seen.store(changes, Ordering::Relaxed);
        }
        Ok(answer? == self.namespace)
    }

    /// Returns true if namespaces may have changed since the drive last described this one.
    pub fn may_have_changed(&self) -> bool {
        self.controller.namespace_changes() != self.seen.load(Ordering::Relaxed)
    }

    /// Opens a queue of the driver itself, which also supports compare and verify.
    ///
    /// # Errors
    /// As [`BlockDevice::open_queue`].
    pub fn open_driver_queue(&self, pool: &CorePool) -> Result<IoQueue, BlockError> {
        let errno = |e: io::Error| BlockError::from_errno(e.raw_os_error().unwrap_or(libc::EIO));
        let map = self.controller.attach(&self.maps).map_err(errno)?;
        if !map.has(pool) {
            return Err(BlockError::NoMemory);
        }
        self.controller.open_queue(map, self.namespace.clone())
    }
}

impl BlockDevice for NvmeDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn open_queue(&self, pool: &CorePool) -> Result<Box<dyn BlockQueue>, BlockError> {
        Ok(Box::new(NvmeQueue(self.open_driver_queue(pool)?)))
    }

    fn quiesce_bound(&self) -> Option<Duration> {
        Some(self.controller.quiesce_bound())
    }

    fn is_gone(&self) -> bool {
        matches!(self.controller.state(), ControllerState::Failed(_))
    }
}

#[derive(Debug)]
struct NvmeQueue(IoQueue);

impl BlockQueue for NvmeQueue {
    #[inline]
    fn submit(&mut self, op: BlockOp) -> Result<(), Rejected> {
        let BlockOp { token, kind, offset, len, buf } = op;
        let io = Io { token, kind: driver_kind(kind), offset, len, buf };
        self.0.submit(io).map_err(|io| {
            let Io { token, offset, len, buf, .. } = io;
            Rejected {
                op: BlockOp { token, kind, offset, len, buf },
                reason: RejectReason::QueueFull,
            }
        })
    }

    #[inline]
    fn poll(&mut self, done: &mut Vec<Completed>) {
        self.0.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn cancel(&mut self, token: u64) {
        self.0.cancel(token);
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.event_fd()
    }

    /// Without an interrupt, only a poll notices that the controller resets.
    fn needs_polls(&self) -> bool {
        self.0.event_fd().is_none()
    }
}

fn driver_kind(kind: BlockOpKind) -> IoKind {
    match kind {
        BlockOpKind::Read => IoKind::Read,
        BlockOpKind::Write { fua } => IoKind::Write { fua },
        BlockOpKind::Flush => IoKind::Flush,
        BlockOpKind::WriteZeroes { fua, deallocate } => IoKind::WriteZeroes { fua, deallocate },
        BlockOpKind::Deallocate => IoKind::Deallocate,
    }
}
