//! `nvmeofctl`: controls a running `nvmeof-tgt`.

use std::process::ExitCode;

fn main() -> ExitCode {
    nvmeof_ctl::main()
}
