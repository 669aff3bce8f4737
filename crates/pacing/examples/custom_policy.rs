//! A custom admission policy: at most a number of commands per device in flight.
//!
//! ```text
//! cargo run -p nvmeof-pacing --example custom_policy
//! ```
//!
//! A policy answers one question: may this command start now? Everything else is the pacer's: the
//! queues, the order, the permits. A policy that is built in also gets a variant of `PolicyConfig`
//! and of `AnyPolicy`; see CONTRIBUTING.md.

use std::collections::HashMap;

use nvmeof_pacing::policy::{
    Admission, AdmissionPolicy, AdmissionRequest, AnyPolicy, CompletedCommand, Grant,
};
use nvmeof_pacing::{CommandOutcome, Cost, FlowConfig, Nanos, Pacer, PacerConfig, TooLarge};

/// At most `limit` commands per device in flight on this core.
#[derive(Debug)]
struct DeviceLimit {
    limit: u32,
    in_flight: HashMap<u32, u32>,
}

impl AdmissionPolicy for DeviceLimit {
    fn admit(&mut self, request: &AdmissionRequest, _now: Nanos) -> Admission {
        let in_flight = self.in_flight.entry(request.device).or_default();
        if *in_flight == self.limit {
            // The pacer asks for other devices, and for this one after a release.
            return Admission::DeviceBusy;
        }
        *in_flight += 1;
        Admission::Granted(Grant::default())
    }

    fn release(&mut self, done: &CompletedCommand, _grant: Grant, _now: Nanos) {
        // Called once for every grant, whatever the outcome.
        *self.in_flight.entry(done.device).or_default() -= 1;
    }
}

#[expect(clippy::print_stdout, reason = "a person reads it")]
fn main() -> Result<(), TooLarge> {
    let policy = DeviceLimit { limit: 2, in_flight: HashMap::new() };
    let mut pacer = Pacer::new(vec![AnyPolicy::Custom(Box::new(policy))], PacerConfig::default());
    // A flow is one connection's commands for one device.
    let flows = [0, 1].map(|device| pacer.add_flow(FlowConfig { device, ..FlowConfig::weight(1) }));
    for (device, flow) in flows.into_iter().enumerate() {
        for nth in 0..4 {
            // The token is the caller's name for the command.
            pacer.enqueue(flow, Cost::data(128 << 10), (device * 10 + nth) as u64)?;
        }
    }

    // Time is an argument: a reactor passes its clock, this loop counts turns.
    let mut in_flight = Vec::new();
    for now in 0.. {
        while let Some((token, permit)) = pacer.next(now) {
            println!("turn {now}: device {} command {} starts", token / 10, token % 10);
            in_flight.push(permit);
        }
        if in_flight.is_empty() {
            break;
        }
        // The oldest command completes. Its permit goes back exactly once.
        pacer.release(in_flight.remove(0), CommandOutcome::Completed, now);
    }
    Ok(())
}
