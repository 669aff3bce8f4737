//! The controller's registers: whether they make sense, and the way between disabled and enabled.
//!
//! ```text
//!   Bar::probe --> Unsure --disable: CC.EN = 0, CSTS.RDY = 0--> Disabled --enable: CC.EN = 1, CSTS.RDY = 1--> Enabled
//!                    ^                                                        | failed                         |
//!                    '-----------------------------------------------------------'-----------------------------'
//! ```
//!
//! A [`Disabled`] is the proof that the controller does not read or write memory (Base 3.7.2).

use std::fmt;
use std::sync::Arc;

use nvmeof_wire::pcie::{self, Aqa, Doorbell};
use nvmeof_wire::properties::{
    CAP_CRMS_INDEPENDENT, CAP_CRMS_WITH_MEDIA, CAP_CSS_IO_SETS, CAP_CSS_NVM, CC_CSS_ALL,
    CC_CSS_NVM, CC_SHN_NORMAL, CSTS_SHST_COMPLETE, Cap, Cc, Crto, Csts, Version, offset,
};

use super::error::OpenErrorWhy;
use super::seam::Registers;
use super::wait::Wait;

const MILLISECOND: u64 = 1_000_000;
/// Between two looks at CSTS, at first. After a second it is a share of the time that has gone.
const LOOK: u64 = MILLISECOND;
/// Of the time that has gone, the share until the next look: a power of two that makes a second of [`LOOK`]s.
const LOOK_SHARE: u64 = 1024;
/// Least time a controller is given, whatever CAP.TO says: some say 0.
const READY_MIN_MS: u64 = 1000;
/// Most time a controller is given: ten minutes. CRTO can ask for nine hours, and somebody waits for the answer.
const READY_MAX_MS: u64 = 600_000;
/// SQES 6 and CQES 4: 64 and 16 bytes, the sizes of the NVM command set.
const IOSQES: u8 = 6;
const IOCQES: u8 = 4;
/// Bytes of registers that every controller has.
const REGISTERS_MIN: u64 = 0x1000;

/// What CSTS says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// All ones: no device answers.
    Absent,
    There(Csts),
}

/// The registers of a controller whose capabilities were looked at and make sense.
pub(super) struct Bar {
    regs: Arc<dyn Registers>,
    len: u64,
    cap: Cap,
    wait: Arc<dyn Wait>,
}

impl Bar {
    /// Looks at CAP and VS, changes nothing.
    pub(super) fn probe(
        regs: Arc<dyn Registers>,
        len: u64,
        wait: Arc<dyn Wait>,
    ) -> Result<Self, OpenErrorWhy> {
        if len <= REGISTERS_MIN {
            return Err(OpenErrorWhy::NotNvme(format!("{len} bytes of registers are too few")));
        }
        let cap = regs.read64(offset::CAP);
        if cap == u64::MAX {
            return Err(OpenErrorWhy::Gone);
        }
        let version = Version::from_bits(regs.read32(offset::VS));
        if !(1..=9).contains(&version.mjr()) {
            let bits = version.into_bits();
            return Err(OpenErrorWhy::NotNvme(format!("its version reads as {bits:#010x}")));
        }
        let bar = Self { regs, len, cap: Cap::from_bits(cap), wait };
        match bar.complaint() {
            None => Ok(bar),
            Some(why) => Err(OpenErrorWhy::Capabilities { cap, why }),
        }
    }

    fn complaint(&self) -> Option<String> {
        let cap = self.cap;
        if cap.queue_entries() < nvmeof_wire::queues::QUEUE_ENTRIES_MIN {
            return Some(
                "its queues would hold one entry (MQES), and two are the least".to_owned(),
            );
        }
        if cap.mpsmin() > 0 {
            let least = cap.page_size_min();
            return Some(format!(
                "it needs memory pages of {least} bytes (MPSMIN), and 4096 are used"
            ));
        }
        if cap.css() & (CAP_CSS_NVM | CAP_CSS_IO_SETS) == 0 {
            return Some(format!("it has no NVM command set (CSS {:#04x})", cap.css()));
        }
        if self.doorbells(0).is_none() {
            return Some("its admin doorbells are outside of its registers (DSTRD)".to_owned());
        }
        None
    }

    pub(super) fn cap(&self) -> Cap {
        self.cap
    }

    pub(super) fn regs(&self) -> &Arc<dyn Registers> {
        &self.regs
    }

    /// Whether the controller is of version 2.0 or later.
    pub(super) fn is_at_least_2_0(&self) -> bool {
        Version::from_bits(self.regs.read32(offset::VS)).mjr() >= 2
    }

    /// What CAP says now: another controller may have come in the old one's place.
    pub(super) fn same_again(&self) -> bool {
        self.regs.read64(offset::CAP) == self.cap.into_bits()
    }

    /// Offsets of the doorbells of queue `qid`, tail and head, if both are inside the registers.
    pub(super) fn doorbells(&self, qid: u16) -> Option<(u32, u32)> {
        let dstrd = self.cap.dstrd();
        let tail = Doorbell::SubmissionTail(qid).offset(dstrd)?;
        let head = Doorbell::CompletionHead(qid).offset(dstrd)?;
        (u64::from(head) + 4 <= self.len).then_some((tail, head))
    }

    /// I/O queues that have doorbells inside the registers.
    pub(super) fn queues_with_doorbells(&self) -> u16 {
        let stride = u64::from(self.cap.doorbell_stride());
        let doorbells = (self.len - REGISTERS_MIN) / stride;
        u16::try_from((doorbells / 2).saturating_sub(1)).unwrap_or(u16::MAX - 1)
    }

    /// What CSTS says.
    pub(super) fn look(&self) -> Seen {
        match self.regs.read32(offset::CSTS) {
            u32::MAX => Seen::Absent,
            bits => Seen::There(Csts::from_bits(bits)),
        }
    }

    /// How long CSTS.RDY may take to follow CC.EN, in milliseconds.
    pub(super) fn ready_millis(&self) -> u64 {
        let mut millis = u64::from(self.cap.timeout_ms());
        // Controllers since 2.0 say more than CAP.TO can (Base 3.1.3.19).
        if self.cap.crms() & (CAP_CRMS_WITH_MEDIA | CAP_CRMS_INDEPENDENT) != 0 {
            let crto = Crto::from_bits(self.regs.read32(offset::CRTO));
            if crto.into_bits() != u32::MAX {
                millis = millis.max(u64::from(crto.with_media_ms()));
            }
        }
        millis.clamp(READY_MIN_MS, READY_MAX_MS)
    }

    /// Looks at CSTS until `is_done`, for at most `millis`.
    fn await_status(
        &self,
        millis: u64,
        mut is_done: impl FnMut(Csts) -> bool,
    ) -> Result<Csts, Waited> {
        let start = self.wait.now();
        let end = start.saturating_add(millis.saturating_mul(MILLISECOND));
        loop {
            match self.look() {
                Seen::Absent => return Err(Waited::Gone),
                Seen::There(csts) if is_done(csts) => return Ok(csts),
                Seen::There(_) => {}
            }
            let now = self.wait.now();
            if now >= end {
                return Err(Waited::TooLong);
            }
            let pause = (now.saturating_sub(start) / LOOK_SHARE).max(LOOK);
            self.wait.wait(&[], pause.min(end - now));
        }
    }
}

impl fmt::Debug for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bar")
            .field("cap", &self.cap)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

enum Waited {
    Gone,
    TooLong,
}

/// Where a controller's admin queue is.
#[derive(Debug, Clone, Copy)]
pub(super) struct AdminRings {
    pub(super) submission: u64,
    pub(super) completion: u64,
    pub(super) entries: u16,
}

/// A controller that may be enabled or not.
#[derive(Debug)]
pub(super) struct Unsure(pub(super) Arc<Bar>);

/// A controller with CC.EN = 0 and CSTS.RDY = 0: it reads and writes no memory.
#[derive(Debug)]
pub(super) struct Disabled(Arc<Bar>);

/// A controller that takes commands.
#[derive(Debug)]
pub(super) struct Enabled(Arc<Bar>);

impl Unsure {
    /// Clears CC.EN and waits until the controller is not ready.
    pub(super) fn disable(self) -> Result<Disabled, (Self, OpenErrorWhy)> {
        let bar = &self.0;
        let millis = bar.ready_millis();
        let failed = |waited| match waited {
            Waited::Gone => OpenErrorWhy::Gone,
            Waited::TooLong => OpenErrorWhy::Slow { ready: false, millis },
        };
        let cc = bar.regs.read32(offset::CC);
        if cc == u32::MAX {
            return Err((self, OpenErrorWhy::Gone));
        }
        let cc = Cc::from_bits(cc);
        if cc.en() {
            // Clearing EN on the way to ready is not defined (Base 3.1.3.5). One that never gets there is cleared
            // all the same.
            match bar.await_status(millis, |csts| csts.rdy() || csts.cfs()) {
                Err(Waited::Gone) => return Err((self, OpenErrorWhy::Gone)),
                Ok(_) | Err(Waited::TooLong) => {}
            }
            bar.regs.write32(offset::CC, cc.with_en(false).with_shn(0).into_bits());
        }
        match bar.await_status(millis, |csts| !csts.rdy()) {
            Ok(_) => Ok(Disabled(self.0)),
            Err(waited) => {
                let why = failed(waited);
                Err((self, why))
            }
        }
    }
}

impl Disabled {
    /// Forgets what is known of it.
    pub(super) fn into_unsure(self) -> Unsure {
        Unsure(self.0)
    }

    /// Tells the controller where its admin queue is, sets CC.EN and waits until it is ready.
    pub(super) fn enable(self, admin: AdminRings) -> Result<Enabled, (Unsure, OpenErrorWhy)> {
        let bar = self.0;
        let (regs, millis) = (&bar.regs, bar.ready_millis());
        let aqa = Aqa::with_entries(admin.entries, admin.entries);
        regs.write32(pcie::offset::AQA, aqa.into_bits());
        regs.write64(pcie::offset::ASQ, admin.submission);
        regs.write64(pcie::offset::ACQ, admin.completion);
        // Where there are several command sets, enabling all of them is the way to have NVM (Base 3.1.3.5).
        let css = if bar.cap.css() & CAP_CSS_IO_SETS != 0 { CC_CSS_ALL } else { CC_CSS_NVM };
        let cc = Cc::new().with_css(css).with_iosqes(IOSQES).with_iocqes(IOCQES);
        regs.write32(offset::CC, cc.into_bits());
        regs.write32(offset::CC, cc.with_en(true).into_bits());
        let why = match bar.await_status(millis, |csts| csts.rdy() || csts.cfs()) {
            Ok(csts) if csts.cfs() => OpenErrorWhy::Fatal,
            Ok(_) => return Ok(Enabled(bar)),
            Err(Waited::Gone) => OpenErrorWhy::Gone,
            Err(Waited::TooLong) => OpenErrorWhy::Slow { ready: true, millis },
        };
        Err((Unsure(bar), why))
    }
}

impl Enabled {
    pub(super) fn bar(&self) -> &Bar {
        &self.0
    }

    /// Asks for a normal shutdown and waits for it, for at most `millis` (Base 3.6.1): caches go to the medium.
    pub(super) fn shut_down(&self, millis: u64) -> bool {
        let cc = self.0.regs.read32(offset::CC);
        if cc == u32::MAX {
            return false;
        }
        let cc = Cc::from_bits(cc).with_shn(CC_SHN_NORMAL);
        self.0.regs.write32(offset::CC, cc.into_bits());
        self.0.await_status(millis, |csts| csts.shst() == CSTS_SHST_COMPLETE).is_ok()
    }

    pub(super) fn into_unsure(self) -> Unsure {
        Unsure(self.0)
    }
}
