//! Comparison of `sendfile` from memory with a vectored send that copies, by length.
//!
//! A sender pinned to CPU 0 repeatedly sends header and data over the loopback interface. A
//! receiver pinned to CPU 1 copies them out. Every method runs in turn, several times. The output
//! is the median, the sender's CPU time per send, and the ratio; it shows from which length
//! `sendfile` is cheaper.
//!
//! ```text
//! cargo bench -p nvmeof-transport --bench send_file -- [rounds] [milliseconds]
//! ```

use std::io::IoSlice;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::net::{RecvFlags, SendFlags, sockopt};
use rustix::thread::CpuSet;

const HEADER: [u8; 24] = [0; 24];
const FILE: usize = 64 << 20;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Source of the data.
struct CompletionSource {
    file: OwnedFd,
    memory: Vec<u8>,
}

/// Sends of header and data of a length, from each of some offsets.
type Way = fn(&TcpStream, &CompletionSource, &[usize], usize) -> Result<(), Error>;

#[expect(clippy::print_stdout, reason = "a person reads it")]
fn main() -> Result<(), Error> {
    let words = std::env::args().skip(1).filter(|word| word != "--bench");
    let mut arguments = words.map(|word| word.parse::<u64>());
    let rounds = arguments.next().transpose()?.unwrap_or(7);
    let time = Duration::from_millis(arguments.next().transpose()?.unwrap_or(500));
    for (what, filled) in [("zeroes (holes)", false), ("filled pages", true)] {
        let source = source(filled)?;
        for batch in [1, 8] {
            println!("\n{what}, {batch} response(s) a turn");
            for len in [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 512 << 10] {
                let mut results = [const { Vec::new() }; 3];
                for _ in 0..rounds {
                    let ways = [vectored as Way, from_file, from_file_corked];
                    for (way, results) in ways.iter().zip(&mut results) {
                        results.push(measure(*way, &source, len, batch, filled, time)?);
                    }
                }
                let [copied, file, corked] =
                    results.map(|results| (median(&results, |r| r.0), median(&results, |r| r.1)));
                println!(
                    "  {:>4} KiB: copied {:>7.1} k/s {:>7.2} us CPU; sendfile {:>7.1} k/s {:>7.2} us, \
                     rate x{:.2}, CPU x{:.2}; corked rate x{:.2}, CPU x{:.2}",
                    len >> 10,
                    copied.0 / 1e3,
                    copied.1 * 1e6,
                    file.0 / 1e3,
                    file.1 * 1e6,
                    file.0 / copied.0,
                    file.1 / copied.1,
                    corked.0 / copied.0,
                    corked.1 / copied.1,
                );
            }
        }
    }
    Ok(())
}

fn median(results: &[(f64, f64)], value: impl Fn(&(f64, f64)) -> f64) -> f64 {
    let mut values: Vec<_> = results.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn source(filled: bool) -> Result<CompletionSource, Error> {
    let file = rustix::fs::memfd_create("send-file", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, FILE as u64)?;
    // A window of zeroes that stays in the cache, or as much data as the file has.
    let memory = vec![u8::from(filled); if filled { FILE } else { 512 << 10 }];
    if filled {
        let mut at = 0;
        while at < FILE {
            at += rustix::io::pwrite(&file, &memory[at..], at as u64)?;
        }
    }
    Ok(CompletionSource { file, memory })
}

/// Returns sends per second, and CPU seconds of the sender per send.
fn measure(
    way: Way,
    source: &CompletionSource,
    len: usize,
    batch: usize,
    roam: bool,
    time: Duration,
) -> Result<(f64, f64), Error> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let server = listener.accept()?.0;
    server.set_nodelay(true)?;
    let receiver = std::thread::spawn(move || -> Result<(), Error> {
        pin(1)?;
        let mut window = vec![0; 1 << 20];
        client.set_nonblocking(true)?;
        loop {
            match rustix::net::recv(&client, &mut window[..], RecvFlags::empty()) {
                Ok((0, _)) => break,
                Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    });
    pin(0)?;
    let (started, before) = (Instant::now(), cpu_time());
    let (mut sends, mut at) = (0u64, 0);
    let mut offsets = vec![0; batch];
    while started.elapsed() < time {
        for offset in &mut offsets {
            at = if roam { ((at + 7 * len) % (FILE - len)) & !4095 } else { 0 };
            *offset = at;
        }
        way(&server, source, &offsets, len)?;
        sends += batch as u64;
    }
    let (elapsed, cpu) = (started.elapsed().as_secs_f64(), cpu_time() - before);
    drop(server);
    receiver.join().map_err(|_| "the receiver panicked")??;
    Ok((sends as f64 / elapsed, cpu / sends as f64))
}

/// Sends all headers and data in one vectored send.
fn vectored(
    socket: &TcpStream,
    source: &CompletionSource,
    at: &[usize],
    len: usize,
) -> Result<(), Error> {
    let mut pieces = Vec::with_capacity(2 * at.len());
    for at in at {
        pieces.push(IoSlice::new(&HEADER));
        pieces.push(IoSlice::new(&source.memory[*at..*at + len]));
    }
    let mut pieces = &mut pieces[..];
    while !pieces.is_empty() {
        let sent = rustix::io::writev(socket, pieces)?;
        IoSlice::advance_slices(&mut pieces, sent);
    }
    Ok(())
}

/// Sends each header with `MSG_MORE`, then its data from the file.
fn from_file(
    socket: &TcpStream,
    source: &CompletionSource,
    at: &[usize],
    len: usize,
) -> Result<(), Error> {
    for at in at {
        rustix::net::send(socket, &HEADER, SendFlags::MORE | SendFlags::NOSIGNAL)?;
        let (mut offset, end) = (*at as u64, (*at + len) as u64);
        while offset < end {
            let left = usize::try_from(end - offset)?;
            rustix::fs::sendfile(socket.as_fd(), &source.file, Some(&mut offset), left)?;
        }
    }
    Ok(())
}

/// The same, corked for the turn.
fn from_file_corked(
    socket: &TcpStream,
    source: &CompletionSource,
    at: &[usize],
    len: usize,
) -> Result<(), Error> {
    sockopt::set_tcp_cork(socket, true)?;
    from_file(socket, source, at, len)?;
    Ok(sockopt::set_tcp_cork(socket, false)?)
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
