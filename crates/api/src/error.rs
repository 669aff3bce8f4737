//! Common form of all errors.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Kind of an error: a word for programs. The HTTP status follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// 400: the request is malformed: its JSON, a field's name or type, or a parameter.
    Malformed,
    /// 401: the token is missing or wrong.
    Unauthorized,
    /// 403: the request comes from a page of another origin.
    Forbidden,
    /// 404: no item has this name, or no resource this path.
    NotFound,
    /// 405: the path exists, but not with this method.
    MethodNotAllowed,
    /// 408: the request took too long to arrive.
    Timeout,
    /// 409: the item exists already, is in use, or is taken by another process.
    Conflict,
    /// 412: the state has a different revision than the request names.
    PreconditionFailed,
    /// 413: the body is too large.
    TooLarge,
    /// 415: the `content-type` of the body is not JSON.
    MediaType,
    /// 422: the request is well-formed, but its values are invalid.
    Invalid,
    /// 500: the operation failed.
    Failed,
    /// 503: the daemon is busy or stopping.
    Unavailable,
}

impl ErrorKind {
    /// Returns the HTTP status.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::Malformed => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::Timeout => 408,
            Self::Conflict => 409,
            Self::PreconditionFailed => 412,
            Self::TooLarge => 413,
            Self::MediaType => 415,
            Self::Invalid => 422,
            Self::Failed => 500,
            Self::Unavailable => 503,
        }
    }
}

/// Error of a call. Nothing has changed, unless the error says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiError {
    /// Kind of the error.
    pub error: ErrorKind,
    /// Description of the error.
    pub what: String,
    /// Place: a config key, a field or a header; empty if the error concerns the whole call.
    #[serde(rename = "where")]
    pub place: String,
    /// Remedy, or allowed values; empty if `what` includes it.
    pub hint: String,
    /// Further errors, in the same form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub more: Vec<ApiError>,
}

impl ApiError {
    /// Creates an error that concerns the whole call.
    #[must_use]
    pub fn new(error: ErrorKind, what: impl Into<String>) -> Self {
        Self {
            error,
            what: what.into(),
            place: String::new(),
            hint: String::new(),
            more: Vec::new(),
        }
    }

    /// Sets the place.
    #[must_use]
    pub fn at(self, place: impl Into<String>) -> Self {
        Self { place: place.into(), ..self }
    }

    /// Sets the remedy.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: hint.into(), ..self }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.what)?;
        if !self.hint.is_empty() {
            write!(f, "; {}", self.hint)?;
        }
        for more in &self.more {
            write!(f, "\n{more}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ApiError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_where_what_and_what_to_do() {
        let error = ApiError::new(ErrorKind::NotFound, "there is no device \"a\"");
        assert_eq!(error.to_string(), "there is no device \"a\"");
        let error = error.at("device").hint("list them");
        assert_eq!(error.to_string(), "device: there is no device \"a\"; list them");
        let json = serde_json::to_value(&error).unwrap();
        let wanted = serde_json::json!({
            "error": "not_found", "what": "there is no device \"a\"", "where": "device",
            "hint": "list them",
        });
        assert_eq!(json, wanted);
        assert_eq!(serde_json::from_value::<ApiError>(json).unwrap(), error);
    }
}
