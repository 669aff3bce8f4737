//! Bring-up: the admin commands that make an enabled controller ready for I/O, in order.

use std::sync::Arc;

use nvmeof_wire::Sqe;
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::features::{AsyncEventConfig, Fid, NumberOfQueues, SetFeatures};
use nvmeof_wire::identify::{Cns, Controller as IdentifyController, Identify, NvmController, oaes};
use nvmeof_wire::opcode::AdminOpcode;
use nvmeof_wire::properties::CAP_CSS_IO_SETS;
use nvmeof_wire::queues::{CreateIoCq, CreateIoSq, DoorbellBufferConfig, QueuePriority};
use nvmeof_wire::zerocopy::transmute_ref;

use super::admin::{AdminQueue, AdminReply, Owner, Page};
use super::bar::Bar;
use super::error::{AdminError, OpenErrorReason};
use super::identify::{ControllerCapabilities, Identity, controller};
use super::ring::Shadows;
use super::wait::Wait;

/// Number of outstanding Asynchronous Event Requests.
const EVENTS: usize = 4;

/// Parameters of an I/O queue pair to create.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueuePlan {
    pub(super) qid: u16,
    pub(super) entries: u16,
    pub(super) submission: u64,
    pub(super) completion: u64,
    pub(super) vector: Option<u16>,
}

/// Admin commands of the bring-up of an enabled controller.
#[derive(Debug)]
pub(super) struct BringUp<'a> {
    pub(super) bar: &'a Bar,
    pub(super) admin: &'a mut AdminQueue,
    pub(super) wait: &'a dyn Wait,
    /// Command timeout in nanoseconds.
    pub(super) timeout: u64,
}

impl BringUp<'_> {
    fn run(&mut self, sqe: Sqe, wants_data: bool) -> Result<AdminReply, AdminError> {
        self.admin.run(self.bar, self.wait, self.timeout, sqe, wants_data)
    }

    fn identify_page(&mut self, cns: Cns) -> Result<Page, AdminError> {
        self.run(Identify::new(cns, 0).encode(0), true)?.into_data()
    }

    /// Reads identity and capabilities of the controller.
    pub(super) fn identify(
        &mut self,
    ) -> Result<(Identity, ControllerCapabilities), OpenErrorReason> {
        let cap = self.bar.cap();
        let page = self
            .identify_page(Cns::CONTROLLER)
            .map_err(OpenErrorReason::command("Identify Controller"))?;
        let answer: &IdentifyController = transmute_ref!(&*page);
        let (identity, abilities) = controller(answer, cap)?;
        // Other controllers do not support it, and would log the command as an error.
        if cap.css() & CAP_CSS_IO_SETS == 0 && !self.bar.is_at_least_2_0() {
            return Ok((identity, abilities));
        }
        let page = match self.identify_page(Cns::CSI_CONTROLLER) {
            Err(AdminError::Status(_)) => return Ok((identity, abilities)),
            page => {
                page.map_err(OpenErrorReason::command("Identify Controller (NVM command set)"))?
            }
        };
        let answer: &NvmController = transmute_ref!(&*page);
        Ok((identity, abilities.with_nvm(answer, cap)))
    }

    /// Requests `count` I/O queue pairs; returns the number granted, which may be lower or higher.
    pub(super) fn grant_queues(&mut self, count: u16) -> Result<u16, OpenErrorReason> {
        let asked = NumberOfQueues::from_counts(count, count);
        let reply = self
            .set_feature(Fid::NUMBER_OF_QUEUES, asked.into_bits())
            .map_err(OpenErrorReason::command("Set Features (Number of Queues)"))?;
        let (submission, completion) = NumberOfQueues::from_bits(reply.dw0).counts();
        Ok(u16::try_from(submission.min(completion)).unwrap_or(u16::MAX))
    }

    /// Configures the shadow doorbells. No I/O queue exists yet.
    pub(super) fn configure_shadows(&mut self, shadows: &Arc<Shadows>) -> Result<(), AdminError> {
        shadows.clear();
        let (shadow, event_idx) = shadows.addresses();
        self.run(DoorbellBufferConfig { shadow, event_idx }.encode(0), false)?;
        self.admin.set_shadows(Some(Arc::clone(shadows)), self.bar.cap().dstrd());
        Ok(())
    }

    /// Creates a completion queue and the submission queue that completes to it.
    pub(super) fn create_queue(&mut self, plan: &QueuePlan) -> Result<(), OpenErrorReason> {
        let entries = u32::from(plan.entries);
        let completion = CreateIoCq {
            qid: plan.qid,
            entries,
            prp1: plan.completion,
            contiguous: true,
            vector: plan.vector,
        };
        self.run(completion.encode(0), false)
            .map_err(OpenErrorReason::command("Create I/O Completion Queue"))?;
        let submission = CreateIoSq {
            qid: plan.qid,
            entries,
            prp1: plan.submission,
            contiguous: true,
            priority: QueuePriority::URGENT,
            cqid: plan.qid,
            nvm_set: 0,
        };
        self.run(submission.encode(0), false)
            .map_err(OpenErrorReason::command("Create I/O Submission Queue"))?;
        Ok(())
    }

    /// Enables asynchronous events from now on. A controller that reports none is used
    /// nevertheless.
    pub(super) fn ask_for_events(&mut self, abilities: &ControllerCapabilities) {
        let kinds = abilities.event_kinds;
        let config = AsyncEventConfig::new()
            .with_smart(0xff)
            .with_namespace_attribute(kinds & oaes::NAMESPACE_ATTRIBUTE != 0)
            .with_firmware_activation(kinds & oaes::FIRMWARE_ACTIVATION != 0);
        if let Err(error) = self.set_feature(Fid::ASYNC_EVENTS, config.into_bits()) {
            tracing::debug!(%error, "Set Features (Asynchronous Event Configuration)");
        }
        for _ in 0..abilities.events.min(EVENTS) {
            if let Err(error) = ask_for_event(self.admin) {
                tracing::debug!(%error, "Asynchronous Event Request");
            }
        }
    }

    fn set_feature(&mut self, fid: Fid, cdw11: u32) -> Result<AdminReply, AdminError> {
        let set = SetFeatures { fid, save: false, nsid: 0, cdw11, cdw12: 0, uuid_index: 0 };
        self.run(set.encode(0).without_data(), false)
    }
}

/// Submits one more Asynchronous Event Request.
pub(super) fn ask_for_event(admin: &mut AdminQueue) -> Result<(), AdminError> {
    let sqe = Sqe::admin(AdminOpcode::ASYNC_EVENT_REQUEST, 0, 0).without_data();
    admin.submit(sqe, false, Owner::Event, None)
}

/// Returns true if reading the event's log page is safe and useful. Vendor-specific pages are not
/// read.
pub(super) fn has_log(event: AsyncEvent) -> bool {
    use nvmeof_wire::log::Lid;
    matches!(
        event.log,
        Lid::ERROR_INFORMATION
            | Lid::SMART
            | Lid::FIRMWARE_SLOT
            | Lid::CHANGED_NAMESPACES
            | Lid::SANITIZE_STATUS
    )
}
