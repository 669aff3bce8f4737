//! A controller over RDMA for tests. It executes commands as the fake target does, and can
//! misbehave on purpose.

use std::sync::Arc;

use nvmeof_fake_target::{FakeAction, FakeResponse, FakeSession, FakeTargetState};
use nvmeof_loopback_verbs::{Fabric, LoopbackDevice, LoopbackListener, LoopbackTicket};
use nvmeof_verbs::{
    AcceptParams, ConnectionEvent, Endpoint as _, PendingConnection as _, SendOp, WcStatus,
    WorkCompletion, WrId,
};
use nvmeof_wire::rdma::{AcceptData, RejectData, RejectStatus, Request};
use nvmeof_wire::sgl::Sgl;
use nvmeof_wire::sqe::SQE_SIZE;
use nvmeof_wire::zerocopy::{FromBytes, IntoBytes};
use nvmeof_wire::{Cqe, Sqe};

use crate::rdma::post::{Qp, QpSizes, SendRequest};

const RECEIVE: u8 = 11;
const READ: u8 = 12;
const RESPONSE: u8 = 13;
const RAW: u8 = 14;
/// Maximum commands of a connection.
const JOBS: u16 = 64;
/// Maximum data of a command.
const DATA: usize = 128 << 10;

/// Behavior towards connections.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PeerBehavior {
    /// Rejects them with this status.
    pub(super) reject: Option<RejectStatus>,
    /// Does not respond to requests.
    pub(super) silent: bool,
    /// Claims to have this number of receives.
    pub(super) claims: Option<u16>,
    /// Has this number of receives.
    pub(super) receives: Option<u16>,
}

pub(super) struct TestPeer {
    pub(super) behavior: PeerBehavior,
    pub(super) target: Arc<FakeTargetState>,
    pub(super) connections: Vec<PeerConnection>,
    device: Arc<LoopbackDevice>,
    listener: LoopbackListener,
    unanswered: Vec<LoopbackTicket>,
}

impl TestPeer {
    pub(super) fn new(
        fabric: &Fabric,
        target: Arc<FakeTargetState>,
        at: std::net::SocketAddr,
    ) -> Self {
        let device = fabric.device("target");
        let listener = fabric.listen(&device, at).unwrap();
        let (connections, unanswered) = (Vec::new(), Vec::new());
        Self {
            behavior: PeerBehavior::default(),
            target,
            connections,
            device,
            listener,
            unanswered,
        }
    }

    /// Processes everything that is pending.
    pub(super) fn step(&mut self) {
        while let Some(ticket) = self.listener.next_ticket() {
            if self.behavior.silent {
                self.unanswered.push(ticket);
            } else if let Some(status) = self.behavior.reject {
                ticket.reject(RejectData::new(status).as_bytes());
            } else {
                self.accept(ticket);
            }
        }
        for connection in &mut self.connections {
            connection.step();
        }
        self.connections.retain(|connection| !connection.is_over);
    }

    fn accept(&mut self, ticket: LoopbackTicket) {
        let asked = Request::parse(ticket.private_data().as_slice()).unwrap();
        let target_options = &self.target.options;
        let entries = u16::try_from(asked.entries).unwrap();
        let receives = self.behavior.receives.unwrap_or(entries);
        let capsule =
            SQE_SIZE + usize::from(target_options.icdoff) * 16 + target_options.in_capsule as usize;
        let sizes = QpSizes {
            receives: receives.max(1),
            receive_len: if asked.qid == 0 { SQE_SIZE } else { capsule },
            outbox: 2 * JOBS + 1,
            outbox_len: DATA,
            sends: 4 * u32::from(JOBS),
            send_pieces: 1,
            inline: 128,
        };
        let reads_out = ticket.reads().1.min(4);
        let mut qp = Qp::open(&self.device, ticket, sizes).unwrap();
        for slot in 0..receives {
            qp.post_receive(WrId::new(RECEIVE, 0, slot.into()), slot).unwrap();
        }
        let response = AcceptData::new(self.behavior.claims.unwrap_or(entries));
        let params = AcceptParams {
            private_data: response.as_bytes(),
            reads_out,
            reads_in: 0,
            rnr_retries: 7,
        };
        qp.endpoint().accept(&params).unwrap();
        self.connections.push(PeerConnection {
            qp,
            session: FakeSession::new(Arc::clone(&self.target), asked.qid),
            offset: SQE_SIZE + usize::from(target_options.icdoff) * 16,
            asked,
            jobs: (0..JOBS).map(|_| None).collect(),
            is_up: false,
            is_over: false,
            raws: 0,
            outstanding: Vec::new(),
        });
    }
}

/// A command in progress.
struct Job {
    sqe: Sqe,
    action: FakeAction,
}

pub(super) struct PeerConnection {
    pub(super) asked: Request,
    /// Commands that were received and have no response.
    pub(super) outstanding: Vec<Sqe>,
    qp: Qp<LoopbackDevice>,
    session: FakeSession,
    /// Offset of a capsule's data.
    offset: usize,
    jobs: Vec<Option<Job>>,
    is_up: bool,
    is_over: bool,
    raws: u32,
}

impl PeerConnection {
    /// Sends these bytes as a response; `invalidate` is a key to invalidate.
    pub(super) fn send_raw(&mut self, bytes: &[u8], invalidate: Option<u32>) {
        let slot = 2 * JOBS;
        self.qp.outbox.bytes(slot)[..bytes.len()].copy_from_slice(bytes);
        let operation = invalidate.map_or(SendOp::Send, |key| SendOp::SendInvalidate { key });
        let id = WrId::new(RAW, self.raws, 0);
        self.raws += 1;
        let len = bytes.len();
        // Rejected after the connection has ended.
        let _ = self.qp.post_send(&[SendRequest {
            id,
            operation,
            slot,
            len,
            data: None,
            signaled: true,
            inline: true,
        }]);
    }

    /// Disconnects.
    pub(super) fn hang_up(&mut self) {
        self.qp.endpoint().disconnect();
        self.is_over = true;
    }

    fn step(&mut self) {
        match self.qp.endpoint().next_event() {
            Some(ConnectionEvent::Established { .. }) => self.is_up = true,
            Some(_) => return self.hang_up(),
            None => {}
        }
        let mut completions = Vec::new();
        while self.is_up && !self.is_over {
            completions.clear();
            self.qp.poll(16, &mut completions).unwrap();
            if completions.is_empty() {
                return;
            }
            for completion in &completions {
                if self.is_over || completion.status != WcStatus::Success {
                    return self.hang_up();
                }
                self.completed(completion);
            }
        }
    }

    fn completed(&mut self, completion: &WorkCompletion) {
        let slot = u16::try_from(completion.id.slot()).unwrap();
        match completion.id.kind() {
            RECEIVE => {
                self.qp.inbox.reclaim(slot);
                let len = completion.bytes as usize;
                let capsule = self.qp.inbox.bytes(slot)[..len].to_vec();
                self.qp.post_receive(completion.id, slot).unwrap();
                self.start(&capsule);
            }
            READ => {
                self.qp.outbox.reclaim(2 * slot);
                let job = self.jobs[usize::from(slot)].take().unwrap();
                let len = job.sqe.dptr.parse().length() as usize;
                let data = self.qp.outbox.bytes(2 * slot)[..len].to_vec();
                self.perform(slot, job, &data);
            }
            RESPONSE => {
                self.qp.outbox.reclaim(2 * slot);
                self.qp.outbox.reclaim(2 * slot + 1);
                self.jobs[usize::from(slot)] = None;
            }
            _ => {}
        }
    }

    fn start(&mut self, capsule: &[u8]) {
        let (sqe, _) = Sqe::read_from_prefix(capsule).unwrap();
        self.outstanding.push(sqe);
        let action =
            if self.session.is_admin(&sqe) { FakeAction::Serve } else { self.session.action(&sqe) };
        match action {
            FakeAction::NoResponse => return,
            FakeAction::HangUp => return self.hang_up(),
            _ => {}
        }
        let job = Job { sqe, action };
        let slot = self.jobs.iter().position(Option::is_none).unwrap();
        let number = u16::try_from(slot).unwrap();
        match sqe.dptr.parse() {
            Sgl::InCapsule { offset, length } => {
                let at = self.offset + usize::try_from(offset).unwrap();
                self.perform(number, job, &capsule[at..at + length as usize]);
            }
            Sgl::Keyed { address, length, key, invalidate } => {
                assert!(!invalidate, "no key is good for one command only");
                if length == 0 || !is_from_host(&sqe) {
                    return self.perform(number, job, &[]);
                }
                let operation = SendOp::Read { address, key };
                let id = WrId::new(READ, 0, number.into());
                let len = length as usize;
                let slot = 2 * number;
                self.post(&[SendRequest {
                    id,
                    operation,
                    slot,
                    len,
                    data: None,
                    signaled: true,
                    inline: false,
                }]);
                self.jobs[usize::from(number)] = Some(job);
            }
            other => panic!("{other:?}"),
        }
    }

    fn perform(&mut self, number: u16, job: Job, data: &[u8]) {
        let (sqe, action) = (job.sqe, job.action);
        let bare = |status| FakeResponse { status, result: 0, data: Vec::new() };
        let response = if self.session.is_admin(&sqe) {
            self.session.admin(&sqe, data)
        } else if let FakeAction::Fail(status) = action {
            bare(status)
        } else {
            self.session.check(&sqe).map_or_else(bare, |()| self.session.io(&sqe, action, data))
        };
        self.outstanding.retain(|other| other.cid != sqe.cid);
        self.jobs[usize::from(number)] = Some(job);
        let (slot, id) = (2 * number, WrId::new(RESPONSE, 0, number.into()));
        let out = SendRequest {
            id,
            operation: SendOp::Send,
            slot,
            len: response.data.len(),
            data: None,
            signaled: false,
            inline: false,
        };
        let mut chain = Vec::new();
        if let Sgl::Keyed { address, key, .. } = sqe.dptr.parse()
            && !response.data.is_empty()
        {
            self.qp.outbox.bytes(slot)[..response.data.len()].copy_from_slice(&response.data);
            chain.push(SendRequest { operation: SendOp::Write { address, key }, ..out });
        }
        let cqe = Cqe::new(sqe.cid.get(), response.status).with_result(response.result);
        let bytes = cqe.as_bytes();
        self.qp.outbox.bytes(slot + 1)[..bytes.len()].copy_from_slice(bytes);
        chain.push(SendRequest { slot: slot + 1, len: bytes.len(), signaled: true, ..out });
        self.post(&chain);
    }

    fn post(&mut self, chain: &[SendRequest]) {
        if self.qp.post_send(chain).is_err() {
            self.hang_up();
        }
    }
}

/// The low bits of a command's opcode have the direction of its data (Base 3.3.3.1).
fn is_from_host(sqe: &Sqe) -> bool {
    let code = if sqe.is_fabrics() { sqe.fctype().0 } else { sqe.opcode };
    code & 3 == 1
}
