//! What hangs on a root complex or a port, against what it carries.
//!
//! Bandwidths are of data, in GB/s: a link's after its encoding, less the packets' overhead
//! ([`Link::payload_gb_per_s`](super::Link::payload_gb_per_s)).
//!
//! A port's capacity is its link's, which sysfs tells. What a root complex carries between its ports and memory is told by
//! nothing: no attribute, no register that all have. It can be set ([`Capacities::set`]). Otherwise it is *assumed*:
//! [`MEASURED_ROOT_COMPLEX_GB_PER_S`], which is what one machine with PCIe 4.0 gave, times how much faster or slower
//! than PCIe 4.0 the fastest drive's link is. That is a rule of thumb; a warning by it says so.

use std::collections::BTreeMap;
use std::fmt;

use super::address::{Address, RootComplex};
use super::function::PciFunction;
use super::link::Link;
use super::order::order;
use super::system::System;
use super::topology::Adapter;

/// Measured: eight drives of 6.64 GiB/s on one root complex of a machine with PCIe 4.0 read 39.7 GiB/s together.
pub const MEASURED_ROOT_COMPLEX_GB_PER_S: f64 = 39.7 * GIB / 1e9;
const GIB: f64 = 1_073_741_824.0;
/// Of PCIe 4.0.
const MEASURED_MEGATRANSFERS: u32 = 16000;

/// What root complexes carry, as far as somebody has said so.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Capacities(BTreeMap<RootComplex, f64>);

/// What hangs on a root complex.
#[derive(Debug, Clone, PartialEq)]
pub struct RootComplexLoad {
    /// Which.
    pub root_complex: RootComplex,
    /// Drives.
    pub drives: usize,
    /// What they can do together through their root ports; drives whose link is not known do not count.
    pub demand_gb_per_s: f64,
    /// What it carries; none if nothing is set and no link is known.
    pub capacity_gb_per_s: Option<f64>,
    /// Whether that has been set, and is not assumed.
    pub is_set: bool,
}

/// Something about the machine that costs bandwidth.
#[derive(Debug, Clone, PartialEq)]
pub enum Warning {
    /// More hangs on a root complex than it carries.
    RootComplex(RootComplexLoad),
    /// More hangs on a port than its link carries.
    Port {
        /// The port.
        port: Address,
        /// Drives below it.
        drives: usize,
        /// What they can do together.
        demand_gb_per_s: f64,
        /// Its link.
        link: Link,
    },
    /// A link is slower or narrower than both its ends can do.
    Link {
        /// The drive.
        address: Address,
        /// As it is.
        now: Link,
        /// As it could be.
        best: Link,
    },
    /// Members are not spread as they could be.
    Uneven {
        /// Members on each root complex.
        counts: Vec<(RootComplex, usize)>,
        /// As many drives of this machine that are spread.
        better: Vec<Address>,
    },
}

impl Capacities {
    /// Says what a root complex carries, in GB/s of data.
    pub fn set(&mut self, root_complex: RootComplex, gb_per_s: f64) {
        self.0.insert(root_complex, gb_per_s);
    }

    /// What it carries, and whether that has been set. `fastest` is the fastest link of a drive below it, in
    /// millions of transfers a second.
    fn of(&self, root_complex: RootComplex, fastest: Option<u32>) -> (Option<f64>, bool) {
        if let Some(set) = self.0.get(&root_complex) {
            return (Some(*set), true);
        }
        let scale = |fastest| f64::from(fastest) / f64::from(MEASURED_MEGATRANSFERS);
        (fastest.map(|fastest| MEASURED_ROOT_COMPLEX_GB_PER_S * scale(fastest)), false)
    }
}

/// What hangs on each root complex that has drives, by address.
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
        // What is behind a root port is no more than its link.
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

/// What is wrong with where drives hang: root complexes first, then ports, then single links.
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

/// Whether the members of a stripe could be spread better: fewer on the root complex, or on the adapter, that has most
/// of them. `machine` is all drives that could be members.
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
    /// Whether more hangs on it than it carries.
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
                    "root complex {root_complex}: its {drives} drives can do {demand_gb_per_s:.1} GB/s together, \
                     it carries {capacity:.1} GB/s"
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

/// What a drive can do: its link, no more.
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

/// Members on the root complex, and on the adapter, that has most.
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
