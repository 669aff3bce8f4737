//! Fault injection.

use std::collections::BTreeMap;
use std::sync::Arc;

use nvmeof_verbs::{ConnectionEvent, SendOp, SendWr};

use crate::completions::LoopbackCompletions;
use crate::device::LoopbackDevice;
use crate::fabric::Fabric;
use crate::queue_pair::{Failure, Phase};
use crate::state::State;

/// Injects faults. `endpoint` is an endpoint's [number](nvmeof_verbs::Endpoint::number). `nth`
/// counts the operations of the fault from the call on: 0 is the next. Each fault happens once.
#[derive(Clone, Debug)]
pub struct Faults {
    fabric: Fabric,
}

/// Queue of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The send queue.
    Send,
    /// Receives, own or shared.
    Receive,
}

/// Fault of one work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkFault {
    NotReady(u64),
    RemoteAccess,
    Unreachable,
    Break,
}

/// Operation at which a planned fault happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FaultPoint {
    WorkCompletion(Side),
    SendWr,
    PostSend,
    PostReceive,
    /// `left` is in nanoseconds.
    LastWqe,
    EarlyLastReceive,
    Register,
    Open,
    Ready,
    Destroy,
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    left: u64,
    work: Option<WorkFault>,
    taken: usize,
}

/// Planned faults, by endpoint or device.
#[derive(Debug, Default)]
pub(crate) struct FaultTable {
    plans: BTreeMap<(u32, FaultPoint), Vec<Plan>>,
}

impl Faults {
    pub(crate) fn new(fabric: &Fabric) -> Self {
        Self { fabric: fabric.clone() }
    }

    /// Drops the nth completion of this queue of the endpoint; its work is executed.
    pub fn lose_completion(&self, endpoint: u32, side: Side, nth: u64) {
        self.plan(endpoint, FaultPoint::WorkCompletion(side), nth, None, 0);
    }

    /// Makes the nth posted SEND find no receive for `rounds` rounds, regardless of the peer's
    /// receives.
    pub fn not_ready(&self, endpoint: u32, nth: u64, rounds: u32) {
        let fault = WorkFault::NotReady(u64::from(rounds));
        self.plan(endpoint, FaultPoint::SendWr, nth, Some(fault), 0);
    }

    /// Makes the peer reject the access of the nth RDMA READ, RDMA WRITE or SEND with invalidation.
    pub fn remote_access(&self, endpoint: u32, nth: u64) {
        self.plan(endpoint, FaultPoint::SendWr, nth, Some(WorkFault::RemoteAccess), 0);
    }

    /// Drops the acknowledgment of the nth work request of the send queue. The request may be
    /// executed.
    pub fn unreachable(&self, endpoint: u32, nth: u64) {
        self.plan(endpoint, FaultPoint::SendWr, nth, Some(WorkFault::Unreachable), 0);
    }

    /// Fails the queue pair at the nth work request of the send queue. Earlier ones succeed, it and
    /// later ones are flushed, and [`ConnectionEvent::QueuePairError`] reports the failure.
    pub fn break_at(&self, endpoint: u32, nth: u64) {
        self.plan(endpoint, FaultPoint::SendWr, nth, Some(WorkFault::Break), 0);
    }

    /// Rejects the nth posted chain after `taken` work requests.
    pub fn refuse_send(&self, endpoint: u32, nth: u64, taken: usize) {
        self.plan(endpoint, FaultPoint::PostSend, nth, None, taken);
    }

    /// Rejects the nth receive posted to the endpoint's own queue.
    pub fn refuse_receive(&self, endpoint: u32, nth: u64) {
        self.plan(endpoint, FaultPoint::PostReceive, nth, None, 0);
    }

    /// Suppresses the report that the endpoint takes no more shared receives.
    pub fn lose_last_receive(&self, endpoint: u32) {
        self.delay_last_receive(endpoint, u64::MAX);
    }

    /// Delays that report by `late` nanoseconds.
    pub fn delay_last_receive(&self, endpoint: u32, late: u64) {
        self.plan(endpoint, FaultPoint::LastWqe, late, None, 0);
    }

    /// Sends that report as soon as the queue pair fails, before all receives it took have
    /// completed.
    pub fn hurry_last_receive(&self, endpoint: u32) {
        self.plan(endpoint, FaultPoint::EarlyLastReceive, 0, None, 0);
    }

    /// Fails the nth registration for lack of locked memory.
    pub fn refuse_register(&self, device: &LoopbackDevice, nth: u64) {
        self.plan(device.number, FaultPoint::Register, nth, None, 0);
    }

    /// Fails the creation of the nth queue pair.
    pub fn refuse_open(&self, device: &LoopbackDevice, nth: u64) {
        self.plan(device.number, FaultPoint::Open, nth, None, 0);
    }

    /// Drops the ready-to-use message (RTU) of this endpoint, which requested its connection, and
    /// all repetitions of it.
    pub fn lose_ready(&self, endpoint: u32) {
        self.plan(endpoint, FaultPoint::Ready, 0, None, 0);
    }

    /// Fails [destroying](nvmeof_verbs::Endpoint::destroy) the queue pair for `tries` attempts.
    /// Dropping it works.
    pub fn refuse_destroy(&self, endpoint: u32, tries: usize) {
        (0..tries).for_each(|_| self.plan(endpoint, FaultPoint::Destroy, 0, None, 0));
    }

    /// Breaks the completion queue and all its queue pairs now.
    pub fn break_completions(&self, completions: &LoopbackCompletions) {
        self.fabric.lock().break_completions(completions.number);
    }

    /// Fails the queue pair now.
    pub fn queue_pair_error(&self, endpoint: u32) {
        self.fabric.lock().fail(endpoint, Failure::Told);
    }

    /// Reports to the endpoint that its address has moved. Its work continues.
    pub fn address_changed(&self, endpoint: u32) {
        if let Some(queue_pair) = self.fabric.lock().queue_pairs.get_mut(&endpoint) {
            queue_pair.tell(ConnectionEvent::AddressChanged);
        }
    }

    /// Removes the device. Its endpoints get an event, and the device no longer completes, responds
    /// or listens. Peers notice it as they notice a pulled cable.
    pub fn remove_device(&self, device: &Arc<LoopbackDevice>) {
        self.fabric.lock().remove_device(device.number);
    }

    fn plan(&self, scope: u32, point: FaultPoint, nth: u64, work: Option<WorkFault>, taken: usize) {
        let plan = Plan { left: nth, work, taken };
        self.fabric.lock().faults.plans.entry((scope, point)).or_default().push(plan);
    }
}

impl FaultTable {
    pub(crate) fn lose_completion(&mut self, endpoint: u32, is_send: bool) -> bool {
        let side = if is_send { Side::Send } else { Side::Receive };
        self.count(endpoint, FaultPoint::WorkCompletion(side), |_| true).is_some()
    }

    /// Returns the fault of a work request that is being posted.
    pub(crate) fn take_work(&mut self, endpoint: u32, work: &SendWr) -> Option<WorkFault> {
        let sends = matches!(work.operation, SendOp::Send | SendOp::SendInvalidate { .. });
        let keyed = !matches!(work.operation, SendOp::Send);
        let concerns = |plan: &Plan| match plan.work {
            Some(WorkFault::NotReady(_)) => sends,
            Some(WorkFault::RemoteAccess) => keyed,
            _ => true,
        };
        self.count(endpoint, FaultPoint::SendWr, concerns).and_then(|plan| plan.work)
    }

    /// Returns the number of work requests of a chain to accept, if not all.
    pub(crate) fn refuse_send(&mut self, endpoint: u32) -> Option<usize> {
        self.count(endpoint, FaultPoint::PostSend, |_| true).map(|plan| plan.taken)
    }

    pub(crate) fn refuse_receive(&mut self, endpoint: u32) -> bool {
        self.count(endpoint, FaultPoint::PostReceive, |_| true).is_some()
    }

    /// Returns the delay of the report that no more shared receives are taken, if one is planned.
    pub(crate) fn hold_last_receive(&mut self, endpoint: u32) -> Option<u64> {
        let plans = self.plans.remove(&(endpoint, FaultPoint::LastWqe))?;
        plans.first().map(|plan| plan.left)
    }

    pub(crate) fn hurry_last_receive(&mut self, endpoint: u32) -> bool {
        self.count(endpoint, FaultPoint::EarlyLastReceive, |_| true).is_some()
    }

    pub(crate) fn refuse_register(&mut self, device: u32) -> bool {
        self.count(device, FaultPoint::Register, |_| true).is_some()
    }

    pub(crate) fn refuse_open(&mut self, device: u32) -> bool {
        self.count(device, FaultPoint::Open, |_| true).is_some()
    }

    pub(crate) fn lose_ready(&mut self, endpoint: u32) -> bool {
        self.count(endpoint, FaultPoint::Ready, |_| true).is_some()
    }

    pub(crate) fn refuse_destroy(&mut self, endpoint: u32) -> bool {
        self.count(endpoint, FaultPoint::Destroy, |_| true).is_some()
    }

    /// Removes the planned faults of an endpoint.
    pub(crate) fn forget(&mut self, endpoint: u32) {
        self.plans.retain(|(scope, _), _| *scope != endpoint);
    }

    /// Counts one operation for every plan that it concerns, and takes the first plan that is due.
    fn count(
        &mut self,
        scope: u32,
        point: FaultPoint,
        concerns: impl Fn(&Plan) -> bool,
    ) -> Option<Plan> {
        let plans = self.plans.get_mut(&(scope, point))?;
        let due = plans.iter().position(|plan| plan.left == 0 && concerns(plan));
        let due = due.map(|index| plans.remove(index));
        for plan in plans.iter_mut().filter(|plan| concerns(plan)) {
            plan.left = plan.left.saturating_sub(1);
        }
        if plans.is_empty() {
            self.plans.remove(&(scope, point));
        }
        due
    }
}

impl State {
    fn remove_device(&mut self, number: u32) {
        let Some(device) = self.devices.get_mut(&number) else { return };
        if std::mem::replace(&mut device.removed, true) {
            return;
        }
        for queue_pair in self.queue_pairs.values_mut().filter(|pair| pair.device == number) {
            queue_pair.phase = Phase::Error;
            queue_pair.epoch = queue_pair.epoch.wrapping_add(1);
            queue_pair.tell(ConnectionEvent::DeviceRemoved);
        }
        let queues = self.completion_queues.iter().filter(|(_, queue)| queue.device == number);
        for queue in queues.map(|(queue, _)| *queue).collect::<Vec<_>>() {
            self.break_completions(queue);
        }
        self.wake_senders(|peer| peer.device == number);
    }
}
