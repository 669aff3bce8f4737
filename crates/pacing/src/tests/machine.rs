//! Several cores under one policy, driven by one thread in any order, and checked against a model.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    CommandOutcome, Cost, FlowConfig, FlowId, Nanos, Pacer, PacerConfig, Permit, PolicyConfig,
    SharedCredit, SharedPolicy, Waker,
};

/// Largest I/O of every machine here, in bytes.
pub(super) const LARGEST: u32 = 256 << 10;

/// One core: a pacer and the state of a reactor.
pub(super) struct CoreHandle {
    pub(super) pacer: Pacer,
    pub(super) flows: Vec<FlowId>,
    pub(super) running: VecDeque<Running>,
    pub(super) woken: Arc<AtomicBool>,
    /// Waiting commands as (flow, token, bytes), in no order.
    pub(super) waiting: Vec<(FlowId, u64, u32)>,
    /// Commands started so far.
    pub(super) started: u64,
    turned_at: Nanos,
    /// The policy epoch in force here; another one takes effect in this core's next turn.
    policy_epoch: usize,
}

/// A command in flight.
pub(super) struct Running {
    pub(super) token: u64,
    pub(super) permit: Permit,
    policy_epoch: usize,
    /// Its policy had a budget when it started.
    is_bounded: bool,
    /// Number of commands started before it.
    scheduler: u64,
}

/// A policy that is or was in force.
struct Era {
    config: PolicyConfig,
    shared: SharedPolicy,
    /// The budget at the last check, and the cores that had a turn since it changed.
    budget: Option<u64>,
    turned: Vec<bool>,
    /// The most bytes that may be in flight, in addition to one I/O per core.
    ceiling: u64,
    /// The part of these for small commands outside the budget, by the largest budget since none of
    /// them was in flight.
    small: u64,
}

/// Cores over one shared policy.
pub(super) struct PacedMachine {
    pub(super) cores: Vec<CoreHandle>,
    pub(super) now: Nanos,
    eras: Vec<Era>,
    next_token: u64,
    started: u64,
    /// Number of times that each token ended, by token.
    pub(super) fate: BTreeMap<u64, u32>,
}

impl Era {
    /// The adaptive policy starts with a budget: without one it has nothing to keep.
    fn new(config: &PolicyConfig, cores: usize) -> Self {
        let machine = crate::PacedMachine { cores, largest: LARGEST };
        let shared = SharedPolicy::new(config, machine).unwrap();
        shared.bound(Some(1 << 20), 0);
        let budget = shared.status().budget;
        let turned = vec![true; cores];
        Self {
            config: config.clone(),
            shared,
            budget,
            turned,
            ceiling: budget.unwrap_or(u64::MAX),
            small: 0,
        }
    }

    /// Checks that a lower budget is kept once every core had a turn, after the bytes in flight
    /// were released.
    fn watch(&mut self, over_floor: u64) {
        let budget = self.shared.status().budget;
        if budget != self.budget {
            self.budget = budget;
            self.turned.fill(false);
        }
        let Some(budget) = budget else {
            self.ceiling = u64::MAX;
            return;
        };
        if self.turned.iter().all(|turned| *turned) {
            self.ceiling = self.ceiling.min(budget.max(over_floor));
        }
        self.ceiling = self.ceiling.max(budget);
        // Small commands have a separate part of the budget if the policy has a bypass. They keep
        // grants from a larger budget.
        if over_floor == 0 {
            self.small = 0;
        }
        if matches!(self.config, PolicyConfig::Adaptive) && self.ceiling < u64::MAX {
            self.small = self.small.max(self.ceiling / 16);
        }
        assert!(
            over_floor <= self.ceiling.saturating_add(self.small),
            "in flight beyond one I/O a core: {over_floor}, budget {budget}, was {} ({:?})",
            self.ceiling,
            self.config
        );
    }

    fn is_rate(&self) -> bool {
        matches!(self.config, PolicyConfig::TokenBucket(_))
    }
}

impl PacedMachine {
    pub(super) fn new(config: &PolicyConfig, cores: usize, flows: usize) -> Self {
        let policy_epoch = Era::new(config, cores);
        let core = |core| {
            let woken = Arc::new(AtomicBool::new(false));
            let parts = policy_epoch.shared.parts(core, waker(&woken));
            let mut pacer = Pacer::with_parts(parts, PacerConfig::default());
            let on = |flow: usize| FlowConfig {
                network_port: u16::from(flow % 2 == 1),
                ..FlowConfig::weight(1)
            };
            let flows = (0..flows).map(|flow| pacer.add_flow(on(flow))).collect();
            CoreHandle {
                pacer,
                flows,
                running: VecDeque::new(),
                woken,
                waiting: Vec::new(),
                started: 0,
                turned_at: Nanos::MAX,
                policy_epoch: 0,
            }
        };
        let cores = (0..cores).map(core).collect();
        Self {
            cores,
            now: 1,
            eras: vec![policy_epoch],
            next_token: 0,
            started: 0,
            fate: BTreeMap::new(),
        }
    }

    /// Returns the shared state of the last policy.
    pub(super) fn shared(&self) -> &SharedPolicy {
        &self.eras.last().expect("there is one").shared
    }

    /// Returns the budget of the last policy, if it has one.
    pub(super) fn credit(&self) -> Option<Arc<SharedCredit>> {
        self.shared().credit().cloned()
    }

    /// Changes the policy from every core's next turn on.
    pub(super) fn swap(&mut self, config: &PolicyConfig) {
        self.eras.push(Era::new(config, self.cores.len()));
    }

    /// Changes the budget. The adaptive policy has none at times.
    pub(super) fn resize(&mut self, budget: u64, core: usize) {
        let bound = (!budget.is_multiple_of(4)).then_some(budget);
        if self.shared().bound(bound, core) {
            return;
        }
        if let Some(credit) = self.credit() {
            credit.resize(budget, core);
        }
    }

    pub(super) fn enqueue(&mut self, core: usize, flow: usize, bytes: u32) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        let core = &mut self.cores[core];
        let flow = core.flows[flow % core.flows.len()];
        core.pacer.enqueue(flow, Cost { bytes }, token).unwrap();
        core.waiting.push((flow, token, bytes));
        self.fate.insert(token, 0);
        token
    }

    /// Runs one turn of a core, which starts every command that may start. Returns the number.
    pub(super) fn turn(&mut self, at: usize) -> usize {
        self.put_in_force(at);
        let core = &mut self.cores[at];
        let after = self.now.saturating_sub(std::mem::replace(&mut core.turned_at, self.now));
        core.pacer.on_turn(self.now, after);
        let mut started = 0;
        while self.start_one(at).is_some() {
            started += 1;
        }
        let core = &self.cores[at];
        assert!(core.pacer.next_wakeup().is_none_or(|when| when > self.now), "it is time already");
        self.eras[core.policy_epoch].turned[at] = true;
        started
    }

    /// Starts one command, if one may start; the turn continues.
    pub(super) fn start_one(&mut self, at: usize) -> Option<u64> {
        let core = &mut self.cores[at];
        core.woken.store(false, Ordering::Relaxed);
        let (token, permit) = core.pacer.next(self.now)?;
        let found = core.waiting.iter().position(|w| w.1 == token).expect("it waited");
        let (flow, _, bytes) = core.waiting.swap_remove(found);
        assert_eq!(permit.flow(), flow);
        assert_eq!(permit.cost(), Cost { bytes });
        *self.fate.get_mut(&token).unwrap() += 1;
        core.running.push_back(Running {
            token,
            permit,
            policy_epoch: core.policy_epoch,
            is_bounded: self.eras[core.policy_epoch].shared.status().budget.is_some(),
            scheduler: self.started,
        });
        self.started += 1;
        core.started += 1;
        Some(token)
    }

    fn put_in_force(&mut self, at: usize) {
        let (newest, core) = (self.eras.len() - 1, &mut self.cores[at]);
        if core.policy_epoch < newest {
            core.policy_epoch = newest;
            let parts = self.eras[newest].shared.parts(at, waker(&core.woken));
            core.pacer.replace(parts).expect("all that waits fits every policy");
        }
    }

    /// Ends one running command of a core, without the turn that has to follow.
    pub(super) fn end_one(&mut self, core: usize, which: usize) -> bool {
        self.end_as(core, which, CommandOutcome::Completed)
    }

    pub(super) fn end_as(&mut self, core: usize, which: usize, outcome: CommandOutcome) -> bool {
        let core = &mut self.cores[core];
        if core.running.is_empty() {
            return false;
        }
        let Running { token, mut permit, .. } =
            core.running.remove(which % core.running.len()).unwrap();
        if token % 3 > 0 {
            permit.device_done(self.now.saturating_sub(token % 1000));
        }
        core.pacer.release(permit, outcome, self.now);
        true
    }

    /// Ends one command and runs the turns that follow: that of the core, and those of other cores
    /// that were woken or are due.
    pub(super) fn finish_one(&mut self, core: usize, which: usize) -> bool {
        if !self.end_one(core, which) {
            return false;
        }
        self.turn(core);
        self.run_ready();
        true
    }

    /// Returns the core with the oldest command in flight, if there is one.
    pub(super) fn oldest(&self) -> Option<usize> {
        let first = |core: &usize| self.cores[*core].running.front().map(|r| r.scheduler);
        (0..self.cores.len()).filter(|core| first(core).is_some()).min_by_key(first)
    }

    /// Runs turns of cores that were woken or are due, and of no others, until there is none.
    pub(super) fn run_ready(&mut self) {
        let now = self.now;
        let ready = |core: &CoreHandle| {
            core.woken.load(Ordering::Relaxed)
                || core.pacer.next_wakeup().is_some_and(|when| when <= now)
        };
        while let Some(core) = self.cores.iter().position(ready) {
            self.turn(core);
        }
    }

    /// Advances time to the next wake-up of a core; false if there is none.
    pub(super) fn pass_time(&mut self) -> bool {
        let passes = self.skip_time();
        self.run_ready();
        passes
    }

    /// As above, without the turns.
    pub(super) fn skip_time(&mut self) -> bool {
        let next = self.cores.iter().filter_map(|core| core.pacer.next_wakeup()).min();
        self.now = self.now.max(next.unwrap_or(0));
        next.is_some()
    }

    pub(super) fn cancel(&mut self, at: usize, which: usize) -> bool {
        let core = &mut self.cores[at];
        if core.waiting.is_empty() {
            return false;
        }
        let which = which % core.waiting.len();
        let (flow, token, _) = core.waiting.swap_remove(which);
        assert!(core.pacer.cancel(flow, token));
        assert!(!core.pacer.cancel(flow, token), "a second cancel finds nothing");
        *self.fate.get_mut(&token).unwrap() += 1;
        true
    }

    /// Removes a flow, checks the returned commands, and adds another one.
    pub(super) fn replace_flow(&mut self, at: usize, which: usize) {
        let core = &mut self.cores[at];
        let which = which % core.flows.len();
        let flow = core.flows[which];
        let mut back = core.pacer.remove_flow(flow);
        back.sort_unstable();
        let mut expected: Vec<u64> =
            core.waiting.iter().filter(|w| w.0 == flow).map(|w| w.1).collect();
        expected.sort_unstable();
        assert_eq!(back, expected);
        core.waiting.retain(|w| w.0 != flow);
        for token in back {
            *self.fate.get_mut(&token).unwrap() += 1;
        }
        core.flows[which] = core.pacer.add_flow(FlowConfig::weight(1));
        assert_ne!(core.flows[which], flow);
    }

    /// Checks the invariants that always hold.
    pub(super) fn check(&mut self) {
        let mut over_floor = vec![0; self.eras.len()];
        for core in &self.cores {
            let bytes = |running: &Running| u64::from(running.permit.cost().bytes);
            let in_flight: u64 = core.running.iter().map(bytes).sum();
            let counts = core.pacer.counts();
            assert_eq!(counts.bytes_in_flight, in_flight);
            assert_eq!(core.pacer.outstanding(), core.running.len());
            assert_eq!(core.pacer.waiting(), core.waiting.len());
            assert_eq!(
                counts.enqueued,
                counts.cancelled
                    + counts.released
                    + (core.running.len() + core.waiting.len()) as u64
            );
            for (policy_epoch, over_floor) in over_floor.iter_mut().enumerate() {
                let counts = |r: &&Running| r.policy_epoch == policy_epoch && r.is_bounded;
                let of_era = || core.running.iter().filter(counts).map(bytes);
                *over_floor += of_era().sum::<u64>() - of_era().max().unwrap_or(0);
            }
        }
        for (policy_epoch, over_floor) in self.eras.iter_mut().zip(over_floor) {
            policy_epoch.watch(over_floor);
        }
    }

    /// Checks the invariants when no core has a turn to run: no waiting command can start.
    pub(super) fn check_settled(&self) {
        let policy_epoch = self.eras.last().expect("there is one");
        let mut least_wanted = u64::MAX;
        let mut most_wanted = 0;
        for core in &self.cores {
            assert!(!core.woken.load(Ordering::Relaxed));
            assert_eq!(
                core.policy_epoch,
                self.eras.len() - 1,
                "every core had a turn since the change"
            );
            let waits_for_time = core.pacer.next_wakeup().is_some();
            assert!(!waits_for_time || policy_epoch.is_rate());
            for &(_, _, bytes) in &core.waiting {
                assert_ne!(bytes, 0, "a command without data waits");
                if !waits_for_time {
                    least_wanted = least_wanted.min(u64::from(bytes));
                    most_wanted = most_wanted.max(u64::from(bytes));
                }
            }
            let holds = core.running.iter().any(|running| {
                running.permit.cost().bytes > 0 && running.policy_epoch == core.policy_epoch
            });
            assert!(
                core.waiting.is_empty() || holds || waits_for_time,
                "a core that holds nothing must start one ({:?})",
                policy_epoch.config
            );
        }
        if most_wanted > 0 {
            let credit =
                policy_epoch.shared.credit().expect("it waits for a release of what is bounded");
            assert!(
                credit.unused() < most_wanted,
                "{} bytes unused while {least_wanted}..={most_wanted} are wanted ({:?})",
                credit.unused(),
                policy_epoch.config
            );
        }
    }

    /// Ends everything, core by core, and checks that every command ended once and all credit is
    /// returned.
    pub(super) fn drain(&mut self) {
        for core in 0..self.cores.len() {
            self.turn(core);
        }
        self.run_ready();
        loop {
            let mut any = false;
            for core in 0..self.cores.len() {
                any |= self.finish_one(core, 0);
                self.check();
                self.check_settled();
            }
            if !any && !self.pass_time() {
                break;
            }
        }
        for core in &self.cores {
            assert_eq!(core.pacer.waiting(), 0);
            assert_eq!(core.pacer.outstanding(), 0);
        }
        for policy_epoch in &self.eras {
            if let Some(credit) = policy_epoch.shared.credit() {
                assert_eq!(
                    credit.unused(),
                    credit.budget(),
                    "lost or made: {:?}",
                    policy_epoch.config
                );
            }
        }
        assert!(self.fate.values().all(|times| *times == 1), "each command comes out once");
    }
}

fn waker(woken: &Arc<AtomicBool>) -> Waker {
    let flag = Arc::clone(woken);
    Arc::new(move || flag.store(true, Ordering::Relaxed))
}

/// A failed assertion that returns early must be visible, and not the permits that it leaks.
impl Drop for PacedMachine {
    fn drop(&mut self) {
        for core in &mut self.cores {
            core.running.drain(..).for_each(|running| std::mem::forget(running.permit));
        }
    }
}
