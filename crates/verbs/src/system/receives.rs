//! Shared receive queues.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::device::SystemDevice;
use super::post;
use crate::error::VerbsError;
use crate::ffi::inline;
use crate::ffi::verbs::{ibv_srq, ibv_srq_attr, ibv_srq_init_attr};
use crate::provider::{Device, SharedReceiveQueue};
use crate::work::{Sge, WrId};

/// A receive queue that queue pairs share.
#[derive(Debug)]
pub struct SystemShared {
    queue: Arc<SrqInner>,
}

impl SystemShared {
    pub(super) fn new(
        device: &Arc<SystemDevice>,
        depth: u32,
        pieces: u32,
    ) -> Result<Self, VerbsError> {
        let mut attr = ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            attr: ibv_srq_attr { max_wr: depth, max_sge: pieces, srq_limit: 0 },
        };
        // SAFETY: a live domain, and attributes that the library reads and writes.
        let queue = unsafe { (device.library().verbs.ibv_create_srq)(device.domain(), &mut attr) };
        let error = io::Error::last_os_error();
        match NonNull::new(queue) {
            Some(queue) => {
                Ok(Self { queue: Arc::new(SrqInner { queue, device: Arc::clone(device) }) })
            }
            None => {
                let name = device.name();
                let what = format!("making a shared receive queue of {depth} entries of {name}");
                Err(VerbsError::call(what, error))
            }
        }
    }

    pub(super) fn queue(&self) -> &Arc<SrqInner> {
        &self.queue
    }
}

impl SharedReceiveQueue for SystemShared {
    unsafe fn post_receive(&mut self, id: WrId, pieces: &[Sge]) -> io::Result<()> {
        // SAFETY: a live queue; the caller makes the promises about the memory.
        post::receive(id, pieces, |wr, bad| unsafe {
            inline::ibv_post_srq_recv(self.queue.as_ptr(), wr, bad)
        })
    }
}

/// The queue itself. Queue pairs that receive from it hold a reference.
#[derive(Debug)]
pub(super) struct SrqInner {
    queue: NonNull<ibv_srq>,
    device: Arc<SystemDevice>,
}

// SAFETY: libibverbs and its providers lock shared receive queues; nothing ties them to a thread.
unsafe impl Send for SrqInner {}
// SAFETY: as above.
unsafe impl Sync for SrqInner {}

impl SrqInner {
    /// Pointer for calls of the library, valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut ibv_srq {
        self.queue.as_ptr()
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        // SAFETY: created here and destroyed once. Queue pairs that use it hold a reference, so
        // none is left.
        let answer = unsafe { (self.device.library().verbs.ibv_destroy_srq)(self.queue.as_ptr()) };
        if let Err(error) = inline::result(answer) {
            let device = self.device.name();
            tracing::error!(%error, device, "an RDMA shared receive queue could not be destroyed");
        }
    }
}
