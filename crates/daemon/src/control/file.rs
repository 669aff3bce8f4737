//! The config file: its last known contents, and how it is written.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind as Io, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nvmeof_api::document::Document;
use nvmeof_api::{ApiError, ErrorKind};

use crate::regular;

/// Header of a file that the daemon wrote.
const HEADER: &str = "# Written by nvmeof-tgt from what it ran: comments are not kept. What was here before \
                      is in the\n# file of the same name with a `~`. configs/target.toml documents every key.\n";
/// Mode of a new file.
const NEW_MODE: u32 = 0o640;

/// The config file.
#[derive(Debug)]
pub(super) struct ConfigFile {
    path: PathBuf,
    /// Text that was last read or written.
    text: String,
    /// The document in that text.
    document: Document,
}

impl ConfigFile {
    /// Creates it for a file that was just read.
    pub(super) fn new(path: &Path, text: String, document: Document) -> Self {
        Self { path: path.to_owned(), text, document }
    }

    /// Returns the path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Records that the file was just read again.
    pub(super) fn is_now(&mut self, text: String, document: Document) {
        (self.text, self.document) = (text, document);
    }

    /// Returns true if the file contains this document.
    pub(super) fn says(&self, document: &Document) -> bool {
        self.document == *document
    }

    /// Replaces the file by a document, completely or not at all.
    ///
    /// Different previous contents are kept in a file next to it, whose path is returned.
    ///
    /// # Errors
    /// The file was edited since it was last read, and `force` is false; or it cannot be written.
    pub(super) fn save(
        &mut self,
        document: &Document,
        force: bool,
    ) -> Result<Option<PathBuf>, ApiError> {
        let shown = self.path.display().to_string();
        let failed = |error: anyhow::Error| {
            let hint = hint(&error);
            ApiError::new(ErrorKind::Conflict, format!("{error:#}")).at(&shown).hint(hint)
        };
        let is = match regular::read(&self.path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == Io::NotFound => None,
            Err(error) => {
                return Err(failed(anyhow::Error::from(error).context("cannot read the file")));
            }
        };
        if !force && is.as_ref().is_some_and(|text| *text != self.text) {
            let what = "the file has been changed since it was last read";
            let hint = "show the changes with `reload --dry-run`, apply the file with `reload`, or \
                 overwrite it with `save --force`";
            return Err(ApiError::new(ErrorKind::Conflict, what).at(shown).hint(hint));
        }
        if is.is_some() && self.says(document) && !force {
            return Ok(None);
        }
        let written = document.to_toml().map_err(anyhow::Error::from).and_then(|toml| {
            let text = format!("{HEADER}\n{toml}");
            let previous = write(&self.path, &text, is.as_deref())?;
            Ok((text, previous))
        });
        let (text, previous) = written.map_err(failed)?;
        (self.text, self.document) = (text, document.clone());
        Ok(previous)
    }
}

/// Returns the remedy for a file that cannot be written.
fn hint(error: &anyhow::Error) -> &'static str {
    let source = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    match source.map(std::io::Error::kind) {
        Some(Io::PermissionDenied) => "let the daemon's user write the file and its folder",
        Some(Io::ReadOnlyFilesystem) => {
            "mount it writable, or add it to ReadWritePaths= of the unit"
        }
        Some(Io::StorageFull | Io::QuotaExceeded) => "make room there",
        _ => "check the file and its folder; `config show` prints the running config",
    }
}

/// Replaces the text of a file; the new text reaches the medium under another name first.
///
/// The file's mode and owner stay. A file that is a mount point cannot be the target of a rename,
/// and is written in place. The previous text gets its final name only when the new text can be
/// written. A failed save therefore leaves the copy that an earlier save kept.
fn write(path: &Path, text: &str, before: Option<&str>) -> anyhow::Result<Option<PathBuf>> {
    // A symbolic link stays a link.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let target = Target { meta: std::fs::metadata(&path).ok(), path };
    let before = before.unwrap_or_default();
    let mut kept = None;
    if !before.is_empty() && before != text {
        let name = target.beside("~");
        match target.stage(&name, before) {
            Ok(new) => kept = Some(Kept { new, name }),
            // The folder is on a read-only file system, but the file itself may be a writable
            // mount.
            Err(failed) if failed.is(&[Io::ReadOnlyFilesystem]) && target.writable().is_ok() => {
                tracing::warn!(file = %name.display(), "cannot back up the previous config file");
            }
            Err(failed) => return Err(failed.of(&name)),
        }
    }
    match target.replace(&target.path, text) {
        Ok(()) => {
            let previous = kept.map(Kept::name);
            target.sync_folder()?;
            Ok(previous)
        }
        Err(failed) => {
            let written = target.write_in_place(failed, text, before, &mut kept);
            if let Some(kept) = kept.filter(|_| written.is_err()) {
                kept.forget();
            }
            written
        }
    }
}

/// Previous text of a file: on the medium, but without its final name.
#[derive(Debug)]
struct Kept {
    new: PathBuf,
    name: PathBuf,
}

impl Kept {
    /// Renames it to its final name, and returns its path.
    fn name(self) -> PathBuf {
        match std::fs::rename(&self.new, &self.name) {
            Ok(()) => self.name,
            // The copy is just as good under its temporary name.
            Err(_) => self.new,
        }
    }

    /// Removes the copy, because nothing was written.
    fn forget(self) {
        // If the removal fails, the next save removes the copy.
        let _ = std::fs::remove_file(&self.new);
    }
}

/// A file to write, with its metadata.
struct Target {
    path: PathBuf,
    meta: Option<std::fs::Metadata>,
}

/// Reason why a file could not be replaced.
#[derive(Debug)]
struct Failed {
    source: std::io::Error,
    /// The rename failed; creating the new file succeeded.
    at_rename: bool,
}

impl Failed {
    fn is(&self, kinds: &[Io]) -> bool {
        kinds.contains(&self.source.kind())
    }

    fn of(self, path: &Path) -> anyhow::Error {
        let shown = path.display();
        anyhow::Error::from(self.source).context(match self.at_rename {
            false => format!("cannot make a file beside {shown}"),
            true => format!("cannot put a new file in the place of {shown}"),
        })
    }
}

impl Target {
    /// Returns the file's path with a suffix.
    fn beside(&self, suffix: &str) -> PathBuf {
        with_suffix(&self.path, suffix)
    }

    /// Replaces `name` by a text, completely or not at all, and leaves no other file behind.
    fn replace(&self, name: &Path, text: &str) -> Result<(), Failed> {
        let new = self.stage(name, text)?;
        std::fs::rename(&new, name).map_err(|source| {
            let _ = std::fs::remove_file(&new);
            Failed { source, at_rename: true }
        })
    }

    /// Writes a text to the medium, in a file that can be renamed to `name`.
    fn stage(&self, name: &Path, text: &str) -> Result<PathBuf, Failed> {
        let new = with_suffix(name, ".new");
        match self.put(&new, text) {
            Ok(()) => Ok(new),
            Err(source) => {
                // If the removal fails, this process did not create the file.
                let _ = std::fs::remove_file(&new);
                Err(Failed { source, at_rename: false })
            }
        }
    }

    /// Writes in place a file that could not be replaced, if it is a mount point.
    ///
    /// Returns the path of the kept copy.
    fn write_in_place(
        &self,
        failed: Failed,
        text: &str,
        before: &str,
        kept: &mut Option<Kept>,
    ) -> anyhow::Result<Option<PathBuf>> {
        let is_mount = [Io::ResourceBusy, Io::CrossesDevices, Io::ReadOnlyFilesystem];
        if self.meta.is_none() || !failed.is(&is_mount) {
            return Err(failed.of(&self.path));
        }
        let (shown, why) = (self.path.display(), failed.source);
        let cannot = || format!("cannot write {shown} in place, nor replace it ({why})");
        self.writable().with_context(cannot)?;
        let previous = kept.take().map(Kept::name);
        self.overwrite(text, before).with_context(cannot)?;
        tracing::info!(file = %shown, "written in place: the file is a mount point");
        Ok(previous)
    }

    fn put(&self, name: &Path, text: &str) -> std::io::Result<()> {
        let mode = self.meta.as_ref().map_or(NEW_MODE, |meta| meta.permissions().mode() & 0o7777);
        // Left behind by an interrupted write.
        let _ = std::fs::remove_file(name);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(name)?;
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        if let Some(meta) = &self.meta {
            // Only root may change the owner. If that fails, only the owner is lost.
            let _ = std::os::unix::fs::fchown(&file, Some(meta.uid()), Some(meta.gid()));
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()
    }

    /// Returns an error if the file is missing or is not writable.
    fn writable(&self) -> std::io::Result<()> {
        OpenOptions::new().write(true).open(&self.path).map(drop)
    }

    /// Overwrites the file's contents; after a failure it tries to restore the previous text.
    fn overwrite(&self, text: &str, before: &str) -> std::io::Result<()> {
        // The file is truncated only after the new text is written. A reader therefore finds the
        // old text, the new text, or the new text followed by a rest of the old one.
        let mut file = OpenOptions::new().write(true).open(&self.path)?;
        let put = |file: &mut File, text: &str| {
            file.seek(SeekFrom::Start(0))?;
            file.write_all(text.as_bytes())?;
            file.set_len(text.len() as u64)?;
            file.sync_all()
        };
        put(&mut file, text).inspect_err(|_| {
            // The first failure is reported. The previous text is in the kept copy, too.
            let _ = put(&mut file, before);
        })
    }

    /// Syncs the folder: a new name is on the medium only when its folder is.
    fn sync_folder(&self) -> anyhow::Result<()> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))
            .and_then(|folder| folder.sync_all())
            .with_context(|| format!("cannot put {} on the medium", self.path.display()))
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(log: &str) -> Document {
        Document { format: Some(1), log: Some(log.into()), ..Document::default() }
    }

    #[test]
    fn a_save_keeps_mode_and_what_was_there_and_overwrites_no_edit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("target.toml");
        let text = "# mine\nlog = \"info\"\n";
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let mut file = ConfigFile::new(&path, text.into(), document("info"));
        // Nothing to write.
        assert_eq!(file.save(&document("info"), false).unwrap(), None);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);

        let previous = file.save(&document("warn"), false).unwrap().unwrap();
        assert_eq!(std::fs::read_to_string(&previous).unwrap(), text);
        let written = std::fs::read_to_string(&path).unwrap();
        assert_eq!(Document::from_toml(&written).unwrap(), document("warn"));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert!(file.says(&document("warn")));

        std::fs::write(&path, "log = \"error\"\n").unwrap();
        let error = file.save(&document("off"), false).unwrap_err();
        assert_eq!(error.error, ErrorKind::Conflict);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "log = \"error\"\n");
        file.save(&document("off"), true).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains("off"));
        let names = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, 2, "only the file and what it said before");
    }

    #[test]
    fn what_is_written_in_place_is_the_text_and_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("target.toml");
        let target = Target { path: path.clone(), meta: None };
        assert!(target.writable().is_err());
        std::fs::write(&path, "before").unwrap();
        target.writable().unwrap();
        for text in ["longer than before", "short", ""] {
            target.overwrite(text, "before").unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_hint_is_about_what_is_wrong() {
        let of = |kind: Io| hint(&anyhow::Error::from(std::io::Error::from(kind)).context("x"));
        assert!(of(Io::PermissionDenied).contains("daemon's user"));
        assert!(of(Io::ReadOnlyFilesystem).contains("ReadWritePaths"));
        assert!(of(Io::StorageFull).contains("make room"));
        assert!(!of(Io::ResourceBusy).contains("daemon's user"));
    }

    #[test]
    fn a_save_that_fails_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        // A rename to a folder that is not empty fails.
        let name = folder.path().join("target.toml");
        std::fs::create_dir_all(name.join("x")).unwrap();
        let target = Target { path: name.clone(), meta: None };
        let failed = target.replace(&name, "text").unwrap_err();
        assert!(failed.at_rename, "{failed:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no litter");
    }

    #[test]
    fn a_save_that_fails_keeps_what_an_earlier_one_kept_and_says_why() {
        let folder = tempfile::tempdir().unwrap();
        // The path can be neither replaced nor opened for writing, even by root.
        let path = folder.path().join("target.toml");
        std::fs::create_dir_all(path.join("x")).unwrap();
        let kept = folder.path().join("target.toml~");
        std::fs::write(&kept, "earlier").unwrap();
        write(&path, "text", Some("before")).unwrap_err();
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), "earlier");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no litter");

        // A mount point that is not writable: the error names that reason, not that it is busy.
        let target = Target { meta: std::fs::metadata(&path).ok(), path };
        let busy = Failed { source: Io::ResourceBusy.into(), at_rename: true };
        let error = target.write_in_place(busy, "text", "before", &mut None).unwrap_err();
        let source = error.downcast_ref::<std::io::Error>().unwrap();
        assert_eq!(source.kind(), Io::IsADirectory, "{error:#}");
    }

    #[test]
    fn what_was_kept_gets_its_name_or_is_told_where_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("target.toml");
        std::fs::write(&path, "first").unwrap();
        let kept = folder.path().join("target.toml~");
        assert_eq!(write(&path, "second", Some("first")).unwrap(), Some(kept.clone()));
        std::fs::remove_file(&kept).unwrap();
        std::fs::create_dir(&kept).unwrap();
        let other = write(&path, "third", Some("second")).unwrap().unwrap();
        assert_eq!(std::fs::read_to_string(other).unwrap(), "second");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "third");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("target.toml");
        std::fs::write(&path, "").unwrap();
        // Even root cannot create a file where a folder is.
        std::fs::create_dir_all(folder.path().join("target.toml.new/x")).unwrap();
        let mut file = ConfigFile::new(&path, String::new(), Document::default());
        assert!(file.save(&document("warn"), false).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    }
}
