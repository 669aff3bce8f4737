//! The commit that a program was built from, for reports that have to name it.
#![forbid(unsafe_code)]

/// Short name of the commit; followed by `, dirty` if the sources of the programs differed from it,
/// and `unknown` outside of a checkout.
pub const COMMIT: &str = env!("NVMEOF_COMMIT");

/// Version and commit, for `--version` of a program.
pub const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("NVMEOF_COMMIT"), ")");

/// Returns the commit in the output of a program's `--version`.
#[must_use]
pub fn commit_in(version: &str) -> Option<&str> {
    version.split_once("(commit ")?.1.split_once(')').map(|(commit, _)| commit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_names_the_commit() {
        assert_eq!(commit_in(&format!("nvmeof-tgt {VERSION}\n")), Some(COMMIT));
        assert_eq!(commit_in("nvmeof-tgt 0.1.0"), None);
        let (commit, dirty) = COMMIT.split_once(", ").unwrap_or((COMMIT, "dirty"));
        let is_name = commit.len() >= 12 && commit.chars().all(|c| c.is_ascii_hexdigit());
        assert!(dirty == "dirty" && (is_name || commit == "unknown"), "{COMMIT}");
    }
}
