//! A host that verifies the data it reads.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use nvmeof_initiator::{
    Buffer, CommandError, CompletedCommand, ConnectOptions, Controller, Endpoint, Error, Io,
    IoKind, IoQueue,
};
use nvmeof_random::SplitMix64;
use nvmeof_wire::Nqn;

use crate::GUARD;

/// Returns the options of host `number`: its own name and identifier.
#[must_use]
pub fn options(number: u8) -> ConnectOptions {
    let mut hostid = [0x5a; 16];
    hostid[15] = number;
    ConnectOptions {
        hostnqn: Nqn::from_uuid(&hostid),
        hostid,
        // The target must not drop the connection of a test that waits.
        keep_alive: 2 * GUARD,
        connect_timeout: GUARD,
        io_timeout: GUARD,
        ..ConnectOptions::default()
    }
}

/// Fills `data` with the pattern of this seed: no two blocks are alike.
pub fn fill(data: &mut [u8], seed: u64) {
    SplitMix64::new(seed).fill(data);
}

/// A controller and its I/O queues.
#[derive(Debug)]
pub struct Host {
    /// The controller.
    pub controller: Controller,
    /// Its queues; commands of one call go to one of them.
    pub queues: Vec<IoQueue>,
}

impl Host {
    /// Connects with as many queues as the options request.
    ///
    /// # Panics
    /// If it cannot.
    #[must_use]
    pub fn connect(endpoint: &Endpoint, options: &ConnectOptions) -> Self {
        Self::try_connect(endpoint, options).unwrap_or_else(|error| panic!("{endpoint}: {error}"))
    }

    /// Like [`Self::connect`].
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn try_connect(endpoint: &Endpoint, options: &ConnectOptions) -> Result<Self, Error> {
        let mut controller = Controller::connect(endpoint, options)?;
        let queues = controller.info().queues.min(options.queues);
        let queues = (0..queues).map(|_| controller.open_queue()).collect::<Result<_, _>>()?;
        Ok(Self { controller, queues })
    }

    /// Returns the bytes of a block of this namespace.
    ///
    /// # Panics
    /// If it does not exist.
    #[must_use]
    pub fn block_size(&self, nsid: u32) -> u32 {
        let found = self.controller.namespaces().iter().find(|found| found.nsid == nsid);
        found.expect("the namespace").block_size
    }

    /// Executes these commands concurrently on queue `at`, and returns the completions by token.
    ///
    /// # Errors
    /// If the connection ends.
    pub fn execute(&mut self, at: usize, ios: Vec<Io>) -> Result<Vec<CompletedCommand>, Error> {
        let (clock, queue) = (self.controller.clock(), &mut self.queues[at]);
        let count = ios.len();
        let mut waiting = ios.into_iter();
        let mut next = waiting.next();
        let mut done = Vec::new();
        while done.len() < count {
            while let Some(io) = next.take() {
                if queue.in_flight() >= usize::from(queue.depth()) {
                    next = Some(io);
                    break;
                }
                if queue.submit(io, clock.now()).is_err() {
                    panic!("a command was not taken");
                }
                next = waiting.next();
            }
            queue.flush()?;
            let before = done.len();
            queue.poll(clock.now(), &mut done)?;
            if done.len() == before {
                queue.wait(std::time::Duration::from_millis(100));
                self.controller.poll()?;
            }
        }
        done.sort_by_key(|completed| completed.token);
        Ok(done)
    }

    /// Executes one command on the first queue.
    ///
    /// # Errors
    /// The command's error status.
    ///
    /// # Panics
    /// If the connection ends.
    pub fn one(
        &mut self,
        nsid: u32,
        slba: u64,
        blocks: u32,
        kind: IoKind,
    ) -> Result<Option<Buffer>, CommandError> {
        let done = self.execute(0, vec![Io { token: 0, nsid, slba, blocks, kind }]);
        let done = done.expect("the connection").pop().expect("a completion");
        done.result.map(|_| done.buffer)
    }

    /// Writes the pattern of `seed`.
    ///
    /// # Panics
    /// If the write fails.
    pub fn write(&mut self, nsid: u32, slba: u64, len: usize, seed: u64) {
        let mut data = Buffer::zeroed(len);
        fill(data.as_mut_slice(), seed);
        let blocks = self.blocks(nsid, len);
        let written = self.one(nsid, slba, blocks, IoKind::Write { data, fua: false });
        written.unwrap_or_else(|error| panic!("write of {len} bytes at block {slba}: {error}"));
    }

    /// Reads.
    ///
    /// # Panics
    /// If the read fails.
    #[must_use]
    pub fn read(&mut self, nsid: u32, slba: u64, len: usize) -> Buffer {
        let blocks = self.blocks(nsid, len);
        let read = self.one(nsid, slba, blocks, IoKind::Read(Buffer::zeroed(len)));
        let read = read.unwrap_or_else(|error| panic!("read of {len} bytes at {slba}: {error}"));
        read.expect("the buffer")
    }

    /// Reads and compares with the pattern of `seed`.
    ///
    /// # Panics
    /// If the data differ.
    pub fn check(&mut self, nsid: u32, slba: u64, len: usize, seed: u64) {
        let read = self.read(nsid, slba, len);
        let mut wanted = vec![0; len];
        fill(&mut wanted, seed);
        let differs = read.as_slice().iter().zip(&wanted).position(|(got, want)| got != want);
        assert_eq!(differs, None, "first wrong byte of {len} at block {slba}, seed {seed}");
    }

    /// Flushes: all written data are on the medium.
    ///
    /// # Panics
    /// If the flush fails.
    pub fn flush(&mut self, nsid: u32) {
        self.one(nsid, 0, 0, IoKind::Flush).expect("flush");
    }

    fn blocks(&self, nsid: u32, len: usize) -> u32 {
        u32::try_from(len).expect("a short transfer") / self.block_size(nsid)
    }
}

/// Verified I/O in the background, on namespace 1, until it is stopped.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    rounds: u64,
    stop: bool,
    ended: bool,
}

/// Blocks that the small writes of all rounds cover, four in each; those of the large ones follow
/// them.
const REGION: u64 = 4096;

impl Worker {
    /// Blocks that a worker writes, from its first one on.
    pub const BLOCKS: u64 = 2 * REGION;

    /// Connects, and then runs I/O on the first [`Self::BLOCKS`].
    #[must_use]
    pub fn start(endpoint: &Endpoint, options: &ConnectOptions) -> Self {
        Self::start_at(endpoint, options, 0)
    }

    /// Like [`Self::start`], from block `first` on: workers on one device must not overlap.
    #[must_use]
    pub fn start_at(endpoint: &Endpoint, options: &ConnectOptions, first: u64) -> Self {
        Self::start_with(Host::connect(endpoint, options), move |host, round| {
            let block = host.block_size(1) as usize;
            // Small and in the capsule, then larger than that: R2T.
            for (at, blocks) in [(round * 4 % REGION, 4), (REGION + round * 64 % REGION, 64)] {
                host.write(1, first + at, blocks * block, round);
                host.check(1, first + at, blocks * block, round);
            }
        })
    }

    /// Like [`Self::start`], with rounds of another kind; a round that panics has failed.
    #[must_use]
    pub fn start_with(mut host: Host, round: impl Fn(&mut Host, u64) + Send + 'static) -> Self {
        let shared = Arc::new(Shared::default());
        let seen = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let _ended = Ended(&seen);
            for number in 0_u64.. {
                round(&mut host, number);
                let mut state = seen.state.lock().unwrap_or_else(PoisonError::into_inner);
                state.rounds += 1;
                seen.changed.notify_all();
                if state.stop {
                    break;
                }
            }
            drop(std::mem::take(&mut host.queues));
            host.controller.disconnect().expect("shutdown");
        });
        let worker = Self { shared, thread: Some(thread) };
        worker.goes_on();
        worker
    }

    /// Waits until a few more rounds have completed.
    ///
    /// # Panics
    /// If they do not complete: its I/O has failed or hangs.
    pub fn goes_on(&self) {
        let state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = state.rounds + 3;
        let (state, waited) = self
            .shared
            .changed
            .wait_timeout_while(state, GUARD, |state| state.rounds < wanted && !state.ended)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!state.ended, "I/O of the healthy host failed after {} rounds", state.rounds);
        assert!(!waited.timed_out(), "I/O of the healthy host hangs after {} rounds", state.rounds);
    }

    /// Stops it and disconnects.
    ///
    /// # Panics
    /// If it had an error.
    pub fn stop(mut self) {
        self.ask_to_stop();
        let thread = self.thread.take().expect("stopped once");
        thread.join().expect("I/O of the healthy host");
    }

    /// Waits until it fails, which the test requires.
    ///
    /// # Panics
    /// If it continues.
    pub fn fails(mut self) {
        let state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (state, _) = self
            .shared
            .changed
            .wait_timeout_while(state, GUARD, |state| !state.ended)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(state.ended, "its I/O goes on");
        drop(state);
        let ended = self.thread.take().expect("ended once").join();
        assert!(ended.is_err(), "it ended well");
    }

    fn ask_to_stop(&self) {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.ask_to_stop();
        if let Some(thread) = self.thread.take() {
            // A failing test reports its own reason.
            let _ = thread.join();
        }
    }
}

/// Records on every exit that the thread has ended.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.0.changed.notify_all();
    }
}
