//! Command execution of the fake target, for any fabric.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvmeof_wire::fabrics::{
    Connect, ConnectData, ConnectResult, InvalidParameter, PropertyGet, PropertySet,
};
use nvmeof_wire::format::{FormatNvm, SecureErase};
use nvmeof_wire::identify::{
    Cns, Controller, IDENTIFY_SIZE, Identify, LbaFormat, Namespace, NsidList, fna, oacs, oncs,
};
use nvmeof_wire::log::{
    AddressFamily, DISCOVERY_RECORD_SIZE, DiscoveryEntry, DiscoveryHeader, DiscoverySubtype,
    GetLogPage, TransportType,
};
use nvmeof_wire::nvm::{BlockIo, DSM_RANGE_SIZE, DatasetManagement, DsmRange};
use nvmeof_wire::opcode::{AdminOpcode, FabricsType, IoOpcode};
use nvmeof_wire::properties::{CAP_CSS_NVM, CSTS_SHST_COMPLETE, Cap, Cc, Csts, offset};
use nvmeof_wire::zerocopy::{FromBytes, FromZeros, IntoBytes};
use nvmeof_wire::{Sqe, Status, U16, U32, U64, ascii};

use crate::{FakeAction, FakeTargetOptions, FakeTargetState};

const CNTLID: u16 = 7;

/// Result of a command, with the data of a read.
#[derive(Debug)]
pub struct FakeResponse {
    /// Status of the completion.
    pub status: Status,
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
    /// Data for the host.
    pub data: Vec<u8>,
}

impl FakeResponse {
    fn new(status: Status, result: u64) -> Self {
        Self { status, result, data: Vec::new() }
    }
}

/// The queue of one connection, for targets over any fabric.
pub struct FakeSession {
    pub(crate) target: Arc<FakeTargetState>,
    qid: u16,
    cc: u32,
    is_discovery: bool,
}

impl std::fmt::Debug for FakeSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeSession").field("qid", &self.qid).finish_non_exhaustive()
    }
}

impl FakeSession {
    /// Creates the admin queue of a new target that serves every command.
    #[must_use]
    pub fn start(options: FakeTargetOptions) -> Self {
        Self::new(FakeTargetState::new(options, Box::new(|_, _| FakeAction::Serve)), 0)
    }

    /// Creates queue `qid` of the same target.
    #[must_use]
    pub fn another(&self, qid: u16) -> Self {
        Self::new(Arc::clone(&self.target), qid)
    }

    /// Creates queue `qid` of a target.
    #[must_use]
    pub fn new(target: Arc<FakeTargetState>, qid: u16) -> Self {
        Self { target, qid, cc: 0, is_discovery: false }
    }

    /// Returns true if the command is for [`FakeSession::admin`].
    #[must_use]
    pub fn is_admin(&self, sqe: &Sqe) -> bool {
        self.qid == 0 || sqe.is_fabrics()
    }

    /// Counts an I/O command and returns the action for it.
    #[must_use]
    pub fn action(&self, sqe: &Sqe) -> FakeAction {
        let number = self.target.ios.fetch_add(1, Ordering::SeqCst);
        (self.target.script)(number, sqe.io_opcode())
    }

    /// Checks the range of an I/O command and the length of its data.
    ///
    /// # Errors
    /// The status to complete it with.
    pub fn check(&self, sqe: &Sqe) -> Result<(), Status> {
        let Some(&(blocks, shift)) = self.target.options.namespaces.get(&sqe.nsid.get()) else {
            return Err(Status::INVALID_NAMESPACE_OR_FORMAT);
        };
        if sqe.io_opcode() == IoOpcode::DATASET_MANAGEMENT {
            let wanted = DatasetManagement::parse(sqe).data_len();
            let is_whole = sqe.dptr.parse().length() == wanted;
            return if is_whole { Ok(()) } else { Err(Status::DATA_SGL_LENGTH_INVALID) };
        }
        if !matches!(sqe.io_opcode(), IoOpcode::READ | IoOpcode::WRITE | IoOpcode::COMPARE) {
            return Ok(());
        }
        let range = BlockIo::parse(sqe).range;
        if !range.is_within(blocks) {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        if u64::from(sqe.dptr.parse().length()) != u64::from(range.blocks) << shift {
            return Err(Status::DATA_SGL_LENGTH_INVALID);
        }
        Ok(())
    }

    /// Executes a checked I/O command, with the data of the host, as `action` requires.
    #[must_use]
    pub fn io(&self, sqe: &Sqe, action: FakeAction, data: &[u8]) -> FakeResponse {
        let nsid = sqe.nsid.get();
        let shift = self.target.options.namespaces.get(&nsid).map_or(0, |&(_, shift)| shift);
        let range = BlockIo::parse(sqe).range;
        let size = |blocks: u64| usize::try_from(blocks << shift).unwrap_or(0);
        let (at, len) = (size(range.slba), size(range.blocks.into()));
        let mut disks = self.target.disks();
        let Some(disk) = disks.get_mut(&nsid) else {
            return FakeResponse::new(Status::INTERNAL_ERROR, 0);
        };
        match sqe.io_opcode() {
            IoOpcode::FLUSH => FakeResponse::new(Status::SUCCESS, 0),
            IoOpcode::READ => {
                let shifted = match action {
                    FakeAction::Shift(by) => at + size(by),
                    _ => at,
                };
                let end = disk.len();
                let mut data: Vec<u8> = (shifted..shifted + len).map(|at| disk[at % end]).collect();
                if action == FakeAction::FlipBit {
                    data[len / 2] ^= 4;
                }
                FakeResponse { data, ..FakeResponse::new(Status::SUCCESS, 0) }
            }
            IoOpcode::WRITE => {
                let stored = match action {
                    FakeAction::Drop => 0,
                    FakeAction::Tear => len / 2,
                    _ => len,
                };
                disk[at..at + stored].copy_from_slice(&data[..stored]);
                FakeResponse::new(Status::SUCCESS, 0)
            }
            IoOpcode::DATASET_MANAGEMENT => {
                let (ranges, _) = data.as_chunks::<{ DSM_RANGE_SIZE as usize }>();
                for range in ranges.iter().filter_map(|range| DsmRange::ref_from_bytes(range).ok())
                {
                    let range = range.range();
                    if !range.is_within(disk.len() as u64 >> shift) {
                        return FakeResponse::new(Status::LBA_OUT_OF_RANGE, 0);
                    }
                    let (at, len) = (size(range.slba), size(range.blocks.into()));
                    disk[at..at + len].fill(0);
                }
                FakeResponse::new(Status::SUCCESS, 0)
            }
            IoOpcode::COMPARE if disk[at..at + len] == *data => {
                FakeResponse::new(Status::SUCCESS, 0)
            }
            IoOpcode::COMPARE => FakeResponse::new(Status::COMPARE_FAILURE, 0),
            _ => FakeResponse::new(Status::INVALID_OPCODE, 0),
        }
    }

    /// Executes a fabrics or admin command, with the data of the host.
    #[must_use]
    pub fn admin(&mut self, sqe: &Sqe, data: &[u8]) -> FakeResponse {
        if sqe.is_fabrics() {
            return self.fabrics(sqe, data);
        }
        match sqe.admin_opcode() {
            AdminOpcode::IDENTIFY => match self.identify(sqe) {
                Some(data) => self.with_data(data),
                None => FakeResponse::new(Status::INVALID_FIELD, 0),
            },
            AdminOpcode::SET_FEATURES => {
                let granted = u64::from(self.target.options.queues - 1);
                let result = self.result(granted | granted << 16);
                FakeResponse::new(Status::SUCCESS, result)
            }
            AdminOpcode::FORMAT_NVM if self.target.options.format => {
                std::thread::sleep(self.target.options.format_time);
                let asked = FormatNvm::parse(sqe);
                let erases = asked.erase == SecureErase::USER_DATA && asked.lba_format == 0;
                match self.target.disks().get_mut(&asked.nsid).filter(|_| erases) {
                    Some(disk) => {
                        disk.fill(0);
                        FakeResponse::new(Status::SUCCESS, 0)
                    }
                    None => FakeResponse::new(Status::INVALID_FIELD, 0),
                }
            }
            AdminOpcode::KEEP_ALIVE => {
                self.target.keep_alives.fetch_add(1, Ordering::SeqCst);
                FakeResponse::new(Status::SUCCESS, 0)
            }
            AdminOpcode::GET_LOG_PAGE if self.is_discovery => {
                let asked = GetLogPage::parse(sqe);
                let page = self.discovery_log();
                let at = usize::try_from(asked.offset).unwrap_or(usize::MAX).min(page.len());
                let len = usize::try_from(asked.length).unwrap_or(0);
                let mut data = page[at..page.len().min(at + len)].to_vec();
                data.resize(len, 0);
                self.with_data(data)
            }
            _ => FakeResponse::new(Status::INVALID_OPCODE, 0),
        }
    }

    fn with_data(&self, mut data: Vec<u8>) -> FakeResponse {
        if let Some(byte) = self.target.options.junk_data {
            data.fill(byte);
        }
        FakeResponse { data, ..FakeResponse::new(Status::SUCCESS, 0) }
    }

    fn result(&self, value: u64) -> u64 {
        self.target.options.junk_results.map_or(value, |byte| u64::from_ne_bytes([byte; 8]))
    }

    fn fabrics(&mut self, sqe: &Sqe, data: &[u8]) -> FakeResponse {
        match sqe.fctype() {
            FabricsType::CONNECT => self.connect(sqe, data),
            FabricsType::PROPERTY_GET => {
                let value = match PropertyGet::parse(sqe).offset {
                    offset::CAP => Cap::new()
                        .with_mqes(self.target.options.entries - 1)
                        .with_cqr(true)
                        .with_to(2)
                        .with_css(CAP_CSS_NVM)
                        .into_bits(),
                    offset::CSTS => {
                        let cc = Cc::from_bits(self.cc);
                        let shut_down = cc.shn() != 0;
                        let shst = if shut_down { CSTS_SHST_COMPLETE } else { 0 };
                        Csts::new().with_rdy(cc.en()).with_shst(shst).into_bits().into()
                    }
                    offset::CC => self.cc.into(),
                    _ => 0,
                };
                let value = self.result(value);
                FakeResponse::new(Status::SUCCESS, value)
            }
            FabricsType::PROPERTY_SET => {
                let set = PropertySet::parse(sqe);
                if set.offset == offset::CC {
                    self.cc = u32::try_from(set.value & 0xffff_ffff).unwrap_or(0);
                    if Cc::from_bits(self.cc).shn() != 0 {
                        self.target.shutdowns.fetch_add(1, Ordering::SeqCst);
                    }
                }
                FakeResponse::new(Status::SUCCESS, 0)
            }
            _ => FakeResponse::new(Status::INVALID_OPCODE, 0),
        }
    }

    fn connect(&mut self, sqe: &Sqe, data: &[u8]) -> FakeResponse {
        let wrong = |ipo| InvalidParameter { ipo, in_data: true }.encode();
        let invalid = Status::CONNECT_INVALID_PARAMETERS.with_dnr();
        let (Ok(connect), Ok(data)) = (Connect::parse(sqe), ConnectData::ref_from_bytes(data))
        else {
            return FakeResponse::new(invalid, 0);
        };
        let (Ok(subnqn), Ok(hostnqn)) = (data.subnqn(), data.hostnqn()) else {
            return FakeResponse::new(invalid, wrong(ConnectData::HOSTNQN_OFFSET));
        };
        let options = &self.target.options;
        if subnqn != options.subnqn && !subnqn.is_discovery() {
            return FakeResponse::new(invalid, wrong(ConnectData::SUBNQN_OFFSET));
        }
        if !options.hosts.is_empty() && !options.hosts.contains(&hostnqn) {
            return FakeResponse::new(Status::CONNECT_INVALID_HOST.with_dnr(), 0);
        }
        let wants_other = connect.qid > 0 && data.cntlid.get() != CNTLID;
        if wants_other || !connect.disable_sq_flow_control || connect.qid > options.queues {
            return FakeResponse::new(invalid, 0);
        }
        self.qid = connect.qid;
        self.is_discovery = subnqn.is_discovery();
        let result = ConnectResult {
            cntlid: CNTLID,
            authentication: false,
            authentication_over_secure_channel: false,
        };
        FakeResponse::new(Status::SUCCESS, result.encode())
    }

    fn identify(&self, sqe: &Sqe) -> Option<Vec<u8>> {
        let options = &self.target.options;
        let asked = Identify::parse(sqe);
        let bytes = match asked.cns {
            Cns::CONTROLLER => {
                let mut data = Controller::new_zeroed();
                ascii::fill(&mut data.sn, "FAKE0001");
                ascii::fill(&mut data.mn, "fake target");
                ascii::fill(&mut data.fr, "1");
                data.mdts = options.mdts;
                let deallocates = if options.deallocate { oncs::DATASET_MANAGEMENT } else { 0 };
                data.oncs = U16::new(deallocates);
                data.cntlid = U16::new(CNTLID);
                data.oacs = U16::new(if options.format { oacs::FORMAT } else { 0 });
                data.fna = if options.formats_all { fna::FORMAT_ALL } else { 0 };
                data.icdoff = U16::new(options.icdoff);
                data.ioccsz = U32::new((options.in_capsule + 64) / 16 + u32::from(options.icdoff));
                data.as_bytes().to_vec()
            }
            Cns::ACTIVE_NAMESPACES => {
                let nsids = options.namespaces.keys().copied().filter(|&nsid| nsid > asked.nsid);
                NsidList::new(nsids).as_bytes().to_vec()
            }
            Cns::NAMESPACE => {
                let &(blocks, shift) = options.namespaces.get(&asked.nsid)?;
                let mut data = Namespace::new_zeroed();
                data.nsze = U64::new(blocks);
                data.ncap = U64::new(blocks);
                data.lbaf[0] = LbaFormat { ms: U16::new(0), lbads: shift, rp: 0 };
                data.as_bytes().to_vec()
            }
            _ => return None,
        };
        (bytes.len() == IDENTIFY_SIZE).then_some(bytes)
    }

    fn discovery_log(&self) -> Vec<u8> {
        let records = self.target.options.discovery_records;
        let mut page = DiscoveryHeader::new(5, records as u64).as_bytes().to_vec();
        for number in 0..records {
            let mut entry = DiscoveryEntry::new_zeroed();
            entry.trtype = TransportType::TCP;
            entry.adrfam = AddressFamily::IPV4;
            entry.subtype = DiscoverySubtype::NVM;
            entry.set_address("127.0.0.1", "4420");
            entry.subnqn = crate::name(&format!("nqn.2026-11.io.x:{number}")).to_field();
            page.extend(entry.as_bytes());
        }
        debug_assert_eq!(page.len(), (records + 1) * DISCOVERY_RECORD_SIZE);
        page
    }
}
