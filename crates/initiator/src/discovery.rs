//! Entries of a discovery controller (Base 5.16.1.23).

use nvmeof_wire::log::{
    self, DISCOVERY_RECORD_SIZE, DiscoveryHeader, DiscoverySubtype, GetLogPage, Lid, TransportType,
    Tsas,
};
use nvmeof_wire::zerocopy::FromBytes;
use nvmeof_wire::{Nqn, Sqe};

use crate::{Address, ConnectOptions, Controller, Endpoint, Error, Fabric};

/// Entries read with one command.
const ENTRIES_AT_ONCE: usize = 64;
/// Maximum entries that are read, so that the peer cannot exhaust the memory.
const MAX_ENTRIES: u64 = 1 << 16;
/// Maximum attempts to read the page without a change during the reading.
const ATTEMPTS: usize = 10;

/// A discovery log page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryLog {
    /// Generation counter, which changes when the page does.
    pub generation: u64,
    /// Entries of the page.
    pub entries: Vec<DiscoveryEntry>,
}

/// One subsystem at one port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// Transport: `tcp`, `rdma`, or a number.
    pub transport: String,
    /// Address family: `ipv4`, `ipv6`, or a number.
    pub family: String,
    /// `nvme subsystem`, `discovery subsystem referral`, `current discovery subsystem`, or a
    /// number.
    pub kind: String,
    /// The entry is an NVM subsystem, which supports I/O.
    pub is_nvm: bool,
    /// Transport address.
    pub address: String,
    /// Transport service, that is the port.
    pub service: String,
    /// Subsystem NQN.
    pub subnqn: String,
    /// Port ID.
    pub port: u16,
    /// Controller ID; FFFFh is any.
    pub cntlid: u16,
    /// Maximum entries of an admin queue.
    pub admin_entries: u16,
    /// Security: `none`, `tls 1.3`; empty for other transports than TCP.
    pub security: String,
}

impl DiscoveryEntry {
    fn new(entry: &log::DiscoveryEntry) -> Self {
        let text = |text: Option<&str>| text.unwrap_or("?").to_owned();
        Self {
            transport: entry.trtype.to_string(),
            family: entry.adrfam.to_string(),
            kind: entry.subtype.to_string(),
            is_nvm: entry.subtype == DiscoverySubtype::NVM,
            address: text(entry.address()),
            service: text(entry.service()),
            subnqn: entry.subnqn().map_or_else(|_| "?".to_owned(), |nqn| nqn.to_string()),
            port: entry.portid.get(),
            cntlid: entry.cntlid.get(),
            admin_entries: entry.asqsz.get(),
            security: match entry.tsas() {
                Tsas::Tcp { sectype } => sectype.to_string(),
                _ => String::new(),
            },
        }
    }

    /// Returns the argument of `--connect` for I/O to this entry, if I/O is possible.
    #[must_use]
    pub fn endpoint(&self) -> Option<String> {
        let is_of = |kind: TransportType| self.transport == kind.to_string();
        let fabric = match () {
            () if !self.is_nvm => return None,
            () if is_of(TransportType::TCP) => Fabric::Tcp,
            () if is_of(TransportType::RDMA) => Fabric::Rdma,
            () => return None,
        };
        let (scheme, service, subnqn) = (fabric.scheme(), &self.service, &self.subnqn);
        Some(if self.address.contains(':') {
            format!("{scheme}://[{}]:{service}/{subnqn}", self.address)
        } else {
            format!("{scheme}://{}:{service}/{subnqn}", self.address)
        })
    }
}

/// Reads all entries of the discovery controller at `address`.
///
/// # Errors
/// The failed operation, its place and the remedy.
pub fn discover(address: &Address, options: &ConnectOptions) -> Result<DiscoveryLog, Error> {
    let endpoint = Endpoint { address: address.clone(), subnqn: Nqn::discovery() };
    list(Controller::connect_admin(&endpoint, options)?)
}

/// Reads the entries as [`discover`] does, by RDMA over `resolver`.
#[cfg(test)]
pub(crate) fn discover_by<R: crate::rdma::RouteResolver>(
    endpoint: &Endpoint,
    options: &ConnectOptions,
    resolver: R,
) -> Result<DiscoveryLog, Error> {
    let connector = crate::rdma::RdmaConnector::new(&endpoint.address, options, resolver)?;
    list(Controller::connect_admin_by(Box::new(connector), endpoint, options)?)
}

fn list(mut controller: Controller) -> Result<DiscoveryLog, Error> {
    let mut result = None;
    for _ in 0..ATTEMPTS {
        let (log, is_whole) = read_page(&mut controller)?;
        result = Some(log);
        if is_whole {
            break;
        }
    }
    let peer = controller.peer();
    controller.disconnect()?;
    result.ok_or_else(|| Error::Unusable { peer, what: "no attempt".into() })
}

/// Reads the page once. The result is true if the page did not change during the reading.
fn read_page(controller: &mut Controller) -> Result<(DiscoveryLog, bool), Error> {
    let (generation, records) = read_header(controller)?;
    let mut entries = Vec::new();
    let mut at = 0;
    while at < records {
        let count =
            usize::try_from(records - at).map_or(ENTRIES_AT_ONCE, |n| n.min(ENTRIES_AT_ONCE));
        let len = count * DISCOVERY_RECORD_SIZE;
        let record = DISCOVERY_RECORD_SIZE as u64;
        let sqe = page(len, (at + 1).saturating_mul(record));
        let buffer = controller.read("Get Log Page (Discovery)", sqe, len)?;
        let records = buffer.as_slice().chunks_exact(DISCOVERY_RECORD_SIZE);
        entries.extend(
            records
                .filter_map(|bytes| log::DiscoveryEntry::ref_from_bytes(bytes).ok())
                .map(DiscoveryEntry::new),
        );
        at += count as u64;
    }
    let is_whole = records == 0 || read_header(controller)?.0 == generation;
    Ok((DiscoveryLog { generation, entries }, is_whole))
}

/// Reads the generation counter and the number of records.
fn read_header(controller: &mut Controller) -> Result<(u64, u64), Error> {
    let sqe = page(DISCOVERY_RECORD_SIZE, 0);
    let buffer = controller.read("Get Log Page (Discovery)", sqe, DISCOVERY_RECORD_SIZE)?;
    let Ok(header) = DiscoveryHeader::ref_from_bytes(buffer.as_slice()) else { return Ok((0, 0)) };
    let records = header.numrec.get();
    if records > MAX_ENTRIES {
        let what =
            format!("the target lists {records} discovery entries; at most {MAX_ENTRIES} are read");
        return Err(Error::Unusable { peer: controller.peer(), what });
    }
    Ok((header.genctr.get(), records))
}

fn page(len: usize, offset: u64) -> Sqe {
    GetLogPage { offset, ..GetLogPage::new(Lid::DISCOVERY, len as u64) }.encode(0)
}
