//! Properties of a controller: CAP, VS, CC, CSTS, CRTO (Base 3.1.3).

use std::sync::atomic::Ordering;

use nvmeof_wire::properties::{
    CAP_CSS_ADMIN_ONLY, CAP_CSS_IO_SETS, CAP_CSS_NVM, CC_CSS_ADMIN_ONLY, CC_CSS_ALL, CC_CSS_NVM,
    CSTS_SHST_COMPLETE, CSTS_SHST_NORMAL, CSTS_SHST_OCCURRING, Cap, Cc, Crto, Csts, Version,
    offset,
};

use super::{Controller, Events, FeatureStore};
use crate::failure::Failure;
use crate::quiesce::half_seconds;
use crate::spec::DeviceId;

/// Effect of a write to CC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CcChange {
    /// No change of state.
    None,
    /// EN 0 to 1: the controller becomes ready.
    Enabled,
    /// EN 1 to 0: Controller Level Reset, which ends the I/O queues.
    Reset,
    /// Change of SHN: the controller starts to shut down.
    Shutdown,
}

impl Controller {
    /// Controller Capabilities.
    pub(crate) fn cap(&self) -> Cap {
        Cap::new()
            .with_mqes(self.limits.mqes())
            .with_cqr(true)
            .with_to(self.ready_timeout())
            .with_css(self.command_sets())
            .with_crms(1)
    }

    /// CAP.CSS: the values of CC.CSS that [`Self::check_configuration`] accepts.
    fn command_sets(&self) -> u8 {
        if self.is_discovery() { CAP_CSS_ADMIN_ONLY } else { CAP_CSS_NVM | CAP_CSS_IO_SETS }
    }

    /// Maximum time from CC.EN to CSTS.RDY in units of 500 ms.
    ///
    /// CSTS.RDY rises immediately. It falls when the devices have completed their commands.
    fn ready_timeout(&self) -> u8 {
        half_seconds(self.subsystem.quiesce_bound())
    }

    /// Controller Configuration as the host wrote it.
    pub(crate) fn cc(&self) -> Cc {
        Cc::from_bits(self.cc.load(Ordering::Acquire))
    }

    /// Controller Status.
    pub(crate) fn csts(&self) -> Csts {
        let csts = Csts::from_bits(self.csts.load(Ordering::Acquire));
        if self.resetting.load(Ordering::Acquire) {
            return csts.with_rdy(!self.quiesce.is_quiet());
        }
        csts
    }

    /// Returns true if admin commands may run: enabled, ready and not shut down.
    pub(crate) fn is_ready(&self) -> bool {
        let csts = self.csts();
        csts.rdy() && !self.resetting.load(Ordering::Acquire) && csts.shst() == CSTS_SHST_NORMAL
    }

    /// Value and size in bytes of the property at this offset; `None` if no property is there.
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
                Some(four(Crto::new().with_crwmt(u16::from(self.ready_timeout())).into_bits()))
            }
            _ => None,
        }
    }

    /// Handles a write to CC.
    ///
    /// # Errors
    /// [`Failure::InvalidField`] for a value that this controller does not support.
    /// [`Failure::Quiescing`] if the host enables it before CSTS.RDY has fallen. Nothing changes
    /// then.
    pub(crate) fn set_cc(&self, new: Cc) -> Result<CcChange, Failure> {
        let old = self.cc();
        if new.en() && !old.en() {
            self.check_configuration(new)?;
            if self.csts().rdy() {
                return Err(Failure::Quiescing);
            }
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
            self.end_incarnation();
            self.shut_down();
            self.notifier.notify();
            return Ok(CcChange::Shutdown);
        }
        if new.en() && !old.en() {
            self.settle_write_cache();
            self.resetting.store(false, Ordering::Release);
            self.csts.store(Csts::new().with_rdy(true).into_bits(), Ordering::Release);
            // Bit 0: I/O commands may run. A concurrent death wins: it clears the bit before or
            // after this point.
            self.incarnation.fetch_or(1, Ordering::AcqRel);
            if self.death().is_some() {
                self.end_incarnation();
            }
            return Ok(CcChange::Enabled);
        }
        Ok(CcChange::None)
    }

    /// Starts a shutdown. It completes when the queues are quiet and the devices flushed.
    ///
    /// Power may then be removed (Base 3.6.2).
    fn shut_down(&self) {
        self.set_shst(CSTS_SHST_OCCURRING);
        self.settle_shutdown();
    }

    /// Devices to flush before the current shutdown can complete, once the queues are quiet.
    pub(crate) fn settle_shutdown(&self) -> Option<Vec<DeviceId>> {
        if !self.is_shutting_down() || !self.quiesce.is_quiet() {
            return None;
        }
        let devices = self.subsystem.devices_to_flush();
        if devices.is_empty() {
            self.set_shst(CSTS_SHST_COMPLETE);
            return None;
        }
        Some(devices)
    }

    /// Completes the shutdown after the flush; CSTS.CFS reports a failed flush.
    pub(crate) fn shutdown_flushed(&self, is_durable: bool) {
        if !self.is_shutting_down() {
            // A reset came in between.
            return;
        }
        if !is_durable {
            let failed = Csts::new().with_cfs(true).into_bits();
            self.csts.fetch_or(failed, Ordering::AcqRel);
        }
        self.set_shst(CSTS_SHST_COMPLETE);
    }

    /// Returns true if CSTS.SHST is 01b.
    pub(crate) fn is_shutting_down(&self) -> bool {
        self.csts().shst() == CSTS_SHST_OCCURRING
    }

    fn set_shst(&self, shst: u8) {
        let csts = Csts::from_bits(self.csts.load(Ordering::Acquire)).with_shst(shst);
        self.csts.store(csts.into_bits(), Ordering::Release);
    }

    /// Checks entry sizes, page size, arbitration and command set for enabling (Base 3.1.3.5).
    fn check_configuration(&self, cc: Cc) -> Result<(), Failure> {
        // Without I/O queues, hosts may leave the entry sizes 0; they also write those of I/O
        // controllers.
        let is_discovery = self.is_discovery();
        let sqe_size = cc.iosqes() == 6 || is_discovery && cc.iosqes() == 0;
        let cqe_size = cc.iocqes() == 4 || is_discovery && cc.iocqes() == 0;
        // Hosts also enable discovery controllers with the values of I/O controllers.
        let css = matches!(cc.css(), CC_CSS_NVM | CC_CSS_ALL)
            || is_discovery && cc.css() == CC_CSS_ADMIN_ONLY;
        let valid = sqe_size && cqe_size && css && cc.mps() == 0 && cc.ams() == 0 && !cc.crime();
        if valid { Ok(()) } else { Err(Failure::InvalidField) }
    }

    /// Controller Level Reset (Base 3.7.2).
    ///
    /// I/O queues end, and features and events return to their defaults. The admin queue, the
    /// keep-alive timeout and the error log stay. The reset is complete, with CSTS.RDY = 0, when
    /// the controller is quiet.
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
        self.resetting.store(true, Ordering::Release);
        self.notifier.notify();
    }
}
