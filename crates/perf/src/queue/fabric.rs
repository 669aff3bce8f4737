//! A queue over a fabric.

use nvmeof_initiator::{CompletedCommand, IoKind, IoQueue, Nanos, Transfer};

use nvmeof_wire::nvm::{DSM_RANGE_SIZE, DsmRange};
use nvmeof_wire::zerocopy::IntoBytes as _;

use super::{DeviceQueue, Io, IoBuffer, IoDone, IoOp, QueueFailed};

/// Bytes of the single range of a trim.
const RANGE: usize = DSM_RANGE_SIZE as usize;

/// An I/O queue of a controller.
#[derive(Debug)]
pub(crate) struct FabricQueue {
    queue: IoQueue,
    /// Completions, before they are converted.
    completed: Vec<CompletedCommand>,
    /// Buffers for the ranges of trims; completions return them.
    ranges: Vec<nvmeof_initiator::Buffer>,
}

impl FabricQueue {
    pub(crate) fn new(queue: IoQueue) -> Self {
        Self { queue, completed: Vec::new(), ranges: Vec::new() }
    }

    /// Returns the queue itself, for reuse.
    pub(crate) fn into_inner(self) -> IoQueue {
        self.queue
    }

    /// The single range of a trim, in the format of Dataset Management; `None` if there is no
    /// memory for it.
    fn range(&mut self, slba: u64, blocks: u32) -> Option<nvmeof_initiator::Buffer> {
        let range = DsmRange::new(slba, blocks);
        let idle = self.ranges.pop();
        let mut buffer = idle.or_else(|| nvmeof_initiator::Buffer::try_zeroed(RANGE))?;
        buffer.as_mut_slice().copy_from_slice(range.as_bytes());
        Some(buffer)
    }

    fn lost(&self, error: &nvmeof_initiator::Error) -> QueueFailed {
        QueueFailed(format!("queue {}: {error}", self.queue.qid()))
    }
}

impl DeviceQueue for FabricQueue {
    #[inline]
    fn room(&self) -> usize {
        usize::from(self.queue.depth()).saturating_sub(self.queue.in_flight())
    }

    #[inline]
    fn submit(&mut self, io: Io, now: Nanos) -> Result<(), Io> {
        let Io { token, nsid, slba, blocks, op } = io;
        let kind = match op {
            IoOp::Read(IoBuffer::Fabric(buffer)) => IoKind::Read(buffer),
            IoOp::Write(IoBuffer::Fabric(data)) => IoKind::Write { data, fua: false },
            IoOp::Trim => match self.range(slba, blocks) {
                Some(range) => IoKind::Deallocate(range),
                None => return Err(Io { token, nsid, slba, blocks, op: IoOp::Trim }),
            },
            op => return Err(Io { token, nsid, slba, blocks, op }),
        };
        let undo: fn(nvmeof_initiator::Buffer) -> IoOp = match &kind {
            IoKind::Read(_) => |buffer| IoOp::Read(IoBuffer::Fabric(buffer)),
            IoKind::Write { .. } => |buffer| IoOp::Write(IoBuffer::Fabric(buffer)),
            _ => |_| IoOp::Trim,
        };
        let io = nvmeof_initiator::Io { token, nsid, slba, blocks, kind };
        self.queue.submit(io, now).map_err(|rejected| {
            let op = match rejected.command.transfer {
                Transfer::In(buffer) | Transfer::Out(buffer) => undo(buffer),
                Transfer::None => IoOp::Trim,
            };
            Io { token, nsid, slba, blocks, op }
        })
    }

    #[inline]
    fn poll(&mut self, now: Nanos, done: &mut Vec<IoDone>) -> Result<(), QueueFailed> {
        let polled = self.queue.poll(now, &mut self.completed);
        for completed in self.completed.drain(..) {
            let CompletedCommand { token, result, buffer } = completed;
            let result = result.map(drop).map_err(|error| error.to_string());
            let buffer = match buffer {
                // A data buffer has at least one block.
                Some(range) if range.len() == RANGE => {
                    self.ranges.push(range);
                    None
                }
                buffer => buffer.map(IoBuffer::Fabric),
            };
            done.push(IoDone { token, result, buffer });
        }
        polled.map_err(|error| self.lost(&error))
    }

    #[inline]
    fn flush(&mut self) -> Result<(), QueueFailed> {
        self.queue.flush().map_err(|error| self.lost(&error))
    }
}
