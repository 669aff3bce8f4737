//! Requests, batches and responses of JSON-RPC 2.0.

use serde_json::{Map, Value, json};

use crate::{Params, RpcError};

/// Maximum requests of a batch.
pub const BATCH_MAX: usize = 1024;

/// A JSON value from a client.
#[derive(Debug)]
pub enum Incoming {
    /// One request.
    One(Request),
    /// Requests that one array of responses answers, in order.
    Batch(Vec<Request>),
    /// A batch of no requests or of too many; none of them runs.
    Invalid(RpcError),
}

/// A request of a client.
#[derive(Debug)]
pub struct Request {
    id: Value,
    call: Result<(String, Params), RpcError>,
}

/// A response, if the request expects one.
#[derive(Debug)]
pub struct Response(Option<Value>);

impl Incoming {
    /// Reads a JSON value.
    #[must_use]
    pub fn of(value: Value) -> Self {
        match value {
            Value::Array(all) if all.is_empty() => {
                Self::Invalid(RpcError::request("the batch is empty"))
            }
            Value::Array(all) if all.len() > BATCH_MAX => Self::Invalid(RpcError::request(
                format!("the batch has {} requests; send at most {BATCH_MAX}", all.len()),
            )),
            Value::Array(all) => Self::Batch(all.into_iter().map(Request::of).collect()),
            one => Self::One(Request::of(one)),
        }
    }
}

impl Request {
    fn of(value: Value) -> Self {
        let Value::Object(mut keys) = value else {
            let call = Err(RpcError::request("it is no JSON object"));
            return Self { id: Value::Null, call };
        };
        let id = match keys.remove("id").unwrap_or_default() {
            id @ (Value::Null | Value::String(_) | Value::Number(_)) => id,
            _ => {
                let call = Err(RpcError::request("id is neither text nor a number"));
                return Self { id: Value::Null, call };
            }
        };
        Self { id, call: call(keys) }
    }

    /// Returns the method's name and its parameters.
    ///
    /// # Errors
    /// The value is no request.
    pub fn call(&self) -> Result<(&str, Params), RpcError> {
        let (method, params) = self.call.as_ref().map_err(Clone::clone)?;
        Ok((method, params.clone()))
    }

    /// Answers the request. A success without an ID has no response; an error always has one.
    #[must_use]
    pub fn answer(self, result: Result<Value, RpcError>) -> Response {
        match result {
            Ok(_) if self.id.is_null() => Response(None),
            Ok(result) => {
                Response(Some(json!({"jsonrpc": "2.0", "id": self.id, "result": result})))
            }
            Err(error) => Response(Some(failure(&self.id, &error))),
        }
    }
}

impl Response {
    /// Creates the response to bytes that are no request.
    #[must_use]
    pub fn to_unknown(error: &RpcError) -> Self {
        Self(Some(failure(&Value::Null, error)))
    }

    /// Returns the JSON text to send, if there is a response.
    #[must_use]
    pub fn into_text(self) -> Option<String> {
        self.0.map(|value| value.to_string())
    }
}

fn call(mut keys: Map<String, Value>) -> Result<(String, Params), RpcError> {
    if keys.remove("jsonrpc").is_some_and(|version| version != "2.0") {
        return Err(RpcError::request("jsonrpc is not \"2.0\""));
    }
    let Some(Value::String(method)) = keys.remove("method") else {
        return Err(RpcError::request("method is missing, or no text"));
    };
    let params = match keys.remove("params").unwrap_or_default() {
        Value::Null => Map::new(),
        Value::Object(params) => params,
        Value::Array(params) if params.is_empty() => Map::new(),
        Value::Array(_) => return Err(RpcError::params("parameters have names here")),
        _ => return Err(RpcError::request("params is no JSON object")),
    };
    match keys.keys().next() {
        None => Ok((method, Params::new(params))),
        Some(key) => Err(RpcError::request(format!("there is no key \"{key}\""))),
    }
}

fn failure(id: &Value, error: &RpcError) -> Value {
    let error = json!({"code": error.code, "message": error.message});
    json!({"jsonrpc": "2.0", "id": id, "error": error})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(value: Value) -> Request {
        match Incoming::of(value) {
            Incoming::One(request) => request,
            other => panic!("{other:?}"),
        }
    }

    /// Answers a request that has to fail.
    fn failed(value: Value) -> (Value, i64) {
        let request = one(value);
        let error = request.call().unwrap_err();
        let answer: Value =
            serde_json::from_str(&request.answer(Err(error)).into_text().unwrap()).unwrap();
        assert_eq!(answer["jsonrpc"], "2.0");
        (answer["id"].clone(), answer["error"]["code"].as_i64().unwrap())
    }

    #[test]
    fn what_is_no_request_is_answered_with_a_code() {
        assert_eq!(failed(json!({"id": 1})), (json!(1), -32600));
        assert_eq!(failed(json!({"id": "a", "method": 5})), (json!("a"), -32600));
        assert_eq!(failed(json!({"jsonrpc": "1.0", "id": 1, "method": "a"})), (json!(1), -32600));
        assert_eq!(failed(json!({"id": {}, "method": "a"})), (Value::Null, -32600));
        assert_eq!(failed(json!({"id": 1, "method": "a", "params": 5})), (json!(1), -32600));
        assert_eq!(failed(json!({"id": 1, "method": "a", "params": [5]})), (json!(1), -32602));
        assert_eq!(failed(json!({"id": 1, "method": "a", "x": 5})), (json!(1), -32600));
    }

    #[test]
    fn a_success_without_an_id_has_no_response() {
        let request = one(json!({"method": "a", "params": null}));
        assert_eq!(request.call().unwrap().0, "a");
        assert_eq!(request.answer(Ok(json!(true))).into_text(), None);
        let request = one(json!({"jsonrpc": "2.0", "method": "a", "id": 7}));
        let text = request.answer(Ok(json!(true))).into_text().unwrap();
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer, json!({"jsonrpc": "2.0", "id": 7, "result": true}));
    }

    #[test]
    fn a_batch_has_a_bounded_number_of_requests() {
        let Incoming::Batch(all) =
            Incoming::of(json!([{"method": "a", "id": 1}, 5, {"method": "b"}]))
        else {
            panic!("no batch")
        };
        let codes: Vec<_> = all.iter().map(|one| one.call().map_err(|error| error.code)).collect();
        assert!(matches!(codes[..], [Ok(_), Err(-32600), Ok(_)]), "{codes:?}");
        let of = |count| Incoming::of(vec![json!({"method": "a"}); count].into());
        assert!(matches!(of(BATCH_MAX), Incoming::Batch(all) if all.len() == BATCH_MAX));
        for count in [0, BATCH_MAX + 1] {
            let Incoming::Invalid(error) = of(count) else { panic!("{count} are a batch") };
            assert_eq!(error.code, -32600, "{error}");
        }
    }
}
