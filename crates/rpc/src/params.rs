//! Parameters of a method. Each is read once; a parameter that no one reads is an error.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::RpcError;

/// Name of the one target, which SPDK's clients may give.
pub(crate) const TARGET: &str = "nvmf_tgt";

/// Parameters of a method, or the keys of an object among them.
#[derive(Debug, Clone, Default)]
pub struct Params {
    keys: Map<String, Value>,
    /// Prefix of the keys in messages, like `namespace.`.
    path: String,
}

impl Params {
    /// Creates the parameters of a call.
    #[must_use]
    pub fn new(keys: Map<String, Value>) -> Self {
        Self { keys, path: String::new() }
    }

    /// Returns an optional parameter; null counts as absent.
    pub(crate) fn get<T: DeserializeOwned>(&mut self, key: &str) -> Result<Option<T>, RpcError> {
        match self.keys.remove(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value)
                .map(Some)
                .map_err(|error| RpcError::params(format!("{}{key}: {error}", self.path))),
        }
    }

    /// Returns a required parameter.
    pub(crate) fn need<T: DeserializeOwned>(&mut self, key: &str) -> Result<T, RpcError> {
        let value = self.get(key)?;
        value.ok_or_else(|| RpcError::params(format!("{}{key} is missing; set it", self.path)))
    }

    /// Returns a flag; false if absent.
    pub(crate) fn flag(&mut self, key: &str) -> Result<bool, RpcError> {
        Ok(self.get(key)?.unwrap_or(false))
    }

    /// Returns a required object.
    pub(crate) fn object(&mut self, key: &str) -> Result<Self, RpcError> {
        let keys = self.need(key)?;
        Ok(Self { keys, path: format!("{}{key}.", self.path) })
    }

    /// Accepts parameters that have no effect here.
    pub(crate) fn ignore(&mut self, keys: &[&str]) {
        for key in keys {
            if let Some(value) = self.keys.remove(*key) {
                tracing::debug!(key = format!("{}{key}", self.path), %value, "RPC parameter has no effect");
            }
        }
    }

    /// Accepts all parameters of a method without effect here.
    pub(crate) fn ignore_all(&mut self) {
        self.keys.clear();
    }

    /// Rejects a parameter that is not supported, unless it is off.
    pub(crate) fn refuse(&mut self, key: &str, why: &str) -> Result<(), RpcError> {
        match self.keys.remove(key) {
            None | Some(Value::Null | Value::Bool(false)) => Ok(()),
            Some(value)
                if value == 0 || value == "" || value.as_array().is_some_and(Vec::is_empty) =>
            {
                Ok(())
            }
            Some(value) => Err(RpcError::params(format!(
                "{}{key} = {value} is not supported: {why}; leave the parameter out",
                self.path
            ))),
        }
    }

    /// Checks the name of the target, if there is one.
    pub(crate) fn target(&mut self) -> Result<(), RpcError> {
        match self.get::<String>("tgt_name")? {
            Some(name) if name != TARGET => Err(RpcError::params(format!(
                "tgt_name: Unable to find target \"{name}\"; there is only \"{TARGET}\""
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the NQN of a subsystem of the target.
    pub(crate) fn subsystem(&mut self) -> Result<String, RpcError> {
        self.target()?;
        self.need("nqn")
    }

    /// Checks that each parameter was read.
    pub(crate) fn finish(&self) -> Result<(), RpcError> {
        match self.keys.keys().next() {
            None => Ok(()),
            Some(key) => Err(RpcError::params(format!(
                "there is no parameter {}{key}; leave it out",
                self.path
            ))),
        }
    }
}
