//! The one form of everything that went wrong.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What kind of trouble: a word for programs. The HTTP status follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// 400: the request is no such request: its JSON, a field's name or type, a parameter.
    Malformed,
    /// 401: a token is needed, or this one is wrong.
    Unauthorized,
    /// 403: a page of another origin asks.
    Forbidden,
    /// 404: nothing has this name, or this path.
    NotFound,
    /// 405: the path is there, the method is not.
    MethodNotAllowed,
    /// 408: the request took too long to come.
    Timeout,
    /// 409: it is there already, in use, or taken by somebody else.
    Conflict,
    /// 412: the state is another one than the caller has seen.
    Changed,
    /// 413: the body is too large.
    TooLarge,
    /// 415: the body is not JSON by its `content-type`.
    MediaType,
    /// 422: it can be read, but cannot be so.
    Invalid,
    /// 500: the daemon could not do it.
    Failed,
    /// 503: the daemon is busy or stopping.
    Unavailable,
}

impl ErrorKind {
    /// The HTTP status.
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
            Self::Changed => 412,
            Self::TooLarge => 413,
            Self::MediaType => 415,
            Self::Invalid => 422,
            Self::Failed => 500,
            Self::Unavailable => 503,
        }
    }
}

/// Why a call did not do what it was asked for. Nothing has changed then, unless it says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiError {
    /// What kind of trouble.
    pub error: ErrorKind,
    /// What is wrong.
    pub what: String,
    /// Where: a key of the config, a field, a header; empty if it is the call as a whole.
    #[serde(rename = "where")]
    pub place: String,
    /// What to do, or what is allowed; empty if `what` says it.
    pub hint: String,
    /// What else is wrong, in the same form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub more: Vec<ApiError>,
}

impl ApiError {
    /// Trouble of this kind, with the call as a whole.
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

    /// The same, at this place.
    #[must_use]
    pub fn at(self, place: impl Into<String>) -> Self {
        Self { place: place.into(), ..self }
    }

    /// The same, with what to do.
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
