//! Warnings about settings that are allowed but probably unintended.

use nvmeof_core::pci::System;

use crate::config::Config;
use crate::drives::balance::of_stripes;

/// Iterates over the warnings of a config, as it is on this machine.
pub(crate) fn config_warnings(config: &Config) -> impl Iterator<Item = String> {
    let own = config.warnings.iter().map(ToString::to_string);
    own.chain(of_stripes(&System::this(), &config.devices, &config.root_complexes))
}

/// Logs the warnings of a config.
pub(crate) fn log_config_warnings(config: &Config) {
    for warning in config_warnings(config) {
        tracing::warn!("{warning}");
    }
}
