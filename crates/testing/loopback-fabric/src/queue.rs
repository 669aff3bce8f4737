//! The target's end.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nvmeof_core::dma::{BufferReservation, CorePool, Payload};
use nvmeof_transport::{
    CloseReason, Connected, DetachedQueue, Event, FabricError, FabricOp, HostQueue, Nanos,
    Progress, ReactorResources, RejectReason, Rejected, TransportError,
};
use nvmeof_wire::tcp::ADMIN_IN_CAPSULE;

use crate::{LoopbackParams, Wire};

/// Maximum commands taken by one call of `receive`.
const BUDGET: usize = 64;

#[derive(Debug)]
pub(crate) struct DetachedLoopback {
    wire: Arc<Wire>,
    params: LoopbackParams,
    connected: Option<Connected>,
}

impl DetachedLoopback {
    pub(crate) fn new(wire: Arc<Wire>, params: LoopbackParams) -> Self {
        Self { wire, params, connected: None }
    }
}

impl DetachedQueue for DetachedLoopback {
    fn attach(
        self: Box<Self>,
        home: &mut ReactorResources<'_>,
    ) -> Result<Box<dyn HostQueue>, TransportError> {
        let pool = home.pool;
        let mut queue = LoopbackQueue {
            reserve: reserve(pool, self.params, self.connected)?,
            depth: self.connected.map_or(self.params.depth, |info| info.depth),
            wire: self.wire,
            params: self.params,
            connected: self.connected,
            pool: pool.clone(),
            out: 0,
            submitted: VecDeque::new(),
            moving: VecDeque::new(),
            paused: false,
            end: End::Open,
        };
        queue.depth = queue.depth.max(1);
        Ok(Box::new(queue))
    }

    fn peer(&self) -> String {
        "loopback".to_owned()
    }
}

fn reserve(
    pool: &CorePool,
    params: LoopbackParams,
    connected: Option<Connected>,
) -> Result<BufferReservation, TransportError> {
    let depth = connected.map_or(params.depth, |info| info.depth);
    let len = params.in_capsule.max(ADMIN_IN_CAPSULE) as usize;
    pool.reserve(usize::from(depth), len)
        .map_err(|error| TransportError::NoMemory(format!("loopback: {error}")))
}

/// Open -> Closing -> Closed.
#[derive(Debug)]
enum End {
    Open,
    Closing(CloseReason),
    Closed,
}

#[derive(Debug)]
struct LoopbackQueue {
    wire: Arc<Wire>,
    params: LoopbackParams,
    connected: Option<Connected>,
    pool: CorePool,
    reserve: BufferReservation,
    depth: u16,
    /// Commands delivered without a response.
    out: u16,
    /// Operations since the last flush, and those in flight with their end times.
    submitted: VecDeque<FabricOp>,
    moving: VecDeque<(Nanos, FabricOp)>,
    paused: bool,
    end: End,
}

impl HostQueue for LoopbackQueue {
    fn receive(&mut self, now: Nanos, events: &mut Vec<Event>) -> Progress {
        self.wire.clear();
        if matches!(self.end, End::Open) {
            self.complete(now, events);
            let progress = self.take_commands(events);
            if progress == Progress::More {
                return progress;
            }
            if self.wire.lock().host_closed {
                self.close(CloseReason::PeerClosed);
            }
        }
        self.finish(events);
        Progress::Idle
    }

    fn submit(&mut self, op: FabricOp) -> Result<(), Rejected> {
        if !matches!(self.end, End::Open) {
            return Err(Rejected { op, reason: RejectReason::Closing });
        }
        match &op {
            FabricOp::FetchHostData { buf, .. } if buf.is_empty() => {
                return Err(Rejected { op, reason: RejectReason::Invalid });
            }
            FabricOp::Respond { .. } if self.out == 0 => {
                return Err(Rejected { op, reason: RejectReason::Invalid });
            }
            FabricOp::Respond { .. } => self.out -= 1,
            FabricOp::FetchHostData { .. } => {}
        }
        self.submitted.push_back(op);
        Ok(())
    }

    fn forget(&mut self, _cid: u16) {
        assert!(self.out > 0, "a command without a response is outstanding");
        self.out -= 1;
    }

    fn flush(&mut self, room: &mut usize, now: Nanos, events: &mut Vec<Event>) -> Progress {
        let end = now.saturating_add(self.params.latency);
        while *room > 0
            && let Some(op) = self.submitted.pop_front()
        {
            *room = room.saturating_sub(sent_by(&op));
            self.moving.push_back((end, op));
        }
        if matches!(self.end, End::Open) {
            self.complete(now, events);
        }
        self.finish(events);
        if self.submitted.is_empty() { Progress::Idle } else { Progress::More }
    }

    fn close(&mut self, reason: CloseReason) {
        if matches!(self.end, End::Open) {
            self.end = End::Closing(reason);
        }
    }

    fn connected(&mut self, info: Connected) {
        self.connected = Some(info);
        self.depth = info.depth;
        match reserve(&self.pool, self.params, self.connected) {
            Ok(reserve) => self.reserve = reserve,
            Err(error) => self.close(CloseReason::NoMemory(error.to_string())),
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wire.wake.as_fd())
    }

    fn deadline(&self) -> Option<Nanos> {
        match self.end {
            End::Open => self.moving.front().map(|(end, _)| *end),
            End::Closing(_) => Some(0),
            End::Closed => None,
        }
    }

    fn detach(self: Box<Self>) -> Result<Box<dyn DetachedQueue>, Box<dyn HostQueue>> {
        let idle = self.out == 0 && self.submitted.is_empty() && self.moving.is_empty();
        if !idle || !matches!(self.end, End::Open) {
            return Err(self);
        }
        let LoopbackQueue { wire, params, connected, .. } = *self;
        Ok(Box::new(DetachedLoopback { wire, params, connected }))
    }

    fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }
}

impl LoopbackQueue {
    fn take_commands(&mut self, events: &mut Vec<Event>) -> Progress {
        for _ in 0..BUDGET {
            if self.paused {
                return Progress::Idle;
            }
            let Some((sqe, bytes, error)) = self.wire.lock().capsules.pop_front() else {
                return Progress::Idle;
            };
            let limit = match self.connected {
                Some(info) if !info.admin && !sqe.is_fabrics() => self.params.in_capsule,
                _ => ADMIN_IN_CAPSULE,
            };
            let buf = match bytes.len() {
                0 => None,
                len if len <= limit as usize => self.reserve.lease(),
                len => {
                    let what = format!("{len} bytes in a capsule that may hold {limit}");
                    return self.protocol_error(what);
                }
            };
            if self.out == self.depth || (buf.is_none() && !bytes.is_empty()) {
                let what = format!("more commands than the queue's {} entries", self.depth);
                return self.protocol_error(what);
            }
            self.out += 1;
            if let Some(error) = error {
                events.push(Event::CommandFailed { sqe, error });
                continue;
            }
            let data = buf.map(|mut buf| {
                buf.truncate(bytes.len());
                buf.as_mut_slice().copy_from_slice(&bytes);
                buf
            });
            events.push(Event::Command { sqe, data });
        }
        Progress::More
    }

    fn protocol_error(&mut self, what: String) -> Progress {
        self.close(CloseReason::Protocol(what));
        Progress::Idle
    }

    /// Completes the operations whose time has come, in order.
    fn complete(&mut self, now: Nanos, events: &mut Vec<Event>) {
        while let Some((end, op)) = self.moving.pop_front() {
            if end > now {
                self.moving.push_front((end, op));
                return;
            }
            if let Err(op) = self.complete_one(op, events) {
                // The host has not offered the data yet; operations behind it wait, too.
                self.moving.push_front((end, op));
                return;
            }
        }
    }

    fn complete_one(&self, op: FabricOp, events: &mut Vec<Event>) -> Result<(), FabricOp> {
        let mut shared = self.wire.lock();
        match op {
            FabricOp::FetchHostData { token, cid, sgl, mut buf } => {
                match shared.read(cid, sgl, buf.as_mut_slice()) {
                    None => return Err(FabricOp::FetchHostData { token, cid, sgl, buf }),
                    Some(result) => events.push(Event::HostDataArrived { token, buf, result }),
                }
            }
            FabricOp::Respond { token, cqe, sgl, data, elidable: _ } => {
                shared.deliver(cqe, sgl, data.as_ref().map_or_else(Vec::new, bytes_of));
                if data.is_some() {
                    events.push(Event::Sent { token, data });
                }
            }
        }
        Ok(())
    }

    fn finish(&mut self, events: &mut Vec<Event>) {
        let End::Closing(reason) = &self.end else {
            return;
        };
        let reason = reason.clone();
        let moving = self.moving.drain(..).map(|(_, op)| op);
        for op in moving.chain(self.submitted.drain(..)) {
            match op {
                FabricOp::FetchHostData { token, buf, .. } => {
                    events.push(Event::HostDataArrived {
                        token,
                        buf,
                        result: Err(FabricError::Closed),
                    });
                }
                FabricOp::Respond { token, data: Some(data), .. } => {
                    events.push(Event::Sent { token, data: Some(data) });
                }
                FabricOp::Respond { data: None, .. } => {}
            }
        }
        self.wire.lock().closed = Some(reason.clone());
        self.end = End::Closed;
        events.push(Event::Closed { reason });
    }
}

/// Returns the bytes that an operation sends to the host.
fn sent_by(op: &FabricOp) -> usize {
    match op {
        FabricOp::Respond { data: Some(data), .. } => data.len(),
        FabricOp::Respond { data: None, .. } | FabricOp::FetchHostData { .. } => 0,
    }
}

/// Returns a copy of a payload's bytes.
fn bytes_of(payload: &Payload) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(payload.len());
    payload.for_each_slice(|piece| bytes.extend_from_slice(piece));
    bytes
}
