//! Tests of the commands, on a fake machine with in-memory drives.

mod balance;
mod bind;
mod erase;
mod list;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use nvmeof_core::nvme_driver::function::Function;
use nvmeof_fake_drive::{FakeDrive, FakeDriveConfig};
use nvmeof_sysfs_fixture::{self as fixture, Machine};
use nvmeof_wire::ascii;
use tempfile::TempDir;

use super::{Failure, Host, Output};

/// A fake machine and its drives behind `vfio-pci`.
struct Rig {
    machine: Machine,
    host: Host,
    _folder: TempDir,
}

/// Output and result of a command.
struct Ran {
    out: String,
    notes: String,
    result: Result<(), Failure>,
}

impl Rig {
    /// Creates the machine with four root complexes. A function on `vfio-pci` opens if it is in
    /// `drives`.
    fn new(drives: Vec<(&'static str, FakeDrive)>) -> Self {
        let folder = tempfile::tempdir_in(fixture::folder()).unwrap();
        let machine = Machine::measured(folder.path()).unwrap();
        let open = move |address: &str| -> Result<Arc<dyn Function>, String> {
            let found = drives.iter().find(|(known, _)| *known == address);
            found.map(|(_, fake)| fake.function()).ok_or_else(|| "a group in the way".to_owned())
        };
        let host = Host {
            system: machine.system(),
            writes: Box::new(machine.kernel()),
            open: Box::new(open),
            load: |_| {},
            pause: Box::new(|_| panic!("nobody was to wait")),
        };
        Self { machine, host, _folder: folder }
    }

    fn run(&self, command: impl FnOnce(&Host, &mut Output<'_>) -> Result<(), Failure>) -> Ran {
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let mut output = Output { out: &mut out, notes: &mut notes, terminal: true };
        let result = command(&self.host, &mut output);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { out: text(out), notes: text(notes), result }
    }

    fn bind(&self, drives: &[&str]) -> Ran {
        self.run(|host, output| super::bind::bind(host, &arguments(drives, false), output))
    }

    fn bind_within(&self, wait: u16, drives: &[&str]) -> Ran {
        let args = super::bind::Args { wait, ..arguments(drives, false) };
        self.run(|host, output| super::bind::bind(host, &args, output))
    }

    /// Makes pauses return immediately; `then` receives the number of each, from 1.
    fn count_pauses(&mut self, then: impl Fn(u32) + 'static) -> Rc<Cell<u32>> {
        let count = Rc::new(Cell::new(0));
        let counted = Rc::clone(&count);
        self.host.pause = Box::new(move |_| {
            counted.set(counted.get() + 1);
            then(counted.get());
        });
        count
    }

    fn driver(&self, address: &str) -> Option<String> {
        self.host.system.function(fixture::at(address)).unwrap().driver
    }
}

impl Ran {
    /// Returns the error message.
    #[track_caller]
    fn failure(&self) -> String {
        self.result.as_ref().unwrap_err().to_string()
    }

    #[track_caller]
    fn assert_done(&self) {
        assert!(self.result.is_ok(), "{:?}", self.result);
    }
}

fn arguments(drives: &[&str], dry_run: bool) -> super::bind::Args {
    let drives = drives.iter().map(|name| (*name).to_owned()).collect();
    super::bind::Args { drives, dry_run, wait: 0 }
}

/// Creates an in-memory drive with this serial number.
fn fake(serial: &str) -> FakeDrive {
    let mut config = FakeDriveConfig::default();
    ascii::fill(&mut config.identify.sn, serial);
    FakeDrive::new(config)
}
