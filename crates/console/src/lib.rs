//! Standard output and standard error of the programs: an error on either never panics.
//!
//! A program writes with [`say!`], [`show`] and [`complain!`], which return nothing. The first
//! error on standard output is stored. At the end, [`status`] turns it into the exit status, as
//! `close_stdout` of gnulib does for the programs of coreutils:
//!
//! | error on standard output | at the end |
//! |---|---|
//! | EPIPE: the reader has closed the pipe | no message; the exit status is the program's own |
//! | any other, like ENOSPC | one line on standard error, and a failure |
//!
//! An error on standard error cannot be reported anywhere: the text is lost.
#![forbid(unsafe_code)]

use std::fmt;
use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use clap::Parser;
use signal_hook::consts::SIGXFSZ;

/// Standard output of this process.
static STDOUT: Mutex<Stream> = Mutex::new(Stream { error: None });

/// Writes a line to standard output; takes the arguments of `println!`.
#[macro_export]
macro_rules! say {
    () => { $crate::show("\n") };
    ($($line:tt)+) => { $crate::write(&::std::format!("{}\n", ::std::format_args!($($line)+))) };
}

/// Writes a line to standard error; takes the arguments of `eprintln!`.
#[macro_export]
macro_rules! complain {
    ($($line:tt)+) => { $crate::write_error(::std::format_args!($($line)+)) };
}

/// Writes text to standard output unchanged.
pub fn show(text: impl fmt::Display) {
    write(&text.to_string());
}

/// Writes text to standard output, for [`say!`] and [`show`].
pub fn write(text: &str) {
    write_bytes(text.as_bytes());
}

fn write_bytes(bytes: &[u8]) {
    let mut stream = STDOUT.lock().unwrap_or_else(PoisonError::into_inner);
    stream.write(bytes, &mut io::stdout().lock());
}

/// Writes a line to standard error, for [`complain!`].
pub fn write_error(line: fmt::Arguments<'_>) {
    // One call for the whole line, so that lines of several threads do not mix. An error cannot be
    // reported anywhere.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Standard output as an [`io::Write`] that never fails, like [`show`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Stdout;

impl io::Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_bytes(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Standard error as an [`io::Write`] that never fails.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stderr;

impl io::Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // An error cannot be reported anywhere.
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns true if the reader of standard output has closed it: further output is lost.
#[must_use]
pub fn is_reader_gone() -> bool {
    let stream = STDOUT.lock().unwrap_or_else(PoisonError::into_inner);
    stream.error.as_ref().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// Returns the exit status of a program that ends with `code`.
///
/// It is a failure if standard output did not accept everything. One line that begins with `prefix`
/// reports that.
#[must_use]
pub fn status(prefix: &str, code: ExitCode) -> ExitCode {
    let stream = STDOUT.lock().unwrap_or_else(PoisonError::into_inner);
    match stream.problem() {
        None => code,
        Some(problem) => {
            write_error(format_args!("{prefix}: {problem}"));
            if code == ExitCode::SUCCESS { ExitCode::FAILURE } else { code }
        }
    }
}

/// Parses the command line. It answers `--help`, `--version` and errors; the result is then an exit
/// status.
///
/// # Errors
/// The program has to exit with this status.
pub fn parse<P: Parser>() -> Result<P, ExitCode> {
    P::try_parse().map_err(|error| {
        let code = ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1));
        match error.print() {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                write_error(format_args!("cannot write: {error}"));
                if code == ExitCode::SUCCESS { ExitCode::FAILURE } else { code }
            }
            _ => code,
        }
    })
}

/// Makes a write beyond the file size limit (RLIMIT_FSIZE) fail with EFBIG.
///
/// By default, SIGXFSZ ends the process. Call this once, at the start.
///
/// # Errors
/// The signal cannot be handled.
pub fn outlive_file_limits() -> io::Result<()> {
    // The flag of the handler is never read. After exec, a program has the default action again.
    let raised = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGXFSZ, raised).map(drop)
}

/// A stream and the first error on it.
#[derive(Debug)]
struct Stream {
    error: Option<io::Error>,
}

impl Stream {
    /// Writes, unless an earlier write has failed: the rest would follow a gap.
    fn write(&mut self, bytes: &[u8], out: &mut impl io::Write) {
        if self.error.is_none() {
            self.error = out.write_all(bytes).and_then(|()| out.flush()).err();
        }
    }

    /// Returns the error that makes the program fail.
    fn problem(&self) -> Option<String> {
        let error = self.error.as_ref().filter(|error| error.kind() != ErrorKind::BrokenPipe)?;
        Some(format!("cannot write to standard output: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails after it has taken `room` bytes.
    struct Small {
        taken: Vec<u8>,
        room: usize,
        kind: ErrorKind,
    }

    impl io::Write for Small {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.room - self.taken.len());
            if taken == 0 {
                return Err(self.kind.into());
            }
            self.taken.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(kind: ErrorKind, room: usize) -> (Stream, String) {
        let mut out = Small { taken: Vec::new(), room, kind };
        let mut stream = Stream { error: None };
        for line in ["first\n", "second\n", "third\n"] {
            stream.write(line.as_bytes(), &mut out);
        }
        (stream, String::from_utf8(out.taken).unwrap())
    }

    #[test]
    fn the_first_error_is_kept_and_nothing_follows_the_gap() {
        let (stream, text) = written(ErrorKind::StorageFull, 8);
        assert_eq!(text, "first\nse");
        let problem = stream.problem().expect("a failure");
        assert!(problem.starts_with("cannot write to standard output: "), "{problem}");
    }

    #[test]
    fn a_reader_that_has_seen_enough_is_no_failure() {
        let (stream, text) = written(ErrorKind::BrokenPipe, 6);
        assert_eq!((text.as_str(), stream.problem()), ("first\n", None));
    }

    #[test]
    fn all_is_written_where_there_is_room() {
        let (stream, text) = written(ErrorKind::StorageFull, 100);
        assert_eq!((text.as_str(), stream.problem()), ("first\nsecond\nthird\n", None));
    }
}
