//! Checks that every [provider](nvmeof_verbs::provider) has to pass. A failed check panics.
//!
//! A provider's tests create a new [`Pair`] for each of the [`checks`]. It is opened with [`SPEC`]
//! and has [`MEMORY`] bytes at each end registered for [`ACCESS`]. It has [`COMPLETIONS`] entries,
//! [`READS`] each way, and unlimited RNR retries.

use nvmeof_verbs::{AccessFlags, Device, EndpointSpec, WcStatus, WorkCompletion};

mod connection;
mod refusal;
mod rig;
mod transfer;

pub use rig::{End, Memory, Pair};

/// Sizes of the endpoints of a [`Pair`].
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

/// Access rights of the memory.
pub const ACCESS: AccessFlags =
    AccessFlags { local_write: true, remote_read: true, remote_write: true };

/// RDMA READs that can be outstanding, each way.
pub const READS: u8 = 4;

/// A check of one property.
pub type Check<D> = fn(&mut Pair<D>);

/// Returns every check with its name.
#[must_use]
pub fn checks<D: Device>() -> Vec<(&'static str, Check<D>)> {
    let mut all = transfer::checks();
    all.extend(refusal::checks());
    all.extend(connection::checks());
    all
}

/// Returns bytes that depend on `seed` and position.
#[must_use]
pub fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|place| seed ^ (place.wrapping_mul(31) >> 3).to_le_bytes()[0]).collect()
}

/// Returns the slots of one queue's completions, each with `status`: `b's'` for sends, `b'r'` for
/// receives.
///
/// # Panics
/// If one has another status.
#[must_use]
pub fn slots(completions: &[WorkCompletion], kind: u8, status: WcStatus) -> Vec<u32> {
    let of_kind = completions.iter().filter(|completion| completion.id.kind() == kind);
    of_kind
        .map(|completion| {
            assert_eq!(completion.status, status, "{completion:?}");
            completion.id.slot()
        })
        .collect()
}

/// Returns the statuses of one queue's completions, in order.
#[must_use]
pub fn statuses(completions: &[WorkCompletion], kind: u8) -> Vec<WcStatus> {
    let of_kind = completions.iter().filter(|completion| completion.id.kind() == kind);
    of_kind.map(|completion| completion.status).collect()
}
