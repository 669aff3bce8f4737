//! The target of loads: opened once, loaded any number of times.
//!
//! ```no_run
//! let mut target = Target::open(&args, &needs)?;    // connects, or opens drives; reports failures
//! for space in target.spaces() { ... }              // spaces: names, sizes, models
//! let first = target.run(&spec, &stop)?;            // one load point
//! let second = target.run(&other_spec, &stop)?;     // on the same connections
//! target.close();
//! ```
//!
//! A target is devices with spaces on them. Queues are opened to a *device*: a controller over a
//! fabric, or a block device of this machine. I/Os go to a *space*: a namespace, or the whole of a
//! local device.

mod fabric;
mod local;
mod named;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use nvmeof_console::complain;
use nvmeof_core::block::{BlockDevice, StripeDevice};
use nvmeof_core::dma::{ChunkPool, PoolConfig};
use nvmeof_initiator::Clock;

use self::fabric::FabricTarget;
use self::local::DeviceOpener;
pub(crate) use self::local::DeviceSpec;
pub(crate) use self::named::is_same_target;
use crate::args::TargetArgs;
use crate::blank_check;
use crate::host;
use crate::load::{self, JobSource, LoadResult, LoadSpec};
use crate::plan::usage_error;

/// Maximum requirements of the later loads; opening reserves resources for them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TargetNeeds {
    /// Threads.
    pub(crate) jobs: u16,
    /// I/Os outstanding, per space and thread.
    pub(crate) depth: u32,
    /// The spaces share the I/Os: `depth` is per thread.
    pub(crate) shared: bool,
    /// Some load writes.
    ///
    /// The devices then have to be unused, and empty unless `--destroy-data` names them.
    pub(crate) writes: bool,
}

/// Open devices, and their spaces.
#[derive(Debug)]
pub(crate) struct Target {
    devices: Vec<TargetDevice>,
    spaces: Vec<TargetSpace>,
    /// Memory for the I/Os of local devices.
    pool: Arc<ChunkPool>,
    /// NQN of this host, if the target has controllers.
    hostnqn: Option<String>,
    /// Clock of the queues.
    clock: Clock,
}

/// A device to which queues are opened.
#[derive(Debug)]
enum TargetDevice {
    Fabric(Box<FabricTarget>),
    Local(Arc<dyn BlockDevice>),
}

/// A destination of I/Os.
#[derive(Debug, Clone)]
pub(crate) struct TargetSpace {
    /// Index of its device.
    pub(crate) device: usize,
    /// Name on the command line.
    pub(crate) connect: String,
    /// Subsystem, for a namespace over a fabric.
    pub(crate) subnqn: Option<String>,
    /// Namespace; 1 for a local device that has none.
    pub(crate) nsid: u32,
    /// Bytes of a logical block.
    pub(crate) block_size: u32,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Bytes of metadata per block.
    pub(crate) metadata: u16,
    /// Maximum bytes of an I/O.
    pub(crate) max_transfer: Option<u64>,
    /// The device rejects writes.
    pub(crate) read_only: bool,
    /// Blocks can be deallocated.
    pub(crate) deallocate: bool,
    /// Identity of the device.
    pub(crate) identity: DeviceIdentity,
}

/// Identity that a device reports; empty fields are unknown.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceIdentity {
    /// `tcp`, `rdma`, `file`, `block`, `nvme`, `null`, `ram` or `stripe`.
    pub(crate) kind: &'static str,
    pub(crate) model: String,
    pub(crate) serial: String,
    pub(crate) firmware: String,
}

impl std::fmt::Display for TargetSpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.subnqn {
            Some(subnqn) => write!(f, "namespace {} of {subnqn}", self.nsid),
            None => f.write_str(&self.connect),
        }
    }
}

impl Target {
    /// Connects to the targets of `--connect` and opens the devices of `--device`.
    ///
    /// # Errors
    /// [`UsageError`](crate::plan::UsageError) if the arguments do not fit the target; otherwise
    /// the failure and its place.
    pub(crate) fn open(args: &TargetArgs, needs: &TargetNeeds) -> Result<Self> {
        check_names(args)?;
        if needs.writes {
            refuse_data(args, needs)?;
        }
        let mut target = Self::empty()?;
        // After a failure, every open controller is disconnected.
        if let Err(error) = target.open_all(args, needs) {
            target.close();
            return Err(error);
        }
        Ok(target)
    }

    /// A target without devices; [`Target::push_local`] adds some.
    ///
    /// # Errors
    /// There is no memory for I/Os.
    pub(crate) fn empty() -> Result<Self> {
        Ok(Self::on(pool()?))
    }

    /// The same, with `pool` for the buffers of local devices.
    pub(crate) fn on(pool: Arc<ChunkPool>) -> Self {
        let (devices, spaces) = (Vec::new(), Vec::new());
        Self { devices, spaces, pool, hostnqn: None, clock: Clock::start() }
    }

    fn open_all(&mut self, args: &TargetArgs, needs: &TargetNeeds) -> Result<()> {
        if !args.connect.is_empty() {
            let ends = args.connect.iter().map(|endpoint| &endpoint.address);
            let options = fabric::options(host::options(&args.host, ends)?);
            self.hostnqn = Some(options.hostnqn.to_string());
            for endpoint in &args.connect {
                let mut fabric = FabricTarget::connect(endpoint, &options, needs)?;
                let spaces = fabric.spaces(self.devices.len(), args.nsid.as_ref())?;
                self.devices.push(TargetDevice::Fabric(Box::new(fabric)));
                self.spaces.extend(spaces);
            }
        }
        let mut opener = DeviceOpener::new(needs, self.pool());
        let opened: Vec<_> =
            args.device.iter().map(|spec| opener.open(spec)).collect::<Result<_>>()?;
        match args.stripe {
            Some(chunk) if !opened.is_empty() => {
                let names: Vec<_> = args.device.iter().map(ToString::to_string).collect();
                let name = format!("stripe of {}", names.join(" "));
                let members = opened.into_iter().map(|(device, _)| device).collect();
                let stripe = StripeDevice::new(&name, members, chunk).context("--stripe")?;
                let identity = DeviceIdentity { kind: "stripe", ..DeviceIdentity::default() };
                self.push_local(name, Arc::new(stripe), identity);
            }
            Some(_) => usage_error!(true, "--stripe is made of --device, and none is given"),
            None => {
                for (spec, (device, identity)) in args.device.iter().zip(opened) {
                    self.push_local(spec.to_string(), device, identity);
                }
            }
        }
        Ok(())
    }

    /// Adds a device of this machine, called `name`.
    pub(crate) fn push_local(
        &mut self,
        name: String,
        device: Arc<dyn BlockDevice>,
        identity: DeviceIdentity,
    ) {
        let info = device.info();
        self.spaces.push(TargetSpace {
            device: self.devices.len(),
            connect: name,
            subnqn: None,
            nsid: 1,
            block_size: info.block_size,
            size: info.size,
            metadata: 0,
            max_transfer: None,
            read_only: info.read_only,
            deallocate: info.deallocate,
            identity,
        });
        self.devices.push(TargetDevice::Local(device));
    }

    /// Memory for the I/Os of local devices, which a drive under the VFIO driver has to access.
    pub(crate) fn pool(&self) -> &Arc<ChunkPool> {
        &self.pool
    }

    /// The spaces that can be loaded, in the order of the arguments.
    pub(crate) fn spaces(&self) -> &[TargetSpace] {
        &self.spaces
    }

    /// Runs one load to its end, or until `stop` is set; can be called repeatedly.
    ///
    /// # Errors
    /// [`UsageError`](crate::plan::UsageError) if the load does not fit the target, or a connection
    /// that it requires fails. [`LoadResult`] reports failures during the load.
    pub(crate) fn run(&mut self, spec: &LoadSpec, stop: &Arc<AtomicBool>) -> Result<LoadResult> {
        load::run(self, spec, stop)
    }

    /// NQN of the host, if it connected to a target.
    pub(crate) fn hostnqn(&self) -> Option<&str> {
        self.hostnqn.as_deref()
    }

    /// I/O queues connected and their depth, per device.
    pub(crate) fn queues(&self) -> Vec<(usize, u16)> {
        self.devices.iter().map(TargetDevice::queues).collect()
    }

    /// Shuts connections down; failures do not affect results.
    pub(crate) fn close(self) {
        for device in self.devices {
            if let TargetDevice::Fabric(fabric) = device
                && let Err(error) = fabric.disconnect()
            {
                complain!("warning: disconnect: {error}");
            }
        }
    }
}

/// Interface for loads.
impl Target {
    /// Clock of the queues.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Opens for each of `jobs` threads a route to every loaded device.
    ///
    /// `wanted` returns the I/Os outstanding per thread on a device; a device with 0 is skipped.
    pub(crate) fn sources(
        &mut self,
        jobs: u16,
        wanted: impl Fn(usize) -> usize,
    ) -> Result<Vec<Vec<JobSource>>> {
        let mut all: Vec<Vec<JobSource>> = (0..jobs).map(|_| Vec::new()).collect();
        for (index, device) in self.devices.iter_mut().enumerate() {
            let wanted = wanted(index);
            if wanted == 0 {
                continue;
            }
            match device {
                TargetDevice::Fabric(fabric) => {
                    for (job, queues) in all.iter_mut().zip(fabric.queues(jobs, wanted)?) {
                        let ways = queues.into_iter();
                        job.extend(ways.map(|queue| JobSource::Fabric { device: index, queue }));
                    }
                }
                TargetDevice::Local(device) => {
                    for job in &mut all {
                        let device = Arc::clone(device);
                        let pool = Arc::clone(&self.pool);
                        job.push(JobSource::Local { index, device, pool });
                    }
                }
            }
        }
        Ok(all)
    }

    /// Keeps connections alive; returns an error for each that was lost.
    pub(crate) fn keep_alive(&mut self) -> Vec<String> {
        let fabrics = self.devices.iter_mut().filter_map(|device| match device {
            TargetDevice::Fabric(fabric) => fabric.keep_alive().err(),
            TargetDevice::Local(_) => None,
        });
        fabrics.map(|error| format!("admin queue: {error}")).collect()
    }

    /// Returns queues of a job for reuse.
    pub(crate) fn give_back(&mut self, queues: Vec<(usize, nvmeof_initiator::IoQueue)>) {
        for (index, queue) in queues {
            if let Some(TargetDevice::Fabric(fabric)) = self.devices.get_mut(index) {
                fabric.give_back(queue);
            }
        }
    }
}

impl TargetDevice {
    fn queues(&self) -> (usize, u16) {
        match self {
            Self::Fabric(fabric) => fabric.opened(),
            Self::Local(_) => (0, 0),
        }
    }
}

/// Rejects a `--destroy-data` without a matching device, because it may be mistyped.
fn check_names(args: &TargetArgs) -> Result<()> {
    let devices = args.device.iter().map(ToString::to_string);
    let named: Vec<_> = devices.chain(args.connect.iter().map(ToString::to_string)).collect();
    let is_named = |name: &&String| named.iter().any(|one| is_same_target(one, name));
    if let Some(unknown) = args.destroy_data.iter().find(|name| !is_named(name)) {
        usage_error!(
            true,
            "--destroy-data {unknown} is not a tested device; allowed: {}",
            named.join(", ")
        );
    }
    Ok(())
}

/// Rejects local devices that contain data, unless `--destroy-data` names them.
fn refuse_data(args: &TargetArgs, needs: &TargetNeeds) -> Result<()> {
    let looking = TargetNeeds { jobs: 1, writes: false, ..*needs };
    for spec in args.device.iter().filter(|spec| !spec.is_scratch()) {
        let name = spec.to_string();
        if args.destroys(&name) {
            continue;
        }
        let mut target = Target::empty()?;
        let (device, identity) = DeviceOpener::new(&looking, target.pool()).open(spec)?;
        target.push_local(name.clone(), device, identity);
        let space = target.spaces[0].clone();
        if let Some(at) = blank_check::first_data(&mut target, &space)? {
            usage_error!(
                true,
                "--device {name} is not empty: there is data near byte {at}, which would be lost; if that is meant, \
                 say --destroy-data {name}"
            );
        }
    }
    Ok(())
}

/// Memory for local devices: up to 1/2 of the machine's, allocated on use.
fn pool() -> Result<Arc<ChunkPool>> {
    let info = rustix::system::sysinfo();
    let (total, unit) = (info.totalram, u64::from(info.mem_unit));
    let half = usize::try_from(total.saturating_mul(unit) / 2).unwrap_or(usize::MAX);
    let most = PoolConfig::default();
    let config = PoolConfig { cap: most.cap.max(half), max_lease: nvmeof_core::dma::CHUNK, ..most };
    ChunkPool::new(config).context("memory for I/Os")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nvmeof_core::block::fault::{FaultControl, FaultDevice, FaultPlan};
    use nvmeof_core::block::{BlockError, RamDevice};

    use super::*;
    use crate::units::IoMix;

    /// A RAM device with faults on demand.
    fn faulty() -> (Target, Arc<FaultControl>) {
        let base = Arc::new(RamDevice::new("ram", 16 << 20, 4096).unwrap());
        let (device, control) = FaultDevice::new(base, FaultPlan::default());
        let mut target = Target::empty().unwrap();
        target.push_local("faulty".into(), Arc::new(device), DeviceIdentity::default());
        (target, control)
    }

    fn load(bs: u32) -> LoadSpec {
        let time = Duration::from_secs(600);
        LoadSpec { qd: 4, loops: Some(2), time, ..LoadSpec::new(IoMix::reads(false, 100), bs) }
    }

    fn run(target: &mut Target, spec: &LoadSpec) -> LoadResult {
        target.run(spec, &Arc::new(AtomicBool::new(false))).unwrap()
    }

    #[test]
    fn a_device_that_is_gone_ends_a_load_and_one_that_is_back_can_be_loaded_again() {
        let (mut target, control) = faulty();
        // One I/O of the second load is in three leases.
        for bs in [4096, 5 << 20] {
            control.remove();
            let measured = run(&mut target, &load(bs));
            assert!(measured.errors() > 0 && measured.interrupted && !measured.is_done);
            let said = measured.messages.join("; ");
            assert!(said.contains("missing"), "{said}");
            control.restore();
            let measured = run(&mut target, &load(bs));
            assert_eq!((measured.errors(), measured.is_done), (0, true), "{:?}", measured.messages);
            let bytes = (16 << 20) / u64::from(bs) * u64::from(bs) * 2;
            assert_eq!(measured.read().bytes, bytes);
        }
    }

    #[test]
    fn what_a_full_device_does_not_take_waits_and_what_fails_is_counted() {
        let (mut target, control) = faulty();
        control.reject_next(50);
        control.fail_next(BlockError::Media { errno: 5 });
        let measured = run(&mut target, &load(5 << 20));
        assert_eq!((measured.errors(), measured.is_done), (1, true), "{:?}", measured.messages);
        assert!(
            measured.messages[0].contains("read of 1280 blocks at LBA"),
            "{:?}",
            measured.messages
        );
        // Three units of 5 MiB, twice, minus the one that failed.
        assert_eq!(measured.read().ios(), 5);
    }

    #[test]
    fn what_a_space_cannot_do_is_said_before_anything_starts() {
        let (target, _control) = faulty();
        let mut target = target;
        target.spaces[0].read_only = true;
        target.spaces[0].deallocate = false;
        let mut refused = |spec: LoadSpec| {
            let error = target.run(&spec, &Arc::new(AtomicBool::new(false))).unwrap_err();
            assert!(error.is::<crate::plan::UsageError>());
            error.to_string()
        };
        let of = |mix| LoadSpec { mix, ..load(4096) };
        assert!(refused(of(IoMix::reads(true, 50))).contains("faulty is read-only"));
        assert!(refused(of(crate::units::mix("trim").unwrap())).contains("read-only"));
        assert!(refused(load(32 << 20)).contains("no I/O of 32 MiB fits"));
        assert!(refused(LoadSpec { spaces: Some(vec![1]), ..load(4096) }).contains("no space 1"));
        target.spaces[0].read_only = false;
        let error = target.run(&of(crate::units::mix("trim").unwrap()), &Arc::default());
        assert!(error.unwrap_err().to_string().contains("cannot be trimmed"));
    }
}
