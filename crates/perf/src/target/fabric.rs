//! A controller over a fabric, and its queues, which successive loads share.

use anyhow::Result;
use nvmeof_initiator::{
    ConnectOptions, Controller, Endpoint, Error, IoQueue, MAX_QUEUE_DEPTH, NamespaceInfo,
};
use nvmeof_wire::nqn::DISCOVERY_NQN;

use super::{DeviceIdentity, TargetNeeds, TargetSpace};
use crate::plan::usage_error;
use crate::units::NamespaceList;

/// I/O queues requested of a controller; it grants the number that it has.
const ASK_QUEUES: u16 = 1024;

#[derive(Debug)]
pub(super) struct FabricTarget {
    controller: Controller,
    /// Queues without a job; the deepest last.
    idle: Vec<IoQueue>,
    opened: usize,
    /// Depth of the queue opened last.
    depth: u16,
    needs: TargetNeeds,
    /// Maximum number of loaded spaces.
    spaces: usize,
    is_lost: bool,
}

/// Options for as many queues as possible.
pub(super) fn options(options: ConnectOptions) -> ConnectOptions {
    let depth = u16::try_from(MAX_QUEUE_DEPTH).unwrap_or(u16::MAX);
    ConnectOptions { queues: ASK_QUEUES, depth, ..options }
}

impl FabricTarget {
    pub(super) fn connect(
        endpoint: &Endpoint,
        options: &ConnectOptions,
        needs: &TargetNeeds,
    ) -> Result<Self> {
        let controller = Controller::connect(endpoint, options)?;
        let needs = *needs;
        let idle = Vec::new();
        Ok(Self { controller, idle, opened: 0, depth: 0, needs, spaces: 1, is_lost: false })
    }

    /// Returns its namespaces, or those of the list, for device number `device`.
    pub(super) fn spaces(
        &mut self,
        device: usize,
        list: Option<&NamespaceList>,
    ) -> Result<Vec<TargetSpace>> {
        let subnqn = self.controller.endpoint().subnqn.as_str();
        usage_error!(
            subnqn == DISCOVERY_NQN,
            "{subnqn} is the discovery service, which has no namespaces; `nvmeof-perf discover` \
             lists its subsystems"
        );
        let all = self.controller.namespaces();
        usage_error!(all.is_empty(), "{subnqn} has no namespaces for this host");
        let absent = list.iter().flat_map(|list| &list.0);
        let absent = absent.copied().find(|nsid| all.iter().all(|known| known.nsid != *nsid));
        if let Some(nsid) = absent {
            let have: Vec<_> = all.iter().map(|namespace| namespace.nsid.to_string()).collect();
            let have = have.join(", ");
            usage_error!(true, "{subnqn} has no namespace {nsid} for this host; it has {have}");
        }
        let chosen = all.iter().filter(|ns| list.is_none_or(|list| list.0.contains(&ns.nsid)));
        let spaces: Vec<_> = chosen.map(|namespace| self.space(device, namespace)).collect();
        self.spaces = spaces.len();
        Ok(spaces)
    }

    fn space(&self, device: usize, namespace: &NamespaceInfo) -> TargetSpace {
        let (endpoint, info) = (self.controller.endpoint(), self.controller.info());
        TargetSpace {
            device,
            connect: endpoint.to_string(),
            subnqn: Some(endpoint.subnqn.as_str().to_owned()),
            nsid: namespace.nsid,
            block_size: namespace.block_size,
            size: namespace.size(),
            metadata: namespace.metadata,
            max_transfer: info.max_transfer,
            read_only: namespace.read_only,
            deallocate: info.deallocate,
            identity: DeviceIdentity {
                kind: match endpoint.address.fabric {
                    nvmeof_initiator::Fabric::Tcp => "tcp",
                    nvmeof_initiator::Fabric::Rdma => "rdma",
                },
                model: info.model.clone(),
                serial: info.serial.clone(),
                firmware: info.firmware.clone(),
            },
        }
    }

    /// Returns for each of `jobs` threads the queues that its outstanding I/Os require.
    ///
    /// It takes idle queues first, then opens new ones.
    pub(super) fn queues(&mut self, jobs: u16, wanted: usize) -> Result<Vec<Vec<IoQueue>>> {
        let mut all: Vec<Vec<IoQueue>> = (0..jobs).map(|_| Vec::new()).collect();
        for at in 0..all.len() {
            let mut held = 0;
            while held < wanted {
                match self.queue(jobs, wanted, wanted - held) {
                    Ok(queue) => {
                        held += self.holds(&queue);
                        all[at].push(queue);
                    }
                    Err(error) => {
                        all.into_iter().flatten().for_each(|queue| self.give_back(queue));
                        return Err(error);
                    }
                }
            }
        }
        Ok(all)
    }

    /// Number of I/Os that a queue counts for.
    ///
    /// A queue of N entries holds N - 1 commands. If one entry is all that is missing, one I/O
    /// waits here, and no second queue is connected.
    fn holds(&self, queue: &IoQueue) -> usize {
        let depth = queue.depth();
        usize::from(depth) + usize::from(depth >= self.controller.queue_depth())
    }

    /// Returns one more queue for a job that still lacks room for `left` I/Os.
    fn queue(&mut self, jobs: u16, wanted: usize, left: usize) -> Result<IoQueue> {
        if let Some(queue) = self.idle.pop() {
            return Ok(queue);
        }
        let most = usize::from(self.controller.queue_depth());
        let granted = usize::from(self.controller.info().queues);
        let needed = wanted.div_ceil(most + 1) * usize::from(jobs);
        usage_error!(
            needed > granted || self.opened >= granted,
            "{} grants {granted} I/O queues of {most} commands, but {jobs} jobs with {wanted} I/Os outstanding each \
             need {}; lower --jobs or --qd, or raise the target's io-queues or queue-depth",
            self.controller.endpoint(),
            needed.max(self.opened + 1)
        );
        // As deep as the deepest later load requires, so that this load can reuse the queue.
        let streams = if self.needs.shared { 1 } else { self.spaces };
        let later = (self.needs.depth as usize * streams).max(left);
        let depth = later.div_ceil(later.div_ceil(most + 1));
        let queue = self.controller.open_queue_of(u16::try_from(depth).unwrap_or(u16::MAX))?;
        self.opened += 1;
        self.depth = queue.depth();
        Ok(queue)
    }

    pub(super) fn give_back(&mut self, queue: IoQueue) {
        self.idle.push(queue);
        self.idle.sort_by_key(IoQueue::depth);
    }

    /// Queues connected, and the depth of the last one.
    pub(super) fn opened(&self) -> (usize, u16) {
        (self.opened, self.depth)
    }

    /// Keeps the connection alive; to be called often. Returns an error once after the connection
    /// is lost.
    pub(super) fn keep_alive(&mut self) -> Result<(), Error> {
        if self.is_lost {
            return Ok(());
        }
        let polled = self.controller.poll();
        self.is_lost = polled.is_err();
        polled
    }

    pub(super) fn disconnect(self) -> Result<(), Error> {
        drop(self.idle);
        self.controller.disconnect()
    }
}
