//! Limit of open files of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit to `needed`, if the hard limit allows it.
///
/// # Errors
/// It does not; with the remedy.
pub(crate) fn allow_files(needed: u64) -> Result<(), String> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if limit.maximum.is_none_or(|most| most >= needed) {
        let raised = Rlimit { current: Some(needed), maximum: limit.maximum };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            return Ok(());
        }
    }
    let most = limit.maximum.or(limit.current).unwrap_or(0);
    Err(format!(
        "needs {needed} open files and {most} are allowed: raise the limit (`ulimit -Hn {needed}` \
         as root, LimitNOFILE= in a unit)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_is_raised_or_told() {
        assert_eq!(allow_files(8), Ok(()));
        if let Some(most) = getrlimit(Resource::Nofile).maximum {
            let error = allow_files(most + 1).unwrap_err();
            assert!(error.contains("ulimit -Hn"), "{error}");
        }
    }
}
