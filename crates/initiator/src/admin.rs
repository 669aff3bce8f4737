//! Blocking commands: those of an admin queue, and Connect on any queue.

use std::time::Duration;

use nvmeof_wire::Sqe;
use nvmeof_wire::opcode::AdminOpcode;

use crate::fabric::QueuePair;
use crate::{
    Buffer, Clock, Command, CommandError, CompletedCommand, Error, Nanos, RejectReason, Transfer,
    nanos,
};

/// Token of Keep Alive commands; other commands count up from 0.
const KEEP_ALIVE: u64 = u64::MAX;

/// Error of a blocking command.
#[derive(Debug)]
pub(crate) enum ExecuteError {
    /// The connection failed.
    Connection(Error),
    /// Only the command failed.
    Command(CommandError),
}

/// A queue whose user waits for each command.
#[derive(Debug)]
pub(crate) struct AdminQueue {
    pair: Box<dyn QueuePair>,
    clock: Clock,
    timeout: Duration,
    done: Vec<CompletedCommand>,
    next_token: u64,
    keep_alive: Option<KeepAlive>,
}

#[derive(Debug)]
struct KeepAlive {
    timeout: Duration,
    next: Nanos,
    waiting_since: Option<Nanos>,
}

impl AdminQueue {
    /// Creates the queue on a new connection; each command can take `timeout`.
    pub(crate) fn new(pair: Box<dyn QueuePair>, clock: Clock, timeout: Duration) -> Self {
        Self { pair, clock, timeout, done: Vec::new(), next_token: 0, keep_alive: None }
    }

    /// Address of the peer, for messages.
    pub(crate) fn peer(&self) -> String {
        self.pair.peer().to_owned()
    }

    /// Returns the connection, after Connect.
    pub(crate) fn into_pair(self) -> Box<dyn QueuePair> {
        self.pair
    }

    /// Starts Keep Alive: [`AdminQueue::poll`] sends it three times within `timeout`.
    pub(crate) fn start_keep_alive(&mut self, timeout: Duration) {
        if !timeout.is_zero() {
            let next = self.clock.now().saturating_add(nanos(timeout / 3));
            self.keep_alive = Some(KeepAlive { timeout, next, waiting_since: None });
        }
    }

    /// Executes a command; `what` names it in messages. Returns dwords 0 and 1 of the completion
    /// and the buffer.
    pub(crate) fn execute(
        &mut self,
        what: &'static str,
        sqe: Sqe,
        transfer: Transfer,
    ) -> Result<(u64, Option<Buffer>), Error> {
        self.try_execute(what, sqe, transfer).map_err(|failure| match failure {
            ExecuteError::Connection(error) => error,
            ExecuteError::Command(error) => {
                Error::Command { peer: self.peer(), command: what, error }
            }
        })
    }

    /// Executes a command without data that can take `timeout`; Keep Alive continues.
    pub(crate) fn execute_long(
        &mut self,
        what: &'static str,
        sqe: Sqe,
        timeout: Duration,
    ) -> Result<(), Error> {
        let usual = std::mem::replace(&mut self.timeout, timeout);
        let result = self.execute(what, sqe, Transfer::None);
        self.timeout = usual;
        result.map(drop)
    }

    /// Executes a command as [`AdminQueue::execute`] does, with the status separate from connection
    /// errors.
    pub(crate) fn try_execute(
        &mut self,
        what: &'static str,
        sqe: Sqe,
        transfer: Transfer,
    ) -> Result<(u64, Option<Buffer>), ExecuteError> {
        let token = self.next_token;
        self.next_token += 1;
        let deadline = self.clock.now().saturating_add(nanos(self.timeout));
        if let Err(rejected) = self.pair.submit(Command { token, sqe, transfer }, deadline) {
            return Err(ExecuteError::Connection(self.rejected(rejected.reason)));
        }
        loop {
            self.pair.flush().map_err(ExecuteError::Connection)?;
            self.receive().map_err(ExecuteError::Connection)?;
            if let Some(at) = self.done.iter().position(|completed| completed.token == token) {
                let completed = self.done.swap_remove(at);
                return match completed.result {
                    Ok(value) => Ok((value, completed.buffer)),
                    Err(error) => Err(ExecuteError::Command(error)),
                };
            }
            let left = deadline.saturating_sub(self.clock.now());
            if left == 0 {
                self.pair.close(self.clock.now(), &mut self.done);
                self.done.clear();
                let (peer, after) = (self.peer(), self.timeout);
                return Err(ExecuteError::Connection(Error::Timeout {
                    peer,
                    what: what.into(),
                    after,
                }));
            }
            self.keep_alive().map_err(ExecuteError::Connection)?;
            self.pair.wait(Duration::from_nanos(left).min(self.look_again()));
        }
    }

    /// Sends Keep Alive if it is due. Returns an error if the controller does not respond any more.
    pub(crate) fn poll(&mut self) -> Result<(), Error> {
        self.receive()?;
        self.done.clear();
        self.keep_alive()
    }

    /// Minimum time until Keep Alive has to be checked again.
    fn look_again(&self) -> Duration {
        self.keep_alive.as_ref().map_or(Duration::MAX, |keep_alive| keep_alive.timeout / 6)
    }

    fn keep_alive(&mut self) -> Result<(), Error> {
        let now = self.clock.now();
        let Some(keep_alive) = &mut self.keep_alive else { return self.pair.flush() };
        match keep_alive.waiting_since {
            Some(since) if now.saturating_sub(since) > nanos(keep_alive.timeout) => {
                let (peer, after) = (self.pair.peer().to_owned(), keep_alive.timeout);
                return Err(Error::Timeout { peer, what: "Keep Alive".into(), after });
            }
            None if now >= keep_alive.next => {
                keep_alive.next = now.saturating_add(nanos(keep_alive.timeout / 3));
                keep_alive.waiting_since = Some(now);
                let sqe = Sqe::admin(AdminOpcode::KEEP_ALIVE, 0, 0);
                let command = Command { token: KEEP_ALIVE, sqe, transfer: Transfer::None };
                if let Err(rejected) = self.pair.submit(command, Nanos::MAX) {
                    return Err(self.rejected(rejected.reason));
                }
            }
            _ => {}
        }
        self.pair.flush()
    }

    fn receive(&mut self) -> Result<(), Error> {
        let before = self.done.len();
        self.pair.receive(&mut self.done)?;
        if let Some(keep_alive) = &mut self.keep_alive
            && let Some(completed) = self.done[before..].iter().find(|c| c.token == KEEP_ALIVE)
        {
            keep_alive.waiting_since = None;
            if let Err(error) = completed.result {
                let peer = self.pair.peer().to_owned();
                return Err(Error::Command { peer, command: "Keep Alive", error });
            }
        }
        Ok(())
    }

    fn rejected(&self, reason: RejectReason) -> Error {
        Error::Unusable {
            peer: self.peer(),
            what: format!("cannot send an admin command: {reason}"),
        }
    }
}
