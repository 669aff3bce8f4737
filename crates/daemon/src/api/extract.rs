//! Extractors: the parts of a request as types. All of them return errors as [`ApiError`].

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::{CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_MATCH};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::{Json, http};
use nvmeof_api::{ApiError, ErrorKind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::error_response::{BODY_MAX, ErrorResponse};
use crate::control::{ChangeOptions, ControlState};

/// A JSON body.
#[derive(Debug)]
pub(super) struct Body<T>(pub(super) T);

/// Parameters of the path.
#[derive(Debug)]
pub(super) struct Segments<T>(pub(super) T);

/// A request without a query.
#[derive(Debug)]
pub(super) struct NoQuery;

/// Conditions of a change: `if-match` and `dry-run`.
#[derive(Debug)]
pub(super) struct ChangeParams(pub(super) ChangeOptions);

/// Conditions of a change that `force` permits although hosts use the removed item.
#[derive(Debug)]
pub(super) struct ForceParams {
    pub(super) options: ChangeOptions,
    pub(super) force: bool,
}

/// Query of a change.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DryRun {
    /// Only returns the changes, without making them.
    #[serde(default)]
    #[param(required = false)]
    dry_run: bool,
}

/// Query of a change that removes something.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Forced {
    /// Only returns the changes, without making them.
    #[serde(default)]
    #[param(required = false)]
    dry_run: bool,
    /// Proceeds even if hosts are connected through it, and disconnects them.
    #[serde(default)]
    #[param(required = false)]
    force: bool,
}

/// Header of a change.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only describes the header, which is read from the request itself")]
pub(super) struct IfMatch {
    /// Fails unless the state has this revision, the `etag` of an earlier response.
    #[param(rename = "if-match")]
    if_match: Option<String>,
}

/// A response with the revision of the state.
#[derive(Debug)]
pub(super) struct WithEtag<T> {
    revision: String,
    body: T,
}

impl<T> WithEtag<T> {
    /// Tags a body with the current revision.
    pub(super) fn new(running: &ControlState, body: T) -> Self {
        Self::of(running.revision(), body)
    }

    /// Tags a body with a given revision.
    pub(super) fn of(revision: String, body: T) -> Self {
        Self { revision, body }
    }
}

impl<T: Serialize> IntoResponse for WithEtag<T> {
    fn into_response(self) -> Response {
        let tag = HeaderValue::from_str(&format!("\"{}\"", self.revision));
        debug_assert!(tag.is_ok(), "a revision is ASCII");
        let mut response = Json(self.body).into_response();
        if let Ok(tag) = tag {
            response.headers_mut().insert(ETAG, tag);
        }
        response
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ErrorResponse;

    async fn from_request(request: Request, state: &S) -> Result<Self, ErrorResponse> {
        if !is_json(request.headers()) {
            let error = ApiError::new(ErrorKind::MediaType, "the body is not said to be JSON");
            return Err(ErrorResponse(error.at("content-type").hint("send application/json")));
        }
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            let error = if rejection.status() == http::StatusCode::PAYLOAD_TOO_LARGE {
                let what = format!("the body has more than {BODY_MAX} bytes");
                ApiError::new(ErrorKind::TooLarge, what)
            } else {
                ApiError::new(ErrorKind::Malformed, rejection.body_text())
            };
            ErrorResponse(error.at("body"))
        })?;
        parse(&bytes).map(Self).map_err(ErrorResponse)
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let kind = value.split(';').next().unwrap_or("").trim();
    kind.eq_ignore_ascii_case("application/json")
        || kind.eq_ignore_ascii_case("application/merge-patch+json")
}

/// Parses a JSON value; an error includes the path of the wrong value.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut text = serde_json::Deserializer::from_slice(bytes);
    let malformed = |what: String, place: String| {
        // The names that serde_path_to_error uses for the whole value and for unnamed parts.
        let place = if matches!(place.as_str(), "." | "?") { "body".into() } else { place };
        ApiError::new(ErrorKind::Malformed, what).at(place).hint("GET /openapi.json says what is")
    };
    let value = serde_path_to_error::deserialize(&mut text)
        .map_err(|error| malformed(error.inner().to_string(), error.path().to_string()))?;
    text.end().map_err(|error| malformed(error.to_string(), "body".into()))?;
    Ok(value)
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Segments<T> {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ErrorResponse> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(segments)) => Ok(Self(segments)),
            Err(rejection) => {
                let error = ApiError::new(ErrorKind::Malformed, rejection.body_text());
                Err(ErrorResponse(error.at("path")))
            }
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for NoQuery {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ErrorResponse> {
        match parts.uri.query() {
            None | Some("") => Ok(Self),
            Some(_) => Err(bad_query("this call has no parameters".into())),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ChangeParams {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ErrorResponse> {
        let DryRun { dry_run } = query(parts)?;
        Ok(Self(ChangeOptions { seen: seen(&parts.headers), dry_run }))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ForceParams {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ErrorResponse> {
        let Forced { dry_run, force } = query(parts)?;
        Ok(Self { options: ChangeOptions { seen: seen(&parts.headers), dry_run }, force })
    }
}

fn query<T: DeserializeOwned>(parts: &Parts) -> Result<T, ErrorResponse> {
    let parsed = Query::<T>::try_from_uri(&parts.uri);
    parsed.map(|Query(query)| query).map_err(|rejection| bad_query(rejection.body_text()))
}

fn bad_query(what: String) -> ErrorResponse {
    ErrorResponse(ApiError::new(ErrorKind::Malformed, what).at("query"))
}

/// Returns the revisions in `if-match`; weak tags count as strong ones.
fn seen(headers: &HeaderMap) -> Option<Vec<String>> {
    let mut all = headers.get_all(IF_MATCH).iter().peekable();
    all.peek()?;
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let tags = all.map(text).collect::<Vec<_>>().join(",");
    let bare = |tag: &str| tag.trim().trim_start_matches("W/").trim_matches('"').to_owned();
    Some(tags.split(',').map(bare).collect())
}

#[cfg(test)]
mod tests {
    use nvmeof_api::document::Document;

    use super::*;

    #[test]
    fn what_is_wrong_with_a_body_is_told_with_its_place() {
        for (text, place, part) in [
            (r#"{"device": [{"name": 1, "type": "ram"}]}"#, "device[0].name", "invalid type"),
            (r#"{"subsystem": [{"nqn": "a", "x": 1}]}"#, "subsystem[0].x", "unknown field `x`"),
            ("{", "body", "EOF"),
            ("{} {}", "body", "trailing"),
            ("[]", "body", "invalid length"),
        ] {
            let error = parse::<Document>(text.as_bytes()).unwrap_err();
            assert_eq!(
                (error.error, error.place.as_str()),
                (ErrorKind::Malformed, place),
                "{text}"
            );
            assert!(error.what.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn if_match_is_a_list_of_tags() {
        let mut headers = HeaderMap::new();
        assert_eq!(seen(&headers), None);
        headers.append(IF_MATCH, HeaderValue::from_static("\"a-1\", W/\"a-2\""));
        headers.append(IF_MATCH, HeaderValue::from_static("*"));
        assert_eq!(seen(&headers), Some(vec!["a-1".into(), "a-2".into(), "*".into()]));
    }
}
