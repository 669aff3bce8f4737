//! Completion queues: polled in batches, with a descriptor to wait on.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::connection::set_nonblocking;
use super::device::SystemDevice;
use crate::error::VerbsError;
use crate::ffi::inline;
use crate::ffi::verbs::{
    IBV_WC_IP_CSUM_OK, IBV_WC_RECV, IBV_WC_REM_ACCESS_ERR, IBV_WC_RESP_TIMEOUT_ERR,
    IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_SUCCESS, IBV_WC_WITH_INV,
    IBV_WC_WR_FLUSH_ERR, ibv_comp_channel, ibv_cq, ibv_wc,
};
use crate::provider::{CompletionQueue, Device};
use crate::work::{WcStatus, WorkCompletion, WrId};

/// Entries polled with one call.
const BATCH: usize = 32;

/// Events acknowledged with one call, which takes a lock.
const ACKNOWLEDGE: u32 = 64;

/// A completion queue of one thread.
#[derive(Debug)]
pub struct SystemCompletions {
    queue: Arc<CqInner>,
    unacknowledged: u32,
    armed: bool,
}

impl SystemCompletions {
    pub(super) fn new(device: &Arc<SystemDevice>, depth: u32) -> Result<Self, VerbsError> {
        let queue = CqInner::new(device, depth).map_err(|error| {
            let what = format!("making a completion queue of {depth} entries of {}", device.name());
            VerbsError::call(what, error)
        })?;
        Ok(Self { queue: Arc::new(queue), unacknowledged: 0, armed: false })
    }

    pub(super) fn queue(&self) -> &Arc<CqInner> {
        &self.queue
    }

    fn acknowledge(&mut self) {
        let count = std::mem::take(&mut self.unacknowledged);
        if count > 0 {
            // SAFETY: a live queue, which delivered `count` events that are not acknowledged yet.
            unsafe {
                (self.queue.device.library().verbs.ibv_ack_cq_events)(self.queue.as_ptr(), count);
            };
        }
    }

    /// Takes an event off the channel, so that its descriptor is no longer readable. Returns false
    /// if there is none.
    fn take_event(&mut self) -> io::Result<bool> {
        let verbs = &self.queue.device.library().verbs;
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        loop {
            // SAFETY: a live channel, which never blocks and belongs to this queue alone, and
            // places for the results.
            let answer = unsafe {
                (verbs.ibv_get_cq_event)(self.queue.channel.as_ptr(), &mut queue, &mut context)
            };
            if answer == 0 {
                break;
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(false),
                io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            }
        }
        self.unacknowledged += 1;
        if self.unacknowledged >= ACKNOWLEDGE {
            self.acknowledge();
        }
        Ok(true)
    }
}

impl CompletionQueue for SystemCompletions {
    fn poll(&mut self, most: usize, into: &mut Vec<WorkCompletion>) -> io::Result<()> {
        let kernel_flags = self.queue.device.has_kernel_flags();
        let mut left = most;
        while left > 0 {
            let mut entries = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
            let wanted = left.min(BATCH);
            let room = c_int::try_from(wanted).expect("at most a batch");
            // SAFETY: a live queue, and room for the requested number of entries.
            let count = unsafe {
                inline::ibv_poll_cq(self.queue.as_ptr(), room, entries.as_mut_ptr().cast())
            };
            let count = usize::try_from(count).map_err(|_| broken())?.min(wanted);
            for entry in &entries[..count] {
                // SAFETY: the provider has written `count` entries.
                into.push(completion(unsafe { entry.assume_init_ref() }, kernel_flags));
            }
            left -= count;
            if count < wanted {
                break;
            }
        }
        if left == most && self.queue.broken.load(Ordering::Relaxed) {
            Err(broken())
        } else {
            Ok(())
        }
    }

    fn arm(&mut self) -> io::Result<()> {
        // An armed queue signals once. Until that event arrives, the queue stays armed and needs no
        // other system call.
        if self.armed && !self.take_event()? {
            return Ok(());
        }
        // SAFETY: a live queue.
        let asked = inline::result(unsafe { inline::ibv_req_notify_cq(self.queue.as_ptr(), 0) });
        self.armed = asked.is_ok();
        asked
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.queue.channel.fd()
    }
}

impl Drop for SystemCompletions {
    fn drop(&mut self) {
        // Destroying the queue blocks in the library until all events are acknowledged.
        self.acknowledge();
    }
}

fn broken() -> io::Error {
    io::Error::other("the completion queue is broken: it overflowed, or the device has failed")
}

/// Converts a completion. Unless it is a success, only status, identifier and queue pair are valid.
fn completion(entry: &ibv_wc, kernel_flags: bool) -> WorkCompletion {
    let status = match entry.status {
        IBV_WC_SUCCESS => WcStatus::Success,
        IBV_WC_WR_FLUSH_ERR => WcStatus::Flushed,
        IBV_WC_REM_ACCESS_ERR => WcStatus::RemoteAccess,
        IBV_WC_RNR_RETRY_EXC_ERR => WcStatus::ReceiverNotReady,
        IBV_WC_RETRY_EXC_ERR | IBV_WC_RESP_TIMEOUT_ERR => WcStatus::Unreachable,
        other => WcStatus::Other(other),
    };
    let received = status == WcStatus::Success && entry.opcode & IBV_WC_RECV != 0;
    // The kernel's number of "with invalidate" is libibverbs' number of "checksum is right".
    let invalidates = if kernel_flags { IBV_WC_IP_CSUM_OK } else { IBV_WC_WITH_INV };
    let invalidated = received && entry.wc_flags & invalidates != 0;
    WorkCompletion {
        id: WrId::from_raw(entry.wr_id),
        status,
        queue_pair: entry.qp_num,
        bytes: if received { entry.byte_len } else { 0 },
        invalidated: invalidated.then_some(entry.invalidated_rkey),
    }
}

/// The queue itself. Queue pairs that complete to it hold a reference.
#[derive(Debug)]
pub(super) struct CqInner {
    queue: NonNull<ibv_cq>,
    broken: Arc<AtomicBool>,
    // Dropped in this order, after the queue.
    channel: Channel,
    device: Arc<SystemDevice>,
}

// SAFETY: libibverbs and its providers lock completion queues; nothing ties them to a thread.
unsafe impl Send for CqInner {}
// SAFETY: as above.
unsafe impl Sync for CqInner {}

impl CqInner {
    fn new(device: &Arc<SystemDevice>, depth: u32) -> io::Result<Self> {
        let depth = c_int::try_from(depth).map_err(|_| io::ErrorKind::InvalidInput)?;
        let channel = Channel::new(device)?;
        let vector = device.next_vector();
        // SAFETY: an open context and a live channel of it; the queue has no user context.
        let queue = unsafe {
            (device.library().verbs.ibv_create_cq)(
                device.context(),
                depth,
                ptr::null_mut(),
                channel.as_ptr(),
                vector,
            )
        };
        let queue = NonNull::new(queue).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the library just created it.
        let handle = unsafe { (*queue.as_ptr()).handle };
        let broken = device.watch().add_queue(handle);
        Ok(Self { queue, broken, channel, device: Arc::clone(device) })
    }

    /// Pointer for calls of the library, valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut ibv_cq {
        self.queue.as_ptr()
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        // SAFETY: a live queue.
        let handle = unsafe { (*self.queue.as_ptr()).handle };
        self.device.watch().remove_queue(handle);
        // SAFETY: created here and destroyed once. Queue pairs that use it hold a reference, so
        // none is left. Its events are acknowledged (`SystemCompletions::drop`).
        let answer = unsafe { (self.device.library().verbs.ibv_destroy_cq)(self.queue.as_ptr()) };
        if let Err(error) = inline::result(answer) {
            let device = self.device.name();
            tracing::error!(%error, device, "an RDMA completion queue could not be destroyed");
        }
    }
}

/// Channel that receives the events of a completion queue.
#[derive(Debug)]
struct Channel {
    channel: NonNull<ibv_comp_channel>,
    device: Arc<SystemDevice>,
}

impl Channel {
    fn new(device: &Arc<SystemDevice>) -> io::Result<Self> {
        // SAFETY: an open context.
        let channel = unsafe { (device.library().verbs.ibv_create_comp_channel)(device.context()) };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        let this = Self { channel, device: Arc::clone(device) };
        set_nonblocking(this.fd())?;
        Ok(this)
    }

    fn as_ptr(&self) -> *mut ibv_comp_channel {
        self.channel.as_ptr()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as `self`, and its descriptor as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: created here and destroyed once, after its completion queue.
        unsafe { (self.device.library().verbs.ibv_destroy_comp_channel)(self.channel.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> ibv_wc {
        ibv_wc {
            wr_id: 7,
            status: IBV_WC_SUCCESS,
            opcode: IBV_WC_RECV,
            vendor_err: 0,
            byte_len: 64,
            invalidated_rkey: 0x55,
            qp_num: 3,
            src_qp: 0,
            wc_flags: 0,
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        }
    }

    #[test]
    fn only_receives_have_bytes_and_only_successes() {
        let received = completion(&entry(), false);
        assert_eq!((received.id.raw(), received.queue_pair, received.bytes), (7, 3, 64));
        assert_eq!(received.invalidated, None);
        let sent = completion(&ibv_wc { opcode: 0, wc_flags: IBV_WC_WITH_INV, ..entry() }, false);
        assert_eq!((sent.bytes, sent.invalidated), (0, None));
        let flushed = ibv_wc { status: IBV_WC_WR_FLUSH_ERR, wc_flags: 0xff, ..entry() };
        let flushed = completion(&flushed, false);
        assert_eq!(flushed.status, WcStatus::Flushed);
        assert_eq!((flushed.bytes, flushed.invalidated), (0, None));
    }

    #[test]
    fn invalidation_is_read_in_the_numbering_of_the_device() {
        let of =
            |flags, kernel| completion(&ibv_wc { wc_flags: flags, ..entry() }, kernel).invalidated;
        assert_eq!(of(8, false), Some(0x55));
        assert_eq!(of(4, false), None, "a right checksum");
        assert_eq!(of(4, true), Some(0x55));
        assert_eq!(of(8, true), None, "a right checksum");
    }

    #[test]
    fn statuses_keep_what_they_mean() {
        let of = |status| completion(&ibv_wc { status, ..entry() }, false).status;
        assert_eq!(of(10), WcStatus::RemoteAccess);
        assert_eq!(of(12), WcStatus::Unreachable);
        assert_eq!(of(13), WcStatus::ReceiverNotReady);
        assert_eq!(of(4), WcStatus::Other(4));
    }
}
