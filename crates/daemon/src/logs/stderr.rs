//! Standard error as the output of the log writer, and the notice about missing lines.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use serde_json::json;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

/// Text of the notice.
const MISSING: &str = "log lines are missing here: standard error did not take them";
/// Target (module) that the notice names.
const TARGET: &str = "nvmeof_tgt::logs";

/// Standard error without the lock of [`std::io::stderr`].
///
/// A blocked write does not prevent other threads from ending the process with a message.
#[derive(Debug)]
pub(super) struct Stderr(File);

impl Stderr {
    /// Duplicates the descriptor of standard error.
    pub(super) fn open() -> io::Result<Self> {
        let fd: OwnedFd = io::stderr().as_fd().try_clone_to_owned()?;
        Ok(Self(File::from(fd)))
    }
}

impl io::Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                // Another process that shares the pipe or terminal has set O_NONBLOCK.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], None)?;
                }
                result => return result,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Formats the notice as a line of text.
pub(super) fn notice_text(missing: u64) -> String {
    format!("{}  WARN {TARGET}: {MISSING} missing={missing}\n", now())
}

/// Formats the notice as a line of JSON.
pub(super) fn notice_json(missing: u64) -> String {
    let fields = json!({
        "timestamp": now(),
        "level": "WARN",
        "message": MISSING,
        "missing": missing,
        "target": TARGET,
    });
    format!("{fields}\n")
}

fn now() -> String {
    let mut time = String::new();
    // Writing to a string cannot fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_reads_as_the_lines_around_it() {
        let text = notice_text(7);
        let (time, rest) = text.split_once(' ').expect("a time");
        assert!(time.ends_with('Z') && time.contains('T'), "{time}");
        assert!(rest.starts_with(" WARN nvmeof_tgt::logs: log lines are missing"), "{rest}");
        assert!(text.ends_with(" missing=7\n"), "{text}");
        let line: serde_json::Value = serde_json::from_str(&notice_json(7)).unwrap();
        assert_eq!((&line["level"], &line["missing"]), (&json!("WARN"), &json!(7)));
    }
}
