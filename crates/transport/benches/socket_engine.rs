//! Comparison of socket engines: `epoll` with non-blocking calls, plain spinning, and `io_uring`.
//!
//! A server pinned to CPU 0 answers requests of 72 bytes with 24 + 4096 bytes each, as a target
//! answers reads. A client pinned to CPU 1 keeps a number of them outstanding on each connection.
//! Every engine runs in turn, several times. The output is the median, its spread, the server's CPU
//! time per request, and the ratios to `epoll`. On shared cores the rate is unreliable. The figure
//! to compare is the CPU time of the engines that sleep, as it excludes waiting.
//!
//! ```text
//! cargo bench -p nvmeof-transport --bench socket_engine -- [rounds] [milliseconds]
//! ```

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::event::epoll;
use rustix::net::{RecvFlags, SendFlags};
use rustix::thread::CpuSet;

const REQUEST: usize = 72;
const HEADER: usize = 24;
const DATA: usize = 4096;
const RESPONSE: usize = HEADER + DATA;
const WINDOW: usize = 64 << 10;

type Error = Box<dyn std::error::Error + Send + Sync>;
type Engine = fn(&[TcpStream], &AtomicBool) -> Result<u64, Error>;

#[expect(clippy::print_stdout, reason = "a person reads it")]
fn main() -> Result<(), Error> {
    let words = std::env::args().skip(1).filter(|word| word != "--bench");
    let mut arguments = words.map(|word| word.parse::<u64>());
    let rounds = arguments.next().transpose()?.unwrap_or(7);
    let time = Duration::from_millis(arguments.next().transpose()?.unwrap_or(700));
    let engines: [(&str, Engine); 6] = [
        ("epoll, spin", epoll_spin_engine),
        ("epoll, sleep", epoll_sleep_engine),
        ("spin (no epoll)", spin_engine),
        ("io_uring recv, sleep", uring_sleep_engine),
        ("io_uring recv, spin", uring_spin_engine),
        ("io_uring multishot, spin", uring_multishot_engine),
    ];
    for (connections, out) in [(1, 1), (1, 32), (1, 128), (4, 1), (4, 32)] {
        println!("\n{connections} connection(s), {out} requests out on each");
        let mut results = vec![Vec::new(); engines.len()];
        for _ in 0..rounds {
            for ((_, engine), results) in engines.iter().zip(&mut results) {
                results.push(measure(*engine, connections, out, time)?);
            }
        }
        let base = median(&results[0], |result| result.0);
        let sleeper = median(&results[1], |result| result.1);
        for ((name, _), results) in engines.iter().zip(&results) {
            let rate = median(results, |result| result.0);
            let least = results.iter().map(|result| result.0).fold(f64::MAX, f64::min);
            let most = results.iter().map(|result| result.0).fold(0.0, f64::max);
            println!(
                "  {name:<26} {:>8.1} k/s ({:>6.1}..{:>6.1})  {:>6.2} us CPU each  rate x{:.2} CPU x{:.2}",
                rate / 1e3,
                least / 1e3,
                most / 1e3,
                median(results, |result| result.1) * 1e6,
                rate / base,
                median(results, |result| result.1) / sleeper,
            );
        }
    }
    Ok(())
}

fn median(results: &[(f64, f64)], value: impl Fn(&(f64, f64)) -> f64) -> f64 {
    let mut values: Vec<_> = results.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns requests per second, and CPU seconds of the server per request.
fn measure(
    engine: Engine,
    connections: usize,
    out: usize,
    time: Duration,
) -> Result<(f64, f64), Error> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut clients = Vec::new();
    let mut servers = Vec::new();
    for _ in 0..connections {
        let client = TcpStream::connect(listener.local_addr()?)?;
        let server = listener.accept()?.0;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
        }
        clients.push(client);
        servers.push(server);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let stop_server = Arc::clone(&stop);
    let server = std::thread::spawn(move || -> Result<(u64, f64), Error> {
        pin(0)?;
        let before = cpu_time();
        let served = engine(&servers, &stop_server)?;
        Ok((served, cpu_time() - before))
    });
    pin(1)?;
    let started = Instant::now();
    drive(&clients, out, time)?;
    let elapsed = started.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    // Wakes a sleeping server.
    drop(clients);
    let (served, cpu) = server.join().map_err(|_| "the server panicked")??;
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

/// Runs the client: keeps `out` requests outstanding on each connection.
fn drive(clients: &[TcpStream], out: usize, time: Duration) -> Result<(), Error> {
    let requests = vec![1u8; REQUEST * out];
    let mut window = vec![0u8; 1 << 20];
    let mut part = vec![0usize; clients.len()];
    for client in clients {
        rustix::net::send(client, &requests, SendFlags::NOSIGNAL)?;
    }
    let end = Instant::now() + time;
    while Instant::now() < end {
        for (client, part) in clients.iter().zip(&mut part) {
            match rustix::net::recv(client, &mut window[..], RecvFlags::DONTWAIT) {
                Ok((len, _)) => {
                    *part += len;
                    let whole = *part / RESPONSE;
                    *part %= RESPONSE;
                    if whole > 0 {
                        let len = whole * REQUEST;
                        rustix::net::send(client, &requests[..len], SendFlags::NOSIGNAL)?;
                    }
                }
                Err(rustix::io::Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Server state of one connection.
struct Peer {
    /// Received bytes of an incomplete request.
    part: usize,
    /// Bytes of responses still to send.
    unsent: usize,
    iovecs: Vec<libc::iovec>,
}

/// Header and data of all responses; their content does not matter.
static BYTES: [u8; RESPONSE] = [0; RESPONSE];

impl Peer {
    fn new() -> Self {
        Self { part: 0, unsent: 0, iovecs: Vec::new() }
    }

    /// Records `len` received bytes of requests; returns the number of complete requests.
    fn arrived(&mut self, len: usize) -> u64 {
        self.part += len;
        let whole = self.part / REQUEST;
        self.part %= REQUEST;
        self.unsent += whole * RESPONSE;
        whole as u64
    }

    /// Builds a message of two pieces per response, like a target's.
    fn gather(&mut self) -> libc::msghdr {
        self.iovecs.clear();
        let mut left = self.unsent;
        while left > 0 && self.iovecs.len() < 512 {
            let at = match left % RESPONSE {
                0 => 0,
                rest => RESPONSE - rest,
            };
            let end = if at < HEADER { HEADER } else { RESPONSE };
            let base = BYTES[at..].as_ptr().cast_mut().cast();
            self.iovecs.push(libc::iovec { iov_base: base, iov_len: end - at });
            left -= end - at;
        }
        // SAFETY: all-zero is a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.iovecs.as_mut_ptr();
        message.msg_iovlen = self.iovecs.len();
        message
    }

    fn send(&mut self, socket: &TcpStream) -> Result<(), Error> {
        while self.unsent > 0 {
            let message = self.gather();
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: the message's pieces lie in `BYTES`, a static.
            let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
            match usize::try_from(sent) {
                Ok(sent) => self.unsent -= sent,
                Err(_) => {
                    let error = std::io::Error::last_os_error();
                    return if error.kind() == std::io::ErrorKind::WouldBlock {
                        Ok(())
                    } else {
                        Err(error.into())
                    };
                }
            }
        }
        Ok(())
    }
}

/// Reads once and answers; `None` without data, 0 requests when the client has closed.
fn turn(socket: &TcpStream, peer: &mut Peer, window: &mut [u8]) -> Result<Option<u64>, Error> {
    let served = match rustix::net::recv(socket, &mut *window, RecvFlags::DONTWAIT) {
        Ok((len, _)) => Some(peer.arrived(len)),
        Err(rustix::io::Errno::AGAIN) => None,
        Err(rustix::io::Errno::CONNRESET) => Some(0),
        Err(error) => return Err(error.into()),
    };
    match peer.send(socket) {
        Err(error) if error.to_string().contains("pipe") || error.to_string().contains("reset") => {
            peer.unsent = 0;
            Ok(Some(0))
        }
        other => other.map(|()| served),
    }
}

fn epoll_spin_engine(sockets: &[TcpStream], stop: &AtomicBool) -> Result<u64, Error> {
    epoll_engine(sockets, stop, Some(rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }))
}

fn epoll_sleep_engine(sockets: &[TcpStream], stop: &AtomicBool) -> Result<u64, Error> {
    epoll_engine(sockets, stop, None)
}

fn epoll_engine(
    sockets: &[TcpStream],
    stop: &AtomicBool,
    wait: Option<rustix::event::Timespec>,
) -> Result<u64, Error> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut peers: Vec<_> = sockets.iter().map(|_| Peer::new()).collect();
    let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
    for (index, socket) in sockets.iter().enumerate() {
        epoll::add(&poll, socket.as_fd(), epoll::EventData::new_u64(index as u64), flags)?;
    }
    let mut window = vec![0u8; WINDOW];
    let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
    let mut served = 0;
    while !stop.load(Ordering::Relaxed) {
        events.clear();
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), wait.as_ref())?;
        for event in &events {
            let index = usize::try_from(event.data.u64())?;
            // More data can remain after a full window.
            while let Some(count) = turn(&sockets[index], &mut peers[index], &mut window)? {
                served += count;
                if count < (WINDOW / REQUEST) as u64 {
                    break;
                }
            }
        }
    }
    Ok(served)
}

fn spin_engine(sockets: &[TcpStream], stop: &AtomicBool) -> Result<u64, Error> {
    let mut peers: Vec<_> = sockets.iter().map(|_| Peer::new()).collect();
    let mut window = vec![0u8; WINDOW];
    let mut served = 0;
    while !stop.load(Ordering::Relaxed) {
        for (socket, peer) in sockets.iter().zip(&mut peers) {
            served += turn(socket, peer, &mut window)?.unwrap_or(0);
        }
    }
    Ok(served)
}

fn uring_sleep_engine(sockets: &[TcpStream], stop: &AtomicBool) -> Result<u64, Error> {
    Uring::new(sockets, false)?.run(stop, 1)
}

fn uring_spin_engine(sockets: &[TcpStream], stop: &AtomicBool) -> Result<u64, Error> {
    Uring::new(sockets, false)?.run(stop, 0)
}

fn uring_multishot_engine(sockets: &[TcpStream], stop: &AtomicBool) -> Result<u64, Error> {
    Uring::new(sockets, true)?.run(stop, 0)
}

/// Buffers of the multishot engine.
const BUFFERS: u16 = 256;
const BUFFER: usize = 16 << 10;
/// Bit of `user_data` that distinguishes a send from a receive.
const SEND: u64 = 1 << 32;

struct Uring<'a> {
    ring: IoUring,
    sockets: &'a [TcpStream],
    peers: Vec<Peer>,
    messages: Vec<libc::msghdr>,
    sending: Vec<bool>,
    windows: Vec<Vec<u8>>,
    multishot: bool,
    buffers: Vec<u8>,
}

impl<'a> Uring<'a> {
    fn new(sockets: &'a [TcpStream], multishot: bool) -> Result<Self, Error> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .build(1024)?;
        // Blocking sockets: the ring waits for them instead of an error.
        for socket in sockets {
            socket.set_nonblocking(false)?;
        }
        // SAFETY: all-zero is a valid msghdr.
        let message: libc::msghdr = unsafe { std::mem::zeroed() };
        let mut this = Self {
            ring,
            sockets,
            peers: sockets.iter().map(|_| Peer::new()).collect(),
            messages: vec![message; sockets.len()],
            sending: vec![false; sockets.len()],
            windows: sockets.iter().map(|_| vec![0; WINDOW]).collect(),
            multishot,
            buffers: vec![0; usize::from(BUFFERS) * BUFFER],
        };
        if multishot {
            this.provide(0, BUFFERS)?;
        }
        for index in 0..sockets.len() {
            this.receive(index)?;
        }
        Ok(this)
    }

    fn push(&mut self, entry: &squeue::Entry) -> Result<(), Error> {
        // SAFETY: the targets of entries (`windows`, `messages`, the peers' iovecs, `buffers`) are
        // not moved or freed while the ring lives. `run` ends before they are dropped, and the ring
        // is dropped first.
        unsafe { self.ring.submission().push(entry) }.map_err(Into::into)
    }

    fn provide(&mut self, first: u16, count: u16) -> Result<(), Error> {
        let at = self.buffers[usize::from(first) * BUFFER..].as_mut_ptr();
        let entry = opcode::ProvideBuffers::new(at, i32::try_from(BUFFER)?, count, 0, first)
            .build()
            .user_data(u64::MAX)
            .flags(squeue::Flags::SKIP_SUCCESS);
        self.push(&entry)
    }

    fn receive(&mut self, index: usize) -> Result<(), Error> {
        let fd = types::Fd(self.sockets[index].as_raw_fd());
        let entry = if self.multishot {
            opcode::RecvMulti::new(fd, 0).build()
        } else {
            let window = &mut self.windows[index];
            opcode::Recv::new(fd, window.as_mut_ptr(), u32::try_from(WINDOW)?).build()
        };
        self.push(&entry.user_data(index as u64))
    }

    fn send(&mut self, index: usize) -> Result<(), Error> {
        if self.sending[index] || self.peers[index].unsent == 0 {
            return Ok(());
        }
        self.sending[index] = true;
        self.messages[index] = self.peers[index].gather();
        let fd = types::Fd(self.sockets[index].as_raw_fd());
        let entry = opcode::SendMsg::new(fd, &raw const self.messages[index])
            .flags(libc::MSG_NOSIGNAL as u32)
            .build()
            .user_data(SEND | index as u64);
        self.push(&entry)
    }

    fn run(mut self, stop: &AtomicBool, wait: usize) -> Result<u64, Error> {
        let mut served = 0;
        let mut done = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            if wait > 0 || !self.ring.submission().is_empty() {
                self.ring.submit_and_wait(wait)?;
            } else {
                // Deferred work runs only on request.
                let flags = io_uring::EnterFlags::GETEVENTS.bits();
                // SAFETY: no argument is passed.
                unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 0, flags, None)? };
            }
            done.extend(self.ring.completion());
            for entry in done.drain(..) {
                served += self.complete(&entry)?;
            }
        }
        Ok(served)
    }

    fn complete(&mut self, entry: &cqueue::Entry) -> Result<u64, Error> {
        if entry.user_data() == u64::MAX {
            return Ok(0);
        }
        let index = usize::try_from(entry.user_data() & (SEND - 1))?;
        // An error means that the client has closed: no further work for it.
        let len = usize::try_from(entry.result()).unwrap_or(0);
        if entry.user_data() & SEND != 0 {
            self.sending[index] = false;
            self.peers[index].unsent = match len {
                0 => 0,
                len => self.peers[index].unsent - len,
            };
            self.send(index)?;
            return Ok(0);
        }
        if let Some(buffer) = cqueue::buffer_select(entry.flags()) {
            self.provide(buffer, 1)?;
        }
        if len == 0 && entry.result() != -libc::ENOBUFS {
            return Ok(0);
        }
        let served = self.peers[index].arrived(len);
        self.send(index)?;
        if !self.multishot || !cqueue::more(entry.flags()) {
            self.receive(index)?;
        }
        Ok(served)
    }
}
