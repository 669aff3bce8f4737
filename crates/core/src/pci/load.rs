//! Bandwidth demand below root complexes and ports, compared with their capacity.
//!
//! Bandwidths are of data, in GB/s: a link's after its encoding, minus the packets' overhead
//! ([`Link::payload_gb_per_s`](super::Link::payload_gb_per_s)).
//!
//! A port's capacity is that of its link, which sysfs reports. No attribute or common register
//! reports the capacity of a root complex between its ports and memory. It can be set
//! ([`Capacities::set`]). Otherwise it is *assumed*: [`MEASURED_ROOT_COMPLEX_GB_PER_S`], the result
//! of one machine with PCIe 4.0, scaled by the ratio of the fastest drive's link speed to PCIe 4.0.
//! That is a rule of thumb, and a warning based on it states this.

use std::collections::BTreeMap;
use std::fmt;

use super::address::{Address, RootComplex};
use super::function::PciFunction;
use super::interleave::order;
use super::link::Link;
use super::system::System;
use super::topology::Adapter;

/// Measured: 8 drives of 6.64 GiB/s on one root complex of a machine with PCIe 4.0 read 39.7 GiB/s
/// together.
pub const MEASURED_ROOT_COMPLEX_GB_PER_S: f64 = 39.7 * GIB / 1e9;
const GIB: f64 = 1_073_741_824.0;
/// Link speed of PCIe 4.0.
const MEASURED_MEGATRANSFERS: u32 = 16000;

/// Configured capacities of root complexes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Capacities(BTreeMap<RootComplex, f64>);

/// Load of a root complex.
#[derive(Debug, Clone, PartialEq)]
pub struct RootComplexLoad {
    /// The root complex.
    pub root_complex: RootComplex,
    /// Number of drives.
    pub drives: usize,
    /// Total bandwidth of the drives through their root ports; drives with an unknown link count as
    /// 0.
    pub demand_gb_per_s: f64,
    /// Capacity; `None` if it is neither set nor derivable from a link.
    pub capacity_gb_per_s: Option<f64>,
    /// True if the capacity is set, not assumed.
    pub is_set: bool,
}

/// A property of the machine that costs bandwidth.
#[derive(Debug, Clone, PartialEq)]
pub enum Warning {
    /// The demand on a root complex exceeds its capacity.
    RootComplex(RootComplexLoad),
    /// The demand on a port exceeds the bandwidth of its link.
    Port {
        /// The port.
        port: Address,
        /// Number of drives below it.
        drives: usize,
        /// Total bandwidth of the drives.
        demand_gb_per_s: f64,
        /// Link of the port.
        link: Link,
    },
    /// A link is slower or narrower than both ends support.
    Link {
        /// The drive.
        address: Address,
        /// Current link.
        now: Link,
        /// Best supported link.
        best: Link,
    },
    /// Members are not spread evenly.
    Uneven {
        /// Number of members on each root complex.
        counts: Vec<(RootComplex, usize)>,
        /// The same number of drives of this machine, spread better.
        better: Vec<Address>,
    },
}

impl Capacities {
    /// Sets the capacity of a root complex, in GB/s of data.
    pub fn set(&mut self, root_complex: RootComplex, gb_per_s: f64) {
        self.0.insert(root_complex, gb_per_s);
    }

    /// Returns the capacity, and true if it is set. `fastest` is the fastest link of a drive below
    /// it, in million transfers per second.
    fn of(&self, root_complex: RootComplex, fastest: Option<u32>) -> (Option<f64>, bool) {
        if let Some(set) = self.0.get(&root_complex) {
            return (Some(*set), true);
        }
        let scale = |fastest| f64::from(fastest) / f64::from(MEASURED_MEGATRANSFERS);
        (fastest.map(|fastest| MEASURED_ROOT_COMPLEX_GB_PER_S * scale(fastest)), false)
    }
}

/// Returns the load of each root complex with drives, by address.
#[must_use]
pub fn loads(
    system: &System,
    functions: &[PciFunction],
    capacities: &Capacities,
) -> Vec<RootComplexLoad> {
    let mut by_root: BTreeMap<RootComplex, Vec<&PciFunction>> = BTreeMap::new();
    for function in functions {
        by_root.entry(function.place.root_complex).or_default().push(function);
    }
    let load = |(root_complex, drives): (RootComplex, Vec<&PciFunction>)| {
        let fastest = drives.iter().filter_map(|drive| drive.links.best).map(|l| l.megatransfers);
        let (capacity_gb_per_s, is_set) = capacities.of(root_complex, fastest.max());
        // The drives behind a root port cannot exceed its link.
        let mut by_port: BTreeMap<Option<Address>, f64> = BTreeMap::new();
        for drive in &drives {
            *by_port.entry(drive.place.ports.first().copied()).or_default() += demand(drive);
        }
        let through = |(port, demand): (&Option<Address>, &f64)| {
            let link = port.and_then(|port| system.port_link(port));
            link.map_or(*demand, |link| demand.min(link.payload_gb_per_s()))
        };
        let demand_gb_per_s = by_port.iter().map(through).sum();
        let drives = drives.len();
        RootComplexLoad { root_complex, drives, demand_gb_per_s, capacity_gb_per_s, is_set }
    };
    by_root.into_iter().map(load).collect()
}

/// Returns warnings about the location of drives: root complexes first, then ports, then single
/// links.
#[must_use]
pub fn warnings(
    system: &System,
    functions: &[PciFunction],
    capacities: &Capacities,
) -> Vec<Warning> {
    let loads = loads(system, functions, capacities).into_iter();
    let mut all: Vec<Warning> =
        loads.filter(RootComplexLoad::is_over).map(Warning::RootComplex).collect();
    all.extend(ports(system, functions));
    all.extend(functions.iter().filter_map(|function| {
        let (now, best) = (function.links.now?, function.links.best?);
        let slower = now.gb_per_s() < best.gb_per_s();
        slower.then_some(Warning::Link { address: function.address, now, best })
    }));
    all
}

/// Returns a warning if the members of a stripe could be spread better: fewer on the root complex
/// or adapter that has most of them. `machine` lists all possible members.
#[must_use]
pub fn uneven(members: &[PciFunction], machine: &[PciFunction]) -> Option<Warning> {
    let better: Vec<PciFunction> =
        order(machine).into_iter().take(members.len()).cloned().collect();
    if better.len() < members.len() || most(&better) >= most(members) {
        return None;
    }
    let mut counts: BTreeMap<RootComplex, usize> = BTreeMap::new();
    for member in members {
        *counts.entry(member.place.root_complex).or_default() += 1;
    }
    let better = better.iter().map(|function| function.address).collect();
    Some(Warning::Uneven { counts: counts.into_iter().collect(), better })
}

impl RootComplexLoad {
    /// Returns true if the demand exceeds the capacity.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.capacity_gb_per_s.is_some_and(|capacity| self.demand_gb_per_s > capacity)
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RootComplex(load) => {
                let RootComplexLoad { root_complex, drives, demand_gb_per_s, .. } = load;
                let capacity = load.capacity_gb_per_s.unwrap_or_default();
                write!(
                    f,
                    "root complex {root_complex}: {drives} drives can do {demand_gb_per_s:.1} \
                     GB/s together, the root complex carries {capacity:.1} GB/s"
                )?;
                if load.is_set {
                    return Ok(());
                }
                write!(f, " (assumed: see docs/drives.md)")
            }
            Self::Port { port, drives, demand_gb_per_s, link } => write!(
                f,
                "port {port}: the {drives} drives below it can do {demand_gb_per_s:.1} GB/s together, its link \
                 ({link}) carries {:.1} GB/s",
                link.payload_gb_per_s()
            ),
            Self::Link { address, now, best } => write!(
                f,
                "{address}: its link runs at {now} ({:.1} GB/s) and could at {best} ({:.1} GB/s)",
                now.gb_per_s(),
                best.gb_per_s()
            ),
            Self::Uneven { counts, better } => {
                let counts: Vec<String> =
                    counts.iter().map(|(root, count)| format!("{count} on {root}")).collect();
                let better: Vec<String> = better.iter().map(Address::to_string).collect();
                write!(
                    f,
                    "members hang unevenly on the root complexes ({}); spread are: {}",
                    counts.join(", "),
                    better.join(" ")
                )
            }
        }
    }
}

/// Returns the maximum bandwidth of a drive, which is that of its link.
fn demand(function: &PciFunction) -> f64 {
    function.links.best.map_or(0.0, Link::payload_gb_per_s)
}

fn ports(system: &System, functions: &[PciFunction]) -> Vec<Warning> {
    let mut below: BTreeMap<Address, (usize, f64)> = BTreeMap::new();
    for function in functions {
        for port in &function.place.ports {
            let (drives, sum) = below.entry(*port).or_default();
            *drives += 1;
            *sum += demand(function);
        }
    }
    let over = |(port, (drives, demand_gb_per_s)): (Address, (usize, f64))| {
        let link = system.port_link(port)?;
        let is_over = drives > 1 && demand_gb_per_s > link.payload_gb_per_s();
        is_over.then_some(Warning::Port { port, drives, demand_gb_per_s, link })
    };
    below.into_iter().filter_map(over).collect()
}

/// Returns the number of members on the fullest root complex and adapter.
fn most(members: &[PciFunction]) -> (usize, usize) {
    let mut roots: BTreeMap<RootComplex, usize> = BTreeMap::new();
    let mut adapters: BTreeMap<Adapter, usize> = BTreeMap::new();
    for member in members {
        *roots.entry(member.place.root_complex).or_default() += 1;
        *adapters.entry(member.place.adapter()).or_default() += 1;
    }
    let most = |counts: &mut dyn Iterator<Item = usize>| counts.max().unwrap_or(0);
    (most(&mut roots.into_values()), most(&mut adapters.into_values()))
}
