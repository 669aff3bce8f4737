//! Shadow doorbells.

use nvmeof_wire::identify::oacs;
use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::pcie::Doorbell;
use nvmeof_wire::queues::{DoorbellBufferConfig, needs_doorbell};
use nvmeof_wire::{Sqe, Status, U16};

use super::rig::Rig;
use crate::memory::Pages;
use crate::{FakeDriveConfig, Mode};

fn flush() -> Sqe {
    Sqe::io(IoOpcode::FLUSH, 0, 1).without_data()
}

struct Shadows {
    rig: Rig,
    shadow: Pages,
    events: Pages,
}

impl Shadows {
    fn new() -> Self {
        let mut config = FakeDriveConfig::default();
        config.identify.oacs = U16::new(oacs::DOORBELL_BUFFER);
        let mut rig = Rig::enabled(config, 8);
        let (shadow, events) = (rig.pages(4096), rig.pages(4096));
        let config = DoorbellBufferConfig { shadow: shadow.at(0), event_idx: events.at(0) };
        assert_eq!(rig.admin(config.encode(0)).status(), Status::SUCCESS);
        rig.create_pair(1, 16, None);
        Self { rig, shadow, events }
    }

    fn offset(doorbell: Doorbell) -> usize {
        usize::try_from(doorbell.stride_offset(0)).unwrap()
    }

    /// Stores a value in the shadow, and rings if the controller requires it; returns true in that
    /// case.
    fn leave(&mut self, doorbell: Doorbell, old: u32, new: u32) -> bool {
        let at = Self::offset(doorbell);
        self.shadow.put(at, &new.to_le_bytes());
        let event = u32::from_le_bytes(self.events.get(at, 4).try_into().unwrap());
        let [event, old_value, new_value] = [event, old, new].map(|v| u16::try_from(v).unwrap());
        let rings = needs_doorbell(event, new_value, old_value);
        if rings {
            self.rig.doorbell(doorbell, new);
        }
        rings
    }

    fn submit(&mut self) -> bool {
        let old = self.rig.tail(1);
        self.rig.push(1, flush());
        let new = self.rig.tail(1);
        self.leave(Doorbell::SubmissionTail(1), old, new)
    }
}

#[test]
fn an_idle_controller_wants_a_doorbell_and_a_busy_one_does_not() {
    let mut this = Shadows::new();
    this.rig.fake.set_mode(Mode::Manual);
    assert!(this.submit());
    assert!(!this.submit() && !this.submit(), "it has been rung, and has not looked yet");
    assert_eq!(this.rig.fake.run(), 3, "it finds those it was not told of");
    assert!(this.submit(), "it has gone idle");
    assert_eq!(this.rig.fake.run(), 1);
    for _ in 0..4 {
        assert!(this.rig.look(1).unwrap().status().is_success());
    }
    this.rig.fake.assert_clean();
}

#[test]
fn heads_are_left_in_the_shadow_until_the_queue_is_full() {
    let mut this = Shadows::new();
    let doorbells = this.rig.fake.doorbells();
    let (mut done, mut head) = (0, 0);
    for _ in 0..40 {
        this.submit();
        while this.rig.look(1).is_some() {
            let old = head;
            head = (head + 1) % 16;
            this.leave(Doorbell::CompletionHead(1), old, head);
            done += 1;
        }
    }
    assert_eq!(done, 40);
    let rung = this.rig.fake.doorbells() - doorbells;
    assert!((40..80).contains(&rung), "{rung} doorbells, 80 without shadows");
    this.rig.fake.assert_clean();
}

#[test]
fn a_doorbell_without_its_shadow_is_a_violation() {
    let mut this = Shadows::new();
    this.rig.fake.set_mode(Mode::Manual);
    this.rig.push(1, flush());
    this.rig.ring(1);
    this.rig.expect_one_violation();
}

#[test]
fn buffers_are_pages_of_their_own() {
    let mut config = FakeDriveConfig::default();
    let mut rig = Rig::enabled(config.clone(), 8);
    let pages = rig.pages(8192);
    let at = |shadow: usize, events: usize| DoorbellBufferConfig {
        shadow: pages.at(shadow),
        event_idx: pages.at(events),
    };
    let status = rig.admin(at(0, 4096).encode(0)).status();
    assert_eq!(status.code(), Status::INVALID_OPCODE, "it is not offered");
    drop(pages);
    config.identify.oacs = U16::new(oacs::DOORBELL_BUFFER);
    let mut rig = Rig::enabled(config, 8);
    let pages = rig.pages(8192);
    for (shadow, event_idx) in [(0, 0), (4, 4096), (0, 4100)] {
        let config =
            DoorbellBufferConfig { shadow: pages.at(shadow), event_idx: pages.at(event_idx) };
        assert_eq!(rig.admin(config.encode(0)).status().code(), Status::INVALID_FIELD);
        rig.expect_one_violation();
    }
}
