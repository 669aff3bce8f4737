//! What every provider of the [seam](crate::seam) has to do, as checks that panic where one does not.
//!
//! A provider's tests make a fresh [`Pair`] for each of the [`checks`], opened with [`SPEC`], with
//! [`MEMORY`] bytes at each end registered for [`ACCESS`], [`COMPLETIONS`] entries, [`READS`] each way, and
//! retries without end for receives that are not there.

mod connection;
mod refusal;
mod rig;
mod transfer;

pub use rig::{End, Memory, Pair};

use crate::seam::{Device, EndpointSpec};
use crate::work::{Access, Completion, CompletionStatus};

/// How the endpoints of a [`Pair`] are opened.
pub const SPEC: EndpointSpec = EndpointSpec {
    sends: 32,
    receives: 32,
    send_pieces: 2,
    receive_pieces: 2,
    inline: 64,
    traffic_class: None,
    retries: None,
};

/// Entries of each completion queue.
pub const COMPLETIONS: u32 = 256;

/// Bytes of each end's memory.
pub const MEMORY: usize = 1 << 20;

/// What the memory is registered for.
pub const ACCESS: Access = Access { local_write: true, remote_read: true, remote_write: true };

/// RDMA READs that may be outstanding, each way.
pub const READS: u8 = 4;

/// A check of one property.
pub type Check<D> = fn(&mut Pair<D>);

/// Every check with its name.
#[must_use]
pub fn checks<D: Device>() -> Vec<(&'static str, Check<D>)> {
    let mut all = transfer::checks();
    all.extend(refusal::checks());
    all.extend(connection::checks());
    all
}

/// Bytes that differ by `seed` and place.
#[must_use]
pub fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|place| seed ^ (place.wrapping_mul(31) >> 3).to_le_bytes()[0]).collect()
}

/// The slots of what completed from one queue, each with `status`: `b's'` for sends, `b'r'` for receives.
///
/// # Panics
/// If one has another status.
#[must_use]
pub fn slots(completions: &[Completion], kind: u8, status: CompletionStatus) -> Vec<u32> {
    let of_kind = completions.iter().filter(|completion| completion.id.kind() == kind);
    of_kind
        .map(|completion| {
            assert_eq!(completion.status, status, "{completion:?}");
            completion.id.slot()
        })
        .collect()
}

/// The statuses of what completed from one queue, in order.
#[must_use]
pub fn statuses(completions: &[Completion], kind: u8) -> Vec<CompletionStatus> {
    let of_kind = completions.iter().filter(|completion| completion.id.kind() == kind);
    of_kind.map(|completion| completion.status).collect()
}
