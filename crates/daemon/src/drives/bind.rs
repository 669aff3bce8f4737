//! Binds drives to `vfio-pci` and returns them to the kernel.

use std::collections::BTreeSet;
use std::time::Duration;

use nvmeof_core::pci::{Address, BindError, BindPlan, NVME_DRIVER, PciFunction, VFIO_DRIVER};

use super::inventory::DriveInventory;
use super::{Failure, Host, Output};

/// Arguments of `drives bind` and `drives unbind`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  nvmeof-tgt drives bind 0000:61:00.0 0000:62:00.0\n  \
    nvmeof-tgt drives unbind S4YPNE0R800123\n\n\
    Either all drives that are named can be handed over, or nothing is done. It lasts until the machine restarts.\n\
    Exit status: 0 done (or was so already), 1 refused or failed, 2 the command line is wrong.")]
pub struct Args {
    /// PCI addresses or serial numbers
    #[arg(required = true, value_name = "ADDR|SERIAL")]
    pub(super) drives: Vec<String>,
    /// Print the sysfs writes without making them
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Maximum wait for programs that have a drive open, as udev briefly opens new ones
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(super) wait: u16,
}

/// Interval between checks whether programs have closed a drive.
const PAUSE: Duration = Duration::from_millis(250);

/// Refusal to bind or unbind drives.
struct Refused {
    why: Failure,
    /// True if every reason may be transient.
    may_pass: bool,
}

/// Reasons that block drives, one line each.
#[derive(Default)]
struct Reasons {
    lines: Vec<String>,
    /// True if one of them is permanent.
    stays: bool,
}

pub(super) fn bind(host: &Host, args: &Args, output: &mut Output<'_>) -> Result<(), Failure> {
    rebind(host, args, output, VFIO_DRIVER, |inventory, function, along| {
        BindPlan::bind(&host.system, &inventory.usage, function, along)
    })
}

pub(super) fn unbind(host: &Host, args: &Args, output: &mut Output<'_>) -> Result<(), Failure> {
    rebind(host, args, output, NVME_DRIVER, |inventory, function, _| {
        BindPlan::unbind(&host.system, &inventory.usage, function)
    })
}

fn rebind(
    host: &Host,
    args: &Args,
    output: &mut Output<'_>,
    driver: &str,
    plan: impl Fn(&DriveInventory, &PciFunction, &[Address]) -> Result<BindPlan, BindError>,
) -> Result<(), Failure> {
    if !args.dry_run && !host.system.sys.join("bus/pci/drivers").join(driver).is_dir() {
        (host.load)(driver);
    }
    let mut pauses = u128::from(args.wait) * 1000 / PAUSE.as_millis();
    let mut done = BTreeSet::new();
    loop {
        let plans = plan_all(host, args, output, driver, &plan, &done);
        match plans.and_then(|plans| run_all(host, args, output, &plans, &mut done)) {
            Err(Refused { may_pass: true, .. }) if pauses > 0 => {
                pauses -= 1;
                (host.pause)(PAUSE);
            }
            result => return result.map_err(|refused| refused.why),
        }
    }
}

/// Plans the steps for all named drives; fails if one is refused. `done` lists drives of earlier
/// attempts.
fn plan_all(
    host: &Host,
    args: &Args,
    output: &mut Output<'_>,
    driver: &str,
    plan: impl Fn(&DriveInventory, &PciFunction, &[Address]) -> Result<BindPlan, BindError>,
    done: &BTreeSet<Address>,
) -> Result<Vec<BindPlan>, Refused> {
    let (inventory, functions) = find(host, &args.drives)?;
    let addresses: Vec<Address> = functions.iter().map(|function| function.address).collect();
    let mut plans = Vec::new();
    let mut refused = Reasons::default();
    for function in &functions {
        match plan(&inventory, function, &addresses) {
            Ok(plan) => plans.push(plan),
            Err(error) => refused.add(&error),
        }
    }
    if driver == VFIO_DRIVER && inventory.usage.is_partial() {
        let taken = plans.iter().filter(|plan| takes(plan)).map(|plan| plan.function.address);
        let unseen: Vec<String> = taken.map(unseen).collect();
        if args.dry_run {
            unseen.iter().try_for_each(|line| writeln!(output.notes, "note: {line}"))?;
        } else {
            refused.stays |= !unseen.is_empty();
            refused.lines.extend(unseen);
        }
    }
    refused.unless_none(if done.is_empty() {
        "nothing was done"
    } else {
        "the others are done"
    })?;
    Ok(plans)
}

/// Runs the plans that are not in `done`, and adds each to it, so that each is reported once.
fn run_all(
    host: &Host,
    args: &Args,
    output: &mut Output<'_>,
    plans: &[BindPlan],
    done: &mut BTreeSet<Address>,
) -> Result<(), Refused> {
    let mut failed = Reasons::default();
    for plan in plans {
        let BindPlan { function, driver, steps } = plan;
        let address = function.address;
        if done.contains(&address) {
            continue;
        }
        if args.dry_run && !steps.is_empty() {
            steps.iter().try_for_each(|step| writeln!(output.out, "{step}"))?;
            continue;
        }
        if let Err(error) = plan.run(&host.system, host.writes.as_ref()) {
            failed.add(&error);
            continue;
        }
        done.insert(address);
        let was = function.driver.as_deref().unwrap_or("no driver");
        if steps.is_empty() {
            writeln!(output.out, "{address}: bound to {driver} already")?;
        } else {
            writeln!(output.out, "{address}: {was} -> {driver}")?;
        }
    }
    failed.unless_none("the others, if any, are done")
}

impl Reasons {
    fn add(&mut self, error: &BindError) {
        self.stays |= !error.may_pass();
        self.lines.push(error.to_string());
    }

    /// Returns an error that ends with the work done despite it, unless there are no reasons.
    fn unless_none(self, end: &str) -> Result<(), Refused> {
        if self.lines.is_empty() {
            return Ok(());
        }
        Err(Refused { why: refusal(&self.lines, end), may_pass: !self.stays })
    }
}

impl<E: Into<Failure>> From<E> for Refused {
    /// Converts an error that is unrelated to the users of a drive.
    fn from(why: E) -> Self {
        Self { why: why.into(), may_pass: false }
    }
}

/// Returns true if another process can open the drive before the plan runs.
fn takes(plan: &BindPlan) -> bool {
    plan.function.driver.as_deref() != Some(VFIO_DRIVER)
}

fn unseen(address: Address) -> String {
    format!(
        "{address} may be in use: the open files of some programs are not visible; run the \
         command as root, with the /proc of the machine"
    )
}

/// Finds the named functions, each once.
///
/// Drives on `vfio-pci` are queried only if a serial number may be theirs.
fn find(host: &Host, names: &[String]) -> Result<(DriveInventory, Vec<PciFunction>), Failure> {
    let mut inventory = DriveInventory::read(host, false)?;
    let known =
        |inventory: &DriveInventory| names.iter().all(|name| inventory.find(host, name).is_ok());
    if !known(&inventory) {
        inventory = DriveInventory::read(host, true)?;
    }
    let mut functions: Vec<PciFunction> = Vec::new();
    let mut unknown = Vec::new();
    for name in names {
        match inventory.find(host, name) {
            Ok(function) if functions.iter().any(|f| f.address == function.address) => {}
            Ok(function) => functions.push(function),
            Err(why) => unknown.push(why),
        }
    }
    if unknown.is_empty() {
        Ok((inventory, functions))
    } else {
        Err(refusal(&unknown, "nothing was done"))
    }
}

fn refusal(lines: &[String], end: &str) -> Failure {
    Failure::Failed(anyhow::anyhow!("{}\n{end}", lines.join("\n")))
}
