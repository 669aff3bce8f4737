//! Every engine on a file, and the driver on a drive in memory: each reads, or returns the reason.

use std::path::Path;
use std::sync::Arc;

use nvmeof_core::block::{BlockOp, Direct};
use nvmeof_core::dma::{ChunkPool, CorePool, PoolConfig};
use nvmeof_engines::{Engine, EngineUnavailable, ReadSource, open, open_with, sector_size};
use nvmeof_fake_drive::{FakeDrive, FakeDriveConfig};

const SIZE: u64 = 1 << 20;

fn pool() -> Arc<ChunkPool> {
    let config = PoolConfig { cap: 16 << 20, huge_pages: false, ..PoolConfig::default() };
    ChunkPool::new(config).expect("a pool")
}

fn file() -> (tempfile::TempDir, ReadSource) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    std::fs::write(&path, vec![0x5a; 1 << 20]).expect("a file");
    (folder, ReadSource::Path { path, block_size: 4096, direct: Direct::Auto, shared: false })
}

#[test]
fn every_engine_opens_a_file_or_says_why_not() {
    let (_folder, source) = file();
    let pool = pool();
    for engine in Engine::ALL {
        match open(engine, &source, 4, 1, &pool) {
            Ok(opened) => {
                assert_eq!(opened.device.info().size, SIZE, "{engine}");
                assert_eq!(opened.note.is_some(), engine == Engine::Pvsync2Hipri, "{engine}");
                let cores = CorePool::new(&pool);
                let mut queue = opened.device.open_queue(&cores).unwrap();
                let buf = cores.lease(8192).unwrap();
                queue.submit(BlockOp::read(1, 4096, buf)).unwrap();
                let mut done = Vec::new();
                while done.is_empty() {
                    queue.poll(&mut done);
                }
                assert_eq!(done[0].result, Ok(()), "{engine}");
                let buf = done[0].buf.as_ref().unwrap();
                assert!(buf.as_slice().iter().all(|byte| *byte == 0x5a), "{engine}");
            }
            Err(EngineUnavailable::PollingUnsupported { .. }) => {
                assert_eq!(engine, Engine::IoUringPolled);
            }
            Err(error @ EngineUnavailable::RequiresVfioDrive { .. }) => {
                assert_eq!(engine, Engine::Vfio);
                let text = error.to_string();
                assert!(text.contains("nvmeof-tgt drives bind"), "{text}");
            }
            Err(error) => panic!("{engine}: {error}"),
        }
    }
}

#[test]
fn a_drive_in_memory_opens_with_our_driver_and_with_no_other() {
    let fake = FakeDrive::new(FakeDriveConfig::default());
    let handle = fake.function();
    let source = ReadSource::Drive { address: "0000:61:00.0".into(), nsid: 1 };
    let pool = pool();
    for engine in Engine::ALL.into_iter().filter(|engine| *engine != Engine::Vfio) {
        let error = open(engine, &source, 4, 1, &pool).unwrap_err();
        assert!(
            matches!(error, EngineUnavailable::RequiresBlockDevice { .. }),
            "{engine}: {error}"
        );
    }
    let open_function = |address: &str| {
        assert_eq!(address, "0000:61:00.0");
        Ok(Arc::clone(&handle))
    };
    let opened = open_with(Engine::Vfio, &source, 8, 2, &pool, &open_function).unwrap();
    assert!(opened.device.info().size > 0);
    drop(opened);
    let refuse = |_: &str| Err("it is bound to nobody".to_owned());
    let error = open_with(Engine::Vfio, &source, 8, 2, &pool, &refuse).unwrap_err();
    assert_eq!(error.to_string(), "0000:61:00.0: it is bound to nobody");
}

#[test]
fn what_is_not_there_or_no_drive_is_an_error_in_words() {
    let pool = pool();
    for (path, says) in
        [("/no/such/file", "file does not exist"), ("/dev/null", "a character device")]
    {
        for engine in Engine::ALL.into_iter().filter(|engine| *engine != Engine::Vfio) {
            let source = ReadSource::Path {
                path: path.into(),
                block_size: 512,
                direct: Direct::Auto,
                shared: false,
            };
            let error = open(engine, &source, 1, 1, &pool).unwrap_err().to_string();
            assert!(error.starts_with(path) && error.contains(says), "{engine}: {error}");
        }
    }
    assert!(sector_size(Path::new("/no/such/file")).is_err());
}
