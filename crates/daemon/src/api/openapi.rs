//! The OpenAPI document. Paths and types come from the handlers; this module adds the rest.

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use serde_json::Value;
use utoipa::openapi::{Info, OpenApi, OpenApiBuilder};

/// Path of the document.
pub(super) const PATH: &str = "/openapi.json";

/// Returns the document without paths.
pub(super) fn head() -> OpenApi {
    let mut info = Info::new("nvmeof-tgt", env!("CARGO_PKG_VERSION"));
    info.description = Some(
        "Control a running nvmeof-tgt. Keys of the config have the names of target.toml, all other \
         fields are in snake_case. Unknown fields are rejected. Each change is applied completely \
         or not at all; changes are applied one after the other, and requests that only read are \
         served in between. A change that runs or waits for longer than a minute gets the response \
         503, and may still be applied: compare the revision of the state."
            .into(),
    );
    OpenApiBuilder::new().info(info).build()
}

/// Returns the served document, in which integers have the maximum of their type.
///
/// The format alone does not specify it.
pub(super) fn to_json(document: &OpenApi) -> Value {
    let mut value = serde_json::to_value(document).unwrap_or_default();
    debug_assert!(value.is_object(), "every value of the document is valid JSON");
    bound(&mut value);
    value
}

fn bound(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            // utoipa writes these names with a hyphen, unlike the format registry.
            let known = match fields.get("format").and_then(Value::as_str) {
                Some("u-int8" | "uint8") => Some(("uint8", u64::from(u8::MAX))),
                Some("u-int16" | "uint16") => Some(("uint16", u64::from(u16::MAX))),
                Some("u-int32" | "uint32") => Some(("uint32", u64::from(u32::MAX))),
                Some("u-int64" | "uint64") => Some(("uint64", u64::MAX)),
                _ => None,
            };
            if let Some((format, largest)) = known {
                fields.insert("format".into(), format.into());
                fields.entry("maximum").or_insert_with(|| largest.into());
            }
            fields.values_mut().for_each(bound);
        }
        Value::Array(items) => items.iter_mut().for_each(bound),
        _ => {}
    }
}

/// Serves the document.
pub(super) fn serve<S: Clone + Send + Sync + 'static>(
    router: Router<S>,
    document: &Value,
) -> Router<S> {
    let text = document.to_string();
    router.route(PATH, get(async move || ([(CONTENT_TYPE, "application/json")], text)))
}
