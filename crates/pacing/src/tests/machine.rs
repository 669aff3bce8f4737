//! Several cores that share a budget, driven in one thread in any order, with a model beside them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::policy::CreditConfig;
use crate::{
    BufferCredit, Cost, FlowConfig, FlowId, Outcome, Pacer, PacerConfig, Permit, Policy,
    SharedCredit,
};

/// One core: a pacer and what a reactor would keep beside it.
pub(super) struct Core {
    pub(super) pacer: Pacer,
    pub(super) flows: Vec<FlowId>,
    pub(super) running: VecDeque<(u64, Permit)>,
    pub(super) woken: Arc<AtomicBool>,
    /// Waiting data commands as (flow, token, bytes), in no order.
    pub(super) waiting: Vec<(FlowId, u64, u32)>,
    /// Commands started so far.
    pub(super) started: u64,
}

/// Cores over one shared budget.
pub(super) struct Machine {
    pub(super) cores: Vec<Core>,
    pub(super) shared: Arc<SharedCredit>,
    pub(super) now: u64,
    next_token: u64,
    /// How often each token came out of the machine.
    pub(super) fate: BTreeMap<u64, u32>,
}

impl Machine {
    pub(super) fn new(cores: usize, flows: usize, budget: u64, largest: u32) -> Self {
        let shared = BufferCredit::shared(CreditConfig { budget, largest, cores }).unwrap();
        let cores = (0..cores)
            .map(|core| {
                let woken = Arc::new(AtomicBool::new(false));
                let flag = Arc::clone(&woken);
                let waker = Arc::new(move || flag.store(true, Ordering::Relaxed));
                let policy: Box<dyn Policy> = Box::new(shared.core(core, waker));
                let mut pacer = Pacer::new(vec![policy], PacerConfig::default());
                let flows = (0..flows).map(|_| pacer.add_flow(FlowConfig::weight(1))).collect();
                Core {
                    pacer,
                    flows,
                    running: VecDeque::new(),
                    woken,
                    waiting: Vec::new(),
                    started: 0,
                }
            })
            .collect();
        Self { cores, shared, now: 0, next_token: 0, fate: BTreeMap::new() }
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

    /// One turn of a core: everything that may start starts. Yields how many did.
    pub(super) fn turn(&mut self, at: usize) -> usize {
        self.now += 1;
        let core = &mut self.cores[at];
        core.woken.store(false, Ordering::Relaxed);
        let mut started = 0;
        while let Some((token, permit)) = core.pacer.next(self.now) {
            let found = core.waiting.iter().position(|w| w.1 == token).expect("it waited");
            let (flow, _, bytes) = core.waiting.swap_remove(found);
            assert_eq!(permit.flow(), flow);
            assert_eq!(permit.cost(), Cost { bytes });
            *self.fate.get_mut(&token).unwrap() += 1;
            core.running.push_back((token, permit));
            core.started += 1;
            started += 1;
        }
        started
    }

    /// Ends one running command of a core, without the turn that has to follow.
    pub(super) fn end_one(&mut self, core: usize, which: usize) -> bool {
        let core = &mut self.cores[core];
        if core.running.is_empty() {
            return false;
        }
        let (_, permit) = core.running.remove(which % core.running.len()).unwrap();
        core.pacer.release(permit, Outcome::Completed, self.now);
        true
    }

    /// Ends one command and runs the turns that follow: the core's own and those of woken cores.
    pub(super) fn finish_one(&mut self, core: usize, which: usize) -> bool {
        if !self.end_one(core, which) {
            return false;
        }
        self.turn(core);
        self.run_woken();
        true
    }

    /// Runs turns of woken cores, and of no others, until none is woken.
    pub(super) fn run_woken(&mut self) {
        while let Some(core) = self.cores.iter().position(|core| core.woken.load(Ordering::Relaxed))
        {
            self.turn(core);
        }
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

    /// Removes a flow, checks what it hands back, and adds another in its place.
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

    /// What must hold at any moment.
    pub(super) fn check(&self) {
        let mut over_floor = 0;
        for core in &self.cores {
            let bytes = || core.running.iter().map(|(_, permit)| u64::from(permit.cost().bytes));
            let in_flight: u64 = bytes().sum();
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
            over_floor += in_flight - bytes().max().unwrap_or(0);
        }
        assert!(
            over_floor <= self.shared.budget(),
            "in flight beyond one I/O a core: {over_floor}, budget {}",
            self.shared.budget()
        );
    }

    /// What must hold when no core has a turn to run: whoever waits cannot start.
    pub(super) fn check_settled(&self) {
        let mut least_wanted = u64::MAX;
        let mut most_wanted = 0;
        for core in &self.cores {
            assert!(!core.woken.load(Ordering::Relaxed));
            for &(_, _, bytes) in &core.waiting {
                assert_ne!(bytes, 0, "a command without data waits");
                least_wanted = least_wanted.min(u64::from(bytes));
                most_wanted = most_wanted.max(u64::from(bytes));
            }
            let holds = core.running.iter().any(|(_, permit)| permit.cost().bytes > 0);
            assert!(core.waiting.is_empty() || holds, "a core that holds nothing must start one");
        }
        if most_wanted > 0 {
            assert!(
                self.shared.unused() < most_wanted,
                "{} bytes unused while {least_wanted}..={most_wanted} are wanted",
                self.shared.unused()
            );
        }
    }

    /// Ends everything, core by core, and checks that all came out once and all credit is back.
    pub(super) fn drain(&mut self) {
        for core in 0..self.cores.len() {
            self.turn(core);
        }
        self.run_woken();
        loop {
            let mut any = false;
            for core in 0..self.cores.len() {
                any |= self.finish_one(core, 0);
                self.check();
                self.check_settled();
            }
            if !any {
                break;
            }
        }
        for core in &self.cores {
            assert_eq!(core.pacer.waiting(), 0);
            assert_eq!(core.pacer.outstanding(), 0);
        }
        assert_eq!(self.shared.unused(), self.shared.budget(), "credit was lost or made");
        assert!(self.fate.values().all(|times| *times == 1), "each command comes out once");
    }
}

/// A failed assertion that returns early must show itself, not the permits it leaves behind.
impl Drop for Machine {
    fn drop(&mut self) {
        for core in &mut self.cores {
            core.running.drain(..).for_each(|(_, permit)| std::mem::forget(permit));
        }
    }
}
