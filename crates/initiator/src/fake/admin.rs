//! Fabrics and admin commands of the target for tests.

use std::io;
use std::sync::atomic::Ordering;

use nvmeof_wire::fabrics::{
    Connect, ConnectData, ConnectResult, InvalidParameter, PropertyGet, PropertySet,
};
use nvmeof_wire::identify::{
    Cns, Controller, IDENTIFY_SIZE, Identify, LbaFormat, Namespace, NsidList,
};
use nvmeof_wire::log::{
    AddressFamily, DISCOVERY_RECORD_SIZE, DiscoveryEntry, DiscoveryHeader, DiscoverySubtype,
    GetLogPage, TransportType,
};
use nvmeof_wire::opcode::{AdminOpcode, FabricsType};
use nvmeof_wire::properties::{CAP_CSS_NVM, CSTS_SHST_COMPLETE, Cap, Cc, Csts, offset};
use nvmeof_wire::zerocopy::{FromBytes, FromZeros, IntoBytes};
use nvmeof_wire::{Sqe, Status, U16, U32, U64, ascii};

use super::connection::Connection;

const CNTLID: u16 = 7;

impl Connection {
    pub(super) fn admin(&mut self, sqe: &Sqe, data: &[u8]) -> io::Result<()> {
        if sqe.is_fabrics() {
            return self.fabrics(sqe, data);
        }
        match sqe.admin_opcode() {
            AdminOpcode::IDENTIFY => match self.identify(sqe) {
                Some(data) => self.send_admin(sqe, data),
                None => self.respond(sqe, Status::INVALID_FIELD, 0),
            },
            AdminOpcode::SET_FEATURES => {
                let granted = u64::from(self.target.traits.queues - 1);
                let result = self.result(granted | granted << 16);
                self.respond(sqe, Status::SUCCESS, result)
            }
            AdminOpcode::KEEP_ALIVE => {
                self.target.keep_alives.fetch_add(1, Ordering::SeqCst);
                self.respond(sqe, Status::SUCCESS, 0)
            }
            AdminOpcode::GET_LOG_PAGE if self.is_discovery => {
                let asked = GetLogPage::parse(sqe);
                let page = self.discovery_log();
                let at = usize::try_from(asked.offset).unwrap_or(usize::MAX).min(page.len());
                let len = usize::try_from(asked.length).unwrap_or(0);
                let mut data = page[at..page.len().min(at + len)].to_vec();
                data.resize(len, 0);
                self.send_admin(sqe, data)
            }
            _ => self.respond(sqe, Status::INVALID_OPCODE, 0),
        }
    }

    fn send_admin(&mut self, sqe: &Sqe, mut data: Vec<u8>) -> io::Result<()> {
        if let Some(byte) = self.target.traits.junk_data {
            data.fill(byte);
        }
        self.send_data(sqe, &data, false, false)
    }

    fn result(&self, value: u64) -> u64 {
        self.target.traits.junk_results.map_or(value, |byte| u64::from_ne_bytes([byte; 8]))
    }

    fn fabrics(&mut self, sqe: &Sqe, data: &[u8]) -> io::Result<()> {
        match sqe.fctype() {
            FabricsType::CONNECT => self.connect(sqe, data),
            FabricsType::PROPERTY_GET => {
                let value = match PropertyGet::parse(sqe).offset {
                    offset::CAP => Cap::new()
                        .with_mqes(self.target.traits.entries - 1)
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
                self.respond(sqe, Status::SUCCESS, value)
            }
            FabricsType::PROPERTY_SET => {
                let set = PropertySet::parse(sqe);
                if set.offset == offset::CC {
                    self.cc = u32::try_from(set.value & 0xffff_ffff).unwrap_or(0);
                    if Cc::from_bits(self.cc).shn() != 0 {
                        self.target.shutdowns.fetch_add(1, Ordering::SeqCst);
                    }
                }
                self.respond(sqe, Status::SUCCESS, 0)
            }
            _ => self.respond(sqe, Status::INVALID_OPCODE, 0),
        }
    }

    fn connect(&mut self, sqe: &Sqe, data: &[u8]) -> io::Result<()> {
        let wrong = |ipo| InvalidParameter { ipo, in_data: true }.encode();
        let invalid = Status::CONNECT_INVALID_PARAMETERS.with_dnr();
        let (Ok(connect), Ok(data)) = (Connect::parse(sqe), ConnectData::ref_from_bytes(data))
        else {
            return self.respond(sqe, invalid, 0);
        };
        let (Ok(subnqn), Ok(hostnqn)) = (data.subnqn(), data.hostnqn()) else {
            return self.respond(sqe, invalid, wrong(ConnectData::HOSTNQN_OFFSET));
        };
        let traits = &self.target.traits;
        if subnqn != traits.subnqn && !subnqn.is_discovery() {
            return self.respond(sqe, invalid, wrong(ConnectData::SUBNQN_OFFSET));
        }
        if !traits.hosts.is_empty() && !traits.hosts.contains(&hostnqn) {
            return self.respond(sqe, Status::CONNECT_INVALID_HOST.with_dnr(), 0);
        }
        let wants_other = connect.qid > 0 && data.cntlid.get() != CNTLID;
        if wants_other || !connect.disable_sq_flow_control || connect.qid > traits.queues {
            return self.respond(sqe, invalid, 0);
        }
        self.qid = connect.qid;
        self.is_discovery = subnqn.is_discovery();
        let result = ConnectResult {
            cntlid: CNTLID,
            authentication: false,
            authentication_over_secure_channel: false,
        };
        self.respond(sqe, Status::SUCCESS, result.encode())
    }

    fn identify(&self, sqe: &Sqe) -> Option<Vec<u8>> {
        let traits = &self.target.traits;
        let asked = Identify::parse(sqe);
        let bytes = match asked.cns {
            Cns::CONTROLLER => {
                let mut data = Controller::new_zeroed();
                ascii::fill(&mut data.sn, "FAKE0001");
                ascii::fill(&mut data.mn, "fake target");
                ascii::fill(&mut data.fr, "1");
                data.mdts = traits.mdts;
                data.cntlid = U16::new(CNTLID);
                data.ioccsz = U32::new((traits.in_capsule + 64) / 16);
                data.as_bytes().to_vec()
            }
            Cns::ACTIVE_NAMESPACES => {
                let nsids = traits.namespaces.keys().copied().filter(|&nsid| nsid > asked.nsid);
                NsidList::new(nsids).as_bytes().to_vec()
            }
            Cns::NAMESPACE => {
                let &(blocks, shift) = traits.namespaces.get(&asked.nsid)?;
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
        let records = self.target.traits.discovery_records;
        let mut page = DiscoveryHeader::new(5, records as u64).as_bytes().to_vec();
        for number in 0..records {
            let mut entry = DiscoveryEntry::new_zeroed();
            entry.trtype = TransportType::TCP;
            entry.adrfam = AddressFamily::IPV4;
            entry.subtype = DiscoverySubtype::NVM;
            entry.set_address("127.0.0.1", "4420");
            entry.subnqn = super::name(&format!("nqn.2026-11.io.x:{number}")).to_field();
            page.extend(entry.as_bytes());
        }
        debug_assert_eq!(page.len(), (records + 1) * DISCOVERY_RECORD_SIZE);
        page
    }
}
