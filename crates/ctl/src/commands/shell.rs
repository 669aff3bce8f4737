//! `nvmeofctl completion` and `nvmeofctl man`: files for packages.

use std::path::Path;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::CtlArgs;
use crate::output::print;

/// Writes the completion script of a shell to standard output.
pub(crate) fn completion(shell: Shell) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut CtlArgs::command(), "nvmeofctl", &mut text);
    print(&String::from_utf8(text)?)
}

/// Writes a man page per command into a folder, which it creates.
pub(crate) fn man(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(CtlArgs::command(), folder))
        .with_context(|| format!("cannot write man pages to {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound_and_every_command_has_a_page() {
        CtlArgs::command().debug_assert();
        let folder = tempfile::tempdir().unwrap();
        man(folder.path()).unwrap();
        for page in ["nvmeofctl.1", "nvmeofctl-device.1", "nvmeofctl-device-resize.1"] {
            let text = std::fs::read_to_string(folder.path().join(page)).unwrap();
            assert!(text.contains(".SH NAME"), "{page}");
        }
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut CtlArgs::command(), "nvmeofctl", &mut text);
            assert!(String::from_utf8(text).unwrap().contains("resize"), "{shell}");
        }
    }
}
