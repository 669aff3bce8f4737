//! A simulated machine in a folder, read like a real one, for tests: its sysfs, procfs and device
//! nodes, and a kernel that binds functions to drivers.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use nvmeof_core::pci::{Address, NVME_DRIVER, NodeId, NodeKind, SysfsWriter, System, VFIO_DRIVER};

/// Bytes of each drive's namespace, as reported in sysfs.
pub const DRIVE_BYTES: u64 = 3_840_755_982_336;
/// Bytes of a device node, which is a regular file here.
const NODE_BYTES: u64 = 1 << 20;
const GEN4: &str = "16.0 GT/s PCIe";

/// The machine.
#[derive(Debug)]
pub struct Machine {
    root: PathBuf,
    controllers: u32,
    groups: u32,
}

/// Simulated kernel: executes steps and records them.
#[derive(Debug)]
pub struct Kernel {
    system: System,
    /// Writes so far, as `text > file below sys`.
    pub record: Mutex<Vec<String>>,
    /// Refuses writes to files whose name ends with this.
    pub refuses: Option<&'static str>,
    /// Driver that accepts no function.
    pub deaf: Option<&'static str>,
}

impl Machine {
    /// Creates an empty machine in an empty folder.
    ///
    /// # Errors
    /// The folder is not writable.
    pub fn new(root: &Path) -> io::Result<Self> {
        let machine = Self { root: root.to_owned(), controllers: 0, groups: 0 };
        for folder in [
            "sys/bus/pci/devices",
            "sys/bus/pci/slots",
            "sys/bus/pci/drivers/nvme",
            "sys/bus/pci/drivers/vfio-pci",
            "sys/class/block",
            "proc/self/ns",
            "dev",
        ] {
            fs::create_dir_all(root.join(folder))?;
        }
        machine.write("proc/self/mountinfo", "1 1 0:1 / /proc rw - proc proc rw\n")?;
        symlink("mnt:[4026531841]", root.join("proc/self/ns/mnt"))?;
        machine.write("proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n")?;
        Ok(machine)
    }

    /// Creates the machine on which the figures of docs/drives.md were measured.
    ///
    /// It has four root complexes and 30 data drives of PCIe 4.0 x4. The system drive is behind a
    /// switch, next to a network card and a SATA controller. Models and serial numbers are
    /// fictitious.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn measured(root: &Path) -> io::Result<Self> {
        let mut machine = Self::new(root)?;
        let all = ["01.1", "01.2", "01.3", "01.4", "03.1", "03.2", "03.3", "03.4"];
        for (bridge, ports, first_bus) in [
            (0x00_u8, &all[..], 0x01),
            (0x20, &all[1..3], 0x2a),
            (0x20, &all[4..], 0x2c),
            (0x40, &all[..], 0x41),
            (0x60, &all[..], 0x61),
        ] {
            for (port, bus) in ports.iter().zip(first_bus..) {
                let port =
                    machine.bridge(&host(bridge), &format!("0000:{bridge:02x}:{port}"), GEN4, 4)?;
                machine.drive(&port, &format!("0000:{bus:02x}:00.0"))?;
            }
        }
        let port = machine.bridge(&host(0x20), "0000:20:01.1", GEN4, 4)?;
        let switch = machine.bridge(&port, "0000:21:00.0", GEN4, 4)?;
        let behind = |machine: &mut Self, device: u8| {
            machine.bridge(&switch, &format!("0000:22:{device:02x}.0"), "8.0 GT/s PCIe", 4)
        };
        let network = behind(&mut machine, 0)?;
        machine.function(&network, "0000:23:00.0", 0x02_00_00, "ixgbe")?;
        let drive = behind(&mut machine, 1)?;
        machine.drive(&drive, "0000:24:00.0")?;
        let sata = behind(&mut machine, 2)?;
        machine.function(&sata, "0000:25:00.0", 0x01_06_01, "ahci")?;
        Ok(machine)
    }

    /// Returns the folders of the machine.
    #[must_use]
    pub fn system(&self) -> System {
        System { node: open_node, ..System::below(&self.root) }
    }

    /// Returns a kernel that executes every step.
    #[must_use]
    pub fn kernel(&self) -> Kernel {
        let record = Mutex::new(Vec::new());
        Kernel { system: self.system(), record, refuses: None, deaf: None }
    }

    /// Adds a bridge below `parent` (a path below `sys/devices`); returns its path.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn bridge(
        &mut self,
        parent: &str,
        address: &str,
        speed: &str,
        width: u8,
    ) -> io::Result<String> {
        let path = self.function(parent, address, 0x06_04_00, "pcieport")?;
        self.link(address, speed, width)?;
        Ok(path)
    }

    /// Adds a function with a driver, in a new IOMMU group; returns its path.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn function(
        &mut self,
        parent: &str,
        address: &str,
        class: u32,
        driver: &str,
    ) -> io::Result<String> {
        let path = format!("{parent}/{address}");
        let folder = format!("sys/devices/{path}");
        let devices = self.root.join("sys/bus/pci/devices");
        fs::create_dir_all(self.root.join(&folder))?;
        symlink(format!("../../../devices/{path}"), devices.join(address))?;
        self.write(&format!("{folder}/class"), &format!("{class:#08x}\n"))?;
        self.write(&format!("{folder}/vendor"), "0x1e0f\n")?;
        self.write(&format!("{folder}/device"), "0x0001\n")?;
        self.write(&format!("{folder}/numa_node"), "0\n")?;
        self.write(&format!("{folder}/driver_override"), "(null)\n")?;
        self.groups += 1;
        self.put_in_group(address, self.groups)?;
        let drivers = self.root.join("sys/bus/pci/drivers").join(driver);
        fs::create_dir_all(&drivers)?;
        symlink(drivers, self.root.join(&folder).join("driver"))?;
        Ok(path)
    }

    /// Adds a drive of PCIe 4.0 x4 with one namespace, bound to the kernel's driver. Returns its
    /// number: 0 for `nvme0`, `nvme0n1` and `SERIAL00`.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn drive(&mut self, parent: &str, address: &str) -> io::Result<u32> {
        let path = self.function(parent, address, 0x01_08_02, NVME_DRIVER)?;
        self.link(address, GEN4, 4)?;
        let number = self.controllers;
        self.controllers += 1;
        let controller = format!("{path}/nvme/nvme{number}");
        let folder = format!("sys/devices/{controller}");
        self.write(&format!("{folder}/model"), "Example Gen4 3840GB                     \n")?;
        self.write(&format!("{folder}/serial"), &format!("SERIAL{number:02}            \n"))?;
        self.write(&format!("{folder}/firmware_rev"), "FW10    \n")?;
        self.write(&format!("{folder}/state"), "live\n")?;
        fs::create_dir_all(self.root.join(format!("{folder}/ng{number}n1")))?;
        self.block(&format!("devices/{controller}"), &format!("nvme{number}n1"), number * 8)?;
        let bus = address.split(':').nth(1).unwrap_or_default();
        let slot = format!("sys/bus/pci/slots/{number}");
        self.write(&format!("{slot}/address"), &format!("0000:{bus}:00\n"))?;
        Ok(number)
    }

    /// Adds a block device in a folder below `sys`, with its node.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn block(&self, parent: &str, name: &str, minor: u32) -> io::Result<()> {
        let folder = format!("sys/{parent}/{name}");
        self.write(&format!("{folder}/dev"), &format!("259:{minor}\n"))?;
        self.write(&format!("{folder}/size"), &format!("{}\n", DRIVE_BYTES / 512))?;
        self.write(&format!("{folder}/queue/logical_block_size"), "512\n")?;
        fs::create_dir_all(self.root.join(&folder).join("holders"))?;
        fs::create_dir_all(self.root.join(&folder).join("slaves"))?;
        symlink(format!("../../{parent}/{name}"), self.root.join("sys/class/block").join(name))?;
        fs::File::create(self.root.join("dev").join(name))?.set_len(NODE_BYTES)
    }

    /// Adds partition `number` to a drive; returns its name.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn partition(&self, drive: u32, number: u32) -> io::Result<String> {
        let disk = format!("nvme{drive}n1");
        let name = format!("{disk}p{number}");
        let folder = fs::canonicalize(self.root.join("sys/class/block").join(&disk))?;
        let sys = fs::canonicalize(self.root.join("sys"))?;
        let parent = folder.strip_prefix(&sys).map_err(io::Error::other)?;
        self.block(&parent.display().to_string(), &name, drive * 8 + number)?;
        fs::write(folder.join(&name).join("partition"), format!("{number}\n"))?;
        Ok(name)
    }

    /// Adds a block device layered on another: `dm-0`, `md127`.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn holder(&self, device: &str, holder: &str) -> io::Result<()> {
        let classes = self.root.join("sys/class/block");
        if !classes.join(holder).exists() {
            let digits: String = holder.chars().filter(char::is_ascii_digit).collect();
            self.block("devices/virtual/block", holder, 1000 + digits.parse().unwrap_or(0))?;
        }
        symlink(classes.join(holder), classes.join(device).join("holders").join(holder))?;
        symlink(classes.join(device), classes.join(holder).join("slaves").join(device))
    }

    /// Adds an MD array of block devices, in service.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn md_array(&self, name: &str, level: &str, members: &[&str]) -> io::Result<()> {
        members.iter().try_for_each(|member| self.holder(member, name))?;
        let folder = format!("sys/devices/virtual/block/{name}");
        for (file, text) in [
            ("md/level", level),
            ("md/chunk_size", "8192"),
            ("md/array_state", "clean"),
            ("ro", "0"),
        ] {
            self.write(&format!("{folder}/{file}"), &format!("{text}\n"))?;
        }
        Ok(())
    }

    /// Executes the calls of mdadm that assemble a RAID-0, set it read-only and stop it.
    ///
    /// # Errors
    /// The call is another one, or a file cannot be changed.
    pub fn mdadm(&self, arguments: &[String]) -> Result<(), String> {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let name = |path: &str| path.trim_start_matches("/dev/").to_owned();
        let done = match words[..] {
            ["--build", path, "--level=0", "--chunk=8", _, ref members @ ..] => {
                let members: Vec<String> = members.iter().map(|path| name(path)).collect();
                let members: Vec<&str> = members.iter().map(String::as_str).collect();
                self.md_array(&name(path), "raid0", &members)
            }
            ["--readonly", path] => {
                let folder = format!("sys/class/block/{}", name(path));
                self.write(&format!("{folder}/md/array_state"), "readonly\n")
                    .and_then(|()| self.write(&format!("{folder}/ro"), "1\n"))
            }
            ["--stop", path] => self.remove_holder(&name(path)),
            _ => return Err(format!("mdadm of the tests does not know {words:?}")),
        };
        done.map_err(|error| error.to_string())
    }

    /// Removes a block device that is layered on others.
    fn remove_holder(&self, holder: &str) -> io::Result<()> {
        let classes = self.root.join("sys/class/block");
        for slave in fs::read_dir(classes.join(holder).join("slaves"))? {
            let slave = slave?.file_name();
            fs::remove_file(classes.join(slave).join("holders").join(holder))?;
        }
        fs::remove_dir_all(fs::canonicalize(classes.join(holder))?)?;
        fs::remove_file(classes.join(holder))?;
        fs::remove_file(self.root.join("dev").join(holder))
    }

    /// Adds a line to a process's mount table; `None` is the table of this process.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn mount(&self, pid: Option<u32>, line: &str) -> io::Result<()> {
        let process = pid.map_or("self".to_owned(), |pid| pid.to_string());
        let file = self.root.join("proc").join(process).join("mountinfo");
        let before = fs::read_to_string(&file).unwrap_or_default();
        fs::write(file, format!("{before}{line}\n"))
    }

    /// Adds a process with open device nodes, in a mount namespace.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn process(&self, pid: u32, command: &str, ns: &str, open: &[&str]) -> io::Result<()> {
        let folder = self.root.join("proc").join(pid.to_string());
        fs::create_dir_all(folder.join("fd"))?;
        fs::create_dir_all(folder.join("ns"))?;
        symlink(format!("mnt:[{ns}]"), folder.join("ns/mnt"))?;
        fs::write(folder.join("comm"), format!("{command}\n"))?;
        for (fd, node) in open.iter().enumerate() {
            symlink(node, folder.join("fd").join(fd.to_string()))?;
        }
        Ok(())
    }

    /// Adds a node, open under any name, to a process; `number` is like `b 259:0` or `c 10:1`.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn open(&self, pid: u32, path: &str, number: &str) -> io::Result<()> {
        let folder = self.root.join("proc").join(pid.to_string());
        let fd = fs::read_dir(folder.join("fd"))?.count().to_string();
        symlink(path, folder.join("fd").join(&fd))?;
        self.write(&format!("proc/{pid}/nodes/{fd}"), number)
    }

    /// Makes the open files of a process unreadable.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn hide(&self, pid: u32) -> io::Result<()> {
        // A file replaces the folder: reading it fails, even for root.
        self.write(&format!("proc/{pid}/fd"), "")
    }

    /// Writes a file below the machine's folder, and creates its parent folders.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn write(&self, file: &str, text: &str) -> io::Result<()> {
        let file = self.root.join(file);
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(file, text)
    }

    /// Moves a function to an IOMMU group.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn put_in_group(&self, address: &str, group: u32) -> io::Result<()> {
        let groups = self.root.join("sys/kernel/iommu_groups");
        let link = self.root.join("sys/bus/pci/devices").join(address).join("iommu_group");
        if let Some(old) = link_name(&link) {
            fs::remove_file(groups.join(old).join("devices").join(address))?;
            fs::remove_file(&link)?;
        }
        let group = groups.join(group.to_string());
        fs::create_dir_all(group.join("devices"))?;
        symlink(&group, link)?;
        symlink("anywhere", group.join("devices").join(address))
    }

    /// Sets the current and maximum link of a function.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn link(&self, address: &str, speed: &str, width: u8) -> io::Result<()> {
        for which in ["current", "max"] {
            self.link_attribute(address, &format!("{which}_link_speed"), speed)?;
            self.link_attribute(address, &format!("{which}_link_width"), &width.to_string())?;
        }
        Ok(())
    }

    /// Sets one attribute of a link.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn link_attribute(&self, address: &str, name: &str, text: &str) -> io::Result<()> {
        self.write(&format!("sys/bus/pci/devices/{address}/{name}"), &format!("{text}\n"))
    }
}

impl Kernel {
    /// Returns and clears the recorded writes.
    #[must_use]
    pub fn take_record(&self) -> Vec<String> {
        self.record.lock().map(|mut record| std::mem::take(&mut *record)).unwrap_or_default()
    }

    fn function_folder(&self, address: &str) -> PathBuf {
        self.system.sys.join("bus/pci/devices").join(address)
    }

    fn probe(&self, address: &str) -> io::Result<()> {
        let folder = self.function_folder(address);
        if link_name(&folder.join("driver")).is_some() {
            return Ok(());
        }
        let wanted = text(&folder.join("driver_override")).filter(|name| name != "(null)");
        let driver = wanted.unwrap_or_else(|| NVME_DRIVER.to_owned());
        let driver_folder = self.system.sys.join("bus/pci/drivers").join(&driver);
        if self.deaf == Some(driver.as_str()) || !driver_folder.is_dir() {
            return Ok(());
        }
        if driver == NVME_DRIVER && folder.join("was_nvme").exists() {
            fs::rename(folder.join("was_nvme"), folder.join("nvme"))?;
        }
        symlink(driver_folder, folder.join("driver"))
    }

    fn unbind(&self, address: &str) -> io::Result<()> {
        let folder = self.function_folder(address);
        if link_name(&folder.join("driver")).as_deref() != Some(VFIO_DRIVER) {
            fs::rename(folder.join("nvme"), folder.join("was_nvme"))?;
        }
        fs::remove_file(folder.join("driver"))
    }
}

impl SysfsWriter for Kernel {
    fn write(&self, file: &Path, text: &str) -> io::Result<()> {
        let below = file.strip_prefix(&self.system.sys).unwrap_or(file).display().to_string();
        if let Ok(mut record) = self.record.lock() {
            record.push(format!("{} > {below}", text.trim()));
        }
        if self.refuses.is_some_and(|end| below.ends_with(end)) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        if below.ends_with("driver_override") {
            return fs::write(file, text);
        }
        if below.ends_with("driver/unbind") {
            return self.unbind(text);
        }
        if below.ends_with("drivers_probe") {
            return self.probe(text);
        }
        Err(io::Error::other(format!("the kernel has no file {below}")))
    }
}

/// Returns the target of `/proc/PID/fd/N`, which this machine keeps in `/proc/PID/nodes/N`.
fn open_node(descriptor: &Path) -> io::Result<Option<NodeId>> {
    let (Some(fd), Some(process)) =
        (descriptor.file_name(), descriptor.parent().and_then(Path::parent))
    else {
        return Ok(None);
    };
    Ok(text(&process.join("nodes").join(fd)).and_then(|text| {
        let (kind, number) = text.split_once(' ')?;
        let kind = if kind == "b" { NodeKind::Block } else { NodeKind::Character };
        NodeId::parse(kind, number)
    }))
}

/// Returns a file's text without surrounding white space; `None` if the file is missing or empty.
fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Returns the last component of a symbolic link's target.
fn link_name(path: &Path) -> Option<String> {
    fs::read_link(path).ok()?.file_name()?.to_str().map(str::to_owned)
}

/// Returns a folder for machines, in memory if possible, because a machine has many small files.
#[must_use]
pub fn folder() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

/// Returns the path of a host bridge of domain 0.
#[must_use]
pub fn host(bus: u8) -> String {
    format!("pci0000:{bus:02x}")
}

/// Parses a valid address of a test.
///
/// # Panics
/// If the address is invalid.
#[must_use]
pub fn at(address: &str) -> Address {
    match address.parse() {
        Ok(address) => address,
        Err(error) => panic!("{error}"),
    }
}
