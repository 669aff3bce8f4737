//! Path of log lines to standard error: a bounded queue and a writer thread.
//!
//! ```text
//!   reactors, control plane --push--> queue --writer thread--> standard error
//!                              |                    |
//!                              '- full: dropped     '- write fails: dropped
//! ```
//!
//! Only the writer thread waits for standard error. If the reader has stopped or the disk is full,
//! lines are lost, but no other thread is delayed. The queue counts dropped lines. As soon as
//! standard error accepts lines again, the log reports their number at the place where they are
//! missing.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use tracing_subscriber::fmt::MakeWriter;

/// Maximum lines in the queue.
const LINES_MAX: usize = 4096;
/// Maximum bytes in the queue.
const BYTES_MAX: usize = 1 << 20;
/// Maximum bytes of a line; a longer line is cut.
const LINE_MAX: usize = 64 << 10;
/// Replaces the rest of a line that is cut.
const CUT: &[u8] = b" ... the rest of the line is cut\n";
/// Interval between attempts to put a flush into a full queue.
const RETRY: Duration = Duration::from_millis(2);

/// Sending end of the queue.
#[derive(Debug, Clone)]
pub(super) struct LogQueue {
    items: SyncSender<Item>,
    state: Arc<State>,
}

/// Receiving end of the queue, owned by the writer thread.
#[derive(Debug)]
pub(super) struct LogDrain {
    items: Receiver<Item>,
    state: Arc<State>,
    /// Lines dropped before the next one, or not written.
    missing: u64,
    /// Set if the last line was written only in part.
    is_torn: bool,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes in the queue.
    bytes: AtomicUsize,
    /// Lines dropped since the start.
    dropped: AtomicU64,
    /// Dropped lines that neither a line in the queue nor the writer reports.
    untold: AtomicU64,
    /// Dropped lines that the writer has not reported yet.
    unwritten: AtomicU64,
}

#[derive(Debug)]
enum Item {
    Line {
        text: Vec<u8>,
        /// Lines dropped directly before this one.
        missing: u64,
    },
    /// Answered when everything before it is written or dropped.
    Flush(SyncSender<()>),
    /// Makes the writer report missing lines although no line follows.
    Nudge,
}

/// Formats the line that reports the number of missing lines.
pub(super) type Notice = fn(u64) -> String;

/// Creates an empty queue.
pub(super) fn log_queue() -> (LogQueue, LogDrain) {
    let (sender, receiver) = sync_channel(LINES_MAX);
    let state = Arc::new(State::default());
    let drain = LogDrain { items: receiver, state: Arc::clone(&state), missing: 0, is_torn: false };
    (LogQueue { items: sender, state }, drain)
}

impl LogQueue {
    /// Appends a line, or drops it if the queue is full or memory allocation fails. Never blocks.
    pub(super) fn push(&self, line: &[u8]) {
        let missing = self.state.untold.swap(0, Ordering::Relaxed);
        let (line, end) = bounded(line);
        if !self.try_push(line, end, missing) {
            self.state.dropped.fetch_add(1, Ordering::Relaxed);
            self.state.untold.fetch_add(missing + 1, Ordering::Relaxed);
        }
    }

    /// Appends text unchanged, in pieces of whole lines.
    pub(super) fn push_lines(&self, text: &str) {
        let mut rest = text;
        while !rest.is_empty() {
            let piece = rest.as_bytes();
            let at = piece[..piece.len().min(LINE_MAX)].iter().rposition(|byte| *byte == b'\n');
            // A line above the maximum is passed on whole; `push` cuts it.
            let at = at.or_else(|| rest.find('\n')).map_or(rest.len(), |at| at + 1);
            self.push(&piece[..at]);
            rest = &rest[at..];
        }
    }

    fn try_push(&self, line: &[u8], end: &[u8], missing: u64) -> bool {
        let len = line.len() + end.len();
        let waiting = self.state.bytes.fetch_add(len, Ordering::Relaxed);
        let mut text = Vec::new();
        let fits = waiting.saturating_add(len) <= BYTES_MAX;
        if fits && text.try_reserve_exact(len).is_ok() {
            text.extend_from_slice(line);
            text.extend_from_slice(end);
            if self.items.try_send(Item::Line { text, missing }).is_ok() {
                return true;
            }
        }
        self.state.bytes.fetch_sub(len, Ordering::Relaxed);
        false
    }

    /// Makes the log report missing lines that are not reported yet. Never blocks.
    pub(super) fn nudge(&self) {
        let state = &self.state;
        if state.untold.load(Ordering::Relaxed) + state.unwritten.load(Ordering::Relaxed) > 0 {
            // A full queue reports them with its next line.
            let _ = self.items.try_send(Item::Nudge);
        }
    }

    /// Waits until all lines so far are written, at most for `limit`; true if they are.
    pub(super) fn flush(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let (reply, written) = sync_channel(1);
        let mut item = Item::Flush(reply);
        while let Err(error) = self.items.try_send(item) {
            item = match error {
                TrySendError::Full(item) if Instant::now() < until => item,
                _ => return false,
            };
            std::thread::sleep(RETRY);
        }
        written.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok()
    }

    /// Lines dropped since the start.
    pub(super) fn dropped(&self) -> u64 {
        self.state.dropped.load(Ordering::Relaxed)
    }
}

impl LogDrain {
    /// Writes lines until all senders are closed.
    pub(super) fn write_all(mut self, out: &mut impl io::Write, notice: Notice) {
        while let Ok(item) = self.items.recv() {
            match item {
                Item::Line { text, missing } => {
                    self.state.bytes.fetch_sub(text.len(), Ordering::Relaxed);
                    self.missing += missing;
                    self.write(&text, out, notice);
                }
                Item::Flush(reply) => {
                    self.tell_missing(out, notice);
                    // The caller may have given up.
                    let _ = reply.try_send(());
                }
                Item::Nudge => self.tell_missing(out, notice),
            }
        }
    }

    fn tell_missing(&mut self, out: &mut impl io::Write, notice: Notice) {
        self.missing += self.state.untold.swap(0, Ordering::Relaxed);
        if self.missing > 0 {
            self.write(b"", out, notice);
        }
    }

    /// Writes a line after any pending notice; an empty line writes only the notice.
    fn write(&mut self, line: &[u8], out: &mut impl io::Write, notice: Notice) {
        if let Err(written) = self.try_write(line, out, notice) {
            self.is_torn |= written > 0;
            let lines = u64::from(!line.is_empty());
            self.state.dropped.fetch_add(lines, Ordering::Relaxed);
            self.missing += lines;
        }
        self.state.unwritten.store(self.missing, Ordering::Relaxed);
    }

    /// Tries to write the notice and the line; the error is the number of bytes written.
    fn try_write(
        &mut self,
        line: &[u8],
        out: &mut impl io::Write,
        notice: Notice,
    ) -> Result<(), usize> {
        let mut before = String::new();
        if self.is_torn {
            before.push('\n');
        }
        if self.missing > 0 {
            before.push_str(&notice(self.missing));
        }
        if !before.is_empty() {
            write_whole(before.as_bytes(), out)?;
            (self.missing, self.is_torn) = (0, false);
        }
        write_whole(line, out)
    }
}

/// Splits off the part of a line that is kept, and the replacement for the rest.
fn bounded(line: &[u8]) -> (&[u8], &'static [u8]) {
    if line.len() <= LINE_MAX {
        return (line, b"");
    }
    let mut at = LINE_MAX - CUT.len();
    // Do not cut within a character.
    while at > 0 && line[at] & 0xc0 == 0x80 {
        at -= 1;
    }
    (&line[..at], CUT)
}

/// Writes all bytes; the error is the number of bytes written.
fn write_whole(bytes: &[u8], out: &mut impl io::Write) -> Result<(), usize> {
    let mut written = 0;
    while written < bytes.len() {
        match out.write(&bytes[written..]) {
            Ok(0) => return Err(written),
            Ok(more) => written += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(written),
        }
    }
    Ok(())
}

/// Puts the output of a log event into the queue.
#[derive(Debug)]
pub(super) struct LineWriter<'a>(&'a LogQueue);

impl<'a> MakeWriter<'a> for LogQueue {
    type Writer = LineWriter<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        LineWriter(self)
    }
}

impl io::Write for LineWriter<'_> {
    /// Pushes one line: `tracing-subscriber` writes an event in one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
