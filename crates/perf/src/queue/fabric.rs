//! A queue over a fabric.

use nvmeof_initiator::{Completed, IoKind, IoQueue, Nanos, Rejected, Transfer};

use super::{Buffer, Done, Io, Lost, Op, Queue};

/// An I/O queue of a controller.
#[derive(Debug)]
pub(crate) struct FabricQueue {
    queue: IoQueue,
    /// What has completed, on its way up.
    completed: Vec<Completed>,
}

impl FabricQueue {
    pub(crate) fn new(queue: IoQueue) -> Self {
        Self { queue, completed: Vec::new() }
    }

    /// The queue itself, to be used again.
    pub(crate) fn into_inner(self) -> IoQueue {
        self.queue
    }

    fn lost(&self, error: &nvmeof_initiator::Error) -> Lost {
        Lost(format!("queue {}: {error}", self.queue.qid()))
    }
}

impl Queue for FabricQueue {
    #[inline]
    fn room(&self) -> usize {
        usize::from(self.queue.depth()).saturating_sub(self.queue.in_flight())
    }

    #[inline]
    fn submit(&mut self, io: Io, now: Nanos) -> Result<(), Io> {
        let Io { token, nsid, slba, blocks, op } = io;
        let (kind, is_read) = match op {
            Op::Read(Buffer::Fabric(buffer)) => (IoKind::Read(buffer), true),
            Op::Write(Buffer::Fabric(data)) => (IoKind::Write { data, fua: false }, false),
            op => return Err(Io { token, nsid, slba, blocks, op }),
        };
        let io = nvmeof_initiator::Io { token, nsid, slba, blocks, kind };
        self.queue.submit(io, now).map_err(|rejected| {
            let op = back(rejected, is_read);
            Io { token, nsid, slba, blocks, op }
        })
    }

    #[inline]
    fn poll(&mut self, now: Nanos, done: &mut Vec<Done>) -> Result<(), Lost> {
        let polled = self.queue.poll(now, &mut self.completed);
        done.extend(self.completed.drain(..).map(|completed| Done {
            token: completed.token,
            result: completed.result.map(drop).map_err(|error| error.to_string()),
            buffer: completed.buffer.map(Buffer::Fabric),
        }));
        polled.map_err(|error| self.lost(&error))
    }

    #[inline]
    fn flush(&mut self) -> Result<(), Lost> {
        self.queue.flush().map_err(|error| self.lost(&error))
    }
}

/// What a command that was not taken was to do.
fn back(rejected: Rejected, is_read: bool) -> Op {
    let buffer = match rejected.command.transfer {
        Transfer::In(buffer) | Transfer::Out(buffer) => buffer,
        Transfer::None => nvmeof_initiator::Buffer::zeroed(0),
    };
    let buffer = Buffer::Fabric(buffer);
    if is_read { Op::Read(buffer) } else { Op::Write(buffer) }
}
