//! Commands near a host's valid ones.

use nvmeof_nvmf::TransportKind;
use nvmeof_wire::fabrics::{CNTLID_DYNAMIC, Connect, ConnectData};
use nvmeof_wire::fabrics::{PropertyGet, PropertySet, PropertySize};
use nvmeof_wire::nqn::DISCOVERY_NQN;
use nvmeof_wire::properties::{Cc, offset};
use nvmeof_wire::zerocopy::IntoBytes;
use nvmeof_wire::{Sgl, Sqe, U16, U32};

use super::spec::{HOST, HOST_ID, PRIVATE, STRANGER, SUBSYSTEM, nqn};
use crate::input::Input;

/// Set of commands that are likely to pass the checks of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Fresh,
    Admin,
    Io,
}

const NSIDS: [u32; 12] = [1, 1, 1, 2, 3, 4, 1024, 7, 9, 0, 5, u32::MAX];

pub(super) fn likely(input: &mut Input<'_>, kind: Kind, transport: TransportKind) -> Sqe {
    let mut sqe = match kind {
        _ if input.one_in(12) => fabrics(input),
        Kind::Fresh => {
            let qid = u16::from(input.byte() & 1);
            connect(input, qid).encode(0)
        }
        Kind::Admin => admin(input),
        Kind::Io => io(input),
    };
    sqe.cid = U16::new(u16::from(input.byte() % 24));
    if sqe.dptr.rest.get() == 0 && sqe.dptr.address.get() == 0 {
        sqe = sqe.with_sgl(sgl(input, wanted(&sqe, kind), transport));
    }
    if input.one_in(24) {
        mutate(input, &mut sqe);
    }
    sqe
}

/// Returns the data length of a valid command.
fn wanted(sqe: &Sqe, kind: Kind) -> u32 {
    let dword = |dword: U32| dword.get();
    match (kind, sqe.opcode) {
        (_, 0x7f) => 1024,
        (Kind::Io, 0x09) => ((dword(sqe.cdw10) & 0xff) + 1) * 16,
        (Kind::Io, _) => ((dword(sqe.cdw12) & 0xffff) + 1).saturating_mul(512),
        (_, 0x02) => (dword(sqe.cdw10) >> 16).saturating_add(1).saturating_mul(4),
        _ => 4096,
    }
}

fn sgl(input: &mut Input<'_>, len: u32, transport: TransportKind) -> Sgl {
    let length = match input.byte() {
        0..=179 => len,
        180..=219 => len.saturating_mul(8),
        220..=229 => len.saturating_sub(1),
        230..=239 => 1 << 20,
        240..=249 => 0,
        _ => input.dword(),
    };
    match (input.byte(), transport) {
        (0..=159, TransportKind::Rdma) => {
            Sgl::Keyed { address: 0x1000, length, key: 7, invalidate: input.coin() }
        }
        (0..=159, _) => Sgl::Transport { length },
        (160..=229, _) => {
            let offset = if input.one_in(6) { input.qword() } else { 0 };
            Sgl::InCapsule { offset, length }
        }
        _ => Sgl::Unknown { kind: input.byte(), subtype: input.byte() },
    }
}

fn io(input: &mut Input<'_>) -> Sqe {
    let opcode = match input.byte() {
        0..=230 => input.pick(&[0x00, 0x01, 0x01, 0x02, 0x02, 0x05, 0x08, 0x09, 0x0c]),
        _ => input.byte(),
    };
    let nsid = input.pick(&NSIDS);
    let slba = match input.byte() {
        0..=159 => u64::from(input.byte()),
        160..=199 => 1000 - u64::from(input.byte() % 16),
        200..=219 => ((1 << 63) - 1) / 4096 - u64::from(input.byte() % 16),
        _ => input.qword(),
    };
    let [low, high] = split(slba);
    let blocks = match input.byte() {
        0..=199 => u32::from(input.byte() % 16),
        _ => u32::from(input.word()),
    };
    let flags = u32::from(input.byte()) << 24;
    if opcode == 0x09 {
        return Sqe::new(opcode, 0, nsid).with_cdw10([
            u32::from(input.byte() & 7),
            if input.one_in(6) { input.dword() } else { 4 },
        ]);
    }
    Sqe::new(opcode, 0, nsid).with_cdw10([low, high, blocks | flags & 0x0200_0000 | flags << 6])
}

#[expect(clippy::cast_possible_truncation, reason = "the low and the high half")]
fn split(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

fn admin(input: &mut Input<'_>) -> Sqe {
    let nsid = input.pick(&NSIDS);
    match input.byte() % 16 {
        0..=2 => {
            let cns = input.pick(&[0, 1, 2, 3, 5, 6, 7, 8, 0x1c, 0x10, 0x13]);
            let cntid = u32::from(input.byte() & 3) << 16;
            let csi = if input.one_in(6) { u32::from(input.byte()) << 24 } else { 0 };
            Sqe::new(0x06, 0, nsid).with_cdw10([cns | cntid, csi | u32::from(input.byte() & 1)])
        }
        3..=5 => get_log_page(input, nsid),
        6..=8 => {
            let fid = features(input);
            let select = u32::from(input.byte() & 7) << 8;
            let nsid = if input.coin() { 0 } else { nsid };
            Sqe::new(0x0a, 0, nsid).with_cdw10([fid | select, u32::from(input.word())])
        }
        9..=10 => {
            let fid = features(input);
            let save = if input.one_in(8) { 1 << 31 } else { 0 };
            let nsid = if input.coin() { 0 } else { nsid };
            let value = if input.coin() { u32::from(input.word()) } else { input.dword() };
            Sqe::new(0x09, 0, nsid).with_cdw10([fid | save, value, u32::from(input.byte())])
        }
        11..=12 => Sqe::new(0x0c, 0, 0),
        13 => Sqe::new(0x18, 0, 0),
        14 => {
            let cid = u32::from(input.byte() % 24) << 16;
            Sqe::new(0x08, 0, 0).with_cdw10([u32::from(input.byte() & 3) | cid])
        }
        _ => Sqe::new(input.byte(), 0, nsid).with_cdw10([input.dword(), input.dword()]),
    }
}

fn features(input: &mut Input<'_>) -> u32 {
    match input.byte() {
        0..=230 => input.pick(&[1, 2, 4, 5, 6, 7, 0x0a, 0x0b, 0x0f, 0x81, 0x0e, 0x16]),
        other => u32::from(other),
    }
}

fn get_log_page(input: &mut Input<'_>, nsid: u32) -> Sqe {
    let lid = match input.byte() {
        0..=230 => input.pick(&[0, 1, 2, 3, 4, 5, 0x12, 0x70, 0x70]),
        other => u32::from(other),
    };
    let dwords = match input.byte() {
        0..=199 => input.pick(&[127, 255, 1023, 0, 15, 511]),
        _ => u32::from(input.word()),
    };
    let retain = u32::from(input.byte() & 1) << 15;
    let lsp = u32::from(input.byte() & 0xf) << 8;
    let lsp = if input.one_in(6) { lsp } else { 0 };
    let offset = match input.byte() {
        0..=159 => 0,
        160..=229 => u64::from(input.word() & 0x1ffc),
        _ => input.qword(),
    };
    let [low, high] = split(offset);
    let last = if input.one_in(12) { input.dword() } else { 0 };
    let nsid = if input.coin() { u32::MAX } else { nsid };
    let upper = if input.one_in(24) { u32::from(input.word()) } else { 0 };
    Sqe::new(0x02, 0, nsid).with_cdw10([lid | lsp | retain | dwords << 16, upper, low, high, last])
}

fn fabrics(input: &mut Input<'_>) -> Sqe {
    match input.byte() % 8 {
        0..=2 => {
            let cc = match input.byte() {
                0..=99 => 0x0046_0001,
                100..=129 => 0x0046_0000,
                130..=149 => 0x0046_4001,
                150..=169 => 0x0046_8001,
                _ => input.dword(),
            };
            let offset = if input.one_in(8) { input.dword() } else { offset::CC };
            let size = if input.one_in(8) { PropertySize::Eight } else { PropertySize::Four };
            PropertySet { size, offset, value: u64::from(cc) }.encode(0)
        }
        3..=5 => {
            let offset = input.pick(&[
                offset::CAP,
                offset::VS,
                offset::CC,
                offset::CSTS,
                offset::NSSR,
                offset::CRTO,
                4,
            ]);
            let size = if input.coin() { PropertySize::Eight } else { PropertySize::Four };
            PropertyGet { size, offset }.encode(0)
        }
        6 => {
            let mut sqe = Sqe::new(0x7f, 0, 8);
            sqe.cdw10 = U32::new(if input.one_in(4) { input.dword() } else { 0 });
            sqe
        }
        _ => {
            let mut sqe = connect(input, 1).encode(0);
            sqe.nsid = U32::new(u32::from(input.byte()));
            sqe
        }
    }
}

/// Returns a Connect for queue `qid`.
pub(super) fn connect(input: &mut Input<'_>, qid: u16) -> Connect {
    let bits = input.byte();
    Connect {
        qid: if bits & 0x80 == 0 { qid } else { input.word() & 7 },
        entries: if bits & 0x40 == 0 { 8 } else { u32::from(input.byte()) + 1 },
        priority: bits & 3,
        disable_sq_flow_control: bits & 4 != 0,
        queue_deletion: bits & 8 != 0,
        kato_ms: [0, 0, 5000, 120_000][usize::from(bits >> 4 & 3)],
    }
}

/// Returns the data of a Connect; for an I/O queue, `cntlid` is an existing controller.
pub(super) fn connect_data(input: &mut Input<'_>, sqe: &Sqe, cntlid: u16) -> Vec<u8> {
    let is_admin = sqe.cdw10.get() >> 16 == 0;
    let bits = input.byte();
    let subsystem = match bits & 7 {
        0..=3 => SUBSYSTEM,
        4 | 5 => DISCOVERY_NQN,
        6 => PRIVATE,
        _ => "nqn.2026-11.io.nvmeof-tgt:unknown",
    };
    let host = if bits & 0x38 == 0x38 { STRANGER } else { HOST };
    let cntlid = if is_admin { CNTLID_DYNAMIC } else { cntlid };
    let mut data = data_for(subsystem, host, cntlid);
    if bits & 0xc0 == 0xc0 {
        for _ in 0..=input.below(2) {
            let at = input.below(1024);
            data[at] = input.byte();
        }
    }
    data
}

pub(super) fn data_for(subsystem: &str, host: &str, cntlid: u16) -> Vec<u8> {
    ConnectData::new(HOST_ID, cntlid, &nqn(subsystem), &nqn(host)).as_bytes().to_vec()
}

pub(super) fn enable() -> Sqe {
    let cc = Cc::new().with_en(true).with_iosqes(6).with_iocqes(4);
    let value = u64::from(cc.into_bits());
    PropertySet { size: PropertySize::Four, offset: offset::CC, value }.encode(0)
}

fn mutate(input: &mut Input<'_>, sqe: &mut Sqe) {
    let bytes = sqe.as_mut_bytes();
    for _ in 0..=input.below(3) {
        let at = input.below(bytes.len());
        let value = input.byte();
        if input.coin() {
            bytes[at] = value;
        } else {
            bytes[at] ^= 1 << (value & 7);
        }
    }
}
