//! Cost of a command in the target's own code: no allocation.

use nvmeof_allocations::allocations;
use nvmeof_verbs::PrivateData;
use nvmeof_wire::zerocopy::IntoBytes;

use super::instant::{Asking, Instant};
use super::*;

const DEPTH: u16 = 32;

struct Bench {
    device: Arc<Instant>,
    registration: Arc<Registration<Instant>>,
    queue: Box<dyn HostQueue>,
    sources: PollGroup,
    pool: CorePool,
    events: Vec<Event>,
    ready: Vec<u64>,
    now: u64,
}

impl Bench {
    fn new() -> Self {
        let device = Instant::new();
        let config =
            PoolConfig { cap: 16 << 20, reserve: 16 << 20, huge_pages: false, max_lease: 1 << 20 };
        let shared = ChunkPool::new(config).unwrap();
        let pool = CorePool::new(&shared);
        let registration = Registration::without_threads(&device, &shared).unwrap();
        let entries = u32::from(DEPTH);
        let request = Request { qid: 1, host_receives: DEPTH, entries, cntlid: None };
        let private_data = PrivateData::new(request.encode().as_bytes());
        let ticket = Asking { device: Arc::clone(&device), private_data };
        let limits = Limits { max_qid: 8, has_controller: &|_| true, may_add_queue: &|_| true };
        let parked = admit(ticket, &registration, RdmaParams::default(), &limits).unwrap();
        let mut sources = PollGroup::default();
        let mut home = ReactorResources { pool: &pool, sources: &mut sources };
        let mut queue = Box::new(parked).attach(&mut home).unwrap();
        queue.bind(5);
        queue.connected(Connected { admin: false, depth: DEPTH });
        let (events, ready) = (Vec::with_capacity(256), Vec::with_capacity(256));
        let mut bench = Self { device, registration, queue, sources, pool, events, ready, now: 0 };
        // The first runs create the completion queue and accept the connection.
        for _ in 0..3 {
            bench.registration.cm_worker().run();
            bench.turn();
        }
        bench
    }

    /// Polls, receives, acts, and sends, as a reactor does.
    fn turn(&mut self) {
        self.now += 20_000;
        for one in self.sources.iter_mut() {
            one.source.poll(self.now, &mut self.ready);
        }
        self.ready.clear();
        let mut events = std::mem::take(&mut self.events);
        self.queue.receive(self.now, &mut events);
        for event in events.drain(..) {
            let op = match event {
                Event::Command { sqe, data } => self.begin(&sqe, data.as_ref()),
                Event::HostDataArrived { token, result, .. } => {
                    result.unwrap();
                    answer(u16::try_from(token).unwrap(), Sgl::Transport { length: 0 }, None)
                }
                Event::Sent { .. } | Event::RegisterFd => continue,
                other => panic!("{other:?}"),
            };
            self.queue.submit(op).unwrap();
        }
        self.queue.flush(&mut { usize::MAX }, self.now, &mut events);
        assert!(events.is_empty());
        self.events = events;
    }

    fn begin(&self, sqe: &Sqe, data: Option<&Buffer>) -> FabricOp {
        let (cid, sgl) = (sqe.cid.get(), sqe.dptr.parse());
        match sqe.opcode {
            1 if data.is_none() => {
                let buf = self.pool.lease(4096).unwrap();
                FabricOp::FetchHostData { token: cid.into(), cid, sgl, buf }
            }
            2 => answer(cid, sgl, Some(Payload::Buffer(self.pool.lease(4096).unwrap()))),
            _ => answer(cid, Sgl::Transport { length: 0 }, None),
        }
    }

    /// Runs rounds of commands of every kind, up to the maximum of outstanding commands.
    fn run(&mut self, rounds: u16) {
        for round in 0..rounds {
            for at in 0..DEPTH {
                let cid = round.wrapping_mul(DEPTH).wrapping_add(at);
                let keyed = Sgl::Keyed { address: 4096, length: 4096, key: 1, invalidate: true };
                let (opcode, sgl, behind) = match at % 4 {
                    0 => (0, keyed, 0),
                    1 => (1, keyed, 0),
                    2 => (2, keyed, 0),
                    _ => (1, Sgl::InCapsule { offset: 0, length: 512 }, 512),
                };
                let sqe = Sqe::new(opcode, cid, 1).with_sgl(sgl);
                self.device.arrive(sqe.as_bytes().try_into().unwrap(), behind);
            }
            let mut answered = 0;
            while answered < u64::from(DEPTH) {
                self.turn();
                answered += self.device.responses();
            }
        }
    }
}

fn answer(cid: u16, sgl: Sgl, data: Option<Payload>) -> FabricOp {
    let cqe = Cqe::success(cid, 0);
    FabricOp::Respond { token: cid.into(), cqe, sgl, data, elidable: true }
}

#[test]
fn a_command_allocates_nothing() {
    let mut bench = Bench::new();
    // Warm-up: every collection reaches its size.
    bench.run(200);
    let before = allocations();
    assert!(before > 0, "nothing is counted");
    bench.run(1000);
    assert_eq!(allocations() - before, 0, "in 32000 commands");
    bench.queue.close(CloseReason::Shutdown);
}
