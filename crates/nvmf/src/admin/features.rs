//! Set and Get Features (Base 5.15 and 5.27).

use nvmeof_wire::Sqe;

use crate::controller::Controller;
use crate::failure::Failure;

/// What Get Features answers.
#[derive(Debug, Default)]
pub(crate) struct FeatureReply {
    /// Completion DW0.
    pub(crate) dw0: u32,
    /// Data, empty for most features.
    pub(crate) data: Vec<u8>,
}

/// Bytes of data that this Set Features brings; the queue fetches them first.
///
/// # Errors
/// The feature is unknown, or the command is invalid whatever the data says.
pub(crate) fn set_feature_data_len(_ctrl: &Controller, _sqe: &Sqe) -> Result<u32, Failure> {
    Err(Failure::InvalidField)
}

/// Set Features; the completion's DW0.
///
/// # Errors
/// As the specification says for the feature.
pub(crate) fn set_feature(_ctrl: &Controller, _sqe: &Sqe, _data: &[u8]) -> Result<u32, Failure> {
    Err(Failure::InvalidField)
}

/// Get Features.
///
/// # Errors
/// As the specification says for the feature.
pub(crate) fn get_feature(_ctrl: &Controller, _sqe: &Sqe) -> Result<FeatureReply, Failure> {
    Err(Failure::InvalidField)
}
