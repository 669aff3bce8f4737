//! Identify (Base 5.17).

use nvmeof_wire::Sqe;

use crate::controller::Controller;
use crate::failure::Failure;

/// The data structure asked for, 4096 bytes.
///
/// # Errors
/// As the specification says for the CNS value.
pub(crate) fn identify(_ctrl: &Controller, _sqe: &Sqe) -> Result<Vec<u8>, Failure> {
    Err(Failure::InvalidField)
}
