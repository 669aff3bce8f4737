//! Limits that are derived from configs, and the memory that they announce.

use super::*;

const NEEDS: LimitInputs = LimitInputs {
    reactors: 2,
    listeners: 1,
    rdma_listeners: 0,
    file_devices: 1,
    drives: 0,
    queue_files: FILE_QUEUE_FILES + RAM_QUEUE_FILES,
    drive_entries: 0,
};

fn problems(change: impl Fn(&mut LimitSettings)) -> Vec<LimitProblem> {
    let mut settings = LimitSettings::default();
    change(&mut settings);
    Limits::derive(settings, &NEEDS, 1024).1
}

#[test]
fn the_defaults_go_together_and_cost_what_is_said() {
    let (limits, problems) = Limits::derive(LimitSettings::default(), &NEEDS, 1024);
    assert_eq!(problems, []);
    assert_eq!(limits.mdts, 8);
    assert_eq!(limits.nvmf().mdts(), limits.mdts);
    assert_eq!(limits.nvmf().max_transfer(), limits.settings.max_transfer);
    // 256 connections x ((128 entries + 2) x 8 KiB + 4 KiB), 256 before Connect x (2 x 8 KiB +
    // 4 KiB), 2 reactors x (4 x 1 MiB + 4 x 2 MiB).
    assert_eq!(limits.reserve, (256 + 4 + 1 + 4 + 1 + 2 * (4 + 8)) << 20);
    assert_eq!(limits.memory_cap(), (256 + 290) << 20);
    assert_eq!(limits.open_files, 128 + 256 + 256 + 1 + 1 + 2 * (4 + 3 + 1));
    assert_eq!(limits.requests_per_reactor, REQUESTS_AT_START);
    let text = limits.to_string();
    for part in ["256MiB for data", "290MiB in reserve", "MDTS 8", "658 file descriptors"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Queue pairs need more memory than sockets: they repost receives while commands hold buffers.
#[test]
fn rdma_costs_what_is_said() {
    let needs = LimitInputs { rdma_listeners: 1, ..NEEDS };
    let (limits, problems) = Limits::derive(LimitSettings::default(), &needs, 1024);
    assert_eq!(problems, []);
    // 256 connections x (2 x 128 x 8 KiB + 2 x 8 KiB + 4 KiB), 256 x (2 x 8 KiB + 4 KiB),
    // 2 reactors x (4 x 1 MiB + 4 x 2 MiB).
    assert_eq!(limits.reserve, (256 * 2 + 4 + 1 + 4 + 1 + 2 * (4 + 8)) << 20);
    assert_eq!(limits.open_files, 128 + 256 + 256 + 1 + 8 + 2 + 1 + 2 * (4 + 3 + 1));
}

#[test]
fn queues_that_share_receives_take_half() {
    let needs = LimitInputs { rdma_listeners: 1, ..NEEDS };
    let (limits, _) = Limits::derive(LimitSettings::default(), &needs, 1024);
    // 128 entries x 8 KiB, and two times 8 KiB of slots.
    assert_eq!(limits.rdma_queue(true), (1 << 20) + (16 << 10));
    assert_eq!(limits.rdma_queue(false), (2 << 20) + (16 << 10));
    let text = limits.to_string();
    assert!(text.contains("takes 1040KiB of the reserve with shared-receives, 2064KiB"), "{text}");
    // The SRQ takes 1/3 of a completion queue, at least one queue, at most all queues.
    assert_eq!(limits.shared_receives(16_384), 5461);
    assert_eq!(limits.shared_receives(256), 128);
    assert_eq!(limits.shared_receives(4 << 20), 256 * 128);
    let none = LimitSettings { in_capsule: 0, ..LimitSettings::default() };
    let (limits, _) = Limits::derive(none, &needs, 1024);
    assert_eq!(limits.rdma_queue(true), limits.rdma_queue(false));
}

#[test]
fn the_pool_takes_the_limits() {
    for max_transfer in [MAX_TRANSFER_MIN, MAX_TRANSFER_MAX] {
        let settings = LimitSettings {
            max_transfer,
            buffer_memory: BUFFER_MEMORY_MIN,
            ..LimitSettings::default()
        };
        let (limits, problems) = Limits::derive(settings, &NEEDS, 1024);
        assert_eq!(problems, []);
        let pool = nvmeof_core::dma::ChunkPool::new(limits.pool()).unwrap();
        let cores = [(); 2].map(|()| nvmeof_core::dma::CorePool::new(&pool));
        for core in &cores {
            core.reserve(limits.admin_buffers, max_transfer as usize).unwrap();
            core.lease(max_transfer as usize).unwrap();
        }
    }
}

/// Every queue of every connection gets its in-capsule reserve, however they are distributed.
#[test]
fn the_reserve_holds_what_is_promised() {
    let settings = LimitSettings { connections: 40, in_capsule: 16384, ..LimitSettings::default() };
    let (limits, _) = Limits::derive(settings, &NEEDS, 1024);
    let pool = nvmeof_core::dma::ChunkPool::new(limits.pool()).unwrap();
    for split in [0, 7, 20, 40] {
        let cores = [(); 2].map(|()| nvmeof_core::dma::CorePool::new(&pool));
        let mut kept = Vec::new();
        for core in &cores {
            kept.push(core.reserve(limits.admin_buffers, 1 << 20).unwrap());
        }
        for connection in 0..40 {
            let core = &cores[usize::from(connection >= split)];
            let len = if connection % 3 == 0 { ADMIN_IN_CAPSULE } else { 16384 };
            kept.push(core.reserve(2, 8192).unwrap());
            kept.push(core.reserve(settings.queue_depth.into(), len as usize).unwrap());
        }
    }
}

#[test]
fn what_does_not_go_together_is_told() {
    let ms = Duration::from_millis;
    for (found, key, part) in [
        (problems(|s| s.max_transfer = 768 << 10), "max-transfer", "as 512KiB"),
        (problems(|s| s.in_capsule = 1000), "in-capsule", "multiples of 512"),
        (
            problems(|s| {
                s.max_transfer = 8192;
                s.in_capsule = 16384;
            }),
            "in-capsule",
            "up to 8KiB",
        ),
        (problems(|s| s.keep_alive_min = ms(1050)), "keep-alive-min", "multiples of 100ms"),
        (problems(|s| s.buffer_memory = 6 << 20), "buffer-memory", "at least 8MiB"),
        (problems(|s| s.connections = 1000), "connections", "up to 622"),
    ] {
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].key, key);
        assert!(found[0].allowed.contains(part), "{found:?}");
    }
    let (_, found) = Limits::derive(LimitSettings::default(), &NEEDS, 16);
    assert!(found[0].allowed.starts_with("raise the limit"), "{found:?}");
}

#[test]
fn a_budget_holds_one_command_and_fits_the_pool() {
    let (limits, _) = Limits::derive(LimitSettings::default(), &NEEDS, 1024);
    assert_eq!(limits.default_budget(), 128 << 20);
    let bounds = limits.pacing();
    assert_eq!(bounds.budget, 2 << 20..=256 << 20);
    assert_eq!(bounds.machine, nvmeof_pacing::PacedMachine { cores: 2, largest: 2 << 20 });
}
