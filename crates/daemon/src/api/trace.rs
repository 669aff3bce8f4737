//! `/v1/trace`: traces commands from capsule to completion.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use http_body_util::channel::{Channel, Sender};
use nvmeof_api::{ApiError, ErrorKind, TRACE_SECONDS_MAX, TraceLine, TraceRequest};
use tokio::time::Instant;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error_response::ErrorResponse;
use super::extract::{Body as Received, NoQuery};
use super::handle::Handle;
use crate::control::TraceId;

/// Interval between reads of the traced commands.
const LOOK: Duration = Duration::from_millis(200);
/// Reads after which an empty line is written, to detect a disconnected client.
const LOOKS_TO_LINE: u32 = 5;
/// Maximum time that a client may accept nothing.
const STALL: Duration = Duration::from_secs(10);
/// Maximum pieces of the answer that wait for the client.
const PIECES: usize = 4;

pub(super) fn router() -> OpenApiRouter<Handle> {
    OpenApiRouter::new().routes(routes!(post))
}

/// Traces commands for a while.
///
/// The answer is a stream of JSON objects, one per line, written as commands end. The last object
/// is of the kind `end`. Empty lines have no meaning.
#[utoipa::path(
    post,
    path = "/v1/trace",
    operation_id = "trace",
    request_body = TraceRequest,
    responses(
        (status = OK, body = TraceLine, content_type = "application/x-ndjson"),
        (status = "default", body = ApiError),
    ),
)]
async fn post(
    State(handle): State<Handle>,
    _: NoQuery,
    Received(wanted): Received<TraceRequest>,
) -> Result<Response, ErrorResponse> {
    if !(1..=TRACE_SECONDS_MAX).contains(&wanted.seconds) {
        let what = format!("{} is out of range", wanted.seconds);
        let hint = format!("1 to {TRACE_SECONDS_MAX}");
        return Err(ApiError::new(ErrorKind::Invalid, what).at("seconds").hint(hint).into());
    }
    let time = Duration::from_secs(wanted.seconds.into());
    // A separate task: a client that disconnects at any moment must not leave the trace running.
    let start = tokio::spawn(async move {
        let session = handle.call(async move |running| running.start_trace(&wanted)).await??;
        let (sender, body) = Channel::<Bytes, Infallible>::new(PIECES);
        tokio::spawn(tell(handle, session, time, sender));
        Ok::<_, ErrorResponse>(body)
    });
    let body = start.await.map_err(|error| {
        ErrorResponse(ApiError::new(ErrorKind::Failed, format!("the trace has ended: {error}")))
    })??;
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], Body::new(body)).into_response())
}

/// Writes traced commands until the time has passed or the client stops reading; then ends the
/// trace.
async fn tell(
    handle: Handle,
    session: TraceId,
    time: Duration,
    mut sender: Sender<Bytes, Infallible>,
) {
    let end = Instant::now() + time;
    let (mut commands, mut dropped, mut looks) = (0, 0, 0);
    let mut is_read = true;
    while is_read && Instant::now() < end {
        tokio::time::sleep_until(end.min(Instant::now() + LOOK)).await;
        let Ok(batch) = handle.call(async move |running| running.read_trace(session).await).await
        else {
            break;
        };
        dropped += batch.dropped;
        let mut text = Vec::new();
        for command in batch.commands {
            commands += 1;
            push_line(&mut text, &TraceLine::Command(Box::new(command)));
        }
        looks += 1;
        if text.is_empty() && looks % LOOKS_TO_LINE == 0 {
            text.push(b'\n');
        }
        is_read = text.is_empty() || send(&mut sender, text).await;
    }
    // Fails only if the daemon stops.
    let _ = handle.call(async move |running| running.end_trace(session)).await;
    if is_read {
        let mut text = Vec::new();
        push_line(&mut text, &TraceLine::End { commands, dropped });
        send(&mut sender, text).await;
    }
}

/// Sends a piece; returns false if the client has disconnected or accepts nothing.
async fn send(sender: &mut Sender<Bytes, Infallible>, text: Vec<u8>) -> bool {
    matches!(tokio::time::timeout(STALL, sender.send_data(text.into())).await, Ok(Ok(())))
}

fn push_line(text: &mut Vec<u8>, line: &TraceLine) {
    // Writing to memory cannot fail, and every value is valid JSON.
    if serde_json::to_writer(&mut *text, line).is_ok() {
        text.push(b'\n');
    }
}
