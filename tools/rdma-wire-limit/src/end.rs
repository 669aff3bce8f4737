//! A queue pair, and registered memory.

use std::alloc::Layout;
use std::time::Duration;

use anyhow::{Context, Result};
use async_rdma::{
    ConnectionType, LocalMr, MRManageStrategy, MTU, PollingTriggerType, QueuePairEndpoint, Rdma,
    RdmaBuilder,
};

use crate::args::{Mtu, Wait};
use crate::device::Port;

/// Alignment of data packets in memory.
const PAGE: usize = 4096;

/// Creates an unconnected queue pair with room for `depth` requests.
///
/// # Errors
/// The device's error.
pub(crate) fn open(port: &Port, mtu: Mtu, depth: u32, reads: u8, wait: Wait) -> Result<Rdma> {
    // One poll returns at most as many completions as the queue holds.
    let completions = (depth + 1).max(64);
    let polling = match wait {
        Wait::Spin => PollingTriggerType::Manual,
        Wait::Event => PollingTriggerType::Automatic,
    };
    RdmaBuilder::default()
        .set_dev(&port.device)
        .set_port_num(port.port)
        .set_gid_index(usize::from(port.gid_index))
        .set_conn_type(ConnectionType::RCIBV)
        .set_raw(true)
        .set_cq_size(completions)
        .set_qp_max_send_wr(depth)
        .set_qp_max_recv_wr(1)
        .set_qp_max_send_sge(1)
        .set_qp_max_recv_sge(1)
        .set_max_rd_atomic(reads)
        .set_max_dest_rd_atomic(reads)
        .set_mtu(match mtu {
            Mtu::B256 => MTU::MTU256,
            Mtu::B512 => MTU::MTU512,
            Mtu::B1024 => MTU::MTU1024,
            Mtu::B2048 => MTU::MTU2048,
            Mtu::B4096 => MTU::MTU4096,
        })
        .set_mr_strategy(MRManageStrategy::Raw)
        .set_polling_trigger(polling)
        // Maximum delay after a missed event.
        .set_cc_evnet_timeout(Duration::from_millis(10))
        .build()
        .with_context(|| {
            format!(
                "cannot make a queue pair for {depth} requests on device {} (port {}, address {}): is \
                 the link up, and may this user lock memory (`ulimit -l`)?",
                port.device, port.port, port.gid_index
            )
        })
}

/// Connects a queue pair to that of the other end.
///
/// # Errors
/// The device's error.
pub(crate) async fn connect(rdma: &mut Rdma, port: &Port, to: QueuePairEndpoint) -> Result<()> {
    rdma.ibv_connect(to).await.with_context(|| {
        format!(
            "device {} cannot connect to {:?}: is that address reached through it (--gid-index), and \
             do both devices take these packets (--mtu) and so many READs (--reads)?",
            port.device,
            to.gid()
        )
    })
}

/// Allocates and registers memory.
///
/// # Errors
/// The device's error.
pub(crate) fn memory(rdma: &Rdma, bytes: usize) -> Result<LocalMr> {
    let layout = Layout::from_size_align(bytes, PAGE)?;
    rdma.alloc_local_mr(layout).with_context(|| {
        format!("cannot register {bytes} bytes: raise the limit of locked memory (`ulimit -l`)")
    })
}
