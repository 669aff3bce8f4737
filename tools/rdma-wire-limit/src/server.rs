//! The end that provides memory. Only its device works while a client reads and writes.

use std::time::Duration;

use anyhow::{Context, Result};
use async_rdma::{LocalMr, LocalMrReadAccess, LocalMrWriteAccess, Rdma};
use tokio::net::{TcpListener, TcpStream};

use crate::args::{ServerArgs, Wait};
use crate::control::{self, Answer, Banner, Hello};
use crate::device::{self, Port};
use crate::end;
use crate::result::pattern;

/// Maximum time for which a client can use the memory; it ends with the connection.
const LEASE: Duration = Duration::from_secs(24 * 3600);

/// Serves clients, one after the other.
///
/// # Errors
/// No device, or no address to listen on. The failure of a client is printed, and the next client
/// is served, except with `--once`.
pub(crate) async fn run(args: &ServerArgs) -> Result<()> {
    let port = device::find(&args.path)?;
    let listener = TcpListener::bind(args.listen).await.with_context(|| {
        format!("cannot listen on {}: is it in use? choose another with --listen", args.listen)
    })?;
    println!("ready {} on device {}", listener.local_addr()?, port.device);
    loop {
        let (mut stream, client) = listener.accept().await.context("cannot accept a client")?;
        let served = serve(&mut stream, &port, args).await;
        match served.with_context(|| format!("client {client}")) {
            Ok(()) => println!("client {client} is done"),
            Err(error) if args.once => return Err(error),
            Err(error) => eprintln!("error: {error:#}"),
        }
        if args.once {
            return Ok(());
        }
    }
}

async fn serve(stream: &mut TcpStream, port: &Port, args: &ServerArgs) -> Result<()> {
    control::send(stream, &Banner { version: control::VERSION, mtu: port.mtu }).await?;
    let hello: Hello = control::receive(stream).await?;
    match prepare(&hello, port, args).await {
        // The client uses the memory until it disconnects.
        Ok((answer, _rdma, _memory)) => {
            control::send(stream, &answer).await?;
            control::closed(stream).await;
            Ok(())
        }
        Err(error) => {
            control::send(stream, &Answer::Refused { why: format!("{error:#}") }).await?;
            Err(error)
        }
    }
}

/// Connects the queue pair, and fills the memory with the pattern that the client verifies.
async fn prepare(hello: &Hello, port: &Port, args: &ServerArgs) -> Result<(Answer, Rdma, LocalMr)> {
    let bytes = usize::try_from(hello.memory(args.memory)?)?;
    let mut rdma = end::open(port, port.mtu.min(hello.mtu), 1, args.path.reads, Wait::Event)?;
    let mut memory = end::memory(&rdma, bytes)?;
    let block = usize::try_from(hello.block)?;
    for (index, block) in memory.as_mut_slice().chunks_exact_mut(block).enumerate() {
        pattern(index, block);
    }
    let token = memory.token_with_timeout(LEASE).context("this machine's clock is off")?;
    end::connect(&mut rdma, port, hello.endpoint).await?;
    let answer = Answer::Ready { endpoint: rdma.get_qp_endpoint(), memory: token };
    Ok((answer, rdma, memory))
}
