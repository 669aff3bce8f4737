//! Drive maintenance: logs, Format NVM, Sanitize.

use std::sync::Arc;

use nvmeof_wire::format::{FormatNvm, SecureErase};
use nvmeof_wire::identify::{Cns, Identify, LbaFormat, Namespace, fna};
use nvmeof_wire::log::{ErrorInformation, GetLogPage, Lid, SmartLog};
use nvmeof_wire::sanitize::{Sanitize, SanitizeAction, SanitizeLog, SanitizeState, sanicap};
use nvmeof_wire::sqe::NSID_ALL;
use nvmeof_wire::status::Status;
use nvmeof_wire::zerocopy::{FromBytes, transmute_ref};

use super::controller::Controller;
use super::error::AdminError;
use super::options::nanos;

/// Interval between progress queries, in nanoseconds.
const LOOK: u64 = 200_000_000;
/// Maximum time of a command like Format NVM: one day; then the controller is reset.
const LONG: u64 = 24 * 3600 * 1_000_000_000;
/// Consecutive failed queries after which a sanitize operation is no longer followed.
const FAILURES_MAX: u32 = 50;
/// Entries of the error log that fit in a page.
const ERRORS_MAX: usize = 64;

impl Controller {
    /// Returns the health of the drive.
    ///
    /// # Errors
    /// The error of the controller.
    pub fn smart(&self) -> Result<SmartLog, AdminError> {
        self.log(Lid::SMART, size_of::<SmartLog>())
    }

    /// Returns the last errors, newest first; at most 64, fewer if the drive keeps or had fewer.
    ///
    /// # Errors
    /// The error of the controller.
    pub fn error_log(&self) -> Result<Vec<ErrorInformation>, AdminError> {
        let entry = size_of::<ErrorInformation>();
        let count = self.abilities().error_entries.min(ERRORS_MAX);
        let page = self.log_page(Lid::ERROR_INFORMATION, count * entry)?;
        let entries = page[..count * entry].chunks_exact(entry);
        let entries = entries.filter_map(|bytes| ErrorInformation::read_from_bytes(bytes).ok());
        Ok(entries.take_while(|entry| entry.error_count.get() != 0).collect())
    }

    /// Returns the LBA formats of a namespace, by index.
    ///
    /// # Errors
    /// The error of the controller.
    pub fn formats(&self, nsid: u32) -> Result<Vec<LbaFormat>, AdminError> {
        let page = self.query(Identify::new(Cns::NAMESPACE, nsid).encode(0))?;
        let answer: &Namespace = transmute_ref!(&*page);
        Ok(answer.formats().to_vec())
    }

    /// Formats namespace `nsid` (or all, FFFFFFFFh) with LBA format `lba_format`. **Destroys its
    /// data.**
    ///
    /// Repeatedly passes the percentage done to `progress`, if the drive reports it.
    ///
    /// # Errors
    /// Queues are open, the drive does not support the format, or it failed.
    pub fn format(
        self: &Arc<Self>,
        nsid: u32,
        lba_format: u8,
        erase: SecureErase,
        progress: &mut dyn FnMut(u8),
    ) -> Result<(), AdminError> {
        self.check_unused()?;
        let abilities = self.abilities();
        if !abilities.format {
            return Err(AdminError::Unsupported("Format NVM"));
        }
        if erase == SecureErase::CRYPTOGRAPHIC
            && abilities.format_attributes & fna::CRYPTO_ERASE == 0
        {
            return Err(AdminError::Unsupported("cryptographic erase"));
        }
        if nsid != NSID_ALL {
            let formats = self.formats(nsid)?;
            if usize::from(lba_format) >= formats.len() {
                let most = formats.len().saturating_sub(1);
                return Err(AdminError::Invalid(format!("LBA formats are numbered 0 to {most}")));
            }
        }
        let sqe = FormatNvm::new(nsid, lba_format, erase).encode(0);
        let shown = if nsid == NSID_ALL { 1 } else { nsid };
        // A drive that does not report progress is not queried: every further command waits for the
        // format, too.
        let tells = self.format_remaining(shown).is_some();
        self.long_command(sqe, &mut |controller| {
            if let Some(left) = tells.then(|| controller.format_remaining(shown)).flatten() {
                progress(100 - left.min(100));
            }
        })?;
        progress(100);
        Ok(())
    }

    /// Sanitizes the whole drive. **Destroys all data.** Repeatedly passes the percentage done to
    /// `progress`.
    ///
    /// # Errors
    /// Queues are open, the drive does not support the action, or it failed.
    pub fn sanitize(
        &self,
        action: SanitizeAction,
        progress: &mut dyn FnMut(u8),
    ) -> Result<(), AdminError> {
        self.check_unused()?;
        let needed = match action {
            SanitizeAction::BLOCK_ERASE => sanicap::BLOCK_ERASE,
            SanitizeAction::OVERWRITE => sanicap::OVERWRITE,
            SanitizeAction::CRYPTO_ERASE => sanicap::CRYPTO_ERASE,
            SanitizeAction::EXIT_FAILURE_MODE => 0,
            _ => return Err(AdminError::Unsupported("this sanitize action")),
        };
        if self.abilities().sanitize & needed != needed {
            return Err(AdminError::Unsupported("this sanitize action"));
        }
        let timeout = nanos(self.options().admin_timeout);
        self.command(Sanitize::new(action).encode(0), false, timeout)?;
        if action == SanitizeAction::EXIT_FAILURE_MODE {
            return Ok(());
        }
        self.await_sanitize(progress)
    }

    /// Polls until a running sanitize operation ends. It continues even if a query fails, so errors
    /// are tolerated for some time.
    fn await_sanitize(&self, progress: &mut dyn FnMut(u8)) -> Result<(), AdminError> {
        let mut failures = 0;
        loop {
            let log = self.log::<SanitizeLog>(Lid::SANITIZE_STATUS, size_of::<SanitizeLog>());
            let log = match log {
                Ok(log) => log,
                Err(AdminError::Busy | AdminError::Reset | AdminError::Status(_))
                    if failures < FAILURES_MAX =>
                {
                    failures += 1;
                    self.wait().wait(&[], LOOK);
                    continue;
                }
                Err(error) => return Err(AdminError::Unknown(error.to_string())),
            };
            failures = 0;
            match log.state() {
                SanitizeState::IN_PROGRESS => {
                    let done = u32::from(log.progress.get()) * 100 / 65536;
                    debug_assert!(done < 100, "a fraction of 65536");
                    progress(u8::try_from(done).unwrap_or(99));
                }
                SanitizeState::SUCCEEDED | SanitizeState::SUCCEEDED_DEALLOCATED => {
                    progress(100);
                    return Ok(());
                }
                state => return Err(AdminError::Unsuccessful(state.to_string())),
            }
            self.wait().wait(&[], LOOK);
        }
    }

    fn check_unused(&self) -> Result<(), AdminError> {
        match self.open_queues() {
            0 => Ok(()),
            count => Err(AdminError::InUse(count)),
        }
    }

    /// Returns the remaining percentage of a format, if the drive reports it.
    fn format_remaining(&self, nsid: u32) -> Option<u8> {
        let page = self.query(Identify::new(Cns::NAMESPACE, nsid).encode(0)).ok()?;
        let answer: &Namespace = transmute_ref!(&*page);
        answer.format_remaining()
    }

    fn log<T: FromBytes>(&self, lid: Lid, len: usize) -> Result<T, AdminError> {
        let page = self.log_page(lid, len)?;
        T::read_from_prefix(&page[..]).map(|(log, _)| log).map_err(|_| no_data())
    }

    fn log_page(&self, lid: Lid, len: usize) -> Result<super::admin::Page, AdminError> {
        let mut get = GetLogPage::new(lid, len as u64);
        get.nsid = NSID_ALL;
        self.query(get.encode(0))
    }

    /// Runs an admin command that may take hours, at most a day; calls `look` regularly until it
    /// completes.
    fn long_command(
        &self,
        sqe: nvmeof_wire::Sqe,
        look: &mut dyn FnMut(&Self),
    ) -> Result<(), AdminError> {
        let caller = self.supervisor().submit(sqe, false, LONG)?;
        loop {
            if let Some(result) = self.reply(caller) {
                return result.map(drop);
            }
            look(self);
            self.wait().wait(&[], LOOK);
        }
    }
}

fn no_data() -> AdminError {
    AdminError::Status(Status::INTERNAL_ERROR)
}
