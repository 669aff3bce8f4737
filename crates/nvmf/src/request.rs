//! State machine of one I/O command between its capsule and its response.
//!
//! ```text
//!              admitted                leased              pulled
//!   Waiting ------------> NeedsBuffer --------> Pulling ----------> OnDevice --+
//!      |  \                    |  (reads, verify)                     ^   |    | next piece of a
//!      |   \                   +--------------------------------------+   |    | long command
//!      |    \ data in capsule, or none                                |   +----+
//!      |     +--------------------------------------------------------+   |
//!      | cancelled                                                        | device done
//!      v                                                                  v
//!    (gone) <------------------ no data to send ---------------------- Sending --> (gone)
//! ```
//!
//! The stage owns everything that teardown must return: the permit, and each buffer that neither
//! the fabric nor the device owns. `B` is a data buffer and `P` a pacer's permit. This module moves
//! them and never reads them, except for the byte comparison of Compare.

use std::collections::VecDeque;

use nvmeof_wire::sgl::Sgl;

use crate::disposition::{DataSource, Extent, IoCommand, IoKind};
use crate::failure::Failure;
use crate::limits::{DEALLOCATE_PIECE, ZEROES_PIECE};

/// One I/O command and its state.
#[derive(Debug)]
pub struct Request<B, P> {
    io: IoCommand,
    state: State<B, P>,
    /// Its namespace is gone, so the command goes to no device any more.
    is_revoked: bool,
}

/// Stage of a request; see the diagram at the top of the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Queued in its flow.
    Waiting,
    /// Admitted, and waits for a buffer.
    NeedsBuffer,
    /// The fabric fetches the host's data.
    Pulling,
    /// The device executes the command.
    OnDevice,
    /// The fabric sends.
    Sending,
    /// Completed.
    Done,
}

/// Stage of a request, with the resources that it holds.
#[derive(Debug)]
enum State<B, P> {
    /// Queued in its flow. Data that came in the capsule is present.
    Waiting { inline: Option<B> },
    /// Admitted, and waits for a buffer. Compare holds the data that came in its capsule.
    NeedsBuffer { permit: P, host: Option<B> },
    /// The fabric fetches the host's data and owns the buffer; Compare keeps the other buffer.
    Pulling { permit: P, spare: Option<B> },
    /// The device works and owns the buffer; Compare keeps the host's data to compare with.
    OnDevice { permit: P, host: Option<B>, rest: Rest },
    /// The fabric sends the data and owns it.
    Sending { permit: P },
    /// Completed; the request holds nothing.
    Done,
}

/// Remainder of a long command when its device has completed one piece.
///
/// Deallocate and Write Zeroes are split. The device executes other commands between two pieces,
/// and an Abort need not wait for the last piece.
#[derive(Debug, Default)]
struct Rest {
    /// The extent with the next piece.
    extent: Extent,
    /// The extents after it.
    behind: VecDeque<Extent>,
    /// A flush must follow the last piece.
    must_flush: bool,
    /// The device executes that flush.
    is_flushing: bool,
    /// The command ends after the current piece.
    is_aborted: bool,
}

impl Rest {
    /// Takes the next piece, of at most `most` bytes.
    fn next_piece(&mut self, most: u64) -> Option<Extent> {
        if self.extent.len == 0 {
            self.extent = self.behind.pop_front()?;
        }
        let piece = Extent { len: self.extent.len.min(most), ..self.extent };
        self.extent.offset += piece.len;
        self.extent.len -= piece.len;
        Some(piece)
    }

    /// Returns true if there is another piece.
    fn has_piece(&self) -> bool {
        self.extent.len > 0 || !self.behind.is_empty()
    }
}

/// Next action of the reactor for a request.
#[derive(Debug)]
pub enum Step<B> {
    /// Lease the buffers and call [`Request::leased`], now or in a later turn.
    Lease(BufferRequest),
    /// Fill the buffer from the host's memory, then call [`Request::pulled`].
    Pull {
        /// Buffer whose length is the number of bytes to fetch.
        buf: B,
        /// Location in the host's memory.
        sgl: Sgl,
    },
    /// Convert the host's range list into extents, then call [`Request::ranges`].
    Ranges {
        /// The range list as the host sent it.
        list: B,
    },
    /// Submit to the block device, then call [`Request::device_done`].
    Device {
        /// The operation.
        op: DeviceOp,
        /// First byte.
        offset: u64,
        /// Bytes on the medium.
        len: u64,
        /// Data to write, or memory for the data to read.
        buf: Option<B>,
    },
    /// Respond to the host.
    ///
    /// With data, the request lives until the fabric has sent it. Without data it has completed.
    /// [`Request::into_permit`] then returns what it held.
    Finish {
        /// Result of the command.
        outcome: Result<(), Failure>,
        /// Read data.
        data: Option<B>,
    },
}

/// The buffers that a request needs to proceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferRequest {
    /// Bytes.
    pub len: u64,
    /// Lease a second buffer of the same length, too, or neither of them.
    ///
    /// If commands that wait for a second buffer held all memory, none of them would ever get it.
    pub spare: bool,
}

/// Operation of a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceOp {
    /// Fill the buffer.
    Read,
    /// Write the buffer; with `fua`, the data is durable before completion.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Everything that completed before is durable when this completes.
    Flush,
    /// Make the extent read as zeroes; `deallocate` permits freeing its space.
    WriteZeroes {
        /// Force unit access.
        fua: bool,
        /// The DEAC bit.
        deallocate: bool,
    },
    /// The contents of the extent are no longer needed.
    Deallocate,
}

impl<B: AsRef<[u8]>, P> Request<B, P> {
    /// Creates a command that waits for admission.
    ///
    /// `inline` is the capsule's data, trimmed to the bytes that the command uses.
    pub fn new(io: IoCommand, inline: Option<B>) -> Self {
        Self { io, state: State::Waiting { inline }, is_revoked: false }
    }

    /// The command.
    #[inline]
    pub fn io(&self) -> &IoCommand {
        &self.io
    }

    /// Returns true before admission, when an abort can still remove the command from its flow.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting { .. })
    }

    /// Requests that the command end with [`Failure::Aborted`] after the piece at its device.
    ///
    /// Returns false and changes nothing if there is no other piece, no piece at all, or an earlier
    /// Abort.
    pub fn abort_between_pieces(&mut self) -> bool {
        let State::OnDevice { rest, .. } = &mut self.state else { return false };
        let can_abort = rest.has_piece() && !rest.is_aborted;
        rest.is_aborted |= can_abort;
        can_abort
    }

    /// Returns true if the device currently executes a flush for it.
    #[must_use]
    pub fn is_flushing(&self) -> bool {
        match &self.state {
            State::OnDevice { rest, .. } => self.io.kind == IoKind::Flush || rest.is_flushing,
            _ => false,
        }
    }

    /// Returns true if the device has nothing more to do for it.
    #[must_use]
    pub fn is_past_device(&self) -> bool {
        matches!(self.state, State::Sending { .. } | State::Done)
    }

    /// The current stage.
    #[must_use]
    pub fn stage(&self) -> Stage {
        match self.state {
            State::Waiting { .. } => Stage::Waiting,
            State::NeedsBuffer { .. } => Stage::NeedsBuffer,
            State::Pulling { .. } => Stage::Pulling,
            State::OnDevice { .. } => Stage::OnDevice,
            State::Sending { .. } => Stage::Sending,
            State::Done => Stage::Done,
        }
    }

    /// The permit, for a caller that records something on it.
    ///
    /// `None` before admission and after the end.
    #[inline]
    pub fn permit_mut(&mut self) -> Option<&mut P> {
        match &mut self.state {
            State::Waiting { .. } | State::Done => None,
            State::NeedsBuffer { permit, .. }
            | State::Pulling { permit, .. }
            | State::OnDevice { permit, .. }
            | State::Sending { permit } => Some(permit),
        }
    }

    /// The buffers of its [`Step::Lease`], for a caller that repeats the lease.
    #[inline]
    pub fn wanted(&self) -> BufferRequest {
        let len = match self.io.kind {
            IoKind::Deallocate { ranges } => range_list_len(ranges),
            _ => self.io.len,
        };
        let has_host = matches!(self.state, State::NeedsBuffer { host: Some(_), .. });
        BufferRequest { len, spare: self.io.kind == IoKind::Compare && !has_host }
    }

    /// Bytes that the pacer accounts for, which is the size of its buffers in the shared pool.
    ///
    /// Data that came in the capsule is in its queue's own reservation, and waits for no admission.
    pub fn cost(&self) -> u64 {
        let came_along = matches!(self.state, State::Waiting { inline: Some(_) });
        match self.io.kind {
            IoKind::Write | IoKind::Deallocate { .. } if came_along => 0,
            IoKind::Compare if came_along => self.io.len,
            IoKind::Read | IoKind::Write | IoKind::Verify => self.io.len,
            IoKind::Compare => self.io.len.saturating_mul(2),
            IoKind::Deallocate { ranges } => range_list_len(ranges),
            IoKind::Flush | IoKind::WriteZeroes { .. } => 0,
        }
    }

    /// Handles the admission: the request owns the permit until it completes.
    #[inline]
    pub fn admitted(&mut self, permit: P) -> Step<B> {
        let State::Waiting { inline } = self.take() else { return self.misuse() };
        let io = self.io;
        match (io.kind, inline) {
            (IoKind::Read | IoKind::Verify, _) => self.need_buffer(permit, None),
            (IoKind::Write, Some(data)) => {
                self.on_device(permit, DeviceOp::Write { fua: io.fua }, Some(data))
            }
            (IoKind::Compare, Some(data)) => self.need_buffer(permit, Some(data)),
            (IoKind::Deallocate { .. }, Some(list)) => {
                self.state = State::Pulling { permit, spare: None };
                Step::Ranges { list }
            }
            (IoKind::Write | IoKind::Compare | IoKind::Deallocate { .. }, None) => {
                self.need_buffer(permit, None)
            }
            (IoKind::Flush, _) => self.on_device(permit, DeviceOp::Flush, None),
            (IoKind::WriteZeroes { deallocate }, _) => {
                let extent = Extent { offset: io.offset, len: io.len };
                let rest = Rest { extent, ..Rest::default() };
                self.state = State::OnDevice { permit, host: None, rest };
                self.next_piece(DeviceOp::WriteZeroes { fua: io.fua, deallocate }, ZEROES_PIECE)
            }
        }
    }

    /// Takes the buffers of a [`Step::Lease`].
    #[inline]
    pub fn leased(&mut self, buf: B, spare: Option<B>) -> Step<B> {
        let State::NeedsBuffer { permit, host } = self.take() else { return self.misuse() };
        let reads = match self.io.kind {
            IoKind::Read | IoKind::Verify => true,
            IoKind::Compare => host.is_some(),
            _ => false,
        };
        if reads {
            self.state = State::OnDevice { permit, host, rest: Rest::default() };
            return self.device_step(DeviceOp::Read, Some(buf));
        }
        let Some(DataSource::Host(sgl)) = self.io.source else {
            self.state = State::Sending { permit };
            return Step::Finish { outcome: Err(Failure::Internal), data: None };
        };
        self.state = State::Pulling { permit, spare };
        Step::Pull { buf, sgl }
    }

    /// Handles a zero-copy read: it needs no buffer, and the fabric sends immediately.
    #[inline]
    pub fn zero_copy(&mut self) {
        if let State::NeedsBuffer { permit, .. } = self.take() {
            self.state = State::Sending { permit };
        }
    }

    /// Ends the command with `failure`: no buffer can ever be available, or the device is missing.
    pub fn fail(&mut self, failure: Failure) -> Step<B> {
        match self.take() {
            State::NeedsBuffer { permit, .. }
            | State::Pulling { permit, .. }
            | State::OnDevice { permit, .. }
            | State::Sending { permit } => self.state = State::Sending { permit },
            State::Waiting { .. } | State::Done => {}
        }
        Step::Finish { outcome: Err(failure), data: None }
    }

    /// Handles the removal of the namespace: nothing more of the command goes to a device.
    ///
    /// The command ends with Invalid Field (an inactive NSID, Base 3.2.1.4) when the event that it
    /// waits for arrives.
    pub fn revoke(&mut self) {
        self.is_revoked = true;
        self.abort_between_pieces();
    }

    /// Handles the host's data, or a failure to fetch it.
    #[inline]
    pub fn pulled(&mut self, buf: B, result: Result<(), Failure>) -> Step<B> {
        if let Err(failure) = result {
            return self.fail(failure);
        }
        if self.is_revoked {
            return self.fail(Failure::InvalidField);
        }
        let State::Pulling { permit, spare } = self.take() else { return self.misuse() };
        match self.io.kind {
            IoKind::Write => {
                self.on_device(permit, DeviceOp::Write { fua: self.io.fua }, Some(buf))
            }
            IoKind::Compare => {
                self.state = State::OnDevice { permit, host: Some(buf), rest: Rest::default() };
                self.device_step(DeviceOp::Read, spare)
            }
            _ => {
                self.state = State::Pulling { permit, spare: None };
                Step::Ranges { list: buf }
            }
        }
    }

    /// Takes the extents of a Dataset Management command.
    pub fn ranges(&mut self, extents: Result<Vec<Extent>, Failure>) -> Step<B> {
        let extents = match extents {
            Ok(extents) => extents,
            Err(failure) => return self.fail(failure),
        };
        let State::Pulling { permit, .. } = self.take() else { return self.misuse() };
        let must_flush = self.io.fua && !extents.is_empty();
        let rest = Rest { behind: extents.into(), must_flush, ..Rest::default() };
        self.state = State::OnDevice { permit, host: None, rest };
        self.next_piece(DeviceOp::Deallocate, DEALLOCATE_PIECE)
    }

    /// Handles the completion of the device, which returns the buffer.
    #[inline]
    pub fn device_done(&mut self, buf: Option<B>, result: Result<(), Failure>) -> Step<B> {
        if let Err(failure) = result {
            return self.fail(if self.is_revoked { Failure::InvalidField } else { failure });
        }
        match self.io.kind {
            IoKind::Read => {
                let State::OnDevice { permit, .. } = self.take() else { return self.misuse() };
                self.state = State::Sending { permit };
                Step::Finish { outcome: Ok(()), data: buf }
            }
            IoKind::Compare => {
                let State::OnDevice { permit, host, .. } = self.take() else {
                    return self.misuse();
                };
                self.state = State::Sending { permit };
                let same = match (&host, &buf) {
                    (Some(host), Some(media)) => host.as_ref() == media.as_ref(),
                    _ => false,
                };
                let outcome = if same { Ok(()) } else { Err(Failure::CompareMismatch) };
                Step::Finish { outcome, data: None }
            }
            IoKind::Deallocate { .. } => self.next_piece(DeviceOp::Deallocate, DEALLOCATE_PIECE),
            IoKind::WriteZeroes { deallocate } => {
                let op = DeviceOp::WriteZeroes { fua: self.io.fua, deallocate };
                self.next_piece(op, ZEROES_PIECE)
            }
            IoKind::Write | IoKind::Flush | IoKind::Verify => {
                Step::Finish { outcome: Ok(()), data: None }
            }
        }
    }

    /// Ends the request and returns the permit, if it was ever admitted.
    ///
    /// Buffers that it still holds are dropped, which returns them to their pool.
    #[inline]
    pub fn into_permit(self) -> Option<P> {
        match self.state {
            State::Waiting { .. } | State::Done => None,
            State::NeedsBuffer { permit, .. }
            | State::Pulling { permit, .. }
            | State::OnDevice { permit, .. }
            | State::Sending { permit } => Some(permit),
        }
    }

    #[inline]
    fn take(&mut self) -> State<B, P> {
        std::mem::replace(&mut self.state, State::Done)
    }

    #[inline]
    fn need_buffer(&mut self, permit: P, host: Option<B>) -> Step<B> {
        self.state = State::NeedsBuffer { permit, host };
        Step::Lease(self.wanted())
    }

    #[inline]
    fn on_device(&mut self, permit: P, op: DeviceOp, buf: Option<B>) -> Step<B> {
        self.state = State::OnDevice { permit, host: None, rest: Rest::default() };
        self.device_step(op, buf)
    }

    #[inline]
    fn device_step(&self, op: DeviceOp, buf: Option<B>) -> Step<B> {
        Step::Device { op, offset: self.io.offset, len: self.io.len, buf }
    }

    /// The next piece of a long command, or its end.
    fn next_piece(&mut self, op: DeviceOp, most: u64) -> Step<B> {
        let State::OnDevice { rest, .. } = &mut self.state else { return self.misuse() };
        if rest.is_aborted {
            return self.fail(Failure::Aborted);
        }
        if let Some(Extent { offset, len }) = rest.next_piece(most) {
            return Step::Device { op, offset, len, buf: None };
        }
        if std::mem::take(&mut rest.must_flush) {
            rest.is_flushing = true;
            return Step::Device { op: DeviceOp::Flush, offset: 0, len: 0, buf: None };
        }
        Step::Finish { outcome: Ok(()), data: None }
    }

    /// Handles an event that does not fit the stage: a bug of the reactor, never of the peer.
    ///
    /// The command ends with an internal error, so that the host does not wait forever.
    fn misuse(&mut self) -> Step<B> {
        debug_assert!(false, "request event out of order in {:?}", self.io.kind);
        Step::Finish { outcome: Err(Failure::Internal), data: None }
    }
}

/// Bytes of a Dataset Management range list.
fn range_list_len(ranges: u16) -> u64 {
    u64::from(ranges) * 16
}

#[cfg(test)]
mod tests;
