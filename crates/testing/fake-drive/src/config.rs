//! Configuration of the fake controller.

use nvmeof_wire::identify::{
    Controller, ControllerType, LbaFormat, Namespace, fna, lpa, oacs, oaes, oncs, vwc,
};
use nvmeof_wire::properties::{CAP_CSS_NVM, Cap, Version};
use nvmeof_wire::sanitize::sanicap;
use nvmeof_wire::{U16, U32, U64, ascii};

/// Properties of a controller, which also determine its behavior.
#[derive(Debug, Clone)]
pub struct FakeDriveConfig {
    /// PCI address.
    pub address: String,
    /// CAP. The fake obeys MQES, DSTRD, TO, the page sizes and the command sets.
    pub cap: Cap,
    /// VS.
    pub version: Version,
    /// Identify Controller. The fake obeys MDTS, OACS, ONCS, SGLS, SANICAP, FNA, VWC, AERL and
    /// ELPE.
    pub identify: Box<Controller>,
    /// Namespaces.
    pub namespaces: Vec<NamespaceConfig>,
    /// Number of I/O queues of each kind.
    pub io_queues: u16,
    /// Number of MSI-X vectors.
    pub vectors: u16,
    /// Trigger of its work.
    pub mode: Mode,
    /// Time when CSTS.RDY follows CC.EN to 1.
    pub enable: Readiness,
    /// Time when CSTS.RDY follows CC.EN to 0.
    pub disable: Readiness,
    /// Time when a shutdown completes.
    pub shutdown: Readiness,
    /// Reads of the Sanitize Status log page until a sanitize operation ends; it fails if
    /// `sanitize_fails`.
    pub sanitize_reads: u32,
    /// Sanitize operations fail.
    pub sanitize_fails: bool,
    /// Takes no admin command while one of them is held.
    pub one_admin_at_a_time: bool,
    /// Abort works; otherwise it reports that the command was not aborted.
    pub abort_helps: bool,
    /// [`Function::reset`](nvmeof_core::nvme_driver::function::Function::reset) works.
    pub can_reset: bool,
    /// [`Function::rearm`](nvmeof_core::nvme_driver::function::Function::rearm) works.
    pub can_rearm: bool,
    /// No other owner keeps the IOMMU group in use: when released, the function reaches no memory.
    pub alone: bool,
    /// Treats a read or write across the namespace's NOIOB as a violation.
    pub check_boundary: bool,
    /// First IOVA that is assigned.
    pub first_iova: u64,
}

/// A namespace.
#[derive(Debug, Clone)]
pub struct NamespaceConfig {
    /// Namespace identifier.
    pub nsid: u32,
    /// Identify Namespace. The fake obeys NSZE and the formats; a namespace above 1 GiB has no
    /// contents.
    pub identify: Box<Namespace>,
    /// UUID in the list of identifiers; zeroes: none.
    pub uuid: [u8; 16],
}

/// Trigger of the controller's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Works on request ([`FakeDrive::step`](super::FakeDrive::step),
    /// [`FakeDrive::run`](super::FakeDrive::run)).
    Manual,
    /// Does all work at every doorbell write.
    Automatic,
}

/// Delay of a state change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// After this many reads of CSTS; with 0, by the first read.
    AfterReads(u32),
    /// Never.
    Never,
}

impl Readiness {
    pub(crate) const AT_ONCE: Self = Self::AfterReads(0);
}

impl Default for FakeDriveConfig {
    /// One namespace of 16 MiB in 512-byte blocks, MDTS 128 KiB, 8 queue pairs of up to 1024
    /// entries.
    ///
    /// It has a volatile write cache, no SGLs and no shadow doorbells, and works at the doorbell.
    fn default() -> Self {
        Self {
            address: "0000:01:00.0".into(),
            cap: Cap::new()
                .with_mqes(1023)
                .with_cqr(true)
                .with_to(2)
                .with_css(CAP_CSS_NVM)
                .with_mpsmax(4)
                .with_nssrs(true),
            version: Version::new().with_mjr(1).with_mnr(4),
            identify: Box::new(identify()),
            namespaces: vec![NamespaceConfig::new(1, 32 << 10, 9)],
            io_queues: 8,
            vectors: 9,
            mode: Mode::Automatic,
            enable: Readiness::AfterReads(1),
            disable: Readiness::AfterReads(1),
            shutdown: Readiness::AfterReads(1),
            sanitize_reads: 2,
            sanitize_fails: false,
            one_admin_at_a_time: false,
            abort_helps: true,
            can_reset: true,
            can_rearm: true,
            alone: true,
            check_boundary: true,
            first_iova: 0x10_0000_3000,
        }
    }
}

impl NamespaceConfig {
    /// Creates a namespace of `blocks` blocks of 2^`lbads` bytes, with formats for 512 and 4096
    /// bytes.
    #[must_use]
    pub fn new(nsid: u32, blocks: u64, lbads: u8) -> Self {
        let mut identify = Box::new(Namespace {
            nsze: U64::new(blocks),
            ncap: U64::new(blocks),
            nuse: U64::new(blocks),
            nlbaf: 2,
            ..Namespace::default()
        });
        identify.lbaf[0] = LbaFormat::new(lbads);
        identify.lbaf[1] = LbaFormat::new(9);
        identify.lbaf[2] = LbaFormat::new(12);
        identify.eui64 = [0x02, 0, 0, 0xff, 0xfe, 0, 0, nsid.to_le_bytes()[0]];
        Self { nsid, identify, uuid: [0; 16] }
    }
}

fn identify() -> Controller {
    let mut controller = Controller {
        vid: U16::new(0x1b36),
        ssvid: U16::new(0x1af4),
        mdts: 5,
        cntlid: U16::new(1),
        ver: U32::new(0x0001_0400),
        oaes: U32::new(oaes::NAMESPACE_ATTRIBUTE),
        cntrltype: ControllerType::IO.0,
        oacs: U16::new(oacs::FORMAT),
        acl: 3,
        aerl: 3,
        lpa: lpa::EXTENDED,
        elpe: 7,
        sanicap: U32::new(sanicap::BLOCK_ERASE | sanicap::CRYPTO_ERASE | sanicap::OVERWRITE),
        sqes: 0x66,
        cqes: 0x44,
        nn: U32::new(16),
        oncs: U16::new(
            oncs::COMPARE
                | oncs::DATASET_MANAGEMENT
                | oncs::WRITE_ZEROES
                | oncs::SAVE_AND_SELECT
                | oncs::TIMESTAMP
                | oncs::VERIFY,
        ),
        fna: fna::CRYPTO_ERASE,
        vwc: vwc::PRESENT | vwc::FLUSH_ALL_SUPPORTED,
        ..Controller::default()
    };
    ascii::fill(&mut controller.sn, "FAKE0001");
    ascii::fill(&mut controller.mn, "nvmeof-tgt fake controller");
    ascii::fill(&mut controller.fr, "1.0");
    controller
}
