//! Opens and reads regular files only, so that no call blocks on a FIFO without a peer.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file for reading.
///
/// # Errors
/// The error of the system, and `InvalidInput` for any other kind of file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let no_waiting = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(no_waiting).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// Reads the text of a file.
///
/// # Errors
/// As [`open`], and `InvalidData` for text that is not UTF-8.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn what_is_no_regular_file_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for path in [fifo.as_path(), folder.path(), Path::new("/dev/null")] {
            assert_eq!(read(path).unwrap_err().kind(), ErrorKind::InvalidInput, "{path:?}");
        }
        let file = folder.path().join("file");
        assert_eq!(read(&file).unwrap_err().kind(), ErrorKind::NotFound);
        std::fs::write(&file, "text").unwrap();
        assert_eq!(read(&file).unwrap(), "text");
    }
}
