//! Waiting flows by network port, and the selection between ports.

use super::FlowState;
use super::calendar_queue::CalendarQueue;
use super::in_flight::{DevicePort, InFlightView, NETWORK_PORTS};

/// Keys closer than this many commands count as equal. With a larger value, flows with little
/// demand wait too long behind the turns of others.
const ABOUT_EQUAL: u64 = 2;

/// Waiting flows by port.
#[derive(Debug, Default)]
pub(super) struct PortQueues {
    queues: [CalendarQueue; NETWORK_PORTS as usize],
    /// Paths above this index never had a flow. If all flows share one port, only this one has any.
    last: usize,
}

impl PortQueues {
    /// Returns the queue of the flows that are in and use this port.
    #[inline]
    pub(super) fn queue(&mut self, device_port: DevicePort) -> &mut CalendarQueue {
        &mut self.queues[device_port.network_port()]
    }

    /// Returns whether any flow is in.
    pub(super) fn has_several_ports(&self) -> bool {
        self.queues[..=self.last].iter().any(|queue| !queue.is_empty())
    }

    /// Records that a port has a flow.
    pub(super) fn open(&mut self, device_port: DevicePort) {
        self.last = self.last.max(device_port.network_port());
    }

    /// Returns the next flow: see [`ResidenceFairQueue`](super::ResidenceFairQueue). `charge` is
    /// the charge of a command.
    #[inline(always)]
    pub(super) fn first(
        &mut self,
        charge: u64,
        in_flight_view: &InFlightView,
        flows: &mut [FlowState],
    ) -> Option<u32> {
        // Checked in each branch: the result of the first one then needs no extra word.
        Some(if in_flight_view.is_one_way() {
            self.queues[self.last % usize::from(NETWORK_PORTS)].top(flows)?
        } else {
            self.first_of_some(charge, in_flight_view, flows)?
        })
    }

    #[inline(never)]
    fn first_of_some(
        &mut self,
        charge: u64,
        in_flight_view: &InFlightView,
        flows: &mut [FlowState],
    ) -> Option<u32> {
        let mut lowest = u64::MAX;
        // Tops of the used ports; an empty port has a key beyond all others.
        let mut tops = [(u64::MAX, 0); NETWORK_PORTS as usize];
        for (queue, top) in self.queues[..=self.last].iter_mut().zip(&mut tops) {
            if let Some(flow) = queue.top(flows) {
                *top = (flows[flow as usize].sort_key, flow);
                lowest = lowest.min(top.0);
            }
        }
        let end = lowest.saturating_add((ABOUT_EQUAL * charge).max(1));
        let (mut least, mut chosen) = ((u64::MAX, u64::MAX), None);
        for (network_port, &(sort_key, flow)) in tops[..=self.last].iter().enumerate() {
            let load = (in_flight_view.on_network_port(network_port), sort_key);
            if sort_key < end && load < least {
                (least, chosen) = (load, Some((network_port, flow)));
            }
        }
        let (network_port, top) = chosen?;
        Some(self.queues[network_port].least_loaded_from(top, end, in_flight_view, flows))
    }
}
