//! The controller's registers: validation, and the transitions between disabled and enabled.
//!
//! ```text
//!  Bar::probe -> Unsure -disable: EN = 0, RDY = 0-> Disabled -enable: EN = 1, RDY = 1-> Enabled
//!                 ^                                    | failed                           |
//!                 '------------------------------------'----------------------------------'
//! ```
//!
//! A [`Disabled`] proves that the controller does not read or write memory (Base 3.7.2).

use std::fmt;
use std::sync::Arc;

use nvmeof_wire::pcie::{self, Aqa, Doorbell};
use nvmeof_wire::properties::{
    CAP_CRMS_INDEPENDENT, CAP_CRMS_WITH_MEDIA, CAP_CSS_IO_SETS, CAP_CSS_NVM, CC_CSS_ALL,
    CC_CSS_NVM, CC_SHN_NORMAL, CSTS_SHST_COMPLETE, Cap, Cc, Crto, Csts, Version, offset,
};

use super::error::OpenErrorReason;
use super::function::Registers;
use super::wait::Wait;

const MILLISECOND: u64 = 1_000_000;
/// Initial interval between reads of CSTS. After 1 s it is a share of the elapsed time.
const LOOK: u64 = MILLISECOND;
/// Divisor of the elapsed time for the next interval; a power of two at which 1 s yields [`LOOK`].
const LOOK_SHARE: u64 = 1024;
/// Minimum time for a controller to become ready, whatever CAP.TO is: some report 0.
const READY_MIN_MS: u64 = 1000;
/// Maximum time for a controller to become ready: 10 minutes. CRTO can request 9 hours, and a
/// caller waits for the result.
const READY_MAX_MS: u64 = 600_000;
/// SQES 6 and CQES 4: 64 and 16 bytes, the sizes of the NVM command set.
const IOSQES: u8 = 6;
const IOCQES: u8 = 4;
/// Bytes of registers that every controller has.
const REGISTERS_MIN: u64 = 0x1000;

/// Value of CSTS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StatusSnapshot {
    /// All ones: no device responds.
    Absent,
    There(Csts),
}

/// Registers of a controller whose capabilities are valid.
pub(super) struct Bar {
    regs: Arc<dyn Registers>,
    len: u64,
    cap: Cap,
    wait: Arc<dyn Wait>,
}

impl Bar {
    /// Validates CAP and VS, and changes nothing.
    pub(super) fn probe(
        regs: Arc<dyn Registers>,
        len: u64,
        wait: Arc<dyn Wait>,
    ) -> Result<Self, OpenErrorReason> {
        if len <= REGISTERS_MIN {
            return Err(OpenErrorReason::NotNvme(format!("{len} bytes of registers are too few")));
        }
        let cap = regs.read64(offset::CAP);
        if cap == u64::MAX {
            return Err(OpenErrorReason::Gone);
        }
        let version = Version::from_bits(regs.read32(offset::VS));
        if !(1..=9).contains(&version.mjr()) {
            let bits = version.into_bits();
            return Err(OpenErrorReason::NotNvme(format!(
                "the version register reads as {bits:#010x}"
            )));
        }
        let bar = Self { regs, len, cap: Cap::from_bits(cap), wait };
        match bar.complaint() {
            None => Ok(bar),
            Some(reason) => Err(OpenErrorReason::Capabilities { cap, reason }),
        }
    }

    fn complaint(&self) -> Option<String> {
        let cap = self.cap;
        if cap.queue_entries() < nvmeof_wire::queues::QUEUE_ENTRIES_MIN {
            return Some("queues hold one entry (MQES), the minimum is two".to_owned());
        }
        if cap.mpsmin() > 0 {
            let least = cap.page_size_min();
            return Some(format!(
                "memory pages of {least} bytes are required (MPSMIN), only 4096 is supported"
            ));
        }
        if cap.css() & (CAP_CSS_NVM | CAP_CSS_IO_SETS) == 0 {
            return Some(format!("no NVM command set (CSS {:#04x})", cap.css()));
        }
        if self.doorbells(0).is_none() {
            return Some("admin doorbells are outside of the registers (DSTRD)".to_owned());
        }
        None
    }

    pub(super) fn cap(&self) -> Cap {
        self.cap
    }

    pub(super) fn regs(&self) -> &Arc<dyn Registers> {
        &self.regs
    }

    /// Returns true if the controller implements version 2.0 or later.
    pub(super) fn is_at_least_2_0(&self) -> bool {
        Version::from_bits(self.regs.read32(offset::VS)).mjr() >= 2
    }

    /// Compares CAP with its value at probe time: another controller may have replaced this one.
    pub(super) fn same_again(&self) -> bool {
        self.regs.read64(offset::CAP) == self.cap.into_bits()
    }

    /// Returns the doorbell offsets of queue `qid`, tail and head, if both are inside the
    /// registers.
    pub(super) fn doorbells(&self, qid: u16) -> Option<(u32, u32)> {
        let dstrd = self.cap.dstrd();
        let tail = Doorbell::SubmissionTail(qid).offset(dstrd)?;
        let head = Doorbell::CompletionHead(qid).offset(dstrd)?;
        (u64::from(head) + 4 <= self.len).then_some((tail, head))
    }

    /// Returns the number of I/O queues with doorbells inside the registers.
    pub(super) fn queues_with_doorbells(&self) -> u16 {
        let stride = u64::from(self.cap.doorbell_stride());
        let doorbells = (self.len - REGISTERS_MIN) / stride;
        u16::try_from((doorbells / 2).saturating_sub(1)).unwrap_or(u16::MAX - 1)
    }

    /// Reads CSTS.
    pub(super) fn look(&self) -> StatusSnapshot {
        match self.regs.read32(offset::CSTS) {
            u32::MAX => StatusSnapshot::Absent,
            bits => StatusSnapshot::There(Csts::from_bits(bits)),
        }
    }

    /// Returns the maximum time for CSTS.RDY to follow CC.EN, in milliseconds.
    pub(super) fn ready_millis(&self) -> u64 {
        let mut millis = u64::from(self.cap.timeout_ms());
        // Controllers since 2.0 can report more than CAP.TO can hold (Base 3.1.3.19).
        if self.cap.crms() & (CAP_CRMS_WITH_MEDIA | CAP_CRMS_INDEPENDENT) != 0 {
            let crto = Crto::from_bits(self.regs.read32(offset::CRTO));
            if crto.into_bits() != u32::MAX {
                millis = millis.max(u64::from(crto.with_media_ms()));
            }
        }
        millis.clamp(READY_MIN_MS, READY_MAX_MS)
    }

    /// Polls CSTS until `is_done`, for at most `millis`.
    fn await_status(
        &self,
        millis: u64,
        mut is_done: impl FnMut(Csts) -> bool,
    ) -> Result<Csts, Waited> {
        let start = self.wait.now();
        let end = start.saturating_add(millis.saturating_mul(MILLISECOND));
        loop {
            match self.look() {
                StatusSnapshot::Absent => return Err(Waited::Gone),
                StatusSnapshot::There(csts) if is_done(csts) => return Ok(csts),
                StatusSnapshot::There(_) => {}
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

/// Addresses of a controller's admin queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct AdminRings {
    pub(super) submission: u64,
    pub(super) completion: u64,
    pub(super) entries: u16,
}

/// A controller that may or may not be enabled.
#[derive(Debug)]
pub(super) struct UnknownController(pub(super) Arc<Bar>);

/// A controller with CC.EN = 0 and CSTS.RDY = 0: it reads and writes no memory.
#[derive(Debug)]
pub(super) struct Disabled(Arc<Bar>);

/// A controller that accepts commands.
#[derive(Debug)]
pub(super) struct Enabled(Arc<Bar>);

impl UnknownController {
    /// Clears CC.EN and waits until CSTS.RDY = 0.
    pub(super) fn disable(self) -> Result<Disabled, (Self, OpenErrorReason)> {
        let bar = &self.0;
        let millis = bar.ready_millis();
        let failed = |waited| match waited {
            Waited::Gone => OpenErrorReason::Gone,
            Waited::TooLong => OpenErrorReason::Slow { ready: false, millis },
        };
        let cc = bar.regs.read32(offset::CC);
        if cc == u32::MAX {
            return Err((self, OpenErrorReason::Gone));
        }
        let cc = Cc::from_bits(cc);
        if cc.en() {
            // Clearing EN before the controller is ready is not defined (Base 3.1.3.5). If it never
            // becomes ready, EN is cleared nevertheless.
            match bar.await_status(millis, |csts| csts.rdy() || csts.cfs()) {
                Err(Waited::Gone) => return Err((self, OpenErrorReason::Gone)),
                Ok(_) | Err(Waited::TooLong) => {}
            }
            bar.regs.write32(offset::CC, cc.with_en(false).with_shn(0).into_bits());
        }
        match bar.await_status(millis, |csts| !csts.rdy()) {
            Ok(_) => Ok(Disabled(self.0)),
            Err(waited) => {
                let reason = failed(waited);
                Err((self, reason))
            }
        }
    }
}

impl Disabled {
    /// Discards the proof that the controller is disabled.
    pub(super) fn into_unknown(self) -> UnknownController {
        UnknownController(self.0)
    }

    /// Writes the admin queue addresses, sets CC.EN and waits until the controller is ready.
    pub(super) fn enable(
        self,
        admin: AdminRings,
    ) -> Result<Enabled, (UnknownController, OpenErrorReason)> {
        let bar = self.0;
        let (regs, millis) = (&bar.regs, bar.ready_millis());
        let aqa = Aqa::with_entries(admin.entries, admin.entries);
        regs.write32(pcie::offset::AQA, aqa.into_bits());
        regs.write64(pcie::offset::ASQ, admin.submission);
        regs.write64(pcie::offset::ACQ, admin.completion);
        // With several command sets, only enabling all of them includes NVM (Base 3.1.3.5).
        let css = if bar.cap.css() & CAP_CSS_IO_SETS != 0 { CC_CSS_ALL } else { CC_CSS_NVM };
        let cc = Cc::new().with_css(css).with_iosqes(IOSQES).with_iocqes(IOCQES);
        regs.write32(offset::CC, cc.into_bits());
        regs.write32(offset::CC, cc.with_en(true).into_bits());
        let reason = match bar.await_status(millis, |csts| csts.rdy() || csts.cfs()) {
            Ok(csts) if csts.cfs() => OpenErrorReason::Fatal,
            Ok(_) => return Ok(Enabled(bar)),
            Err(Waited::Gone) => OpenErrorReason::Gone,
            Err(Waited::TooLong) => OpenErrorReason::Slow { ready: true, millis },
        };
        Err((UnknownController(bar), reason))
    }
}

impl Enabled {
    pub(super) fn bar(&self) -> &Bar {
        &self.0
    }

    /// Requests a normal shutdown, which flushes caches to the medium, and waits at most `millis`
    /// (Base 3.6.1).
    pub(super) fn shut_down(&self, millis: u64) -> bool {
        let cc = self.0.regs.read32(offset::CC);
        if cc == u32::MAX {
            return false;
        }
        let cc = Cc::from_bits(cc).with_shn(CC_SHN_NORMAL);
        self.0.regs.write32(offset::CC, cc.into_bits());
        self.0.await_status(millis, |csts| csts.shst() == CSTS_SHST_COMPLETE).is_ok()
    }

    pub(super) fn into_unknown(self) -> UnknownController {
        UnknownController(self.0)
    }
}
