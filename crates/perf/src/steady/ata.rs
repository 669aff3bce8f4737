//! Purge of a SATA drive: Security Erase or Sanitize, by hdparm.
//!
//! ```text
//!   IDENTIFY -- locked, password set: refused, and nothing is changed
//!     |-- security usable --> set password --> IDENTIFY --> erase --> IDENTIFY: password gone
//!     |                            '-- any failure: the password is removed again
//!     '-- frozen or without security --> Sanitize, if the drive has it and it is not frozen, too
//!                                         '--> status until idle
//! ```
//!
//! Words and bits are those of ATA/ATAPI Command Set (ACS-3), IDENTIFY DEVICE.

use std::time::Duration;

use crate::patience::{Patience, Refusal};
use crate::tool::last_line;

/// Temporary password. It is no secret: if the erase is interrupted by a loss of power, it unlocks
/// the drive.
pub(super) const PASSWORD: &str = "nvmeof-perf";
/// Maximum wait until a drive responds again after an erase, and pause between two queries.
pub(super) const PATIENCE: Patience =
    Patience { most: Duration::from_secs(60), pause: Duration::from_secs(2) };
/// Option without which hdparm starts no Sanitize.
const CONFIRM: &str = "--yes-i-know-what-i-am-doing";
const SANITIZE_FROZEN: &str = "the firmware has frozen the drive's Sanitize (suspend and resume \
                               the machine, or plug the drive in again)";

/// Runs hdparm with arguments; returns its output.
///
/// # Errors
/// It does not start or fails; with its message.
pub(super) type RunHdparm<'a> = &'a dyn Fn(&[&str]) -> Result<String, String>;

/// Words of IDENTIFY DEVICE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identify(Vec<u16>);

/// Way to purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AtaPurge {
    SecurityErase { enhanced: bool },
    BlockErase,
    CryptoScramble,
}

/// The erase took place, or the reason why there is none; or a failure.
type Erased = Result<Result<String, String>, String>;

impl Identify {
    /// Reads the words of the drive at `path`.
    pub(super) fn read(run: RunHdparm<'_>, path: &str) -> Result<Self, String> {
        let text = run(&["--Istdout", path])?;
        let is_word = |word: &&str| word.len() == 4;
        let words = text.split_whitespace().filter(is_word);
        let words: Vec<u16> = words.filter_map(|word| u16::from_str_radix(word, 16).ok()).collect();
        let this = Self(words);
        match this.0.len() == 256 && this.is_sound() {
            true => Ok(this),
            false => Err("the drive does not report its identity (IDENTIFY DEVICE)".to_owned()),
        }
    }

    /// Checks the checksum of word 255, if it has one.
    fn is_sound(&self) -> bool {
        let bytes = self.0.iter().flat_map(|word| word.to_le_bytes());
        let sum = bytes.fold(0_u8, u8::wrapping_add);
        self.0[255] & 0xff != 0xa5 || sum == 0
    }

    /// Serial number: words 10 to 19, the first character of each in its upper byte.
    pub(super) fn serial(&self) -> String {
        let bytes: Vec<u8> = self.0[10..20].iter().flat_map(|word| word.to_be_bytes()).collect();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }

    /// A bit of word 128, the security status.
    fn security(&self, bit: u32) -> bool {
        self.0[128] >> bit & 1 == 1
    }

    fn has_password(&self) -> bool {
        self.security(1) || self.0[85] & 2 != 0
    }

    /// A bit of word 59, the Sanitize commands.
    fn sanitize(&self, bit: u32) -> bool {
        self.0[59] >> 12 & 1 == 1 && self.0[59] >> bit & 1 == 1
    }

    /// Chooses the way to purge.
    ///
    /// # Errors
    /// The reason why the drive must not or cannot be purged, and the remedy.
    pub(super) fn way(&self) -> Result<AtaPurge, String> {
        if self.security(2) {
            return Err("the drive is locked by a password: unlock it (hdparm --security-unlock)"
                .to_owned());
        }
        if self.has_password() {
            return Err("a password is set on the drive: remove it first (hdparm \
                        --security-disable); it is not replaced"
                .to_owned());
        }
        let obstacle = if !self.security(0) {
            "the drive has no security commands"
        } else if self.security(3) {
            "the firmware has frozen the drive's security (suspend and resume the machine, or plug \
             the drive in again)"
        } else if self.security(4) {
            "the drive's password attempts are used up (switch it off and on)"
        } else {
            return Ok(AtaPurge::SecurityErase { enhanced: self.security(5) });
        };
        if self.sanitize(15) {
            return Ok(AtaPurge::BlockErase);
        }
        if self.sanitize(13) {
            return Ok(AtaPurge::CryptoScramble);
        }
        Err(format!("{obstacle}, and no Sanitize that erases"))
    }
}

impl AtaPurge {
    fn name(self) -> &'static str {
        match self {
            Self::SecurityErase { enhanced: false } => "ATA Security Erase",
            Self::SecurityErase { enhanced: true } => "ATA Security Erase, enhanced",
            Self::BlockErase => "ATA Sanitize, block erase",
            Self::CryptoScramble => "ATA Sanitize, crypto scramble",
        }
    }
}

/// Answer to a query of the state of Sanitize.
enum SanitizeStatus {
    Idle {
        has_completed: bool,
    },
    Frozen,
    InProgress,
    /// With the message of hdparm.
    Failed(String),
}

/// A drive, reached by hdparm.
pub(super) struct AtaDrive<'a> {
    pub(super) run: RunHdparm<'a>,
    pub(super) path: &'a str,
    pub(super) patience: Patience,
}

impl AtaDrive<'_> {
    /// Purges the drive, if it is the one with this serial number (empty: not known).
    ///
    /// # Errors
    /// The purge began and failed; with the state of the drive and the remedy.
    pub(super) fn purge(&self, serial: &str) -> Erased {
        let path = self.path;
        let before = match Identify::read(self.run, path) {
            Ok(identify) => identify,
            Err(why) => return Ok(Err(why)),
        };
        if !serial.is_empty() && before.serial() != serial {
            let other = before.serial();
            return Err(format!("{path} has become another drive ({other}): not purged"));
        }
        let way = match before.way() {
            Ok(way) => way,
            Err(why) => return Ok(Err(why)),
        };
        let done = match way {
            AtaPurge::SecurityErase { enhanced } => self.security_erase(enhanced).map(Ok),
            AtaPurge::BlockErase => self.sanitize("--sanitize-block-erase"),
            AtaPurge::CryptoScramble => self.sanitize("--sanitize-crypto-scramble"),
        };
        Ok(done?.map(|()| way.name().to_owned()))
    }

    fn security_erase(&self, enhanced: bool) -> Result<(), String> {
        let call = |option: &str| {
            (self.run)(&["--user-master", "u", option, PASSWORD, self.path]).map(drop)
        };
        let erased = call("--security-set-pass")
            .and_then(|()| match Identify::read(self.run, self.path)? {
                now if now.has_password() && !now.security(2) => Ok(()),
                _ => Err("the drive did not take the temporary password".to_owned()),
            })
            .and_then(|()| {
                call(if enhanced { "--security-erase-enhanced" } else { "--security-erase" })
            });
        // The erase removes the password. Whatever failed, it must not stay.
        let after = match (self.wait_for_identity(), &erased) {
            (Ok(after), _) => after,
            (Err(why), Ok(())) => return Err(why),
            (Err(why), Err(erase)) => return Err(format!("{erase}; afterwards: {why}")),
        };
        if !after.has_password() {
            return erased;
        }
        let why = erased.err().unwrap_or_else(|| "the erase did not complete".to_owned());
        let kept = match call("--security-disable").and_then(|()| self.wait_for_identity()) {
            Ok(now) if !now.has_password() => {
                return Err(format!("{why}; the temporary password was removed"));
            }
            Ok(_) => "its removal had no effect".to_owned(),
            Err(kept) => kept,
        };
        Err(format!(
            "{why}; the drive still has the temporary password ({kept}): `hdparm --user-master u \
             --security-disable {PASSWORD} {}` removes it",
            self.path
        ))
    }

    /// A drive may not respond directly after an erase.
    fn wait_for_identity(&self) -> Result<Identify, String> {
        let read = || Identify::read(self.run, self.path).map_err(Refusal::Transient);
        self.patience.retry(read).map_err(|why| {
            format!("{why}; if the drive asks for a password after a power cycle, it is {PASSWORD}")
        })
    }

    /// Runs a Sanitize to its end; it continues even if this program ends.
    fn sanitize(&self, option: &str) -> Result<Result<(), String>, String> {
        let status = format!("`hdparm --sanitize-status {}`", self.path);
        match self.sanitize_status() {
            Ok(SanitizeStatus::Idle { .. } | SanitizeStatus::Failed(_)) => {}
            Ok(SanitizeStatus::Frozen) => return Ok(Err(SANITIZE_FROZEN.to_owned())),
            Ok(SanitizeStatus::InProgress) => {
                return Err(format!("a Sanitize is in progress: wait for its end ({status})"));
            }
            Err(why) => return Ok(Err(why)),
        }
        let unclear =
            |why| format!("{why}; a Sanitize may be in progress: {status} shows its state");
        match (self.run)(&[CONFIRM, option, self.path]) {
            Ok(_) => {}
            Err(why) if why.contains("FROZEN") => return Ok(Err(SANITIZE_FROZEN.to_owned())),
            Err(why) => return Err(unclear(why)),
        }
        let failed = |why: &str| Err(format!("Sanitize did not complete: {why}"));
        loop {
            match self.sanitize_status().map_err(unclear)? {
                SanitizeStatus::InProgress => std::thread::sleep(self.patience.pause),
                SanitizeStatus::Idle { has_completed: true } => return Ok(Ok(())),
                SanitizeStatus::Idle { .. } => return failed("the drive is idle"),
                SanitizeStatus::Frozen => return failed("the drive has frozen Sanitize"),
                SanitizeStatus::Failed(why) => return failed(&why),
            }
        }
    }

    fn sanitize_status(&self) -> Result<SanitizeStatus, String> {
        let text = match (self.run)(&["--sanitize-status", self.path]) {
            // hdparm then fails: the drive answers the query with an error.
            Err(why) if why.contains("SD3") => return Ok(SanitizeStatus::Failed(why)),
            text => text?,
        };
        let states = ["SD0", "SD1", "SD2", "SD3"];
        match states.into_iter().find(|state| text.contains(state)) {
            Some("SD0") => {
                let has_completed = text.contains("Completed Without Error");
                Ok(SanitizeStatus::Idle { has_completed })
            }
            Some("SD1") => Ok(SanitizeStatus::Frozen),
            Some("SD2") => Ok(SanitizeStatus::InProgress),
            Some(_) => Ok(SanitizeStatus::Failed(last_line(&text).to_owned())),
            None => Err(format!("hdparm reports no state of Sanitize: {}", last_line(&text))),
        }
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_fake_ata::{FakeAtaDrive, SanitizeState};

    use super::*;

    const PATH: &str = "/dev/sdz";

    fn purge_by(run: RunHdparm<'_>, serial: &str) -> Erased {
        AtaDrive { run, path: PATH, patience: Patience::NONE }.purge(serial)
    }

    fn purge_of(drive: &FakeAtaDrive) -> Erased {
        purge_by(&|arguments| drive.hdparm(arguments), "")
    }

    #[test]
    fn a_drive_is_erased_enhanced_if_it_can_and_has_no_password_afterwards() {
        for (enhanced, name) in
            [(false, "ATA Security Erase"), (true, "ATA Security Erase, enhanced")]
        {
            let drive = FakeAtaDrive::new();
            drive.change(|state| state.has_enhanced_erase = enhanced);
            assert_eq!(purge_of(&drive), Ok(Ok(name.to_owned())));
            assert!(drive.is_empty());
            assert_eq!(drive.password(), None);
        }
    }

    #[test]
    fn a_drive_that_is_locked_frozen_or_protected_is_not_touched() {
        for (change, says) in [
            (
                &(|state: &mut nvmeof_fake_ata::AtaState| {
                    state.password = Some("theirs".into());
                }) as &dyn Fn(&mut nvmeof_fake_ata::AtaState),
                "a password is set",
            ),
            (
                &|state| (state.password, state.is_locked) = (Some("theirs".into()), true),
                "is locked",
            ),
            (&|state| state.is_frozen = true, "frozen"),
            (&|state| state.is_expired = true, "used up"),
            (&|state| state.has_security = false, "no security commands, and no Sanitize"),
            (
                &|state| {
                    (state.password, state.has_block_erase) = (Some("theirs".into()), true);
                },
                "a password is set",
            ),
        ] {
            let drive = FakeAtaDrive::new();
            drive.change(change);
            let why = purge_of(&drive).unwrap().unwrap_err();
            assert!(why.contains(says), "{says}: {why}");
            assert!(!drive.is_empty() && drive.changes() == 0, "{says}");
        }
        let drive = FakeAtaDrive::new();
        let error = purge_by(&|arguments| drive.hdparm(arguments), "other").unwrap_err();
        assert!(error.contains("another drive") && drive.changes() == 0, "{error}");
        assert_eq!(
            purge_by(&|arguments| drive.hdparm(arguments), "ATA0001").unwrap(),
            Ok("ATA Security Erase".to_owned())
        );
    }

    #[test]
    fn a_frozen_drive_is_sanitized_and_waited_for() {
        for (is_block, name) in
            [(true, "ATA Sanitize, block erase"), (false, "ATA Sanitize, crypto scramble")]
        {
            let drive = FakeAtaDrive::new();
            drive.change(|state| {
                state.is_frozen = true;
                (state.has_block_erase, state.has_crypto_scramble) = (is_block, !is_block);
                state.sanitize_polls = 3;
            });
            assert_eq!(purge_of(&drive), Ok(Ok(name.to_owned())));
            assert!(drive.is_empty());
        }
        let drive = FakeAtaDrive::new();
        drive.change(|state| {
            (state.is_frozen, state.has_block_erase, state.fails_sanitize) = (true, true, true);
        });
        let error = purge_of(&drive).unwrap_err();
        assert!(error.contains("Sanitize did not complete: Drive in SD3"), "{error}");
        // A Sanitize that failed does not prevent another one.
        drive.change(|state| state.fails_sanitize = false);
        assert_eq!(purge_of(&drive), Ok(Ok("ATA Sanitize, block erase".to_owned())));
    }

    /// A drive without security, whose Sanitize has the block erase.
    fn sanitizable(state: SanitizeState) -> FakeAtaDrive {
        let drive = FakeAtaDrive::new();
        drive.change(|now| {
            (now.has_security, now.has_block_erase, now.sanitize) = (false, true, state);
        });
        drive
    }

    #[test]
    fn a_frozen_sanitize_is_a_reason_and_one_in_progress_a_failure() {
        let drive = sanitizable(SanitizeState::Frozen);
        let why = purge_of(&drive).unwrap().unwrap_err();
        assert!(why.contains("frozen the drive's Sanitize") && drive.changes() == 0, "{why}");
        // Frozen between the query and the command.
        let drive = sanitizable(SanitizeState::Idle);
        let hdparm = |arguments: &[&str]| {
            let done = drive.hdparm(arguments);
            if arguments[0] == "--sanitize-status" {
                drive.change(|state| state.sanitize = SanitizeState::Frozen);
            }
            done
        };
        let why = purge_by(&hdparm, "").unwrap().unwrap_err();
        assert!(why.contains("frozen the drive's Sanitize") && !drive.is_empty(), "{why}");
        let drive = sanitizable(SanitizeState::InProgress);
        drive.change(|state| state.sanitize_polls = 1);
        let error = purge_of(&drive).unwrap_err();
        assert!(error.contains("is in progress") && drive.changes() == 0, "{error}");
    }

    #[test]
    fn a_sanitize_whose_state_is_unknown_may_be_in_progress() {
        let drive = sanitizable(SanitizeState::Idle);
        let hdparm = |arguments: &[&str]| match arguments[0] {
            "--sanitize-status" if drive.changes() > 0 => Err("no such device".to_owned()),
            _ => drive.hdparm(arguments),
        };
        let error = purge_by(&hdparm, "").unwrap_err();
        assert!(error.contains("no such device; a Sanitize may be in progress"), "{error}");
        // The query fails before anything was changed.
        let drive = sanitizable(SanitizeState::Idle);
        let hdparm = |arguments: &[&str]| match arguments[0] {
            "--sanitize-status" => Err("no such device".to_owned()),
            _ => drive.hdparm(arguments),
        };
        let why = purge_by(&hdparm, "").unwrap().unwrap_err();
        assert!(why.contains("no such device") && drive.changes() == 0, "{why}");
    }

    #[test]
    fn a_drive_that_is_lost_during_the_erase_reports_both_failures() {
        let drive = FakeAtaDrive::new();
        let is_lost = std::cell::Cell::new(false);
        let hdparm = |arguments: &[&str]| {
            is_lost.set(is_lost.get() || arguments.contains(&"--security-erase"));
            match (is_lost.get(), arguments[0]) {
                (true, "--Istdout") => Err("no such device".to_owned()),
                (true, _) => Err("the erase was aborted".to_owned()),
                (false, _) => drive.hdparm(arguments),
            }
        };
        let error = purge_by(&hdparm, "").unwrap_err();
        for says in ["the erase was aborted; afterwards: no such device", PASSWORD] {
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn an_erase_that_fails_leaves_no_password() {
        let drive = FakeAtaDrive::new();
        drive.change(|state| state.fails_erase = true);
        let error = purge_of(&drive).unwrap_err();
        assert!(error.contains("the temporary password was removed"), "{error}");
        assert_eq!(drive.password(), None);
        // Reported as done, and not done: the password is still there.
        let drive = FakeAtaDrive::new();
        drive.change(|state| state.forgets_erase = true);
        let error = purge_of(&drive).unwrap_err();
        assert!(error.contains("did not complete; the temporary password was removed"), "{error}");
        let drive = FakeAtaDrive::new();
        drive.change(|state| (state.fails_erase, state.keeps_password) = (true, true));
        let error = purge_of(&drive).unwrap_err();
        assert!(error.contains("--security-disable nvmeof-perf /dev/sdz"), "{error}");
        assert_eq!(drive.password().as_deref(), Some(PASSWORD));
    }

    #[test]
    fn an_identity_that_is_not_one_is_no_drive() {
        for text in ["", "/dev/sdz:\n0040 3fff", &"ffff ".repeat(255)] {
            let why = purge_by(&|_| Ok(text.to_owned()), "").unwrap().unwrap_err();
            assert!(why.contains("IDENTIFY"), "{why}");
        }
        let drive = FakeAtaDrive::new();
        let text = drive.hdparm(&["--Istdout", PATH]).unwrap().replacen("0040", "0041", 1);
        assert!(purge_by(&|_| Ok(text.clone()), "").unwrap().is_err(), "the checksum is wrong");
    }
}
