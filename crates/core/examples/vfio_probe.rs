//! Probe of the QEMU boots (`cargo xtask vm`): checks VFIO on NVMe controllers.
//!
//! It checks registers, memory, interrupts, reset and removal of functions that are bound to
//! `vfio-pci`. It writes nothing to a drive.
//!
//! Usage: `vfio_probe check ADDRESS...`, `vfio_probe open ADDRESS` (reports the reason of a
//! failure), `vfio_probe hold ADDRESS` (until the system requests the function).
//!
//! Each check prints a line `ok ...` or `FAIL ...`; the exit code is 1 if one failed.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nvmeof_core::nvme_driver::function::{DmaSpace, Function, Iova, Registers};
use nvmeof_core::vfio;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

type Check = Result<String, String>;

const PAGE: usize = 4096;
/// Registers (Base 2.0, section 3.1.3).
const CAP: u32 = 0x00;
const VS: u32 = 0x08;
const CC: u32 = 0x14;
const CSTS: u32 = 0x1c;
const AQA: u32 = 0x24;
const ASQ: u32 = 0x28;
const ACQ: u32 = 0x30;
const DOORBELLS: u32 = 0x1000;
/// Entries of the admin queues.
const ENTRIES: u16 = 8;

#[expect(clippy::print_stderr, clippy::print_stdout, reason = "a person reads it")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["check", addresses @ ..] if !addresses.is_empty() => check(addresses),
        ["open", address] => match vfio::open(address) {
            Ok(function) => {
                println!("opened {}", function.address());
                ExitCode::SUCCESS
            }
            Err(error) => {
                println!("{error}");
                ExitCode::FAILURE
            }
        },
        ["hold", address] => hold(address),
        _ => {
            eprintln!("vfio_probe check ADDRESS... | open ADDRESS | hold ADDRESS");
            ExitCode::from(2)
        }
    }
}

/// Runs every check on every function, all open at the same time.
fn check(addresses: &[&str]) -> ExitCode {
    let mut checks = Checks::default();
    let mut functions = Vec::new();
    for address in addresses {
        match vfio::open(address) {
            Ok(function) => functions.push(function),
            Err(error) => checks.note(address, "open", Err(error.to_string())),
        }
    }
    for function in &functions {
        let at = function.address().to_owned();
        checks.note(&at, "registers", registers(function.as_ref()));
        checks.note(&at, "registers end", registers_end(function.as_ref()));
        checks.note(&at, "reset", reset(function.as_ref()));
        checks.note(&at, "taken twice", twice(function.as_ref()));
        checks.note(&at, "identify by DMA and MSI-X", identify(function.as_ref()));
        checks.note(&at, "no DMA after a reset", silent_after_reset(function.as_ref()));
        checks.note(&at, "vectors replaced", vectors(function.as_ref()));
        checks.note(&at, "removal not wanted", not_removed(function.as_ref()));
    }
    if let [one, other, ..] = functions.as_slice() {
        checks.note(one.address(), "shares its mappings", shared(one.as_ref(), other.as_ref()));
    }
    if let Some(one) = functions.first() {
        checks.note(one.address(), "mappings", mappings(one.dma().as_ref()));
        checks.note(one.address(), "many mappings", many(one.dma().as_ref()));
    }
    let registers: Vec<Arc<dyn Registers>> = functions.iter().map(|f| f.registers()).collect();
    let space = functions.first().map(|function| function.dma());
    functions.clear();
    for (address, registers) in addresses.iter().zip(registers) {
        let value = registers.read32(VS);
        let ones = value == u32::MAX;
        let result = if ones { Ok(String::new()) } else { Err(format!("read {value:#x}")) };
        checks.note(address, "registers let go", result);
        checks.note(address, "opened again", again(address));
    }
    if let Some(space) = space {
        checks.note("all", "mapping without a function", unattached(space.as_ref()));
    }
    checks.end()
}

/// Results so far.
#[derive(Debug, Default)]
struct Checks {
    passed: u32,
    failed: u32,
}

impl Checks {
    #[expect(clippy::print_stdout, reason = "a person reads it")]
    fn note(&mut self, address: &str, name: &str, result: Check) {
        match result {
            Ok(text) => {
                println!("ok   {address} {name} {text}");
                self.passed += 1;
            }
            Err(text) => {
                println!("FAIL {address} {name}: {text}");
                self.failed += 1;
            }
        }
    }

    #[expect(clippy::print_stdout, reason = "a person reads it")]
    fn end(&self) -> ExitCode {
        println!("{} checks passed, {} failed", self.passed, self.failed);
        if self.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn registers(function: &dyn Function) -> Check {
    let registers = function.registers();
    let (cap, version) = (registers.read64(CAP), registers.read32(VS));
    let halves = u64::from(registers.read32(CAP)) | u64::from(registers.read32(CAP + 4)) << 32;
    expect(cap == halves, || format!("CAP is {cap:#x} at once and {halves:#x} by halves"))?;
    expect(cap != 0 && cap != u64::MAX, || format!("CAP is {cap:#x}"))?;
    expect((0x1_0000..0x10_0000).contains(&version), || format!("VS is {version:#x}"))?;
    Ok(format!("CAP {cap:#018x} VS {version:#x}"))
}

fn registers_end(function: &dyn Function) -> Check {
    let registers = function.registers();
    let len = u32::try_from(function.registers_len()).map_err(|error| error.to_string())?;
    for offset in [len, len - 2, u32::MAX, 2] {
        let value = registers.read32(offset);
        expect(value == u32::MAX, || format!("{offset:#x} reads as {value:#x}"))?;
        registers.write32(offset, 0);
    }
    Ok(format!("{len:#x} bytes"))
}

/// Checks that a reset disables an enabled controller.
fn reset(function: &dyn Function) -> Check {
    let registers = function.registers();
    function.reset().map_err(|error| error.to_string())?;
    let queues = Admin::enable(function)?;
    function.reset().map_err(|error| error.to_string())?;
    let (cc, csts) = (registers.read32(CC), registers.read32(CSTS));
    expect(cc & 1 == 0 && csts & 1 == 0, || format!("CC {cc:#x}, CSTS {csts:#x}"))?;
    drop(queues);
    Ok(String::new())
}

fn twice(function: &dyn Function) -> Check {
    match vfio::open(function.address()) {
        Ok(_) => Err("a function was handed out twice".to_owned()),
        Err(error) => Ok(format!("({error})")),
    }
}

/// Checks that the controller reads a command, writes 4 KiB and raises an interrupt.
fn identify(function: &dyn Function) -> Check {
    function.reset().map_err(|error| error.to_string())?;
    let signals = function.interrupts(1).map_err(|error| error.to_string())?;
    let [signal] = signals.as_slice() else { return Err(format!("{} vectors", signals.len())) };
    let mut queues = Admin::enable(function)?;
    let data = Memory::new(&function.dma(), PAGE)?;
    queues.identify(&data);
    expect(readable(signal.as_fd(), Duration::from_secs(10)), || "no interrupt".to_owned())?;
    let status = queues.status().ok_or("no completion")?;
    expect(status == 0, || format!("status {status:#x}"))?;
    let text = |from: usize, len: usize| {
        String::from_utf8_lossy(&data.bytes()[from..from + len]).trim().to_owned()
    };
    let (serial, model) = (text(4, 20), text(24, 40));
    expect(!serial.is_empty() && !model.is_empty(), || "no serial or model".to_owned())?;
    function.reset().map_err(|error| error.to_string())?;
    Ok(format!("(serial `{serial}`, model `{model}`)"))
}

/// Checks that a command given to a controller after a reset reaches no memory.
fn silent_after_reset(function: &dyn Function) -> Check {
    let mut queues = Admin::enable(function)?;
    let data = Memory::new(&function.dma(), PAGE)?;
    function.reset().map_err(|error| error.to_string())?;
    queues.identify(&data);
    thread::sleep(Duration::from_millis(200));
    expect(queues.status().is_none(), || "a completion came".to_owned())?;
    expect(data.bytes().iter().all(|byte| *byte == 0), || "data came".to_owned())?;
    Ok(String::new())
}

fn vectors(function: &dyn Function) -> Check {
    let mut counts = Vec::new();
    for wanted in [3, 1, 0, u16::MAX, 2] {
        let signals = function.interrupts(wanted).map_err(|error| format!("{wanted}: {error}"))?;
        expect(signals.len() <= usize::from(wanted), || format!("{} vectors", signals.len()))?;
        for signal in &signals {
            expect(!readable(signal.as_fd(), Duration::ZERO), || "it was raised".to_owned())?;
        }
        counts.push(signals.len());
    }
    expect(counts[0] == 3 && counts[4] == 2, || format!("{counts:?}"))?;
    Ok(format!("(up to {})", counts[3]))
}

fn not_removed(function: &dyn Function) -> Check {
    let signal = function.removal().ok_or("the kernel cannot say when it wants it back")?;
    expect(!readable(signal, Duration::ZERO), || "it is wanted back".to_owned())?;
    Ok(String::new())
}

/// Checks that both functions map memory at the same address, so that they share one address space.
fn shared(one: &dyn Function, other: &dyn Function) -> Check {
    let memory = Memory::new(&one.dma(), 4 * PAGE)?;
    let other = other.dma();
    let iova = memory.map_again(&other)?;
    expect(iova == memory.iova, || format!("{iova:?} is not {:?}", memory.iova))?;
    other.unmap(iova, memory.len).map_err(|error| error.to_string())?;
    Ok(format!("(at {:#x})", iova.0))
}

fn mappings(space: &dyn DmaSpace) -> Check {
    let layout = Layout::from_size_align(4 << 20, 2 << 20).map_err(|error| error.to_string())?;
    // SAFETY: the layout has a size.
    let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or("no memory")?;
    let len = 2 << 20;
    // SAFETY: nothing other uses this memory, and it is freed only after it was unmapped.
    let first = unsafe { space.map(base, len) }.map_err(|error| error.to_string())?;
    // SAFETY: as above.
    let again = unsafe { space.map(base, len) }.map_err(|error| error.to_string())?;
    expect(first == again, || format!("{first:?} and {again:?} for the same memory"))?;
    expect(first.0 % (2 << 20) == 0, || format!("{first:?} is no multiple of a large page"))?;
    expect(first.0 != base.as_ptr().addr() as u64, || "the address is the process's".to_owned())?;
    expect(first.0 >> 39 == 0, || format!("{first:?} is beyond what the IOMMU maps"))?;
    let wrong = space.unmap(first, PAGE).map_err(|error| error.kind());
    expect(wrong == Err(ErrorKind::NotFound), || "another length was unmapped".to_owned())?;
    let wrong = space.unmap(Iova(first.0 + PAGE as u64), PAGE).map_err(|error| error.kind());
    expect(wrong == Err(ErrorKind::NotFound), || "a part was unmapped".to_owned())?;
    for _ in 0..2 {
        space.unmap(first, len).map_err(|error| error.to_string())?;
    }
    let wrong = space.unmap(first, len).map_err(|error| error.kind());
    expect(wrong == Err(ErrorKind::NotFound), || "it was unmapped three times".to_owned())?;
    // SAFETY: an address that is no multiple of a page is rejected before any access.
    let askew = unsafe { space.map(base.add(1), PAGE) }.map_err(|error| error.kind());
    expect(askew == Err(ErrorKind::InvalidInput), || "memory askew was mapped".to_owned())?;
    // SAFETY: allocated above by this layout, and no longer mapped.
    unsafe { dealloc(base.as_ptr(), layout) };
    Ok(format!("(at {:#x})", first.0))
}

/// Maps as many pages as the memory has, checks that all addresses differ, and unmaps all.
fn many(space: &dyn DmaSpace) -> Check {
    let count = 600;
    let layout = Layout::from_size_align(count * PAGE, PAGE).map_err(|error| error.to_string())?;
    // SAFETY: the layout has a size.
    let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or("no memory")?;
    let mut iovas = Vec::new();
    for page in 0..count {
        // SAFETY: a page of the memory above, which is unmapped before it is freed.
        let mapped = unsafe { space.map(base.add(page * PAGE), PAGE) };
        iovas.push(mapped.map_err(|error| format!("page {page}: {error}"))?);
    }
    let mut unique = iovas.clone();
    unique.sort();
    unique.dedup();
    expect(unique.len() == count, || "two pages at one address".to_owned())?;
    for iova in iovas {
        space.unmap(iova, PAGE).map_err(|error| error.to_string())?;
    }
    // SAFETY: allocated above by this layout, and no longer mapped.
    unsafe { dealloc(base.as_ptr(), layout) };
    Ok(format!("({count})"))
}

fn again(address: &str) -> Check {
    let function = vfio::open(address).map_err(|error| error.to_string())?;
    registers(function.as_ref())
}

/// Checks that a space without functions maps nothing, and has nothing left to unmap.
fn unattached(space: &dyn DmaSpace) -> Check {
    let layout = Layout::from_size_align(PAGE, PAGE).map_err(|error| error.to_string())?;
    // SAFETY: the layout has a size.
    let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or("no memory")?;
    // SAFETY: nothing other uses this memory; it is not freed if it was mapped unexpectedly.
    let mapped = unsafe { space.map(base, PAGE) };
    expect(mapped.is_err(), || "memory was mapped for nobody".to_owned())?;
    // SAFETY: allocated above by this layout, and not mapped.
    unsafe { dealloc(base.as_ptr(), layout) };
    space.unmap(Iova(2 << 20), PAGE).map_err(|error| error.to_string())?;
    Ok(String::new())
}

/// Holds a function until the system requests it.
#[expect(clippy::print_stdout, reason = "a person reads it")]
fn hold(address: &str) -> ExitCode {
    let function = match vfio::open(address) {
        Ok(function) => function,
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!("holding {address}");
    let Some(signal) = function.removal() else {
        println!("nothing says when it is wanted back");
        return ExitCode::FAILURE;
    };
    let wanted = readable(signal, Duration::from_secs(120));
    let registers = function.registers();
    drop(function);
    println!("{} {:#x}", if wanted { "wanted back" } else { "nobody asked" }, registers.read32(VS));
    // Stands for a driver that still closes its queues: the remains of this function do not keep
    // the drive in use.
    thread::sleep(Duration::from_secs(8));
    if wanted { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Pages that a function's device reaches.
struct Memory {
    base: NonNull<u8>,
    len: usize,
    iova: Iova,
    space: Arc<dyn DmaSpace>,
}

impl Memory {
    fn new(space: &Arc<dyn DmaSpace>, len: usize) -> Result<Self, String> {
        let layout = Layout::from_size_align(len, PAGE).map_err(|error| error.to_string())?;
        // SAFETY: the layout has a size.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or("no memory")?;
        // SAFETY: freed only after it was unmapped, and read and written by volatile accesses
        // alone.
        let iova = unsafe { space.map(base, len) }.map_err(|error| error.to_string())?;
        Ok(Self { base, len, iova, space: Arc::clone(space) })
    }

    fn map_again(&self, space: &Arc<dyn DmaSpace>) -> Result<Iova, String> {
        // SAFETY: as in `new`; the caller unmaps it before this value is dropped.
        unsafe { space.map(self.base, self.len) }.map_err(|error| error.to_string())
    }

    fn put32(&self, at: usize, value: u32) {
        assert!(at + 4 <= self.len && at.is_multiple_of(4));
        // SAFETY: inside of this memory (asserted), and aligned.
        unsafe { self.base.as_ptr().add(at).cast::<u32>().write_volatile(value.to_le()) };
    }

    fn get16(&self, at: usize) -> u16 {
        assert!(at + 2 <= self.len && at.is_multiple_of(2));
        // SAFETY: inside of this memory (asserted), and aligned.
        u16::from_le(unsafe { self.base.as_ptr().add(at).cast::<u16>().read_volatile() })
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: each offset is inside of this memory.
        (0..self.len).map(|at| unsafe { self.base.as_ptr().add(at).read_volatile() }).collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Ok(layout) = Layout::from_size_align(self.len, PAGE) else { return };
        if self.space.unmap(self.iova, self.len).is_ok() {
            // SAFETY: allocated by this layout, and the device can no longer reach it.
            unsafe { dealloc(self.base.as_ptr(), layout) };
        }
    }
}

/// The admin queues of a controller, enabled without a driver.
struct Admin {
    registers: Arc<dyn Registers>,
    submission: Memory,
    completion: Memory,
}

impl Admin {
    fn enable(function: &dyn Function) -> Result<Self, String> {
        let registers = function.registers();
        let submission = Memory::new(&function.dma(), PAGE)?;
        let completion = Memory::new(&function.dma(), PAGE)?;
        function.set_bus_master(true).map_err(|error| error.to_string())?;
        registers.write32(AQA, u32::from(ENTRIES - 1) << 16 | u32::from(ENTRIES - 1));
        registers.write64(ASQ, submission.iova.0);
        registers.write64(ACQ, completion.iova.0);
        // Entries of 64 and 16 bytes, pages of 4 KiB, enabled.
        registers.write32(CC, 6 << 16 | 4 << 20 | 1);
        let deadline = Instant::now() + Duration::from_secs(10);
        while registers.read32(CSTS) & 1 == 0 {
            expect(Instant::now() < deadline, || {
                "the controller does not become ready".to_owned()
            })?;
            thread::sleep(Duration::from_millis(1));
        }
        Ok(Self { registers, submission, completion })
    }

    /// Submits Identify Controller as the first command.
    fn identify(&mut self, data: &Memory) {
        let [low, high] = [data.iova.0 & 0xffff_ffff, data.iova.0 >> 32];
        self.submission.put32(0, 0x06);
        self.submission.put32(24, u32::try_from(low).unwrap_or(0));
        self.submission.put32(28, u32::try_from(high).unwrap_or(0));
        self.submission.put32(40, 1);
        self.registers.write32(DOORBELLS, 1);
    }

    /// Returns the status of the first completion; `None` while its phase is the old one.
    fn status(&self) -> Option<u16> {
        let word = self.completion.get16(14);
        (word & 1 == 1).then_some(word >> 1)
    }
}

fn readable(signal: BorrowedFd<'_>, wait: Duration) -> bool {
    let timeout = Timespec { tv_sec: wait.as_secs().cast_signed(), tv_nsec: 0 };
    let mut fds = [PollFd::new(&signal, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready == 1)
}

fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}
