//! Calls of methods, as queries and changes of the control plane.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvmeof_api::document::Document;
use nvmeof_api::{ApiError, ErrorKind};
use nvmeof_rpc::{
    BdevProperties, EditMethod, EditResult, Method, MethodKind, Params, Request, Response,
    RpcError, find,
};
use serde_json::Value;

use super::snapshot::{activity, state};
use crate::control::{ControlHandle, ControlState};

/// Pause between attempts of a call that waits for an item.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Maximum time that a call waits for an item, because it occupies its connection.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// The methods on the control plane.
#[derive(Debug, Clone)]
pub(super) struct Service {
    control: ControlHandle,
    properties: Properties,
}

/// Properties of bdevs that no document has.
#[derive(Debug, Clone, Default)]
struct Properties(Arc<Mutex<BdevProperties>>);

impl Properties {
    /// Returns the properties of the bdevs that exist, and drops the others.
    fn of(&self, running: &ControlState) -> BdevProperties {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|name, _| running.document().device(name).is_some());
        all.clone()
    }

    fn add(&self, more: BdevProperties) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(more);
    }
}

impl Service {
    pub(super) fn new(control: ControlHandle) -> Self {
        Self { control, properties: Properties::default() }
    }

    /// Runs a request.
    pub(super) async fn answer(&self, request: Request) -> Response {
        let result = match request.call() {
            Ok((name, params)) => self.call(name, params).await,
            Err(error) => Err(error),
        };
        request.answer(result)
    }

    async fn call(&self, name: &str, params: Params) -> Result<Value, RpcError> {
        let method = find(name).ok_or_else(RpcError::no_method)?;
        let started = Instant::now();
        let mut has_waited = false;
        let result = loop {
            match self.attempt(method, params.clone()).await {
                Err(error)
                    if error.retry.is_some_and(|limit| started.elapsed() < limit.min(WAIT_MAX)) =>
                {
                    if !has_waited {
                        tracing::debug!(method = name, %error, "RPC call waits");
                        has_waited = true;
                    }
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                result => break result,
            }
        };
        match &result {
            Ok(_) => tracing::debug!(method = name, "RPC call"),
            Err(error) => {
                tracing::debug!(method = name, code = error.code, %error, "RPC call failed");
            }
        }
        result
    }

    async fn attempt(&self, method: &'static Method, params: Params) -> Result<Value, RpcError> {
        let properties = self.properties.clone();
        match &method.kind {
            MethodKind::Query(query) => {
                let job = async move |running: &mut ControlState| {
                    query.run(params, &state(running, properties.of(running)))
                };
                self.control.call(job).await?
            }
            MethodKind::Activity(method) => {
                let job = async move |running: &mut ControlState| {
                    let activity = activity(running).await;
                    method.run(params, &state(running, properties.of(running)), &activity)
                };
                self.control.call(job).await?
            }
            MethodKind::Edit(edit) => self.edit(edit, params).await,
        }
    }

    /// Changes the running state by an edit of its document, and keeps the properties of bdevs.
    ///
    /// The control loop stores them before the next change begins, which therefore reads them.
    async fn edit(&self, edit: &'static EditMethod, params: Params) -> Result<Value, RpcError> {
        let outcome: Arc<Mutex<Option<Result<EditResult, RpcError>>>> = Arc::default();
        let (into, properties) = (Arc::clone(&outcome), self.properties.clone());
        let run = move |running: &ControlState, document: &mut Document| {
            let done = edit.run(params, &state(running, properties.of(running)), document);
            let rejected = match &done {
                Ok(_) => Ok(()),
                Err(error) if error.is_missing => {
                    Err(ApiError::new(ErrorKind::NotFound, error.to_string()))
                }
                Err(error) => Err(ApiError::new(ErrorKind::Invalid, error.to_string())),
            };
            *into.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            rejected
        };
        let (applied, properties) = (Arc::clone(&outcome), self.properties.clone());
        let on_applied = move || {
            let mut done = applied.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(Ok(done)) = &mut *done {
                properties.add(std::mem::take(&mut done.properties));
            }
        };
        let change = self.control.change_then(run, on_applied).await;
        let done = outcome.lock().unwrap_or_else(PoisonError::into_inner);
        match (change, &*done) {
            (_, Some(Err(error))) => Err(error.clone()),
            (Ok(_), Some(Ok(done))) => Ok(done.result.clone()),
            (Err(error), _) => Err(error.into()),
            (Ok(_), None) => unreachable!("a change has run its edit"),
        }
    }
}
