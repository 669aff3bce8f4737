//! Sources, which report several connections at a time: the completion queues of RDMA devices.
//!
//! Every turn polls them. Before it sleeps, a reactor arms them and polls once more, because
//! completions that arrive before the arming are not announced.

use nvmeof_transport::Progress;

use super::Reactor;
use super::gen_slab::SlotKey;
use super::kind;

impl Reactor {
    /// Lists the connections that sources report. Returns true if there are any.
    #[inline]
    pub(super) fn poll_sources(&mut self, now: u64) -> bool {
        if self.sources.is_empty() {
            return false;
        }
        let mut named = std::mem::take(&mut self.named);
        let mut busy = false;
        for one in self.sources.iter_mut() {
            busy |= one.source.poll(now, &mut named) == Progress::More;
        }
        self.are_sources_unsettled = busy;
        busy |= !named.is_empty();
        for token in named.drain(..) {
            let (_, key) = SlotKey::from_token(token);
            self.list(key);
        }
        self.named = named;
        busy
    }

    /// Arms the sources so that they wake this reactor.
    ///
    /// Returns false if a completion has arrived in between, so that the reactor must not sleep.
    pub(super) fn arm_sources(&mut self, now: u64) -> bool {
        for one in self.sources.iter_mut() {
            one.source.arm();
        }
        !self.poll_sources(now)
    }

    /// Adds new sources to the epoll set.
    pub(super) fn watch_sources(&mut self) {
        for one in self.sources.iter_mut().filter(|one| !one.is_watched) {
            let watched = self.poller.add_source(one.source.fd(), u64::from(kind::SOURCE) << 56);
            if let Err(error) = &watched {
                // The reactor still polls it, but a sleeping reactor sees its completions only with
                // the next tick.
                tracing::warn!(device = one.name, %error, "a completion queue cannot be watched");
            }
            one.is_watched = true;
        }
    }

    /// Drops sources that no connection uses any more.
    pub(super) fn drop_sources(&mut self) {
        if std::mem::take(&mut self.has_unused_sources) {
            let stats = &mut self.stats;
            self.sources.drop_unused(|one| stats.source_ended(&one.name, &one.source.counts()));
        }
    }
}
