//! One connection of the target, which is one NVMe queue, and the life of its commands.
//!
//! ```text
//! capsule --> Queue::handle_command --> Disposition --+--> response
//!                                                     | Io
//!                                                     v
//!            response <-- Queue::complete <-- Request: lease, fetch, device
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use nvmeof_core::block::{BlockDevice, BlockOp, BlockQueue, RamDevice};
use nvmeof_core::dma::{Buffer, CorePool, Payload};
use nvmeof_loopback_fabric::{Delivery, LoopbackHost, LoopbackParams};
use nvmeof_nvmf::request::{DeviceOp, Request, Step};
use nvmeof_nvmf::{DataSource, Disposition, Failure, PortId, Queue, Response, Target};
use nvmeof_transport::{Connected, Event, FabricOp, HostQueue, PollGroup, ReactorResources};
use nvmeof_wire::{Sgl, Sqe};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Time is an argument. A reactor passes its clock; no timer is due in this program.
const NOW: u64 = 0;

/// A connection, with the host at its other end.
pub(crate) struct Connection {
    host: LoopbackHost,
    fabric: Box<dyn HostQueue>,
    queue: Queue,
    device: Box<dyn BlockQueue>,
    pool: CorePool,
    /// I/O commands between capsule and response, by command identifier. In place of `()`, a
    /// reactor has the permit of its pacer.
    requests: HashMap<u64, Request<Buffer, ()>>,
}

impl Connection {
    pub(crate) fn open(
        target: &Arc<Target>,
        port: PortId,
        device: &RamDevice,
        pool: &CorePool,
    ) -> Result<Self> {
        // A listener accepts connections as detached queues, and a reactor attaches them.
        let (detached, host) = nvmeof_loopback_fabric::connect(LoopbackParams::default());
        let queue = Queue::new(target, port, &detached.peer(), NOW);
        let mut home = ReactorResources { pool, sources: &mut PollGroup::default() };
        let fabric = detached.attach(&mut home)?;
        let device = device.open_queue(pool)?;
        Ok(Self { host, fabric, queue, device, pool: pool.clone(), requests: HashMap::new() })
    }

    pub(crate) fn host(&self) -> &LoopbackHost {
        &self.host
    }

    /// Sends a command from the host, and runs turns until the response arrives.
    pub(crate) fn run(&mut self, sqe: Sqe, in_capsule: &[u8]) -> Result<Delivery> {
        self.host.send(sqe, in_capsule);
        loop {
            self.turn()?;
            if let Some(delivery) = self.host.take().pop() {
                let status = delivery.cqe.status();
                return if status.is_success() { Ok(delivery) } else { Err(status.to_string())? };
            }
        }
    }

    /// Runs one turn: output of the last turn, input of the fabric, completions of the device.
    fn turn(&mut self) -> Result<()> {
        let mut events = Vec::new();
        self.fabric.flush(&mut { usize::MAX }, NOW, &mut events);
        self.fabric.receive(NOW, &mut events);
        for event in events {
            match event {
                Event::Command { sqe, data } => {
                    let len = u32::try_from(data.as_ref().map_or(0, Buffer::len))?;
                    let disposition = self.queue.handle_command(&sqe, len, NOW);
                    self.dispose(&sqe, disposition, data)?;
                }
                Event::HostDataArrived { token, buf, result } => {
                    let result = result.map_err(|_| Failure::DataTransfer);
                    self.advance(token, |request| request.pulled(buf, result))?;
                }
                // The data of a response has left: only now has its command ended.
                Event::Sent { token, .. } => drop(self.requests.remove(&token)),
                other => return Err(format!("unexpected: {other:?}"))?,
            }
        }
        let mut done = Vec::new();
        self.device.poll(&mut done);
        for completed in done {
            let result = completed.result.map_err(|_| Failure::MediaWrite);
            self.advance(completed.token, |request| request.device_done(completed.buf, result))?;
        }
        Ok(())
    }

    /// Does what the queue requires for a command.
    fn dispose(&mut self, sqe: &Sqe, required: Disposition, data: Option<Buffer>) -> Result<()> {
        // The host has one command outstanding, so its identifier does as the token.
        let token = sqe.cid.get().into();
        match required {
            Disposition::Respond(response) => {
                note("respond");
                self.respond(token, response, sqe.dptr.parse(), None)?;
                if let Some(info) = self.queue.connected() {
                    self.fabric.connected(Connected { admin: info.admin, depth: info.depth });
                }
                Ok(())
            }
            Disposition::Receive { len, source: DataSource::InCapsule { offset } } => {
                note("pass the data of the capsule to the queue");
                let data = data.ok_or("a capsule without data")?;
                let bytes = &data.as_slice()[offset as usize..][..len as usize];
                let disposition = self.queue.handle_data(sqe, bytes, NOW);
                self.dispose(sqe, disposition, None)
            }
            Disposition::Send { len, sgl } => {
                note("let the queue fill a buffer, and respond with it");
                let mut buf = self.pool.lease(len as usize)?;
                let response = self.queue.fill(sqe, buf.as_mut_slice(), NOW);
                self.respond(token, response, sgl, Some(buf))
            }
            Disposition::Io(io) => {
                note("admit a checked I/O command");
                self.requests.insert(token, Request::new(io, None));
                self.advance(token, |request| request.admitted(()))
            }
            // Aborts, flushes and commands that wait: `crates/daemon/src/reactor/command.rs`.
            other => Err(format!("this host sends no command with {other:?}"))?,
        }
    }

    /// Passes an event to a request, and performs its steps until it waits for the next event.
    fn advance<E>(&mut self, token: u64, event: E) -> Result<()>
    where
        E: FnOnce(&mut Request<Buffer, ()>) -> Step<Buffer>,
    {
        let request = self.requests.get_mut(&token).ok_or("an event without its request")?;
        let io = *request.io();
        let mut step = event(request);
        if let Step::Lease(wanted) = step {
            note("lease a buffer");
            step = request.leased(self.pool.lease(usize::try_from(wanted.len)?)?, None);
        }
        match step {
            Step::Pull { buf, sgl } => {
                note("fetch the data of the host");
                self.fabric.submit(FabricOp::FetchHostData { token, cid: io.cid, sgl, buf })?;
            }
            Step::Device { op: DeviceOp::Read, offset, buf: Some(buf), .. } => {
                note("read from the device");
                self.device.submit(BlockOp::read(token, offset, buf))?;
            }
            Step::Device { op: DeviceOp::Write { fua }, offset, buf: Some(buf), .. } => {
                note("write to the device");
                self.device.submit(BlockOp::write(token, offset, buf, fua))?;
            }
            Step::Finish { outcome, data } => {
                note("respond");
                let response = self.queue.complete(io.cid, outcome);
                self.respond(token, response, io.sgl, data)?;
            }
            other => return Err(format!("this host sends no command with {other:?}"))?,
        }
        Ok(())
    }

    /// Submits a response, which leaves with the next flush.
    fn respond(
        &mut self,
        token: u64,
        Response { cqe, elidable }: Response,
        sgl: Sgl,
        data: Option<Buffer>,
    ) -> Result<()> {
        if data.is_none() {
            // No event follows a response without data.
            self.requests.remove(&token);
        }
        let data = data.map(Payload::Buffer);
        self.fabric.submit(FabricOp::Respond { token, cqe, sgl, data, elidable })?;
        Ok(())
    }
}

#[expect(clippy::print_stdout, reason = "a person reads it")]
fn note(step: &str) {
    println!("  {step}");
}
