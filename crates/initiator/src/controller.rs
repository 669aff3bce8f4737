//! The host's sequence for one controller, from Connect to shutdown.
//!
//! ```text
//! connection -> Connect (admin) -> CAP -> CC.EN -> CSTS.RDY -> Identify Controller
//!   -> Number of Queues -> namespaces -> [open_queue: connection -> Connect]*
//!   ... Keep Alive ... -> CC.SHN -> CSTS.SHST
//! ```

use std::io::ErrorKind;
use std::time::Duration;

use nvmeof_wire::fabrics::{
    CNTLID_DYNAMIC, Connect, ConnectData, ConnectResult, InvalidParameter, PropertyGet,
    PropertySet, PropertySize,
};
use nvmeof_wire::features::{Fid, NumberOfQueues, SetFeatures};
use nvmeof_wire::identify::{
    self, Cns, IDENTIFY_SIZE, Identify, NSIDS_PER_LIST, NsidList, nsattr, oncs,
};
use nvmeof_wire::properties::{
    CAP_CSS_IO_SETS, CAP_CSS_NVM, CC_CSS_ADMIN_ONLY, CC_CSS_ALL, CC_CSS_NVM, CC_SHN_NORMAL,
    CSTS_SHST_COMPLETE, Cap, Cc, Csts, offset,
};
use nvmeof_wire::zerocopy::{FromBytes, IntoBytes};
use nvmeof_wire::{Nqn, Sqe, Status, ascii};

use crate::admin::{AdminQueue, ExecuteError};
use crate::fabric::{Connector, QueueSpec};
use crate::rdma::{RdmaConnector, RouteResolver, SystemRouteResolver};
use crate::tcp::TcpConnector;
use crate::{
    Address, Buffer, Clock, CommandError, ConnectOptions, Endpoint, Error, Fabric, IoQueue,
    MAX_QUEUE_DEPTH, Transfer, nanos,
};

/// Entries of the admin queue.
const ADMIN_ENTRIES: u16 = 32;
/// Timeout for a shutdown.
const SHUTDOWN: Duration = Duration::from_secs(5);
/// Interval of reading CSTS.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// Maximum namespaces that are read from a controller's list, so that the peer cannot exhaust the
/// memory.
const MAX_NAMESPACES: usize = 1 << 16;
/// Unit of ICDOFF in bytes.
const CAPSULE_UNIT: u32 = 16;
/// Flow control of the submission queue is always off, as SUCCESS flags require.
const NO_FLOW_CONTROL: bool = true;

/// Properties of a controller, from Identify Controller and CAP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerInfo {
    /// Controller ID.
    pub cntlid: u16,
    /// Serial number.
    pub serial: String,
    /// Model number.
    pub model: String,
    /// Firmware revision.
    pub firmware: String,
    /// Maximum data bytes of a command, or `None` if there is no limit.
    pub max_transfer: Option<u64>,
    /// Maximum bytes of in-capsule data of an I/O command.
    pub in_capsule: u32,
    /// Bytes between an I/O command and its in-capsule data (ICDOFF).
    pub in_capsule_offset: u32,
    /// Maximum entries of an I/O queue, one of which stays empty.
    pub max_entries: u32,
    /// I/O queues granted.
    pub queues: u16,
    /// The controller has a volatile write cache.
    pub volatile_cache: bool,
    /// The controller supports Dataset Management, so blocks can be deallocated.
    pub deallocate: bool,
}

/// An active namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Namespace Identifier.
    pub nsid: u32,
    /// Size in logical blocks.
    pub blocks: u64,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// Metadata bytes of a block; I/O supports only 0.
    pub metadata: u16,
    /// The namespace is write protected.
    pub read_only: bool,
}

impl NamespaceInfo {
    /// Size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.blocks.saturating_mul(u64::from(self.block_size))
    }
}

/// A connected, enabled controller.
#[derive(Debug)]
pub struct Controller {
    admin: AdminQueue,
    connector: Box<dyn Connector>,
    endpoint: Endpoint,
    options: ConnectOptions,
    clock: Clock,
    info: ControllerInfo,
    namespaces: Vec<NamespaceInfo>,
    cc: Cc,
    next_qid: u16,
}

impl Controller {
    /// Connects to an I/O controller and reads its properties and namespaces.
    ///
    /// # Errors
    /// The failed operation, its place and the remedy.
    pub fn connect(endpoint: &Endpoint, options: &ConnectOptions) -> Result<Self, Error> {
        let mut controller = Self::connect_admin(endpoint, options)?;
        controller.negotiate_queues()?;
        controller.list_namespaces()?;
        Ok(controller)
    }

    /// Connects as [`Controller::connect`] does, by RDMA over the device that `resolver` leads to.
    /// The fabric of the endpoint is ignored. This is for providers other than the system's.
    ///
    /// # Errors
    /// The errors of [`Controller::connect`].
    pub fn connect_by<R: RouteResolver>(
        endpoint: &Endpoint,
        options: &ConnectOptions,
        resolver: R,
    ) -> Result<Self, Error> {
        let connector = Box::new(RdmaConnector::new(&endpoint.address, options, resolver)?);
        let mut controller = Self::connect_admin_by(connector, endpoint, options)?;
        controller.negotiate_queues()?;
        controller.list_namespaces()?;
        Ok(controller)
    }

    /// Connects the admin queue, enables the controller and identifies it.
    pub(crate) fn connect_admin(
        endpoint: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<Self, Error> {
        Self::connect_admin_by(connector(&endpoint.address, options)?, endpoint, options)
    }

    pub(crate) fn connect_admin_by(
        connector: Box<dyn Connector>,
        endpoint: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<Self, Error> {
        let clock = Clock::start();
        let pair = connector.connect(&QueueSpec {
            qid: 0,
            cntlid: None,
            depth: ADMIN_ENTRIES - 1,
            in_capsule: 0,
            in_capsule_offset: 0,
            timeout: options.connect_timeout,
        })?;
        let mut admin = AdminQueue::new(pair, clock, options.connect_timeout);
        let kato_ms = u32::try_from(options.keep_alive.as_millis()).unwrap_or(u32::MAX);
        let connect = Connect {
            qid: 0,
            entries: ADMIN_ENTRIES.into(),
            priority: 0,
            disable_sq_flow_control: NO_FLOW_CONTROL,
            queue_deletion: false,
            kato_ms,
        };
        let cntlid = connect_queue(&mut admin, &connect, CNTLID_DYNAMIC, endpoint, options)?.cntlid;
        admin.start_keep_alive(options.keep_alive);
        let mut controller = Self {
            admin,
            connector,
            endpoint: endpoint.clone(),
            options: options.clone(),
            clock,
            info: ControllerInfo {
                cntlid,
                serial: String::new(),
                model: String::new(),
                firmware: String::new(),
                max_transfer: None,
                in_capsule: 0,
                in_capsule_offset: 0,
                max_entries: 2,
                queues: 0,
                volatile_cache: false,
                deallocate: false,
            },
            namespaces: Vec::new(),
            cc: Cc::new(),
            next_qid: 1,
        };
        let cap = controller.enable()?;
        controller.identify(cap)?;
        Ok(controller)
    }

    /// Properties of the controller.
    #[must_use]
    pub fn info(&self) -> &ControllerInfo {
        &self.info
    }

    /// Active namespaces, by NSID.
    #[must_use]
    pub fn namespaces(&self) -> &[NamespaceInfo] {
        &self.namespaces
    }

    /// Endpoint of the controller.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Clock of the controller's times and of its queues.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Maximum commands that one of its I/O queues can have outstanding.
    #[must_use]
    pub fn queue_depth(&self) -> u16 {
        let depth = (self.info.max_entries - 1).min(u32::from(self.options.depth));
        u16::try_from(depth).unwrap_or(u16::MAX)
    }

    /// Connects one more I/O queue, of [`Controller::queue_depth`] commands.
    ///
    /// # Errors
    /// If all granted queues are open, or the connection fails.
    pub fn open_queue(&mut self) -> Result<IoQueue, Error> {
        self.open_queue_of(self.queue_depth())
    }

    /// Connects one more I/O queue, of `depth` commands or of [`Controller::queue_depth`] if that
    /// is fewer.
    ///
    /// # Errors
    /// The errors of [`Controller::open_queue`].
    pub fn open_queue_of(&mut self, depth: u16) -> Result<IoQueue, Error> {
        let qid = self.next_qid;
        if qid > self.info.queues {
            let what = format!(
                "the controller grants {} I/O queues and all are in use; run fewer jobs or raise the \
                 target's limit",
                self.info.queues
            );
            return Err(self.unusable(what));
        }
        let depth = depth.clamp(1, self.queue_depth());
        let pair = self.connector.connect(&QueueSpec {
            qid,
            cntlid: Some(self.info.cntlid),
            depth,
            in_capsule: self.info.in_capsule,
            in_capsule_offset: self.info.in_capsule_offset,
            timeout: self.options.connect_timeout,
        })?;
        let mut queue = AdminQueue::new(pair, self.clock, self.options.connect_timeout);
        let connect = Connect {
            qid,
            entries: u32::from(depth) + 1,
            priority: 0,
            disable_sq_flow_control: NO_FLOW_CONTROL,
            queue_deletion: false,
            kato_ms: 0,
        };
        connect_queue(&mut queue, &connect, self.info.cntlid, &self.endpoint, &self.options)?;
        self.next_qid += 1;
        Ok(IoQueue::new(queue.into_pair(), qid, depth, nanos(self.options.io_timeout)))
    }

    /// Sends Keep Alive when it is due. Call this several times within the keep alive timeout.
    ///
    /// # Errors
    /// If the controller does not respond any more, or has ended the connection.
    pub fn poll(&mut self) -> Result<(), Error> {
        self.admin.poll()
    }

    /// Shuts the controller down (CC.SHN) and disconnects. Close the I/O queues before.
    ///
    /// # Errors
    /// If the controller does not respond or does not finish within 5 s.
    pub fn disconnect(mut self) -> Result<(), Error> {
        let cc = self.cc.with_shn(CC_SHN_NORMAL);
        self.set_cc(cc)?;
        self.await_status("shutdown", SHUTDOWN, |csts| csts.shst() == CSTS_SHST_COMPLETE)
    }

    /// Executes an admin command that reads `len` bytes.
    pub(crate) fn read(
        &mut self,
        what: &'static str,
        sqe: Sqe,
        len: usize,
    ) -> Result<Buffer, Error> {
        let transfer = Transfer::In(self.buffer(len)?);
        let (_, buffer) = self.admin.execute(what, sqe, transfer)?;
        buffer.map_or_else(|| self.buffer(len), Ok)
    }

    /// Allocates memory for a command's data.
    fn buffer(&self, len: usize) -> Result<Buffer, Error> {
        let out_of_memory =
            || Error::Io { peer: self.peer(), cause: ErrorKind::OutOfMemory.into() };
        Buffer::try_zeroed(len).ok_or_else(out_of_memory)
    }

    /// Executes an admin command without data that can take up to `timeout`.
    pub(crate) fn execute_long(
        &mut self,
        what: &'static str,
        sqe: Sqe,
        timeout: Duration,
    ) -> Result<(), Error> {
        self.admin.execute_long(what, sqe, timeout)
    }

    /// Address of the peer, for messages.
    pub(crate) fn peer(&self) -> String {
        self.admin.peer()
    }

    /// Sets CC.EN and waits for CSTS.RDY (Base 3.5.1).
    fn enable(&mut self) -> Result<Cap, Error> {
        let cap = Cap::from_bits(self.property(
            "Property Get (CAP)",
            offset::CAP,
            PropertySize::Eight,
        )?);
        if cap.mqes() == 0 {
            return Err(self.unusable("CAP.MQES is 0: queues hold no command".into()));
        }
        let css = if cap.css() & CAP_CSS_NVM != 0 {
            CC_CSS_NVM
        } else if cap.css() & CAP_CSS_IO_SETS != 0 {
            CC_CSS_ALL
        } else {
            CC_CSS_ADMIN_ONLY
        };
        let cc = Cc::new()
            .with_en(true)
            .with_css(css)
            .with_mps(cap.mpsmin())
            .with_iosqes(6)
            .with_iocqes(4);
        self.set_cc(cc)?;
        self.cc = cc;
        let timeout = Duration::from_millis(500) * (u32::from(cap.to()) + 1);
        self.await_status("CC.EN", timeout, |csts| csts.rdy())?;
        Ok(cap)
    }

    fn identify(&mut self, cap: Cap) -> Result<(), Error> {
        let sqe = Identify::new(Cns::CONTROLLER, 0).encode(0);
        let buffer = self.read("Identify Controller", sqe, IDENTIFY_SIZE)?;
        let Ok(data) = identify::Controller::ref_from_bytes(buffer.as_slice()) else {
            return Err(self.unusable("Identify Controller data of the wrong size".into()));
        };
        let text = |field| ascii::text(field).unwrap_or("?").trim_start().to_owned();
        // MDTS counts pages of CAP.MPSMIN; a value beyond 64 bits is no limit.
        let page_shift = 12 + u32::from(cap.mpsmin());
        let max_transfer = match data.mdts {
            0 => None,
            mdts => 1_u64.checked_shl(u32::from(mdts) + page_shift),
        };
        // A transfer that no command can describe is impossible, whatever the controller's limit.
        let describable = self.connector.max_transfer();
        let max_transfer = match max_transfer {
            None if describable >= u64::from(u32::MAX) => None,
            limit => Some(limit.unwrap_or(u64::MAX).min(describable)),
        };
        let room = u32::try_from(data.in_capsule_data()).unwrap_or(u32::MAX);
        let in_capsule_offset = u32::from(data.icdoff.get()) * CAPSULE_UNIT;
        let max_entries =
            (u32::from(cap.mqes()) + 1).min(u32::try_from(MAX_QUEUE_DEPTH).unwrap_or(2));
        self.info = ControllerInfo {
            serial: text(&data.sn),
            model: text(&data.mn),
            firmware: text(&data.fr),
            max_transfer,
            in_capsule: self.connector.in_capsule(room, in_capsule_offset),
            in_capsule_offset,
            max_entries,
            volatile_cache: data.vwc & 1 == 1,
            deallocate: data.oncs.get() & oncs::DATASET_MANAGEMENT != 0,
            ..self.info.clone()
        };
        Ok(())
    }

    /// Set Features, Number of Queues (Base 5.27.1.5).
    fn negotiate_queues(&mut self) -> Result<(), Error> {
        let wanted = self.options.queues.max(1);
        let asked = NumberOfQueues::new().with_submission(wanted - 1).with_completion(wanted - 1);
        let set = SetFeatures {
            fid: Fid::NUMBER_OF_QUEUES,
            save: false,
            nsid: 0,
            cdw11: asked.into_bits(),
            cdw12: 0,
            uuid_index: 0,
        };
        let what = "Set Features (Number of Queues)";
        let (granted, _) = self.admin.execute(what, set.encode(0), Transfer::None)?;
        let granted = NumberOfQueues::from_bits(low_half(granted));
        let zeros_based = granted.submission().min(granted.completion());
        self.info.queues = zeros_based.saturating_add(1).min(wanted);
        Ok(())
    }

    fn list_namespaces(&mut self) -> Result<(), Error> {
        let mut after = 0;
        loop {
            let sqe = Identify::new(Cns::ACTIVE_NAMESPACES, after).encode(0);
            let buffer = self.read("Identify (active namespaces)", sqe, IDENTIFY_SIZE)?;
            let Ok(list) = NsidList::ref_from_bytes(buffer.as_slice()) else { return Ok(()) };
            let nsids: Vec<u32> = list.iter().collect();
            for &nsid in &nsids {
                if nsid <= after || self.namespaces.len() >= MAX_NAMESPACES {
                    let what =
                        format!("the namespace list goes from {after} to {nsid}, not upwards");
                    return Err(self.unusable(what));
                }
                after = nsid;
                self.identify_namespace(nsid)?;
            }
            if nsids.len() < NSIDS_PER_LIST {
                return Ok(());
            }
        }
    }

    fn identify_namespace(&mut self, nsid: u32) -> Result<(), Error> {
        let sqe = Identify::new(Cns::NAMESPACE, nsid).encode(0);
        let buffer = self.read("Identify Namespace", sqe, IDENTIFY_SIZE)?;
        let Ok(data) = identify::Namespace::ref_from_bytes(buffer.as_slice()) else {
            return Ok(());
        };
        // A namespace that was removed after the list was read is all zeros.
        if data.nsze.get() == 0 {
            return Ok(());
        }
        let Some(block_size) = data.block_size() else {
            let what = format!(
                "namespace {nsid} has blocks of 2^{} bytes, which cannot be worked with",
                data.format().lbads
            );
            return Err(self.unusable(what));
        };
        self.namespaces.push(NamespaceInfo {
            nsid,
            blocks: data.nsze.get(),
            block_size,
            metadata: data.format().ms.get(),
            read_only: data.nsattr & nsattr::WRITE_PROTECTED != 0,
        });
        Ok(())
    }

    fn property(
        &mut self,
        what: &'static str,
        offset: u32,
        size: PropertySize,
    ) -> Result<u64, Error> {
        let sqe = PropertyGet { size, offset }.encode(0);
        Ok(self.admin.execute(what, sqe, Transfer::None)?.0)
    }

    fn set_cc(&mut self, cc: Cc) -> Result<(), Error> {
        let value = u64::from(cc.into_bits());
        let set = PropertySet { size: PropertySize::Four, offset: offset::CC, value };
        self.admin.execute("Property Set (CC)", set.encode(0), Transfer::None)?;
        Ok(())
    }

    /// Reads CSTS until it satisfies the condition.
    fn await_status(
        &mut self,
        what: &str,
        timeout: Duration,
        wanted: impl Fn(Csts) -> bool,
    ) -> Result<(), Error> {
        let until = self.clock.now().saturating_add(nanos(timeout));
        loop {
            let value = self.property("Property Get (CSTS)", offset::CSTS, PropertySize::Four)?;
            let csts = Csts::from_bits(low_half(value));
            if wanted(csts) {
                return Ok(());
            }
            if csts.cfs() {
                return Err(
                    self.unusable("the controller reports a fatal status (CSTS.CFS)".into())
                );
            }
            if self.clock.now() >= until {
                let (peer, what) = (self.peer(), what.to_owned());
                return Err(Error::Timeout { peer, what, after: timeout });
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn unusable(&self, what: String) -> Error {
        Error::Unusable { peer: self.peer(), what }
    }
}

/// Dword 0 of a completion.
#[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
fn low_half(value: u64) -> u32 {
    value as u32
}

/// Returns the connector of the address's fabric.
fn connector(address: &Address, options: &ConnectOptions) -> Result<Box<dyn Connector>, Error> {
    Ok(match address.fabric {
        Fabric::Tcp => Box::new(TcpConnector::new(address, options)),
        Fabric::Rdma => Box::new(RdmaConnector::new(address, options, SystemRouteResolver)?),
    })
}

/// Executes the Connect command (Base 6.3).
fn connect_queue(
    queue: &mut AdminQueue,
    connect: &Connect,
    cntlid: u16,
    endpoint: &Endpoint,
    options: &ConnectOptions,
) -> Result<ConnectResult, Error> {
    let data = ConnectData::new(options.hostid, cntlid, &endpoint.subnqn, &options.hostnqn);
    let transfer = Transfer::Out(Buffer::from(data.as_bytes()));
    let error = match queue.try_execute("Connect", connect.encode(0), transfer) {
        Ok((value, _)) => {
            let result = ConnectResult::parse(value);
            if !(result.authentication || result.authentication_over_secure_channel) {
                return Ok(result);
            }
            let what = "the subsystem requires authentication, which this host does not do; allow the \
                        host without it in the target";
            return Err(Error::Unusable { peer: queue.peer(), what: what.into() });
        }
        Err(ExecuteError::Connection(error)) => return Err(error),
        Err(ExecuteError::Command(error)) => error,
    };
    Err(Error::Refused {
        peer: queue.peer(),
        subnqn: endpoint.subnqn.to_string(),
        hostnqn: options.hostnqn.to_string(),
        reason: refusal(error, &endpoint.address, &options.hostnqn),
    })
}

/// Returns the reason of a rejected Connect and the remedy.
fn refusal(error: CommandError, address: &Address, hostnqn: &Nqn) -> String {
    let CommandError::Status { status, dw0 } = error else { return error.to_string() };
    let at = InvalidParameter::parse(dw0.into());
    match status.code() {
        Status::CONNECT_INVALID_PARAMETERS
            if at.in_data && at.ipo == ConnectData::SUBNQN_OFFSET =>
        {
            format!(
                "unknown subsystem; `nvmeof-perf discover --connect {address}` lists the known \
                 ones ({status})"
            )
        }
        Status::CONNECT_INVALID_PARAMETERS
            if at.in_data && at.ipo == ConnectData::HOSTNQN_OFFSET =>
        {
            format!("the target rejects the host NQN; check --hostnqn ({status})")
        }
        Status::CONNECT_INVALID_HOST => format!(
            "the host is not allowed; add {hostnqn} to the subsystem's hosts in the target's \
             configuration, or pass --hostnqn with an allowed name ({status})"
        ),
        Status::CONTROLLER_BUSY => {
            format!(
                "the target accepts no more connections now; try again or raise the limits of the \
                 target ({status})"
            )
        }
        _ => {
            let place = if at.in_data { "data" } else { "command" };
            format!("{status}, at byte {} of the {place}", at.ipo)
        }
    }
}
