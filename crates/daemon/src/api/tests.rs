//! Tests that the document matches the router, and that bad requests get the right errors.

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode};
use nvmeof_api::{ApiError, ErrorKind};
use serde_json::Value;
use tower::ServiceExt as _;

use super::*;
use crate::control::request_channel;

const METHODS: [Method; 6] =
    [Method::GET, Method::PUT, Method::POST, Method::DELETE, Method::PATCH, Method::OPTIONS];

/// Returns the calls without a daemon: a call that reaches the handle gets "the daemon is
/// stopping".
fn calls() -> (Router, Value) {
    let (handle, requests) = request_channel();
    drop(requests);
    service(handle)
}

async fn call(
    router: &Router,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (StatusCode, Result<ApiError, String>) {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body.to_owned())).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    (status, serde_json::from_slice(&bytes).map_err(|_| text))
}

/// Replaces the parameters of a path.
fn filled(path: &str) -> String {
    path.replace("{nsid}", "1").replace("{id}", "1").replace(['{', '}'], "")
}

fn operations(document: &Value) -> Vec<(String, Method, Value)> {
    let paths = document["paths"].as_object().unwrap();
    let all = paths.iter().flat_map(|(path, item)| {
        item.as_object().unwrap().iter().map(move |(method, operation)| {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            (path.clone(), method, operation.clone())
        })
    });
    all.collect()
}

#[tokio::test]
async fn every_call_of_the_document_is_there_and_no_other_method() {
    let (router, document) = calls();
    let operations = operations(&document);
    assert!(operations.len() > 25, "{}", operations.len());
    for path in document["paths"].as_object().unwrap().keys() {
        for method in METHODS {
            let described = operations.iter().any(|(at, of, _)| at == path && *of == method);
            let (status, _) = call(&router, method.clone(), &filled(path), &[], "").await;
            let there = !matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED);
            assert_eq!(there, described, "{method} {path}: {status}");
        }
    }
    let (status, error) = call(&router, Method::GET, "/v1/nothing", &[], "").await;
    assert_eq!((status, error.unwrap().error), (StatusCode::NOT_FOUND, ErrorKind::NotFound));
    let (status, text) = call(&router, Method::GET, openapi::PATH, &[], "").await;
    assert_eq!(status, StatusCode::OK);
    let served: Value = serde_json::from_str(&text.unwrap_err()).unwrap();
    assert_eq!(served, document);
}

#[test]
fn every_call_says_what_it_takes_and_answers() {
    let (_, document) = calls();
    let mut names = std::collections::BTreeSet::new();
    for (path, method, operation) in operations(&document) {
        let at = format!("{method} {path}");
        let name = operation["operationId"].as_str().unwrap_or_else(|| panic!("{at}: no name"));
        assert!(names.insert(name.to_owned()), "{at}: {name} is another's name, too");
        // A trace is a stream of lines.
        let is_json = |schema: &Value| {
            let of = |kind: &str| schema["content"][kind]["schema"].is_object();
            of("application/json") || of("application/x-ndjson")
        };
        let responses = &operation["responses"];
        if path.starts_with("/v1/") {
            assert!(is_json(&responses["200"]), "{at}: no type of its answer");
            let error = &responses["default"]["content"]["application/json"]["schema"]["$ref"];
            assert_eq!(error, "#/components/schemas/ApiError", "{at}");
        }
        let has_body = matches!(method, Method::POST | Method::PUT | Method::PATCH);
        let without = ["/v1/save", "/v1/reload", "/v1/subsystems/{nqn}/hosts/{host}"];
        if has_body && !without.contains(&path.as_str()) {
            assert!(is_json(&operation["requestBody"]), "{at}: no type of its body");
        }
        // Each parameter of the path is described.
        let told = operation["parameters"].as_array().map_or(&[][..], Vec::as_slice);
        for part in path.split('/').filter_map(|part| part.strip_prefix('{')) {
            let part = part.trim_end_matches('}');
            assert!(told.iter().any(|one| one["name"] == part), "{at}: {part} is not told of");
        }
    }
    let text = document.to_string();
    let refs = text.split("\"$ref\":\"#/components/schemas/").skip(1);
    for name in refs.filter_map(|rest| rest.split('"').next()) {
        assert!(document["components"]["schemas"][name].is_object(), "no schema {name}");
    }
}

#[test]
fn integers_are_told_with_their_bounds() {
    let (_, document) = calls();
    let of = |schema: &str, key: &str| {
        let found = &document["components"]["schemas"][schema]["properties"][key];
        (found["minimum"].as_u64(), found["maximum"].as_u64())
    };
    assert_eq!(of("Listener", "port"), (Some(0), Some(65535)));
    assert_eq!(of("Namespace", "nsid"), (Some(1), Some(0xffff_fffe)));
    assert_eq!(of("TraceRequest", "slower_than_us"), (Some(0), Some(u64::MAX)));
    assert_eq!(of("TraceRequest", "seconds"), (Some(1), Some(60)));
    let path = &document["paths"]["/v1/connections/{id}"]["get"]["parameters"][0]["schema"];
    assert_eq!((&path["maximum"], &path["format"]), (&u64::MAX.into(), &"uint64".into()));
}

#[tokio::test]
async fn without_a_token_nobody_asks_by_a_name() {
    let (router, _) = calls();
    let router = error_response::by_address(router);
    for (host, kind) in [
        ("127.0.0.1:4480", ErrorKind::Unavailable),
        ("192.0.2.1", ErrorKind::Unavailable),
        ("[::1]:4480", ErrorKind::Unavailable),
        ("localhost:4480", ErrorKind::Unavailable),
        ("evil.example:4480", ErrorKind::Forbidden),
        ("127.0.0.1.evil.example", ErrorKind::Forbidden),
        ("", ErrorKind::Forbidden),
    ] {
        // As from a page with a DNS name that was rebound to our address.
        let origin = format!("http://{host}");
        let headers = [("host", host), ("origin", origin.as_str())];
        let (_, error) = call(&router, Method::GET, "/v1/status", &headers, "").await;
        assert_eq!(error.unwrap().error, kind, "{host}");
    }
}

#[tokio::test]
async fn bad_requests_are_told_apart() {
    let (router, _) = calls();
    let json = ("content-type", "application/json");
    let large = format!("{{\"log\": \"{}\"}}", "x".repeat(error_response::BODY_MAX));
    let namespaces = "/v1/subsystems/n/namespaces/x";
    type Case<'a> = (Method, &'a str, &'a [(&'a str, &'a str)], &'a str, ErrorKind);
    let cases: [Case<'_>; 12] = [
        (Method::PUT, "/v1/config", &[json], "{", ErrorKind::Malformed),
        (Method::PUT, "/v1/config", &[json], "{\"x\": 1}", ErrorKind::Malformed),
        (Method::PUT, "/v1/config", &[json], "{\"log\": 1}", ErrorKind::Malformed),
        (Method::PUT, "/v1/config", &[], "{}", ErrorKind::MediaType),
        (Method::PUT, "/v1/config", &[json], &large, ErrorKind::TooLarge),
        (Method::PUT, "/v1/config?x=1", &[json], "{}", ErrorKind::Malformed),
        (Method::PUT, "/v1/config?dry_run=maybe", &[json], "{}", ErrorKind::Malformed),
        (Method::GET, "/v1/config?x=1", &[], "", ErrorKind::Malformed),
        (Method::GET, namespaces, &[], "", ErrorKind::Malformed),
        (Method::PUT, "/v1/config", &[json], "{}", ErrorKind::Unavailable),
        (
            Method::GET,
            "/v1/status",
            &[("origin", "http://evil.example"), ("host", "localhost")],
            "",
            ErrorKind::Forbidden,
        ),
        (
            Method::GET,
            "/v1/status",
            &[("origin", "http://localhost"), ("host", "localhost")],
            "",
            ErrorKind::Unavailable,
        ),
    ];
    for (method, path, headers, body, kind) in cases {
        let shown: String = body.chars().take(40).collect();
        let (status, error) = call(&router, method, path, headers, body).await;
        let error = error.unwrap_or_else(|text| panic!("{path} {shown}: {status} {text}"));
        assert_eq!(
            (error.error, status.as_u16()),
            (kind, kind.status()),
            "{path} {shown}: {error}"
        );
        assert!(!error.what.is_empty());
    }
}
