//! Purge of a SATA drive: Security Erase or Sanitize, by hdparm.
//!
//! ```text
//!   IDENTIFY -- locked, password set: refused, and nothing is changed
//!     |-- security usable --> set password --> IDENTIFY --> erase --> IDENTIFY: password gone
//!     |                            '-- any failure: the password is removed again
//!     '-- frozen or without security --> Sanitize, if the drive has it --> status until idle
//! ```
//!
//! Words and bits are those of ATA/ATAPI Command Set (ACS-3), IDENTIFY DEVICE.

use std::time::{Duration, Instant};

/// Temporary password. It is no secret: if the erase is interrupted by a loss of power, it unlocks
/// the drive.
pub(super) const PASSWORD: &str = "nvmeof-perf";
/// Maximum wait until a drive responds again after an erase.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two queries of a Sanitize.
const PAUSE: Duration = Duration::from_secs(2);
/// Option without which hdparm starts no Sanitize.
const CONFIRM: &str = "--yes-i-know-what-i-am-doing";

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

/// Purges the drive at `path`, if it is the one with this serial number (empty: not known).
///
/// # Errors
/// The purge began and failed; with the state of the drive and the remedy.
pub(super) fn purge(run: RunHdparm<'_>, path: &str, serial: &str) -> Erased {
    let before = match Identify::read(run, path) {
        Ok(identify) => identify,
        Err(why) => return Ok(Err(why)),
    };
    if !serial.is_empty() && before.serial() != serial {
        return Err(format!("{path} has become another drive ({}): not purged", before.serial()));
    }
    let way = match before.way() {
        Ok(way) => way,
        Err(why) => return Ok(Err(why)),
    };
    match way {
        AtaPurge::SecurityErase { enhanced } => security_erase(run, path, enhanced)?,
        AtaPurge::BlockErase => sanitize(run, path, "--sanitize-block-erase")?,
        AtaPurge::CryptoScramble => sanitize(run, path, "--sanitize-crypto-scramble")?,
    }
    Ok(Ok(way.name().to_owned()))
}

fn security_erase(run: RunHdparm<'_>, path: &str, enhanced: bool) -> Result<(), String> {
    let user = ["--user-master", "u"];
    let call = |option: &str| run(&[user[0], user[1], option, PASSWORD, path]).map(drop);
    let erased = call("--security-set-pass")
        .and_then(|()| match Identify::read(run, path)? {
            now if now.has_password() && !now.security(2) => Ok(()),
            _ => Err("the drive did not take the temporary password".to_owned()),
        })
        .and_then(|()| {
            call(if enhanced { "--security-erase-enhanced" } else { "--security-erase" })
        });
    // The erase removes the password. Whatever failed, it must not stay.
    let after = wait_for_identity(run, path)?;
    if !after.has_password() {
        return erased;
    }
    let why = erased.err().unwrap_or_else(|| "the erase did not complete".to_owned());
    let removed = call("--security-disable").and_then(|()| wait_for_identity(run, path));
    if removed.is_ok_and(|now| !now.has_password()) {
        return Err(format!("{why}; the temporary password was removed"));
    }
    Err(format!(
        "{why}; the drive still has the temporary password: `hdparm --user-master u \
         --security-disable {PASSWORD} {path}` removes it"
    ))
}

/// A drive may not respond directly after an erase.
fn wait_for_identity(run: RunHdparm<'_>, path: &str) -> Result<Identify, String> {
    let until = Instant::now() + PATIENCE;
    loop {
        match Identify::read(run, path) {
            Err(why) if Instant::now() >= until => {
                return Err(format!(
                    "{why}; if the drive asks for a password after a power cycle, it is {PASSWORD}"
                ));
            }
            Err(_) => std::thread::sleep(PAUSE),
            identify => return identify,
        }
    }
}

fn sanitize(run: RunHdparm<'_>, path: &str, option: &str) -> Result<(), String> {
    run(&[CONFIRM, option, path])?;
    // It runs to its end even if this program ends.
    loop {
        let status = run(&["--sanitize-status", path])?;
        if status.contains("SD2") {
            std::thread::sleep(PAUSE);
            continue;
        }
        let is_done = status.contains("SD0") && status.contains("Completed Without Error");
        return match is_done {
            true => Ok(()),
            false => Err(format!("Sanitize did not complete: {}", last_line(&status))),
        };
    }
}

pub(super) fn last_line(text: &str) -> &str {
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message").trim()
}

#[cfg(test)]
mod tests {
    use nvmeof_fake_ata::FakeAtaDrive;

    use super::*;

    const PATH: &str = "/dev/sdz";

    fn purge_of(drive: &FakeAtaDrive) -> Erased {
        purge(&|arguments| drive.hdparm(arguments), PATH, "")
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
        let error = purge(&|arguments| drive.hdparm(arguments), PATH, "other").unwrap_err();
        assert!(error.contains("another drive") && drive.changes() == 0, "{error}");
        assert_eq!(
            purge(&|arguments| drive.hdparm(arguments), PATH, "ATA0001").unwrap(),
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
                state.sanitize_polls = 1;
            });
            assert_eq!(purge_of(&drive), Ok(Ok(name.to_owned())));
            assert!(drive.is_empty());
        }
        let drive = FakeAtaDrive::new();
        drive.change(|state| {
            (state.is_frozen, state.has_block_erase, state.fails_sanitize) = (true, true, true);
        });
        assert!(purge_of(&drive).unwrap_err().contains("Sanitize did not complete"));
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
            let why = purge(&|_| Ok(text.to_owned()), PATH, "").unwrap().unwrap_err();
            assert!(why.contains("IDENTIFY"), "{why}");
        }
        let drive = FakeAtaDrive::new();
        let text = drive.hdparm(&["--Istdout", PATH]).unwrap().replacen("0040", "0041", 1);
        assert!(purge(&|_| Ok(text.clone()), PATH, "").unwrap().is_err(), "the checksum is wrong");
    }
}
