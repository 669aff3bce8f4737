//! An operator that removes objects and restores them.
//!
//! The operator makes one change after the other, as the control plane does.

use nvmeof_history::WriteId;
use nvmeof_nvmf::Quiesce;
use tokio::sync::oneshot;

use super::host::Host;
use super::site::{SECOND, Site};

/// As for hosts: a removal that takes longer hangs.
const PATIENCE: u64 = 60 * SECOND;

/// Object of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// A host, by force.
    Host(u32),
    /// A disk's namespace, and perhaps its device.
    Namespace { disk: usize, with_device: bool },
    /// The subsystem.
    Subsystem,
    /// A host's controller or queue, by its connection.
    Connection { host: u32, qid: u16 },
}

enum Stage {
    Idle,
    /// The removal runs. The operator is notified when it is complete.
    Removing {
        what: What,
        awaited: Awaited,
        since: u64,
    },
    /// The operator was notified, and restores the object at this time.
    Removed {
        what: What,
        until: u64,
    },
}

/// Conditions for the notification of the operator.
#[derive(Default)]
struct Awaited {
    controllers: Vec<Quiesce>,
    /// Replies of reactors.
    answers: Vec<oneshot::Receiver<()>>,
    /// Writes that have ended by then.
    writes: Vec<WriteId>,
}

pub(super) struct Operator {
    stage: Stage,
}

impl Operator {
    pub(super) fn new() -> Self {
        Self { stage: Stage::Idle }
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Idle)
    }

    /// Does the work that is due, and random actions if it `acts`.
    pub(super) fn step(&mut self, site: &mut Site, hosts: &mut [Host], acts: bool) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Idle if acts && site.dice.chance(50_000) => begin(site, hosts),
            Stage::Removing { what, mut awaited, since } => {
                assert!(site.now - since < PATIENCE, "{what:?} is not removed");
                if awaited.is_over() {
                    told(site, hosts, what, &awaited.writes)
                } else {
                    Stage::Removing { what, awaited, since }
                }
            }
            Stage::Removed { what, until } if until <= site.now && can_give_back(hosts, what) => {
                give_back(site, what);
                Stage::Idle
            }
            other => other,
        };
    }
}

impl Awaited {
    fn is_over(&mut self) -> bool {
        self.answers.retain_mut(|answer| answer.try_recv().is_err());
        self.answers.is_empty() && self.controllers.iter().all(Quiesce::is_quiet)
    }
}

fn begin(site: &mut Site, hosts: &[Host]) -> Stage {
    let what = match site.dice.within(0..10) {
        0..4 => What::Host(u32::try_from(site.dice.index(hosts.len())).expect("a few hosts")),
        4..7 => {
            let disk = site.dice.index(site.disks.len());
            What::Namespace { disk, with_device: site.dice.coin() }
        }
        7 => What::Subsystem,
        _ => return dismiss(site, hosts),
    };
    match what {
        What::Host(host) => drop(site.fenced.insert(host)),
        What::Namespace { disk, .. } => site.disks[disk].is_served = false,
        What::Subsystem => site.is_served = false,
        What::Connection { .. } => {}
    }
    let changes = site.apply();
    let mut answers = site.settle(changes.retired);
    if let What::Namespace { disk, with_device: true } = what {
        answers.extend(site.close(disk));
    }
    let awaited = Awaited { controllers: changes.quiescing, answers, ..Awaited::default() };
    Stage::Removing { what, awaited, since: site.now }
}

fn dismiss(site: &mut Site, hosts: &[Host]) -> Stage {
    let connections = site.connections();
    if connections.is_empty() {
        return Stage::Idle;
    }
    let (id, info) = &connections[site.dice.index(connections.len())];
    let host = hosts.iter().find(|host| *host.name() == info.hostnqn).expect("one of the hosts");
    let writes = host.unsettled_of(info.qid, info.cntlid);
    let Some(quiesce) = site.dismiss(*id) else { return Stage::Idle };
    let controllers = quiesce.into_iter().collect();
    let awaited = Awaited { controllers, writes, ..Awaited::default() };
    let what = What::Connection { host: host.number, qid: info.qid };
    Stage::Removing { what, awaited, since: site.now }
}

/// Records that the affected hosts have no write in flight any more.
fn told(site: &mut Site, hosts: &mut [Host], what: What, writes: &[WriteId]) -> Stage {
    for write in writes {
        site.history.settle(*write, "connection removed");
    }
    for host in hosts {
        match what {
            What::Host(number) if number != host.number => {}
            What::Host(_) => host.was_fenced(site, "host removed", None),
            What::Subsystem => host.was_fenced(site, "subsystem removed", None),
            What::Namespace { disk, with_device } => {
                let number = site.disks[disk].number;
                let event = if with_device { "device removed" } else { "namespace removed" };
                host.was_fenced(site, event, Some(number));
                // Commands that were sent and not read yet must be refused before this namespace
                // exists again.
                host.mark(site, number);
            }
            What::Connection { .. } => {}
        }
    }
    Stage::Removed { what, until: site.now + site.dice.within(0..SECOND) }
}

fn can_give_back(hosts: &[Host], what: What) -> bool {
    !matches!(what, What::Namespace { .. }) || !hosts.iter().any(Host::is_marked)
}

fn give_back(site: &mut Site, what: What) {
    match what {
        What::Host(host) => drop(site.fenced.remove(&host)),
        What::Namespace { disk, with_device } => {
            if with_device {
                site.open(disk);
            }
            site.disks[disk].is_served = true;
        }
        What::Subsystem => site.is_served = true,
        What::Connection { .. } => return,
    }
    site.given_back_at = site.now;
    site.apply();
}
