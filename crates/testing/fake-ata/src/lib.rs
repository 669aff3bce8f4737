//! A SATA drive in memory, reached by the arguments of hdparm.
//!
//! It has the security states of the ATA/ATAPI Command Set: a password, locked, frozen, attempts
//! used up; and those of Sanitize. Faults are fields of [`AtaState`].

#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// State and faults of a drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AtaState {
    /// User data.
    pub data: Vec<u8>,
    /// It has the security commands.
    pub has_security: bool,
    /// It has the enhanced Security Erase.
    pub has_enhanced_erase: bool,
    /// It has the block erase of Sanitize.
    pub has_block_erase: bool,
    /// It has the crypto scramble of Sanitize.
    pub has_crypto_scramble: bool,
    /// User password.
    pub password: Option<String>,
    /// Locked: the password is needed.
    pub is_locked: bool,
    /// Security commands are refused until the next reset.
    pub is_frozen: bool,
    /// The attempts at the password are used up.
    pub is_expired: bool,
    /// State of Sanitize.
    pub sanitize: SanitizeState,
    /// Status queries for which a Sanitize is in progress.
    pub sanitize_polls: u32,
    /// Fault: an erase fails.
    pub fails_erase: bool,
    /// Fault: an erase reports success and does nothing.
    pub forgets_erase: bool,
    /// Fault: the password cannot be removed.
    pub keeps_password: bool,
    /// Fault: a Sanitize fails.
    pub fails_sanitize: bool,
    /// Commands that changed the drive, or tried to.
    pub changes: usize,
}

/// State of Sanitize.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SanitizeState {
    /// SD0, and the last one is not reported as completed.
    Idle,
    /// SD1: the commands are refused until the next reset.
    Frozen,
    /// SD2.
    InProgress,
    /// SD0, and the last one is completed.
    Done,
    /// SD3.
    Failed,
}

/// A drive in memory.
#[derive(Debug)]
pub struct FakeAtaDrive(Mutex<AtaState>);

impl Default for FakeAtaDrive {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeAtaDrive {
    /// A drive with data and the normal Security Erase, without a password.
    #[must_use]
    pub fn new() -> Self {
        Self(Mutex::new(AtaState {
            data: vec![0x5a; 4096],
            has_security: true,
            has_enhanced_erase: false,
            has_block_erase: false,
            has_crypto_scramble: false,
            password: None,
            is_locked: false,
            is_frozen: false,
            is_expired: false,
            sanitize: SanitizeState::Idle,
            sanitize_polls: 0,
            fails_erase: false,
            forgets_erase: false,
            keeps_password: false,
            fails_sanitize: false,
            changes: 0,
        }))
    }

    fn state(&self) -> MutexGuard<'_, AtaState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes its state.
    pub fn change(&self, change: impl FnOnce(&mut AtaState)) {
        change(&mut self.state());
    }

    /// Returns true if its data is all zeroes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.state().data.iter().all(|byte| *byte == 0)
    }

    /// Its user password.
    #[must_use]
    pub fn password(&self) -> Option<String> {
        self.state().password.clone()
    }

    /// Number of commands that changed it, or tried to.
    #[must_use]
    pub fn changes(&self) -> usize {
        self.state().changes
    }

    /// Executes a call of hdparm; returns its output.
    ///
    /// # Errors
    /// The drive aborts the command, or the call is unknown.
    pub fn hdparm(&self, arguments: &[&str]) -> Result<String, String> {
        let mut state = self.state();
        match *arguments {
            ["--Istdout", path] => Ok(state.identify(path)),
            ["--sanitize-status", _] => state.sanitize_status(),
            ["--yes-i-know-what-i-am-doing", option, _] => state.sanitize(option),
            ["--user-master", "u", option, password, _] => state.security(option, password),
            _ => Err(format!("unknown call: {arguments:?}")),
        }
    }
}

impl AtaState {
    fn identify(&self, path: &str) -> String {
        let mut words = [0_u16; 256];
        words[0] = 0x0040;
        for (word, pair) in words[10..20].iter_mut().zip(b"ATA0001             ".chunks(2)) {
            *word = u16::from_be_bytes([pair[0], pair[1]]);
        }
        let bit = |on: bool, at: u32| u16::from(on) << at;
        let has_sanitize = self.has_block_erase || self.has_crypto_scramble;
        words[59] = bit(has_sanitize, 12)
            | bit(self.has_crypto_scramble, 13)
            | bit(self.has_block_erase, 15);
        words[82] = bit(self.has_security, 1);
        words[85] = bit(self.password.is_some(), 1);
        words[128] = bit(self.has_security, 0)
            | bit(self.password.is_some(), 1)
            | bit(self.is_locked, 2)
            | bit(self.is_frozen, 3)
            | bit(self.is_expired, 4)
            | bit(self.has_enhanced_erase, 5);
        words[255] = 0x00a5;
        let sum = words.iter().flat_map(|word| word.to_le_bytes()).fold(0, u8::wrapping_add);
        words[255] |= u16::from(sum.wrapping_neg()) << 8;
        let mut text = format!("\n{path}:\n");
        for line in words.chunks(8) {
            let line: Vec<String> = line.iter().map(|word| format!("{word:04x}")).collect();
            let _ = writeln!(text, "{}", line.join(" "));
        }
        text
    }

    fn security(&mut self, option: &str, password: &str) -> Result<String, String> {
        self.changes += 1;
        let is_set = option == "--security-set-pass";
        let fits = self.password.as_deref() == Some(password);
        if !self.has_security || self.is_frozen || self.is_expired || !is_set && !fits {
            return Err("SG_IO: bad/missing sense data, aborted command".to_owned());
        }
        match option {
            "--security-set-pass" => self.password = Some(password.to_owned()),
            "--security-disable" if self.keeps_password => return Err("aborted command".to_owned()),
            "--security-disable" => self.password = None,
            "--security-erase-enhanced" if !self.has_enhanced_erase => {
                return Err("aborted command".to_owned());
            }
            "--security-erase" | "--security-erase-enhanced" if self.fails_erase => {
                return Err("SECURITY_ERASE: Input/output error".to_owned());
            }
            "--security-erase" | "--security-erase-enhanced" if self.forgets_erase => {}
            "--security-erase" | "--security-erase-enhanced" => {
                self.data.fill(0);
                self.password = None;
            }
            _ => return Err(format!("unknown option {option}")),
        }
        Ok(String::new())
    }

    fn sanitize(&mut self, option: &str) -> Result<String, String> {
        self.changes += 1;
        let can = match option {
            "--sanitize-block-erase" => self.has_block_erase,
            "--sanitize-crypto-scramble" => self.has_crypto_scramble,
            _ => false,
        };
        if !can || self.password.is_some() {
            return Err("SANITIZE feature set is not supported".to_owned());
        }
        if self.sanitize == SanitizeState::Frozen {
            return Err("SANITIZE device error reason: Device in FROZEN state".to_owned());
        }
        if !self.fails_sanitize {
            self.data.fill(0);
        }
        self.sanitize = SanitizeState::InProgress;
        Ok("You may use `--sanitize-status` to check progress\n".to_owned())
    }

    /// The answer to a status query. hdparm reports a failed Sanitize as a failed query.
    fn sanitize_status(&mut self) -> Result<String, String> {
        if self.sanitize == SanitizeState::InProgress {
            self.sanitize = match self.sanitize_polls.checked_sub(1) {
                Some(left) => {
                    self.sanitize_polls = left;
                    SanitizeState::InProgress
                }
                None if self.fails_sanitize => SanitizeState::Failed,
                None => SanitizeState::Done,
            };
        }
        let state = match self.sanitize {
            SanitizeState::Idle => "SD0 Sanitize Idle",
            SanitizeState::Frozen => "SD1 Sanitize Frozen",
            SanitizeState::InProgress => {
                "SD2 Sanitize operation In Process\n    Progress: 0x8000 (50%)"
            }
            SanitizeState::Done => {
                "SD0 Sanitize Idle\n    Last Sanitize Operation Completed Without Error"
            }
            SanitizeState::Failed => {
                return Err("Drive in SD3 Sanitize Operation Failed state".to_owned());
            }
        };
        Ok(format!("Sanitize status:\n    State:    {state}\n"))
    }
}
