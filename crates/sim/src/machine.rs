//! Simulated machine: the events of a command on its way from its host and back.
//!
//! ```text
//! host ─capsule─▶ core: waits ─permit, buffer─▶ [delay] drive ─data in cache─▶ [delay] core: done
//!   ▲                ▲                                                                   │
//!   └─data, response─┼───────────────── port ◀──fetch from cache── NIC ◀─────────────────┘
//!                    └─acknowledged: permit and buffer released
//! ```
//!
//! A write goes `waits ─permit, buffer─▶ pulled from the host ─data in cache─▶ core: data arrived
//! ─▶ [delay] drive fetches it from the cache ─▶ [delay] core ─response─▶ host`. A slow device has
//! its delay on one side of the data transfer. This module defines the sequence. The module of each
//! mechanism defines its times.

use std::time::Instant;

use nvmeof_pacing::{CommandOutcome, Permit, PolicyConfig, PrototypePool};
use nvmeof_random::SplitMix64;

use crate::cache::{Buffers, Cache, KEEP, STORE};
use crate::checkers::{
    Budget, Checker, CheckerSet, Conservation, Permits, SimEvent, Starvation, StarvationBound,
};
use crate::commands::{Command, CommandKind, Commands};
use crate::cores::{Cores, Work};
use crate::drives::Drives;
use crate::events::{Event, Events};
use crate::hosts::{Hosts, PendingCommand, behind};
use crate::nic::{Memory, Nic, Sender};
use crate::numbers::{gbps, id, micros, whole};
use crate::pacing::TargetPacing;
use crate::platform::Platform;
use crate::record::Recorder;
use crate::run_result::RunResult;
use crate::scenario::{
    Device, Disturbance, DisturbanceKind, Initiator, Job, Nanos, Pacing, Scenario,
};

/// Part of every seed, so that runs equal those that the platforms were calibrated with.
const SEED_SALT: u64 = 0x5851_f42d_4c95_7f2d;

/// A machine with a load on it.
#[derive(Debug)]
pub(crate) struct SimMachine<'a> {
    scenario: &'a Scenario,
    platform: &'a Platform,
    now: Nanos,
    one_way: Nanos,
    /// Time from a host's decision to the arrival of its capsule.
    to_target: Nanos,
    events: Events,
    commands: Commands,
    hosts: Hosts,
    cores: Cores,
    target_pacing: TargetPacing,
    drives: Drives,
    nic: Nic,
    cache: Cache,
    buffers: Buffers,
    record: Recorder,
    watch: CheckerSet,
    sample: Nanos,
    /// Time at which data last landed in memory: it determines the cost of a miss.
    last_landing: Option<Nanos>,
}

impl<'a> SimMachine<'a> {
    pub(crate) fn new(
        platform: &'a Platform,
        scenario: &'a Scenario,
        checkers: Vec<Box<dyn Checker>>,
        mut target_pacing: TargetPacing,
    ) -> Self {
        let mut rng = SplitMix64::new(scenario.seed ^ SEED_SALT);
        let mut fork = || SplitMix64::new(rng.next_u64() ^ SEED_SALT);
        let hosts = Hosts::new(platform, scenario, &mut target_pacing, fork());
        let count = scenario.devices.iter().filter_map(|d| behind(*d).0).max();
        let drives = Drives::new(platform, count.map_or(0, |d| d as usize + 1), fork());
        let nic = Nic::new(platform, scenario.cores as usize, fork());
        let (total, keep) = stock(&scenario.pacing);
        let endless = scenario.pacing == Pacing::EndlessCache;
        let sample = match scenario.sample {
            0 => (scenario.time / 5).clamp(1, 100_000_000),
            set => set,
        };
        Self {
            now: 0,
            one_way: micros(platform.one_way_us),
            to_target: micros(match scenario.initiator {
                Initiator::Spdk => platform.one_way_us,
                Initiator::Kernel => platform.one_way_us + platform.kernel_us,
            }),
            events: Events::default(),
            commands: Commands::default(),
            cores: Cores::new(platform, scenario.cores as usize),
            nic,
            cache: Cache::new(platform, total, prototype_pool(&scenario.pacing).is_some(), endless),
            buffers: Buffers::new(scenario.cores as usize, total, keep),
            record: Recorder::new(scenario, hosts.sizes.len()),
            watch: CheckerSet::new(checkers),
            last_landing: None,
            sample,
            target_pacing,
            hosts,
            drives,
            scenario,
            platform,
        }
    }

    /// Runs to the end of the scenario.
    pub(crate) fn run(mut self) -> RunResult {
        let begun = Instant::now();
        let end = self.scenario.warm_up + self.scenario.time;
        for stream in 0..self.hosts.streams.len() {
            let at = self.hosts.start_of(stream, self.scenario.hosts);
            self.events.at(at, Event::StreamStarts(id(stream)));
        }
        for trouble in &self.scenario.disturbances {
            self.events.at(trouble.at, Event::Disturbed);
            self.events.at(trouble.at.saturating_add(trouble.lasts), Event::Disturbed);
        }
        self.events.at(self.first_sample(), Event::Sample);
        while let Some((at, event)) = self.events.next() {
            if at > end {
                break;
            }
            self.now = at;
            self.happens(event);
        }
        self.now = end;
        self.finish(begun)
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::StreamStarts(stream) => self.connect(stream),
            Event::StreamGrows(stream) => self.grow(stream),
            Event::Arrives(command) => self.hand_over(command, Work::Capsule(command)),
            Event::TurnEnds(core) => self.on_turn(core),
            Event::Alarm(core) => {
                if self.cores.ring(core as usize, self.now) {
                    self.start_turn(core as usize);
                }
            }
            Event::DriveDone(command) => self.drive_done(command),
            Event::DelayDone(command) => self.hand_over(command, Work::Device(command)),
            Event::Pulled(command) => self.pulled(command),
            Event::FetchStarts(command) => self.fetch_starts(command),
            Event::PortDone(port, command) => self.port_done(port as usize, command),
            Event::Acknowledged(command) => self.hand_over(command, Work::Sent(command)),
            Event::HostDone(command) => self.host_done(command),
            Event::Disturbed => self.disturbed(),
            Event::Sample => self.take_sample(),
        }
    }

    fn finish(mut self, begun: Instant) -> RunResult {
        for number in 0..self.commands.len() {
            let command = self.commands.of_mut(id(number));
            if let Some(permit) = command.permit.take() {
                let core = self.hosts.queues[command.queue as usize].core;
                self.target_pacing.release(core, permit, CommandOutcome::Cancelled, self.now);
            }
        }
        let starved = self.hosts.starved();
        let run_result =
            self.record.run_result(&self.hosts.sizes, self.platform.wire_bits, self.now);
        RunResult {
            violations: self.watch.end(self.now),
            starved_queues: starved,
            real_seconds: begun.elapsed().as_secs_f64(),
            ..run_result
        }
    }

    // The host's side.

    fn connect(&mut self, stream: u32) {
        for queue in self.hosts.stream(stream).queues.clone() {
            self.issue(stream, PendingCommand { queue, size: 0, kind: CommandKind::Connect });
        }
    }

    fn grow(&mut self, stream: u32) {
        if let Some(next) = self.hosts.ramp(stream, self.now) {
            self.events.at(next, Event::StreamGrows(stream));
        }
        self.pump(stream);
    }

    /// Issues the commands that a stream may issue.
    fn pump(&mut self, stream: u32) {
        loop {
            let state = self.hosts.stream(stream);
            let full = state.outstanding >= state.ramp || state.blocked.is_some();
            if full || state.closed > 0 || self.now >= state.until {
                return;
            }
            let wanted = self.hosts.want(stream);
            let limit = self.hosts.requests_limit;
            let queue = self.hosts.queue(wanted.queue);
            if queue.outstanding >= limit {
                queue.blocked.push(stream);
                self.hosts.stream(stream).blocked = Some(wanted);
                return;
            }
            self.issue(stream, wanted);
        }
    }

    fn issue(&mut self, stream: u32, wanted: PendingCommand) {
        let bytes = match wanted.kind {
            CommandKind::Connect => 0,
            CommandKind::Read | CommandKind::Write => self.hosts.sizes[wanted.size as usize],
        };
        let command = self.commands.add(Command {
            kind: wanted.kind,
            stream,
            queue: wanted.queue,
            bytes,
            size: wanted.size,
            issued: self.now,
            arrived: 0,
            permit: None,
            buffer: None,
            behind: None,
        });
        self.watch.see(SimEvent::Issued { command }, self.now);
        self.hosts.stream(stream).outstanding += 1;
        let limit = self.hosts.commands_limit;
        let queue = self.hosts.queue(wanted.queue);
        queue.outstanding += 1;
        if queue.at_target < limit {
            queue.at_target += 1;
            self.events.at(self.now + self.to_target, Event::Arrives(command));
        } else {
            queue.backlog.push_back(command);
        }
    }

    fn host_done(&mut self, command: u32) {
        self.watch.see(SimEvent::Answered { command }, self.now);
        let &Command { kind, stream, queue, bytes, size, issued, .. } = self.commands.of(command);
        let state = self.hosts.queue(queue);
        let place = [state.job, state.host, state.device, size];
        state.outstanding -= 1;
        match state.backlog.pop_front() {
            Some(next) => self.events.at(self.now + self.to_target, Event::Arrives(next)),
            None => state.at_target -= 1,
        }
        let resumed = std::mem::take(&mut state.blocked);
        if kind == CommandKind::Connect {
            state.open = true;
            let state = self.hosts.stream(stream);
            state.closed -= 1;
            if state.closed == 0 {
                self.events.at(self.now, Event::StreamGrows(stream));
            }
        } else {
            self.record.completed(place, bytes, self.now - issued, self.now);
        }
        self.hosts.stream(stream).outstanding -= 1;
        for stream in resumed {
            if let Some(wanted) = self.hosts.stream(stream).blocked.take() {
                self.issue(stream, wanted);
                self.pump(stream);
            }
        }
        self.pump(stream);
    }

    // The target's cores.

    fn core_of(&mut self, command: u32) -> usize {
        let queue = self.commands.of(command).queue;
        self.hosts.queue(queue).core
    }

    fn hand_over(&mut self, command: u32, work: Work) {
        let core = self.core_of(command);
        self.cores.push(core, work, self.now);
        self.start_turn(core);
    }

    fn start_turn(&mut self, core: usize) {
        let walked = self.target_pacing.walked(core);
        if let Some((end, after)) = self.cores.start(core, walked, self.now) {
            self.target_pacing.on_turn(core, self.now, after);
            self.events.at(end, Event::TurnEnds(id(core)));
        }
    }

    fn on_turn(&mut self, core: u32) {
        let number = core as usize;
        let batch = self.cores.batch(number);
        for work in &batch {
            match *work {
                Work::Capsule(command) => self.capsule(number, command),
                Work::Device(command) => self.device_done(command),
                Work::Data(command) => self.data_came(command),
                Work::Sent(command) => self.sent(number, command),
            }
        }
        self.cores.end(number, batch);
        while let Some((command, permit)) = self.target_pacing.next(number, self.now) {
            self.begin(number, command, permit);
        }
        if let Some(at) = self.target_pacing.next_wakeup(number) {
            let at = at.max(self.now + 1);
            if self.cores.set_alarm(number, at) {
                self.events.at(at, Event::Alarm(core));
            }
        }
        let mut woken = self.target_pacing.woken();
        while woken != 0 {
            let other = woken.trailing_zeros() as usize;
            woken &= woken - 1;
            self.cores.call(other, self.now);
            self.start_turn(other);
        }
        self.start_turn(number);
    }

    fn capsule(&mut self, core: usize, command: u32) {
        let now = self.now;
        let state = self.commands.of_mut(command);
        state.arrived = now;
        let (bytes, queue) = (state.bytes, state.queue);
        self.watch.see(SimEvent::Waits { command, core: id(core), flow: queue, bytes }, now);
        let flow = self.hosts.queue(queue).flow;
        let taken = flow.is_some_and(|flow| self.target_pacing.enqueue(core, flow, bytes, command));
        debug_assert!(taken, "sizes were checked when the run was set up");
    }

    /// Starts a command with its permit, and takes a buffer.
    fn begin(&mut self, core: usize, command: u32, permit: Permit) {
        let budget = self.target_pacing.stand().0;
        self.watch.see(SimEvent::Starts { command, core: id(core), budget }, self.now);
        let state = self.commands.of_mut(command);
        state.permit = Some(permit);
        let (kind, bytes, queue) = (state.kind, state.bytes, state.queue);
        if kind != CommandKind::Connect {
            state.buffer = self.buffers.take(core);
            self.record.takes(bytes, self.now);
        }
        let queue = self.hosts.queue(queue);
        queue.started += u64::from(kind != CommandKind::Connect);
        let (device, port) = (queue.device as usize, queue.port);
        match (kind, behind(self.scenario.devices[device])) {
            (CommandKind::Connect, _) => self.answer(command),
            (CommandKind::Read, (None, ..)) => self.hand_over(command, Work::Device(command)),
            (CommandKind::Read, (Some(drive), part, delay)) => {
                let split = if part { micros(self.platform.split_us) } else { 0 };
                let done = self.drives.read(drive, bytes, self.now) + split;
                self.events.at(done + delay.before_data(), Event::DriveDone(command));
            }
            (CommandKind::Write, _) => {
                let there = self.now + 2 * self.one_way;
                let came = self.nic.receive(port, bytes, there);
                self.events.at(came, Event::Pulled(command));
            }
        }
    }

    /// Sends the response, and later its acknowledgment.
    fn answer(&mut self, command: u32) {
        self.events.at(self.now + self.one_way, Event::HostDone(command));
        self.events.at(self.now + 2 * self.one_way, Event::Acknowledged(command));
    }

    /// Handles the acknowledgment of sent data: releases permit and buffer.
    fn sent(&mut self, core: usize, command: u32) {
        let state = self.commands.of_mut(command);
        let bytes = state.bytes;
        if let Some(buffer) = state.buffer.take() {
            self.buffers.give(core, buffer);
        }
        if state.kind != CommandKind::Connect {
            self.record.gives(bytes, self.now);
        }
        if let Some(permit) = self.commands.of_mut(command).permit.take() {
            self.target_pacing.release(core, permit, CommandOutcome::Completed, self.now);
            self.watch.see(SimEvent::Released { command }, self.now);
        }
        self.commands.remove(command);
    }

    // Devices.

    fn drive_done(&mut self, command: u32) {
        let &Command { kind, queue, bytes, buffer, .. } = self.commands.of(command);
        let device = self.hosts.queue(queue).device as usize;
        let (drive, _, delay) = behind(self.scenario.devices[device]);
        if let Some(later) = drive.and_then(|drive| self.drives.held_until(drive, self.now)) {
            self.events.at(later, Event::DriveDone(command));
            return;
        }
        if kind == CommandKind::Read
            && let Some(buffer) = buffer
        {
            self.cache.write(buffer, bytes);
            self.last_landing = Some(self.now);
        }
        match delay.after_data() {
            0 => self.hand_over(command, Work::Device(command)),
            delay => {
                let done = self.now + delay + micros(self.platform.delay_us);
                self.events.at(done, Event::DelayDone(command));
            }
        }
    }

    /// Handles a completed device on its core: sends the data of a read, or answers a write.
    fn device_done(&mut self, command: u32) {
        let now = self.now;
        let state = self.commands.of_mut(command);
        let queue = state.queue;
        if state.kind == CommandKind::Write {
            let (size, arrived) = (state.size, state.arrived);
            let queue = self.hosts.queue(queue);
            let place = [queue.job, queue.host, queue.device, size];
            self.record.served(place, now - arrived, now);
            self.answer(command);
            return;
        }
        if let Some(permit) = &mut state.permit {
            permit.device_done(now);
        }
        let of = &mut self.hosts.queues[queue as usize];
        let from = Sender { port: of.port, core: of.core, queue };
        self.nic.push(from, &mut of.outbox, command, &mut self.commands);
        self.send(from.port);
    }

    // The network.

    /// Sends the next command's data if the port is free.
    fn send(&mut self, port: usize) {
        while let Some(from) = self.nic.turn(port) {
            let outbox = &mut self.hosts.queues[from.queue as usize].outbox;
            let Some(command) = self.nic.pop(from, outbox, &self.commands) else {
                self.nic.sent(port);
                continue;
            };
            let &Command { bytes, buffer, .. } = self.commands.of(command);
            let commands = self.record.in_flight().1;
            let in_use = self.pool_in_use();
            let hit = buffer.map_or(1.0, |buffer| self.cache.read(buffer, bytes, in_use));
            self.record.fetched(bytes, hit, self.now);
            let memory = if self.quiet() { Memory::Quiet } else { Memory::Busy { commands } };
            let done = self.nic.send(bytes, self.cache.missed(hit), memory, self.now);
            self.events.at(done, Event::PortDone(id(port), command));
        }
    }

    /// Returns the bytes of the io_pacing pool that are in use: all of it while commands wait for a
    /// buffer, and not for a tick; 0 without a pool.
    fn pool_in_use(&self) -> u64 {
        let Some(pool) = prototype_pool(&self.scenario.pacing) else { return 0 };
        let (bytes, commands) = self.record.in_flight();
        if self.target_pacing.stand().1.is_some() {
            return bytes;
        }
        let waiting: usize =
            (0..self.scenario.cores as usize).map(|core| self.target_pacing.waiting(core)).sum();
        let used = (commands + waiting as u64).min(u64::from(pool.buffers));
        bytes * used / commands.max(1)
    }

    /// Returns whether nothing wrote to memory recently.
    fn quiet(&self) -> bool {
        self.last_landing.is_none_or(|at| self.now - at > 1_000_000)
    }

    fn port_done(&mut self, port: usize, command: u32) {
        let &Command { queue, bytes, size, arrived, .. } = self.commands.of(command);
        let queue = self.hosts.queue(queue);
        let place = [queue.job, queue.host, queue.device, size];
        self.record.served(place, self.now - arrived, self.now);
        self.record.sent(bytes, self.now);
        self.answer(command);
        self.nic.sent(port);
        self.send(port);
    }

    /// Records that the data of a write is in memory.
    fn pulled(&mut self, command: u32) {
        let &Command { bytes, buffer, .. } = self.commands.of(command);
        self.record.sent(bytes, self.now);
        if let Some(buffer) = buffer {
            self.cache.write(buffer, bytes);
            self.last_landing = Some(self.now);
        }
        self.hand_over(command, Work::Data(command));
    }

    /// Handles the arrived data of a write on its core: submits the write to its device.
    fn data_came(&mut self, command: u32) {
        let state = self.commands.of_mut(command);
        if let Some(permit) = &mut state.permit {
            permit.host_data_arrived(self.now);
        }
        let queue = state.queue;
        let device = self.hosts.queue(queue).device as usize;
        match behind(self.scenario.devices[device]).2.before_data() {
            0 => self.fetch_starts(command),
            delay => self.events.at(self.now + delay, Event::FetchStarts(command)),
        }
    }

    /// Lets the device fetch the data of a write, which waited in memory until now.
    fn fetch_starts(&mut self, command: u32) {
        let now = self.now;
        let &Command { queue, bytes, buffer, .. } = self.commands.of(command);
        let device = self.hosts.queue(queue).device as usize;
        let (Some(drive), part, _) = behind(self.scenario.devices[device]) else {
            self.hand_over(command, Work::Device(command));
            return;
        };
        let in_use = self.pool_in_use();
        let hit = buffer.map_or(1.0, |buffer| self.cache.read(buffer, bytes, in_use));
        self.record.fetched(bytes, hit, now);
        let fetched = self.nic.drive_fetch(bytes, self.cache.missed(hit), now);
        let split = if part { micros(self.platform.split_us) } else { 0 };
        let done = self.drives.write(drive, bytes, fetched, now) + split;
        self.events.at(done, Event::DriveDone(command));
    }

    // Disturbances and measurement.

    fn disturbed(&mut self) {
        let mut rate: f64 = 1.0;
        for trouble in &self.scenario.disturbances {
            let end = trouble.at.saturating_add(trouble.lasts);
            if trouble.at > self.now || end <= self.now {
                continue;
            }
            match trouble.what {
                DisturbanceKind::Link(share) => rate = rate.min(share),
                DisturbanceKind::Drives => self.drives.stall(None, end),
                DisturbanceKind::Drive(drive) => self.drives.stall(Some(drive), end),
                DisturbanceKind::Cores => self.cores.stall(None, end),
                DisturbanceKind::Core(core) => self.cores.stall(Some(core), end),
            }
        }
        self.nic.set_rate(rate);
        for core in 0..self.scenario.cores as usize {
            self.start_turn(core);
        }
        for port in 0..self.nic.ports() {
            self.send(port);
        }
    }

    /// Returns the first sample time; a sample then begins with the measured window.
    fn first_sample(&self) -> Nanos {
        match self.scenario.warm_up % self.sample {
            0 => self.sample,
            rest => rest,
        }
    }

    fn take_sample(&mut self) {
        let waiting: usize =
            (0..self.scenario.cores as usize).map(|core| self.target_pacing.waiting(core)).sum();
        self.record.sample(
            u64::try_from(waiting).unwrap_or(0),
            self.target_pacing.stand(),
            self.now,
        );
        self.events.at(self.now + self.sample, Event::Sample);
    }
}

/// Returns the buffers of the target, and the number that each core keeps: see [`Buffers`].
fn stock(pacing: &Pacing) -> (usize, usize) {
    match prototype_pool(pacing) {
        Some(pool) => (pool.buffers as usize, pool.cache as usize),
        None => (STORE, KEEP),
    }
}

/// Returns the io_pacing pool, if the pacing has one.
fn prototype_pool(pacing: &Pacing) -> Option<PrototypePool> {
    match pacing {
        Pacing::Policy(PolicyConfig::Prototype(config)) => config.pool,
        _ => None,
    }
}

/// Returns the checkers of a scenario. io_pacing is exempt from the rules on starvation.
pub(crate) fn checker_set(platform: &Platform, scenario: &Scenario) -> Vec<Box<dyn Checker>> {
    let largest = largest(scenario);
    let budget = Budget::new(scenario.cores, largest);
    let mut all: Vec<Box<dyn Checker>> =
        vec![Box::new(Permits::default()), Box::new(Conservation::default())];
    // `adaptive` charges a command less than its bytes if its device is slow.
    if scenario.pacing != Pacing::Policy(PolicyConfig::Adaptive) {
        all.push(Box::new(budget));
    }
    if prototype_pool(&scenario.pacing).is_none() {
        all.push(Box::new(Starvation::new(patience(platform, scenario))));
    }
    all
}

/// Returns the largest command in bytes.
pub(crate) fn largest(scenario: &Scenario) -> u32 {
    scenario.jobs.iter().flat_map(|job| job.blocks.iter().map(|b| b.0)).max().unwrap_or(0)
}

/// Maximum number of core steps per command.
const STEPS: f64 = 4.0;

/// Commands of each flow of a core that may overtake a waiting one. The scheduler guarantees this
/// number of the largest commands, and the few that the waiting flow has in flight.
const PASSED_OVER: u64 = 128;

/// Returns the bounds on a flow without a start: time, and starts on its core. The time bound
/// detects hung cores and machines. It is the time of 1024 of the largest commands of every flow,
/// or 64 times all outstanding commands if that is less. (A small budget gets little of the
/// machine.) Added are 64 times the slowest device's time, and all disturbances. A flow whose
/// device stalls may be overtaken by all others.
fn patience(platform: &Platform, scenario: &Scenario) -> StarvationBound {
    let sum =
        |of: fn(&Job) -> u64| scenario.jobs.iter().map(of).sum::<u64>() * u64::from(scenario.hosts);
    let offered = sum(|job| u64::from(job.queue_depth) * u64::from(job.threads));
    let flows = sum(|job| job.devices.len() as u64 * u64::from(job.threads));
    // A small command needs as much core time.
    let send = gbps(largest(scenario).into(), 1) / platform.link_gbps();
    let serve = STEPS * platform.step_us * 1000.0 / f64::from(scenario.cores);
    let taken = (64 * offered).min(1024 * flows);
    let send = taken as f64 * send.max(serve);
    let delay = |device: &Device| behind(*device).2;
    let delays = scenario.devices.iter().map(|d| delay(d).before_data().max(delay(d).after_data()));
    let slowest = delays.max().unwrap_or(0);
    let drive = whole(platform.drive_read_us.max(platform.drive_write_us) * 1000.0) + slowest;
    let troubles: u64 = scenario.disturbances.iter().map(|trouble| trouble.lasts).sum();
    let one_stands = |trouble: &Disturbance| matches!(trouble.what, DisturbanceKind::Drive(_));
    let commands =
        if scenario.disturbances.iter().any(one_stands) { u64::MAX } else { PASSED_OVER };
    StarvationBound { time: whole(send) + 64 * drive + troubles.saturating_mul(4), commands }
}
