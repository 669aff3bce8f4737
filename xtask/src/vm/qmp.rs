//! QEMU's monitor protocol: a line of JSON each way, with events between answers.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// Timeout for QEMU's answer to a command.
const ANSWER: Duration = Duration::from_secs(20);

/// A connection to a machine's monitor.
#[derive(Debug)]
pub(crate) struct QemuMonitor {
    reader: BufReader<UnixStream>,
    /// The part of a line that has been read, without its end.
    partial: Vec<u8>,
    events: VecDeque<Value>,
}

impl QemuMonitor {
    /// Connects and leaves the mode in which only capabilities are negotiated.
    pub(crate) fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("no monitor at {}", socket.display()))?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        let mut monitor =
            Self { reader: BufReader::new(stream), partial: Vec::new(), events: VecDeque::new() };
        let greeting = monitor.next_line(Instant::now() + ANSWER)?;
        if greeting.get("QMP").is_none() {
            bail!("no QEMU at {}: {greeting}", socket.display());
        }
        monitor.execute("qmp_capabilities", Value::Null)?;
        Ok(monitor)
    }

    /// Executes a command in QEMU, and waits for its answer.
    pub(crate) fn execute(&mut self, command: &str, arguments: Value) -> Result<()> {
        let mut request = json!({ "execute": command });
        if !arguments.is_null() {
            request["arguments"] = arguments;
        }
        let mut line = request.to_string();
        line.push('\n');
        self.reader.get_mut().write_all(line.as_bytes())?;
        let deadline = Instant::now() + ANSWER;
        loop {
            let answer = self.next_line(deadline).with_context(|| format!("after {command}"))?;
            if answer.get("event").is_some() {
                self.events.push_back(answer);
            } else if let Some(error) = answer.get("error") {
                bail!("{command}: {}", error["desc"].as_str().unwrap_or("no reason given"));
            } else {
                return Ok(());
            }
        }
    }

    /// Waits for an event about a device; earlier events are dropped.
    pub(crate) fn wait_for(&mut self, name: &str, device: &str, deadline: Instant) -> Result<()> {
        loop {
            let event = match self.events.pop_front() {
                Some(event) => event,
                None => self
                    .next_line(deadline)
                    .with_context(|| format!("waiting for {name} of {device}"))?,
            };
            if event["event"] == name && event["data"]["device"] == device {
                return Ok(());
            }
        }
    }

    fn next_line(&mut self, deadline: Instant) -> Result<Value> {
        loop {
            match self.reader.read_until(b'\n', &mut self.partial) {
                Ok(0) => bail!("QEMU is gone"),
                Ok(_) if self.partial.ends_with(b"\n") => {
                    let line = std::mem::take(&mut self.partial);
                    return serde_json::from_slice(&line).context("QEMU speaks no JSON");
                }
                // The rest of the line follows, or the end.
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    if Instant::now() >= deadline {
                        bail!("QEMU does not answer");
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    /// Starts a fake monitor that sends these lines: the first immediately, each other one after a
    /// line it receives.
    fn says(
        lines: &'static [&'static str],
    ) -> (tempfile::TempDir, thread::JoinHandle<Vec<String>>) {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = UnixListener::bind(folder.path().join("socket")).expect("a socket");
        let served = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut reader = BufReader::new(stream.try_clone().expect("a reader"));
            let mut told = Vec::new();
            for line in lines {
                // In two pieces, as a socket can deliver it.
                let (head, tail) = line.split_at(line.len() / 2);
                stream.write_all(head.as_bytes()).expect("the first half");
                thread::yield_now();
                stream.write_all(format!("{tail}\n").as_bytes()).expect("the second half");
                let mut request = String::new();
                if reader.read_line(&mut request).unwrap_or(0) == 0 {
                    break;
                }
                told.push(request);
            }
            told
        });
        (folder, served)
    }

    const GREETING: &str = r#"{"QMP": {"version": {}, "capabilities": []}}"#;
    const FINE: &str = r#"{"return": {}}"#;

    #[test]
    fn commands_are_told_from_events() {
        let (folder, served) = says(&[
            GREETING,
            FINE,
            concat!(
                r#"{"event": "DEVICE_DELETED", "data": {"device": "nvme1"}}"#,
                "\n",
                r#"{"event": "DEVICE_DELETED", "data": {"device": "nvme0"}}"#,
                "\n",
                r#"{"return": {}}"#
            ),
        ]);
        let mut monitor = QemuMonitor::connect(&folder.path().join("socket")).expect("connected");
        monitor.execute("device_del", json!({ "id": "nvme0" })).expect("done");
        let deadline = Instant::now() + ANSWER;
        monitor.wait_for("DEVICE_DELETED", "nvme0", deadline).expect("the event");
        drop(monitor);
        let told = served.join().expect("served");
        assert_eq!(told[0], "{\"execute\":\"qmp_capabilities\"}\n");
        assert!(told[1].contains("\"arguments\":{\"id\":\"nvme0\"}"), "{told:?}");
    }

    #[test]
    fn errors_have_qemus_reason_and_an_end_is_noticed() {
        let (folder, served) = says(&[
            GREETING,
            FINE,
            r#"{"error": {"class": "GenericError", "desc": "no such device"}}"#,
        ]);
        let mut monitor = QemuMonitor::connect(&folder.path().join("socket")).expect("connected");
        let error = monitor.execute("device_del", Value::Null).expect_err("refused");
        assert!(error.to_string().contains("no such device"), "{error}");
        drop(monitor);
        served.join().expect("served");
        let (folder, served) = says(&["{}"]);
        assert!(QemuMonitor::connect(&folder.path().join("socket")).is_err());
        served.join().expect("served");
        assert!(QemuMonitor::connect(&folder.path().join("nothing")).is_err());
    }
}
