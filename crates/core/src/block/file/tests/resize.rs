//! A file that grows and shrinks while it is served.

use std::fs;

use super::*;

const MIB: u64 = 1 << 20;

fn len(config: &FileConfig) -> u64 {
    fs::metadata(&config.path).unwrap().len()
}

/// Fills the block at `at` with a byte.
fn write(device: &FileDevice, at: u64, byte: u8) {
    let pool = pool();
    let mut queue = device.open_queue(&pool).unwrap();
    let op = BlockOp::write(1, at, filled(&pool, 4096, byte), false);
    assert_eq!(run(&mut *queue, op).result, Ok(()));
}

/// Returns the first byte at `at`.
fn read(device: &FileDevice, at: u64) -> u8 {
    let pool = pool();
    let mut queue = device.open_queue(&pool).unwrap();
    let done = run(&mut *queue, BlockOp::read(1, at, filled(&pool, 4096, 0xff)));
    assert_eq!(done.result, Ok(()));
    done.buf.unwrap().as_slice()[0]
}

#[test]
fn a_file_grows_at_once_and_shrinks_when_the_larger_one_is_gone() {
    for (_folder, config) in configs(MIB, 4096) {
        let small = FileDevice::open(&config).unwrap();
        write(&small, 0, 1);
        let large = small.resized(Some(2 * MIB)).unwrap();
        assert_eq!((large.info().size, len(&config)), (2 * MIB, 2 * MIB));
        write(&large, MIB, 2);
        drop(small);
        assert_eq!((read(&large, 0), read(&large, MIB), len(&config)), (1, 2, 2 * MIB));

        let small = large.resized(Some(MIB)).unwrap();
        assert_eq!(len(&config), 2 * MIB, "the larger one may have commands in flight");
        drop(large);
        assert_eq!((len(&config), read(&small, 0)), (MIB, 1));
        // Added bytes are zero.
        let large = small.resized(Some(2 * MIB)).unwrap();
        assert_eq!(read(&large, MIB), 0);
        // The file stays locked, whichever device was opened first.
        drop(small);
        assert!(FileDevice::open(&config).is_err());
    }
}

#[test]
fn what_comes_again_while_the_larger_one_is_in_use_is_zero() {
    for (_folder, config) in configs(2 * MIB, 4096) {
        let large = FileDevice::open(&config).unwrap();
        for at in [0, MIB, 2 * MIB - 4096] {
            write(&large, at, 2);
        }
        let small = large.resized(Some(MIB)).unwrap();
        let again = small.resized(Some(2 * MIB)).unwrap();
        let bytes = [0, MIB, 2 * MIB - 4096].map(|at| read(&again, at));
        assert_eq!((bytes, len(&config)), ([2, 0, 0], 2 * MIB));
        write(&again, MIB, 3);
        drop((large, small));
        assert_eq!((read(&again, MIB), len(&config)), (3, 2 * MIB));
    }
}

#[test]
fn a_file_that_was_made_in_vain_goes_and_others_stay() {
    for (_folder, config) in configs(MIB, 512) {
        let device = FileDevice::open(&config).unwrap();
        device.resized(Some(2 * MIB)).unwrap().undo_create();
        assert!(config.path.exists());
        device.undo_create();
        assert!(!config.path.exists());
        drop(device);
        fs::write(&config.path, [0; 4096]).unwrap();
        let there = FileConfig { size: None, ..config.clone() };
        FileDevice::open(&there).unwrap().undo_create();
        assert!(config.path.exists());
    }
}

#[test]
fn what_is_not_to_be_leaves_the_file_as_it_was() {
    for (_folder, config) in configs(MIB, 512) {
        let device = FileDevice::open(&config).unwrap();
        for wanted in [4 * MIB, MIB / 2] {
            let other = device.resized(Some(wanted)).unwrap();
            device.revert_resize();
            drop(other);
            assert_eq!(len(&config), MIB);
        }
        assert!(device.resized(Some(100)).is_err(), "no whole block");
        assert_eq!(device.resized(None).unwrap().info().size, MIB);
        assert_eq!(len(&config), MIB);
    }
}
