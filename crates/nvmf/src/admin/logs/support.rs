//! Log pages about support, generated from the tables: 00h, 05h and 12h.

use nvmeof_wire::identify::Csi;
use nvmeof_wire::log::{CommandEffectsLog, FeatureEffectsLog, LogSupport, SupportedLogPages};

use crate::controller::Controller;

/// Supported Log Pages (Base 5.16.1.1).
pub(super) fn log_pages(controller: &Controller) -> SupportedLogPages {
    let mut page = SupportedLogPages::default();
    for lid in controller.abilities().log_pages() {
        page.set(lid, LogSupport::new().with_supported(true));
    }
    page
}

/// Commands Supported and Effects (Base 5.16.1.6); a command set that is not supported has no I/O
/// commands.
pub(super) fn commands(controller: &Controller, csi: Csi) -> CommandEffectsLog {
    let mut page = CommandEffectsLog::default();
    for (opcode, effects) in controller.abilities().admin_effects() {
        page.set_admin(opcode, effects);
    }
    for (opcode, effects) in controller.abilities().io_effects(csi) {
        page.set_io(opcode, effects);
    }
    page
}

/// Feature Identifiers Supported and Effects (Base 5.16.1.19).
pub(super) fn features(controller: &Controller) -> FeatureEffectsLog {
    let mut page = FeatureEffectsLog::default();
    for (fid, effects) in controller.abilities().feature_effects() {
        page.set(fid, effects);
    }
    page
}
