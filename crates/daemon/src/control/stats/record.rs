//! Samples to a file, at an interval.
//!
//! A dedicated thread writes: a slow or full disk costs samples, never service.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use nvmeof_api::units::{DURATION_FORM, parse_duration};
use nvmeof_pacing::FlowStats;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use serde_json::{Value, json};

use super::json::{self, SCHEMA};
use super::{FlowName, Labels, Sample, add_named, done, total};

/// Maximum number of samples that wait for the writer; further ones are dropped.
const BACKLOG: usize = 64;
/// Longest wait at the end for the last lines to be written.
const END: Duration = Duration::from_secs(2);

/// Options of a recording.
#[derive(Debug, Clone)]
pub(crate) struct RecordOptions {
    /// Destination.
    pub(crate) file: PathBuf,
    /// Interval between samples.
    pub(crate) interval: Duration,
}

/// A running recording.
#[derive(Debug)]
pub(crate) struct Recorder {
    lines: Option<SyncSender<Vec<Value>>>,
    written: Receiver<()>,
    began: Instant,
    before: Option<Sample>,
    /// Flows that have ended, added up by name.
    ended: BTreeMap<FlowName, FlowStats>,
    dropped: u64,
}

impl Recorder {
    /// Opens the file, discards its contents, and writes a line that describes the following lines.
    ///
    /// # Errors
    /// The file cannot be written; the error names the remedy.
    pub(crate) fn start(wanted: &RecordOptions) -> anyhow::Result<Self> {
        let path = &wanted.file;
        let file = create(path).with_context(|| {
            format!(
                "--stats {}: cannot be written; name a file in a folder that exists and that this \
                 user may write to, or a FIFO that is read",
                path.display()
            )
        })?;
        let (lines, to_write) = sync_channel::<Vec<Value>>(BACKLOG);
        let (done, written) = sync_channel(1);
        let shown = path.clone();
        std::thread::Builder::new()
            .name("stats".into())
            .spawn(move || {
                if let Err(error) = write_all(file, &to_write) {
                    tracing::error!(
                        file = %shown.display(),
                        %error,
                        "statistics end here, the daemon continues; free space and restart the \
                         daemon to record more"
                    );
                }
                // If the end took too long, no receiver waits.
                let _ = done.send(());
            })
            .context("cannot start the thread that writes statistics")?;
        let mut recorder = Self {
            lines: Some(lines),
            written,
            began: Instant::now(),
            before: None,
            ended: BTreeMap::new(),
            dropped: 0,
        };
        recorder.send(vec![start_line(wanted)]);
        Ok(recorder)
    }

    /// Returns true if the writer still runs.
    pub(crate) fn is_live(&self) -> bool {
        self.lines.is_some()
    }

    /// Writes a sample.
    pub(in crate::control) fn record(&mut self, sample: Sample, labels: &Labels) {
        let lines = json::sample(self.seconds(), &sample, self.before.as_ref(), labels);
        for flow in sample.reactors.iter().flat_map(|report| &report.flows) {
            if flow.ended {
                add_named(&mut self.ended, FlowName::of(flow, labels), &flow.figures);
            }
        }
        self.send(lines);
        self.before = Some(Sample {
            reactors: sample.reactors.into_iter().map(without_flows).collect(),
            ..sample
        });
    }

    /// Writes the last sample and the totals, and waits up to [`END`] until they are written.
    pub(in crate::control) fn finish(mut self, sample: Sample, labels: &Labels) {
        let mut flows = std::mem::take(&mut self.ended);
        for flow in sample.reactors.iter().flat_map(|report| &report.flows) {
            add_named(&mut flows, FlowName::of(flow, labels), &flow.figures);
        }
        let mut last = json::total_line("final", self.seconds(), &sample, None, labels);
        last["flows"] = json::named_flows(&flows);
        let closed = total(&sample.reactors).closed;
        last["commands"] = json::commands(&done(&sample.reactors), &closed, labels);
        last["samples_dropped"] = json!(self.dropped);
        self.record(sample, labels);
        self.send(vec![last]);
        self.lines = None;
        if self.written.recv_timeout(END).is_err() {
            tracing::error!("the last statistics are not written: the disk is too slow");
        }
    }

    fn seconds(&self) -> f64 {
        // A resolution of microseconds is enough.
        (self.began.elapsed().as_secs_f64() * 1e6).round() / 1e6
    }

    fn send(&mut self, lines: Vec<Value>) {
        let Some(sender) = &self.lines else { return };
        match sender.try_send(lines) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => self.dropped += 1,
            Err(TrySendError::Disconnected(_)) => self.lines = None,
        }
    }
}

/// Creates or truncates a file.
///
/// A FIFO without a reader is an error. Waiting for a reader would block the daemon.
fn create(path: &Path) -> std::io::Result<File> {
    let no_waiting = OFlags::NONBLOCK.bits().cast_signed();
    let mut options = OpenOptions::new();
    let file =
        options.write(true).create(true).truncate(true).custom_flags(no_waiting).open(path)?;
    // The writer is a dedicated thread, and may block.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

fn without_flows(mut report: crate::reactor::stats::Report) -> crate::reactor::stats::Report {
    report.flows = Vec::new();
    report
}

fn start_line(wanted: &RecordOptions) -> Value {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    json!({
        "kind": "start",
        "schema": SCHEMA,
        "program": concat!("nvmeof-tgt ", env!("CARGO_PKG_VERSION")),
        "unix_time": since_1970.map_or(0, |since| since.as_secs()),
        "interval_ms": u64::try_from(wanted.interval.as_millis()).unwrap_or(u64::MAX),
    })
}

/// Writes lines until the channel closes.
fn write_all(file: File, lines: &Receiver<Vec<Value>>) -> std::io::Result<()> {
    let mut out = BufWriter::new(file);
    while let Ok(batch) = lines.recv() {
        for line in batch {
            serde_json::to_writer(&mut out, &line)?;
            out.write_all(b"\n")?;
        }
        // A reader that follows the file sees whole samples.
        out.flush()?;
    }
    Ok(())
}

impl RecordOptions {
    /// Creates the options of a recording to `file`.
    ///
    /// # Errors
    /// The interval is invalid; the error names the allowed values.
    pub(crate) fn new(file: &Path, interval: &str) -> Result<Self, String> {
        let (least, most) = (Duration::from_millis(10), Duration::from_secs(3600));
        let interval =
            parse_duration(interval).map_err(|what| format!("{what}; {DURATION_FORM}"))?;
        if !(least..=most).contains(&interval) {
            return Err("out of range; allowed: 10ms to 1h".into());
        }
        Ok(Self { file: file.to_owned(), interval })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn a_fifo_is_written_if_somebody_reads_it_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let wanted = RecordOptions::new(&fifo, "1s").unwrap();
        let error = Recorder::start(&wanted).unwrap_err();
        assert!(format!("{error:#}").contains("a FIFO that is read"), "{error:#}");

        let no_waiting = OFlags::NONBLOCK.bits().cast_signed();
        let mut reader =
            OpenOptions::new().read(true).custom_flags(no_waiting).open(&fifo).unwrap();
        let file = create(&fifo).unwrap();
        assert!(!fcntl_getfl(&file).unwrap().contains(OFlags::NONBLOCK));
        (&file).write_all(b"line").unwrap();
        drop(file);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "line");
    }
}
