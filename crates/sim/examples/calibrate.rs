//! Prints the deviation of the simulated machine from the measured rows of a platform.
//!
//! Run it as `cargo run -p nvmeof-sim --example calibrate -- --platform A`. `--platform` also
//! accepts a file; `--only A` then names the platform whose rows are compared. `--rows FILE` reads
//! other rows of the same columns, `--tests 7,10` keeps those of some tests, and
//! `--set timer-us=13,step-us=1` changes numbers of the platform.

use std::error::Error;
use std::path::{Path, PathBuf};

use nvmeof_sim::Platform;
use nvmeof_sim::calibration::{ROWS, RUN, compare, head, rows, table};

#[expect(clippy::print_stdout, reason = "a person reads it")]
fn main() -> Result<(), Box<dyn Error>> {
    let argument = |name: &str| {
        let mut all = std::env::args().skip_while(|arg| arg != name);
        all.nth(1)
    };
    let name = argument("--platform").ok_or("say --platform A, B or a file")?;
    let file = if Path::new(&name).extension().is_some() {
        PathBuf::from(&name)
    } else {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/platforms");
        folder.join(format!("{name}.toml"))
    };
    let whose = argument("--only").unwrap_or(name);
    let text = argument("--rows").map(std::fs::read_to_string).transpose()?;
    let mut rows = rows(text.as_deref().unwrap_or(ROWS))?;
    rows.retain(|row| row.platform == whose);
    if let Some(tests) = argument("--tests") {
        let tests: Result<Vec<u32>, _> = tests.split(',').map(str::parse).collect();
        let tests = tests?;
        rows.retain(|row| tests.contains(&row.test));
    }
    let mut platform = Platform::load(&file)?;
    if let Some(numbers) = argument("--set") {
        platform = platform.with(&numbers)?;
    }
    let (warm_up, time) = RUN;
    let compared = compare(&platform, &rows, warm_up, time)?;
    print!("{}{}", head(&whose, &platform), table(&compared, true));
    Ok(())
}
