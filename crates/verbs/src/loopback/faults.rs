//! What goes wrong on demand.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::completions::LoopbackCompletions;
use super::device::LoopbackDevice;
use super::fabric::Fabric;
use super::queue_pair::{Failure, Phase};
use super::state::State;
use crate::seam::ConnectionEvent;
use crate::work::{Operation, Work};

/// Has things go wrong. `endpoint` is an endpoint's [number](crate::Endpoint::number); `nth` counts what
/// the fault speaks of from the call on: 0 is the next. Each goes off once.
#[derive(Clone, Debug)]
pub struct Faults {
    fabric: Fabric,
}

/// Which queue of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The send queue.
    Send,
    /// Receives, own or shared.
    Receive,
}

/// What is wrong with one work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkFault {
    NotReady(u64),
    RemoteAccess,
    Unreachable,
    Break,
}

/// What a planned fault waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Point {
    Completion(Side),
    Work,
    PostSend,
    PostReceive,
    /// `left` is nanoseconds.
    LastReceive,
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
pub(super) struct FaultTable {
    plans: BTreeMap<(u32, Point), Vec<Plan>>,
}

impl Faults {
    pub(super) fn new(fabric: &Fabric) -> Self {
        Self { fabric: fabric.clone() }
    }

    /// The nth completion of this side of the endpoint never comes; its work is done.
    pub fn lose_completion(&self, endpoint: u32, side: Side, nth: u64) {
        self.plan(endpoint, Point::Completion(side), nth, None, 0);
    }

    /// The nth SEND that is posted finds no receive for `rounds` rounds, whatever the peer has posted.
    pub fn not_ready(&self, endpoint: u32, nth: u64, rounds: u32) {
        let fault = WorkFault::NotReady(u64::from(rounds));
        self.plan(endpoint, Point::Work, nth, Some(fault), 0);
    }

    /// The peer refuses the access of the nth RDMA READ, RDMA WRITE or SEND with invalidation.
    pub fn remote_access(&self, endpoint: u32, nth: u64) {
        self.plan(endpoint, Point::Work, nth, Some(WorkFault::RemoteAccess), 0);
    }

    /// The nth work request of the send queue is never acknowledged. It may have been carried out.
    pub fn unreachable(&self, endpoint: u32, nth: u64) {
        self.plan(endpoint, Point::Work, nth, Some(WorkFault::Unreachable), 0);
    }

    /// The queue pair fails at the nth work request of the send queue: those before it end well, it and
    /// those after it are flushed, and [`ConnectionEvent::QueuePairError`] tells.
    pub fn break_at(&self, endpoint: u32, nth: u64) {
        self.plan(endpoint, Point::Work, nth, Some(WorkFault::Break), 0);
    }

    /// The nth chain that is posted is refused after `taken` work requests.
    pub fn refuse_send(&self, endpoint: u32, nth: u64, taken: usize) {
        self.plan(endpoint, Point::PostSend, nth, None, taken);
    }

    /// The nth receive that is posted to the endpoint's own queue is refused.
    pub fn refuse_receive(&self, endpoint: u32, nth: u64) {
        self.plan(endpoint, Point::PostReceive, nth, None, 0);
    }

    /// It is never said that the endpoint, which has shared receives, takes no more of them.
    pub fn lose_last_receive(&self, endpoint: u32) {
        self.delay_last_receive(endpoint, u64::MAX);
    }

    /// That is said `late` nanoseconds after it is so.
    pub fn delay_last_receive(&self, endpoint: u32, late: u64) {
        self.plan(endpoint, Point::LastReceive, late, None, 0);
    }

    /// That is said as soon as the queue pair fails, before what it took has come back.
    pub fn hurry_last_receive(&self, endpoint: u32) {
        self.plan(endpoint, Point::EarlyLastReceive, 0, None, 0);
    }

    /// The nth registration fails for lack of locked memory.
    pub fn refuse_register(&self, device: &LoopbackDevice, nth: u64) {
        self.plan(device.number, Point::Register, nth, None, 0);
    }

    /// The nth queue pair cannot be made.
    pub fn refuse_open(&self, device: &LoopbackDevice, nth: u64) {
        self.plan(device.number, Point::Open, nth, None, 0);
    }

    /// The word of this endpoint, which asked for its connection, that the connection stands (RTU) is lost for
    /// good, as is what its connection manager would say again.
    pub fn lose_ready(&self, endpoint: u32) {
        self.plan(endpoint, Point::Ready, 0, None, 0);
    }

    /// The queue pair cannot be [taken away](crate::Endpoint::destroy) for so many tries. Dropping it works.
    pub fn refuse_destroy(&self, endpoint: u32, tries: usize) {
        (0..tries).for_each(|_| self.plan(endpoint, Point::Destroy, 0, None, 0));
    }

    /// The completion queue breaks now, and every queue pair of it.
    pub fn break_completions(&self, completions: &LoopbackCompletions) {
        self.fabric.lock().break_completions(completions.number);
    }

    /// The queue pair fails now.
    pub fn queue_pair_error(&self, endpoint: u32) {
        self.fabric.lock().fail(endpoint, Failure::Told);
    }

    /// The endpoint is told that its address is elsewhere. Its work goes on.
    pub fn address_changed(&self, endpoint: u32) {
        if let Some(queue_pair) = self.fabric.lock().queue_pairs.get_mut(&endpoint) {
            queue_pair.tell(ConnectionEvent::AddressChanged);
        }
    }

    /// The device goes away: its endpoints are told, and nothing of it completes, answers or listens any
    /// more. Peers find out as they do about a cable that was pulled.
    pub fn remove_device(&self, device: &Arc<LoopbackDevice>) {
        self.fabric.lock().remove_device(device.number);
    }

    fn plan(&self, scope: u32, point: Point, nth: u64, work: Option<WorkFault>, taken: usize) {
        let plan = Plan { left: nth, work, taken };
        self.fabric.lock().faults.plans.entry((scope, point)).or_default().push(plan);
    }
}

impl FaultTable {
    pub(super) fn lose_completion(&mut self, endpoint: u32, is_send: bool) -> bool {
        let side = if is_send { Side::Send } else { Side::Receive };
        self.count(endpoint, Point::Completion(side), |_| true).is_some()
    }

    /// What is wrong with a work request that is being posted.
    pub(super) fn take_work(&mut self, endpoint: u32, work: &Work) -> Option<WorkFault> {
        let sends = matches!(work.operation, Operation::Send | Operation::SendInvalidate { .. });
        let keyed = !matches!(work.operation, Operation::Send);
        let concerns = |plan: &Plan| match plan.work {
            Some(WorkFault::NotReady(_)) => sends,
            Some(WorkFault::RemoteAccess) => keyed,
            _ => true,
        };
        self.count(endpoint, Point::Work, concerns).and_then(|plan| plan.work)
    }

    /// How many of a chain are taken, if not all.
    pub(super) fn refuse_send(&mut self, endpoint: u32) -> Option<usize> {
        self.count(endpoint, Point::PostSend, |_| true).map(|plan| plan.taken)
    }

    pub(super) fn refuse_receive(&mut self, endpoint: u32) -> bool {
        self.count(endpoint, Point::PostReceive, |_| true).is_some()
    }

    /// How late it is said that no more shared receives are taken, if it is.
    pub(super) fn hold_last_receive(&mut self, endpoint: u32) -> Option<u64> {
        let plans = self.plans.remove(&(endpoint, Point::LastReceive))?;
        plans.first().map(|plan| plan.left)
    }

    pub(super) fn hurry_last_receive(&mut self, endpoint: u32) -> bool {
        self.count(endpoint, Point::EarlyLastReceive, |_| true).is_some()
    }

    pub(super) fn refuse_register(&mut self, device: u32) -> bool {
        self.count(device, Point::Register, |_| true).is_some()
    }

    pub(super) fn refuse_open(&mut self, device: u32) -> bool {
        self.count(device, Point::Open, |_| true).is_some()
    }

    pub(super) fn lose_ready(&mut self, endpoint: u32) -> bool {
        self.count(endpoint, Point::Ready, |_| true).is_some()
    }

    pub(super) fn refuse_destroy(&mut self, endpoint: u32) -> bool {
        self.count(endpoint, Point::Destroy, |_| true).is_some()
    }

    /// Forgets what was planned for an endpoint.
    pub(super) fn forget(&mut self, endpoint: u32) {
        self.plans.retain(|(scope, _), _| *scope != endpoint);
    }

    /// Counts one for every plan it concerns, and takes the first that was waiting for it.
    fn count(
        &mut self,
        scope: u32,
        point: Point,
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
