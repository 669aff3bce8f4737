//! The devices of this machine, through rdma-core's libraries.

use std::net::SocketAddr;
use std::time::Duration;

use nvmeof_verbs::VerbsError;
use nvmeof_verbs::system::{SystemDevice, SystemTicket, resolve};

use super::RouteResolver;

/// Routes of the system's tables.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemRouteResolver;

impl RouteResolver for SystemRouteResolver {
    type Device = SystemDevice;

    fn resolve(&self, to: SocketAddr, timeout: Duration) -> Result<SystemTicket, VerbsError> {
        resolve(to, None, timeout)
    }
}
