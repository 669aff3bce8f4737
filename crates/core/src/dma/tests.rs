use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nvmeof_random::SplitMix64;

use super::*;

fn pool(cap_chunks: usize, reserve_chunks: usize) -> Arc<ChunkPool> {
    ChunkPool::new(PoolConfig {
        cap: cap_chunks * CHUNK,
        reserve: reserve_chunks * CHUNK,
        max_lease: CHUNK,
        huge_pages: false,
    })
    .unwrap()
}

/// Leases until the pool is exhausted.
fn fill(core: &CorePool, len: usize) -> Vec<Buffer> {
    let mut buffers = Vec::new();
    loop {
        match core.lease(len) {
            Ok(buffer) => buffers.push(buffer),
            Err(error) => {
                assert_eq!(error, LeaseError::Exhausted);
                return buffers;
            }
        }
    }
}

/// Live buffers by address, each filled with its own byte.
#[derive(Default)]
struct Live {
    buffers: BTreeMap<usize, (Buffer, u8)>,
    stamp: u8,
}

impl Live {
    fn add(&mut self, mut buffer: Buffer) {
        let start = buffer.as_ptr().addr();
        let end = start + buffer.capacity();
        assert_eq!(start % 4096, 0, "buffers start on a page");
        if let Some((below, (other, _))) = self.buffers.range(..end).next_back() {
            assert!(below + other.capacity() <= start, "two leases overlap");
        }
        self.stamp = self.stamp.wrapping_add(1);
        buffer.as_mut_slice().fill(self.stamp);
        self.buffers.insert(start, (buffer, self.stamp));
    }

    fn drop_one(&mut self, rng: &mut SplitMix64) {
        let at = rng.index(self.buffers.len());
        let Some(start) = self.buffers.keys().nth(at).copied() else { return };
        let (buffer, stamp) = self.buffers.remove(&start).unwrap();
        assert!(buffer.as_slice().iter().all(|byte| *byte == stamp), "someone wrote to a lease");
    }
}

/// A lease of two returns two or none, and reports when waiting may not help.
#[test]
fn two_are_leased_at_once_or_none_is() {
    let core = CorePool::new(&pool(2, 0));
    let (one, other) = core.lease_two(CHUNK / 2).unwrap();
    assert_ne!(one.as_ptr(), other.as_ptr());
    let last = core.lease(CHUNK / 2).unwrap();
    assert_eq!(
        core.lease_two(CHUNK / 2).unwrap_err(),
        LeaseError::Exhausted,
        "the first goes back"
    );
    assert_eq!(core.leased(), 3);
    assert_eq!(core.lease_two(CHUNK).unwrap_err(), LeaseError::Exhausted);
    drop((one, other));
    assert_eq!(core.lease_two(CHUNK).unwrap_err(), LeaseError::NotTwo { len: CHUNK });
    assert_eq!(core.leased(), 1);
    drop(last);
    drop(core.lease_two(CHUNK).unwrap());
    assert_eq!(
        core.lease_two(2 * CHUNK).unwrap_err(),
        LeaseError::TooLarge { len: 2 * CHUNK, max: CHUNK }
    );
    assert_eq!(core.leased(), 0);
}

/// A core without leases gets two buffers of a size that fits a chunk, whatever other cores hold.
#[test]
fn two_that_fit_a_chunk_are_promised() {
    let shared = pool(2, 0);
    let (greedy, core) = (CorePool::new(&shared), CorePool::new(&shared));
    let _all = fill(&greedy, CHUNK);
    assert!(core.lease_two(CHUNK / 2).is_ok());
    assert_eq!(core.lease_two(CHUNK).unwrap_err(), LeaseError::NotTwo { len: CHUNK });
}

#[test]
fn random_interleavings_never_overlap_and_all_chunks_come_back() {
    for seed in 0..20 {
        let shared = pool(12, 4);
        let mut rng = SplitMix64::new(seed);
        {
            let cores = [CorePool::new(&shared), CorePool::new(&shared)];
            let mut reserves = Vec::new();
            let mut live = Live::default();
            let (mut leased, mut exhausted) = (0, 0);
            for _ in 0..3000 {
                let core = &cores[rng.index(2)];
                match rng.below(100) {
                    // Mostly small, sometimes all sizes; the pool is often exhausted.
                    0..50 => {
                        let top = MIN_CLASS << rng.below(10);
                        match core.lease(1 + rng.index(top)) {
                            Ok(buffer) => {
                                live.add(buffer);
                                leased += 1;
                            }
                            Err(error) => {
                                assert_eq!(error, LeaseError::Exhausted);
                                exhausted += 1;
                            }
                        }
                    }
                    50..94 => live.drop_one(&mut rng),
                    94 => {
                        let len = MIN_CLASS << rng.below(6);
                        if let Ok(reserve) = core.reserve(1 + rng.index(40), len) {
                            reserves.push(reserve);
                        }
                    }
                    95 if !reserves.is_empty() => {
                        let at = rng.index(reserves.len());
                        // Some of its buffers are still leased.
                        let reserve: BufferReservation = reserves.swap_remove(at);
                        (0..rng.below(4)).filter_map(|_| reserve.lease()).for_each(|b| live.add(b));
                    }
                    96 if !reserves.is_empty() => {
                        let at = rng.index(reserves.len());
                        let reserve = &reserves[at];
                        let left = reserve.count() - reserve.leased();
                        assert_eq!(reserve.lease().map(|b| live.add(b)).is_some(), left > 0);
                    }
                    97 => core.trim(),
                    98 => core.clear(),
                    _ => core.balance(),
                }
                let out = cores[0].leased() + cores[1].leased();
                assert_eq!(out, live.buffers.len());
                let stats = shared.stats();
                assert!(stats.data_bytes <= stats.cap && stats.reserve_held <= stats.reserve_cap);
            }
            assert!(leased > 500, "seed {seed} leases");
            assert!(exhausted > 0, "seed {seed} reaches the cap");
            drop(reserves);
            drop(live);
            assert_eq!(cores[0].leased() + cores[1].leased(), 0);
            cores.iter().for_each(CorePool::clear);
            let stats = shared.stats();
            assert_eq!((stats.data_bytes, stats.reserve_held), (0, 0), "all chunks are back");
        }
        assert_eq!(shared.stats().cores, 0);
    }
}

#[test]
fn mixed_sizes_do_not_fragment_the_pool() {
    let shared = pool(4, 0);
    let core = CorePool::new(&shared);
    for round in 0..50 {
        for len in [4096, CHUNK, 128 << 10, 1, 512 << 10] {
            let buffers = fill(&core, len);
            let class = len.max(MIN_CLASS).next_power_of_two();
            assert_eq!(buffers.len(), 4 * CHUNK / class, "round {round}, {len} bytes");
        }
    }
    assert_eq!(shared.stats().mapped, 4 * CHUNK);
}

#[test]
fn a_chunk_with_one_lease_out_keeps_its_class_and_the_others_change() {
    let shared = pool(4, 0);
    let core = CorePool::new(&shared);
    let mut small = fill(&core, 4096);
    let kept = small.swap_remove(700);
    drop(small);
    let large = fill(&core, CHUNK);
    assert_eq!(large.len(), 3);
    drop(kept);
    assert!(core.lease(CHUNK).is_ok());
}

#[test]
fn past_the_cap_is_exhausted_and_past_the_largest_is_too_large() {
    let config = PoolConfig { cap: CHUNK, reserve: 0, max_lease: 128 << 10, huge_pages: false };
    let shared = ChunkPool::new(config).unwrap();
    let core = CorePool::new(&shared);
    let too_large = LeaseError::TooLarge { len: (128 << 10) + 1, max: 128 << 10 };
    assert_eq!(core.lease((128 << 10) + 1).unwrap_err(), too_large);
    assert_eq!(core.reserve(1, (128 << 10) + 1).unwrap_err(), too_large);
    assert_eq!(core.reserve(1, 1).unwrap_err(), LeaseError::Exhausted);
    assert_eq!(fill(&core, 128 << 10).len(), 16);
    assert!(core.reserve(0, 1).unwrap().lease().is_none());
}

#[test]
fn sizes_that_cannot_work_are_refused() {
    let config = PoolConfig { cap: CHUNK, reserve: 0, max_lease: CHUNK, huge_pages: false };
    let max_lease = PoolConfig { max_lease: CHUNK + 1, ..config };
    assert_eq!(
        ChunkPool::new(max_lease).unwrap_err(),
        PoolError::MaxLease { max_lease: CHUNK + 1 }
    );
    let cap = PoolConfig { cap: CHUNK - 1, ..config };
    assert_eq!(ChunkPool::new(cap).unwrap_err(), PoolError::TooSmall { cap: CHUNK - 1 });
    let default = PoolConfig::default();
    assert!(default.cap >= 64 << 20 && ChunkPool::new(default).is_ok());
}

#[test]
fn the_buffer_returned_last_is_leased_first() {
    let core = CorePool::new(&pool(4, 1));
    let mut buffers: Vec<_> = (0..600).map(|_| core.lease(4096).unwrap()).collect();
    let (a, b) = (buffers.remove(5), buffers.remove(550));
    let addresses = [a.as_ptr(), b.as_ptr()];
    drop(a);
    drop(b);
    let again = [core.lease(1).unwrap(), core.lease(1).unwrap()];
    assert_eq!([again[1].as_ptr(), again[0].as_ptr()], addresses);
    // A reservation uses no more memory than is leased concurrently, whatever its count.
    let reserve = core.reserve(200, 8192).unwrap();
    let first = reserve.lease().unwrap().as_ptr();
    assert!((0..1000).all(|_| reserve.lease().unwrap().as_ptr() == first));
}

#[test]
fn a_buffer_has_the_length_asked_for() {
    let core = CorePool::new(&pool(1, 0));
    let mut buffer = core.lease(5000).unwrap();
    assert_eq!((buffer.len(), buffer.capacity(), buffer.is_empty()), (5000, 8192, false));
    buffer.as_mut_slice()[4999] = 7;
    assert_eq!(buffer.as_slice()[4999], 7);
    buffer.truncate(6000);
    assert_eq!(buffer.len(), 5000);
    buffer.truncate(10);
    assert_eq!((buffer.as_slice().len(), buffer.as_mut_slice().len()), (10, 10));
    let mut pieces = Vec::new();
    let address = buffer.as_ptr();
    Payload::from(buffer).for_each_piece(|at, len| pieces.push((at, len)));
    assert_eq!(pieces, [(address, 10)]);
    assert!(core.lease(0).unwrap().is_empty());
}

#[test]
fn a_core_that_holds_nothing_can_always_lease() {
    let shared = pool(4, 0);
    let cores = [CorePool::new(&shared), CorePool::new(&shared)];
    let hog = fill(&cores[0], 4096);
    assert_eq!(hog.len(), 3 * CHUNK / 4096, "one chunk is kept for the other core");
    let large = cores[1].lease(CHUNK).unwrap();
    assert_eq!(cores[1].lease(CHUNK).unwrap_err(), LeaseError::Exhausted);
    drop(large);
    // The core keeps its chunk and can divide it into another class.
    assert!(cores[1].lease(4096).is_ok());
    // More cores than chunks: the cap is exceeded.
    let more: Vec<_> = (0..6).map(|_| CorePool::new(&shared)).collect();
    let one_each: Vec<_> = more.iter().map(|core| core.lease(CHUNK).unwrap()).collect();
    assert_eq!(one_each.len(), 6);
}

#[test]
fn a_chunk_that_comes_back_wakes_the_core_that_waits() {
    let shared = pool(4, 0);
    let woken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&woken);
    shared.set_waker(Box::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    }));
    let cores = [CorePool::new(&shared), CorePool::new(&shared)];
    let hog = fill(&cores[0], CHUNK);
    let first = cores[1].lease(CHUNK).unwrap();
    assert_eq!(cores[1].lease(CHUNK).unwrap_err(), LeaseError::Exhausted);
    assert!(shared.is_starved());
    let before = woken.load(Ordering::Relaxed);
    assert_eq!(cores[1].lease(CHUNK).unwrap_err(), LeaseError::Exhausted);
    assert_eq!(woken.load(Ordering::Relaxed), before, "being refused again wakes nobody");
    drop(hog);
    assert!(woken.load(Ordering::Relaxed) > before);
    assert!(!shared.is_starved());
    assert!(cores[1].lease(CHUNK).is_ok());
    drop(first);
    // No core waits: a core keeps its chunk, and returns it when another requests one.
    cores[0].clear();
    drop(cores[0].lease(1).unwrap());
    cores[0].trim();
    assert_eq!(cores[0].held(), CHUNK);
    let before = woken.load(Ordering::Relaxed);
    let hog = fill(&cores[1], CHUNK);
    assert_eq!(woken.load(Ordering::Relaxed), before + 1, "the others are asked to balance");
    cores[0].balance();
    assert_eq!(cores[0].held(), 0);
    assert_eq!(woken.load(Ordering::Relaxed), before + 2);
    drop(hog);
}

#[test]
fn a_reserve_keeps_its_promise_when_everything_else_is_leased() {
    let shared = pool(2, 1);
    let core = CorePool::new(&shared);
    let reserve = core.reserve(256, 8192).unwrap();
    assert_eq!(core.reserve(1, 8192).unwrap_err(), LeaseError::Exhausted);
    let hog = fill(&core, 4096);
    let promised: Vec<_> = (0..256).map(|_| reserve.lease().unwrap()).collect();
    assert!(promised.iter().all(|buffer| buffer.len() == 8192));
    assert!(reserve.lease().is_none());
    assert_eq!((reserve.leased(), reserve.count()), (256, 256));
    assert_eq!(core.leased(), hog.len() + 256);
    drop(reserve);
    // Buffers are still leased, so the reservation still exists.
    assert_eq!(core.reserve(1, 8192).unwrap_err(), LeaseError::Exhausted);
    drop(promised);
    assert_eq!(shared.stats().reserve_held, 0);
    assert!(core.reserve(1, CHUNK).is_ok(), "the chunk is free for another size");
}

#[test]
fn what_a_core_holds_goes_back_with_its_last_buffer() {
    let shared = pool(2, 1);
    let core = CorePool::new(&shared);
    let buffer = core.lease(100).unwrap();
    let reserve = core.clone().reserve(3, 100).unwrap();
    drop(core);
    assert_eq!((shared.stats().data_bytes, shared.stats().reserve_held), (CHUNK, CHUNK));
    drop(reserve);
    drop(buffer);
    let stats = shared.stats();
    assert_eq!((stats.data_bytes, stats.reserve_held, stats.cores), (0, 0, 0));
}

#[test]
fn zeroes_of_a_zero_copy_read_are_zero_in_memory_and_file() {
    let region = ZeroCopyRegion::zeroes().unwrap();
    let source = ZeroCopySource::new(&region);
    assert!(source.data(MAX_ZERO_COPY_BYTES + 1).is_none());
    for len in [1, 4096, 65536, 65537, 1 << 20, MAX_ZERO_COPY_BYTES] {
        let data = source.data(len).unwrap();
        let mut total = 0;
        for (at, piece) in data.pieces() {
            // SAFETY: `pieces` names bytes that are readable as long as `data` lives.
            let bytes = unsafe { std::slice::from_raw_parts(at, piece) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            total += piece;
        }
        assert_eq!(total, len);
        let (file, offset) = data.file().unwrap();
        let mut bytes = vec![1; len];
        let mut got = 0;
        while got < len {
            got += rustix::io::pread(file, &mut bytes[got..], offset + got as u64).unwrap();
        }
        assert!(bytes.iter().all(|byte| *byte == 0));
        let mut pieces = 0;
        Payload::from(data).for_each_piece(|_, piece| pieces += piece);
        assert_eq!(pieces, len);
    }
}

#[test]
fn a_core_that_sleeps_keeps_a_few_chunks_and_the_system_gets_what_nobody_holds() {
    let shared = pool(32, 0);
    let core = CorePool::new(&shared);
    let buffers = fill(&core, CHUNK);
    assert_eq!((buffers.len(), shared.stats().mapped), (32, 32 * CHUNK));
    shared.set_waker(Box::new(|| {}));
    drop(buffers);
    core.trim();
    assert_eq!(core.held(), 4 * CHUNK);
    // The core's kept chunks, and eight more.
    assert_eq!(shared.stats().mapped, 12 * CHUNK);
    core.clear();
    assert_eq!((core.held(), shared.stats().mapped), (0, 8 * CHUNK));
    assert_eq!(fill(&core, CHUNK).len(), 32);
}

/// A registrar that records its chunks and can refuse them.
#[derive(Debug, Default)]
struct Told {
    chunks: std::sync::Mutex<BTreeMap<usize, usize>>,
    refuse: AtomicBool,
}

impl MemoryRegistrar for Told {
    fn mapped(
        &self,
        chunk: ChunkId,
        base: std::ptr::NonNull<u8>,
        len: usize,
    ) -> std::io::Result<()> {
        assert_eq!(len, CHUNK);
        if self.refuse.load(Ordering::Relaxed) {
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        let before = self.chunks.lock().unwrap().insert(chunk.index(), base.as_ptr().addr());
        assert_eq!(before, None, "told twice of {chunk:?}");
        Ok(())
    }

    fn unmapping(&self, chunk: ChunkId) {
        assert!(self.chunks.lock().unwrap().remove(&chunk.index()).is_some(), "{chunk:?}");
    }
}

#[test]
fn a_registrar_knows_every_chunk_there_is() {
    let shared = pool(40, 4);
    let core = CorePool::new(&shared);
    let early = core.lease(4096).unwrap();
    let told = Arc::new(Told::default());
    let registrar: Arc<dyn MemoryRegistrar> = told.clone();
    shared.add_registrar(Arc::clone(&registrar)).unwrap();
    let known = |buffer: &Buffer| {
        assert!(buffer.chunk().index() < shared.chunks());
        let base = told.chunks.lock().unwrap()[&buffer.chunk().index()];
        (base..base + CHUNK).contains(&buffer.as_ptr().addr())
    };
    assert!(known(&early));
    let many: Vec<_> = (0..20).map(|_| core.lease(CHUNK).unwrap()).collect();
    assert!(many.iter().all(known));
    let count = || told.chunks.lock().unwrap().len();
    assert_eq!(count(), 21);
    // Registered chunks stay mapped, and are reused.
    drop((early, many));
    core.clear();
    assert_eq!((count(), shared.stats().mapped), (21, 21 * CHUNK));
    let again: Vec<_> = (0..21).map(|_| core.lease(CHUNK).unwrap()).collect();
    assert!(again.iter().all(known) && count() == 21);
    // A chunk that a device cannot reach is not used, and leaves no trace.
    told.refuse.store(true, Ordering::Relaxed);
    assert_eq!(core.lease(CHUNK).unwrap_err(), LeaseError::NoMemory);
    let other = Arc::new(Told::default());
    other.refuse.store(true, Ordering::Relaxed);
    shared.add_registrar(other).unwrap_err();
    told.refuse.store(false, Ordering::Relaxed);
    assert!(known(&core.lease(CHUNK).unwrap()));
    shared.remove_registrar(&registrar);
    assert_eq!(count(), 0);
    // Unregistered chunks return to the system, and their numbers are reused.
    drop(again);
    core.clear();
    assert!(shared.stats().mapped < 21 * CHUNK);
    let anew: Vec<_> = (0..30).map(|_| core.lease(CHUNK).unwrap()).collect();
    let numbers: std::collections::BTreeSet<_> = anew.iter().map(Buffer::chunk).collect();
    assert_eq!(numbers.len(), 30);
    assert!(numbers.iter().all(|chunk| chunk.index() < shared.chunks()));
}

#[test]
fn reserves_pass_buffers_on_and_promise_as_much_as_before() {
    let shared = pool(1, 2);
    let core = CorePool::new(&shared);
    let (one, other) = (core.reserve(3, 8192).unwrap(), core.reserve(0, 8192).unwrap());
    let small = core.reserve(1, 4096).unwrap();
    let counts = || [&one, &other].map(|reserve| (reserve.leased(), reserve.count()));
    let mut buffer = one.lease().unwrap();
    assert!(!one.pass(&mut buffer, &small), "of another size");
    assert!(!other.pass(&mut buffer, &one), "it has none");
    assert!(one.pass(&mut buffer, &other));
    assert_eq!(counts(), [(0, 2), (1, 1)]);
    assert!(!one.pass(&mut buffer, &other), "it is not its own any more");
    assert_eq!(other.pass_free(9, &one), 0, "it is out");
    drop(buffer);
    assert_eq!(counts(), [(0, 2), (0, 1)]);
    assert_eq!(other.pass_free(9, &one), 1);
    assert_eq!(one.pass_free(2, &other), 2);
    assert_eq!(counts(), [(0, 1), (0, 2)]);
    // Moved buffers outlive both reservations.
    let mut buffer = one.lease().unwrap();
    assert!(one.pass(&mut buffer, &other));
    drop((one, other, small));
    assert_eq!((core.leased(), shared.stats().reserve_held), (1, CHUNK));
    drop(buffer);
    core.clear();
    assert_eq!(shared.stats().reserve_held, 0);
}
