//! The controller: registers and their state machine (Base 3.1.3, 3.5, 3.6).
//!
//! ```text
//!                     CC.EN 1                     follows (Readiness)
//!   Disabled ---------------------------> Enabling ------------------> Ready
//!      ^                                      | CC.EN 0                  | CC.EN 0
//!      |            follows                   v                          v
//!      +--------------------------------- Disabling <-------------------+
//!
//!   Fatal (CSTS.CFS): takes no commands until disabled or reset. Gone: until plugged in again.
//! ```

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::pcie::{self, Aqa, Doorbell};
use nvmeof_wire::properties::{
    CC_AMS_ROUND_ROBIN, CC_CSS_NVM, CSTS_SHST_COMPLETE, CSTS_SHST_OCCURRING, Cc, Csts, NSSR_RESET,
    offset,
};

use crate::config::{FakeDriveConfig, Readiness};
use crate::faults::{Plan, Tamper, Violation};
use crate::features::Features;
use crate::logs::Logs;
use crate::media::Media;
use crate::memory::Space;
use crate::queues::{Cq, Sq};
use crate::work::Held;

/// Complete state of the fake, behind one lock.
#[derive(Debug)]
pub(crate) struct FakeController {
    pub(crate) config: FakeDriveConfig,
    pub(crate) space: Arc<Space>,
    pub(crate) phase: Phase,
    pub(crate) gone: bool,
    pub(crate) fatal: bool,
    cc: Cc,
    /// Requested shutdown, and its remaining delay.
    shutdown: Option<Readiness>,
    subsystem_reset: bool,
    aqa: Aqa,
    asq: u64,
    acq: u64,
    pub(crate) sqs: BTreeMap<u16, Sq>,
    pub(crate) cqs: BTreeMap<u16, Cq>,
    /// Next queue of the round robin.
    pub(crate) turn: u16,
    /// Shadow doorbells and event indices, once configured.
    pub(crate) shadow: Option<(u64, u64)>,
    pub(crate) media: Vec<Media>,
    pub(crate) features: Features,
    pub(crate) logs: Logs,
    pub(crate) held: Vec<Held>,
    pub(crate) plan: Plan,
    pub(crate) tamper: Option<Box<dyn Tamper>>,
    /// Data that replaces the result of the current command.
    pub(crate) forced: Option<Vec<u8>>,
    pub(crate) violations: Vec<Violation>,
    /// Number of commands taken, by queue and opcode.
    pub(crate) taken: BTreeMap<(u16, u8), u64>,
    /// Number of doorbell writes.
    pub(crate) doorbells: u64,
    pub(crate) interrupts: Vec<OwnedFd>,
    /// The table of interrupt vectors is set up.
    pub(crate) is_armed: bool,
}

/// State of CC.EN and CSTS.RDY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Disabled,
    Enabling(Readiness),
    Ready,
    Disabling(Readiness),
}

impl FakeController {
    pub(crate) fn new(config: FakeDriveConfig, space: Arc<Space>) -> Self {
        let media = config
            .namespaces
            .iter()
            .map(|namespace| Media::new(namespace.nsid, namespace.identify.clone(), namespace.uuid))
            .collect();
        Self {
            space,
            phase: Phase::Disabled,
            gone: false,
            fatal: false,
            cc: Cc::new(),
            shutdown: None,
            subsystem_reset: false,
            aqa: Aqa::new(),
            asq: 0,
            acq: 0,
            sqs: BTreeMap::new(),
            cqs: BTreeMap::new(),
            turn: 0,
            shadow: None,
            media,
            features: Features::new(config.io_queues),
            logs: Logs::default(),
            held: Vec::new(),
            plan: Plan::default(),
            tamper: None,
            forced: None,
            violations: Vec::new(),
            taken: BTreeMap::new(),
            doorbells: 0,
            interrupts: Vec::new(),
            is_armed: false,
            config,
        }
    }

    /// Returns true if the controller accepts commands.
    pub(crate) fn is_running(&self) -> bool {
        self.phase == Phase::Ready && !self.gone && !self.fatal && self.shutdown.is_none()
    }

    /// Returns the memory page size set in CC.
    pub(crate) fn page_size(&self) -> u64 {
        self.cc.page_size().into()
    }

    /// Returns true if CC has the entry sizes for I/O queues.
    pub(crate) fn entry_sizes_are_set(&self) -> bool {
        (self.cc.iosqes(), self.cc.iocqes()) == (6, 4)
    }

    pub(crate) fn read(&mut self, at: u32, width: u32) -> u64 {
        let ones = if width == 8 { u64::MAX } else { u32::MAX.into() };
        if self.gone {
            return ones;
        }
        if !self.is_register(at, width) {
            return ones;
        }
        let value = match (at, width) {
            (offset::CAP, 8) => self.config.cap.into_bits(),
            (offset::CAP, _) => self.config.cap.into_bits() & 0xffff_ffff,
            (4, 4) => self.config.cap.into_bits() >> 32,
            (offset::VS, _) => self.config.version.into_bits().into(),
            (offset::CC, _) => self.cc.into_bits().into(),
            (offset::CSTS, _) => self.read_csts().into_bits().into(),
            (pcie::offset::AQA, _) => self.aqa.into_bits().into(),
            (pcie::offset::ASQ, 8) => self.asq,
            (pcie::offset::ASQ, _) => self.asq & 0xffff_ffff,
            (0x2c, 4) => self.asq >> 32,
            (pcie::offset::ACQ, 8) => self.acq,
            (pcie::offset::ACQ, _) => self.acq & 0xffff_ffff,
            (0x34, 4) => self.acq >> 32,
            _ => 0,
        };
        match &mut self.tamper {
            Some(tamper) => tamper.register(at, value) & ones,
            None => value,
        }
    }

    pub(crate) fn write(&mut self, at: u32, width: u32, value: u64) {
        if self.gone || !self.is_register(at, width) {
            return;
        }
        let [b0, b1, b2, b3, ..] = value.to_le_bytes();
        let low = u32::from_le_bytes([b0, b1, b2, b3]);
        let is_enabled = self.phase != Phase::Disabled;
        let keep_low = |old: u64| old & 0xffff_ffff | value << 32;
        let keep_high = |old: u64| old & !0xffff_ffff | value;
        match (at, width) {
            (offset::CC, 4) => self.write_cc(Cc::from_bits(low)),
            (offset::NSSR, 4) if self.config.cap.nssrs() && low == NSSR_RESET => {
                self.reset();
                self.subsystem_reset = true;
            }
            (offset::CSTS, 4) if Csts::from_bits(low).nssro() => self.subsystem_reset = false,
            (pcie::offset::AQA..0x38, _) if is_enabled => {
                self.register_rule(at, value, "the admin queue is changed while enabled");
            }
            (pcie::offset::AQA, 4) => self.aqa = Aqa::from_bits(low),
            (pcie::offset::ASQ, 8) => self.asq = value,
            (pcie::offset::ASQ, 4) => self.asq = keep_high(self.asq),
            (0x2c, 4) => self.asq = keep_low(self.asq),
            (pcie::offset::ACQ, 8) => self.acq = value,
            (pcie::offset::ACQ, 4) => self.acq = keep_high(self.acq),
            (0x34, 4) => self.acq = keep_low(self.acq),
            (pcie::offset::INTMS | pcie::offset::INTMC, 4) => {
                self.register_rule(at, value, "interrupt masks are not for MSI-X");
            }
            (pcie::offset::DOORBELLS.., 4) => self.write_doorbell(at, low),
            _ => self.register_rule(at, value, "a register that cannot be written like this"),
        }
    }

    /// Resets everything except the media and the test settings (Base 3.7.2).
    pub(crate) fn reset(&mut self) {
        self.disable();
        self.phase = Phase::Disabled;
        self.cc = Cc::new();
        self.aqa = Aqa::new();
        (self.asq, self.acq) = (0, 0);
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        self.shutdown.is_some_and(|readiness| left(readiness).is_some())
    }

    pub(crate) fn finish_shutdown(&mut self) {
        if self.shutdown.is_some() {
            self.shutdown = Some(Readiness::AT_ONCE);
        }
    }

    fn is_register(&mut self, at: u32, width: u32) -> bool {
        let end = u64::from(at) + u64::from(width);
        let is_there = at.is_multiple_of(width) && end <= crate::registers_len(&self.config);
        if !is_there {
            self.register_rule(at, 0, "an access outside of the registers, or not aligned");
        }
        is_there
    }

    fn read_csts(&mut self) -> Csts {
        self.phase = match self.phase {
            Phase::Enabling(readiness) => match left(readiness) {
                None => Phase::Ready,
                Some(later) => Phase::Enabling(later),
            },
            Phase::Disabling(readiness) => match left(readiness) {
                None => Phase::Disabled,
                Some(later) => Phase::Disabling(later),
            },
            settled => settled,
        };
        let shst = match self.shutdown.map(left) {
            Some(None) => CSTS_SHST_COMPLETE,
            Some(Some(later)) => {
                self.shutdown = Some(later);
                CSTS_SHST_OCCURRING
            }
            None => 0,
        };
        Csts::new()
            .with_rdy(matches!(self.phase, Phase::Ready | Phase::Disabling(_)))
            .with_cfs(self.fatal)
            .with_shst(shst)
            .with_nssro(self.subsystem_reset)
    }

    fn write_cc(&mut self, cc: Cc) {
        let rule = |this: &mut Self, rule| {
            this.violations.push(Violation::Configuration { cc: cc.into_bits(), rule });
        };
        let was = std::mem::replace(&mut self.cc, cc);
        match (was.en(), cc.en()) {
            (false, true) => {
                if matches!(self.phase, Phase::Disabling(_)) {
                    rule(self, "enabled before CSTS.RDY was 0");
                }
                self.enable();
            }
            (true, false) => {
                if matches!(self.phase, Phase::Enabling(Readiness::AfterReads(_))) && !self.fatal {
                    rule(self, "disabled before CSTS.RDY was 1");
                }
                let was_ready = self.phase == Phase::Ready;
                self.disable();
                self.phase = Phase::Disabling(self.config.disable);
                if !was_ready || self.config.disable == Readiness::AT_ONCE {
                    self.phase = Phase::Disabled;
                }
            }
            (true, true) => {
                let fields = |cc: Cc| cc.with_shn(0).with_iosqes(0).with_iocqes(0).into_bits();
                if fields(was) != fields(cc) {
                    rule(self, "a field of CC is changed while enabled");
                }
            }
            (false, false) => (),
        }
        if cc.shn() != 0 && was.shn() == 0 {
            self.shutdown = Some(self.config.shutdown);
        } else if cc.shn() == 0 && was.shn() != 0 && cc.en() {
            rule(self, "CC.SHN is taken back without a reset");
        }
    }

    fn enable(&mut self) {
        let wrong = self.what_is_wrong_with_cc();
        if let Some(rule) = wrong {
            self.violations.push(Violation::Configuration { cc: self.cc.into_bits(), rule });
            self.fatal = true;
            return;
        }
        let (submission, completion) = (self.aqa.asqs(), self.aqa.acqs());
        let sq = Sq::new(self.asq, u32::from(submission) + 1, 0);
        let cq = Cq::new(self.acq, u32::from(completion) + 1, Some(0));
        // If not mapped, the table of faults records it.
        let _ = self.space.check(sq.base, sq.bytes(), false);
        let _ = self.space.check(cq.base, cq.bytes(), true);
        self.sqs.insert(0, sq);
        self.cqs.insert(0, cq);
        self.phase = match self.config.enable {
            Readiness::AT_ONCE => Phase::Ready,
            later => Phase::Enabling(later),
        };
    }

    fn what_is_wrong_with_cc(&self) -> Option<&'static str> {
        let (cc, cap) = (self.cc, self.config.cap);
        let page = self.page_size();
        if !(cap.mpsmin()..=cap.mpsmax()).contains(&cc.mps()) {
            return Some("CC.MPS is not between CAP.MPSMIN and CAP.MPSMAX");
        }
        if cc.css() != CC_CSS_NVM {
            return Some("CC.CSS is not the NVM command set");
        }
        if cc.ams() != CC_AMS_ROUND_ROBIN {
            return Some("CC.AMS is not round robin");
        }
        if self.aqa.asqs() == 0 || self.aqa.acqs() == 0 {
            return Some("an admin queue of one entry");
        }
        if !self.asq.is_multiple_of(page) || !self.acq.is_multiple_of(page) {
            return Some("an admin queue that is not aligned to the memory page");
        }
        None
    }

    /// Clears the state that ends with CC.EN: queues, commands, features, shutdown, fatal status.
    fn disable(&mut self) {
        self.sqs.clear();
        self.cqs.clear();
        self.held.clear();
        self.shadow = None;
        self.shutdown = None;
        self.fatal = false;
        self.turn = 0;
        self.features = Features::new(self.config.io_queues);
        self.logs.forget_requests();
    }

    fn write_doorbell(&mut self, at: u32, value: u32) {
        self.doorbells += 1;
        if self.phase != Phase::Ready {
            return self.register_rule(at, value.into(), "a doorbell while not ready");
        }
        if self.fatal {
            return;
        }
        let Some(doorbell) = Doorbell::at(at, self.config.cap.dstrd()) else {
            return self.register_rule(at, value.into(), "a write between doorbells");
        };
        match self.ring(doorbell, value, false) {
            None => {
                self.register_rule(at, value.into(), "a doorbell of no queue");
                self.raise(AsyncEvent::INVALID_DOORBELL);
            }
            Some(Err(rule)) => {
                self.register_rule(at, value.into(), rule);
                self.raise(AsyncEvent::INVALID_DOORBELL_VALUE);
            }
            Some(Ok(())) => self.compare_shadow(at, doorbell, value),
        }
    }

    /// Processes a doorbell's value; returns `None` if its queue does not exist.
    pub(crate) fn ring(
        &mut self,
        doorbell: Doorbell,
        value: u32,
        from_shadow: bool,
    ) -> Option<Result<(), &'static str>> {
        match doorbell {
            Doorbell::SubmissionTail(qid) => {
                Some(self.sqs.get_mut(&qid)?.set_tail(value, from_shadow))
            }
            Doorbell::CompletionHead(qid) => {
                let cq = self.cqs.get_mut(&qid)?;
                let result = cq.set_head(value, from_shadow);
                let _ = cq.flush(&self.space);
                self.interrupt(qid);
                Some(result)
            }
        }
    }

    /// Checks that the driver wrote the value to the shadow before the doorbell.
    fn compare_shadow(&mut self, at: u32, doorbell: Doorbell, value: u32) {
        let (Some((shadow, _)), true) = (self.shadow, doorbell.index() > 1) else { return };
        let offset = doorbell.stride_offset(self.config.cap.dstrd());
        if self.space.load(shadow + offset).is_ok_and(|there| there != value) {
            self.register_rule(at, value.into(), "a doorbell whose shadow has another value");
        }
    }

    fn register_rule(&mut self, offset: u32, value: u64, rule: &'static str) {
        self.violations.push(Violation::Register { offset, value, rule });
    }
}

/// Counts a read; returns the remaining delay, if any.
fn left(readiness: Readiness) -> Option<Readiness> {
    match readiness {
        Readiness::AfterReads(reads) => reads.checked_sub(1).map(Readiness::AfterReads),
        Readiness::Never => Some(Readiness::Never),
    }
}
