//! Result files, rewritten after each figure, so that results survive any end of the process.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nvmeof_console::complain;
use serde::Serialize;

use crate::run::write_json;

/// Output files of results.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ResultFiles {
    /// Write the results to this file as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write a page with tables and plots to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write the plot to this file; of several plots each to its own file (x.svg: x-512.svg,
    /// x-4096.svg).
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// A result in all its formats.
#[derive(Debug)]
pub(crate) struct ResultForms<'r, R> {
    pub(crate) result: &'r R,
    pub(crate) html: String,
    /// Plots with the suffixes of their files; a single plot has the given name.
    pub(crate) svg: Vec<(String, String)>,
}

/// Writes results as they arrive.
///
/// The first failure is reported once; the writer tries again at the end.
#[derive(Debug)]
pub(crate) struct ResultsWriter {
    files: ResultFiles,
    has_failed: bool,
}

impl ResultFiles {
    /// Returns true if JSON goes to standard output, which then receives nothing but the JSON.
    pub(crate) fn is_json_on_stdout(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }

    /// Checks before the first measurement that the files can be written.
    ///
    /// # Errors
    /// The file that cannot be written, and the reason.
    pub(crate) fn open(&self) -> Result<ResultsWriter> {
        for (path, option) in self.all() {
            if path == Path::new("-") {
                anyhow::ensure!(option == "--json", "{option} - is not possible: name a file");
                continue;
            }
            let is_new = !path.exists();
            let file = fs::OpenOptions::new().create(true).append(true).open(path);
            file.with_context(|| format!("cannot write {option} {}", path.display()))?;
            if is_new {
                // The file was created as a test alone.
                let _ = fs::remove_file(path);
            }
        }
        Ok(ResultsWriter { files: self.clone(), has_failed: false })
    }

    fn all(&self) -> impl Iterator<Item = (&Path, &'static str)> {
        let all = [(&self.json, "--json"), (&self.html, "--html"), (&self.svg, "--svg")];
        all.into_iter().filter_map(|(path, option)| Some((path.as_deref()?, option)))
    }
}

impl ResultsWriter {
    /// Writes the results so far, to the files but not to standard output.
    pub(crate) fn keep<R: Serialize>(&mut self, forms: &ResultForms<'_, R>) {
        if let Err(error) = self.write(forms)
            && !self.has_failed
        {
            self.has_failed = true;
            complain!(
                "error: {error:#}; the measurement continues, and the results are written again \
                 at the end"
            );
        }
    }

    /// Writes the final results.
    ///
    /// # Errors
    /// The file that cannot be written; the caller then shows the results elsewhere.
    pub(crate) fn finish<R: Serialize>(&mut self, forms: &ResultForms<'_, R>) -> Result<()> {
        if self.files.is_json_on_stdout() {
            write_json(Path::new("-"), forms.result)?;
        }
        self.write(forms)
    }

    fn write<R: Serialize>(&self, forms: &ResultForms<'_, R>) -> Result<()> {
        let write = |option: &str, path: &Path, text: &str| {
            replace(path, text.as_bytes())
                .with_context(|| format!("cannot write {option} {}", path.display()))
        };
        if let Some(path) = self.files.json.as_deref().filter(|path| *path != Path::new("-")) {
            let mut text = serde_json::to_string_pretty(forms.result)?;
            text.push('\n');
            write("--json", path, &text)?;
        }
        if let Some(path) = &self.files.html {
            write("--html", path, &forms.html)?;
        }
        if let Some(path) = &self.files.svg {
            for (suffix, text) in &forms.svg {
                let is_single = forms.svg.len() == 1;
                let path = if is_single { path.clone() } else { with_suffix(path, suffix) };
                write("--svg", &path, text)?;
            }
        }
        Ok(())
    }
}

/// Inserts a suffix before the extension: `x-512.svg` from `x.svg`.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let text =
        |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().into_owned());
    let (stem, extension) = (text(path.file_stem()), text(path.extension()));
    let extension = extension.map_or_else(String::new, |extension| format!(".{extension}"));
    path.with_file_name(format!("{}-{suffix}{extension}", stem.unwrap_or_default()))
}

/// Replaces a file by `bytes`, atomically; a special file is written in place.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let is_special = fs::metadata(path).is_ok_and(|data| !data.is_file());
    if is_special {
        return fs::OpenOptions::new().write(true).open(path)?.write_all(bytes);
    }
    // A symbolic link stays; its target is replaced.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut new = path.clone().into_os_string();
    new.push(".new");
    let new = PathBuf::from(new);
    let written = File::create(&new)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&new, &path));
    if written.is_err() {
        // An incomplete file is useless.
        let _ = fs::remove_file(&new);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forms<R>(result: &R) -> ResultForms<'_, R> {
        ResultForms { result, html: "<html>".into(), svg: vec![("512".into(), "<svg>".into())] }
    }

    #[test]
    fn files_are_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| Some(folder.path().join(name));
        let files = ResultFiles { json: at("r.json"), html: at("r.html"), svg: at("r.svg") };
        let mut writer = files.open().unwrap();
        writer.keep(&forms(&[1, 2, 3]));
        writer.finish(&forms(&[1])).unwrap();
        let read = |path: &Option<PathBuf>| fs::read_to_string(path.as_ref().unwrap()).unwrap();
        assert_eq!(read(&files.json), "[\n  1\n]\n");
        assert_eq!((read(&files.html).as_str(), read(&files.svg).as_str()), ("<html>", "<svg>"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "nothing is left beside them");
        let mut two = forms(&[1]);
        two.svg.push(("4096".into(), "<other>".into()));
        writer.finish(&two).unwrap();
        assert_eq!(read(&at("r-512.svg")), "<svg>");
        assert_eq!(read(&at("r-4096.svg")), "<other>");
    }

    #[test]
    fn what_cannot_be_written_is_told_before_anything_is_measured() {
        let files =
            ResultFiles { html: Some("/no/such/folder/x".into()), ..ResultFiles::default() };
        let error = format!("{:#}", files.open().unwrap_err());
        assert!(
            error.starts_with("cannot write --html /no/such/folder/x: No such file"),
            "{error}"
        );
        let files = ResultFiles { svg: Some("-".into()), ..ResultFiles::default() };
        assert!(files.open().is_err());
    }

    #[test]
    fn a_full_disk_is_an_error_in_words_and_ends_nothing() {
        let files = ResultFiles { json: Some("/dev/full".into()), ..ResultFiles::default() };
        let mut writer = files.open().unwrap();
        writer.keep(&forms(&[1]));
        assert!(writer.has_failed);
        let error = format!("{:#}", writer.finish(&forms(&[1])).unwrap_err());
        assert!(error.starts_with("cannot write --json /dev/full: No space left"), "{error}");
        assert!(!fs::metadata("/dev/full").unwrap().is_file(), "the device was replaced");
    }
}
