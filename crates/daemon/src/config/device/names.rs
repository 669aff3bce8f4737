//! Names of devices, as other devices refer to them.

use std::fmt::{self, Display};

use toml::Spanned;

use crate::config::report::Report;
use crate::config::table::Positions;
use crate::config::values::{one_of, required};

/// Names of a device and of the others.
pub(crate) struct Names<'n> {
    /// Name of this device.
    pub(crate) own: &'n str,
    /// Names of all devices.
    pub(crate) known: &'n [String],
}

impl Names<'_> {
    fn others(&self) -> Vec<&str> {
        self.known.iter().map(String::as_str).filter(|other| *other != self.own).collect()
    }

    /// Shows the valid names of a base, with a suggestion if one is close to `wrong`.
    fn form(&self, wrong: &str) -> impl Display {
        fmt::from_fn(move |f| match &self.others()[..] {
            [] => f.write_str("add a [[device]] as the base"),
            others => one_of(others, wrong).fmt(f),
        })
    }

    /// Returns the device named at `value` if this one can be layered on it.
    pub(super) fn other(
        &self,
        report: &mut Report<'_>,
        key: &str,
        value: &Spanned<String>,
    ) -> Option<String> {
        let (text, others) = (value.get_ref().as_str(), self.others());
        if text == self.own {
            report.error(&value.span(), key, "a device cannot be its own base", self.form(""));
            return None;
        }
        if !others.contains(&text) {
            let what = format!("there is no device \"{text}\"");
            report.error(&value.span(), key, what, self.form(text));
            return None;
        }
        Some(text.to_owned())
    }

    /// Validates the base of a device.
    pub(crate) fn base(
        &self,
        report: &mut Report<'_>,
        at: &Positions,
        base: &Option<String>,
    ) -> Option<String> {
        let key = at.key("base", base);
        let value = required(report, &at.header, "device.base", &key, self.form(""))?;
        self.other(report, "device.base", value)
    }
}
