//! Format NVM over a fabric (Base 5.14).

use std::time::Duration;

use nvmeof_wire::format::{FormatNvm, SecureErase};
use nvmeof_wire::identify::{self, Cns, IDENTIFY_SIZE, Identify, fna, oacs};
use nvmeof_wire::zerocopy::FromBytes;

use crate::{Controller, Error};

/// What came of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Formatted {
    /// The namespace is formatted.
    Done,
    /// The controller has no Format NVM.
    Unsupported,
    /// It would have formatted or erased other namespaces, too: nothing was done.
    Others,
}

impl Controller {
    /// Formats namespace `nsid` in the LBA format it has, with user data erase. **Destroys its data**, and no other's.
    /// Waits for `timeout` at most; the controller is kept alive meanwhile. Close the I/O queues before.
    ///
    /// # Errors
    /// The controller cannot be asked, refuses, or does not answer in time.
    pub fn format(&mut self, nsid: u32, timeout: Duration) -> Result<Formatted, Error> {
        let sqe = Identify::new(Cns::CONTROLLER, 0).encode(0);
        let page = self.read("Identify Controller", sqe, IDENTIFY_SIZE)?;
        let controller = identify::Controller::ref_from_bytes(page.as_slice());
        let able = controller.as_ref().is_ok_and(|data| data.oacs.get() & oacs::FORMAT != 0);
        if !able {
            return Ok(Formatted::Unsupported);
        }
        let all = controller.is_ok_and(|data| data.fna & (fna::FORMAT_ALL | fna::ERASE_ALL) != 0);
        if all && self.namespaces().len() > 1 {
            return Ok(Formatted::Others);
        }
        let sqe = Identify::new(Cns::NAMESPACE, nsid).encode(0);
        let page = self.read("Identify Namespace", sqe, IDENTIFY_SIZE)?;
        let format = identify::Namespace::ref_from_bytes(page.as_slice());
        let format = format.map_or(0, identify::Namespace::format_index);
        let sqe = FormatNvm::new(nsid, format, SecureErase::USER_DATA).encode(0);
        self.execute_long("Format NVM", sqe, timeout)?;
        Ok(Formatted::Done)
    }
}
