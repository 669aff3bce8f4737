//! Format NVM over a fabric (Base 5.14).

use std::time::Duration;

use nvmeof_wire::format::{FormatNvm, SecureErase};
use nvmeof_wire::identify::{self, Cns, IDENTIFY_SIZE, Identify, fna, oacs};
use nvmeof_wire::zerocopy::FromBytes;

use crate::{Controller, Error};

/// Result of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FormatOutcome {
    /// The namespace is formatted.
    Done,
    /// The controller does not support Format NVM.
    Unsupported,
    /// The format would affect other namespaces, too, so it was not sent.
    Others,
}

impl Controller {
    /// Formats namespace `nsid` in its present LBA format, with user data erase. **Destroys its
    /// data**, and that of no other namespace. Waits at most `timeout`; Keep Alive continues. Close
    /// the I/O queues before.
    ///
    /// # Errors
    /// The controller rejects a command, does not respond in time, or the connection fails.
    pub fn format(&mut self, nsid: u32, timeout: Duration) -> Result<FormatOutcome, Error> {
        let sqe = Identify::new(Cns::CONTROLLER, 0).encode(0);
        let page = self.read("Identify Controller", sqe, IDENTIFY_SIZE)?;
        let controller = identify::Controller::ref_from_bytes(page.as_slice());
        let able = controller.as_ref().is_ok_and(|data| data.oacs.get() & oacs::FORMAT != 0);
        if !able {
            return Ok(FormatOutcome::Unsupported);
        }
        let all = controller.is_ok_and(|data| data.fna & (fna::FORMAT_ALL | fna::ERASE_ALL) != 0);
        if all && self.namespaces().len() > 1 {
            return Ok(FormatOutcome::Others);
        }
        let sqe = Identify::new(Cns::NAMESPACE, nsid).encode(0);
        let page = self.read("Identify Namespace", sqe, IDENTIFY_SIZE)?;
        let format = identify::Namespace::ref_from_bytes(page.as_slice());
        let format = format.map_or(0, identify::Namespace::format_index);
        let sqe = FormatNvm::new(nsid, format, SecureErase::USER_DATA).encode(0);
        self.execute_long("Format NVM", sqe, timeout)?;
        Ok(FormatOutcome::Done)
    }
}
