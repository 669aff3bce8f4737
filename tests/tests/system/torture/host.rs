//! A host of raw PDUs: it writes and reads the same few blocks as other hosts, and disconnects with
//! commands in flight.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use nvmeof_history::{ReadId, WriteId};
use nvmeof_initiator::ConnectOptions;
use nvmeof_random::SplitMix64;
use nvmeof_tests::config::NQN;
use nvmeof_tests::{Api, Daemon, GUARD, Pdu, Raw, options};
use nvmeof_wire::fabrics::{
    CNTLID_DYNAMIC, Connect, ConnectData, ConnectResult, PropertyGet, PropertySet, PropertySize,
};
use nvmeof_wire::nvm::BlockIo;
use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::properties::{CC_SHN_NORMAL, CSTS_SHST_COMPLETE, Cc, Csts, offset};
use nvmeof_wire::tcp::flags;
use nvmeof_wire::zerocopy::IntoBytes;
use nvmeof_wire::{Cqe, Nqn, Sqe};

use super::world::{BLOCKS, World};

/// The disks' NSIDs.
pub(crate) const DISKS: Range<u64> = 1..3;
/// CC as Linux writes it: IOCQES 4, IOSQES 6, EN.
const ENABLED: u32 = 0x0046_0001;

/// The connection, or the controller behind it, has ended.
#[derive(Debug)]
struct Gone;

/// Purpose of a command.
#[derive(Debug, Clone, Copy)]
enum Sent {
    Write(WriteId),
    Read(ReadId),
}

/// An admin and an I/O queue.
struct Association {
    cntlid: u16,
    admin: Raw,
    io: Raw,
    /// Commands of the I/O queue in flight, and their data so far.
    out: BTreeMap<u16, (Sent, Vec<u8>)>,
}

pub(crate) struct Host<'a> {
    number: usize,
    world: &'a World,
    options: ConnectOptions,
    address: SocketAddr,
    api: Api,
    dice: SplitMix64,
}

/// Returns the name of a host.
pub(crate) fn name(number: usize) -> Nqn {
    options(u8::try_from(number).expect("a few hosts")).hostnqn
}

impl<'a> Host<'a> {
    pub(crate) fn new(number: usize, world: &'a World, daemon: &Daemon, seed: u64) -> Self {
        Self {
            number,
            world,
            options: options(u8::try_from(number).expect("a few hosts")),
            address: daemon.address(),
            api: Api::of(daemon),
            dice: SplitMix64::new(seed.wrapping_mul(31) + number as u64),
        }
    }

    /// Connects, writes, reads and disconnects repeatedly until the end of the run.
    pub(crate) fn run(&mut self) {
        while !self.world.is_over() {
            // The reason of the end does not matter: commands in flight are lost, and the next
            // association shows more.
            let ended = self.connect().and_then(|association| self.serve(association));
            drop(ended);
            self.world.rests(self.number);
        }
    }

    /// Reads all blocks.
    pub(crate) fn read_all(&mut self) {
        let end = Instant::now() + GUARD;
        let mut association = loop {
            match self.connect() {
                Ok(association) => break association,
                Err(Gone) => assert!(Instant::now() < end, "it is not let in again"),
            }
        };
        for disk in DISKS {
            let disk = u32::try_from(disk).expect("a small number");
            self.read(&mut association, disk, &(0..BLOCKS));
        }
        self.take_all(&mut association).expect("the reads");
    }

    /// Creates a new association.
    ///
    /// The host has closed the connections of the previous one. Until the target notices, there are
    /// two associations.
    fn connect(&mut self) -> Result<Association, Gone> {
        let end = Instant::now() + GUARD;
        let name = self.options.hostnqn.to_string();
        while self.api.get("/v1/connections").to_string().contains(&name) {
            assert!(Instant::now() < end, "the target does not see that connections are cut");
            std::thread::sleep(Duration::from_millis(1));
        }
        let (mut admin, answer) = self.connect_queue(0, CNTLID_DYNAMIC)?;
        let cntlid = ConnectResult::parse(answer.result.get()).cntlid;
        self.world.settle(Some(self.number), None, "connected again");
        set_cc(&mut admin, ENABLED)?;
        let (io, _) = self.connect_queue(1, cntlid)?;
        Ok(Association { cntlid, admin, io, out: BTreeMap::new() })
    }

    fn connect_queue(&self, qid: u16, cntlid: u16) -> Result<(Raw, Cqe), Gone> {
        let mut raw = Raw::hello(self.address, false, false);
        let connect = Connect {
            qid,
            entries: 32,
            priority: 0,
            disable_sq_flow_control: true,
            queue_deletion: false,
            kato_ms: 0,
        };
        let subsystem = NQN.parse().expect("a name");
        let host = &self.options;
        let data = ConnectData::new(host.hostid, cntlid, &subsystem, &host.hostnqn);
        let sqe = raw.in_capsule(connect.encode(0), data.as_bytes().len());
        let capsule = raw.capsule(sqe, data.as_bytes());
        raw.try_send(&capsule);
        match raw.pdu() {
            Pdu::Response(cqe) if cqe.status().is_success() => Ok((raw, cqe)),
            // Fenced, or a previous association has not ended: the host retries.
            Pdu::Response(_) | Pdu::End => {
                std::thread::sleep(Duration::from_millis(5));
                Err(Gone)
            }
            other => panic!("{other:?}, not an answer to Connect"),
        }
    }

    fn serve(&mut self, mut association: Association) -> Result<(), Gone> {
        while !self.world.is_over() {
            for _ in 0..self.dice.within(1..12) {
                self.send_some(&mut association);
                self.take_all(&mut association)?;
                self.world.rests(self.number);
            }
            // This time without waiting for completions.
            self.send_some(&mut association);
            match self.dice.within(0..3) {
                0 => self.reset(&mut association)?,
                1 => return self.shut_down(association),
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    fn reset(&mut self, association: &mut Association) -> Result<(), Gone> {
        let disabled = Cc::from_bits(ENABLED).with_en(false);
        set_cc(&mut association.admin, disabled.into_bits())?;
        wait_for(&mut association.admin, |csts| !csts.rdy())?;
        self.world.settle(Some(self.number), None, "controller reset");
        association.out.clear();
        set_cc(&mut association.admin, ENABLED)?;
        association.io = self.connect_queue(1, association.cntlid)?.0;
        Ok(())
    }

    fn shut_down(&self, mut association: Association) -> Result<(), Gone> {
        let shutdown = Cc::from_bits(ENABLED).with_shn(CC_SHN_NORMAL);
        set_cc(&mut association.admin, shutdown.into_bits())?;
        wait_for(&mut association.admin, |csts| csts.shst() == CSTS_SHST_COMPLETE)?;
        self.world.settle(Some(self.number), None, "controller shut down");
        Ok(())
    }

    fn send_some(&mut self, association: &mut Association) {
        for _ in 0..self.dice.within(1..6) {
            let disk = u32::try_from(self.dice.within(DISKS)).expect("a small number");
            let first = self.dice.within(0..BLOCKS);
            let lbas = first..BLOCKS.min(first + self.dice.within(1..4));
            match self.dice.within(0..20) {
                0 => self.write_zeroes(association, disk, &lbas),
                1..11 => self.write(association, disk, &lbas),
                _ => self.read(association, disk, &lbas),
            }
        }
    }

    fn write(&mut self, association: &mut Association, disk: u32, lbas: &Range<u64>) {
        let (write, data) = self.world.write(self.number, disk, lbas);
        let command = BlockIo { fua: self.dice.chance(200_000), ..command(lbas) };
        let sqe = command.encode(IoOpcode::WRITE, 0, disk);
        let sqe = association.io.in_capsule(sqe, data.len());
        association.send(sqe, &data, Sent::Write(write));
    }

    fn write_zeroes(&mut self, association: &mut Association, disk: u32, lbas: &Range<u64>) {
        let write = self.world.zero(self.number, disk, lbas);
        let sqe = command(lbas).encode(IoOpcode::WRITE_ZEROES, 0, disk);
        let sqe = association.io.numbered(sqe);
        association.send(sqe, &[], Sent::Write(write));
    }

    fn read(&mut self, association: &mut Association, disk: u32, lbas: &Range<u64>) {
        let read = self.world.read(self.number, disk, lbas.start);
        let len = usize::try_from(lbas.end - lbas.start).expect("a few blocks") * 512;
        let sqe = command(lbas).encode(IoOpcode::READ, 0, disk);
        let sqe = association.io.separate(sqe, len);
        association.send(sqe, &[], Sent::Read(read));
    }

    /// Receives all completions.
    fn take_all(&self, association: &mut Association) -> Result<(), Gone> {
        while !association.out.is_empty() {
            match association.io.pdu() {
                Pdu::Data(header, bytes) => {
                    let cid = header.cccid.get();
                    let (_, data) = association.out.get_mut(&cid).expect("a command of ours");
                    data.extend(bytes);
                    if header.ch.flags & flags::SUCCESS != 0 {
                        self.answered(association, cid, true);
                    }
                }
                Pdu::Response(cqe) => {
                    self.answered(association, cqe.cid.get(), cqe.status().is_success());
                }
                Pdu::End => return Err(Gone),
                other => panic!("{other:?}, not an answer"),
            }
        }
        Ok(())
    }

    fn answered(&self, association: &mut Association, cid: u16, is_success: bool) {
        match association.out.remove(&cid).expect("an answer to a command of ours") {
            (Sent::Write(write), _) => self.world.answered(write, is_success),
            (Sent::Read(read), data) if is_success => self.world.found(read, &data),
            (Sent::Read(_), _) => {}
        }
    }
}

impl Association {
    fn send(&mut self, sqe: Sqe, data: &[u8], sent: Sent) {
        let capsule = self.io.capsule(sqe, data);
        self.out.insert(sqe.cid.get(), (sent, Vec::new()));
        self.io.try_send(&capsule);
    }
}

fn command(lbas: &Range<u64>) -> BlockIo {
    BlockIo::new(lbas.start, u32::try_from(lbas.end - lbas.start).expect("a few blocks"))
}

fn set_cc(admin: &mut Raw, cc: u32) -> Result<(), Gone> {
    let value = u64::from(cc);
    let set = PropertySet { size: PropertySize::Four, offset: offset::CC, value };
    ask(admin, set.encode(0)).map(drop)
}

/// Waits for a state of CSTS.
fn wait_for(admin: &mut Raw, is_so: impl Fn(Csts) -> bool) -> Result<(), Gone> {
    let end = Instant::now() + GUARD;
    let get = PropertyGet { size: PropertySize::Four, offset: offset::CSTS };
    while !is_so(Csts::from_bits(ask(admin, get.encode(0))?.dw0())) {
        assert!(Instant::now() < end, "CSTS does not say so");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Executes an admin command.
fn ask(admin: &mut Raw, sqe: Sqe) -> Result<Cqe, Gone> {
    let sqe = admin.numbered(sqe);
    let capsule = admin.capsule(sqe, &[]);
    admin.try_send(&capsule);
    match admin.pdu() {
        Pdu::Response(cqe) if cqe.status().is_success() => Ok(cqe),
        Pdu::Response(_) | Pdu::End => Err(Gone),
        other => panic!("{other:?}, not an answer"),
    }
}
