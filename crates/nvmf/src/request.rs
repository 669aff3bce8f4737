//! The life of one I/O command between its capsule and its response.
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
//! The stage owns what teardown must give back: the permit always, and each buffer that neither
//! the fabric nor the device holds. `B` is a data buffer and `P` a pacer's permit; this module
//! moves them and never looks inside, but for the byte comparison that Compare is.

use std::collections::VecDeque;

use nvmeof_wire::sgl::Sgl;

use crate::disposition::{DataSource, Extent, IoCommand, IoKind};
use crate::failure::Failure;
use crate::limits::{DEALLOCATE_PIECE, ZEROES_PIECE};

/// One I/O command in flight.
#[derive(Debug)]
pub struct Request<B, P> {
    io: IoCommand,
    state: State<B, P>,
    /// Its namespace is gone: it goes to no device any more.
    is_revoked: bool,
}

/// Where a request stands: see the diagram at the top of the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// In its flow's lane.
    Waiting,
    /// Admitted, and short of a buffer.
    NeedsBuffer,
    /// The fabric fetches the host's data.
    Pulling,
    /// The device works.
    OnDevice,
    /// The fabric sends.
    Sending,
    /// Over.
    Done,
}

/// Where a request stands, with what it holds there.
#[derive(Debug)]
enum State<B, P> {
    /// In its flow's lane. Data that came in the capsule is already here.
    Waiting { inline: Option<B> },
    /// Admitted, and short of a buffer; Compare holds the data that came in its capsule meanwhile.
    NeedsBuffer { permit: P, host: Option<B> },
    /// The fabric fetches the host's data and owns the buffer; Compare keeps the one for the device's data.
    Pulling { permit: P, spare: Option<B> },
    /// The device works and owns the buffer; Compare keeps the host's data to compare with.
    OnDevice { permit: P, host: Option<B>, rest: Rest },
    /// The fabric sends the data and owns it.
    Sending { permit: P },
    /// Over: nothing is held.
    Done,
}

/// What is left of a long command when its device is done with a piece of it. Deallocate and Write
/// Zeroes are cut, so that the device does what others ask for between two pieces, and an Abort has
/// not to wait for the last.
#[derive(Debug, Default)]
struct Rest {
    /// The extent whose next piece is due.
    extent: Extent,
    /// Those behind it.
    behind: VecDeque<Extent>,
    /// A flush is to follow the last piece.
    must_flush: bool,
    /// That flush is what the device does.
    is_flushing: bool,
    /// The command is to end where it is.
    is_aborted: bool,
}

impl Rest {
    /// Takes out the next piece, of at most `most` bytes.
    fn next_piece(&mut self, most: u64) -> Option<Extent> {
        if self.extent.len == 0 {
            self.extent = self.behind.pop_front()?;
        }
        let piece = Extent { len: self.extent.len.min(most), ..self.extent };
        self.extent.offset += piece.len;
        self.extent.len -= piece.len;
        Some(piece)
    }

    /// Whether there is another piece.
    fn has_piece(&self) -> bool {
        self.extent.len > 0 || !self.behind.is_empty()
    }
}

/// What the reactor has to do next for a request.
#[derive(Debug)]
pub enum Step<B> {
    /// Lease what is wanted and call [`Request::leased`], now or in a later turn.
    Lease(Wanted),
    /// Fill the buffer from the host's memory, then [`Request::pulled`].
    Pull {
        /// Buffer whose length is the number of bytes to fetch.
        buf: B,
        /// Where the host keeps them.
        sgl: Sgl,
    },
    /// Turn the host's range list into extents, then [`Request::ranges`].
    Ranges {
        /// The range list as the host sent it.
        list: B,
    },
    /// Submit to the block device, then [`Request::device_done`].
    Device {
        /// What to do.
        op: DeviceOp,
        /// First byte.
        offset: u64,
        /// Bytes of media.
        len: u64,
        /// Data to write, or room for data to read.
        buf: Option<B>,
    },
    /// Answer the host. With data, the request lives on until [`Request::sent`]; without, it is
    /// over and [`Request::into_permit`] gives back what it held.
    Finish {
        /// What becomes of the command.
        outcome: Result<(), Failure>,
        /// Read data.
        data: Option<B>,
    },
}

/// The buffers that a request needs to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Bytes.
    pub len: u64,
    /// Another as large, or none of the two: where all memory is held by commands that wait for a second buffer, none
    /// of them ever gets it.
    pub spare: bool,
}

/// What a block device is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceOp {
    /// Fill the buffer.
    Read,
    /// Store the buffer; with `fua`, on the medium before it completes.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Everything completed before is on the medium when this completes.
    Flush,
    /// Make the extent read as zeroes; `deallocate` allows giving its space back.
    WriteZeroes {
        /// Force unit access.
        fua: bool,
        /// The DEAC bit.
        deallocate: bool,
    },
    /// The extent's contents are no longer needed.
    Deallocate,
}

impl<B: AsRef<[u8]>, P> Request<B, P> {
    /// A command that waits for admission. `inline` is the capsule's data, cut to what the command
    /// uses.
    pub fn new(io: IoCommand, inline: Option<B>) -> Self {
        Self { io, state: State::Waiting { inline }, is_revoked: false }
    }

    /// The command.
    #[inline]
    pub fn io(&self) -> &IoCommand {
        &self.io
    }

    /// Whether the command has not been admitted yet, so that an abort can still take it out of its
    /// lane.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting { .. })
    }

    /// An Abort came for it while its device works on a piece of it: it ends with
    /// [`Failure::Aborted`] when the device is done with that piece. False if there is no other
    /// piece, or no piece at all, or an Abort came before: nothing has changed then.
    pub fn abort_between_pieces(&mut self) -> bool {
        let State::OnDevice { rest, .. } = &mut self.state else { return false };
        let can_abort = rest.has_piece() && !rest.is_aborted;
        rest.is_aborted |= can_abort;
        can_abort
    }

    /// Whether what the device does for it is a flush.
    #[must_use]
    pub fn is_flushing(&self) -> bool {
        match &self.state {
            State::OnDevice { rest, .. } => self.io.kind == IoKind::Flush || rest.is_flushing,
            _ => false,
        }
    }

    /// Whether the device has nothing more to do for it.
    #[must_use]
    pub fn is_past_device(&self) -> bool {
        matches!(self.state, State::Sending { .. } | State::Done)
    }

    /// Where it stands.
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

    /// The permit it holds, for who has something to note on it; `None` before admission and after
    /// the end.
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

    /// What a [`Step::Lease`] asks for, for who has to ask again.
    #[inline]
    pub fn wanted(&self) -> Wanted {
        let len = match self.io.kind {
            IoKind::Deallocate { ranges } => range_list_len(ranges),
            _ => self.io.len,
        };
        let has_host = matches!(self.state, State::NeedsBuffer { host: Some(_), .. });
        Wanted { len, spare: self.io.kind == IoKind::Compare && !has_host }
    }

    /// Bytes the pacer has to account for: what will be held in buffers of the shared pool. Data
    /// that came in the capsule is in its queue's own reserve and waits for nobody.
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

    /// Admission: the permit is the request's until it is over.
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

    /// The buffers a [`Step::Lease`] asked for.
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

    /// A read whose data the device lends: no buffer is needed, the fabric sends at once.
    #[inline]
    pub fn lent(&mut self) {
        if let State::NeedsBuffer { permit, .. } = self.take() {
            self.state = State::Sending { permit };
        }
    }

    /// No buffer can ever be had, or the device is gone: the command ends with `failure`.
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

    /// The namespace is gone: nothing more of the command goes to a device, and it ends with Invalid
    /// Field (an inactive NSID, Base 3.2.1.4) when what it waits for has come.
    pub fn revoke(&mut self) {
        self.is_revoked = true;
        self.abort_between_pieces();
    }

    /// The host's data is here, or could not be fetched.
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

    /// The extents of a Dataset Management command.
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

    /// The device is done and gives the buffer back.
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

    /// Ends the request and gives back the permit, if it was ever admitted. What it still held of
    /// buffers is dropped, which returns them to their pool.
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

    /// An event that does not belong to the stage: the reactor's bug, never the peer's. The command
    /// ends with an internal error, so that the host is not left waiting.
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
