//! Identify data of controllers and namespaces, validated.

use nvmeof_wire::ascii;
use nvmeof_wire::identify::{
    Controller as IdentifyController, ControllerType, Namespace, NamespaceId, NamespaceIds,
    NvmController, PreferredSizes, dlfeat, nsattr, oacs, oncs, sgls, vwc,
};
use nvmeof_wire::properties::Cap;
use nvmeof_wire::zerocopy::IntoBytes;

use super::error::OpenErrorReason;
use crate::dma::CHUNK;

/// VER of version 1.3.
const VERSION_1_3: u32 = 0x0001_0300;

/// Maximum block size that is served, in bytes.
const BLOCK_MAX: u32 = 4096;

/// Identity of a drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Model number.
    pub model: String,
    /// Serial number.
    pub serial: String,
    /// Firmware revision.
    pub firmware: String,
    /// PCI vendor.
    pub vendor: u16,
    /// Controller ID in its subsystem.
    pub controller_id: u16,
}

/// Capabilities of a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ControllerCapabilities {
    /// Maximum bytes of a command's data, limited by the largest buffer.
    pub(crate) max_transfer: u64,
    pub(super) sgl: bool,
    pub(super) compare: bool,
    pub(crate) write_zeroes: bool,
    pub(crate) deallocate: bool,
    pub(super) verify: bool,
    pub(crate) volatile_cache: bool,
    pub(super) shadow_doorbells: bool,
    pub(super) format: bool,
    /// FNA.
    pub(super) format_attributes: u8,
    /// SANICAP.
    pub(super) sanitize: u32,
    /// Maximum concurrent Abort commands.
    pub(super) aborts: usize,
    /// Maximum concurrent Asynchronous Event Requests.
    pub(super) events: usize,
    /// OAES.
    pub(super) event_kinds: u32,
    /// Entries of the error log.
    pub(super) error_entries: usize,
    /// RTD3 Entry Latency in microseconds; 0: not reported.
    pub(super) shutdown_micros: u32,
    /// Supports the list of a namespace's identifiers (CNS 03h, version 1.3).
    pub(super) descriptors: bool,
    /// Highest NSID.
    pub(super) namespaces: u32,
    /// Maximum bytes of Verify and Write Zeroes; `None`: limited only by the command format.
    pub(super) verify_bytes: Option<u64>,
    pub(super) zeroes_bytes: Option<u64>,
    /// Maximum blocks of a range to deallocate.
    pub(super) range_blocks: u32,
}

/// Parses Identify Controller.
pub(super) fn controller(
    answer: &IdentifyController,
    cap: Cap,
) -> Result<(Identity, ControllerCapabilities), OpenErrorReason> {
    let bytes = answer.as_bytes();
    for (byte, name) in [(0x00, "zeroes"), (0xff, "ones")] {
        if bytes.iter().all(|other| *other == byte) {
            return Err(OpenErrorReason::Identify(format!("all bytes are {name}")));
        }
    }
    if answer.entry_sizes() != (6, 4) {
        let sizes = answer.entry_sizes();
        return Err(OpenErrorReason::Identify(format!(
            "queue entries of 2^{} and 2^{} bytes are needed (SQES, CQES), where 64 and 16 are used",
            sizes.0, sizes.1
        )));
    }
    let kind = ControllerType(answer.cntrltype);
    if !matches!(kind, ControllerType::NOT_REPORTED | ControllerType::IO) {
        return Err(OpenErrorReason::Unsuitable(format!(
            "this is no I/O controller but one of type {kind}"
        )));
    }
    if answer.nn.get() == 0 {
        return Err(OpenErrorReason::Identify("there can be no namespaces (NN is 0)".to_owned()));
    }
    Ok((identity(answer), abilities(answer, cap)))
}

fn identity(answer: &IdentifyController) -> Identity {
    // A drive whose names are not valid text is served nevertheless.
    let text = |field: &[u8]| ascii::text(field).unwrap_or("?").trim().to_owned();
    Identity {
        model: text(&answer.mn),
        serial: text(&answer.sn),
        firmware: text(&answer.fr),
        vendor: answer.vid.get(),
        controller_id: answer.cntlid.get(),
    }
}

fn abilities(answer: &IdentifyController, cap: Cap) -> ControllerCapabilities {
    let oncs = answer.oncs.get();
    let oacs = answer.oacs.get();
    let most = CHUNK as u64;
    ControllerCapabilities {
        max_transfer: answer.max_transfer(cap.page_size_min()).unwrap_or(most).min(most),
        sgl: matches!(
            answer.sgls.get() & sgls::SUPPORT_MASK,
            sgls::SUPPORTED | sgls::SUPPORTED_DWORD
        ),
        compare: oncs & oncs::COMPARE != 0,
        write_zeroes: oncs & oncs::WRITE_ZEROES != 0,
        deallocate: oncs & oncs::DATASET_MANAGEMENT != 0,
        verify: oncs & oncs::VERIFY != 0,
        volatile_cache: answer.vwc & vwc::PRESENT != 0,
        shadow_doorbells: oacs & oacs::DOORBELL_BUFFER != 0,
        format: oacs & oacs::FORMAT != 0,
        format_attributes: answer.fna,
        sanitize: answer.sanicap.get(),
        aborts: usize::from(answer.acl) + 1,
        events: usize::from(answer.aerl) + 1,
        event_kinds: answer.oaes.get(),
        error_entries: usize::from(answer.elpe) + 1,
        shutdown_micros: answer.rtd3e.get(),
        descriptors: answer.ver.get() >= VERSION_1_3,
        namespaces: answer.nn.get(),
        verify_bytes: None,
        zeroes_bytes: None,
        range_blocks: u32::MAX,
    }
}

impl ControllerCapabilities {
    /// Adds the limits of Identify Controller of the NVM command set (NVM 4.1.5.2).
    pub(super) fn with_nvm(mut self, answer: &NvmController, cap: Cap) -> Self {
        let limit = |exponent: u8| {
            let shift = u32::from(exponent).checked_add(cap.page_size_min().ilog2())?;
            if exponent == 0 { None } else { 1_u64.checked_shl(shift) }
        };
        self.verify_bytes = limit(answer.vsl);
        self.zeroes_bytes = limit(answer.wzsl);
        let most = [u64::from(answer.dmrsl.get()), answer.dmsl.get()];
        let most = most.into_iter().filter(|blocks| *blocks > 0).min();
        self.range_blocks = most.and_then(|most| u32::try_from(most).ok()).unwrap_or(u32::MAX);
        self
    }
}

/// A namespace that can be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Namespace identifier.
    pub nsid: u32,
    /// Number of logical blocks.
    pub blocks: u64,
    /// Bytes per logical block: 512 to 4096.
    pub block_size: u32,
    /// Preferred sizes; reads and writes never cross the boundary.
    pub preferred: PreferredSizes,
    /// True if the namespace is write protected.
    pub read_only: bool,
    /// True if deallocated blocks read as zeroes.
    pub deallocate_reads_zero: bool,
    /// True if Write Zeroes may deallocate.
    pub zeroes_deallocate: bool,
    /// NGUID, most significant byte first; zeroes: none.
    pub nguid: [u8; 16],
    /// EUI64, most significant byte first; zeroes: none.
    pub eui64: [u8; 8],
    /// UUID, most significant byte first; zeroes: none.
    pub uuid: [u8; 16],
    /// Index of the LBA format in use.
    pub format: u8,
}

/// Parses Identify Namespace; rejects namespaces that cannot be served.
pub(super) fn namespace(nsid: u32, answer: &Namespace) -> Result<NamespaceInfo, OpenErrorReason> {
    let refuse = |reason: String| Err(OpenErrorReason::Namespace { nsid, reason });
    if answer.as_bytes().iter().all(|byte| *byte == 0) || answer.nsze.get() == 0 {
        return refuse("there is no active namespace of that number".to_owned());
    }
    if answer.as_bytes().iter().all(|byte| *byte == 0xff) {
        return refuse("Identify Namespace is full of ones".to_owned());
    }
    let format = answer.format_index();
    if usize::from(format) >= answer.formats().len() {
        return refuse(format!("LBA format {format} in use does not exist"));
    }
    let lba = answer.format();
    if lba.ms.get() > 0 || answer.protection() > 0 {
        return refuse(format!(
            "blocks have {} bytes of metadata (LBA format {format}), which is not supported: \
             format the namespace without metadata",
            lba.ms.get()
        ));
    }
    let Some(block_size) = lba.block_size() else {
        let lbads = lba.lbads;
        return refuse(format!("LBA format {format} has blocks of 2^{lbads} bytes"));
    };
    if block_size > BLOCK_MAX {
        return refuse(format!(
            "blocks have {block_size} bytes (LBA format {format}), the maximum is {BLOCK_MAX}: \
             format the namespace with smaller blocks"
        ));
    }
    let blocks = answer.nsze.get();
    if blocks.checked_mul(u64::from(block_size)).is_none() {
        return refuse(format!("{blocks} blocks of {block_size} bytes are no size"));
    }
    Ok(NamespaceInfo {
        nsid,
        blocks,
        block_size,
        preferred: answer.preferred_sizes(),
        read_only: answer.nsattr & nsattr::WRITE_PROTECTED != 0,
        deallocate_reads_zero: answer.dlfeat & 0b111 == dlfeat::READ_ZEROES,
        zeroes_deallocate: answer.dlfeat & dlfeat::WRITE_ZEROES_DEALLOCATES != 0,
        nguid: answer.nguid,
        eui64: answer.eui64,
        uuid: [0; 16],
        format,
    })
}

impl NamespaceInfo {
    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        // Checked at construction.
        self.blocks.saturating_mul(u64::from(self.block_size))
    }

    /// Adds the identifiers that only the descriptor list has.
    pub(super) fn with_descriptors(mut self, list: &[u8]) -> Self {
        for id in NamespaceIds::new(list) {
            if let NamespaceId::Uuid(uuid) = id {
                self.uuid = uuid;
            }
        }
        self
    }

    /// Returns the namespace's identity in the form of Linux (`/sys/block/nvme0n1/wwid`), so that a
    /// drive is the same medium under the VFIO driver and the kernel driver.
    pub fn wwid(&self, drive: &Identity) -> Option<String> {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let is_set = |id: &[u8]| id.iter().any(|byte| *byte != 0);
        if is_set(&self.uuid) {
            let hex = hex(&self.uuid);
            let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
            return Some(format!("uuid.{}", parts.join("-")));
        }
        if is_set(&self.nguid) {
            return Some(format!("eui.{}", hex(&self.nguid)));
        }
        if is_set(&self.eui64) {
            return Some(format!("eui.{}", hex(&self.eui64)));
        }
        let (serial, model) = (hex(drive.serial.as_bytes()), hex(drive.model.as_bytes()));
        let wwid = format!("nvme.{:04x}-{serial}-{model}-{:08x}", drive.vendor, self.nsid);
        (!serial.is_empty()).then_some(wwid)
    }
}

#[cfg(test)]
pub(super) mod tests_support {
    use super::*;

    /// Returns capabilities with everything supported and this maximum transfer in bytes.
    pub(in crate::nvme_driver) fn abilities(max_transfer: u64) -> ControllerCapabilities {
        let answer = IdentifyController { sqes: 0x66, cqes: 0x44, ..IdentifyController::default() };
        let all = abilities_of(&answer);
        ControllerCapabilities { max_transfer, compare: true, verify: true, ..all }
    }

    fn abilities_of(answer: &IdentifyController) -> ControllerCapabilities {
        super::abilities(answer, Cap::new())
    }

    /// Returns a namespace of this many blocks.
    pub(in crate::nvme_driver) fn namespace_info(blocks: u64, block_size: u32) -> NamespaceInfo {
        NamespaceInfo {
            nsid: 1,
            blocks,
            block_size,
            preferred: PreferredSizes::default(),
            read_only: false,
            deallocate_reads_zero: true,
            zeroes_deallocate: true,
            nguid: [0; 16],
            eui64: [0; 8],
            uuid: [0; 16],
            format: 0,
        }
    }
}
