//! Work requests in C's form.

use std::ffi::{c_int, c_uint};
use std::io;
use std::ptr;

use crate::ffi::inline;
use crate::ffi::verbs::{
    IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_SEND, IBV_WR_SEND_WITH_INV, ibv_mw_bind_info, ibv_recv_wr, ibv_send_wr,
    ibv_send_wr_atomic, ibv_send_wr_bind_mw, ibv_send_wr_qp_type, ibv_send_wr_rdma, ibv_send_wr_wr,
    ibv_send_wr_xrc, ibv_sge,
};
use crate::provider::PostError;
use crate::work::{SendOp, SendWr, Sge, WrId};

/// Maximum SGEs of a receive.
const MOST_PIECES: usize = 16;

/// Posts one receive with `post`, which gets the work request.
pub(super) fn receive(
    id: WrId,
    pieces: &[Sge],
    post: impl FnOnce(*mut ibv_recv_wr, &mut *mut ibv_recv_wr) -> c_int,
) -> io::Result<()> {
    let mut list = [ibv_sge { addr: 0, length: 0, lkey: 0 }; MOST_PIECES];
    let list = list.get_mut(..pieces.len()).ok_or(io::ErrorKind::InvalidInput)?;
    for (to, from) in list.iter_mut().zip(pieces) {
        *to = sge(from);
    }
    let mut wr = ibv_recv_wr {
        wr_id: id.raw(),
        next: ptr::null_mut(),
        sg_list: list.as_mut_ptr(),
        num_sge: c_int::try_from(list.len()).expect("at most 16"),
    };
    let mut bad = ptr::null_mut();
    inline::result(post(&mut wr, &mut bad))
}

/// Buffers for building chains of send work requests, reused for every chain.
#[derive(Default)]
pub(super) struct Chain {
    requests: Vec<ibv_send_wr>,
    pieces: Vec<ibv_sge>,
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain").field("room", &self.requests.capacity()).finish()
    }
}

// SAFETY: the pointers inside point into the vectors of the same value, and are used only during a
// call.
unsafe impl Send for Chain {}

impl Chain {
    /// Builds the chain and posts it with `post`, which gets its start.
    pub(super) fn post(
        &mut self,
        works: &[SendWr],
        post: impl FnOnce(*mut ibv_send_wr, &mut *mut ibv_send_wr) -> c_int,
    ) -> Result<(), PostError> {
        if works.is_empty() {
            return Ok(());
        }
        self.pieces.clear();
        self.requests.clear();
        // All pieces come first, because the list does not move afterwards.
        for work in works {
            self.pieces.extend(work.pieces.as_slice().iter().map(sge));
        }
        let mut pieces = self.pieces.as_mut_ptr();
        for work in works {
            let count = work.pieces.as_slice().len();
            self.requests.push(request(work, pieces));
            // At most one past the last piece.
            pieces = pieces.wrapping_add(count);
        }
        let start = self.requests.as_mut_ptr();
        for index in 1..self.requests.len() {
            // SAFETY: both are in the list, which does not move until it is posted. An index in
            // place of the pointer would borrow the list, which invalidates the pointers in it.
            unsafe { (*start.add(index - 1)).next = start.add(index) };
        }
        let mut bad = ptr::null_mut();
        inline::result(post(start, &mut bad)).map_err(|source| {
            // A provider that names no rejected request violates its interface. Then none counts as
            // posted, and completions of those that were are of no known work.
            let taken = self.requests.iter().position(|wr| ptr::eq(wr, bad)).unwrap_or(0);
            PostError { taken, source }
        })
    }
}

fn sge(piece: &Sge) -> ibv_sge {
    ibv_sge { addr: piece.address, length: piece.length, lkey: piece.lkey }
}

/// Returns an empty work request.
pub(super) fn empty(id: WrId) -> ibv_send_wr {
    let bind_info =
        ibv_mw_bind_info { mr: ptr::null_mut(), addr: 0, length: 0, mw_access_flags: 0 };
    ibv_send_wr {
        wr_id: id.raw(),
        next: ptr::null_mut(),
        sg_list: ptr::null_mut(),
        num_sge: 0,
        opcode: IBV_WR_SEND,
        send_flags: 0,
        invalidate_rkey: 0,
        // The longest member, so that every byte has a value.
        wr: ibv_send_wr_wr {
            atomic: ibv_send_wr_atomic { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 },
        },
        qp_type: ibv_send_wr_qp_type { xrc: ibv_send_wr_xrc { remote_srqn: 0 } },
        bind_mw: ibv_send_wr_bind_mw { mw: ptr::null_mut(), rkey: 0, bind_info },
    }
}

fn request(work: &SendWr, pieces: *mut ibv_sge) -> ibv_send_wr {
    let flag = |wanted: bool, flag: c_uint| if wanted { flag } else { 0 };
    let mut wr = empty(work.id);
    wr.sg_list = pieces;
    wr.num_sge = c_int::try_from(work.pieces.as_slice().len()).expect("at most 4");
    wr.send_flags = flag(work.signaled, IBV_SEND_SIGNALED)
        | flag(work.inline, IBV_SEND_INLINE)
        | flag(work.fence, IBV_SEND_FENCE);
    match work.operation {
        SendOp::Send => {}
        SendOp::SendInvalidate { key } => {
            wr.opcode = IBV_WR_SEND_WITH_INV;
            wr.invalidate_rkey = key;
        }
        SendOp::Write { address, key } => {
            wr.opcode = IBV_WR_RDMA_WRITE;
            wr.wr.rdma = ibv_send_wr_rdma { remote_addr: address, rkey: key };
        }
        SendOp::Read { address, key } => {
            wr.opcode = IBV_WR_RDMA_READ;
            wr.wr.rdma = ibv_send_wr_rdma { remote_addr: address, rkey: key };
        }
    }
    wr
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::SgeList;

    fn work(slot: u32, operation: SendOp, pieces: &[u32]) -> SendWr {
        let mut list = SgeList::EMPTY;
        for length in pieces {
            assert!(list.push(Sge { address: 0x1000, length: *length, lkey: 9 }));
        }
        let id = WrId::new(1, 0, slot);
        SendWr { id, operation, pieces: list, signaled: slot == 2, inline: false, fence: false }
    }

    #[test]
    fn a_chain_is_linked_and_keeps_each_ones_pieces() {
        let works = [
            work(0, SendOp::Write { address: 0xa0, key: 5 }, &[1, 2]),
            work(1, SendOp::Read { address: 0xb0, key: 6 }, &[]),
            work(2, SendOp::SendInvalidate { key: 7 }, &[3]),
        ];
        let mut seen = Vec::new();
        let answer = Chain::default().post(&works, |mut wr, _| {
            while !wr.is_null() {
                // SAFETY: the chain lives for the call and has the number of pieces that it states.
                unsafe {
                    let request = &*wr;
                    let count = usize::try_from(request.num_sge).expect("a count");
                    let lengths: Vec<u32> =
                        (0..count).map(|i| (*request.sg_list.add(i)).length).collect();
                    let rkey = request.wr.rdma.rkey;
                    seen.push((request.opcode, request.send_flags, rkey, lengths));
                    wr = request.next;
                }
            }
            0
        });
        assert!(answer.is_ok());
        let expected = [
            (IBV_WR_RDMA_WRITE, 0, 5, vec![1, 2]),
            (IBV_WR_RDMA_READ, 0, 6, vec![]),
            (IBV_WR_SEND_WITH_INV, IBV_SEND_SIGNALED, 0, vec![3]),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn what_was_taken_of_a_refused_chain_is_counted() {
        let works = [0, 1, 2].map(|slot| work(slot, SendOp::Send, &[1]));
        let refused = Chain::default().post(&works, |wr, bad| {
            // SAFETY: the chain has three work requests.
            *bad = unsafe { (*wr).next };
            libc::ENOMEM
        });
        let refused = refused.expect_err("refused");
        assert_eq!((refused.taken, refused.source.raw_os_error()), (1, Some(libc::ENOMEM)));
    }

    #[test]
    fn a_receive_of_too_many_pieces_is_not_posted() {
        let pieces = [Sge::default(); MOST_PIECES + 1];
        let refused = receive(WrId::new(0, 0, 0), &pieces, |_, _| panic!("posted"));
        assert_eq!(refused.expect_err("refused").kind(), io::ErrorKind::InvalidInput);
        let mut count = 0;
        let id = WrId::new(0, 0, 0);
        let posted = receive(id, &pieces[..2], |wr, _| {
            // SAFETY: the work request lives for the call.
            count = unsafe { (*wr).num_sge };
            0
        });
        assert!(posted.is_ok());
        assert_eq!(count, 2);
    }
}
