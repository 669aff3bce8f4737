//! Cost of the TCP fabric alone: a target that answers immediately, and a minimal client.
//!
//! The target, pinned to CPU 0, has a `HostQueue` and no devices: reads are answered with zeroes by
//! zero copy, and write data is dropped. The client, pinned to CPU 1, keeps a number of commands
//! outstanding and checks only lengths. The output is the median and spread of several runs, and
//! the CPU time per command of the target, which spins.
//!
//! ```text
//! cargo bench -p nvmeof-transport --bench null_target -- [rounds] [milliseconds] [filter]
//! ```

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nvmeof_core::dma::{ChunkPool, CorePool, Payload, PoolConfig, ZeroCopyRegion, ZeroCopySource};
use nvmeof_transport::tcp::{TcpParams, accepted, listen};
use nvmeof_transport::{Connected, Event, FabricOp, PollGroup, Progress, ReactorResources};
use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::tcp::{
    CH_LEN, CapsuleCmd, CommonHeader, Framing, H2CData, ICReq, IcParams, PduType, R2T, SHORT_LEN,
};
use nvmeof_wire::zerocopy::{FromBytes, IntoBytes};
use nvmeof_wire::{Cqe, Sgl, Sqe};
use rustix::net::{RecvFlags, SendFlags};
use rustix::thread::CpuSet;

type Error = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    /// Write with in-capsule data.
    Inline,
    /// Write by R2T.
    Write,
}

struct Case {
    name: &'static str,
    kind: Kind,
    len: u32,
    depth: u16,
    digests: bool,
}

const fn case(name: &'static str, kind: Kind, len: u32, depth: u16, digests: bool) -> Case {
    Case { name, kind, len, depth, digests }
}

const CASES: [Case; 13] = [
    case("read 4k qd1", Kind::Read, 4096, 1, false),
    case("read 4k qd32", Kind::Read, 4096, 32, false),
    case("read 4k qd128", Kind::Read, 4096, 128, false),
    case("read 4k qd32 digests", Kind::Read, 4096, 32, true),
    case("read 16k qd32", Kind::Read, 16 << 10, 32, false),
    case("read 128k qd8", Kind::Read, 128 << 10, 8, false),
    case("read 128k qd32", Kind::Read, 128 << 10, 32, false),
    case("inline 4k qd1", Kind::Inline, 4096, 1, false),
    case("inline 4k qd32", Kind::Inline, 4096, 32, false),
    case("inline 4k qd32 digests", Kind::Inline, 4096, 32, true),
    case("write 4k qd32", Kind::Write, 4096, 32, false),
    case("write 128k qd8", Kind::Write, 128 << 10, 8, false),
    case("write 128k qd32", Kind::Write, 128 << 10, 32, false),
];

#[expect(clippy::print_stdout, reason = "a person reads it")]
fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1).filter(|word| word != "--bench");
    let rounds = arguments.next().map_or(Ok(5), |word| word.parse::<u32>())?;
    let time = Duration::from_millis(arguments.next().map_or(Ok(500), |word| word.parse())?);
    let filter = arguments.next().unwrap_or_default();
    for case in CASES.iter().filter(|case| case.name.contains(&filter)) {
        let mut rates = Vec::new();
        let mut cpus = Vec::new();
        for _ in 0..rounds {
            let (rate, cpu) = measure(case, time)?;
            rates.push(rate);
            cpus.push(cpu);
        }
        rates.sort_by(f64::total_cmp);
        cpus.sort_by(f64::total_cmp);
        let middle = rates.len() / 2;
        println!(
            "{:<24} {:>8.1} k/s ({:>7.1}..{:>7.1}) {:>7.2} Gb/s  {:>7.2} us CPU each",
            case.name,
            rates[middle] / 1e3,
            rates[0] / 1e3,
            rates[rates.len() - 1] / 1e3,
            rates[middle] * f64::from(case.len) * 8.0 / 1e9,
            cpus[middle] * 1e6,
        );
    }
    Ok(())
}

/// Returns commands per second, and CPU seconds of the target per command.
fn measure(case: &Case, time: Duration) -> Result<(f64, f64), Error> {
    let listener = listen("127.0.0.1:0".parse()?, false)?;
    listener.set_nonblocking(false)?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (stream, _) = listener.accept()?;
    client.set_nodelay(true)?;
    client.set_nonblocking(true)?;
    let stop = Arc::new(AtomicBool::new(false));
    let stop_target = Arc::clone(&stop);
    let (len, depth) = (case.len, case.depth);
    let target = std::thread::spawn(move || -> Result<(u64, f64), Error> {
        pin(0)?;
        serve(stream, len, depth, &stop_target)
    });
    pin(1)?;
    let mut client = Client::new(client, case)?;
    let started = Instant::now();
    while started.elapsed() < time {
        client.turn()?;
    }
    let elapsed = started.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    let (served, cpu) = target.join().map_err(|_| "the target panicked")??;
    Ok((served as f64 / elapsed, cpu / served as f64))
}

fn pin(cpu: usize) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
}

fn cpu_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the number of commands answered, and CPU seconds.
fn serve(stream: TcpStream, len: u32, depth: u16, stop: &AtomicBool) -> Result<(u64, f64), Error> {
    let pool = CorePool::new(&ChunkPool::new(PoolConfig::default())?);
    let source = ZeroCopySource::new(&ZeroCopyRegion::zeroes()?);
    let mut queue = accepted(stream, TcpParams::default())
        .attach(&mut ReactorResources { pool: &pool, sources: &mut PollGroup::default() })?;
    queue.connected(Connected { admin: false, depth });
    let mut events = Vec::new();
    let mut served = 0;
    let started = Instant::now();
    let before = cpu_time();
    let sgl = Sgl::Transport { length: len };
    while !stop.load(Ordering::Relaxed) {
        let now = u64::try_from(started.elapsed().as_nanos())?;
        let _: Progress = queue.receive(now, &mut events);
        for event in events.drain(..) {
            let op = match event {
                Event::Command { sqe, data: Some(_) } => respond(sqe.cid.get(), sgl, None),
                Event::Command { sqe, data: None } if sqe.io_opcode() == IoOpcode::READ => {
                    let data = source.data(len as usize).ok_or("too long to lend")?;
                    respond(sqe.cid.get(), sgl, Some(Payload::ZeroCopy(data)))
                }
                Event::Command { sqe, data: None } => {
                    let cid = sqe.cid.get();
                    let buf = pool.lease(len as usize)?;
                    FabricOp::FetchHostData { token: u64::from(cid), cid, sgl, buf }
                }
                Event::HostDataArrived { token, result: Ok(()), .. } => {
                    respond(u16::try_from(token)?, sgl, None)
                }
                Event::Sent { .. } => continue,
                Event::Closed { .. } => return Ok((served, cpu_time() - before)),
                other => return Err(format!("{other:?}").into()),
            };
            served += u64::from(matches!(op, FabricOp::Respond { .. }));
            queue.submit(op).map_err(|rejected| rejected.to_string())?;
        }
        queue.flush(&mut { usize::MAX }, now, &mut events);
    }
    Ok((served, cpu_time() - before))
}

fn respond(cid: u16, sgl: Sgl, data: Option<Payload>) -> FabricOp {
    FabricOp::Respond { token: 0, cqe: Cqe::success(cid, 0), sgl, data, elidable: true }
}

/// Keeps commands outstanding.
struct Client {
    socket: TcpStream,
    framing: Framing,
    /// A command as bytes, and a data PDU as the answer to an R2T.
    command: Vec<u8>,
    data: Vec<u8>,
    window: Vec<u8>,
    have: usize,
    /// Remaining bytes of the current PDU.
    skip: usize,
    output: Vec<u8>,
    sent: usize,
}

impl Client {
    fn new(socket: TcpStream, case: &Case) -> Result<Self, Error> {
        let digests = case.digests;
        let hello = IcParams { pda: 0, hdgst: digests, ddgst: digests, max: 1 };
        rustix::net::send(&socket, ICReq::new(hello).as_bytes(), SendFlags::NOSIGNAL)?;
        let framing = Framing::new(digests, digests, 0);
        let opcode = if case.kind == Kind::Read { IoOpcode::READ } else { IoOpcode::WRITE };
        let sqe = Sqe::io(opcode, 1, 1);
        let inline = vec![0x5a; if case.kind == Kind::Inline { case.len as usize } else { 0 }];
        let header = CapsuleCmd::new(framing, sqe, u32::try_from(inline.len())?);
        let command = assemble(framing, header.as_bytes(), &inline);
        let data = vec![0x5a; case.len as usize];
        let header = H2CData::new(framing, 1, 0, 0, case.len, true);
        let data = assemble(framing, header.as_bytes(), &data);
        let output = command.repeat(usize::from(case.depth));
        Ok(Self {
            socket,
            framing,
            command,
            data,
            window: vec![0; 1 << 20],
            have: 0,
            skip: 0,
            output,
            sent: 0,
        })
    }

    fn turn(&mut self) -> Result<(), Error> {
        self.send()?;
        let window = &mut self.window[self.have..];
        match rustix::net::recv(&self.socket, window, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err("the target closed".into()),
            Ok((len, _)) => self.have += len,
            Err(rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        self.parse()
    }

    fn send(&mut self) -> Result<(), Error> {
        while self.sent < self.output.len() {
            match rustix::net::send(&self.socket, &self.output[self.sent..], SendFlags::NOSIGNAL) {
                Ok(len) => self.sent += len,
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }

    fn parse(&mut self) -> Result<(), Error> {
        let mut at = 0;
        loop {
            let step = self.skip.min(self.have - at);
            at += step;
            self.skip -= step;
            let rest = &self.window[at..self.have];
            if rest.len() < usize::from(SHORT_LEN) {
                break;
            }
            let ch = CommonHeader::ref_from_prefix(rest).map_err(|_| "short")?.0;
            self.skip = ch.plen.get() as usize;
            match ch.pdu_type {
                PduType::C2H_DATA | PduType::CAPSULE_RESP => {
                    self.output.extend_from_slice(&self.command);
                }
                PduType::R2T => {
                    let r2t = R2T::ref_from_prefix(rest).map_err(|_| "short")?.0;
                    self.data[CH_LEN + 2..CH_LEN + 4].copy_from_slice(r2t.ttag.as_bytes());
                    self.output.extend_from_slice(&self.data);
                }
                PduType::IC_RESP => {}
                other => return Err(format!("{other} with {:?}", self.framing).into()),
            }
        }
        self.window.copy_within(at..self.have, 0);
        self.have -= at;
        Ok(())
    }
}

/// Assembles a PDU.
fn assemble(framing: Framing, header: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = header.to_vec();
    if framing.hdgst {
        bytes.extend(crc_fast::crc32_iscsi(header).to_le_bytes());
    }
    if !data.is_empty() {
        bytes.extend(data);
        if framing.ddgst {
            bytes.extend(crc_fast::crc32_iscsi(data).to_le_bytes());
        }
    }
    bytes
}
