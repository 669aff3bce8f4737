//! Parsing of a host's command capsules over RDMA: the command, and the location of its data.
//!
//! Either the capsule has a list of descriptors with a known outcome, valid or with one named
//! fault, or it is any bytes. Invariant: all parsed values were in the capsule, and are in bounds.

use nvmeof_transport::FabricError;
use nvmeof_transport::rdma::MAX_DESCRIPTORS;
use nvmeof_transport::rdma::capsule::{DataPointer, RemoteBuffer, parse};
use nvmeof_wire::sqe::{Psdt, SQE_SIZE};
use nvmeof_wire::zerocopy::{FromBytes, IntoBytes};
use nvmeof_wire::{Sgl, SglDescriptor, Sqe};

use crate::input::Input;

/// Bytes of a descriptor.
const DESCRIPTOR: usize = size_of::<SglDescriptor>();
/// Maximum bytes behind a command.
const BEHIND: usize = 4096;

/// Runs one input.
///
/// # Panics
/// If a capsule is parsed incorrectly.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.byte() % 4 {
        0 => check(input.bytes(SQE_SIZE + BEHIND)),
        1 => {
            let capsule = List::new(&mut input).capsule();
            check(&bent(&capsule, &mut input));
        }
        2 => faulty(&mut input),
        _ => {
            let list = List::new(&mut input);
            let expected = list.expected();
            assert_eq!(parse(&list.capsule()).map(|(_, pointer)| pointer), Some(Ok(expected)));
        }
    }
}

/// Checks the invariants for any bytes.
fn check(capsule: &[u8]) {
    let Some((sqe, pointer)) = parse(capsule) else {
        assert!(capsule.len() < SQE_SIZE, "a whole command is not seen");
        return;
    };
    let (command, behind) = capsule.split_at(SQE_SIZE);
    assert_eq!(sqe.as_bytes(), command, "another command than was sent");
    let Ok(pointer) = pointer else { return };
    let first = sqe.dptr.parse();
    let Some(list) = pointer.list.as_deref() else {
        assert_eq!(pointer.length, 0);
        let asked = match first {
            Sgl::Keyed { key, invalidate: true, .. } if sqe.psdt() == Psdt::Sgl => Some(key),
            _ => None,
        };
        assert_eq!(pointer.invalidate, asked);
        return;
    };
    assert_eq!(sqe.psdt(), Psdt::Sgl, "a list where there is no SGL");
    let (Sgl::Segment { offset, .. } | Sgl::LastSegment { offset, .. }) = first else {
        panic!("a list behind {first:?}");
    };
    assert!(offset, "a list in host memory");
    assert!((1..=MAX_DESCRIPTORS).contains(&list.len()));
    let total: u64 = list.iter().map(|one| u64::from(one.length)).sum();
    assert_eq!(total, u64::from(pointer.length));
    let sent: Vec<Sgl> = behind
        .windows(DESCRIPTOR)
        .filter_map(|bytes| Some(SglDescriptor::read_from_bytes(bytes).ok()?.parse()))
        .collect();
    let mut asked = None;
    for one in list {
        assert!(one.address.checked_add(u64::from(one.length)).is_some(), "{one:?} wraps");
        let is_it = |sgl: &&Sgl| {
            matches!(**sgl, Sgl::Keyed { address, length, key, .. }
                if (RemoteBuffer { address, length, key }) == *one)
        };
        let found: Vec<&Sgl> = sent.iter().filter(is_it).collect();
        assert!(!found.is_empty(), "{one:?} was not in the capsule");
        // The same descriptor can occur with and without it.
        asked = found
            .iter()
            .any(|sgl| matches!(sgl, Sgl::Keyed { invalidate: true, .. }))
            .then_some(one.key);
    }
    assert!(pointer.invalidate.is_none() || pointer.invalidate == asked);
}

/// Checks a list with one named fault.
fn faulty(input: &mut Input<'_>) {
    let mut list = List::new(input);
    let segment = input.below(list.segments.len());
    let is_last = segment + 1 == list.segments.len();
    let expected = match input.byte() % 9 {
        0 => {
            list.first = Sgl::Transport { length: input.dword() };
            FabricError::SglType
        }
        // In host memory.
        1 => {
            list.first = relocated(list.first, false, |at, len| (at, len));
            FabricError::SglType
        }
        2 => {
            let far = BEHIND as u64 + input.qword() % (u64::MAX - BEHIND as u64);
            list.first = relocated(list.first, true, |_, len| (far, len));
            FabricError::SglOffset
        }
        3 => {
            let odd = 1 + input.dword() % 15;
            list.first = relocated(list.first, true, |at, len| (at, len + odd));
            FabricError::SglCount
        }
        4 => {
            list.first = relocated(list.first, true, |at, _| (at, 0));
            FabricError::SglCount
        }
        // Among the descriptors of a segment, one that describes no memory.
        5 => {
            let one = input.below(list.segments[segment].len().max(1));
            let strange = [
                Sgl::BitBucket { length: 512 },
                Sgl::DataBlock { address: 0, length: 512 },
                Sgl::InCapsule { offset: 0, length: 16 },
                Sgl::Transport { length: 512 },
                Sgl::Unknown { kind: 0xf, subtype: 0 },
            ];
            let strange = input.pick(&strange);
            list.replace(segment, one, strange);
            FabricError::SglType
        }
        6 => {
            let one = input.below(list.segments[segment].len().max(1));
            let length = 1 + input.dword() % 0xff_ffff;
            let address = u64::MAX - u64::from(input.dword() % length);
            list.replace(segment, one, Sgl::Keyed { address, length, key: 1, invalidate: false });
            FabricError::SglLength
        }
        // More than a command is allowed to have.
        7 => {
            let many = MAX_DESCRIPTORS + 1 + input.below(16);
            let keyed = Sgl::Keyed { address: 0, length: 1, key: 2, invalidate: false };
            list.segments = vec![vec![keyed; many]];
            list.gaps = vec![0];
            list.first = list.head();
            FabricError::SglCount
        }
        // The last segment leads to another, which is invalid.
        _ if is_last => {
            let on = Sgl::LastSegment { address: 0, length: 16, offset: true };
            let one = input.below(list.segments[segment].len().max(1));
            list.replace(segment, one, on);
            FabricError::SglType
        }
        // A segment that leads to another claims to be the last.
        _ if segment == 0 => {
            let (Sgl::Segment { address, length, .. } | Sgl::LastSegment { address, length, .. }) =
                list.first
            else {
                unreachable!("a list begins with a segment");
            };
            list.first = Sgl::LastSegment { address, length, offset: true };
            FabricError::SglType
        }
        _ => return,
    };
    let capsule = list.capsule();
    assert_eq!(parse(&capsule).map(|(_, pointer)| pointer), Some(Err(expected)), "{list:?}");
    check(&capsule);
}

fn relocated(sgl: Sgl, offset: bool, change: impl FnOnce(u64, u32) -> (u64, u32)) -> Sgl {
    match sgl {
        Sgl::Segment { address, length, .. } => {
            let (address, length) = change(address, length);
            Sgl::Segment { address, length, offset }
        }
        Sgl::LastSegment { address, length, .. } => {
            let (address, length) = change(address, length);
            Sgl::LastSegment { address, length, offset }
        }
        other => other,
    }
}

/// A valid list of descriptors: segments of a capsule, of which all but the last lead to the next.
#[derive(Debug)]
struct List {
    /// The command's descriptor.
    first: Sgl,
    /// Memory descriptors, by segment; each segment has at least one.
    segments: Vec<Vec<Sgl>>,
    /// Unused bytes before each segment.
    gaps: Vec<usize>,
}

impl List {
    fn new(input: &mut Input<'_>) -> Self {
        let mut segments = vec![Vec::new(); input.below(4) + 1];
        for _ in 0..input.below(MAX_DESCRIPTORS - segments.len() + 1) {
            let one = keyed(input);
            let at = input.below(segments.len());
            segments[at].push(one);
        }
        for segment in segments.iter_mut().filter(|segment| segment.is_empty()) {
            segment.push(keyed(input));
        }
        let gaps = segments.iter().map(|_| input.below(64)).collect();
        let mut list = Self { first: Sgl::Transport { length: 0 }, segments, gaps };
        list.first = list.head();
        list
    }

    /// Returns the bytes of a segment, including the descriptor of the next one.
    fn len(&self, at: usize) -> usize {
        let leads_on = usize::from(at + 1 < self.segments.len());
        (self.segments[at].len() + leads_on) * DESCRIPTOR
    }

    /// Returns the descriptor of a segment.
    fn descriptor(&self, at: usize) -> Sgl {
        let before: usize = (0..at).map(|one| self.gaps[one] + self.len(one)).sum();
        let address = (before + self.gaps[at]) as u64;
        let length = u32::try_from(self.len(at)).expect("a small number");
        if at + 1 == self.segments.len() {
            Sgl::LastSegment { address, length, offset: true }
        } else {
            Sgl::Segment { address, length, offset: true }
        }
    }

    fn head(&self) -> Sgl {
        self.descriptor(0)
    }

    fn replace(&mut self, segment: usize, one: usize, by: Sgl) {
        self.segments[segment][one] = by;
    }

    fn capsule(&self) -> Vec<u8> {
        let mut bytes = Sqe::new(2, 7, 1).with_sgl(self.first).as_bytes().to_vec();
        for (at, segment) in self.segments.iter().enumerate() {
            bytes.resize(bytes.len() + self.gaps[at], 0xa5);
            for sgl in segment {
                bytes.extend(sgl.encode().as_bytes());
            }
            if at + 1 < self.segments.len() {
                bytes.extend(self.descriptor(at + 1).encode().as_bytes());
            }
        }
        bytes
    }

    fn expected(&self) -> DataPointer {
        let mut pointer = DataPointer::default();
        let mut list = Vec::new();
        for sgl in self.segments.iter().flatten() {
            let Sgl::Keyed { address, length, key, invalidate } = *sgl else {
                unreachable!("a good list has memory's descriptors")
            };
            list.push(RemoteBuffer { address, length, key });
            pointer.length += length;
            pointer.invalidate = invalidate.then_some(key);
        }
        pointer.list = Some(list.into());
        pointer
    }
}

fn keyed(input: &mut Input<'_>) -> Sgl {
    let length = match input.byte() % 4 {
        0 => 0,
        1 => 0xff_ffff,
        _ => u32::from(input.word()),
    };
    let address = match input.byte() % 4 {
        // The last byte of the address space.
        0 => u64::MAX - u64::from(length),
        _ => input.qword() >> 1,
    };
    Sgl::Keyed { address, length, key: input.dword(), invalidate: input.coin() }
}

/// Returns a capsule with a few bytes changed, or truncated.
fn bent(capsule: &[u8], input: &mut Input<'_>) -> Vec<u8> {
    let mut bytes = capsule.to_vec();
    for _ in 0..=input.below(4) {
        let at = input.below(bytes.len());
        bytes[at] = input.byte();
    }
    if input.coin() {
        bytes.truncate(input.below(bytes.len() + 1));
    }
    bytes
}
