//! Round trips: both ends must read what they write.

use nvmeof_wire::abort::Abort;
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::fabrics::{Connect, Disconnect, InvalidParameter, PropertyGet, PropertySet};
use nvmeof_wire::features::{Fid, GetFeatures, SetFeatures};
use nvmeof_wire::identify::{
    Cns, Controller, Identify, Namespace, NamespaceId, NamespaceIds, NsidList,
};
use nvmeof_wire::log::{
    CommandEffectsLog, DiscoveryEntry, DiscoveryHeader, ErrorInformation, FeatureEffectsLog,
    GetLogPage, Lid, SupportedLogPages,
};
use nvmeof_wire::nvm::{BlockIo, DatasetManagement};
use nvmeof_wire::opcode::{AdminOpcode, IoOpcode};
use nvmeof_wire::properties::{Cap, Cc, Csts};
use nvmeof_wire::zerocopy::FromBytes;
use nvmeof_wire::{Cqe, Sgl, Sqe, Status};

use super::spec::nqn;

/// Checks that parsed commands parse the same after encoding.
pub(super) fn check_command(sqe: &Sqe) {
    let cid = sqe.cid.get();
    let sgl = sqe.dptr.parse();
    if !matches!(sgl, Sgl::Unknown { .. }) {
        assert_eq!(sgl.encode().parse(), sgl);
    }
    assert_eq!(sgl.encode().id(), sqe.dptr.id());
    match sqe.opcode {
        0x00 | 0x01 | 0x04 | 0x05 | 0x0c => {
            let io = BlockIo::parse(sqe);
            let again = BlockIo::parse(&io.encode(IoOpcode(sqe.opcode), cid, sqe.nsid.get()));
            assert_eq!(io, again);
            if let Some(end) = io.range.end() {
                assert!(io.range.is_within(end) && !io.range.is_within(end - 1));
            }
        }
        0x02 => {
            let page = GetLogPage::parse(sqe);
            assert_eq!(GetLogPage::parse(&page.encode(cid)), page);
        }
        0x06 => {
            let identify = Identify::parse(sqe);
            assert_eq!(Identify::parse(&identify.encode(cid)), identify);
        }
        0x08 => {
            let abort = Abort::parse(sqe);
            assert_eq!(Abort::parse(&abort.encode(cid)), abort);
        }
        0x09 => {
            let set = SetFeatures::parse(sqe);
            assert_eq!(SetFeatures::parse(&set.encode(cid)), set);
            let dsm = DatasetManagement::parse(sqe);
            let again = DatasetManagement::parse(&dsm.encode(cid, sqe.nsid.get()));
            assert_eq!(dsm, again);
            assert_eq!(dsm.data_len(), u32::from(dsm.ranges) * 16);
        }
        0x0a => {
            let get = GetFeatures::parse(sqe);
            assert_eq!(GetFeatures::parse(&get.encode(cid)), get);
        }
        0x7f => {
            if let Ok(connect) = Connect::parse(sqe) {
                assert_eq!(Connect::parse(&connect.encode(cid)), Ok(connect));
            }
            let get = PropertyGet::parse(sqe);
            assert_eq!(PropertyGet::parse(&get.encode(cid)), get);
            let set = PropertySet::parse(sqe);
            assert_eq!(PropertySet::parse(&set.encode(cid)), set);
            let disconnect = Disconnect::parse(sqe);
            assert_eq!(Disconnect::parse(&disconnect.encode(cid)), disconnect);
            let _ = (Cc::from_bits(sqe.cdw12.get()), Csts::from_bits(sqe.cdw12.get()));
            let _ = Cap::from_bits(sqe.cdw12_13());
        }
        _ => {}
    }
}

/// Checks that a status is unchanged by encoding, and so are the details of a failed Connect.
pub(super) fn check_completion(cqe: &Cqe) {
    let status = cqe.status();
    assert!(!cqe.phase());
    assert_eq!(Status::from_field(status.to_field(true)), status);
    assert_eq!(status.code().sct(), status.sct());
    assert_eq!(status.code().sc(), status.sc());
    if !status.is_success() {
        let parameter = InvalidParameter::parse(cqe.result.get());
        assert_eq!(InvalidParameter::parse(parameter.encode()), parameter);
    }
}

/// Checks the event of a completed Asynchronous Event Request.
pub(super) fn check_event(cqe: &Cqe) {
    if cqe.status().is_success() {
        let event = AsyncEvent::parse(cqe.dw0());
        assert_eq!(event.encode(), cqe.dw0());
    }
}

/// Checks the names for messages.
pub(super) fn check_names(sqe: &Sqe, status: Status) {
    let names = format!(
        "{} {} {} {} {} {} {}",
        AdminOpcode(sqe.opcode),
        IoOpcode(sqe.opcode),
        sqe.fctype(),
        Cns(sqe.opcode),
        Lid(sqe.opcode),
        Fid(sqe.opcode),
        status,
    );
    assert!(!names.is_empty());
}

/// Checks data that a host reads. `sqe` is an admin command.
pub(super) fn check_data(sqe: &Sqe, data: &[u8]) {
    match AdminOpcode(sqe.opcode) {
        AdminOpcode::IDENTIFY => identify(Identify::parse(sqe), data),
        AdminOpcode::GET_LOG_PAGE => log_page(&GetLogPage::parse(sqe), data),
        _ => {}
    }
}

fn identify(identify: Identify, data: &[u8]) {
    assert_eq!(data.len(), 4096);
    match identify.cns {
        Cns::CONTROLLER => {
            let controller = Controller::ref_from_bytes(data).expect("4096 bytes");
            assert!(controller.subnqn().is_ok());
            assert!(controller.in_capsule_data() <= 8192);
        }
        Cns::NAMESPACE => {
            let namespace = Namespace::ref_from_bytes(data).expect("4096 bytes");
            assert!(namespace.nsze.get() == 0 || namespace.block_size().is_some());
        }
        Cns::ACTIVE_NAMESPACES | Cns::CSI_ACTIVE_NAMESPACES => {
            let list = NsidList::ref_from_bytes(data).expect("4096 bytes");
            let mut above = identify.nsid;
            for nsid in list.iter() {
                assert!(nsid > above, "a list that is not in order");
                above = nsid;
            }
        }
        Cns::NAMESPACE_DESCRIPTORS => {
            let ids: Vec<NamespaceId> = NamespaceIds::new(data).collect();
            assert!(!ids.is_empty());
            assert!(NamespaceIds::encode(&ids) == *data);
        }
        _ => {}
    }
}

fn log_page(page: &GetLogPage, data: &[u8]) {
    assert_eq!(data.len() as u64, page.length);
    if page.offset != 0 || page.index_offset {
        return;
    }
    match page.lid {
        Lid::SUPPORTED_LOG_PAGES => {
            if let Ok((pages, _)) = SupportedLogPages::ref_from_prefix(data) {
                assert!(pages.get(Lid::SUPPORTED_LOG_PAGES).supported());
            }
        }
        Lid::ERROR_INFORMATION => {
            for entry in data.chunks_exact(64) {
                let entry = ErrorInformation::ref_from_bytes(entry).expect("64 bytes");
                let empty = entry.error_count.get() == 0;
                assert!(empty || !entry.status().is_success());
            }
        }
        Lid::COMMAND_EFFECTS => {
            if let Ok((log, _)) = CommandEffectsLog::ref_from_prefix(data) {
                assert!(log.admin(AdminOpcode::IDENTIFY).supported());
                let _ = log.io(IoOpcode::READ).supported();
            }
        }
        Lid::FEATURE_EFFECTS => {
            if let Ok((log, _)) = FeatureEffectsLog::ref_from_prefix(data) {
                assert!(!log.get(Fid(0xff)).supported());
            }
        }
        Lid::DISCOVERY => discovery(data),
        _ => {}
    }
}

fn discovery(data: &[u8]) {
    let Ok((header, rest)) = DiscoveryHeader::ref_from_prefix(data) else { return };
    let records = usize::try_from(header.numrec.get()).expect("few");
    let there = (rest.len() / size_of::<DiscoveryEntry>()).min(records);
    let (entries, _) =
        <[DiscoveryEntry]>::ref_from_prefix_with_elems(rest, there).expect("whole ones");
    for entry in entries {
        assert!(entry.address().is_some() && entry.service().is_some());
        let name = entry.subnqn().expect("a name");
        assert!(name.is_discovery() || name.as_str().starts_with("nqn."));
        assert_eq!(name, nqn(name.as_str()));
        let mut again = *entry;
        again.set_tsas(entry.tsas());
        assert_eq!(again.tsas(), entry.tsas());
    }
}
