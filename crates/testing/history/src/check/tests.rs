use nvmeof_random::SplitMix64;

use super::*;
use crate::record::{ReadId, WriteId};
use crate::stamp::{BLOCK, Stamp};

const HERE: Block = Block { disk: 1, lba: 5 };

/// Builder of a history of one block.
#[derive(Default)]
struct Story {
    history: History,
    sequence: u64,
}

impl Story {
    /// Starts a write with a new stamp.
    fn write(&mut self, host: u32) -> (WriteId, Content) {
        self.sequence += 1;
        let content = Content::Stamp(Stamp { host, sequence: self.sequence });
        (self.history.write(host, HERE.disk, HERE.lba..HERE.lba + 1, content), content)
    }

    fn begin_read(&mut self) -> ReadId {
        self.history.read(9, HERE.disk, HERE.lba)
    }

    fn end_read(&mut self, read: ReadId, found: Content) {
        let mut bytes = [0; BLOCK];
        if let Content::Stamp(stamp) = found {
            stamp.fill(HERE, &mut bytes);
        }
        self.history.found(read, &bytes);
    }

    /// A read without other events during it.
    fn read(&mut self, found: Content) {
        let read = self.begin_read();
        self.end_read(read, found);
    }

    fn written(&mut self, host: u32) -> Content {
        let (write, content) = self.write(host);
        self.history.acknowledge(write);
        content
    }

    fn is_explained(&self) -> bool {
        self.history.check().is_ok()
    }
}

#[test]
fn what_was_written_last_is_read() {
    let mut story = Story::default();
    story.read(Content::Zero);
    let first = story.written(1);
    story.read(first);
    let second = story.written(2);
    story.read(second);
    story.read(second);
    let summary = story.history.check().expect("an order");
    let ended = BTreeMap::from([("acknowledged", 2)]);
    assert_eq!(summary, Summary { blocks: 1, writes: 2, reads: 4, ended });
}

#[test]
fn an_acknowledged_write_that_is_not_found_is_seen() {
    let mut story = Story::default();
    let first = story.written(1);
    story.written(2);
    story.read(first);
    let told = story.history.check().expect_err("no order").to_string();
    assert!(told.contains("disk 1 block 5: no order"), "{told}");
    assert!(told.contains("host 9: reads host 1 #1"), "{told}");
    assert!(told.contains("host 2: writes host 2 #2: acknowledged\n"), "{told}");

    let mut story = Story::default();
    story.written(1);
    story.read(Content::Zero);
    assert!(!story.is_explained());
}

#[test]
fn what_nobody_has_begun_to_write_is_seen() {
    let mut story = Story::default();
    let read = story.begin_read();
    story.end_read(read, Content::Stamp(Stamp { host: 1, sequence: 1 }));
    story.written(1);
    assert!(!story.is_explained());
}

#[test]
fn writes_at_once_take_effect_in_any_order_but_only_in_one() {
    for second_wins in [false, true] {
        let mut story = Story::default();
        let ((first, a), (second, b)) = (story.write(1), story.write(2));
        story.history.acknowledge(second);
        story.history.acknowledge(first);
        let (winner, loser) = if second_wins { (b, a) } else { (a, b) };
        story.read(winner);
        story.read(winner);
        assert!(story.is_explained());
        story.read(loser);
        assert!(!story.is_explained());
    }
}

/// Case 32: a write survives a reset.
#[test]
fn a_write_that_lands_after_its_host_was_told_of_the_reset_is_seen() {
    for told_first in [false, true] {
        let mut story = Story::default();
        let (stuck, lost) = story.write(1);
        if told_first {
            story.history.settle(stuck, "reset");
        }
        let kept = story.written(1);
        story.read(kept);
        if !told_first {
            story.history.settle(stuck, "reset");
        }
        story.read(lost);
        assert_eq!(story.is_explained(), !told_first);
    }
}

#[test]
fn a_lost_write_takes_effect_before_its_host_was_told_or_never() {
    for landed in [false, true] {
        let mut story = Story::default();
        let old = story.written(1);
        let (lost, content) = story.write(1);
        story.history.settle(lost, "reset");
        story.read(if landed { content } else { old });
        story.read(if landed { content } else { old });
        assert!(story.is_explained());
        story.read(if landed { old } else { content });
        assert!(!story.is_explained(), "landed: {landed}");
    }
}

#[test]
fn a_lost_write_that_nobody_was_told_of_comes_at_any_time_but_once() {
    let mut story = Story::default();
    let (_, lost) = story.write(1);
    let kept = story.written(2);
    story.read(kept);
    story.read(lost);
    assert!(story.is_explained());
    story.read(kept);
    assert!(!story.is_explained());
}

#[test]
fn a_write_that_is_done_again_may_undo_what_it_overtook_until_it_is_over() {
    for repeats in [false, true] {
        let mut story = Story::default();
        let (first, a) = story.write(1);
        if repeats {
            story.history.repeats(first);
        }
        story.read(a);
        let b = story.written(2);
        story.read(b);
        story.read(a);
        story.history.acknowledge(first);
        assert_eq!(story.is_explained(), repeats);
        let c = story.written(2);
        story.read(c);
        story.read(a);
        assert!(!story.is_explained(), "it is over");
    }
}

#[test]
fn a_write_that_is_answered_after_an_operator_was_told_has_taken_effect_before_that() {
    let mut story = Story::default();
    let (write, content) = story.write(1);
    story.history.settle(write, "reset");
    let other = story.written(2);
    story.history.acknowledge(write);
    assert!(story.history.is_acknowledged(write));
    let mut undone = Story { history: story.history.clone(), ..Story::default() };
    story.read(other);
    assert!(story.is_explained());
    undone.read(content);
    assert!(!undone.is_explained());
}

#[test]
fn a_failed_write_may_have_happened_and_never_happens_later() {
    let mut story = Story::default();
    let (write, content) = story.write(1);
    story.history.fail(write);
    story.read(Content::Zero);
    assert!(story.is_explained());
    story.read(content);
    assert!(!story.is_explained());
}

#[test]
fn zeroes_are_written_like_anything_else_and_by_several() {
    let mut story = Story::default();
    for _ in 0..2 {
        let data = story.written(1);
        story.read(data);
        let zero = story.history.write(2, HERE.disk, 0..10, Content::Zero);
        story.read(Content::Zero);
        story.history.acknowledge(zero);
        story.read(Content::Zero);
    }
    assert!(story.is_explained());
    let data = story.written(1);
    story.read(data);
    story.read(Content::Zero);
    assert!(!story.is_explained());
}

#[test]
fn bytes_that_no_write_left_are_seen() {
    let mut history = History::default();
    let read = history.read(3, HERE.disk, HERE.lba);
    history.found(read, &[1; BLOCK]);
    let told = history.check().expect_err("nobody wrote that").to_string();
    assert_eq!(told, "disk 1 block 5: host 3 finds bytes that nobody wrote at 2");
}

/// Many unanswered writes do not slow down the search: each possible effect is followed once.
#[test]
fn sixty_lost_writes_are_searched_in_no_time() {
    let mut story = Story::default();
    let lost: Vec<Content> = (0..60).map(|_| story.write(1).1).collect();
    for content in &lost {
        story.read(*content);
        let kept = story.written(2);
        story.read(kept);
    }
    assert!(story.is_explained());
    story.read(lost[7]);
    assert!(!story.is_explained());
}

/// Generates a few commands, some without an end; reads find arbitrary contents.
fn made_up(dice: &mut SplitMix64) -> Vec<Op> {
    let contents: Vec<Content> = (0..2)
        .map(|sequence| Content::Stamp(Stamp { host: 0, sequence }))
        .chain([Content::Zero])
        .collect();
    let count = 2 + dice.within(0..4);
    let mut times: Vec<u64> = (0..2 * count).collect();
    (0..count)
        .map(|_| {
            let mut time =
                || times.swap_remove(usize::try_from(dice.within(0..times.len() as u64)).unwrap());
            let (one, other) = (time(), time());
            let content = contents[usize::try_from(dice.within(0..3)).unwrap()];
            let kind = match dice.within(0..3) {
                0 => OpKind::Read(content),
                acknowledged => {
                    let acknowledged = acknowledged == 1;
                    OpKind::Write { content, acknowledged, repeats: false, event: None }
                }
            };
            let never = !matches!(kind, OpKind::Read(_) | OpKind::Write { acknowledged: true, .. })
                && dice.within(0..2) == 0;
            let ended = (!never).then_some(one.max(other));
            Op { host: 0, kind, begun: one.min(other), ended }
        })
        .collect()
}

/// Tries all orders of all commands, with each optional effect either taken or omitted.
fn is_explained_by_trying(left: &[Op], content: Content) -> bool {
    let has_to = |op: &Op| !matches!(op.kind, OpKind::Write { acknowledged: false, .. });
    if !left.iter().any(has_to) {
        return true;
    }
    (0..left.len()).any(|at| {
        let op = left[at];
        let others: Vec<Op> =
            left.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, op)| *op).collect();
        // Commands that ended before this one began come earlier, or never.
        let overtaken = |other: &Op| other.ended.is_some_and(|ended| ended < op.begun);
        if others.iter().any(|other| overtaken(other) && has_to(other)) {
            return false;
        }
        let after: Vec<Op> = others.into_iter().filter(|other| !overtaken(other)).collect();
        match op.kind {
            OpKind::Read(found) => found == content && is_explained_by_trying(&after, content),
            OpKind::Write { content, .. } => is_explained_by_trying(&after, content),
        }
    })
}

#[test]
fn it_says_what_trying_all_orders_says() {
    let (mut explained, mut refused) = (0, 0);
    for seed in 0..20_000 {
        let ops = made_up(&mut SplitMix64::new(seed));
        let tried = is_explained_by_trying(&ops, Content::Zero);
        assert_eq!(search(&ops).is_ok(), tried, "seed {seed}: {ops:?}");
        if tried { explained += 1 } else { refused += 1 }
    }
    assert!(explained > 2000 && refused > 2000, "{explained} explained, {refused} refused");
}
