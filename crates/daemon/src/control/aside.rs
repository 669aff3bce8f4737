//! What threads do for the control plane while it goes on: drives that are opened for a reload, and drives that are
//! asked whether their namespaces changed.
//!
//! ```text
//!   SIGHUP ---read, begin---> reload ---the drives are open---> Running applies it
//!                               ^
//!   a drive told of a change -> look --it did change--'
//! ```

use tokio::task::JoinHandle;

use super::devices::Groundwork;
use super::running::Running;
use crate::config::loaded::Loaded;

/// What threads do.
#[derive(Debug, Default)]
pub(super) struct Aside {
    pub(super) reload: Option<Reload>,
    /// Drives are being asked; names of devices whose namespaces changed come of it.
    pub(super) look: Option<JoinHandle<Vec<String>>>,
}

/// What is to be applied as soon as the drives that it wants are open.
#[derive(Debug)]
pub(super) struct Reload {
    wanted: Wanted,
    groundwork: JoinHandle<Groundwork>,
}

#[derive(Debug)]
enum Wanted {
    /// What the file says.
    File(Box<Loaded>),
    /// What runs, but for devices that are to be opened anew.
    Same,
}

/// What can be applied now.
#[derive(Debug)]
pub(super) struct Ready {
    wanted: Wanted,
    groundwork: Groundwork,
}

impl Aside {
    /// Reads the file again, and begins to make it what runs. What was begun before is not wanted any more.
    pub(super) async fn hang_up(&mut self, running: &mut Running) {
        let Some(loaded) = running.read_again() else { return };
        if self.reload.is_some() {
            tracing::info!(
                "the config was read once more before what it said before could be applied"
            );
        }
        self.begin(running, Wanted::File(Box::new(loaded))).await;
    }

    /// Has the devices of these names opened anew.
    pub(super) async fn follow(&mut self, running: &mut Running, devices: &[String]) {
        if devices.is_empty() {
            return;
        }
        running.server_mut().outdate(devices);
        let wanted = self.reload.take().map_or(Wanted::Same, |reload| reload.wanted);
        self.begin(running, wanted).await;
    }

    async fn begin(&mut self, running: &mut Running, wanted: Wanted) {
        let config = match &wanted {
            Wanted::File(loaded) => loaded.config.clone(),
            Wanted::Same => running.server().config().clone(),
        };
        let groundwork = running.server_mut().begin(&config).await;
        self.reload = Some(Reload { wanted, groundwork });
    }

    /// What can be applied, as soon as it can be; never if nothing is to be.
    pub(super) async fn ready(reload: &mut Option<Reload>) -> Ready {
        let Some(begun) = reload else { return std::future::pending().await };
        // A thread that panicked has said so.
        let groundwork = (&mut begun.groundwork).await.unwrap_or_default();
        match reload.take() {
            Some(Reload { wanted, .. }) => Ready { wanted, groundwork },
            None => std::future::pending().await,
        }
    }

    /// What a thread answers, as soon as it does; never if there is none.
    pub(super) async fn answer<T: Default>(thread: &mut Option<JoinHandle<T>>) -> T {
        let Some(asked) = thread else { return std::future::pending().await };
        let answer = asked.await.unwrap_or_default();
        *thread = None;
        answer
    }
}

impl Ready {
    pub(super) async fn apply(self, running: &mut Running) {
        match self.wanted {
            Wanted::File(loaded) => running.take_file(*loaded, self.groundwork).await,
            Wanted::Same => running.renew(self.groundwork).await,
        }
    }
}
