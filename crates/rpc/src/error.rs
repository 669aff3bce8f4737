//! Errors of calls, with the codes that SPDK's clients expect.

use std::time::Duration;

use nvmeof_api::{ApiError, ErrorKind};

/// The text is not JSON.
const PARSE_ERROR: i32 = -32700;
/// The JSON is no request.
const INVALID_REQUEST: i32 = -32600;
/// The method does not exist.
const METHOD_NOT_FOUND: i32 = -32601;
/// A parameter is missing, unknown or invalid.
const INVALID_PARAMS: i32 = -32602;
/// The operation failed.
const INTERNAL_ERROR: i32 = -32603;
/// Negative errno of an item that does not exist.
const ENODEV: i32 = -19;
/// Negative errno of an item that exists already.
const EEXIST: i32 = -17;

/// Error of a call. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RpcError {
    /// Code of JSON-RPC, or a negative errno.
    pub code: i32,
    /// Description: the operation, the parameter and the remedy.
    pub message: String,
    /// Time for which the caller waits until the call succeeds.
    pub retry: Option<Duration>,
    /// True if the item of the call does not exist.
    pub is_missing: bool,
}

impl RpcError {
    fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retry: None, is_missing: false }
    }

    /// The text is not JSON.
    pub(crate) fn parse(what: impl std::fmt::Display) -> Self {
        Self::new(PARSE_ERROR, format!("Parse error: {what}"))
    }

    /// The JSON is no request.
    pub(crate) fn request(what: impl std::fmt::Display) -> Self {
        Self::new(INVALID_REQUEST, format!("Invalid request: {what}"))
    }

    /// The method does not exist. Clients compare the text.
    #[must_use]
    pub fn no_method() -> Self {
        Self::new(METHOD_NOT_FOUND, "Method not found")
    }

    /// A parameter is missing, unknown or invalid.
    pub(crate) fn params(what: impl std::fmt::Display) -> Self {
        Self::new(INVALID_PARAMS, format!("Invalid parameters: {what}"))
    }

    /// No subsystem has this name.
    pub(crate) fn no_subsystem(nqn: &str) -> Self {
        Self {
            is_missing: true,
            ..Self::new(INVALID_PARAMS, format!("Subsystem with NQN '{nqn}' not found"))
        }
    }

    /// No bdev has this name. Clients search for the text of the errno.
    pub(crate) fn no_bdev(name: &str) -> Self {
        Self::no_device(format!("there is no bdev \"{name}\""))
    }

    /// No item of a kind has this name. Clients search for the text of the errno.
    pub(crate) fn no_device(what: impl std::fmt::Display) -> Self {
        Self { is_missing: true, ..Self::new(ENODEV, format!("No such device: {what}")) }
    }

    /// A bdev has this name already. Clients search for the text of the errno.
    pub(crate) fn exists(name: &str) -> Self {
        Self::new(
            EEXIST,
            format!("File exists: there is a bdev \"{name}\" already; choose another name"),
        )
    }

    /// The operation failed.
    pub(crate) fn failed(what: impl std::fmt::Display) -> Self {
        Self::new(INTERNAL_ERROR, what.to_string())
    }
}

impl From<ApiError> for RpcError {
    fn from(error: ApiError) -> Self {
        match error.error {
            ErrorKind::Failed | ErrorKind::Unavailable | ErrorKind::Timeout => Self::failed(error),
            _ => Self::params(error),
        }
    }
}
