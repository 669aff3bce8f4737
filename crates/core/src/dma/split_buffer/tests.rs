//! Split and merged buffers.

use nvmeof_random::SplitMix64;

use super::super::{ChunkPool, CorePool, MIN_CLASS, PoolConfig};
use super::*;

fn pool() -> CorePool {
    CorePool::new(&ChunkPool::new(PoolConfig { cap: 16 << 20, ..PoolConfig::default() }).unwrap())
}

fn rejoined(cut: SplitBuffer) -> Buffer {
    cut.merge().expect("no part is left")
}

#[test]
fn parts_are_pieces_of_the_same_memory_and_come_back_as_one() {
    let pool = pool();
    let mut buffer = pool.lease(10_000).unwrap();
    buffer.as_mut_slice().fill(9);
    let (start, capacity) = (buffer.as_ptr(), buffer.capacity());
    let mut cut = SplitBuffer::new(buffer);
    let mut first = cut.part(512).unwrap();
    let mut second = cut.part(9000).unwrap();
    assert_eq!((cut.left(), first.len(), second.capacity()), (488, 512, 9000));
    assert!(cut.part(489).is_none() && cut.part(usize::MAX).is_none());
    assert_eq!(second.as_ptr().addr(), start.addr() + 512);
    assert_eq!(first.chunk(), second.chunk());
    first.as_mut_slice().fill(1);
    second.as_mut_slice().fill(2);
    drop(first);
    let cut = cut.merge().expect_err("a part lives");
    drop(second);
    assert_eq!(pool.leased(), 1);
    let whole = rejoined(cut);
    assert_eq!((whole.as_ptr(), whole.len(), whole.capacity()), (start, 10_000, capacity));
    let counts = [1, 2, 9].map(|byte| whole.as_slice().iter().filter(|b| **b == byte).count());
    assert_eq!(counts, [512, 9000, 488]);
    drop(whole);
    assert_eq!(pool.leased(), 0);
}

#[test]
fn a_part_outlives_the_cut_and_nobody_else_gets_its_memory() {
    let pool = pool();
    let mut cut = SplitBuffer::new(pool.lease(MIN_CLASS).unwrap());
    let (one, other) = (cut.part(1024).unwrap(), cut.part(1024).unwrap());
    let start = one.as_ptr();
    let cut = cut.merge().expect_err("parts live");
    drop(cut);
    drop(one);
    assert_eq!(pool.leased(), 1);
    assert_ne!(pool.lease(MIN_CLASS).unwrap().as_ptr(), start);
    drop(other);
    assert_eq!(pool.leased(), 0);
    assert_eq!(pool.lease(MIN_CLASS).unwrap().as_ptr(), start);
}

#[test]
fn a_cut_without_parts_is_the_buffer_again_or_goes_with_it() {
    let pool = pool();
    let whole = rejoined(SplitBuffer::new(pool.lease(5).unwrap()));
    assert_eq!(whole.len(), 5);
    drop(SplitBuffer::new(whole));
    assert_eq!(pool.leased(), 0);
}

#[test]
fn a_part_of_a_reserve_goes_back_to_its_promise() {
    let pool = pool();
    let reserve = pool.reserve(1, 8192).unwrap();
    let mut cut = SplitBuffer::new(reserve.lease().unwrap());
    let part = cut.part(4096).unwrap();
    drop(cut);
    assert!(reserve.lease().is_none());
    drop(part);
    assert_eq!((reserve.leased(), pool.leased()), (0, 0));
    assert!(reserve.lease().is_some());
}

/// Holder of bytes of one lease.
enum Holder {
    Bytes(Buffer, u8),
    SplitBuffer(SplitBuffer),
}

/// Parts of parts, dropped, split and merged in any order: each keeps the bytes written to it, and
/// the lease ends with the last of them.
#[test]
fn random_stories_keep_bytes_apart_and_lose_no_lease() {
    for seed in 0..200 {
        let pool = pool();
        let mut rng = SplitMix64::new(seed);
        let mut holders: Vec<Holder> = Vec::new();
        let mut stamp = 0_u8;
        for step in 0..400 {
            if holders.is_empty() || rng.below(20) == 0 {
                let buffer = pool.lease(1 + rng.index(20_000)).unwrap();
                holders.push(stamped(buffer, &mut stamp));
                continue;
            }
            let holder = holders.swap_remove(rng.index(holders.len()));
            match (holder, rng.below(10)) {
                (Holder::Bytes(buffer, byte), 0..3) => {
                    assert_bytes(&buffer, byte, seed, step);
                }
                (Holder::Bytes(buffer, byte), _) => {
                    assert_bytes(&buffer, byte, seed, step);
                    holders.push(Holder::SplitBuffer(SplitBuffer::new(buffer)));
                }
                (Holder::SplitBuffer(mut cut), 0..6) => {
                    let len = rng.index(cut.left() + 1);
                    holders.extend(cut.part(len).map(|part| stamped(part, &mut stamp)));
                    holders.push(Holder::SplitBuffer(cut));
                }
                (Holder::SplitBuffer(cut), 6) => drop(cut),
                (Holder::SplitBuffer(cut), _) => match cut.merge() {
                    Ok(buffer) => holders.push(stamped(buffer, &mut stamp)),
                    Err(cut) => holders.push(Holder::SplitBuffer(cut)),
                },
            }
            assert_eq!(pool.leased() == 0, holders.is_empty(), "seed {seed} step {step}");
        }
        for holder in holders {
            if let Holder::Bytes(buffer, byte) = holder {
                assert_bytes(&buffer, byte, seed, 400);
            }
        }
        assert_eq!(pool.leased(), 0, "seed {seed}");
    }
}

fn stamped(mut buffer: Buffer, stamp: &mut u8) -> Holder {
    *stamp = stamp.wrapping_add(1);
    buffer.as_mut_slice().fill(*stamp);
    Holder::Bytes(buffer, *stamp)
}

fn assert_bytes(buffer: &Buffer, byte: u8, seed: u64, step: u32) {
    assert!(buffer.as_slice().iter().all(|b| *b == byte), "seed {seed} step {step}: other bytes");
}
