//! What kind of controller the fake is.

use nvmeof_wire::identify::{
    Controller, ControllerType, LbaFormat, Namespace, fna, lpa, oacs, oaes, oncs, vwc,
};
use nvmeof_wire::properties::{CAP_CSS_NVM, Cap, Version};
use nvmeof_wire::sanitize::sanicap;
use nvmeof_wire::{U16, U32, U64, ascii};

/// A controller: what it says of itself, which is also how it behaves.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its PCI address.
    pub address: String,
    /// CAP. MQES, DSTRD, TO, the page sizes and the command sets are held to.
    pub cap: Cap,
    /// VS.
    pub version: Version,
    /// Identify Controller. MDTS, OACS, ONCS, SGLS, SANICAP, FNA, VWC, AERL and ELPE are held to.
    pub identify: Box<Controller>,
    /// Its namespaces.
    pub namespaces: Vec<NamespaceConfig>,
    /// I/O queues of each kind it has.
    pub io_queues: u16,
    /// MSI-X vectors it has.
    pub vectors: u16,
    /// When it works.
    pub mode: Mode,
    /// When CSTS.RDY follows CC.EN to 1.
    pub enable: Readiness,
    /// When CSTS.RDY follows CC.EN to 0.
    pub disable: Readiness,
    /// When a shutdown is complete.
    pub shutdown: Readiness,
    /// Reads of the Sanitize Status log page until a sanitize operation is done; it fails if `sanitize_fails`.
    pub sanitize_reads: u32,
    /// A sanitize operation ends in failure.
    pub sanitize_fails: bool,
    /// It takes no admin command while one of them is held.
    pub one_admin_at_a_time: bool,
    /// Abort aborts. If not, it says that it did not.
    pub abort_helps: bool,
    /// [`Function::reset`](crate::nvme_driver::seam::Function::reset) works.
    pub can_reset: bool,
    /// [`Function::rearm`](crate::nvme_driver::seam::Function::rearm) works.
    pub can_rearm: bool,
    /// Nothing else keeps its IOMMU group in use: given back, it reaches no memory.
    pub alone: bool,
    /// A read or write across the namespace's NOIOB is a violation.
    pub check_boundary: bool,
    /// The first address of its view of memory that is handed out.
    pub first_iova: u64,
}

/// A namespace.
#[derive(Debug, Clone)]
pub struct NamespaceConfig {
    /// Its identifier.
    pub nsid: u32,
    /// Identify Namespace. NSZE and the formats are held to; a size beyond 1 GiB has no contents.
    pub identify: Box<Namespace>,
    /// Its UUID, in the list of its identifiers; zeroes: none.
    pub uuid: [u8; 16],
}

/// When the controller works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// When it is told to ([`Fake::step`](super::Fake::step), [`Fake::run`](super::Fake::run)).
    Manual,
    /// At every write of a doorbell, all there is to do.
    Automatic,
}

/// When the controller follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// When CSTS has been read this often; with 0 it has followed by the first read.
    AfterReads(u32),
    /// Never.
    Never,
}

impl Readiness {
    pub(super) const AT_ONCE: Self = Self::AfterReads(0);
}

impl Default for Config {
    /// One namespace of 16 MiB in 512-byte blocks, MDTS 128 KiB, eight queue pairs of up to 1024 entries, a volatile
    /// write cache, no SGLs, no shadow doorbells; works at the doorbell.
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
    /// `blocks` blocks of 2 to the `lbads` bytes; formats for 512 and 4096 bytes besides.
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
