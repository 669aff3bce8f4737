//! Measures one row: opens the drives for the engine, reads, closes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nvmeof_console::complain;
use nvmeof_core::block::{Direct, StripeDevice};
use nvmeof_core::dma::{CHUNK, ChunkPool, PoolConfig};
use nvmeof_core::nvme_driver::function::Function;
use nvmeof_core::vfio;
use nvmeof_engines::{Engine, OpenedDevice, ReadSource, open_with, sector_size};
use nvmeof_report::engines::{EngineFigures, EngineRow, ReadLayout, RowOutcome};

use super::EnginesArgs;
use super::md::{BuiltArray, MdArray, Mdadm, RunMdadm, run_mdadm};
use super::planned_rows::PlannedRow;
use super::rebind::DriveRebinder;
use crate::load::{LoadResult, LoadSpec};
use crate::machine;
use crate::open_files::allow_files;
use crate::patience::Patience;
use crate::target::{DeviceIdentity, Target};
use crate::units::IoMix;

/// File descriptors needed in addition to those of queues.
const OTHER_FILES: u64 = 64;
/// Descriptors of a queue of an asynchronous engine: the drive, its ring, and the one that watches
/// it.
const FILES_A_QUEUE: u64 = 3;

/// Takes a PCI function from the system.
type BoxedOpenFunction<'a> = Box<dyn Fn(&str) -> Result<Arc<dyn Function>, String> + 'a>;

/// Measures rows, and holds everything that a row requires.
pub(super) struct RowMeasurer<'a> {
    args: &'a EnginesArgs,
    /// Ends a load: set by signals and by failures within a load.
    stop: Arc<AtomicBool>,
    /// Set by signals alone.
    asked: Arc<AtomicBool>,
    /// Takes PCI functions from the system.
    pub(super) open_function: BoxedOpenFunction<'a>,
    /// Rebinds drives, if requested.
    pub(super) rebinder: DriveRebinder,
    /// Assembles and stops arrays.
    pub(super) mdadm: RunMdadm<'a>,
    /// Maximum wait for an array, and for its users.
    pub(super) patience: Patience,
    /// The array that was assembled for the current rows.
    built: Option<BuiltArray>,
}

impl std::fmt::Debug for RowMeasurer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RowMeasurer").field("args", &self.args).finish_non_exhaustive()
    }
}

/// Threads, and reads outstanding per thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ThreadShape {
    threads: u16,
    depth: u16,
}

impl Drop for RowMeasurer<'_> {
    fn drop(&mut self) {
        self.stop_array();
    }
}

impl<'a> RowMeasurer<'a> {
    /// Opens drives with VFIO.
    pub(super) fn new(
        args: &'a EnginesArgs,
        stop: Arc<AtomicBool>,
        asked: Arc<AtomicBool>,
    ) -> Self {
        let open_function = |address: &str| vfio::open(address).map_err(|error| error.to_string());
        Self {
            args,
            stop,
            asked,
            open_function: Box::new(open_function),
            rebinder: DriveRebinder::this(),
            mdadm: Box::new(run_mdadm),
            patience: Patience::FOR_UDEV,
            built: None,
        }
    }

    /// Returns true after a signal.
    pub(super) fn is_asked_to_stop(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Measures a planned row. A row that fails at every concurrency has concurrency 0.
    pub(super) fn measure(&mut self, planned: &PlannedRow) -> EngineRow {
        let row = |concurrency, outcome, note| EngineRow {
            lba_bytes: planned.lba_bytes,
            layout: planned.layout,
            drives: planned.drives.iter().map(|(name, _)| name.clone()).collect(),
            engine: planned.engine.name().to_owned(),
            concurrency,
            outcome,
            note,
        };
        if planned.layout != ReadLayout::MdRaid0 {
            self.stop_array();
        }
        let shape = self.shape(planned);
        let (target, note) = match self.open(planned, shape) {
            Ok(opened) => opened,
            Err(why) => return row(0, RowOutcome::Unable(why), None),
        };
        let concurrency = u32::from(planned.concurrency);
        // A failure in the previous row does not end this one.
        self.stop.store(self.is_asked_to_stop(), Ordering::Relaxed);
        match self.read(planned, shape, target) {
            Ok((figures, problem)) => {
                let notes: Vec<String> = note.into_iter().chain(problem).collect();
                let note = (!notes.is_empty()).then(|| notes.join("; "));
                row(concurrency, RowOutcome::Measured(figures), note)
            }
            Err(why) => row(concurrency, RowOutcome::Unable(why), note),
        }
    }

    /// One thread per read for synchronous engines; for others the requested threads, with equal
    /// depth.
    fn shape(&self, planned: &PlannedRow) -> ThreadShape {
        let concurrency = planned.concurrency;
        if planned.engine.is_synchronous() {
            return ThreadShape { threads: concurrency, depth: 1 };
        }
        let wanted = self
            .args
            .jobs
            .unwrap_or_else(|| u16::try_from(machine::cpus()).unwrap_or(u16::MAX).min(1024));
        // Every thread has the same depth.
        let fits = |threads: &u16| concurrency.is_multiple_of(*threads);
        let threads = (1..=wanted.min(concurrency)).rev().find(fits).unwrap_or(1);
        ThreadShape { threads, depth: concurrency / threads }
    }

    /// Opens the drives, or returns the reason for the failure.
    fn open(
        &mut self,
        planned: &PlannedRow,
        shape: ThreadShape,
    ) -> Result<(Target, Option<String>), String> {
        let pool =
            pool(shape, self.args.bs).map_err(|error| format!("memory for reads: {error}"))?;
        let mut target = Target::on(Arc::clone(&pool));
        let (mut notes, mut devices) = (Vec::new(), Vec::new());
        let array = match planned.layout {
            ReadLayout::MdRaid0 => Some(self.array(planned)?),
            _ => None,
        };
        notes.extend(array.as_ref().map(|array| array.1.clone()));
        let opened = array.as_ref().map_or(&planned.drives[..], |array| &array.0);
        for (name, source) in opened {
            let (depth, queues) = (usize::from(shape.depth), usize::from(shape.threads));
            let opened =
                open_with(planned.engine, source, depth, queues, &pool, &*self.open_function);
            let OpenedDevice { device, note } = opened.map_err(|error| error.to_string())?;
            if let Some(note) = note.filter(|note| !notes.contains(note)) {
                notes.push(note);
            }
            devices.push((name.clone(), device));
        }
        if planned.layout == ReadLayout::Stripe {
            if devices.len() < 2 {
                return Err("a stripe takes two drives or more".to_owned());
            }
            let members = devices.into_iter().map(|(_, device)| device).collect();
            let stripe = StripeDevice::new("stripe", members, self.args.chunk)
                .map_err(|error| error.to_string())?;
            devices = vec![("stripe".to_owned(), Arc::new(stripe))];
        }
        for (name, device) in devices {
            target.push_local(
                name,
                device,
                DeviceIdentity { kind: "engine", ..DeviceIdentity::default() },
            );
        }
        Ok((target, (!notes.is_empty()).then(|| notes.join("; "))))
    }

    /// The array of the drives to open, and a remark on it; assembled if that is requested.
    fn array(
        &mut self,
        planned: &PlannedRow,
    ) -> Result<(Vec<(String, ReadSource)>, String), String> {
        if planned.engine == Engine::Vfio {
            return Err("an MD array is the kernel's: the VFIO driver reads drives".to_owned());
        }
        let system = self.rebinder.system();
        let names = planned.drives.iter().map(|(name, source)| {
            let node = match source {
                ReadSource::Path { path, .. } => system.node_name(&path.display().to_string()),
                ReadSource::Drive { .. } => None,
            };
            node.ok_or_else(|| format!("{name} is no block device: MD takes block devices"))
        });
        let names: Vec<String> = names.collect::<Result<_, _>>()?;
        let array = match self.built.as_ref().filter(|built| built.is_of(&names)) {
            Some(built) => built.array.clone(),
            None => {
                if let Some(array) = MdArray::find(system, &names)? {
                    return Ok((array_source(&array)?, array.note()));
                }
                self.build(&names)?
            }
        };
        Ok((array_source(&array)?, format!("{}, assembled for this comparison", array.note())))
    }

    /// Assembles an array of these drives, if that is requested.
    fn build(&mut self, names: &[String]) -> Result<MdArray, String> {
        if !self.args.build_md {
            let why = "no MD RAID-0 consists of these drives: --build-md assembles one for this \
                       comparison, without writing to them";
            return Err(why.to_owned());
        }
        self.stop_array();
        let built = BuiltArray::build(&self.machine(), names, self.args.chunk)?;
        let array = built.array.clone();
        self.built = Some(built);
        Ok(array)
    }

    fn machine(&self) -> Mdadm<'_> {
        Mdadm { system: self.rebinder.system(), run: &self.mdadm, patience: self.patience }
    }

    /// Stops the array that was assembled, if any.
    pub(super) fn stop_array(&mut self) {
        let Some(built) = self.built.take() else { return };
        if let Err(problem) = built.stop(&self.machine()) {
            complain!("error: {problem}");
        }
    }

    /// Returns the figures and the first problem.
    fn read(
        &self,
        planned: &PlannedRow,
        shape: ThreadShape,
        mut target: Target,
    ) -> Result<(EngineFigures, Option<String>), String> {
        let spaces = target.spaces().len();
        // One thread per space; with fewer threads than drives, each thread reads all drives in
        // turn.
        let dealt = shape.depth == 1 && usize::from(shape.threads) >= spaces;
        let queues = if dealt { 1 } else { spaces } as u64 * u64::from(shape.threads);
        let queues = match planned.layout {
            ReadLayout::Stripe => planned.drives.len() as u64 * u64::from(shape.threads),
            ReadLayout::Single | ReadLayout::Individual | ReadLayout::MdRaid0 => queues,
        };
        let files = if planned.engine.is_synchronous() { queues } else { queues * FILES_A_QUEUE };
        allow_files(files + OTHER_FILES)
            .map_err(|why| format!("{why}, or use fewer reads at once"))?;
        let spec = LoadSpec {
            qd: shape.depth.into(),
            shared: !dealt,
            dealt,
            sleeps: planned.engine.sleeps(),
            jobs: shape.threads,
            ramp: self.args.ramp,
            time: self.args.time,
            ios: self.args.ios,
            seed: self.args.seed,
            cpus: self.args.cpus.clone(),
            ..LoadSpec::new(
                IoMix::reads(true, 100),
                u32::try_from(self.args.bs).unwrap_or(u32::MAX),
            )
        };
        let measured = target.run(&spec, &self.stop).map_err(|error| format!("{error:#}"))?;
        target.close();
        Ok((figures(&measured, shape)?, measured.messages.into_iter().next()))
    }
}

/// An array as a drive to open.
fn array_source(array: &MdArray) -> Result<Vec<(String, ReadSource)>, String> {
    let block_size = sector_size(&array.path).map_err(|error| error.to_string())?;
    let path = array.path.clone();
    let source = ReadSource::Path { path, block_size, direct: Direct::Required, shared: false };
    Ok(vec![(array.path.display().to_string(), source)])
}

#[expect(clippy::cast_precision_loss, reason = "rates and means")]
fn figures(measured: &LoadResult, shape: ThreadShape) -> Result<EngineFigures, String> {
    let reads = measured.read();
    let (ios, seconds) = (reads.ios(), measured.seconds());
    if ios == 0 || seconds <= 0.0 {
        let why = measured.messages.first().cloned();
        return Err(why.unwrap_or_else(|| {
            if measured.interrupted { "interrupted" } else { "no read was done in the time" }
                .to_owned()
        }));
    }
    let micros = |nanos: Option<u64>| nanos.unwrap_or(0) as f64 / 1e3;
    Ok(EngineFigures {
        threads: shape.threads.into(),
        depth: shape.depth.into(),
        kiops: ios as f64 / seconds / 1e3,
        mean_us: reads.latency.mean().unwrap_or(0.0) / 1e3,
        p99_us: micros(reads.latency.quantile(0.99)),
        cpu_us: measured.cpu as f64 / ios as f64 / 1e3,
        errors: measured.errors(),
        partial: measured.interrupted,
    })
}

/// Memory for the reads of all threads; each thread holds at least one chunk.
///
/// Nothing is resident before first use.
fn pool(shape: ThreadShape, bs: u64) -> Result<Arc<ChunkPool>, nvmeof_core::dma::PoolError> {
    let (threads, depth) = (usize::from(shape.threads), usize::from(shape.depth));
    let bs = usize::try_from(bs).unwrap_or(CHUNK).next_power_of_two();
    let each = (depth * bs).div_ceil(CHUNK) + 2;
    let huge_pages = threads <= machine::cpus();
    let cap = (threads + 2) * each * CHUNK;
    ChunkPool::new(PoolConfig { cap, reserve: 0, huge_pages, ..PoolConfig::default() })
}
