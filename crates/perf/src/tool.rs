//! Programs of this machine that change drives: hdparm, mdadm, nvme-cli and others.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

/// Failure of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolError {
    /// Exit status, -1 after a signal; `None` if it did not start.
    pub(crate) status: Option<i32>,
    pub(crate) message: String,
}

/// Runs a program with arguments; returns its output.
pub(crate) type RunTool<'a> = &'a dyn Fn(&str, &[&str]) -> Result<String, ToolError>;

/// Runs a program of this machine; returns its output.
///
/// It has a separate process group: Ctrl-C must not end it while it changes a drive.
///
/// # Errors
/// It did not start or failed; with the last line of its error output.
pub(crate) fn run_tool(program: &str, arguments: &[&str]) -> Result<String, ToolError> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).process_group(0);
    let output = command.output().map_err(|error| ToolError {
        status: None,
        message: format!("{program} does not start ({error}): install its package"),
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let message = format!(
        "`{program} {}` ended with {}: {}",
        arguments.join(" "),
        output.status,
        last_line(&errors)
    );
    Err(ToolError { status: output.status.code().or(Some(-1)), message })
}

/// The last line of a program's output that is not empty.
pub(crate) fn last_line(text: &str) -> &str {
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message").trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_returns_its_output_or_its_last_error() {
        assert_eq!(run_tool("echo", &["a", "b"]), Ok("a b\n".to_owned()));
        let error = run_tool("sh", &["-c", "echo first >&2; echo last >&2; exit 9"]).unwrap_err();
        assert_eq!(error.status, Some(9));
        assert!(error.message.ends_with("exit status: 9: last"), "{}", error.message);
        let error = run_tool("sh", &["-c", "kill -9 $$"]).unwrap_err();
        assert_eq!(error.status, Some(-1));
        assert!(error.message.ends_with("no message"), "{}", error.message);
        let error = run_tool("/no/such/program", &[]).unwrap_err();
        assert!(error.status.is_none() && error.message.contains("install"), "{}", error.message);
    }

    /// Ctrl-C on a terminal reaches the process group of this program.
    #[test]
    fn a_program_has_a_separate_process_group() {
        let fields = run_tool("sh", &["-c", "cat /proc/$$/stat"]).unwrap();
        let fields: Vec<&str> = fields.split(' ').collect();
        assert_eq!(fields[0], fields[4], "process and group");
    }
}
