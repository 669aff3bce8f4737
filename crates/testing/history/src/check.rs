//! Search for an order that explains a history, one block after another.

use std::collections::{BTreeMap, HashMap};

use crate::record::{Block, History};
use crate::report::Violation;
use crate::stamp::Content;

/// Maximum concurrent commands on one block: a state has one bit for each.
const OPEN_MAX: usize = 64;

/// Contents of a history that was explained.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Blocks with at least one read or write.
    pub blocks: usize,
    /// Writes of single blocks, with any outcome.
    pub writes: usize,
    /// Answered reads of single blocks.
    pub reads: usize,
    /// Number of writes that each event ended.
    pub ended: BTreeMap<&'static str, usize>,
}

impl Summary {
    /// Adds the contents of another history.
    pub fn add(&mut self, other: &Self) {
        self.blocks += other.blocks;
        self.writes += other.writes;
        self.reads += other.reads;
        for (event, writes) in &other.ended {
            *self.ended.entry(event).or_default() += writes;
        }
    }
}

/// A read or write of one block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Op {
    pub(crate) host: u32,
    pub(crate) kind: OpKind,
    pub(crate) begun: u64,
    pub(crate) ended: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum OpKind {
    /// A read with this result.
    Read(Content),
    Write {
        content: Content,
        /// The write must take effect.
        acknowledged: bool,
        /// The write may take effect several times.
        repeats: bool,
        /// Event that ended the write.
        event: Option<&'static str>,
    },
}

impl History {
    /// Searches, for every block, an order of its writes that explains every read.
    ///
    /// # Errors
    /// No order exists; the error holds the block and its history.
    ///
    /// # Panics
    /// More than 64 commands are in flight on one block.
    pub fn check(&self) -> Result<Summary, Violation> {
        let blocks = self.by_block()?;
        let mut summary = Summary { blocks: blocks.len(), ..Summary::default() };
        for (_, event) in self.writes.iter().filter_map(|write| write.settled) {
            *summary.ended.entry(event).or_default() += 1;
        }
        for (block, ops) in blocks {
            let reads = ops.iter().filter(|op| matches!(op.kind, OpKind::Read(_))).count();
            summary.reads += reads;
            summary.writes += ops.len() - reads;
            if let Err(unexplained) = search(&ops) {
                return Err(Violation::no_order(block, ops, unexplained));
            }
        }
        Ok(summary)
    }

    fn by_block(&self) -> Result<BTreeMap<Block, Vec<Op>>, Violation> {
        let mut blocks: BTreeMap<Block, Vec<Op>> = BTreeMap::new();
        for write in &self.writes {
            let (content, acknowledged, repeats) =
                (write.content, write.acknowledged, write.repeats);
            let (ended, event) = write.settled.unzip();
            let kind = OpKind::Write { content, acknowledged, repeats, event };
            let op = Op { host: write.host, kind, begun: write.begun, ended };
            for lba in write.lbas.clone() {
                blocks.entry(Block { disk: write.disk, lba }).or_default().push(op);
            }
        }
        for read in &self.reads {
            let Some((ended, found)) = &read.found else { continue };
            for (found, lba) in found.iter().zip(read.first..) {
                let block = Block { disk: read.disk, lba };
                let content =
                    found.map_err(|damage| Violation::damaged(block, read.host, *ended, damage))?;
                let kind = OpKind::Read(content);
                let op = Op { host: read.host, kind, begun: read.begun, ended: Some(*ended) };
                blocks.entry(block).or_default().push(op);
            }
        }
        Ok(blocks)
    }
}

/// Processes the commands of one block in order of time, with all states that the block can have.
///
/// # Errors
/// Index of the first command that no state explains.
fn search(ops: &[Op]) -> Result<(), usize> {
    let mut events: Vec<(u64, Moment, usize)> = Vec::with_capacity(2 * ops.len());
    for (index, op) in ops.iter().enumerate() {
        events.push((op.begun, Moment::Begin, index));
        events.extend(op.ended.map(|ended| (ended, Moment::End, index)));
    }
    events.sort_unstable();
    let mut search = Search::default();
    for (_, moment, index) in events {
        match moment {
            Moment::Begin => search.begin(index, &ops[index]),
            Moment::End if search.end(index) => {}
            Moment::End => return Err(index),
        }
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    Begin,
    End,
}

/// A state of the block: its content, and the open commands that took effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    content: Content,
    /// Commands that must take effect, and did.
    done: u64,
    /// Writes that did not have to take effect, did, and must not repeat.
    spent: u64,
}

/// Possible states of a block.
///
/// If two states differ only in `spent`, the one with fewer spent writes can do all that the other
/// can. Only that one is kept.
#[derive(Debug, Default)]
struct States(HashMap<(Content, u64), Vec<u64>>);

impl States {
    /// Adds a state; returns false if it, or one with fewer spent writes, is present.
    fn insert(&mut self, state: State) -> bool {
        let known = self.0.entry((state.content, state.done)).or_default();
        if known.iter().any(|spent| spent & state.spent == *spent) {
            return false;
        }
        known.retain(|spent| spent & state.spent != state.spent);
        known.push(state.spent);
        true
    }

    fn iter(&self) -> impl Iterator<Item = State> {
        self.0.iter().flat_map(|(&(content, done), spent)| {
            spent.iter().map(move |&spent| State { content, done, spent })
        })
    }
}

#[derive(Debug)]
struct Search {
    states: States,
    /// Open commands, by bit: the index of the command, and its kind.
    open: Vec<Option<(usize, OpKind)>>,
}

impl Default for Search {
    fn default() -> Self {
        let mut states = States::default();
        states.insert(State { content: Content::Zero, done: 0, spent: 0 });
        Self { states, open: Vec::new() }
    }
}

impl Search {
    fn begin(&mut self, index: usize, op: &Op) {
        let free = self.open.iter().position(Option::is_none).unwrap_or(self.open.len());
        assert!(free < OPEN_MAX, "more than {OPEN_MAX} commands are under way on one block");
        if free == self.open.len() {
            self.open.push(None);
        }
        self.open[free] = Some((index, op.kind));
    }

    /// Ends a command, which must have taken effect if it has to. Returns false if no state
    /// explains that.
    fn end(&mut self, index: usize) -> bool {
        self.take_effect();
        let is_it = |open: &Option<(usize, OpKind)>| open.is_some_and(|(known, _)| known == index);
        let Some(slot) = self.open.iter().position(is_it) else { return false };
        let Some((_, kind)) = self.open[slot].take() else { return false };
        let bit = 1 << slot;
        let has_to = !matches!(kind, OpKind::Write { acknowledged: false, .. });
        let mut left = States::default();
        for state in self.states.iter().filter(|state| !has_to || state.done & bit != 0) {
            left.insert(State { done: state.done & !bit, spent: state.spent & !bit, ..state });
        }
        self.states = left;
        !self.states.0.is_empty()
    }

    /// Adds every state that open commands can produce, in any order.
    fn take_effect(&mut self) {
        let mut states = States::default();
        let mut next: Vec<State> = self.states.iter().map(|state| self.read(state)).collect();
        // States with fewer spent writes come first, so that the others need not be followed.
        while !next.is_empty() {
            let new: Vec<State> = next.into_iter().filter(|state| states.insert(*state)).collect();
            next = new.into_iter().flat_map(|state| self.after(state)).collect();
        }
        self.states = states;
    }

    /// Returns the states that one open write produces from this one.
    fn after(&self, state: State) -> impl Iterator<Item = State> {
        self.open.iter().enumerate().filter_map(move |(slot, open)| {
            let Some((_, OpKind::Write { content, acknowledged, repeats, .. })) = *open else {
                return None;
            };
            let bit = 1 << slot;
            if !repeats && (state.done | state.spent) & bit != 0 {
                return None;
            }
            let done = if acknowledged { state.done | bit } else { state.done };
            let spent = if acknowledged || repeats { state.spent } else { state.spent | bit };
            Some(self.read(State { content, done, spent }))
        })
    }

    /// Marks open reads of the current content as done, which excludes no other order.
    fn read(&self, mut state: State) -> State {
        for (slot, open) in self.open.iter().enumerate() {
            if matches!(open, Some((_, OpKind::Read(found))) if *found == state.content) {
                state.done |= 1 << slot;
            }
        }
        state
    }
}

#[cfg(test)]
mod tests;
