//! The devices of this machine, by rdma-core's libraries.

use std::net::SocketAddr;
use std::time::Duration;

use nvmeof_verbs::VerbsError;
use nvmeof_verbs::system::{SystemDevice, SystemTicket, resolve};

use super::Routes;

/// Routes as the system's tables have them.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemRoutes;

impl Routes for SystemRoutes {
    type Device = SystemDevice;

    fn resolve(&self, to: SocketAddr, timeout: Duration) -> Result<SystemTicket, VerbsError> {
        resolve(to, None, timeout)
    }
}
