//! A host: it connects, reads and writes, and leaves in every possible way.
//!
//! ```text
//!          Connect           CC.EN = 1           I/O queues
//!  Away ------------> Connecting ---> Enabling ---> Joining ---> Serving
//!   ^ ^                                  ^             ^          | | |
//!   | |                                  |             '- Leaving-' | |  Disconnect (I/O queue)
//!   | |                                  '---- Stopping(reset) -----' |  CC.EN = 0
//!   | '--------------------------------------- Stopping(shutdown) ----|  CC.SHN
//!   '-- the connections are closed, by it or by the target, or it sends nothing (Silent) ---'
//! ```
//!
//! Writes without a response have ended when the host is notified. CSTS reports that the reset or
//! the shutdown is complete, Disconnect is answered, or its next Connect is answered.

use std::ops::Range;

use nvmeof_history::{BLOCK, Block, Content, Stamp, WriteId};
use nvmeof_wire::fabrics::{
    CNTLID_DYNAMIC, Connect, ConnectData, ConnectResult, Disconnect, PropertyGet, PropertySet,
    PropertySize,
};
use nvmeof_wire::nvm::{BlockIo, DatasetManagement, DsmRange};
use nvmeof_wire::opcode::{AdminOpcode, IoOpcode};
use nvmeof_wire::properties::{CC_SHN_ABRUPT, CC_SHN_NORMAL, CSTS_SHST_COMPLETE, Cc, Csts, offset};
use nvmeof_wire::zerocopy::IntoBytes;
use nvmeof_wire::{Nqn, Sgl, Sqe};

use super::disks::BLOCKS;
use super::line::{Answer, Line, Sent};
use super::site::{MILLI, SECOND, SUBSYSTEM, Site};

/// Longer than any operation of the site's devices takes. A command that takes longer hangs.
const PATIENCE: u64 = 60 * SECOND;
/// Maximum number of commands in flight on a queue.
const DEPTH: usize = 5;
/// Entries of a queue.
const ENTRIES: u32 = 32;
const KEEP_ALIVE: u64 = SECOND / 2;
/// Value that Linux writes to CC: IOCQES 4, IOSQES 6, EN.
const ENABLED: u32 = 0x0046_0001;

/// Time at which a host considers its writes ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// When it is notified.
    Told,
    /// Immediately.
    ///
    /// It reconnects with another HOSTID, so that the target does not wait for its commands.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Not connected. Connects at this time.
    Away {
        until: u64,
    },
    Connecting,
    Enabling,
    Joining,
    Serving,
    Stopping {
        is_reset: bool,
        look_at: u64,
    },
    /// Disconnects this queue.
    Leaving {
        line: u64,
    },
    /// Sends nothing, not even Keep Alive, until the target ends it.
    Silent,
}

/// A write without a response.
#[derive(Debug, Clone)]
struct Unsettled {
    write: WriteId,
    line: u64,
    disk: u32,
    lbas: Range<u64>,
}

pub(super) struct Host {
    pub(super) number: u32,
    name: Nqn,
    /// Its HOSTID.
    id: [u8; 16],
    patience: Patience,
    stage: Stage,
    /// Time at which it last served, or was not allowed to connect.
    since: u64,
    cntlid: u16,
    connected_at: u64,
    admin: Option<Line>,
    io: Vec<Line>,
    /// Connections that it has cut.
    cut: Vec<Line>,
    /// Admin queue connections that are lost, with the time at which their end arrives.
    ending: Vec<(u64, Line)>,
    /// Number of its I/O queues.
    queues: u16,
    keeps_alive: bool,
    kept_alive_at: u64,
    sequence: u64,
    unsettled: Vec<Unsettled>,
    /// Blocks that it lost writes to, which it tends to write again.
    lost: Vec<(u32, Range<u64>)>,
}

impl Host {
    pub(super) fn new(number: u32, site: &mut Site, patience: Patience) -> Self {
        Self {
            number,
            name: site.names[number as usize].clone(),
            id: [u8::try_from(number + 1).expect("a few hosts"); 16],
            patience,
            stage: Stage::Away { until: 0 },
            since: site.now,
            cntlid: 0,
            connected_at: 0,
            admin: None,
            io: Vec::new(),
            cut: Vec::new(),
            ending: Vec::new(),
            queues: u16::try_from(site.dice.within(1..3)).expect("a few"),
            keeps_alive: site.dice.coin(),
            kept_alive_at: 0,
            sequence: 0,
            unsettled: Vec::new(),
            lost: Vec::new(),
        }
    }

    /// Does the work that is due, and random actions if it `acts`.
    pub(super) fn step(&mut self, site: &mut Site, acts: bool) {
        self.take_answers(site);
        self.look_at_connections(site);
        self.close_ending(|at| at <= site.now);
        match self.stage {
            Stage::Away { until } if until <= site.now => self.come_back(site),
            Stage::Serving if acts => self.act(site),
            Stage::Stopping { look_at, .. } if look_at <= site.now => self.look(site),
            _ => {}
        }
        self.keep_alive(site);
        self.io.iter_mut().for_each(|line| line.turn(site.now));
        self.assert_patience(site);
    }

    pub(super) fn is_serving(&self) -> bool {
        self.stage == Stage::Serving
    }

    /// Returns true if none of its I/O commands is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.io.iter().all(|line| line.outstanding() == 0)
    }

    /// Ends its writes after an operator was notified of a removal.
    ///
    /// The host was removed, or the disk that it wrote to. Without a `disk`, the writes to all
    /// disks end.
    pub(super) fn was_fenced(&mut self, site: &mut Site, event: &'static str, disk: Option<u32>) {
        self.settle(site, event, |write| disk.is_none_or(|disk| write.disk == disk));
    }

    pub(super) fn name(&self) -> &Nqn {
        &self.name
    }

    /// Returns its writes without a response, of one I/O queue or of its controller.
    ///
    /// There are none for an earlier controller, whose end arrives late.
    pub(super) fn unsettled_of(&self, qid: u16, cntlid: u16) -> Vec<WriteId> {
        if cntlid != self.cntlid {
            return Vec::new();
        }
        let of = |line: &Line| (qid == 0 || line.qid == qid).then_some(line.number);
        let lines: Vec<u64> = self.io.iter().filter_map(of).collect();
        let unsettled = self.unsettled.iter().filter(|write| lines.contains(&write.line));
        unsettled.map(|write| write.write).collect()
    }

    /// Sends a command after all others. Its response proves that the target has read those.
    pub(super) fn mark(&mut self, site: &Site, disk: u32) {
        for line in &mut self.io {
            let sgl = Sgl::Transport { length: 512 };
            let read = |cid| BlockIo::new(0, 1).encode(IoOpcode::READ, cid, disk).with_sgl(sgl);
            line.send(site.now, Sent::Marker, &[], read);
        }
    }

    pub(super) fn is_marked(&self) -> bool {
        self.io.iter().any(|line| line.has_out(Sent::Marker))
    }

    /// Closes its connections permanently.
    pub(super) fn end(&mut self) {
        self.cut();
        self.close_ending(|_| true);
        self.stage = Stage::Away { until: u64::MAX };
    }

    fn close_ending(&mut self, is_due: impl Fn(u64) -> bool) {
        let due = self.ending.extract_if(.., |(at, _)| is_due(*at)).map(|(_, line)| line);
        self.cut.extend(due.inspect(Line::close));
    }

    /// Reads a whole disk.
    pub(super) fn read_all(&mut self, site: &mut Site, disk: u32) {
        self.read(site, 0, disk, 0..BLOCKS);
    }

    fn cut(&mut self) {
        self.cut.extend(self.io.drain(..).chain(self.admin.take()));
        self.cut.iter().for_each(Line::close);
    }

    /// Connects, often before the target has detected that the previous connections are cut.
    ///
    /// These are then an association next to the new one.
    fn come_back(&mut self, site: &mut Site) {
        self.cut.retain(|line| !line.is_closed());
        if !self.cut.is_empty() && site.dice.chance(200_000) {
            return;
        }
        let (number, fabric) = site.connect();
        let mut admin = Line::new(number, 0, fabric);
        self.send_connect(site, &mut admin, CNTLID_DYNAMIC);
        self.admin = Some(admin);
        (self.stage, self.connected_at) = (Stage::Connecting, site.now);
    }

    fn send_connect(&self, site: &Site, line: &mut Line, cntlid: u16) {
        let connect = Connect {
            qid: line.qid,
            entries: ENTRIES,
            priority: 0,
            disable_sq_flow_control: true,
            queue_deletion: true,
            kato_ms: if line.qid == 0 && self.keeps_alive { 2000 } else { 0 },
        };
        let subsystem = SUBSYSTEM.parse().expect("a name");
        let data = ConnectData::new(self.id, cntlid, &subsystem, &self.name);
        let sgl = Sgl::InCapsule { offset: 0, length: 1024 };
        let encode = |cid| connect.encode(cid).with_sgl(sgl);
        line.send(site.now, Sent::Connect, data.as_bytes(), encode);
    }

    fn take_answers(&mut self, site: &mut Site) {
        let lines = self.io.iter_mut().chain(&mut self.admin);
        let answers: Vec<(u64, Answer)> = lines
            .flat_map(|line| line.take().into_iter().map(|answer| (line.number, answer)))
            .collect();
        for (line, answer) in answers {
            self.answered(site, line, &answer);
        }
    }

    fn answered(&mut self, site: &mut Site, line: u64, answer: &Answer) {
        let status = answer.cqe.status();
        let is_admin = self.admin.as_ref().is_some_and(|admin| admin.number == line);
        match answer.sent {
            Sent::Connect if is_admin => self.connected(site, answer),
            Sent::Write(write) => self.written(site, write, status.is_success()),
            Sent::Deallocate(write) => self.written(site, write, false),
            Sent::Read(read) if status.is_success() => site.history.found(read, &answer.data),
            Sent::Read(_) | Sent::Flush | Sent::Marker | Sent::KeepAlive => {}
            // The controller or the queue has ended, so the host starts again.
            _ if !status.is_success() => self.lose(site),
            Sent::Connect => self.join(site),
            Sent::Enable => {
                self.stage = Stage::Joining;
                self.join(site);
            }
            Sent::Stop => self.look(site),
            Sent::Look => self.looked(site, answer.cqe.dw0()),
            Sent::Disconnect => {
                self.settle(site, "queue disconnected", |write| write.line == line);
                self.io.retain(|io| io.number != line);
                self.stage = Stage::Joining;
                self.join(site);
            }
        }
    }

    fn connected(&mut self, site: &mut Site, answer: &Answer) {
        let status = answer.cqe.status();
        if status.is_success() {
            self.settle(site, "connected again", |_| true);
            self.cntlid = ConnectResult::parse(answer.cqe.result.get()).cntlid;
            return self.enable(site);
        }
        // A host retries as Linux does. DNR is set only for a host that is not allowed.
        let was_allowed = site.allows(self.number) && self.connected_at > site.given_back_at;
        assert!(!status.dnr() || !was_allowed, "Connect of an allowed host: {status}");
        self.go_away(site);
    }

    fn enable(&mut self, site: &Site) {
        self.stage = Stage::Enabling;
        self.set_cc(site, Sent::Enable, ENABLED);
    }

    fn set_cc(&mut self, site: &Site, sent: Sent, cc: u32) {
        let set =
            PropertySet { size: PropertySize::Four, offset: offset::CC, value: u64::from(cc) };
        if let Some(admin) = &mut self.admin {
            admin.send(site.now, sent, &[], |cid| set.encode(cid));
        }
    }

    /// Connects the next missing I/O queue. Serves when no queue is missing.
    fn join(&mut self, site: &mut Site) {
        if self.io.iter().any(|line| line.has_out(Sent::Connect)) {
            return;
        }
        let missing = (1..=self.queues).find(|qid| self.io.iter().all(|line| line.qid != *qid));
        let Some(qid) = missing else {
            self.stage = Stage::Serving;
            return;
        };
        let (number, fabric) = site.connect();
        let mut line = Line::new(number, qid, fabric);
        self.send_connect(site, &mut line, self.cntlid);
        self.io.push(line);
    }

    fn written(&mut self, site: &mut Site, write: WriteId, has_happened: bool) {
        self.unsettled.retain(|unsettled| unsettled.write != write);
        if has_happened {
            site.history.acknowledge(write);
        } else {
            site.history.fail(write);
        }
    }

    /// Records that these writes have ended by this event.
    fn settle(&mut self, site: &mut Site, event: &'static str, which: impl Fn(&Unsettled) -> bool) {
        for write in self.unsettled.extract_if(.., |write| which(write)) {
            site.history.settle(write.write, event);
            self.lost.push((write.disk, write.lbas));
        }
    }

    /// Handles connections that the target has ended.
    fn look_at_connections(&mut self, site: &mut Site) {
        let admin_closed = self.admin.as_ref().is_some_and(Line::is_closed);
        let io_closed = self.io.iter().any(Line::is_closed);
        if admin_closed || (io_closed && !matches!(self.stage, Stage::Stopping { .. })) {
            self.lose(site);
        }
    }

    /// Loses the association without a notification that its commands have ended.
    fn lose(&mut self, site: &mut Site) {
        if self.patience == Patience::None {
            self.id[0] = self.id[0].wrapping_add(1);
            self.settle(site, "it did not wait", |_| true);
        }
        self.go_away(site);
    }

    fn go_away(&mut self, site: &mut Site) {
        if site.dice.chance(300_000)
            && let Some(admin) = self.admin.take()
        {
            // The controller stays while its I/O queues are lost.
            self.ending.push((site.now + site.dice.within(0..SECOND), admin));
        }
        self.cut();
        self.stage = Stage::Away { until: site.now + site.dice.within(0..50 * MILLI) };
    }

    fn keep_alive(&mut self, site: &Site) {
        let is_due = self.kept_alive_at + KEEP_ALIVE <= site.now;
        let is_connected =
            !matches!(self.stage, Stage::Away { .. } | Stage::Connecting | Stage::Silent);
        if let Some(admin) = &mut self.admin
            && (self.keeps_alive && is_due && is_connected && !admin.has_out(Sent::KeepAlive))
        {
            self.kept_alive_at = site.now;
            let keep_alive = |cid| Sqe::admin(AdminOpcode::KEEP_ALIVE, cid, 0);
            admin.send(site.now, Sent::KeepAlive, &[], keep_alive);
        }
    }

    /// Checks that no command and no stage takes too long.
    fn assert_patience(&mut self, site: &Site) {
        if self.stage == Stage::Serving || !site.allows(self.number) {
            self.since = site.now;
        }
        let waits = site.now - self.since;
        assert!(waits < PATIENCE, "host {} is {:?} for {waits} ns", self.number, self.stage);
        for line in self.io.iter().chain(&self.admin) {
            let Some((sent, since)) = line.oldest() else { continue };
            let waits = site.now - since;
            let (host, qid) = (self.number, line.qid);
            assert!(waits < PATIENCE, "host {host} queue {qid}: {sent:?} hangs for {waits} ns");
        }
    }

    /// Reads, writes, or leaves.
    fn act(&mut self, site: &mut Site) {
        match site.dice.within(0..1000) {
            0..10 => self.stop(site, true),
            10..22 => self.stop(site, false),
            22..30 => self.disconnect(site),
            30..40 => self.lose(site),
            40..44 if self.keeps_alive => self.stage = Stage::Silent,
            44..600 => self.command(site),
            _ => {}
        }
    }

    fn stop(&mut self, site: &mut Site, is_reset: bool) {
        if self.patience == Patience::None {
            return self.lose(site);
        }
        let cc = Cc::from_bits(ENABLED);
        let shn = if site.dice.coin() { CC_SHN_NORMAL } else { CC_SHN_ABRUPT };
        let cc = if is_reset { cc.with_en(false) } else { cc.with_shn(shn) };
        self.stage = Stage::Stopping { is_reset, look_at: u64::MAX };
        self.set_cc(site, Sent::Stop, cc.into_bits());
    }

    fn look(&mut self, site: &Site) {
        let Stage::Stopping { look_at, .. } = &mut self.stage else { return };
        *look_at = u64::MAX;
        let get = PropertyGet { size: PropertySize::Four, offset: offset::CSTS };
        if let Some(admin) = &mut self.admin {
            admin.send(site.now, Sent::Look, &[], |cid| get.encode(cid));
        }
    }

    fn looked(&mut self, site: &mut Site, csts: u32) {
        let Stage::Stopping { is_reset, look_at } = &mut self.stage else { return };
        let (csts, is_reset) = (Csts::from_bits(csts), *is_reset);
        let is_over = if is_reset { !csts.rdy() } else { csts.shst() == CSTS_SHST_COMPLETE };
        if !is_over {
            *look_at = site.now + 5 * MILLI;
            return;
        }
        let event = if is_reset { "controller reset" } else { "controller shut down" };
        self.settle(site, event, |_| true);
        self.cut.append(&mut self.io);
        self.cut.iter().for_each(Line::close);
        if !is_reset {
            return self.go_away(site);
        }
        self.enable(site);
    }

    fn disconnect(&mut self, site: &mut Site) {
        let line = site.dice.index(self.io.len());
        let line = &mut self.io[line];
        self.stage = Stage::Leaving { line: line.number };
        line.send(site.now, Sent::Disconnect, &[], |cid| Disconnect { recfmt: 0 }.encode(cid));
    }

    fn command(&mut self, site: &mut Site) {
        let at = site.dice.index(self.io.len());
        if self.io[at].outstanding() >= DEPTH {
            return;
        }
        let (disk, lbas) = self.somewhere(site);
        match site.dice.within(0..100) {
            0..45 => self.write(site, at, disk, lbas),
            45..90 => self.read(site, at, disk, lbas),
            90..93 => self.write_zeroes(site, at, disk, lbas),
            93..96 => self.deallocate(site, at, disk, lbas),
            _ => {
                let flush = |cid| Sqe::io(IoOpcode::FLUSH, cid, disk);
                self.io[at].send(site.now, Sent::Flush, &[], flush);
            }
        }
    }

    /// Selects a few blocks of a disk, often those that it lost a write to.
    fn somewhere(&mut self, site: &mut Site) -> (u32, Range<u64>) {
        if site.dice.chance(800_000)
            && let Some(again) = self.lost.pop()
        {
            return again;
        }
        let disk = site.dice.index(site.disks.len());
        let first = site.dice.within(0..BLOCKS);
        let end = BLOCKS.min(first + site.dice.within(1..4));
        (site.disks[disk].number, first..end)
    }

    fn begin(
        &mut self,
        site: &mut Site,
        at: usize,
        (disk, lbas): (u32, Range<u64>),
        content: Content,
    ) -> WriteId {
        let write = site.history.write(self.number, disk, lbas.clone(), content);
        if site.disks.iter().any(|known| known.number == disk && known.repeats()) {
            site.history.repeats(write);
        }
        let line = self.io[at].number;
        self.unsettled.push(Unsettled { write, line, disk, lbas });
        write
    }

    fn write(&mut self, site: &mut Site, at: usize, disk: u32, lbas: Range<u64>) {
        self.sequence += 1;
        let stamp = Stamp { host: self.number, sequence: self.sequence };
        let mut data = vec![0; blocks(&lbas) as usize * BLOCK];
        for (lba, bytes) in lbas.clone().zip(data.chunks_mut(BLOCK)) {
            stamp.fill(Block { disk, lba }, bytes);
        }
        let write = self.begin(site, at, (disk, lbas.clone()), Content::Stamp(stamp));
        let length = u32::try_from(data.len()).expect("a few blocks");
        let command =
            BlockIo { fua: site.dice.chance(200_000), ..BlockIo::new(lbas.start, blocks(&lbas)) };
        let encode = |sgl| move |cid| command.encode(IoOpcode::WRITE, cid, disk).with_sgl(sgl);
        let line = &mut self.io[at];
        if site.dice.coin() {
            let encode = encode(Sgl::InCapsule { offset: 0, length });
            if site.dice.chance(30_000) {
                line.send_damaged(site.now, Sent::Write(write), encode);
            } else {
                line.send(site.now, Sent::Write(write), &data, encode);
            }
            return;
        }
        if site.dice.chance(30_000) {
            line.damage_next();
        }
        let cid = line.send(site.now, Sent::Write(write), &[], encode(Sgl::Transport { length }));
        let late = if site.dice.chance(300_000) { site.dice.within(0..300 * MILLI) } else { 0 };
        line.offer(site.now + late, cid, data);
    }

    fn read(&mut self, site: &mut Site, at: usize, disk: u32, lbas: Range<u64>) {
        let read = site.history.read(self.number, disk, lbas.start);
        let length = blocks(&lbas) * 512;
        let command = BlockIo::new(lbas.start, blocks(&lbas));
        let encode =
            |cid| command.encode(IoOpcode::READ, cid, disk).with_sgl(Sgl::Transport { length });
        self.io[at].send(site.now, Sent::Read(read), &[], encode);
    }

    fn write_zeroes(&mut self, site: &mut Site, at: usize, disk: u32, lbas: Range<u64>) {
        let write = self.begin(site, at, (disk, lbas.clone()), Content::Zero);
        let command =
            BlockIo { deallocate: site.dice.coin(), ..BlockIo::new(lbas.start, blocks(&lbas)) };
        let encode = |cid| command.encode(IoOpcode::WRITE_ZEROES, cid, disk);
        self.io[at].send(site.now, Sent::Write(write), &[], encode);
    }

    fn deallocate(&mut self, site: &mut Site, at: usize, disk: u32, lbas: Range<u64>) {
        let write = self.begin(site, at, (disk, lbas.clone()), Content::Zero);
        let range = DsmRange::new(lbas.start, blocks(&lbas));
        let command = DatasetManagement {
            ranges: 1,
            deallocate: true,
            integral_write: false,
            integral_read: false,
        };
        let sgl = Sgl::InCapsule { offset: 0, length: 16 };
        let encode = |cid| command.encode(cid, disk).with_sgl(sgl);
        self.io[at].send(site.now, Sent::Deallocate(write), range.as_bytes(), encode);
    }
}

fn blocks(lbas: &Range<u64>) -> u32 {
    u32::try_from(lbas.end - lbas.start).expect("a few blocks")
}
