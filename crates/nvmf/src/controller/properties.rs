//! Properties of a controller: CAP, VS, CC, CSTS, CRTO (Base 3.1.3).

use std::sync::atomic::Ordering;

use nvmeof_wire::properties::{
    CAP_CSS_ADMIN_ONLY, CAP_CSS_NVM, CC_CSS_ADMIN_ONLY, CC_CSS_NVM, CSTS_SHST_COMPLETE,
    CSTS_SHST_NORMAL, Cap, Cc, Crto, Csts, Version, offset,
};

use super::{Controller, Events, FeatureStore};
use crate::failure::Failure;

/// Worst time from CC.EN to CSTS.RDY in units of 500 ms: it is at once, and 0 would say "not reported".
const READY_TIMEOUT: u8 = 1;

/// What a write to CC did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CcChange {
    /// Nothing of note.
    None,
    /// EN 0 to 1: the controller is ready.
    Enabled,
    /// EN 1 to 0: Controller Level Reset; its I/O queues end.
    Reset,
    /// SHN: shut down.
    Shutdown,
}

impl Controller {
    /// Controller Capabilities.
    pub(crate) fn cap(&self) -> Cap {
        Cap::new()
            .with_mqes(self.limits.mqes())
            .with_cqr(true)
            .with_to(READY_TIMEOUT)
            .with_css(if self.is_discovery() { CAP_CSS_ADMIN_ONLY } else { CAP_CSS_NVM })
            .with_crms(1)
    }

    /// Controller Configuration as the host wrote it.
    pub(crate) fn cc(&self) -> Cc {
        Cc::from_bits(self.cc.load(Ordering::Acquire))
    }

    /// Controller Status.
    pub(crate) fn csts(&self) -> Csts {
        Csts::from_bits(self.csts.load(Ordering::Acquire))
    }

    /// Enabled, ready and not shut down: admin commands may run.
    pub(crate) fn is_ready(&self) -> bool {
        let csts = self.csts();
        csts.rdy() && csts.shst() == CSTS_SHST_NORMAL
    }

    /// Value and size in bytes of the property at this offset; `None` if it has none there.
    pub(crate) fn property(&self, at: u32) -> Option<(u64, u8)> {
        let four = |value: u32| (u64::from(value), 4);
        match at {
            offset::CAP => Some((self.cap().into_bits(), 8)),
            offset::VS => Some(four(Version::V2_0.into_bits())),
            offset::CC => Some(four(self.cc().into_bits())),
            offset::CSTS => Some(four(self.csts().into_bits())),
            // CAP.NSSRS is 0: reserved, reads as 0.
            offset::NSSR => Some(four(0)),
            offset::CRTO => {
                Some(four(Crto::new().with_crwmt(u16::from(READY_TIMEOUT)).into_bits()))
            }
            _ => None,
        }
    }

    /// The host writes CC.
    ///
    /// # Errors
    /// [`Failure::InvalidField`] for a value this controller cannot run with; nothing changes then.
    pub(crate) fn set_cc(&self, new: Cc) -> Result<CcChange, Failure> {
        let old = self.cc();
        if new.en() && !old.en() {
            self.check_configuration(new)?;
        }
        self.cc.store(new.into_bits(), Ordering::Release);
        if old.en() && !new.en() {
            self.reset();
            if new.shn() != 0 {
                self.shut_down();
            }
            return Ok(CcChange::Reset);
        }
        if new.shn() != 0 && new.shn() != old.shn() {
            self.shut_down();
            self.end_incarnation();
            self.notifier.notify();
            return Ok(CcChange::Shutdown);
        }
        if new.en() && !old.en() {
            self.settle_write_cache();
            self.csts.store(Csts::new().with_rdy(true).into_bits(), Ordering::Release);
            // Bit 0: I/O commands may run. A death meanwhile wins: it clears the bit under us or after.
            self.stamp.fetch_or(1, Ordering::AcqRel);
            if self.death().is_some() {
                self.end_incarnation();
            }
            return Ok(CcChange::Enabled);
        }
        Ok(CcChange::None)
    }

    /// Nothing is buffered above the devices, so shutdown completes at once.
    fn shut_down(&self) {
        let csts = self.csts().with_shst(CSTS_SHST_COMPLETE);
        self.csts.store(csts.into_bits(), Ordering::Release);
    }

    /// Entry sizes, page size, arbitration and command set that enabling needs (Base 3.1.3.5).
    fn check_configuration(&self, cc: Cc) -> Result<(), Failure> {
        let (sqe_size, cqe_size, css) = if self.is_discovery() {
            // No I/O queues: the entry sizes may be left 0; hosts also write the I/O ones.
            (matches!(cc.iosqes(), 0 | 6), matches!(cc.iocqes(), 0 | 4), CC_CSS_ADMIN_ONLY)
        } else {
            (cc.iosqes() == 6, cc.iocqes() == 4, CC_CSS_NVM)
        };
        // Hosts enable discovery controllers with the NVM command set's value too.
        let css = cc.css() == css || cc.css() == CC_CSS_NVM;
        let valid = sqe_size && cqe_size && css && cc.mps() == 0 && cc.ams() == 0 && !cc.crime();
        if valid { Ok(()) } else { Err(Failure::InvalidField) }
    }

    /// Controller Level Reset: I/O queues end, features and events are as new; the admin queue, the
    /// keep-alive timeout and the error log stay (Base 3.7.2).
    fn reset(&self) {
        self.end_incarnation();
        let mut admin = self.admin();
        admin.features = FeatureStore::new(&self.limits);
        admin.events = Events::default();
        admin.changed.clear();
        drop(admin);
        self.set_write_cache(true);
        self.attention.store(false, Ordering::Release);
        self.csts.store(0, Ordering::Release);
        self.notifier.notify();
    }
}
