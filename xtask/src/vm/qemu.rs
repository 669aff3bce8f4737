//! One boot of the machine: the QEMU command line, the serial log, the time limit, the verdict.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nvmeof_console::{say, show};
use signal_hook::consts::signal;

use super::drives::DriveBay;

/// QEMU's exit code when the guest wrote 0 to the debug port: the only code of success.
///
/// Code 0 means that the guest panicked or powered itself off.
const SUCCESS: i32 = 1;
/// Code of a guest that did not reach its script's first part.
///
/// The usual cause is an emulated processor that received no more interrupts.
const NOT_UP: u8 = 126;
/// Code of a guest whose kernel waits for calls that no task is in (`init.sh`).
const WAITS_FOR_NOBODY: u8 = 119;
/// Time that a guest may live beyond its own limit.
///
/// By then it should have ended itself, with its state in the log.
const GRACE: Duration = Duration::from_secs(10);

/// Execution of guest instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accel {
    /// Plain emulation: works everywhere.
    Tcg,
    /// Hardware virtualization, on hosts that really have it.
    Kvm,
    /// Emulation of a single CPU, on which an instruction takes `1 << shift` nanoseconds of the
    /// guest's time.
    ///
    /// A measurement therefore counts instructions, however busy this machine is. With more CPUs,
    /// QEMU 7.2 rarely completes Linux's boot.
    Counted {
        /// 0 to 10.
        shift: u8,
    },
}

impl Accel {
    /// Returns the name of its clock in scripts.
    pub(crate) fn clock(self) -> &'static str {
        match self {
            Self::Tcg | Self::Kvm => "running",
            Self::Counted { .. } => "counted",
        }
    }

    fn cpus(self) -> &'static str {
        match self {
            Self::Tcg | Self::Kvm => "2",
            Self::Counted { .. } => "1",
        }
    }

    /// Returns the factor between the guest's own time limit and its limit in real time.
    fn patience(self) -> u32 {
        match self {
            Self::Tcg | Self::Kvm => 1,
            Self::Counted { .. } => 8,
        }
    }
}

/// Parameters of one boot.
#[derive(Debug)]
pub(crate) struct VmMachine<'a> {
    pub(crate) vmlinux: &'a Path,
    pub(crate) initramfs: &'a Path,
    pub(crate) modules: &'a Path,
    pub(crate) shared_folder: &'a Path,
    /// Network to a second guest that runs at the same time.
    pub(crate) link: Option<GuestLink>,
    pub(crate) disks: &'a [PathBuf],
    /// A disk with a Debian, which the guest boots with systemd, more than once if it restarts.
    pub(crate) root: Option<&'a Path>,
    /// Drives behind an IOMMU.
    pub(crate) bay: &'a DriveBay,
    pub(crate) log: &'a Path,
    pub(crate) accel: Accel,
    pub(crate) limit: Duration,
    pub(crate) echo: bool,
}

/// One end of a link between two guests.
///
/// The link is a network, whose frames travel as datagrams between two sockets, and a common
/// folder, in which each guest sees the other's progress.
#[derive(Debug, Clone)]
pub(crate) struct GuestLink {
    number: u8,
    own_socket: PathBuf,
    peer_socket: PathBuf,
    meeting: PathBuf,
}

/// Result of a boot.
#[derive(Debug)]
pub(crate) struct BootEnding {
    pub(crate) took: Duration,
    pub(crate) end: BootEnd,
}

/// The guest's state, from QEMU's exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BootEnd {
    /// The guest's script succeeded.
    Success,
    /// The guest did not come up: nothing was tested.
    NotUp,
    /// The guest's kernel waits for calls that no task is in.
    WaitsForNobody,
    /// The guest reported this code.
    Failure(u8),
    /// The guest panicked or switched itself off without a report.
    NoReport,
    /// QEMU itself failed, or was killed.
    Broken(ExitStatus),
    /// xtask killed it at the limit.
    Limit,
}

impl VmMachine<'_> {
    /// Boots the machine and waits for its end, at most for the limit and the grace period.
    pub(crate) fn boot(&self) -> Result<BootEnding> {
        let started = Instant::now();
        let mut command = self.command();
        let mut child = command.spawn().context("cannot start qemu-system-x86_64")?;
        let stdout = child.stdout.take().context("no pipe from QEMU")?;
        let log = File::create(self.log)
            .with_context(|| format!("cannot write {}", self.log.display()))?;
        let echo = self.echo;
        let reader = thread::spawn(move || record(stdout, log, echo));
        let limit = self.limit * self.accel.patience();
        let done = AtomicBool::new(false);
        let status = thread::scope(|scope| {
            if !self.bay.is_empty() {
                scope.spawn(|| {
                    if let Err(error) = self.bay.serve(self.shared_folder, &done) {
                        // A guest that sent a request then waits in vain, and fails with the event
                        // it waited for.
                        say!("the drives are served no longer: {error:#}");
                    }
                });
            }
            let status = wait_until(&mut child, started + limit + GRACE);
            done.store(true, Ordering::Release);
            status
        })?;
        let _ = reader.join();
        let end = status.map_or(BootEnd::Limit, BootEnd::of);
        Ok(BootEnding { took: started.elapsed(), end })
    }

    fn command(&self) -> Command {
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.stdin(Stdio::null()).stdout(Stdio::piped());
        qemu.args(["-nographic", "-nodefaults", "-serial", "stdio"]);
        if self.root.is_none() {
            qemu.arg("-no-reboot");
        }
        // The emulated IOMMU remaps interrupts only where KVM leaves the I/O APIC to QEMU.
        let split = self.accel == Accel::Kvm && !self.bay.is_empty();
        let irqchip = if split { ",kernel-irqchip=split" } else { "" };
        qemu.arg("-machine");
        qemu.arg(format!("q35,hpet=off,vmport=off,smm=off,sata=off,usb=off{irqchip}"));
        match self.accel {
            Accel::Tcg => qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max"]),
            Accel::Kvm => qemu.args(["-accel", "kvm", "-cpu", "host"]),
            Accel::Counted { shift } => qemu
                .args(["-accel", "tcg,thread=single", "-cpu", "max"])
                .args(["-icount", &format!("shift={shift},sleep=on")]),
        };
        qemu.args(["-m", "1G", "-smp", self.accel.cpus()]);
        qemu.args(["-device", "isa-debug-exit,iobase=0x501,iosize=1"]);
        qemu.arg("-kernel").arg(self.vmlinux).arg("-initrd").arg(self.initramfs);
        qemu.arg("-append").arg(self.cmdline());
        // The host's files read-only: its programs just run in the guest.
        shared_folder(&mut qemu, "host", Path::new("/"), true);
        shared_folder(&mut qemu, "modules", self.modules, true);
        shared_folder(&mut qemu, "share", self.shared_folder, false);
        if let Some(link) = &self.link {
            link.plug(&mut qemu);
        }
        self.bay.plug(&mut qemu);
        // The root last: the other disks keep their usual names.
        let root = self.root.map(Path::to_path_buf);
        for (index, disk) in self.disks.iter().chain(&root).enumerate() {
            let file = disk.display();
            qemu.arg("-drive");
            qemu.arg(format!("file={file},if=none,id=d{index},format=raw,cache=unsafe"));
            qemu.arg("-device").arg(format!("virtio-blk-pci,drive=d{index},serial=disk{index}"));
        }
        qemu
    }

    /// Returns the kernel command line.
    ///
    /// `hardened_usercopy=off`: Linux 6.1's NVMe/TCP host joins physically adjacent pages of a
    /// large write into one fragment. Over loopback the check then mistakes the receiver's copy of
    /// it for an overrun and kills the kernel, with any target.
    fn cmdline(&self) -> String {
        let root = match (self.root, self.disks.len()) {
            (None, _) => String::new(),
            (Some(_), before) => {
                let letter = char::from(b'a' + u8::try_from(before).unwrap_or(0));
                format!("nvmeof.root=/dev/vd{letter} systemd.show_status=0 ")
            }
        };
        format!(
            "console=ttyS0 quiet panic=-1 oops=panic mitigations=off tsc=reliable no_timer_check \
             random.trust_cpu=on i8042.noaux i8042.nokbd 8250.nr_uarts=1 hardened_usercopy=off \
             {root}{}nvmeof.limit={}",
            if self.bay.is_empty() { "" } else { "intel_iommu=on " },
            self.limit.as_secs()
        )
    }
}

impl GuestLink {
    /// Returns both ends, by the folder and the paths of their sockets.
    pub(crate) fn pair(meeting: PathBuf, [one, other]: [PathBuf; 2]) -> [Self; 2] {
        let first = Self {
            number: 1,
            own_socket: one.clone(),
            peer_socket: other.clone(),
            meeting: meeting.clone(),
        };
        [first, Self { number: 2, own_socket: other, peer_socket: one, meeting }]
    }

    /// Adds the end to a machine.
    ///
    /// The sockets have paths and are not UDP: the writer waits for a slow reader. UDP would drop
    /// frames, and soft-RoCE rarely recovers from a burst of losses.
    fn plug(&self, qemu: &mut Command) {
        shared_folder(qemu, "meeting", &self.meeting, false);
        let (own, peer) = (self.own_socket.display(), self.peer_socket.display());
        qemu.arg("-netdev").arg(format!(
            "dgram,id=cable,local.type=unix,local.path={own},remote.type=unix,remote.path={peer}"
        ));
        let mac = format!("52:54:00:00:01:{:02x}", self.number);
        // No boot ROM: the firmware would first search for a system on the other guest.
        qemu.arg("-device")
            .arg(format!("virtio-net-pci,netdev=cable,mac={mac},host_mtu=9000,romfile="));
    }
}

impl BootEnd {
    /// Returns whether the machine failed, not the software under test.
    ///
    /// Either the guest did not come up, its kernel waits without a task, or QEMU itself crashed. A
    /// killed QEMU does not count: if memory ran out, it does so again. Nor does a QEMU that exited
    /// with an error: a driver can cause that in an emulated drive.
    pub(crate) fn is_of_the_machine(self) -> bool {
        const CRASHES: [i32; 4] = [signal::SIGSEGV, signal::SIGBUS, signal::SIGILL, signal::SIGFPE];
        match self {
            Self::NotUp | Self::WaitsForNobody => true,
            Self::Broken(status) => status.signal().is_some_and(|signal| CRASHES.contains(&signal)),
            Self::Success | Self::Failure(_) | Self::NoReport | Self::Limit => false,
        }
    }

    fn of(status: ExitStatus) -> Self {
        match status.code() {
            Some(SUCCESS) => Self::Success,
            Some(0) => Self::NoReport,
            // The device turns the guest's byte `c` into exit code `(c << 1) | 1`.
            Some(code) if code & 1 == 1 && code > 1 => match u8::try_from(code >> 1) {
                Ok(NOT_UP) => Self::NotUp,
                Ok(WAITS_FOR_NOBODY) => Self::WaitsForNobody,
                Ok(code) => Self::Failure(code),
                Err(_) => Self::Broken(status),
            },
            _ => Self::Broken(status),
        }
    }
}

/// Adds a folder of this machine that the guest mounts by 9p under `tag`.
fn shared_folder(qemu: &mut Command, tag: &str, path: &Path, readonly: bool) {
    let mode = if readonly { ",readonly=on" } else { "" };
    let path = path.display();
    qemu.arg("-fsdev")
        .arg(format!("local,id={tag},path={path},security_model=none,multidevs=remap{mode}"));
    qemu.arg("-device").arg(format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"));
}

/// Copies the serial line into the log until QEMU closes it.
fn record(stdout: ChildStdout, mut log: File, echo: bool) {
    let mut reader = BufReader::new(stdout);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        line.retain(|byte| *byte != b'\r');
        // A full disk shows as a log without its parts, and that is a failure of the case.
        let _ = log.write_all(&line);
        if echo {
            show(String::from_utf8_lossy(&line));
        }
        line.clear();
    }
}

/// Waits for a child until `deadline`; then kills it, by its ID alone, and returns `None`.
fn wait_until(child: &mut Child, deadline: Instant) -> Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_is_success() {
        let exit = |code: i32| BootEnd::of(ExitStatus::from_raw(code << 8));
        assert_eq!(exit(1), BootEnd::Success);
        assert_eq!(exit(0), BootEnd::NoReport);
        assert_eq!(exit(3), BootEnd::Failure(1));
        assert_eq!(exit(253), BootEnd::NotUp);
        assert_eq!(exit(239), BootEnd::WaitsForNobody);
        assert_eq!(exit(255), BootEnd::Failure(127));
        assert!(matches!(exit(2), BootEnd::Broken(_)));
        assert!(matches!(BootEnd::of(ExitStatus::from_raw(9)), BootEnd::Broken(_)));
    }

    #[test]
    fn a_crash_of_qemu_says_nothing_of_what_it_runs() {
        let by_signal = |signal: i32| BootEnd::of(ExitStatus::from_raw(signal)).is_of_the_machine();
        assert!(by_signal(signal::SIGSEGV));
        assert!(!by_signal(signal::SIGABRT));
        assert!(!by_signal(signal::SIGKILL));
        assert!(!by_signal(signal::SIGTERM));
        let by_code = |code: i32| BootEnd::of(ExitStatus::from_raw(code << 8)).is_of_the_machine();
        assert!(![0, 1, 2, 3].into_iter().any(by_code));
    }

    #[test]
    fn a_guest_that_is_not_up_or_waits_for_nobody_says_nothing_of_what_it_runs() {
        let by_code = |code: i32| BootEnd::of(ExitStatus::from_raw(code << 8)).is_of_the_machine();
        assert!(by_code(253) && by_code(239));
        assert!(!by_code(249));
    }

    #[test]
    fn a_child_that_outlives_the_limit_is_killed() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        assert!(wait_until(&mut child, Instant::now()).expect("wait").is_none());
    }
}
