//! Typed VFIO calls of the kernel; numbers and structures come from `vfio-bindings`.
//!
//! A failed call returns the kernel's error.

use std::ffi::CStr;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::raw::{c_int, c_ulong};

use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE,
    VFIO_TYPE, VFIO_TYPE1v2_IOMMU, vfio_device_info, vfio_group_status, vfio_iommu_type1_info,
    vfio_irq_info, vfio_irq_set, vfio_region_info,
};
use vmm_sys_util::ioctl::{
    ioctl, ioctl_with_mut_ptr, ioctl_with_mut_ref, ioctl_with_ptr, ioctl_with_ref, ioctl_with_val,
};

use super::info::Answer;

/// Description of a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceInfo {
    pub(super) flags: u32,
    pub(super) regions: u32,
    pub(super) irqs: u32,
}

/// Result of a request for interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Armed {
    /// All vectors are armed.
    All,
    /// None is armed: the system can provide at most this number.
    Only(u16),
}

/// Returns the number of a request: VFIO's encode neither a direction nor a size.
const fn number(request: u32) -> c_ulong {
    ((VFIO_TYPE as u32) << 8 | (VFIO_BASE + request)) as c_ulong
}

const SET_IOMMU: c_ulong = number(2);
const GROUP_GET_STATUS: c_ulong = number(3);
const GROUP_SET_CONTAINER: c_ulong = number(4);
const GROUP_UNSET_CONTAINER: c_ulong = number(5);
const GROUP_GET_DEVICE_FD: c_ulong = number(6);
const DEVICE_GET_INFO: c_ulong = number(7);
const DEVICE_GET_REGION_INFO: c_ulong = number(8);
const DEVICE_GET_IRQ_INFO: c_ulong = number(9);
const DEVICE_SET_IRQS: c_ulong = number(10);
const DEVICE_RESET: c_ulong = number(11);
const IOMMU_GET_INFO: c_ulong = number(12);

/// Returns a group's flags: `VFIO_GROUP_FLAGS_*`.
pub(super) fn group_status(group: &impl AsFd) -> io::Result<u32> {
    let mut status = vfio_group_status { argsz: argsz::<vfio_group_status>(), flags: 0 };
    // SAFETY: the kernel fills a local structure of the size passed in it.
    let code = unsafe { ioctl_with_mut_ref(&raw(group), GROUP_GET_STATUS, &mut status) };
    checked(code)?;
    Ok(status.flags)
}

/// Attaches a group to a container.
pub(super) fn set_container(group: &impl AsFd, container: &impl AsRawFd) -> io::Result<()> {
    let container: c_int = container.as_raw_fd();
    // SAFETY: the kernel reads one descriptor, which is open as long as `container` is borrowed.
    checked(unsafe { ioctl_with_ref(&raw(group), GROUP_SET_CONTAINER, &container) })?;
    Ok(())
}

/// Detaches a group from its container.
pub(super) fn unset_container(group: &impl AsFd) -> io::Result<()> {
    // SAFETY: the request has no argument.
    checked(unsafe { ioctl(&raw(group), GROUP_UNSET_CONTAINER) })?;
    Ok(())
}

/// Sets the type 1 IOMMU, version 2, for a container that has a group.
pub(super) fn set_iommu(container: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: the argument is a number.
    checked(unsafe { ioctl_with_val(container, SET_IOMMU, c_ulong::from(VFIO_TYPE1v2_IOMMU)) })?;
    Ok(())
}

/// Returns the capabilities of a container's IOMMU.
pub(super) fn iommu_info(container: &impl AsRawFd) -> io::Result<Answer> {
    grown(size_of::<vfio_iommu_type1_info>(), |answer| {
        let words = answer.words_mut().as_mut_ptr();
        // SAFETY: the kernel fills at most the bytes given in the first field, all of which belong
        // to the buffer.
        checked(unsafe { ioctl_with_mut_ptr(container, IOMMU_GET_INFO, words) })
    })
}

/// Opens a function of a group by its address.
pub(super) fn open_device(group: &impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads a string that ends with a zero.
    let fd = unsafe { ioctl_with_ptr(&raw(group), GROUP_GET_DEVICE_FD, name.as_ptr()) };
    checked(fd)?;
    // SAFETY: the kernel has just opened this descriptor, and no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the description of a device.
pub(super) fn device_info(device: &impl AsFd) -> io::Result<DeviceInfo> {
    let mut info =
        vfio_device_info { argsz: argsz::<vfio_device_info>(), ..vfio_device_info::default() };
    // SAFETY: the kernel fills a local structure of the size passed in it.
    checked(unsafe { ioctl_with_mut_ref(&raw(device), DEVICE_GET_INFO, &mut info) })?;
    Ok(DeviceInfo { flags: info.flags, regions: info.num_regions, irqs: info.num_irqs })
}

/// Returns the location of a device's region in its file.
pub(super) fn region_info(device: &impl AsFd, index: u32) -> io::Result<Answer> {
    let device = raw(device);
    grown(size_of::<vfio_region_info>(), |answer| {
        answer.put_u32(std::mem::offset_of!(vfio_region_info, index), index);
        let words = answer.words_mut().as_mut_ptr();
        // SAFETY: as for `iommu_info`.
        checked(unsafe { ioctl_with_mut_ptr(&device, DEVICE_GET_REGION_INFO, words) })
    })
}

/// Returns the number of interrupts of one type of a device.
pub(super) fn irq_count(device: &impl AsFd, index: u32) -> io::Result<u32> {
    let mut info = vfio_irq_info { argsz: argsz::<vfio_irq_info>(), flags: 0, index, count: 0 };
    // SAFETY: the kernel fills a local structure of the size passed in it.
    checked(unsafe { ioctl_with_mut_ref(&raw(device), DEVICE_GET_IRQ_INFO, &mut info) })?;
    Ok(info.count)
}

/// Connects the first interrupts of one type to these descriptors, all of them or none. Without
/// descriptors, disarms all interrupts of the type.
pub(super) fn set_irqs(
    device: &impl AsFd,
    index: u32,
    signals: &[BorrowedFd<'_>],
) -> io::Result<Armed> {
    let data = if signals.is_empty() { VFIO_IRQ_SET_DATA_NONE } else { VFIO_IRQ_SET_DATA_EVENTFD };
    let too_many = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let header = size_of::<vfio_irq_set>() / size_of::<u32>();
    let len = u32::try_from((header + signals.len()) * size_of::<u32>()).map_err(too_many)?;
    let count = u32::try_from(signals.len()).map_err(too_many)?;
    // Fields argsz, flags, index, start, count, then one descriptor each.
    let mut set = vec![len, data | VFIO_IRQ_SET_ACTION_TRIGGER, index, 0, count];
    debug_assert_eq!(set.len(), header);
    set.extend(signals.iter().map(|signal| signal.as_raw_fd().cast_unsigned()));
    // SAFETY: the kernel reads the bytes given in the first field, all of which belong to `set`.
    // The descriptors are open while they are borrowed, and the kernel keeps its own references.
    checked(unsafe { ioctl_with_ptr(&raw(device), DEVICE_SET_IRQS, set.as_ptr()) }).map(armed)
}

/// Interprets a result. A positive code is the number of available vectors, if too few; the kernel
/// has released them.
fn armed(code: c_int) -> Armed {
    if code > 0 { Armed::Only(u16::try_from(code).unwrap_or(u16::MAX)) } else { Armed::All }
}

/// Resets a device.
pub(super) fn reset(device: &impl AsFd) -> io::Result<()> {
    // SAFETY: the request has no argument.
    checked(unsafe { ioctl(&raw(device), DEVICE_RESET) })?;
    Ok(())
}

/// Makes a call, and repeats it with a larger buffer if the kernel has more data.
fn grown(len: usize, mut ask: impl FnMut(&mut Answer) -> io::Result<c_int>) -> io::Result<Answer> {
    let mut answer = Answer::sized(len);
    let room = answer.wanted();
    ask(&mut answer)?;
    if answer.wanted() > room {
        answer = Answer::sized(answer.wanted());
        ask(&mut answer)?;
    }
    Ok(answer)
}

/// Returns the size of a structure for its `argsz` field.
const fn argsz<T>() -> u32 {
    const { assert!(size_of::<T>() <= 4096) };
    #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
    let size = size_of::<T>() as u32;
    size
}

/// Converts a descriptor for `vmm-sys-util`, which requires the older trait.
fn raw(fd: &impl AsFd) -> impl AsRawFd {
    fd.as_fd().as_raw_fd()
}

fn checked(code: c_int) -> io::Result<c_int> {
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(code) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// The numbers as defined in `vfio.h`: `_IO(';', 100 + n)`.
    #[test]
    fn numbers_are_the_headers() {
        assert_eq!(SET_IOMMU, 0x3b66);
        assert_eq!(DEVICE_RESET, 0x3b6f);
        assert_eq!(IOMMU_GET_INFO, 0x3b70);
    }

    #[test]
    fn a_file_that_is_no_vfio_file_gives_the_kernels_error() {
        let file = File::open("/dev/null").expect("a file");
        let code = |result: io::Result<()>| result.expect_err("no VFIO").raw_os_error();
        assert_eq!(code(reset(&file)), Some(libc::ENOTTY));
        assert_eq!(code(group_status(&file).map(drop)), Some(libc::ENOTTY));
        assert_eq!(code(set_container(&file, &file)), Some(libc::ENOTTY));
        assert_eq!(code(unset_container(&file)), Some(libc::ENOTTY));
        assert_eq!(code(set_iommu(&file)), Some(libc::ENOTTY));
        assert_eq!(code(iommu_info(&file).map(drop)), Some(libc::ENOTTY));
        assert_eq!(code(open_device(&file, c"0000:01:00.0").map(drop)), Some(libc::ENOTTY));
        assert_eq!(code(device_info(&file).map(drop)), Some(libc::ENOTTY));
        assert_eq!(code(region_info(&file, 0).map(drop)), Some(libc::ENOTTY));
        assert_eq!(code(irq_count(&file, 2).map(drop)), Some(libc::ENOTTY));
        assert_eq!(code(set_irqs(&file, 2, &[file.as_fd()]).map(drop)), Some(libc::ENOTTY));
    }

    #[test]
    fn a_code_above_zero_armed_nothing() {
        assert_eq!(armed(0), Armed::All);
        assert_eq!(armed(3), Armed::Only(3));
        assert_eq!(armed(c_int::MAX), Armed::Only(u16::MAX));
    }

    #[test]
    fn an_answer_that_is_longer_is_asked_for_again() {
        let mut asked = Vec::new();
        let answer = grown(24, |answer| {
            asked.push(answer.wanted());
            answer.put_u32(0, 100);
            Ok(0)
        });
        assert_eq!(asked, [24, 104]);
        assert_eq!(answer.expect("an answer").wanted(), 100);
    }
}
