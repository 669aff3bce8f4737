//! A command capsule: the command, and the location of its data (RDMA 3.2, Base 4.1.2).
//!
//! Either data or descriptors follow the command. A command refers to one keyed descriptor, to
//! in-capsule data, or to a segment of the capsule. A segment contains up to [`MAX_DESCRIPTORS`]
//! keyed descriptors and can continue in another segment. The parser uses nothing before it has
//! checked that it lies inside the capsule.

use std::rc::Rc;

use nvmeof_wire::sqe::{Psdt, SQE_SIZE};
use nvmeof_wire::zerocopy::FromBytes;
use nvmeof_wire::{Sgl, SglDescriptor, Sqe};

use crate::queue::FabricError;

/// Maximum keyed descriptors of a command (MSDBD).
pub const MAX_DESCRIPTORS: usize = 16;
/// Bytes of a descriptor.
const DESCRIPTOR: usize = size_of::<SglDescriptor>();

/// A run of the host's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteBuffer {
    /// Its first byte. Address plus length does not overflow.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// The host's key for it.
    pub key: u32,
}

/// The resolved data pointer of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataPointer {
    /// The descriptors of a list; `None` if the command's own descriptor is complete.
    pub list: Option<Rc<[RemoteBuffer]>>,
    /// Bytes of the list.
    pub length: u32,
    /// The key that the response has to invalidate: that of the last descriptor, if it requests it.
    ///
    /// A response can invalidate one key; the host invalidates the others.
    pub invalidate: Option<u32>,
}

/// Splits a capsule into the command and its data pointer, if that is valid.
///
/// Returns `None` if the capsule is shorter than a command.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<(Sqe, Result<DataPointer, FabricError>)> {
    let (sqe, behind) = Sqe::read_from_prefix(bytes).ok()?;
    debug_assert_eq!(bytes.len() - behind.len(), SQE_SIZE);
    Some((sqe, data_pointer(&sqe, behind)))
}

/// Returns the data pointer of `sqe`; `behind` is the rest of the capsule.
///
/// # Errors
/// Returns the fault in the pointer. A data pointer that the command merely does not use is not
/// checked here.
pub fn data_pointer(sqe: &Sqe, behind: &[u8]) -> Result<DataPointer, FabricError> {
    if sqe.psdt() != Psdt::Sgl {
        return Ok(DataPointer::default());
    }
    match sqe.dptr.parse() {
        Sgl::Keyed { address, length, key, invalidate } => {
            remote(address, length, key)?;
            Ok(DataPointer { invalidate: invalidate.then_some(key), ..DataPointer::default() })
        }
        // This type is reserved for the target: it stands for a list.
        Sgl::Transport { .. } => Err(FabricError::SglType),
        Sgl::Segment { .. } | Sgl::LastSegment { .. } => list(sqe.dptr.parse(), behind),
        Sgl::DataBlock { .. }
        | Sgl::InCapsule { .. }
        | Sgl::BitBucket { .. }
        | Sgl::Unknown { .. } => Ok(DataPointer::default()),
    }
}

fn remote(address: u64, length: u32, key: u32) -> Result<RemoteBuffer, FabricError> {
    match address.checked_add(u64::from(length)) {
        Some(_) => Ok(RemoteBuffer { address, length, key }),
        None => Err(FabricError::SglLength),
    }
}

/// Returns the keyed descriptors of a segment and of the segments after it.
fn list(first: Sgl, capsule: &[u8]) -> Result<DataPointer, FabricError> {
    let mut found = [RemoteBuffer::default(); MAX_DESCRIPTORS];
    let mut count = 0;
    let (mut total, mut invalidate) = (0u32, None);
    let mut segment = Some(first);
    // Each segment but the last contains a memory descriptor or leads nowhere, so the loop ends.
    for _ in 0..=MAX_DESCRIPTORS {
        let Some(at) = segment.take() else { break };
        let is_last = matches!(at, Sgl::LastSegment { .. });
        let descriptors = bytes_of(at, capsule)?;
        let last = descriptors.len() / DESCRIPTOR - 1;
        for (index, bytes) in descriptors.chunks_exact(DESCRIPTOR).enumerate() {
            // A chunk has the size of a descriptor.
            let Ok(descriptor) = SglDescriptor::read_from_bytes(bytes) else {
                return Err(FabricError::SglCount);
            };
            match descriptor.parse() {
                Sgl::Keyed { address, length, key, invalidate: asked } => {
                    let place = found.get_mut(count).ok_or(FabricError::SglCount)?;
                    *place = remote(address, length, key)?;
                    count += 1;
                    total = total.checked_add(length).ok_or(FabricError::SglLength)?;
                    invalidate = asked.then_some(key);
                }
                next @ (Sgl::Segment { .. } | Sgl::LastSegment { .. })
                    if !is_last && index == last =>
                {
                    segment = Some(next);
                }
                _ => return Err(FabricError::SglType),
            }
        }
        if !is_last && segment.is_none() {
            // A segment other than the last must end with a descriptor of the next one.
            return Err(FabricError::SglType);
        }
    }
    if segment.is_some() || count == 0 {
        return Err(FabricError::SglCount);
    }
    Ok(DataPointer { list: Some(Rc::from(&found[..count])), length: total, invalidate })
}

/// Returns the descriptors of a segment, at least one.
fn bytes_of(segment: Sgl, capsule: &[u8]) -> Result<&[u8], FabricError> {
    let (Sgl::Segment { address, length, offset } | Sgl::LastSegment { address, length, offset }) =
        segment
    else {
        return Err(FabricError::SglType);
    };
    if !offset {
        // This fabric does not support segments in host memory (RDMA 3.2.2).
        return Err(FabricError::SglType);
    }
    let start = usize::try_from(address).map_err(|_| FabricError::SglOffset)?;
    let length = usize::try_from(length).map_err(|_| FabricError::SglLength)?;
    if length == 0 || length % DESCRIPTOR != 0 {
        return Err(FabricError::SglCount);
    }
    let end = start.checked_add(length).ok_or(FabricError::SglOffset)?;
    capsule.get(start..end).ok_or(FabricError::SglOffset)
}

#[cfg(test)]
mod tests {
    use nvmeof_wire::zerocopy::IntoBytes;
    use proptest::prelude::*;

    use super::*;

    fn keyed(address: u64, length: u32, key: u32, invalidate: bool) -> Sgl {
        Sgl::Keyed { address, length, key, invalidate }
    }

    fn capsule(first: Sgl, behind: &[Sgl]) -> Vec<u8> {
        let mut bytes = Sqe::new(1, 7, 1).with_sgl(first).as_bytes().to_vec();
        behind.iter().for_each(|sgl| bytes.extend(sgl.encode().as_bytes()));
        bytes
    }

    fn pointer(first: Sgl, behind: &[Sgl]) -> Result<DataPointer, FabricError> {
        parse(&capsule(first, behind)).unwrap().1
    }

    fn last(address: u64, length: u32) -> Sgl {
        Sgl::LastSegment { address, length, offset: true }
    }

    #[test]
    fn one_descriptor_stays_in_the_command() {
        let plain = DataPointer::default();
        assert_eq!(pointer(keyed(5, 6, 7, false), &[]), Ok(plain.clone()));
        let asked = DataPointer { invalidate: Some(7), ..plain.clone() };
        assert_eq!(pointer(keyed(5, 6, 7, true), &[]), Ok(asked));
        assert_eq!(pointer(Sgl::InCapsule { offset: 9, length: 5 }, &[]), Ok(plain));
        assert_eq!(parse(&[0; 63]), None);
    }

    #[test]
    fn a_list_is_found_by_its_offset() {
        let behind = [keyed(1, 2, 3, true), keyed(4, 5, 6, false), keyed(7, 8, 9, true)];
        let list = pointer(last(16, 32), &behind).unwrap();
        let expected = [
            RemoteBuffer { address: 4, length: 5, key: 6 },
            RemoteBuffer { address: 7, length: 8, key: 9 },
        ];
        assert_eq!(list.list.as_deref(), Some(&expected[..]));
        assert_eq!((list.length, list.invalidate), (13, Some(9)));
        // Only the last descriptor counts for invalidation.
        assert_eq!(pointer(last(0, 32), &behind).unwrap().invalidate, None);
    }

    #[test]
    fn segments_lead_on() {
        let first = Sgl::Segment { address: 0, length: 32, offset: true };
        let behind = [keyed(1, 2, 3, false), last(32, 16), keyed(4, 5, 6, false)];
        let list = pointer(first, &behind).unwrap();
        assert_eq!((list.list.unwrap().len(), list.length), (2, 7));
        // A cycle, and a segment that leads nowhere.
        let circle = [keyed(1, 0, 3, false), first];
        assert_eq!(pointer(first, &circle), Err(FabricError::SglCount));
        let only = Sgl::Segment { address: 0, length: 16, offset: true };
        assert_eq!(pointer(only, &[only]), Err(FabricError::SglCount));
        assert_eq!(pointer(only, &[keyed(1, 2, 3, false)]), Err(FabricError::SglType));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let one = [keyed(1, 2, 3, false)];
        let many: Vec<_> = (0..17).map(|key| keyed(1, 2, key, false)).collect();
        let huge: Vec<_> = (0..16).map(|_| keyed(0, 0xff_ffff, 1, false)).collect();
        let cases = [
            (pointer(last(0, 17 * 16), &many), FabricError::SglCount),
            (pointer(last(1, 16), &one), FabricError::SglOffset),
            (pointer(last(u64::MAX, 16), &one), FabricError::SglOffset),
            (pointer(last(0, 32), &one), FabricError::SglOffset),
            (pointer(last(0, 0), &one), FabricError::SglCount),
            (pointer(last(0, 8), &one), FabricError::SglCount),
            (pointer(last(0, 16), &[last(0, 16)]), FabricError::SglType),
            (pointer(last(0, 16), &[Sgl::BitBucket { length: 4 }]), FabricError::SglType),
            (pointer(Sgl::Transport { length: 512 }, &[]), FabricError::SglType),
            (
                pointer(Sgl::LastSegment { address: 0, length: 16, offset: false }, &one),
                FabricError::SglType,
            ),
            (pointer(keyed(u64::MAX, 2, 3, false), &[]), FabricError::SglLength),
            (pointer(last(0, 16), &[keyed(u64::MAX - 1, 2, 3, false)]), FabricError::SglLength),
        ];
        for (at, (got, expected)) in cases.into_iter().enumerate() {
            assert_eq!(got, Err(expected), "case {at}");
        }
        assert_eq!(pointer(last(0, 256), &huge).unwrap().length, 16 * 0xff_ffff);
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_apart(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Some((_, Ok(pointer))) = parse(&bytes) {
                let list = pointer.list.as_deref().unwrap_or_default();
                prop_assert!(list.len() <= MAX_DESCRIPTORS);
                let sum: u64 = list.iter().map(|one| u64::from(one.length)).sum();
                prop_assert_eq!(sum, u64::from(pointer.length));
            }
        }
    }
}
