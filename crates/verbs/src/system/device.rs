//! A device: its context, protection domain and limits. All users of the device share one value.

use std::ffi::{CStr, c_int};
use std::fmt::{self, Debug};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::address::gid_of;
use super::async_events::AsyncEventThread;
use super::connection::ConnectionId;
use super::context::{Context, ProtectionDomain, lock};
use super::library::Library;
use crate::error::VerbsError;
use crate::ffi::verbs::{
    IBV_DEVICE_MEM_WINDOW_TYPE_2A, IBV_DEVICE_MEM_WINDOW_TYPE_2B, IBV_TRANSPORT_IB,
    IBV_TRANSPORT_IWARP, ibv_context, ibv_device, ibv_device_attr, ibv_pd, ibv_port_attr,
};
use crate::provider::{DeviceKind, DeviceLimits};

/// Maximum RDMA READs that are ever requested: the next number means "as many as possible" to
/// librdmacm.
const MOST_READS: u8 = 254;

/// Vendor identifier of Soft-RoCE.
const VENDOR_SOFT_ROCE: u32 = 0xff_ffff;

/// An RDMA device of this machine.
pub struct SystemDevice {
    library: &'static Library,
    pub(super) name: String,
    guid: u64,
    pub(super) kind: DeviceKind,
    pub(super) limits: DeviceLimits,
    pub(super) windows: bool,
    kernel_flags: bool,
    next_vector: AtomicUsize,
    gone: AtomicBool,
    watch: AsyncEventThread,
    // Dropped in this order, after the watch. Objects of the domain keep the device alive.
    domain: ProtectionDomain,
    context: Arc<Context>,
}

impl Debug for SystemDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemDevice").field("name", &self.name).finish_non_exhaustive()
    }
}

/// All open devices.
static OPEN: Mutex<Vec<Weak<SystemDevice>>> = Mutex::new(Vec::new());

impl SystemDevice {
    /// Returns the names of all devices.
    ///
    /// # Errors
    /// [`VerbsError::NoLibrary`], [`VerbsError::NoDevice`].
    pub fn list() -> Result<Vec<String>, VerbsError> {
        let library = Library::load()?;
        Ok(DeviceList::get(library)?.devices().map(|device| name_of(library, device)).collect())
    }

    /// Returns the device of this name.
    ///
    /// # Errors
    /// [`VerbsError::NoLibrary`], [`VerbsError::NoDevice`], [`VerbsError::UnknownDevice`], or the
    /// system's error of opening it.
    pub fn by_name(name: &str) -> Result<Arc<Self>, VerbsError> {
        let library = Library::load()?;
        let list = DeviceList::get(library)?;
        let found = list.devices().find(|device| name_of(library, *device) == name);
        match found {
            Some(device) => Self::of(library, device),
            None => {
                let have: Vec<String> =
                    list.devices().map(|device| name_of(library, device)).collect();
                Err(VerbsError::UnknownDevice { wanted: name.to_owned(), have: have.join(", ") })
            }
        }
    }

    /// Returns the device that an identifier is bound to.
    pub(super) fn of_id(id: &ConnectionId) -> Result<Arc<Self>, VerbsError> {
        match id.device() {
            Some(device) => Self::of(id.library(), device),
            None => Err(VerbsError::NoDeviceAt { address: id.local() }),
        }
    }

    /// Returns the device, and opens it if necessary. The pointer is valid for the call.
    fn of(library: &'static Library, device: NonNull<ibv_device>) -> Result<Arc<Self>, VerbsError> {
        let name = name_of(library, device);
        // SAFETY: the caller's list or identifier keeps the device's entry.
        let guid = unsafe { (library.verbs.ibv_get_device_guid)(device.as_ptr()) };
        let mut open = lock(&OPEN);
        open.retain(|device| device.strong_count() > 0);
        let known = open.iter().filter_map(Weak::upgrade);
        for device in known {
            if device.name == name && device.guid == guid && device.answers() {
                return Ok(device);
            }
        }
        let device = Arc::new(Self::open_new(library, device, name, guid)?);
        open.push(Arc::downgrade(&device));
        Ok(device)
    }

    fn open_new(
        library: &'static Library,
        device: NonNull<ibv_device>,
        name: String,
        guid: u64,
    ) -> Result<Self, VerbsError> {
        let context = Arc::new(Context::open(library, device, &name)?);
        let attr = context.attributes(&name)?;
        let port = context.port(1).map_err(|error| {
            VerbsError::call(format!("asking {name} for the state of its port"), error)
        })?;
        let domain = ProtectionDomain::new(&context, &name)?;
        let soft = attr.vendor_id == VENDOR_SOFT_ROCE;
        let watch = AsyncEventThread::start(&context, &name, soft)?;
        let type_2 = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
        // SAFETY: the caller's list or identifier keeps the device's entry.
        let kind = match unsafe { (*device.as_ptr()).transport_type } {
            IBV_TRANSPORT_IB => DeviceKind::InfiniBand,
            IBV_TRANSPORT_IWARP => DeviceKind::Iwarp,
            _ => DeviceKind::Other,
        };
        Ok(Self {
            library,
            kind,
            limits: limits(&attr, &port),
            windows: attr.device_cap_flags & type_2 != 0,
            kernel_flags: soft,
            next_vector: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
            name,
            guid,
            watch,
            domain,
            context,
        })
    }

    /// Records that the device was removed, as an event of `id` reports. The next user opens it
    /// again: a device of the same name is a different one.
    pub(super) fn set_gone(&self, id: &ConnectionId) {
        if self.gone.swap(true, Ordering::Relaxed) {
            return;
        }
        self.library.set_stale();
        id.let_go();
    }

    /// Returns true if the device is present.
    pub(super) fn answers(&self) -> bool {
        !self.gone.load(Ordering::Relaxed) && self.context.port(1).is_ok()
    }

    /// Rejects an address that is not at `index` of the port's GID table.
    pub(super) fn check_gid(
        &self,
        address: IpAddr,
        port: u8,
        index: u32,
    ) -> Result<(), VerbsError> {
        let found = match self.context.gid(port, index) {
            Ok(gid) if gid == gid_of(address) => return Ok(()),
            Ok(gid) if gid == [0; 16] => "empty".to_owned(),
            Ok(gid) => {
                let ip = Ipv6Addr::from(gid);
                ip.to_ipv4_mapped().map_or_else(|| ip.to_string(), |v4| v4.to_string())
            }
            Err(error) => format!("not available ({error})"),
        };
        let (device, found) = (self.name.as_str().into(), found.into());
        Err(VerbsError::OtherGid { address, device, port, index, found })
    }

    pub(super) fn library(&self) -> &'static Library {
        self.library
    }

    /// Pointer for calls of the library, valid as long as `self`.
    pub(super) fn context(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    /// Pointer for calls of the library, valid as long as `self`.
    pub(super) fn domain(&self) -> *mut ibv_pd {
        self.domain.as_ptr()
    }

    pub(super) fn watch(&self) -> &AsyncEventThread {
        &self.watch
    }

    /// Returns true if the flags of the device's completions have the kernel's numbers, not those
    /// of libibverbs.
    pub(super) fn has_kernel_flags(&self) -> bool {
        self.kernel_flags
    }

    /// Returns the interrupt vector of the next completion queue, in round-robin order.
    pub(super) fn next_vector(&self) -> c_int {
        // SAFETY: the context is open as long as `self`.
        let vectors = unsafe { (*self.context()).num_comp_vectors }.max(1);
        let turn = self.next_vector.fetch_add(1, Ordering::Relaxed);
        let vector = turn % vectors.unsigned_abs() as usize;
        c_int::try_from(vector).expect("below the number of vectors")
    }
}

impl Drop for SystemDevice {
    fn drop(&mut self) {
        if *self.gone.get_mut() {
            self.library.refresh();
        }
    }
}

/// Converts the attributes of a device and a port to limits.
fn limits(attr: &ibv_device_attr, port: &ibv_port_attr) -> DeviceLimits {
    let at_least_1 = |number: c_int| number.max(1).unsigned_abs();
    let reads = |number: c_int| u8::try_from(number.clamp(1, MOST_READS.into())).expect("clamped");
    // Some devices allow fewer SGEs for a READ; the value is 0 if they do not report it.
    let of_read = if attr.max_sge_rd > 0 { attr.max_sge_rd } else { attr.max_sge };
    let shared = if attr.max_srq > 0 { attr.max_srq_wr.max(0).unsigned_abs() } else { 0 };
    DeviceLimits {
        queue_depth: at_least_1(attr.max_qp_wr),
        completions: at_least_1(attr.max_cqe),
        pieces: at_least_1(attr.max_sge.min(of_read)),
        message: if port.max_msg_sz == 0 { 1 << 30 } else { port.max_msg_sz },
        reads_out: reads(attr.max_qp_init_rd_atom),
        reads_in: reads(attr.max_qp_rd_atom),
        shared_receives: shared,
    }
}

/// The list of devices at present.
struct DeviceList {
    library: &'static Library,
    list: NonNull<*mut ibv_device>,
    count: usize,
}

impl DeviceList {
    fn get(library: &'static Library) -> Result<Self, VerbsError> {
        let mut count: c_int = 0;
        // SAFETY: a place for the count.
        let list = unsafe { (library.verbs.ibv_get_device_list)(&mut count) };
        let list = NonNull::new(list).ok_or(VerbsError::NoDevice)?;
        let this = Self { library, list, count: usize::try_from(count).unwrap_or(0) };
        if this.count == 0 { Err(VerbsError::NoDevice) } else { Ok(this) }
    }

    fn devices(&self) -> impl Iterator<Item = NonNull<ibv_device>> {
        (0..self.count).filter_map(|index| {
            // SAFETY: the list has `count` entries, and lives as long as `self`.
            NonNull::new(unsafe { *self.list.as_ptr().add(index) })
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the library returned the list, which is freed once.
        unsafe { (self.library.verbs.ibv_free_device_list)(self.list.as_ptr()) };
    }
}

/// Returns the error for an `address` without a device: of the address, or of a machine without
/// devices.
pub(super) fn no_device(library: &'static Library, address: SocketAddr) -> VerbsError {
    match DeviceList::get(library) {
        Ok(_) => VerbsError::NoDeviceAt { address },
        Err(error) => error,
    }
}

fn name_of(library: &'static Library, device: NonNull<ibv_device>) -> String {
    // SAFETY: the caller's list or identifier keeps the device's entry, which holds the name.
    unsafe {
        let name = (library.verbs.ibv_get_device_name)(device.as_ptr());
        if ptr::eq(name, ptr::null()) {
            return String::new();
        }
        CStr::from_ptr(name).to_string_lossy().into_owned()
    }
}
