//! Verbs that C's header defines inline: calls through the function table of a queue's context.
//!
//! All return the result of the provider's function: 0 or an error number, and a count for polling.
//! The sign of the error number differs between providers ([`result`] handles that).

use std::ffi::{c_int, c_uint};
use std::io;
use std::ptr;

use super::verbs::{ibv_cq, ibv_mw, ibv_pd, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc};

/// Converts the result of a verb that returns 0 or an error number. Some providers return the
/// number, some its negative, some -1 and set errno.
///
/// # Errors
/// The error of that number.
pub fn result(answer: c_int) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(number.saturating_abs())),
    }
}

/// # Safety
/// `qp` is a live queue pair. `wr` is a chain of work requests that ends in null. Their SGE lists
/// are valid for the call, and the memory they refer to is valid while the device uses it.
#[inline]
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: &mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's promise; a live queue pair has a context, whose table the library
    // filled.
    unsafe {
        match (*(*qp).context).ops.post_send {
            Some(post) => post(qp, wr, bad_wr),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// # Safety
/// As for [`ibv_post_send`].
#[inline]
pub unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: &mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's promise; a live queue pair has a context, whose table the library
    // filled.
    unsafe {
        match (*(*qp).context).ops.post_recv {
            Some(post) => post(qp, wr, bad_wr),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// # Safety
/// As for [`ibv_post_send`], with a shared receive queue.
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: &mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's promise; a live queue has a context, whose table the library filled.
    unsafe {
        match (*(*srq).context).ops.post_srq_recv {
            Some(post) => post(srq, wr, bad_wr),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// # Safety
/// `cq` is a live completion queue, and `wc` has room for `num_entries`.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's promise; a live queue has a context, whose table the library filled.
    unsafe {
        match (*(*cq).context).ops.poll_cq {
            Some(poll) => poll(cq, num_entries, wc),
            None => -libc::EOPNOTSUPP,
        }
    }
}

/// # Safety
/// `cq` is a live completion queue.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's promise; a live queue has a context, whose table the library filled.
    unsafe {
        match (*(*cq).context).ops.req_notify_cq {
            Some(notify) => notify(cq, solicited_only),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// # Safety
/// `pd` is a live protection domain.
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw {
    // SAFETY: the caller's promise; a live domain has a context, whose table the library filled.
    unsafe {
        match (*(*pd).context).ops.alloc_mw {
            Some(alloc) => alloc(pd, kind),
            None => ptr::null_mut(),
        }
    }
}

/// # Safety
/// `mw` is a live memory window, which no longer exists afterwards.
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller's promise; a live window has a context, whose table the library filled.
    unsafe {
        match (*(*mw).context).ops.dealloc_mw {
            Some(dealloc) => dealloc(mw),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// Returns the key for the next binding of a window; only its lowest 8 bits change.
#[must_use]
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    let [a, b, c, tag] = rkey.to_be_bytes();
    u32::from_be_bytes([a, b, c, tag.wrapping_add(1)])
}
