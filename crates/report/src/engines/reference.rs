//! Reference measurements of another machine.

/// Rates of 4 KiB random reads on 16 logical drives: `lba_bytes,layout,concurrency,engine,kiops`.
///
/// The drives were read one by one and as MD RAID-0 of 8 KiB chunks, formatted with 512 and
/// 4096-byte blocks. The figures are those of the comparison of synchronous I/O engines that
/// this project began with, not of this project.
pub const REFERENCE: &str = include_str!("../../data/sync_engines.csv");

/// Source of [`REFERENCE`], as all outputs cite it.
pub const REFERENCE_SOURCE: &str =
    "reference: the comparison of synchronous engines on 16 drives (sync_engines.csv)";

/// A row of [`REFERENCE`].
#[derive(Debug, Clone, PartialEq)]
pub struct ReferenceRow {
    /// Bytes of a block.
    pub lba_bytes: u32,
    /// `individual` or `raid0`.
    pub layout: String,
    /// Threads, each with one read.
    pub concurrency: u32,
    /// The engine's name.
    pub engine: String,
    /// Thousands of reads a second.
    pub kiops: f64,
}

/// The rows of [`REFERENCE`].
#[must_use]
pub fn reference() -> Vec<ReferenceRow> {
    REFERENCE.lines().skip(1).filter_map(parse).collect()
}

fn parse(line: &str) -> Option<ReferenceRow> {
    let mut cells = line.split(',');
    let mut next = || cells.next().map(str::trim);
    Some(ReferenceRow {
        lba_bytes: next()?.parse().ok()?,
        layout: next()?.to_owned(),
        concurrency: next()?.parse().ok()?,
        engine: next()?.to_owned(),
        kiops: next()?.parse().ok()?,
    })
}

/// Explains high-priority polling, and when it is slower or faster, with the figures of the
/// reference.
#[must_use]
pub fn about_polling(rows: &[ReferenceRow]) -> Vec<String> {
    let rates = |lba, layout: &str, concurrency: Option<u32>, polled: bool| {
        let of = rows.iter().filter(|row| {
            row.lba_bytes == lba
                && row.layout == layout
                && concurrency.is_none_or(|n| n == row.concurrency)
                && (row.engine == POLLED) == polled
        });
        Range::of(of.map(|row| row.kiops))
    };
    let at_512 = |polled| rates(512, "individual", None, polled);
    let at_4096 = |jobs, polled| rates(4096, "individual", Some(jobs), polled);
    let striped = |polled| rates(4096, "raid0", Some(2048), polled);
    let unpolled_stripe = rows.iter().find(|row| {
        (row.lba_bytes, row.concurrency) == (4096, 2048)
            && (row.layout.as_str(), row.engine.as_str()) == ("raid0", "pvsync2")
    });
    let unpolled_stripe = Range::of(unpolled_stripe.map(|row| row.kiops).into_iter());
    vec![
        "High-priority polling (RWF_HIPRI of preadv2, hipri in fio, IORING_SETUP_IOPOLL of io_uring): the thread that \
         reads looks for the completion in the drive's completion queue until it is there, instead of sleeping until \
         an interrupt wakes it. That saves the interrupt and two context switches, and costs a CPU for as long as the \
         drive takes. It needs queues without interrupts, which the driver makes only if told to (nvme.poll_queues), \
         and threads that poll the same queue are in each other's way."
            .to_owned(),
        format!(
            "It loses where polling threads have to share what they poll. In the reference, with drives formatted with \
             512-byte blocks, it stays at {} million reads a second with 512, 1024 and 2048 jobs alike, where the other \
             engines go from {} with more jobs: a limit that more threads do not move. The data does not tell which.",
            at_512(true).millions(),
            at_512(false).millions(),
        ),
        format!(
            "It wins where latency is what limits: with 4096-byte blocks and 512 jobs, {} against {} million, \
             because each read is done sooner. With 1024 jobs and more the drives are at their end ({} against {} \
             million) and it wins nothing. On a stripe of the kernel's (MD RAID-0) it makes no difference: {} against {} \
             million.",
            at_4096(512, true).millions(),
            rates_of(rows, 4096, 512, "pvsync2").millions(),
            at_4096(2048, true).millions(),
            at_4096(2048, false).millions(),
            striped(true).millions(),
            unpolled_stripe.millions(),
        ),
        "Since Linux 5.19 the kernel takes no notice of the wish on synchronous reads, so pvsync2-hipri is pvsync2 there; \
         io_uring polls (io-uring-polled), and so does the VFIO driver (vfio)."
            .to_owned(),
    ]
}

/// Explains why engines differ on an MD array, with the figures of the reference.
#[must_use]
pub fn about_md(rows: &[ReferenceRow]) -> Vec<String> {
    let rates = |layout: &str, lba: u32, is_sync: bool| {
        let of = rows.iter().filter(|row| {
            (row.layout.as_str(), row.lba_bytes) == (layout, lba)
                && (row.engine == "sync") == is_sync
                && row.engine != POLLED
        });
        Range::of(of.map(|row| row.kiops)).millions()
    };
    vec![
        format!(
            "On an MD RAID-0, sync falls behind. In the comparison of synchronous engines it reads {} million times a \
             second from the array of drives with 512-byte blocks, where psync, pvsync and pvsync2 read {} million \
             times; with 4096-byte blocks {} against {}. More threads do not change that. On the individual drives \
             sync is as fast as they are: {} against {} million with 512-byte blocks.",
            rates("raid0", 512, true),
            rates("raid0", 512, false),
            rates("raid0", 4096, true),
            rates("raid0", 4096, false),
            rates("individual", 512, true),
            rates("individual", 512, false),
        ),
        "The reason is lseek. sync sets the position of its file before each read, and for a block device the kernel \
         takes the lock of the device's inode to do so (blkdev_llseek in block/fops.c), whichever file descriptor is \
         used. Sixteen drives are sixteen inodes. An array is one: all threads queue for its lock. The other \
         synchronous engines pass the offset with the read, so they take no lock; nor do libaio and io_uring."
            .to_owned(),
        format!(
            "With 4096-byte blocks, all engines read less from the array than from the drives: at most {} million reads \
             a second against {}. With 512-byte blocks that holds for all but {POLLED}. Each read passes the MD driver, \
             which maps it to a drive. Which part of that limits, the comparison does not show.",
            most(rows, "raid0"),
            most(rows, "individual"),
        ),
    ]
}

/// The best rate with 4096-byte blocks, in millions.
fn most(rows: &[ReferenceRow], layout: &str) -> String {
    let of = rows.iter().filter(|row| row.layout == layout && row.lba_bytes == 4096);
    format!("{:.1}", Range::of(of.map(|row| row.kiops)).1 / 1000.0)
}

/// The polling engine in the reference.
const POLLED: &str = "pvsync2-hipri";

fn rates_of(rows: &[ReferenceRow], lba: u32, jobs: u32, engine: &str) -> Range {
    let of = rows.iter().filter(|row| {
        (row.lba_bytes, row.concurrency) == (lba, jobs)
            && (row.layout.as_str(), row.engine.as_str()) == ("individual", engine)
    });
    Range::of(of.map(|row| row.kiops))
}

/// A range from the minimum to the maximum.
struct Range(f64, f64);

impl Range {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        values.fold(Self(f64::INFINITY, 0.0), |range, v| Self(range.0.min(v), range.1.max(v)))
    }

    /// `1.7`, or `3.5 to 6.6`.
    fn millions(&self) -> String {
        let [least, most] = [self.0, self.1].map(|kiops| format!("{:.1}", kiops / 1000.0));
        if least == most { least } else { format!("{least} to {most}") }
    }
}
