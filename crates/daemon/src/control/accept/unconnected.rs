//! Connections that have not sent Connect: their limit, and the choice of the one to close.
//!
//! They are counted separately from connected queues. Peers that open sockets and send nothing
//! therefore cannot use up the connections of hosts.
//!
//! At the limit, a new connection replaces the oldest one from the address with the most. A host
//! sends Connect within a few round trips, so the replaced connection is one that sends nothing.
//! Connections that have sent no data at all are replaced first. Sockets opened at a high rate then
//! do not displace a host between its first data and its Connect.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nvmeof_nvmf::network_of;

/// Connections that have not sent Connect; see the module.
#[derive(Debug)]
pub(crate) struct Unconnected {
    most: usize,
    list: Mutex<VecDeque<Entry>>,
}

#[derive(Debug)]
struct Entry {
    /// Alive while the queue waits for Connect; true once its host has sent data.
    token: Weak<AtomicBool>,
    from: IpAddr,
    slot: UnconnectedSlot,
}

/// Reactor and queue of a connection without a Connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnconnectedSlot {
    /// Its reactor.
    pub(crate) reactor: usize,
    /// Its queue.
    pub(crate) id: u64,
}

impl Unconnected {
    /// Creates it for `most` connections.
    ///
    /// 1/8 of them is reserved for replaced connections that are still closing.
    pub(crate) fn new(most: usize) -> Self {
        Self { most: (most - most / 8).max(1), list: Mutex::default() }
    }

    /// Admits a connection.
    ///
    /// Returns the token that its queue keeps until Connect, and the connection that it replaces.
    pub(crate) fn admit(
        &self,
        from: IpAddr,
        slot: UnconnectedSlot,
    ) -> (Arc<AtomicBool>, Option<UnconnectedSlot>) {
        let (token, from) = (Arc::new(AtomicBool::new(false)), network_of(from));
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|one| one.token.strong_count() > 0);
        let replaced = if list.len() < self.most { None } else { remove_oldest(&mut list) };
        list.push_back(Entry { token: Arc::downgrade(&token), from, slot });
        (token, replaced)
    }
}

/// Removes the oldest connection from the address with the most.
///
/// If any connection has sent no data, only these are considered.
fn remove_oldest(list: &mut VecDeque<Entry>) -> Option<UnconnectedSlot> {
    let any_silent = list.iter().any(Entry::is_silent);
    let may_go: Vec<bool> = list.iter().map(|one| !any_silent || one.is_silent()).collect();
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for (one, _) in list.iter().zip(&may_go).filter(|(_, may_go)| **may_go) {
        *counts.entry(one.from).or_default() += 1;
    }
    let most = counts.values().copied().max()?;
    let goes = |(one, may_go): (&Entry, &bool)| *may_go && counts.get(&one.from) == Some(&most);
    let oldest = list.iter().zip(&may_go).position(goes)?;
    list.remove(oldest).map(|one| one.slot)
}

impl Entry {
    fn is_silent(&self) -> bool {
        self.token.upgrade().is_some_and(|token| !token.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn slot(id: u64) -> UnconnectedSlot {
        UnconnectedSlot { reactor: 0, id }
    }

    #[test]
    fn the_oldest_from_where_the_most_come_makes_room() {
        let unconnected = Unconnected::new(4);
        let (one, other) = (address("192.0.2.1"), address("192.0.2.2"));
        let mut tokens = Vec::new();
        for id in 0..4 {
            let from = if id == 0 { other } else { one };
            let (token, replaced) = unconnected.admit(from, slot(id));
            assert_eq!(replaced, None);
            tokens.push(token);
        }
        let (token, replaced) = unconnected.admit(other, slot(4));
        assert_eq!(replaced, Some(slot(1)), "not the oldest of all");
        tokens.push(token);
        // A connection sends Connect, or closes.
        tokens.remove(2);
        assert_eq!(unconnected.admit(one, slot(5)).1, None);
    }

    #[test]
    fn a_host_that_has_said_something_outlives_any_number_that_have_not() {
        let unconnected = Unconnected::new(4);
        // The host's address has the most connections.
        let tokens: Vec<_> =
            (0..3).map(|id| unconnected.admit(address("192.0.2.1"), slot(id))).collect();
        tokens.iter().for_each(|(token, _)| token.store(true, Ordering::Relaxed));
        let mut silent = Vec::new();
        for id in 3..50u8 {
            let from = IpAddr::from([198, 51, 100, id]);
            let (token, replaced) = unconnected.admit(from, slot(id.into()));
            let expected = (id > 3).then(|| slot(u64::from(id) - 1));
            assert_eq!(replaced, expected);
            silent.push(token);
        }
    }

    #[test]
    fn addresses_of_one_network_count_together() {
        let unconnected = Unconnected::new(3);
        let honest = unconnected.admit(address("2001:db8:1::1"), slot(0));
        let one = unconnected.admit(address("2001:db8:2::1"), slot(1));
        let two = unconnected.admit(address("2001:db8:2::2"), slot(2));
        assert_eq!(unconnected.admit(address("2001:db8:2::3"), slot(3)).1, Some(slot(1)));
        drop((honest, one, two));
    }
}
