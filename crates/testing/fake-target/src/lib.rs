//! A small NVMe/TCP target for tests, which can misbehave on purpose. It uses one thread per
//! connection, blocking sockets, and data in memory. It shares only the wire types with the target
//! daemon.

mod connection;
mod session;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::{Nqn, Status};

use self::connection::FakeConnection;
pub use self::session::{FakeResponse, FakeSession};

/// Action of the target for an I/O command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FakeAction {
    /// Serves the command correctly.
    Serve,
    /// Flips one bit of the data of a read; the digest is right.
    FlipBit,
    /// Sends a read with a wrong data digest.
    BadDigest,
    /// Returns the data of a read from this many blocks later.
    Shift(u64),
    /// Acknowledges a write and drops it.
    Drop,
    /// Stores only the first half of a write.
    Tear,
    /// Does not respond.
    NoResponse,
    /// Closes the connection.
    HangUp,
    /// Sends a C2HTermReq.
    Terminate,
    /// Completes with this status, without data.
    Fail(Status),
}

/// Chooses the action for an I/O from its number, counted over all connections, and its opcode.
pub type ActionScript = Box<dyn Fn(u64, IoOpcode) -> FakeAction + Send + Sync>;

/// Properties of the target.
#[derive(Debug, Clone)]
pub struct FakeTargetOptions {
    /// NQN of its one subsystem.
    pub subnqn: Nqn,
    /// Hosts allowed; all if empty.
    pub hosts: Vec<Nqn>,
    /// Grants header digests.
    pub hdgst: bool,
    /// Grants data digests.
    pub ddgst: bool,
    /// Bytes of in-capsule data of an I/O command.
    pub in_capsule: u32,
    /// Bytes between an I/O command and its in-capsule data, in units of 16.
    pub icdoff: u16,
    /// MAXH2CDATA.
    pub max_h2c: u32,
    /// CPDA.
    pub cpda: u8,
    /// Entries of an I/O queue.
    pub entries: u16,
    /// I/O queues granted.
    pub queues: u16,
    /// MDTS.
    pub mdts: u8,
    /// Supports Dataset Management.
    pub deallocate: bool,
    /// Namespaces by NSID: (blocks, bytes of a block as a power of two).
    pub namespaces: BTreeMap<u32, (u64, u8)>,
    /// Maximum bytes of a C2HData.
    pub c2h_piece: u32,
    /// Maximum bytes of an R2T.
    pub r2t_piece: u32,
    /// Supports Format NVM.
    pub format: bool,
    /// Formats all namespaces with one command.
    pub formats_all: bool,
    /// Duration of a format.
    pub format_time: Duration,
    /// Uses the SUCCESS flag.
    pub success_flag: bool,
    /// Records of its discovery log.
    pub discovery_records: usize,
    /// Fills the data of Identify and Get Log Page with this byte.
    pub junk_data: Option<u8>,
    /// Fills the results of Property Get and Set Features with this byte.
    pub junk_results: Option<u8>,
}

impl Default for FakeTargetOptions {
    fn default() -> Self {
        Self {
            subnqn: name("nqn.2026-11.io.nvmeof-tgt:fake"),
            hosts: Vec::new(),
            hdgst: true,
            ddgst: true,
            in_capsule: 8192,
            icdoff: 0,
            max_h2c: 16_384,
            cpda: 0,
            entries: 128,
            queues: 16,
            mdts: 5,
            deallocate: true,
            namespaces: [(1, (4096, 9))].into(),
            c2h_piece: 16_384,
            r2t_piece: 65_536,
            format: false,
            formats_all: false,
            format_time: Duration::ZERO,
            success_flag: true,
            discovery_records: 3,
            junk_data: None,
            junk_results: None,
        }
    }
}

/// Returns an NQN for tests.
///
/// # Panics
/// If the text is not a valid NQN.
#[must_use]
pub fn name(text: &str) -> Nqn {
    Nqn::new(text).expect("a valid NQN")
}

/// State that all connections share.
pub struct FakeTargetState {
    /// Properties of the target.
    pub options: FakeTargetOptions,
    script: ActionScript,
    disks: Mutex<BTreeMap<u32, Vec<u8>>>,
    ios: AtomicU64,
    keep_alives: AtomicU64,
    shutdowns: AtomicU64,
    stop: AtomicBool,
}

impl std::fmt::Debug for FakeTargetState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeTargetState").field("options", &self.options).finish_non_exhaustive()
    }
}

impl FakeTargetState {
    /// Creates the state of a target that follows `script`.
    ///
    /// # Panics
    /// If a namespace does not fit memory.
    #[must_use]
    pub fn new(options: FakeTargetOptions, script: ActionScript) -> Arc<Self> {
        let disk = |(&nsid, &(blocks, shift)): (&u32, &(u64, u8))| {
            let bytes = usize::try_from(blocks << shift).expect("a disk that fits memory");
            (nsid, vec![0; bytes])
        };
        Arc::new(Self {
            disks: Mutex::new(options.namespaces.iter().map(disk).collect()),
            options,
            script,
            ios: AtomicU64::new(0),
            keep_alives: AtomicU64::new(0),
            shutdowns: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        })
    }

    /// Orderly shutdowns (CC.SHN) served.
    #[must_use]
    pub fn shutdowns(&self) -> u64 {
        self.shutdowns.load(Ordering::SeqCst)
    }

    /// Keep Alive commands served.
    #[must_use]
    pub fn keep_alives(&self) -> u64 {
        self.keep_alives.load(Ordering::SeqCst)
    }

    fn disks(&self) -> MutexGuard<'_, BTreeMap<u32, Vec<u8>>> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running target, which ends when it is dropped.
pub struct FakeTarget {
    address: SocketAddr,
    target: Arc<FakeTargetState>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for FakeTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeTarget").field("address", &self.address).finish_non_exhaustive()
    }
}

impl FakeTarget {
    /// Starts a target that serves every command.
    #[must_use]
    pub fn start(options: FakeTargetOptions) -> Self {
        Self::scripted(options, Box::new(|_, _| FakeAction::Serve))
    }

    /// Starts a target that follows `script`.
    ///
    /// # Panics
    /// If no port is free to listen on.
    #[must_use]
    pub fn scripted(options: FakeTargetOptions, script: ActionScript) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port to listen on");
        let address = listener.local_addr().expect("an address");
        let target = FakeTargetState::new(options, script);
        let shared = Arc::clone(&target);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.stop.load(Ordering::SeqCst) {
                    return;
                }
                let target = Arc::clone(&shared);
                if let Ok(stream) = stream {
                    // Ends when the host closes, or when an action ends the connection.
                    thread::spawn(move || FakeConnection::new(stream, target).serve());
                }
            }
        });
        Self { address, target, thread: Some(thread) }
    }

    /// Address of the target as a URL, which is the one of its discovery service.
    #[must_use]
    pub fn discovery_url(&self) -> String {
        format!("tcp://{}", self.address)
    }

    /// URL of its subsystem: `tcp://ADDR:PORT/SUBNQN`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}/{}", self.discovery_url(), self.target.options.subnqn)
    }

    /// Keep Alive commands served.
    #[must_use]
    pub fn keep_alives(&self) -> u64 {
        self.target.keep_alives()
    }

    /// Orderly shutdowns (CC.SHN) served.
    #[must_use]
    pub fn shutdowns(&self) -> u64 {
        self.target.shutdowns()
    }

    /// Changes the stored bytes of a namespace.
    pub fn tamper(&self, nsid: u32, change: impl FnOnce(&mut [u8])) {
        if let Some(disk) = self.target.disks().get_mut(&nsid) {
            change(disk);
        }
    }
}

impl Drop for FakeTarget {
    fn drop(&mut self) {
        self.target.stop.store(true, Ordering::SeqCst);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
