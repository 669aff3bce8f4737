//! Hosts that close: the reactor reads to the end of the stream.

use nvmeof_wire::Sqe;
use nvmeof_wire::nqn::DISCOVERY_NQN;
use nvmeof_wire::opcode::AdminOpcode;

use super::rig::Rig;

const HOST: &str = "nqn.2026-11.org.example:leaves";

#[test]
fn an_end_that_comes_together_with_a_command_ends_the_connection() {
    let mut rig = Rig::new(None);
    let mut peer = rig.attach_tcp();
    peer.enable(&mut rig, DISCOVERY_NQN, HOST, 32);
    rig.settle();
    // One event reports both: there is no other edge after the command was read.
    peer.capsule(Sqe::admin(AdminOpcode::KEEP_ALIVE, 1, 0), &[]);
    assert!(peer.write());
    peer.shut_down();
    rig.until("the end of the connection", |_| {
        peer.read();
        peer.is_ended
    });
    assert!(rig.queue_ids().is_empty());
    rig.finish([]);
}
