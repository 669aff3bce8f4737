//! A reactor with a host on the loopback fabric, for benches that send commands through the whole
//! reactor.

use std::sync::Arc;

use nvmeof_benches::{DEPTH, DEVICE, PORT, connect, enable, target};
use nvmeof_core::block::BlockDevice;
use nvmeof_loopback_fabric::{LoopbackHost, LoopbackParams};
use nvmeof_nvmf::Target;
use nvmeof_pacing::PolicyConfig;
use nvmeof_tgt::bench_support::OneReactor;
use nvmeof_wire::Sqe;
use nvmeof_wire::fabrics::CNTLID_DYNAMIC;

/// A reactor with a connected host.
pub(crate) struct World {
    reactor: OneReactor,
    host: LoopbackHost,
    _admin: LoopbackHost,
}

impl World {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, policy: &PolicyConfig) -> Self {
        let target = target().expect("it serves that");
        let mut reactor = OneReactor::new(&target, policy).expect("there is memory");
        reactor.add_device(DEVICE, device).expect("it opens");
        let admin = attach(&mut reactor, &target);
        let (sqe, data) = connect(0, CNTLID_DYNAMIC);
        let cntlid = cntlid_of(ask(&mut reactor, &admin, sqe, &data));
        ask(&mut reactor, &admin, enable(), &[]);
        let host = attach(&mut reactor, &target);
        let (sqe, data) = connect(1, cntlid);
        ask(&mut reactor, &host, sqe, &data);
        Self { reactor, host, _admin: admin }
    }

    /// Sends a batch and runs turns until all of it has completed.
    pub(crate) fn round(&mut self, commands: &[Sqe], in_capsule: &[u8]) {
        for sqe in commands {
            self.host.send(*sqe, in_capsule);
        }
        let mut answered = 0;
        while answered < commands.len() {
            self.reactor.turn();
            answered += self.host.take().len();
        }
    }
}

/// Attaches a new connection; returns the host's end.
fn attach(reactor: &mut OneReactor, target: &Arc<Target>) -> LoopbackHost {
    let params = LoopbackParams { depth: DEPTH, ..LoopbackParams::default() };
    let (parked, host) = nvmeof_loopback_fabric::connect(params);
    reactor.attach(target, PORT, parked);
    host
}

/// Executes one command; returns the DW0 of its completion.
fn ask(reactor: &mut OneReactor, host: &LoopbackHost, sqe: Sqe, data: &[u8]) -> u32 {
    host.send(sqe, data);
    for _ in 0..100 {
        reactor.turn();
        if let Some(answer) = host.take().pop() {
            assert!(answer.cqe.status().is_success(), "{}", answer.cqe.status());
            return answer.cqe.dw0();
        }
    }
    panic!("no answer to {sqe:?}");
}

/// Returns the controller that Connect created.
pub(crate) fn cntlid_of(dw0: u32) -> u16 {
    u16::try_from(dw0 & 0xffff).expect("16 bits")
}
