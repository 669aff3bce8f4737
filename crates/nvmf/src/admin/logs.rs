//! Get Log Page (Base 5.16).

use nvmeof_wire::Sqe;

use crate::Nanos;
use crate::controller::Controller;
use crate::failure::Failure;
use crate::target::Target;

/// The part of the log page asked for: exactly the number of dwords, zeroes past the page's end where the
/// specification allows that. Never more than MDTS allows.
///
/// # Errors
/// As the specification says for the log page.
pub(crate) fn get_log_page(
    _target: &Target,
    _ctrl: &Controller,
    _sqe: &Sqe,
    _now: Nanos,
) -> Result<Vec<u8>, Failure> {
    Err(Failure::InvalidLogPage)
}
