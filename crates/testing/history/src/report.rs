//! Report of a history that no order explains.

use std::fmt;

use crate::check::{Op, OpKind};
use crate::record::Block;
use crate::stamp::Damage;

/// A block with a history that no order of its writes explains.
#[derive(Debug, Clone)]
pub struct Violation {
    block: Block,
    why: Why,
}

#[derive(Debug, Clone)]
enum Why {
    NoOrder { ops: Vec<Op>, unexplained: usize },
    Damaged { host: u32, at: u64, damage: Damage },
}

impl Violation {
    pub(crate) fn no_order(block: Block, ops: Vec<Op>, unexplained: usize) -> Self {
        Self { block, why: Why::NoOrder { ops, unexplained } }
    }

    pub(crate) fn damaged(block: Block, host: u32, at: u64, damage: Damage) -> Self {
        Self { block, why: Why::Damaged { host, at, damage } }
    }

    /// Returns the block.
    #[must_use]
    pub fn block(&self) -> Block {
        self.block
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let block = self.block;
        match &self.why {
            Why::Damaged { host, at, damage } => {
                write!(f, "{block}: host {host} finds {damage} at {at}")
            }
            Why::NoOrder { ops, unexplained } => {
                let op = &ops[*unexplained];
                writeln!(f, "{block}: no order of the writes explains this, {op}")?;
                let mut ops: Vec<&Op> = ops.iter().collect();
                ops.sort_by_key(|op| op.begun);
                ops.iter().try_for_each(|op| writeln!(f, "  {op}"))
            }
        }
    }
}

impl std::error::Error for Violation {}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = self.ended.map_or_else(String::new, |ended| ended.to_string());
        write!(f, "{:>6}..{ended:<6} host {}: ", self.begun, self.host)?;
        match self.kind {
            OpKind::Read(found) => write!(f, "reads {found}"),
            OpKind::Write { content, acknowledged, repeats, event } => {
                let again = if repeats { ", may be done again meanwhile" } else { "" };
                let outcome = match event {
                    Some("acknowledged") | None => "",
                    Some(_) if acknowledged => ", and acknowledged later",
                    Some(_) => ", may have happened before that",
                };
                let event = event.unwrap_or("nobody was told that it is over");
                write!(f, "writes {content}: {event}{outcome}{again}")
            }
        }
    }
}
