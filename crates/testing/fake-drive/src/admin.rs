//! Admin commands (Base 5).

use nvmeof_wire::abort::{Abort, NOT_ABORTED};
use nvmeof_wire::format::{FormatNvm, ProtectionType, SecureErase};
use nvmeof_wire::identify::{
    Cns, Csi, Identify, NamespaceId, NamespaceIds, NsidList, NvmController, NvmNamespace, fna, oacs,
};
use nvmeof_wire::opcode::AdminOpcode;
use nvmeof_wire::sanitize::{Sanitize, SanitizeAction, sanicap};
use nvmeof_wire::sqe::NSID_ALL;
use nvmeof_wire::{Sqe, Status};
use zerocopy::IntoBytes;

use crate::controller::FakeController;
use crate::media::Media;
use crate::work::Outcome;

impl FakeController {
    pub(crate) fn admin(&mut self, sqe: &Sqe) -> Outcome {
        let opcode = sqe.admin_opcode();
        if sqe.flags & 0xc0 != 0 {
            self.broke(0, sqe, "an admin command with PSDT not 00b");
            return Status::INVALID_FIELD.with_dnr().into();
        }
        let supports = |this: &Self, bit: u16| this.config.identify.oacs.get() & bit != 0;
        match opcode {
            AdminOpcode::IDENTIFY => self.identify(sqe),
            AdminOpcode::GET_LOG_PAGE => self.get_log_page(sqe),
            AdminOpcode::GET_FEATURES => self.get_features(sqe),
            AdminOpcode::SET_FEATURES => self.set_features(sqe),
            AdminOpcode::ASYNC_EVENT_REQUEST => {
                self.expect_no_data(0, sqe);
                self.async_event_request(sqe)
            }
            AdminOpcode::ABORT => {
                self.expect_no_data(0, sqe);
                self.abort(Abort::parse(sqe))
            }
            AdminOpcode::CREATE_IO_CQ => self.create_cq(sqe),
            AdminOpcode::CREATE_IO_SQ => self.create_sq(sqe),
            AdminOpcode::DELETE_IO_CQ => self.delete_cq(sqe),
            AdminOpcode::DELETE_IO_SQ => self.delete_sq(sqe),
            AdminOpcode::DOORBELL_BUFFER_CONFIG if supports(self, oacs::DOORBELL_BUFFER) => {
                self.configure_doorbells(sqe)
            }
            AdminOpcode::FORMAT_NVM if supports(self, oacs::FORMAT) => self.format(sqe),
            AdminOpcode::SANITIZE if self.config.identify.sanicap.get() != 0 => self.sanitize(sqe),
            _ => Status::INVALID_OPCODE.with_dnr().into(),
        }
    }

    fn identify(&mut self, sqe: &Sqe) -> Outcome {
        let identify = Identify::parse(sqe);
        match self.identify_data(identify) {
            Ok(data) => self.return_data(0, sqe, &data).into(),
            Err(status) => {
                // An invalid Identify returns no data, so its data pointer is not checked.
                status.with_dnr().into()
            }
        }
    }

    fn identify_data(&self, identify: Identify) -> Result<Vec<u8>, Status> {
        let nsid = identify.nsid;
        let zeroes = || vec![0; nvmeof_wire::identify::IDENTIFY_SIZE];
        let known = || match nsid {
            0 | NSID_ALL => Err(Status::INVALID_NAMESPACE_OR_FORMAT),
            _ if nsid > self.config.identify.nn.get() => Err(Status::INVALID_NAMESPACE_OR_FORMAT),
            _ => Ok(self.media.iter().find(|media| media.nsid == nsid && media.attached)),
        };
        match identify.cns {
            Cns::CONTROLLER => Ok(self.config.identify.as_bytes().to_vec()),
            Cns::NAMESPACE | Cns::ALLOCATED_NAMESPACE => {
                let media = known()?;
                Ok(media.map_or_else(zeroes, |media| media.identify.as_bytes().to_vec()))
            }
            Cns::ACTIVE_NAMESPACES | Cns::CSI_ACTIVE_NAMESPACES | Cns::ALLOCATED_NAMESPACES => {
                if nsid >= NSID_ALL - 1 || identify.csi != Csi::NVM {
                    return Err(Status::INVALID_NAMESPACE_OR_FORMAT);
                }
                let mut nsids: Vec<u32> = self
                    .media
                    .iter()
                    .filter(|media| media.attached && media.nsid > nsid)
                    .map(|media| media.nsid)
                    .collect();
                nsids.sort_unstable();
                Ok(NsidList::new(nsids).as_bytes().to_vec())
            }
            Cns::NAMESPACE_DESCRIPTORS => {
                let media = known()?.ok_or(Status::INVALID_NAMESPACE_OR_FORMAT)?;
                let mut ids = vec![NamespaceId::Eui64(media.identify.eui64)];
                if media.identify.nguid != [0; 16] {
                    ids.push(NamespaceId::Nguid(media.identify.nguid));
                }
                if media.uuid != [0; 16] {
                    ids.push(NamespaceId::Uuid(media.uuid));
                }
                Ok(NamespaceIds::encode(&ids).to_vec())
            }
            Cns::CSI_CONTROLLER if identify.csi == Csi::NVM => {
                Ok(NvmController::default().as_bytes().to_vec())
            }
            Cns::CSI_NAMESPACE if identify.csi == Csi::NVM => {
                known()?;
                Ok(NvmNamespace::default().as_bytes().to_vec())
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn abort(&mut self, abort: Abort) -> Outcome {
        let not_aborted = Outcome::success(NOT_ABORTED);
        if !self.config.abort_helps {
            return not_aborted;
        }
        let is_it =
            |held: &crate::work::Held| held.qid == abort.sqid && held.sqe.cid.get() == abort.cid;
        if let Some(index) = self.held.iter().position(is_it) {
            self.held.swap_remove(index);
        } else if abort.sqid != 0 || !self.logs.take_request(abort.cid) {
            return not_aborted;
        }
        self.complete(abort.sqid, abort.cid, Status::ABORT_REQUESTED, 0);
        Outcome::success(0)
    }

    fn format(&mut self, sqe: &Sqe) -> Outcome {
        self.expect_no_data(0, sqe);
        let format = FormatNvm::parse(sqe);
        let attributes = self.config.identify.fna;
        if self.logs.sanitize.left.is_some() {
            return Status::SANITIZE_IN_PROGRESS.with_dnr().into();
        }
        let crypto = attributes & fna::CRYPTO_ERASE != 0;
        let can_erase = match format.erase {
            SecureErase::NONE | SecureErase::USER_DATA => true,
            SecureErase::CRYPTOGRAPHIC => crypto,
            _ => false,
        };
        if !can_erase || (format.nsid == NSID_ALL && attributes & fna::NO_BROADCAST != 0) {
            return Status::INVALID_FIELD.with_dnr().into();
        }
        let all = format.nsid == NSID_ALL || attributes & (fna::FORMAT_ALL | fna::ERASE_ALL) != 0;
        let is_meant = |media: &Media| media.attached && (all || media.nsid == format.nsid);
        if !self.media.iter().any(is_meant) {
            return Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr().into();
        }
        let has_format = |media: &Media| {
            let formats = media.identify.formats();
            formats
                .get(usize::from(format.lba_format))
                .is_some_and(|format| format.block_size().is_some())
        };
        let fits = self.media.iter().filter(|media| is_meant(media)).all(has_format);
        if !fits || format.protection != ProtectionType::NONE {
            return Status::INVALID_FORMAT.with_dnr().into();
        }
        for media in self.media.iter_mut().filter(|media| is_meant(media)) {
            media.format(format.lba_format);
        }
        Outcome::success(0)
    }

    fn sanitize(&mut self, sqe: &Sqe) -> Outcome {
        self.expect_no_data(0, sqe);
        let sanitize = Sanitize::parse(sqe);
        let needs = match sanitize.action {
            SanitizeAction::EXIT_FAILURE_MODE => 0,
            SanitizeAction::BLOCK_ERASE => sanicap::BLOCK_ERASE,
            SanitizeAction::OVERWRITE => sanicap::OVERWRITE,
            SanitizeAction::CRYPTO_ERASE => sanicap::CRYPTO_ERASE,
            _ => return Status::INVALID_FIELD.with_dnr().into(),
        };
        if needs & !self.config.identify.sanicap.get() != 0 {
            return Status::INVALID_FIELD.with_dnr().into();
        }
        if self.logs.sanitize.left.is_some() {
            return Status::SANITIZE_IN_PROGRESS.with_dnr().into();
        }
        if sanitize.action == SanitizeAction::EXIT_FAILURE_MODE {
            self.forget_sanitize();
        } else {
            self.start_sanitize(sqe.cdw10.get());
        }
        Outcome::success(0)
    }
}
