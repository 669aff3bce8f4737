//! A target, its connections, and the model of both.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use nvmeof_nvmf::limits::{ABORTS, ASYNC_EVENTS};
use nvmeof_nvmf::{
    DataSource, Disposition, Extent, Failure, IoCommand, IoKind, NamespaceSpec, Nanos, PortId,
    Queue, Response, Target, TargetCounts, TargetSpec, TransportKind,
};
use nvmeof_wire::fabrics::ConnectResult;
use nvmeof_wire::nqn::DISCOVERY_NQN;
use nvmeof_wire::zerocopy::FromBytes;
use nvmeof_wire::{Cqe, Sgl, Sqe, Status, U16};

use super::command::{self, Kind};
use super::request;
use super::spec::{HOST, RDMA, SUBSYSTEM, TCP, VARIANTS, broken, limits, spec};
use super::wire;
use crate::input::Input;

const SECOND: Nanos = 1_000_000_000;
/// Maximum number of concurrent connections.
const LINKS: usize = 7;

/// An accepted command without a completion.
#[derive(Debug)]
enum Open {
    /// `size` is the maximum size of its namespace since its arrival.
    Io {
        io: IoCommand,
        size: u64,
    },
    Data {
        sqe: Sqe,
        len: u32,
    },
    Abort,
    Flush {
        result: u64,
    },
    Held,
}

/// A connection.
#[derive(Debug)]
struct Link {
    queue: Queue,
    transport: TransportKind,
    open: BTreeMap<u16, Open>,
}

#[derive(Debug)]
pub(super) struct World {
    target: Arc<Target>,
    spec: Rc<TargetSpec>,
    links: Vec<Link>,
    /// The controller of its I/O queues.
    cntlid: u16,
    now: Nanos,
    epoch: u64,
}

impl World {
    pub(super) fn new() -> Self {
        let target = Target::new(limits());
        let spec = spec(0);
        target.apply(TargetSpec::clone(&spec)).expect("a valid spec");
        let epoch = target.epoch();
        Self { target, spec, links: Vec::new(), cntlid: 1, now: SECOND, epoch }
    }

    // The valid start of a run.

    pub(super) fn connect_admin(&mut self, discovery: bool) {
        let name = if discovery { DISCOVERY_NQN } else { SUBSYSTEM };
        let connect = command::connect(&mut Input::new(&[0x20]), 0).encode(0);
        let data = command::data_for(name, HOST, 0xffff);
        let cqe = self.run(connect, &data);
        assert!(cqe.status().is_success());
        self.cntlid = ConnectResult::parse(cqe.result.get()).cntlid;
    }

    pub(super) fn enable(&mut self, link: usize) {
        let answer = self.links[link].queue.handle_command(&command::enable(), 0, self.now);
        assert!(matches!(answer, Disposition::Respond(r) if r.cqe.status().is_success()));
    }

    /// Requests all events, and notification of two.
    pub(super) fn arm_events(&mut self, discovery: bool) {
        let wanted = if discovery { 1 << 31 } else { 1 << 8 };
        let set = Sqe::new(0x09, 0, 0).with_cdw10([0x0b, wanted]);
        let link = &mut self.links[0];
        let answer = link.queue.handle_command(&set, 0, self.now);
        assert!(matches!(answer, Disposition::Respond(r) if r.cqe.status().is_success()));
        for cid in [20, 21] {
            let answer = link.queue.handle_command(&Sqe::new(0x0c, cid, 0), 0, self.now);
            assert!(matches!(answer, Disposition::Held));
            link.open.insert(cid, Open::Held);
        }
    }

    pub(super) fn connect_io(&mut self, without_flow_control: bool) {
        let bits = if without_flow_control { 4 } else { 0 };
        let connect = command::connect(&mut Input::new(&[bits]), 1).encode(0);
        let data = command::data_for(SUBSYSTEM, HOST, self.cntlid);
        // A discovery controller has none.
        self.run(connect, &data);
    }

    /// Sends a Connect on a new connection.
    fn run(&mut self, sqe: Sqe, data: &[u8]) -> Cqe {
        let mut link = self.link(TCP);
        let sqe = sqe.with_sgl(Sgl::Transport { length: 1024 });
        let wants = link.queue.handle_command(&sqe, 0, self.now);
        assert!(matches!(wants, Disposition::Receive { len: 1024, .. }));
        let answer = link.queue.handle_data(&sqe, data, self.now);
        self.links.push(link);
        match answer {
            Disposition::Respond(response) => response.cqe,
            other => panic!("{other:?}"),
        }
    }

    fn link(&mut self, port: PortId) -> Link {
        let mut queue = Queue::new(&self.target, port, "192.0.2.1:50000", self.now);
        queue.set_local_address([192, 0, 2, 2].into());
        let transport = if port == RDMA { TransportKind::Rdma } else { TransportKind::Tcp };
        Link { queue, transport, open: BTreeMap::new() }
    }

    // Steps.

    /// Sends a command that is likely to be valid.
    pub(super) fn command(&mut self, input: &mut Input<'_>) {
        let Some(at) = self.choose(input) else { return };
        let link = &self.links[at];
        let kind = match link.queue.connected() {
            None => Kind::Fresh,
            Some(info) if info.admin => Kind::Admin,
            Some(_) => Kind::Io,
        };
        let sqe = command::likely(input, kind, link.transport);
        self.submit(input, at, &sqe);
    }

    /// Sends a command of any bytes.
    pub(super) fn raw_command(&mut self, input: &mut Input<'_>) {
        let Some(at) = self.choose(input) else { return };
        let named = input.one_in(8);
        let mut bytes = [0; 64];
        let given = input.bytes(64);
        bytes[..given.len()].copy_from_slice(given);
        let sqe = Sqe::read_from_bytes(&bytes).expect("64 bytes");
        if named {
            wire::check_names(&sqe, Status::from_field(sqe.cid.get()));
        }
        self.submit(input, at, &sqe);
    }

    /// Completes the work of a command, or delivers its data.
    pub(super) fn complete(&mut self, input: &mut Input<'_>) {
        let Some(at) = self.choose(input) else { return };
        let link = &self.links[at];
        let able: Vec<u16> = link
            .open
            .iter()
            .filter_map(|(cid, open)| (!matches!(open, Open::Held)).then_some(*cid))
            .collect();
        if able.is_empty() {
            return;
        }
        let cid = input.pick(&able);
        let Some(open) = self.links[at].open.remove(&cid) else { return };
        if let Open::Data { sqe, len } = &open
            && !input.one_in(8)
        {
            return self.provide(input, at, sqe, *len);
        }
        let link = &mut self.links[at];
        match open {
            Open::Abort => {
                let done = link.queue.complete_abort(cid, input.coin());
                answered(&done, cid);
                assert!(done.cqe.status().is_success());
            }
            Open::Io { io, size } => {
                let list = match io.kind {
                    IoKind::Deallocate { ranges } => data_of(input, usize::from(ranges) * 16),
                    _ => Vec::new(),
                };
                let ranges = |list: &[u8]| {
                    let extents = link.queue.parse_ranges(&io, list);
                    check_extents(&extents, &io, size);
                    extents
                };
                let outcome = request::run(input, &io, list, ranges);
                let response = link.queue.complete(cid, outcome);
                answered(&response, cid);
                assert_eq!(response.cqe.status().is_success(), outcome.is_ok());
            }
            Open::Data { .. } => {
                let response = link.queue.complete(cid, Err(failure(input)));
                answered(&response, cid);
                assert!(!response.cqe.status().is_success());
            }
            Open::Flush { result } => {
                let response = link.queue.complete_flush(cid, result, input.coin());
                answered(&response, cid);
            }
            Open::Held => {}
        }
    }

    /// The host connects, disconnects or disappears.
    pub(super) fn host(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0..=3 if self.links.len() < LINKS => {
                let port = input.pick(&[TCP, TCP, RDMA, PortId(9)]);
                let link = self.link(port);
                self.links.push(link);
            }
            4 => {
                let Some(at) = self.choose(input) else { return };
                let link = &mut self.links[at];
                drop(link.queue.handle_disconnect());
                assert!(link.queue.is_dead().is_some());
            }
            5 => {
                if let Some(at) = self.choose(input) {
                    drop(self.links.swap_remove(at));
                }
            }
            _ => {
                let Some(at) = self.choose(input) else { return };
                if self.links[at].queue.connected().is_some_and(|info| info.admin) {
                    let mut sqe = command::enable();
                    sqe.cid = U16::new(u16::from(input.byte() % 24));
                    self.submit(input, at, &sqe);
                }
            }
        }
    }

    /// Advances time; runs every due timer.
    pub(super) fn time(&mut self, input: &mut Input<'_>) {
        self.now += match input.byte() % 4 {
            0 => SECOND / 10,
            1 => 4 * SECOND,
            2 => 31 * SECOND,
            _ => u64::from(input.word()) * SECOND / 100,
        };
        for link in &mut self.links {
            if link.queue.deadline().is_some_and(|at| self.now >= at) {
                link.queue.handle_timeout(self.now);
                assert!(link.queue.deadline().is_none_or(|at| at > self.now), "a timer stays due");
            }
        }
    }

    /// Applies another configuration.
    pub(super) fn reconfigure(&mut self, input: &mut Input<'_>) {
        let how = input.byte();
        if how >= 224 {
            let epoch = self.target.epoch();
            assert!(self.target.apply(broken(how)).is_err());
            assert_eq!(self.target.epoch(), epoch);
            return;
        }
        let wanted = spec(how % VARIANTS);
        self.spec = Rc::clone(&wanted);
        self.target.apply(TargetSpec::clone(&wanted)).expect("a valid spec");
        let changes = self.target.apply(TargetSpec::clone(&wanted)).expect("a valid spec");
        assert!(changes.is_empty(), "the same again: {changes:?}");
        for Link { queue, open, .. } in &mut self.links {
            for open in open.values_mut() {
                let Open::Io { io, size } = open else { continue };
                if let Some(namespace) = find(&self.spec, queue, io.nsid) {
                    *size = size_of(namespace).max(*size);
                }
            }
        }
    }

    fn choose(&self, input: &mut Input<'_>) -> Option<usize> {
        (!self.links.is_empty()).then(|| usize::from(input.byte()) % self.links.len())
    }

    fn submit(&mut self, input: &mut Input<'_>, at: usize, sqe: &Sqe) {
        let inline_len = match (sqe.dptr.parse(), input.byte()) {
            (Sgl::InCapsule { length, .. }, 0..=219) => length.min(8192),
            (Sgl::InCapsule { .. }, other) => u32::from(other) * 16,
            _ => 0,
        };
        wire::check_command(sqe);
        let link = &mut self.links[at];
        let cid = sqe.cid.get();
        let (taken, before) = (link.open.contains_key(&cid), link.queue.outstanding());
        let depth = link.queue.connected().map(|info| info.depth);
        let disposition = link.queue.handle_command(sqe, inline_len, self.now);
        let dropped = drop_event_requests(link);
        if taken && !dropped.contains(&cid) {
            assert!(dropped.is_empty(), "{dropped:?}");
            assert!(refused(&disposition), "an identifier in use: {disposition:?}");
            assert_eq!(link.queue.outstanding(), before);
            return;
        }
        if dropped.is_empty() && depth.is_some_and(|depth| before >= u32::from(depth)) {
            assert!(refused(&disposition) && link.queue.is_dead().is_some());
        }
        if let Some(len) = self.book(at, sqe, inline_len, disposition)
            && input.coin()
        {
            self.links[at].open.remove(&cid);
            self.provide(input, at, sqe, len);
        }
    }

    /// Records the disposition of a command; returns the bytes of data for which it waits.
    fn book(
        &mut self,
        at: usize,
        sqe: &Sqe,
        inline_len: u32,
        disposition: Disposition,
    ) -> Option<u32> {
        let cid = sqe.cid.get();
        let link = &mut self.links[at];
        let open = match disposition {
            Disposition::Respond(response) => {
                answered(&response, cid);
                return None;
            }
            Disposition::Send { len, sgl } => {
                assert!(len > 0 && len <= sgl.length());
                assert_eq!(sgl, sqe.dptr.parse());
                check_sgl(sgl, link.transport);
                let mut data = vec![0xee; len as usize];
                let response = link.queue.fill(sqe, &mut data, self.now);
                answered(&response, cid);
                assert!(response.cqe.status().is_success(), "nothing has changed since the check");
                wire::check_data(sqe, &data);
                return None;
            }
            Disposition::Receive { len, source } => {
                assert!(len > 0 && len <= 8192);
                check_source(source, len, inline_len, sqe, link.transport);
                link.open.insert(cid, Open::Data { sqe: *sqe, len });
                return Some(len);
            }
            Disposition::Io(io) => {
                let size = check_io(&io, sqe, inline_len, link, &self.spec);
                Open::Io { io, size }
            }
            Disposition::Held => Open::Held,
            Disposition::Flush { devices, result } => {
                assert!(!devices.is_empty());
                Open::Flush { result }
            }
            Disposition::Abort { controller, sqid, .. } => {
                let info = link.queue.connected().expect("an admin queue");
                assert!(info.admin && controller == info.controller && sqid != 0);
                Open::Abort
            }
        };
        link.open.insert(cid, open);
        None
    }

    /// Delivers the data of a command.
    fn provide(&mut self, input: &mut Input<'_>, at: usize, sqe: &Sqe, len: u32) {
        let fresh = self.links[at].queue.connected().is_none();
        let mut data = if fresh {
            command::connect_data(input, sqe, self.cntlid)
        } else {
            data_of(input, len as usize)
        };
        data.resize(len as usize, 0);
        let link = &mut self.links[at];
        let disposition = link.queue.handle_data(sqe, &data, self.now);
        if fresh && disposition == Disposition::Held {
            // Commands of the previous association have not ended.
            link.open.insert(sqe.cid.get(), Open::Held);
            return;
        }
        assert!(
            matches!(disposition, Disposition::Respond(_)),
            "all that takes data is answered then: {disposition:?}"
        );
        let Disposition::Respond(response) = disposition else { return };
        answered(&response, sqe.cid.get());
        if let (true, Some(info)) = (fresh, link.queue.connected()) {
            assert!(response.cqe.status().is_success());
            assert_eq!(ConnectResult::parse(response.cqe.result.get()).cntlid, info.cntlid);
            if info.admin && !info.discovery {
                self.cntlid = info.cntlid;
            }
        } else if fresh {
            assert!(!response.cqe.status().is_success());
        }
    }

    // Invariants.

    pub(super) fn check(&mut self) {
        let epoch = self.target.epoch();
        let looked_at = std::mem::replace(&mut self.epoch, epoch) == epoch;
        for link in &mut self.links {
            drop(link.queue.poll_barrier());
            if let Some((sqe, disposition)) = link.queue.poll_connect(self.now) {
                let Disposition::Respond(response) = disposition else { panic!("{disposition:?}") };
                answered(&response, sqe.cid.get());
                assert!(matches!(link.open.remove(&sqe.cid.get()), Some(Open::Held)));
            }
            if let Some(devices) = link.queue.poll_shutdown() {
                assert!(!devices.is_empty());
                link.queue.shutdown_flushed(true);
            }
            if let Some(response) = link.queue.poll_disconnect() {
                let cid = response.cqe.cid.get();
                answered(&response, cid);
                assert!(matches!(link.open.remove(&cid), Some(Open::Held)));
            }
            while let Some(response) = link.queue.poll_event() {
                assert!(!looked_at, "an event that nobody was told of");
                let cid = response.cqe.cid.get();
                answered(&response, cid);
                wire::check_event(&response.cqe);
                assert!(matches!(link.open.remove(&cid), Some(Open::Held)));
            }
            let queue = &link.queue;
            assert_eq!(queue.outstanding() as usize, link.open.len());
            assert!(queue.is_dead().is_none() || queue.deadline().is_none());
            let count = |f: fn(&&Open) -> bool| link.open.values().filter(f).count();
            assert!(count(|open| matches!(open, Open::Abort)) <= usize::from(ABORTS));
            if queue.connected().is_some() {
                assert!(count(|open| matches!(open, Open::Held)) <= usize::from(ASYNC_EVENTS));
            }
        }
        let counts = self.target.counts();
        assert_eq!(counts.queues, self.links.len());
        assert!(counts.controllers <= self.links.len());
    }

    pub(super) fn finish(mut self) {
        self.links.clear();
        assert_eq!(self.target.counts(), TargetCounts::default());
        assert_eq!(Arc::strong_count(&self.target), 1);
    }
}

/// Removes the event requests that ended without a response: their identifiers.
fn drop_event_requests(link: &mut Link) -> Vec<u16> {
    let dropped: Vec<u16> = std::iter::from_fn(|| link.queue.take_dropped()).collect();
    for cid in &dropped {
        assert!(matches!(link.open.remove(cid), Some(Open::Held)), "{cid} was not held");
    }
    dropped
}

fn answered(response: &Response, cid: u16) {
    assert_eq!(response.cqe.cid.get(), cid);
    assert_eq!(response.cqe.sqid.get(), 0);
    wire::check_completion(&response.cqe);
    if response.elidable {
        assert!(response.cqe.status().is_success() && response.cqe.result.get() == 0);
    }
}

fn refused(disposition: &Disposition) -> bool {
    matches!(disposition, Disposition::Respond(response) if !response.cqe.status().is_success())
}

/// Checks that this transport can use an SGL.
fn check_sgl(sgl: Sgl, transport: TransportKind) {
    match (sgl, transport) {
        (Sgl::Keyed { .. }, TransportKind::Rdma) => {}
        (Sgl::Transport { .. }, TransportKind::Tcp | TransportKind::Loop) => {}
        other => panic!("{other:?}"),
    }
}

fn check_source(source: DataSource, len: u32, inline: u32, sqe: &Sqe, transport: TransportKind) {
    match source {
        DataSource::InCapsule { offset } => {
            assert!(offset.checked_add(len).is_some_and(|end| end <= inline));
            assert!(sqe.dptr.parse().length() >= len);
        }
        DataSource::Host(sgl) => {
            assert_eq!(sgl, sqe.dptr.parse());
            assert!(sgl.length() >= len);
            check_sgl(sgl, transport);
        }
    }
}

fn find<'a>(spec: &'a TargetSpec, queue: &Queue, nsid: u32) -> Option<&'a NamespaceSpec> {
    let info = queue.connected()?;
    let subsystem = spec.subsystems.iter().find(|subsystem| subsystem.nqn == info.subnqn)?;
    subsystem.namespaces.iter().find(|namespace| namespace.nsid == nsid)
}

fn size_of(namespace: &NamespaceSpec) -> u64 {
    namespace.blocks * u64::from(namespace.block_size)
}

/// Checks that an I/O command lies within its current namespace, and its data within the host's
/// buffers.
///
/// Returns the namespace's size.
fn check_io(io: &IoCommand, sqe: &Sqe, inline_len: u32, link: &Link, spec: &TargetSpec) -> u64 {
    let namespace = find(spec, &link.queue, io.nsid).expect("a namespace there is");
    assert_eq!((io.cid, io.nsid), (sqe.cid.get(), sqe.nsid.get()));
    assert_eq!(io.device, namespace.device);
    assert!(!link.queue.connected().is_some_and(|info| info.admin || info.discovery));
    let size = size_of(namespace);
    assert!(io.offset.checked_add(io.len).is_some_and(|end| end <= size));
    let block = u64::from(namespace.block_size);
    assert!(io.offset.is_multiple_of(block) && io.len.is_multiple_of(block));
    let is_bare = matches!(io.kind, IoKind::Flush | IoKind::Deallocate { .. });
    assert_eq!(io.len == 0, is_bare);
    if !matches!(io.kind, IoKind::WriteZeroes { .. }) {
        assert!(io.len <= u64::from(limits().max_transfer));
    }
    match io.kind {
        IoKind::Read => {
            assert!(io.sgl.length() >= io.data_len());
            check_sgl(io.sgl, link.transport);
            assert!(io.source.is_none());
        }
        IoKind::Write | IoKind::Compare | IoKind::Deallocate { .. } => {
            let source = io.source.expect("data");
            check_source(source, io.data_len(), inline_len, sqe, link.transport);
        }
        IoKind::Flush | IoKind::WriteZeroes { .. } | IoKind::Verify => {
            assert!(io.source.is_none());
        }
    }
    let writes = match io.kind {
        IoKind::Write => true,
        IoKind::WriteZeroes { deallocate } => {
            assert!(namespace.deallocate || !deallocate);
            true
        }
        IoKind::Deallocate { ranges } => {
            assert!(namespace.deallocate && (1..=256).contains(&ranges));
            true
        }
        IoKind::Read | IoKind::Compare | IoKind::Verify | IoKind::Flush => false,
    };
    assert!(!(writes && namespace.read_only));
    size
}

/// Checks that ranges lie in the namespace, by its maximum size since the command's arrival.
fn check_extents(extents: &Result<Vec<Extent>, Failure>, io: &IoCommand, size: u64) {
    let Ok(extents) = extents else { return };
    let IoKind::Deallocate { ranges } = io.kind else { panic!("{io:?}") };
    assert!(extents.len() <= usize::from(ranges));
    for extent in extents {
        let end = extent.offset.checked_add(extent.len).expect("no overflow");
        assert!(extent.len > 0 && end <= size);
    }
}

/// Returns data with the input's bytes first and, for ranges, small numbers in the rest.
fn data_of(input: &mut Input<'_>, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    for range in data.chunks_exact_mut(16).take(8) {
        range[4] = input.byte();
        range[8] = input.byte();
        if input.one_in(12) {
            let given = input.bytes(16);
            range[..given.len()].copy_from_slice(given);
        }
    }
    data
}

fn failure(input: &mut Input<'_>) -> Failure {
    input.pick(&[
        Failure::DataTransfer,
        Failure::MediaRead,
        Failure::MediaWrite,
        Failure::CompareMismatch,
        Failure::Aborted,
        Failure::Internal,
    ])
}
