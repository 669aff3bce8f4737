//! One drive through the VFIO driver: its identity, its namespaces, its first block.
//!
//! ```text
//! cargo run -p nvmeof-core --example one_drive                    # a fake drive in memory
//! cargo run -p nvmeof-core --example one_drive -- 0000:01:00.0    # a drive bound to vfio-pci
//! ```
//!
//! The program writes nothing to the drive. While it runs, the drive belongs to it alone, as it
//! does to the target. If the function is not bound to `vfio-pci`, the error names the remedy.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use nvmeof_core::block::{BlockDevice, BlockOp, NvmeDevice};
use nvmeof_core::dma::{Buffer, ChunkPool, CorePool, PoolConfig};
use nvmeof_core::nvme_driver::function::Function;
use nvmeof_core::nvme_driver::{BufferMaps, Controller, ControllerOptions};
use nvmeof_core::vfio;
use nvmeof_fake_drive::{FakeDrive, FakeDriveConfig};

#[expect(clippy::print_stderr, reason = "a person reads it")]
fn main() -> ExitCode {
    let address = std::env::args().nth(1);
    match open_function(address.as_deref()).and_then(show_drive) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Opens a PCI function.
///
/// The driver sees a drive only as a [`Function`]: registers, DMA memory, interrupts, reset.
fn open_function(address: Option<&str>) -> Result<Arc<dyn Function>, Box<dyn Error>> {
    let Some(address) = address else {
        let fake = FakeDrive::new(FakeDriveConfig::default());
        let mut block = [0; 512];
        block[..28].copy_from_slice(b"The first block of the drive");
        fake.write_media(1, 0, &block);
        return Ok(fake.function());
    };
    Ok(vfio::open(address)?)
}

#[expect(clippy::print_stdout, reason = "a person reads it")]
fn show_drive(function: Arc<dyn Function>) -> Result<(), Box<dyn Error>> {
    // Resets and enables the controller, identifies it, and starts a thread for its timeouts.
    let controller = Controller::open(function, ControllerOptions::default())?;
    let identity = controller.identity();
    println!("drive      {}", controller.address());
    println!("model      {}", identity.model);
    println!("serial     {}", identity.serial);
    println!("firmware   {}", identity.firmware);

    // Devices access only the buffers of a pool, which is mapped in the IOMMU as it grows.
    let chunks = ChunkPool::new(PoolConfig { cap: 16 << 20, ..PoolConfig::default() })?;
    let maps = Arc::new(BufferMaps::new(&chunks));
    let pool = CorePool::new(&chunks);
    for nsid in controller.namespaces()? {
        let device = NvmeDevice::new("drive", Arc::clone(&controller), nsid, Arc::clone(&maps))?;
        let info = device.info();
        println!("namespace  {nsid}: {} bytes in blocks of {}", info.size, info.block_size);
        print_bytes(&read_first_block(&device, &pool)?.as_slice()[..64]);
    }
    Ok(())
}

/// Reads the first block of a namespace.
fn read_first_block(device: &NvmeDevice, pool: &CorePool) -> Result<Buffer, Box<dyn Error>> {
    // A submission and a completion queue, used by one thread without a lock.
    let mut queue = device.open_queue(pool)?;
    let buffer = pool.lease(usize::try_from(device.info().block_size)?)?;
    // The operation owns the buffer until it completes. The token returns with it.
    queue.submit(BlockOp::read(1, 0, buffer)).map_err(|rejected| rejected.to_string())?;
    let mut done = Vec::new();
    while done.is_empty() {
        // A reactor polls all its queues in turn; to sleep, it waits for `queue.event_fd()`.
        queue.poll(&mut done);
    }
    let completed = done.remove(0);
    completed.result?;
    completed.buf.ok_or_else(|| "a read without its buffer".into())
}

/// Prints bytes in hexadecimal and as text.
#[expect(clippy::print_stdout, reason = "a person reads it")]
fn print_bytes(bytes: &[u8]) {
    for (line, bytes) in bytes.chunks(16).enumerate() {
        let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let text: String = bytes
            .iter()
            .map(
                |&byte| {
                    if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '.' }
                },
            )
            .collect();
        println!("  {:04x}  {}  {text}", line * 16, hex.join(" "));
    }
}
