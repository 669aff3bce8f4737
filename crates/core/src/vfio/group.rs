//! IOMMU groups: functions that the IOMMU cannot isolate from each other are assigned together.
//!
//! The kernel allows one open per group. So all functions of a group in this process share one
//! [`Group`], and a registry of the process records it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use vfio_bindings::bindings::vfio::VFIO_GROUP_FLAGS_VIABLE;

use super::container::Container;
use super::error::{VfioError, failed};
use super::host::{SysfsRoots, VfioCandidate};
use super::sys;

/// Groups that this process has open. One with a dead reference is being closed.
static OPEN: Registry = Registry { groups: Mutex::new(BTreeMap::new()), closed: Condvar::new() };

#[derive(Debug)]
struct Registry {
    groups: Mutex<BTreeMap<u32, Weak<Group>>>,
    closed: Condvar,
}

/// An open group in a container.
#[derive(Debug)]
pub(super) struct Group {
    number: u32,
    /// `None` once closed, in drop.
    file: Option<File>,
    /// Functions of the group that are open.
    taken: Mutex<BTreeSet<String>>,
    container: Arc<Container>,
    /// A device of the group stays open after this value is dropped.
    is_stuck: AtomicBool,
    /// True once the group is closed and detached from the IOMMU's mappings.
    is_closed: Arc<AtomicBool>,
}

/// An open function of a group, exclusive to this process until it is dropped.
#[derive(Debug)]
pub(super) struct GroupDevice {
    address: String,
    /// Closed before the group.
    file: Option<File>,
    group: Arc<Group>,
}

impl Group {
    /// Opens the group of a function, or joins it if this process has it.
    pub(super) fn join(host: &SysfsRoots, place: &VfioCandidate) -> Result<Arc<Self>, VfioError> {
        let mut groups = OPEN.groups();
        loop {
            match groups.get(&place.group).map(Weak::upgrade) {
                Some(Some(group)) => return Ok(group),
                Some(None) => {
                    groups = OPEN.closed.wait(groups).unwrap_or_else(PoisonError::into_inner);
                }
                None => break,
            }
        }
        let live: Vec<Arc<Self>> = groups.values().filter_map(Weak::upgrade).collect();
        let group = Self::open(host, place, &live).map(Arc::new);
        if let Ok(group) = &group {
            groups.insert(place.group, Arc::downgrade(group));
        }
        // This may close groups kept alive here, which requires the registry.
        drop(groups);
        drop(live);
        group
    }

    /// Returns the container through which its functions access memory.
    pub(super) fn container(&self) -> &Arc<Container> {
        &self.container
    }

    /// Opens a function of this group.
    pub(super) fn take(self: &Arc<Self>, address: &str) -> Result<GroupDevice, VfioError> {
        if !self.taken().insert(address.to_owned()) {
            let by = "this process has the group already".to_owned();
            return Err(VfioError::Busy { address: address.to_owned(), by });
        }
        // From here on the value's drop releases the function.
        let mut taken =
            GroupDevice { address: address.to_owned(), file: None, group: Arc::clone(self) };
        let open = || {
            let name = CString::new(address).map_err(io::Error::other)?;
            let group = self.file.as_ref().ok_or_else(super::config::gone)?;
            sys::open_device(group, &name)
        };
        taken.file = Some(open().map_err(failed(address, "opening the device"))?.into());
        Ok(taken)
    }

    /// Opens a group and attaches it to the container of one of `live`, or to a new one.
    fn open(
        host: &SysfsRoots,
        place: &VfioCandidate,
        live: &[Arc<Self>],
    ) -> Result<Self, VfioError> {
        let address = place.address.as_str();
        let file = open_file(host, place)?;
        let flags = sys::group_status(&file).map_err(failed(address, "reading the IOMMU group"))?;
        if flags & VFIO_GROUP_FLAGS_VIABLE == 0 {
            let others = host.obstacles(place.group);
            return Err(VfioError::NotViable {
                address: address.to_owned(),
                group: place.group,
                others,
            });
        }
        let mut tried: Vec<&Arc<Container>> = Vec::new();
        for container in live.iter().map(|group| &group.container) {
            if tried.iter().any(|other| Arc::ptr_eq(other, container)) || !container.is_live() {
                continue;
            }
            match container.attach_group(&file) {
                Ok(()) => return Ok(Self::new(place.group, file, Arc::clone(container))),
                // Behind an IOMMU that cannot share: tries the next, or a new one.
                Err(error) => tracing::debug!(address, %error, "shares no container"),
            }
            tried.push(container);
        }
        let container = Container::open(host, address)?;
        container.attach_group(&file).map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => VfioError::UnsafeInterrupts(address.to_owned()),
            _ => failed(address, "adding the group to a container")(error),
        })?;
        Ok(Self::new(place.group, file, Arc::new(container)))
    }

    fn new(number: u32, file: File, container: Arc<Container>) -> Self {
        Self {
            number,
            file: Some(file),
            taken: Mutex::default(),
            container,
            is_stuck: AtomicBool::new(false),
            is_closed: Arc::default(),
        }
    }

    /// Returns a flag that is set once the group is closed and its functions reach no memory of the
    /// container.
    pub(super) fn closed(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_closed)
    }

    /// Records that a device of the group cannot be closed: the group then stays open, too.
    pub(super) fn set_stuck(&self) {
        self.is_stuck.store(true, Ordering::Release);
    }

    fn taken(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let file = self.file.take();
        self.container.detach_group(|| drop(file));
        // When its last file is closed, the kernel detaches a group from its container's mappings.
        if !self.is_stuck.load(Ordering::Acquire) {
            self.is_closed.store(true, Ordering::Release);
        }
        // Only now can it be opened again.
        OPEN.groups().remove(&self.number);
        OPEN.closed.notify_all();
    }
}

impl GroupDevice {
    /// Returns the device's file.
    pub(super) fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(super::config::gone)
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn group(&self) -> &Arc<Group> {
        &self.group
    }
}

impl Drop for GroupDevice {
    fn drop(&mut self) {
        drop(self.file.take());
        self.group.taken().remove(&self.address);
    }
}

impl Registry {
    fn groups(&self) -> MutexGuard<'_, BTreeMap<u32, Weak<Group>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open_file(host: &SysfsRoots, place: &VfioCandidate) -> Result<File, VfioError> {
    let path = host.group_file(place.group);
    let address = place.address.clone();
    OpenOptions::new().read(true).write(true).open(&path).map_err(|error| {
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => VfioError::NoModule(path),
            Some(libc::EACCES | libc::EPERM) => VfioError::Permission(path),
            Some(libc::EBUSY) => VfioError::Busy {
                address,
                by: format!(
                    "another process has {} open (`fuser` names the process)",
                    path.display()
                ),
            },
            _ => failed(&address, "opening the group")(error),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::vfio::host::fixture::Fixture;

    fn place() -> VfioCandidate {
        VfioCandidate { address: "0000:01:00.0".to_owned(), group: 4_000_000_123 }
    }

    #[test]
    fn a_group_without_a_file_asks_for_the_module() {
        let fixture = Fixture::new();
        let error = Group::join(&fixture.host(), &place()).expect_err("no file");
        assert!(matches!(error, VfioError::NoModule(_)), "{error}");
        assert!(error.to_string().contains("modprobe vfio-pci"), "{error}");
        assert!(OPEN.groups().is_empty());
    }

    #[test]
    fn a_file_that_is_no_group_is_an_error_with_its_place() {
        let fixture = Fixture::new();
        fs::write(fixture.path("dev/4000000123"), "").expect("a file");
        let error = Group::join(&fixture.host(), &place()).expect_err("no group");
        assert!(matches!(error, VfioError::System { .. }), "{error}");
        assert!(error.to_string().starts_with("0000:01:00.0: "), "{error}");
    }

    #[test]
    fn a_file_that_may_not_be_opened_is_named() {
        let fixture = Fixture::new();
        let path = fixture.path("dev/4000000123");
        fs::write(&path, "").expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("permissions");
        let error = Group::join(&fixture.host(), &place()).expect_err("no group");
        // Root can open every file.
        if !rustix::process::geteuid().is_root() {
            assert!(matches!(error, VfioError::Permission(_)), "{error}");
            assert!(error.to_string().contains("dev/4000000123"), "{error}");
        }
    }
}
