//! Queues on several threads during config changes: nothing hangs, and no resource leaks.

use std::sync::Arc;
use std::thread;

use nvmeof_wire::Sgl;
use nvmeof_wire::fabrics::ConnectResult;
use nvmeof_wire::nvm::BlockIo;
use nvmeof_wire::opcode::IoOpcode;

use super::support::*;
use crate::{Disposition, Target};

const ROUNDS: u32 = 300;

/// A host that connects, reads a little and disconnects, even if its controller ends in between.
fn visit(target: &Arc<Target>) {
    let mut admin = Link::new(target, PORT);
    let answer = ConnectRequest::admin(SUBSYSTEM).send(&mut admin);
    if !answer.cqe.status().is_success() {
        return;
    }
    let cntlid = ConnectResult::parse(answer.result()).cntlid;
    admin.set_cc(enabled()).ok();
    let mut queues: Vec<Link> = (1..=4).map(|_| Link::new(target, PORT)).collect();
    for (qid, link) in (1..).zip(&mut queues) {
        let connected = ConnectRequest::io(cntlid, qid).send(link).cqe.status().is_success();
        let read = BlockIo::new(0, 1).encode(IoOpcode::READ, 0, 1);
        for _ in 0..8 {
            let read = read.with_sgl(Sgl::Transport { length: 512 });
            if let Disposition::Io(io) = link.send(read) {
                assert!(connected);
                link.queue.complete(io.cid, Ok(()));
            }
        }
        assert_eq!(link.queue.outstanding(), 0);
    }
    admin.set_cc(enabled().with_en(false)).ok();
    assert!(queues.iter().all(|link| !link.queue.connected().is_some_and(|info| info.admin)));
}

#[test]
fn hosts_come_and_go_while_the_config_changes() {
    let target = target();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..ROUNDS).for_each(|_| visit(&target)));
        }
        scope.spawn(|| {
            let mut other = spec();
            other.subsystems[0].namespaces.remove(0);
            let mut without = spec();
            without.subsystems.remove(0);
            let mut elsewhere = spec();
            elsewhere.ports[0].service = "4500".to_owned();
            for _ in 0..ROUNDS {
                for wanted in [&other, &without, &elsewhere] {
                    target.apply(wanted.clone()).unwrap();
                    target.apply(spec()).unwrap();
                }
            }
        });
    });
    assert_eq!(target.counts().controllers, 0);
    assert_eq!(target.counts().queues, 0);
}
