//! The end that sends requests and measures.

use std::fs;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use async_rdma::{
    LocalMr, LocalMrReadAccess, LocalMrWriteAccess, ManualTrigger, MrToken, Rdma, RemoteMr,
};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, spawn_local, yield_now};
use tokio::time::timeout;

use crate::args::{ClientArgs, Op, Wait};
use crate::control::{self, Answer, Banner, Hello};
use crate::device::{self, Port};
use crate::end;
use crate::result::{Counter, Outcome, pattern};

/// Additional time after which a run counts as stuck.
const PATIENCE: Duration = Duration::from_secs(20);

/// Connects, verifies that data arrives, and measures.
///
/// # Errors
/// Any failure that would falsify the figures.
pub(crate) async fn run(args: &ClientArgs) -> Result<()> {
    let mut port = device::find(&args.path)?;
    let mut stream = TcpStream::connect(args.server).await.with_context(|| {
        format!("cannot reach {}: does `rdma-wire-limit server` run there?", args.server)
    })?;
    let (rdma, memory) = connect(args, &mut port, &mut stream).await?;
    let rdma = Rc::new(rdma);
    if args.wait == Wait::Spin {
        spawn_local(spin(rdma.get_manual_trigger()?));
    }
    let slots = slots(args, &rdma, memory)?;
    let limit = args.ramp + args.time + PATIENCE;
    let measuring = measure(args, &rdma, slots);
    let counter = timeout(limit, measuring).await.with_context(|| {
        format!("not done after {} s: the server or the path to it is gone", limit.as_secs())
    })??;
    let outcome = outcome(args, port, &counter)?;
    println!("{outcome}");
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&outcome)? + "\n";
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// Connects both queue pairs. Returns the server's memory.
async fn connect(
    args: &ClientArgs,
    port: &mut Port,
    stream: &mut TcpStream,
) -> Result<(Rdma, MrToken)> {
    let banner: Banner = control::receive(stream).await?;
    port.mtu = banner.mtu(port.mtu)?;
    let mut rdma = end::open(port, port.mtu, args.qd, args.path.reads, args.wait)?;
    let hello =
        Hello { block: args.bs, depth: args.qd, mtu: port.mtu, endpoint: rdma.get_qp_endpoint() };
    control::send(stream, &hello).await?;
    match control::receive(stream).await? {
        Answer::Refused { why } => bail!("the server {} refuses: {why}", args.server),
        Answer::Ready { endpoint, memory } => {
            end::connect(&mut rdma, port, endpoint).await?;
            Ok((rdma, memory))
        }
    }
}

/// Polls for completions after every other task has run.
async fn spin(trigger: ManualTrigger) {
    while trigger.pull().await.is_ok() {
        yield_now().await;
    }
}

/// Local and remote memory of one request.
struct Slot {
    index: usize,
    local: LocalMr,
    remote: RemoteMr,
}

fn slots(args: &ClientArgs, rdma: &Rdma, memory: MrToken) -> Result<Vec<Slot>> {
    let block = usize::try_from(args.bs)?;
    let depth = usize::try_from(args.qd)?;
    if memory.len < block * depth {
        bail!("the server {} lends {} bytes only", args.server, memory.len);
    }
    (0..depth)
        .map(|index| {
            let token = MrToken { addr: memory.addr + index * block, len: block, ..memory };
            let local = end::memory(rdma, block)?;
            Ok(Slot { index, local, remote: RemoteMr::new(token) })
        })
        .collect()
}

async fn measure(args: &ClientArgs, rdma: &Rc<Rdma>, mut slots: Vec<Slot>) -> Result<Counter> {
    for slot in &mut slots {
        slot.prove(rdma, args.op).await?;
    }
    let counter = Rc::new(Counter::new(Instant::now() + args.ramp, args.time)?);
    let mut running = JoinSet::new();
    for slot in slots {
        running.spawn_local(slot.run(Rc::clone(rdma), args.op, Rc::clone(&counter)));
    }
    while let Some(done) = running.join_next().await {
        done.context("a request was lost")??;
    }
    Rc::into_inner(counter).context("a request still runs")
}

impl Slot {
    /// Moves the block once and verifies it.
    async fn prove(&mut self, rdma: &Rdma, op: Op) -> Result<()> {
        let mut wanted = vec![0; self.local.as_slice().len()];
        // The server's pattern, or another one.
        let salt = if op == Op::Write { 1 } else { 0 };
        pattern(self.index + salt, &mut wanted);
        if op == Op::Write {
            self.local.as_mut_slice().copy_from_slice(&wanted);
            self.request(rdma, Op::Write).await?;
            self.local.as_mut_slice().fill(0);
        }
        self.request(rdma, Op::Read).await?;
        if **self.local.as_slice() != *wanted {
            bail!("block {} came back with other data than was sent", self.index);
        }
        Ok(())
    }

    /// Keeps one request outstanding until the time has passed.
    async fn run(mut self, rdma: Rc<Rdma>, op: Op, counter: Rc<Counter>) -> Result<()> {
        loop {
            let began = Instant::now();
            self.request(&rdma, op).await?;
            if !counter.completed(began, Instant::now()) {
                return Ok(());
            }
        }
    }

    async fn request(&mut self, rdma: &Rdma, op: Op) -> Result<()> {
        let done = match op {
            Op::Read => rdma.read(&mut self.local, &self.remote).await,
            Op::Write => rdma.write(&self.local, &mut self.remote).await,
        };
        done.with_context(|| format!("an RDMA {op:?} failed: the server or the path to it is gone"))
    }
}

fn outcome(args: &ClientArgs, port: Port, counter: &Counter) -> Result<Outcome> {
    let requests = counter.count();
    if requests == 0 {
        bail!("no request was done within {} s: give more --time", args.time.as_secs_f64());
    }
    let seconds = args.time.as_secs_f64();
    let iops = requests as f64 / seconds;
    Ok(Outcome {
        op: args.op,
        block_bytes: args.bs,
        queue_depth: args.qd,
        mtu_bytes: port.mtu.bytes(),
        reads_outstanding: args.path.reads,
        wait: args.wait,
        device: port.device,
        seconds,
        requests,
        bandwidth_gbps: iops * f64::from(args.bs) * 8.0 / 1e9,
        iops,
        latency_us: counter.latency(),
    })
}
