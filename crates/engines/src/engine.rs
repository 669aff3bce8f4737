//! Names and properties of engines.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// An I/O method for reads. All but the last use the kernel and have fio's names where fio has
/// them; the last is the VFIO driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Engine {
    /// `lseek`, then `read`.
    Sync,
    /// `pread`.
    Psync,
    /// `preadv`.
    Pvsync,
    /// `preadv2` without flags.
    Pvsync2,
    /// `preadv2` with `RWF_HIPRI`: the thread polls the drive for the completion instead of
    /// sleeping.
    Pvsync2Hipri,
    /// Linux AIO (`io_submit`, `io_getevents`), completions by interrupt.
    Libaio,
    /// io_uring, completions by interrupt.
    IoUring,
    /// io_uring with `IORING_SETUP_IOPOLL`: completions are polled at the drive.
    IoUringPolled,
    /// The VFIO driver, without the kernel; it polls.
    Vfio,
}

/// No engine has this name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is no engine: there are {list}", list = Engine::ALL.map(Engine::name).join(", "))]
pub struct UnknownEngine(pub String);

impl Engine {
    /// All engines, in the order of tables.
    pub const ALL: [Self; 9] = [
        Self::Sync,
        Self::Psync,
        Self::Pvsync,
        Self::Pvsync2,
        Self::Pvsync2Hipri,
        Self::Libaio,
        Self::IoUring,
        Self::IoUringPolled,
        Self::Vfio,
    ];

    /// Its name, on the command line and in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Psync => "psync",
            Self::Pvsync => "pvsync",
            Self::Pvsync2 => "pvsync2",
            Self::Pvsync2Hipri => "pvsync2-hipri",
            Self::Libaio => "libaio",
            Self::IoUring => "io-uring",
            Self::IoUringPolled => "io-uring-polled",
            Self::Vfio => "vfio",
        }
    }

    /// Returns true if a queue holds one operation: N concurrent ones require N threads.
    #[must_use]
    pub fn is_synchronous(self) -> bool {
        match self {
            Self::Sync | Self::Psync | Self::Pvsync | Self::Pvsync2 | Self::Pvsync2Hipri => true,
            Self::Libaio | Self::IoUring | Self::IoUringPolled | Self::Vfio => false,
        }
    }

    /// Returns true if a thread with nothing to do can sleep until a completion.
    #[must_use]
    pub fn sleeps(self) -> bool {
        matches!(self, Self::Libaio | Self::IoUring)
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Engine {
    type Err = UnknownEngine;

    fn from_str(text: &str) -> Result<Self, UnknownEngine> {
        Self::ALL
            .into_iter()
            .find(|engine| engine.name() == text)
            .ok_or_else(|| UnknownEngine(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_shown() {
        for engine in Engine::ALL {
            assert_eq!(engine.to_string().parse(), Ok(engine));
        }
        let error = "mmap".parse::<Engine>().unwrap_err().to_string();
        assert!(error.starts_with("`mmap` is no engine: there are sync, psync,"), "{error}");
    }
}
