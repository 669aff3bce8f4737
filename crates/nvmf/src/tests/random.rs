//! Any command on a queue in any state: exactly one disposition, no panic, no lost command.

use std::collections::BTreeSet;
use std::sync::Arc;

use nvmeof_wire::nqn::DISCOVERY_NQN;
use nvmeof_wire::zerocopy::FromBytes;
use nvmeof_wire::{Sgl, Sqe, U16, U32};
use proptest::prelude::*;

use super::support::*;
use crate::{Disposition, Failure, IoKind, Target};

/// Commands that are nearly valid: opcodes, NSIDs, flags and data pointers near valid values.
fn likely_sqe() -> impl Strategy<Value = Sqe> {
    let opcode = prop_oneof![0u8..=0x0e, Just(0x18), Just(0x7f), any::<u8>()];
    let flags = prop_oneof![9 => Just(0x40u8), 1 => any::<u8>()];
    let nsid = prop_oneof![0u32..9, Just(1024), Just(1025), Just(u32::MAX), any::<u32>()];
    let small = || prop_oneof![4 => 0u32..16, 1 => any::<u32>()];
    let sgl = prop_oneof![
        (0u32..200_000).prop_map(|length| Sgl::Transport { length }),
        (0u64..10_000, 0u32..10_000).prop_map(|(offset, length)| Sgl::InCapsule { offset, length }),
        (any::<u8>(), any::<u8>()).prop_map(|(kind, subtype)| Sgl::Unknown { kind, subtype }),
    ];
    let dwords = [small(), small(), small(), small(), small(), small()];
    (opcode, flags, 0u16..40, nsid, sgl, dwords).prop_map(|(opcode, flags, cid, nsid, sgl, d)| {
        let mut sqe = Sqe::new(opcode, cid, nsid).with_sgl(sgl).with_cdw10(d);
        sqe.flags = flags;
        sqe
    })
}

fn any_sqe() -> impl Strategy<Value = Sqe> {
    let raw = any::<[u8; 32]>().prop_flat_map(|low| {
        any::<[u8; 32]>().prop_map(move |high| {
            let mut bytes = [0; 64];
            bytes[..32].copy_from_slice(&low);
            bytes[32..].copy_from_slice(&high);
            Sqe::read_from_bytes(&bytes).unwrap()
        })
    });
    prop_oneof![8 => likely_sqe(), 1 => raw]
}

/// An event of a queue.
#[derive(Clone, Debug)]
enum Step {
    /// A command with `inline_len` bytes of in-capsule data; `provide`: serve it immediately.
    Command { sqe: Sqe, inline_len: u32, provide: bool, data: u8 },
    /// The oldest device or abort command completes.
    Complete { success: bool },
    /// Time passes.
    Wait { seconds: u64 },
    /// Applies another config, then the first one again.
    Reconfigure,
    /// The connection closes.
    Disconnect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        24 => (any_sqe(), prop_oneof![Just(0u32), 0u32..9000], any::<bool>(), any::<u8>()).prop_map(
            |(sqe, inline_len, provide, data)| Step::Command { sqe, inline_len, provide, data }
        ),
        8 => any::<bool>().prop_map(|success| Step::Complete { success }),
        2 => (0u64..40).prop_map(|seconds| Step::Wait { seconds }),
        1 => Just(Step::Reconfigure),
        1 => Just(Step::Disconnect),
    ]
}

/// A command that was taken and has no response.
#[derive(Clone, Copy, Debug)]
enum Open {
    Io,
    Data,
    Abort,
    Flush,
    Held,
}

/// Drives one queue and tracks its open commands.
struct Driver {
    link: Link,
    open: Vec<(u16, Open)>,
}

impl Driver {
    fn new(link: Link) -> Self {
        Self { link, open: Vec::new() }
    }

    fn answered(&mut self, sqe: &Sqe, cqe: nvmeof_wire::Cqe) {
        assert_eq!(cqe.cid, sqe.cid);
        assert_eq!(cqe.sqid, U16::ZERO);
    }

    fn command(&mut self, sqe: &Sqe, inline_len: u32, provide: bool, data: u8) {
        let cid = sqe.cid.get();
        let mut disposition = self.link.queue.handle_command(sqe, inline_len, self.link.now);
        while let Some(dropped) = self.link.queue.take_dropped() {
            let at = self.open.iter().position(|open| open.0 == dropped).expect("it was held");
            assert!(matches!(self.open.remove(at).1, Open::Held));
        }
        if let (Disposition::Receive { len, .. }, true) = (&disposition, provide) {
            assert!(*len <= 1 << 20);
            let bytes = vec![data; usize::try_from(*len).unwrap()];
            disposition = self.link.queue.handle_data(sqe, &bytes, self.link.now);
            assert!(!matches!(disposition, Disposition::Receive { .. }));
        }
        match disposition {
            Disposition::Respond(response) => self.answered(sqe, response.cqe),
            Disposition::Send { len, sgl } => {
                assert!(len > 0 && len <= sgl.length() && len <= 128 << 10);
                if provide {
                    let answer = self.link.filled(sqe, len);
                    self.answered(sqe, answer.cqe);
                } else {
                    self.open.push((cid, Open::Data));
                }
            }
            Disposition::Receive { len, .. } => {
                assert!(len > 0);
                self.open.push((cid, Open::Data));
            }
            Disposition::Io(io) => {
                assert_eq!(io.cid, cid);
                assert!(io.offset.checked_add(io.len).is_some());
                assert!(u64::from(io.data_len()) <= 128 << 10);
                assert_eq!(
                    io.len == 0,
                    matches!(io.kind, IoKind::Flush | IoKind::Deallocate { .. })
                );
                if let IoKind::Deallocate { ranges } = io.kind {
                    let list = vec![data; usize::from(ranges) * 16];
                    let _ = self.link.queue.parse_ranges(&io, &list);
                }
                self.open.push((cid, Open::Io));
            }
            Disposition::Held => self.open.push((cid, Open::Held)),
            Disposition::Flush { devices, .. } => {
                assert!(!devices.is_empty());
                self.open.push((cid, Open::Flush));
            }
            Disposition::Abort { .. } => self.open.push((cid, Open::Abort)),
        }
    }

    fn complete(&mut self, success: bool) {
        let Some(at) = self.open.iter().position(|(_, open)| !matches!(open, Open::Held)) else {
            return;
        };
        let (cid, open) = self.open.remove(at);
        let response = match open {
            Open::Abort => self.link.queue.complete_abort(cid, success),
            Open::Flush => self.link.queue.complete_flush(cid, 0, success),
            Open::Io if success => self.link.queue.complete(cid, Ok(())),
            _ => self.link.queue.complete(cid, Err(Failure::DataTransfer)),
        };
        assert_eq!(response.cqe.cid.get(), cid);
    }

    fn step(&mut self, target: &Arc<Target>, step: &Step) {
        match step {
            Step::Command { sqe, inline_len, provide, data } => {
                self.command(sqe, *inline_len, *provide, *data);
            }
            Step::Complete { success } => self.complete(*success),
            Step::Wait { seconds } => {
                self.link.now += seconds * SECOND;
                self.link.queue.handle_timeout(self.link.now);
            }
            Step::Reconfigure => {
                let mut other = spec();
                other.subsystems[0].namespaces.remove(1);
                target.apply(other).unwrap();
                target.apply(spec()).unwrap();
            }
            Step::Disconnect => drop(self.link.queue.handle_disconnect()),
        }
        if let Some(devices) = self.link.queue.poll_shutdown() {
            assert!(!devices.is_empty());
            self.link.queue.shutdown_flushed(true);
        }
        let disconnected = self.link.queue.poll_disconnect();
        let mut responses = Vec::from_iter(disconnected);
        while let Some(response) = self.link.queue.poll_event() {
            responses.push(response);
        }
        for response in responses {
            let cid = response.cqe.cid.get();
            let at = self.open.iter().position(|open| open.0 == cid).expect("it was held");
            assert!(matches!(self.open.remove(at).1, Open::Held));
        }
        let dead = self.link.queue.is_dead();
        assert!(dead.is_none() || self.link.queue.deadline().is_none());
        let outstanding = usize::try_from(self.link.queue.outstanding()).unwrap();
        assert_eq!(outstanding, self.open.len());
        let unique: BTreeSet<u16> = self.open.iter().map(|open| open.0).collect();
        assert_eq!(unique.len(), self.open.len());
    }
}

proptest! {
    #[test]
    fn any_commands_before_connect(steps in prop::collection::vec(step(), 1..60)) {
        let target = target();
        let mut driver = Driver::new(Link::new(&target, PORT));
        for step in &steps {
            driver.step(&target, step);
        }
    }

    #[test]
    fn any_commands_on_an_admin_queue(
        discovery in any::<bool>(),
        enable in prop::bool::weighted(0.8),
        steps in prop::collection::vec(step(), 1..100),
    ) {
        let target = target();
        let name = if discovery { DISCOVERY_NQN } else { SUBSYSTEM };
        let mut request = ConnectRequest::admin(name);
        request.command.kato_ms = 60_000;
        let (mut link, cntlid) = connect_admin(&target, &request);
        if enable {
            link.enable();
        }
        let _io = (enable && !discovery).then(|| connect_io(&target, cntlid, 1));
        let mut driver = Driver::new(link);
        for step in &steps {
            driver.step(&target, step);
        }
    }

    #[test]
    fn any_commands_on_an_io_queue(steps in prop::collection::vec(step(), 1..100)) {
        let target = target();
        let (_admin, cntlid) = enabled_admin(&target);
        let mut driver = Driver::new(connect_io(&target, cntlid, 1));
        for step in &steps {
            driver.step(&target, step);
        }
    }

    /// Connect with any fields never panics, and the queue matches the fields.
    #[test]
    fn any_connect(
        qid in prop_oneof![0u16..3, any::<u16>()],
        sqsize in prop_oneof![0u16..70, any::<u16>()],
        cattr in any::<u8>(),
        kato in any::<u32>(),
        change in prop::option::of((0usize..1024, any::<u8>())),
    ) {
        let target = target();
        let (_admin, cntlid) = enabled_admin(&target);
        let request = if qid == 0 {
            ConnectRequest::admin(SUBSYSTEM)
        } else {
            ConnectRequest::io(cntlid, qid)
        };
        let mut sqe = request.sqe();
        sqe.cdw10 = U32::new(u32::from(qid) << 16);
        sqe.cdw11 = U32::new(u32::from(sqsize) | u32::from(cattr) << 16);
        sqe.cdw12 = U32::new(kato);
        let mut data = request.data();
        if let Some((at, byte)) = change {
            data[at] = byte;
        }
        let mut link = Link::new(&target, PORT);
        let answer = link.run(sqe, &data);
        let connected = link.queue.connected();
        prop_assert_eq!(answer.cqe.status().is_success(), connected.is_some());
        if let Some(info) = connected {
            prop_assert_eq!(info.qid, qid);
            prop_assert_eq!(u32::from(info.depth), u32::from(sqsize) + 1);
        }
    }
}
