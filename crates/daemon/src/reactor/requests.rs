//! Commands between capsule and response: one slab for the reactor, one list for each connection.
//!
//! An Abort and the end of a connection visit only the commands of one connection, never all
//! commands of the reactor.

use super::gen_slab::{GenSlab, SlotKey};
use super::io::{Io, Pending};

/// The commands of a reactor.
#[derive(Debug)]
pub(super) struct Requests {
    slots: GenSlab<Entry>,
}

#[derive(Debug)]
struct Entry {
    pending: Pending,
    /// Its neighbors in its connection's list: the next newer command, and the next older one.
    newer: Option<SlotKey>,
    older: Option<SlotKey>,
}

impl Requests {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self { slots: GenSlab::with_capacity(capacity) }
    }

    /// Inserts a command. `newest` is the head of its connection's list.
    #[inline]
    pub(super) fn insert(&mut self, newest: &mut Option<SlotKey>, pending: Pending) -> SlotKey {
        let older = *newest;
        let key = self.slots.insert(Entry { pending, newer: None, older });
        if let Some(entry) = older.and_then(|older| self.slots.get_mut(older)) {
            entry.newer = Some(key);
        }
        *newest = Some(key);
        key
    }

    /// Removes a command.
    ///
    /// `newest` is the head of its connection's list, if the connection still exists.
    #[inline]
    pub(super) fn remove(
        &mut self,
        newest: Option<&mut Option<SlotKey>>,
        key: SlotKey,
    ) -> Option<Pending> {
        let Entry { pending, newer, older } = self.slots.remove(key)?;
        match newer.and_then(|newer| self.slots.get_mut(newer)) {
            Some(entry) => entry.older = older,
            None => {
                if let Some(newest) = newest {
                    *newest = older;
                }
            }
        }
        if let Some(entry) = older.and_then(|older| self.slots.get_mut(older)) {
            entry.newer = newer;
        }
        Some(pending)
    }

    #[inline]
    pub(super) fn get(&self, key: SlotKey) -> Option<&Pending> {
        self.slots.get(key).map(|entry| &entry.pending)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: SlotKey) -> Option<&mut Pending> {
        self.slots.get_mut(key).map(|entry| &mut entry.pending)
    }

    /// Returns an I/O command that exists, because the reactor works on it.
    ///
    /// # Panics
    /// In debug builds, if it does not exist.
    #[inline]
    pub(super) fn present_io(&mut self, key: SlotKey) -> Option<&mut Io> {
        let io = match self.get_mut(key) {
            Some(Pending::Io(io)) => Some(io),
            _ => None,
        };
        debug_assert!(io.is_some(), "an I/O command ended while the reactor worked on it");
        io
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Iterates over all commands.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SlotKey, &Pending)> {
        self.slots.iter().map(|(key, entry)| (key, &entry.pending))
    }

    /// Iterates mutably over all commands.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (SlotKey, &mut Pending)> {
        self.slots.iter_mut().map(|(key, entry)| (key, &mut entry.pending))
    }

    /// Iterates over the commands of the connection whose list begins with `newest`.
    pub(super) fn of(&self, newest: Option<SlotKey>) -> impl Iterator<Item = (SlotKey, &Pending)> {
        let entry =
            move |key: Option<SlotKey>| key.and_then(|key| Some((key, self.slots.get(key)?)));
        std::iter::successors(entry(newest), move |(_, known)| entry(known.older))
            .map(|(key, entry)| (key, &entry.pending))
    }

    pub(super) fn keys(&self) -> Vec<SlotKey> {
        self.slots.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::super::io::Aborting;
    use super::*;

    fn pending(connection: SlotKey, cid: u16) -> Pending {
        Pending::Abort(Aborting { connection, cid })
    }

    fn cids(requests: &Requests, newest: Option<SlotKey>) -> Vec<u16> {
        requests
            .of(newest)
            .map(|(_, pending)| match pending {
                Pending::Abort(Aborting { cid, .. }) => *cid,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn each_connection_has_its_own_list() {
        let mut connections = GenSlab::with_capacity(2);
        let (one, other) = (connections.insert(()), connections.insert(()));
        let mut requests = Requests::with_capacity(0);
        let (mut ones, mut others) = (None, None);
        let mut keys = Vec::new();
        for cid in 0..6 {
            let (newest, connection) =
                if cid % 2 == 0 { (&mut ones, one) } else { (&mut others, other) };
            keys.push(requests.insert(newest, pending(connection, cid)));
        }
        assert_eq!(
            (cids(&requests, ones), cids(&requests, others)),
            (vec![4, 2, 0], vec![5, 3, 1])
        );
        // Removals from the inner part, from the front and from the end.
        requests.remove(Some(&mut ones), keys[2]).unwrap();
        assert_eq!(cids(&requests, ones), [4, 0]);
        requests.remove(Some(&mut others), keys[5]).unwrap();
        assert_eq!(cids(&requests, others), [3, 1]);
        requests.remove(Some(&mut others), keys[1]).unwrap();
        assert_eq!(cids(&requests, others), [3]);
        assert!(requests.remove(Some(&mut others), keys[1]).is_none(), "once");
        // The other connection reuses a slot.
        keys.push(requests.insert(&mut others, pending(other, 9)));
        assert_eq!((cids(&requests, ones), cids(&requests, others)), (vec![4, 0], vec![9, 3]));
        // The connection has gone before its commands.
        requests.remove(None, keys[4]).unwrap();
        requests.remove(None, keys[0]).unwrap();
        assert_eq!((requests.len(), cids(&requests, others)), (2, vec![9, 3]));
    }
}
