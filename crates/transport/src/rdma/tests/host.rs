//! A scripted host: sends capsules, takes responses, owns memory.

use std::sync::Arc;

use nvmeof_loopback_verbs::{LoopbackCompletions, LoopbackDevice, LoopbackEndpoint};
use nvmeof_verbs::{
    CompletionQueue, ConnectParams, ConnectionEvent, Device, Endpoint, EndpointSpec, SendOp,
    SendWr, SgeList, WcStatus, WorkCompletion, WrId,
};
use nvmeof_wire::zerocopy::{FromBytes, IntoBytes};
use nvmeof_wire::{Cqe, Sqe};

use super::World;
use super::memory::{Memory, post_receive, post_send};

/// Bytes of a capsule's slot, and of a response's.
const CAPSULE: usize = 64 + 8192;
const RESPONSE: usize = 64;
/// Slots for capsules.
const CAPSULES: usize = 64;
const RESPONSES: usize = 256;

#[derive(Debug)]
pub(super) struct Host {
    pub(super) endpoint: LoopbackEndpoint,
    completions: LoopbackCompletions,
    capsules: Memory,
    responses: Memory,
    next: usize,
    pub(super) device: Arc<LoopbackDevice>,
    /// Responses, with the key that each invalidated.
    pub(super) came: Vec<(Cqe, Option<u32>)>,
    pub(super) events: Vec<ConnectionEvent>,
    /// Failed work.
    pub(super) failed: Vec<WorkCompletion>,
    /// True if the receives of responses are posted again.
    pub(super) reposts: bool,
}

impl Host {
    /// Requests a connection, with `receives` receives posted.
    pub(super) fn ask(world: &World, private_data: &[u8], reads: u8, receives: u32) -> Self {
        let device = Arc::clone(&world.host_device);
        let completions = device.completions(1024).unwrap();
        let spec = EndpointSpec {
            sends: 512,
            receives: 256,
            send_pieces: 1,
            receive_pieces: 1,
            inline: 0,
            traffic_class: None,
            retries: None,
        };
        let ticket = world.fabric.route(&device, world.address);
        let endpoint = device.open(ticket, &completions, None, &spec).unwrap();
        let mut host = Self {
            endpoint,
            completions,
            capsules: Memory::new(&device, CAPSULE * CAPSULES),
            responses: Memory::new(&device, RESPONSE * RESPONSES),
            next: 0,
            device,
            came: Vec::new(),
            events: Vec::new(),
            failed: Vec::new(),
            reposts: true,
        };
        for slot in 0..receives {
            host.post(slot);
        }
        let params = ConnectParams {
            private_data,
            reads_out: 0,
            reads_in: reads,
            retries: 7,
            rnr_retries: 7,
        };
        host.endpoint.connect(&params).unwrap();
        host
    }

    pub(super) fn post(&mut self, slot: u32) {
        let piece = self.responses.piece(slot as usize * RESPONSE, RESPONSE);
        post_receive(&mut self.endpoint, WrId::new(1, 0, slot), piece);
    }

    /// Sends a command with the bytes after it.
    pub(super) fn send(&mut self, sqe: Sqe, behind: &[u8]) -> bool {
        let mut bytes = sqe.as_bytes().to_vec();
        bytes.extend(behind);
        self.send_bytes(&bytes)
    }

    /// Sends arbitrary bytes.
    pub(super) fn send_bytes(&mut self, bytes: &[u8]) -> bool {
        let at = self.next % CAPSULES * CAPSULE;
        self.next += 1;
        self.capsules.write(at, bytes);
        let work = SendWr {
            id: WrId::new(2, 0, 0),
            operation: SendOp::Send,
            pieces: SgeList::one(self.capsules.piece(at, bytes.len())),
            signaled: true,
            inline: false,
            fence: false,
        };
        post_send(&mut self.endpoint, work)
    }

    /// Processes events and completions.
    pub(super) fn turn(&mut self) {
        while let Some(event) = self.endpoint.next_event() {
            self.events.push(event);
            if matches!(event, ConnectionEvent::Disconnected | ConnectionEvent::QueuePairError) {
                self.endpoint.disconnect();
            }
        }
        let mut batch = Vec::new();
        let _ = self.completions.poll(256, &mut batch);
        for completion in batch {
            if completion.status != WcStatus::Success {
                self.failed.push(completion);
            } else if completion.id.kind() == 1 {
                assert_eq!(completion.bytes, 16, "a response has 16 bytes");
                let bytes = self.responses.read(completion.id.slot() as usize * RESPONSE, 16);
                let cqe = Cqe::read_from_bytes(&bytes).unwrap();
                self.came.push((cqe, completion.invalidated));
                if self.reposts {
                    self.post(completion.id.slot());
                }
            }
        }
    }

    /// Returns the responses since the last call: command identifiers and invalidated keys.
    pub(super) fn responses(&mut self) -> Vec<(u16, Option<u32>)> {
        self.turn();
        self.came.drain(..).map(|(cqe, key)| (cqe.cid.get(), key)).collect()
    }
}
