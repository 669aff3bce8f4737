//! A small NVMe/TCP target for tests, which can be told to misbehave: one thread a connection, blocking
//! sockets, data in memory. It shares nothing with the target daemon but the wire types.

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

use self::connection::Connection;
pub use self::session::{Answer, Session};
use crate::{Address, Endpoint, Fabric};

/// What the target does with an I/O command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// As it should.
    Serve,
    /// One bit of the data of a read is wrong; its digest is right.
    FlipBit,
    /// The data digest of a read is wrong.
    BadDigest,
    /// A read returns the data this many blocks further on.
    Shift(u64),
    /// A write is acknowledged and thrown away.
    Drop,
    /// Only the first half of a write is stored.
    Tear,
    /// No answer.
    Silence,
    /// The connection is closed.
    HangUp,
    /// A C2HTermReq.
    Terminate,
    /// This status, and no data.
    Fail(Status),
}

/// Chooses what happens to an I/O: the number of the I/O, counted over all connections, and its opcode.
pub type Script = Box<dyn Fn(u64, IoOpcode) -> Act + Send + Sync>;

/// What the target is like.
#[derive(Debug, Clone)]
pub struct Traits {
    /// Name of its one subsystem.
    pub subnqn: Nqn,
    /// Hosts allowed; everyone if empty.
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
    /// Takes Dataset Management.
    pub deallocate: bool,
    /// NSID to (blocks, bytes of a block as a power of two).
    pub namespaces: BTreeMap<u32, (u64, u8)>,
    /// Most bytes of a C2HData.
    pub c2h_piece: u32,
    /// Most bytes of an R2T.
    pub r2t_piece: u32,
    /// Has Format NVM.
    pub format: bool,
    /// A format is of all namespaces.
    pub formats_all: bool,
    /// How long a format takes.
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

impl Default for Traits {
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

/// A name for tests.
///
/// # Panics
/// If it is none.
#[must_use]
pub fn name(text: &str) -> Nqn {
    Nqn::relaxed(text).expect("a valid NQN")
}

/// Everything the connections share.
pub(crate) struct Target {
    pub(crate) traits: Traits,
    script: Script,
    disks: Mutex<BTreeMap<u32, Vec<u8>>>,
    ios: AtomicU64,
    keep_alives: AtomicU64,
    shutdowns: AtomicU64,
    stop: AtomicBool,
}

impl Target {
    pub(crate) fn new(traits: Traits, script: Script) -> Arc<Self> {
        let disk = |(&nsid, &(blocks, shift)): (&u32, &(u64, u8))| {
            let bytes = usize::try_from(blocks << shift).expect("a disk that fits memory");
            (nsid, vec![0; bytes])
        };
        Arc::new(Self {
            disks: Mutex::new(traits.namespaces.iter().map(disk).collect()),
            traits,
            script,
            ios: AtomicU64::new(0),
            keep_alives: AtomicU64::new(0),
            shutdowns: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        })
    }

    #[cfg(test)]
    pub(crate) fn shutdowns(&self) -> u64 {
        self.shutdowns.load(Ordering::SeqCst)
    }

    #[cfg(test)]
    pub(crate) fn keep_alives(&self) -> u64 {
        self.keep_alives.load(Ordering::SeqCst)
    }

    fn disks(&self) -> MutexGuard<'_, BTreeMap<u32, Vec<u8>>> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running target; ends when dropped.
pub struct FakeTarget {
    address: SocketAddr,
    target: Arc<Target>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for FakeTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeTarget").field("address", &self.address).finish_non_exhaustive()
    }
}

impl FakeTarget {
    /// Starts one that behaves.
    #[must_use]
    pub fn start(traits: Traits) -> Self {
        Self::scripted(traits, Box::new(|_, _| Act::Serve))
    }

    /// Starts one that does as `script` says.
    ///
    /// # Panics
    /// If there is no port to listen on.
    #[must_use]
    pub fn scripted(traits: Traits, script: Script) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port to listen on");
        let address = listener.local_addr().expect("an address");
        let target = Target::new(traits, script);
        let shared = Arc::clone(&target);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.stop.load(Ordering::SeqCst) {
                    return;
                }
                let target = Arc::clone(&shared);
                if let Ok(stream) = stream {
                    // Ends when the host closes, or does what ends a connection.
                    thread::spawn(move || Connection::new(stream, target).serve());
                }
            }
        });
        Self { address, target, thread: Some(thread) }
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> Address {
        let (host, port) = (self.address.ip().to_string(), self.address.port());
        Address { fabric: Fabric::Tcp, host, port }
    }

    /// Its subsystem.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        Endpoint { address: self.address(), subnqn: self.target.traits.subnqn.clone() }
    }

    /// Keep Alive commands served.
    #[must_use]
    pub fn keep_alives(&self) -> u64 {
        self.target.keep_alives.load(Ordering::SeqCst)
    }

    /// Orderly shutdowns (CC.SHN) served.
    #[must_use]
    pub fn shutdowns(&self) -> u64 {
        self.target.shutdowns.load(Ordering::SeqCst)
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
