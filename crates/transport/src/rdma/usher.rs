//! Worker threads for RDMA calls that can block in the kernel, shared by the reactors of one
//! device.
//!
//! ```text
//!   reactor                                CM worker                      reply queue
//!   needs a completion queue ------------> create it -------------------> Completions
//!   Pair<Init>, its receives posted -----> accept (resolves address) ---> Accepted(Pair<Accepted>)
//!                                             `- fails, or was recalled: destroy -> Refused
//!   a pair at its end -------------------> destroy, with retries -------> Destroyed
//!   a ticket that is not accepted -------> reject, no reply
//! ```
//!
//! A reactor submits a task and continues. The reply arrives at the [`Desk`] of the source, which
//! the reactor polls on every turn. A submitted task always runs, even if its connection is gone by
//! then.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nvmeof_verbs::{AcceptParams, Device, Endpoint, PrivateData, VerbsError};
use nvmeof_wire::rdma::RejectStatus;
use rustix::event::{EventfdFlags, eventfd};

use super::listener::reject;
use super::pair::{Accepted, Init, Pair};

/// Number of worker threads per device, and how many of them can accept connections concurrently.
///
/// All start in advance: a thread limit that is reached later leaves no queue pair behind.
/// Unreachable hosts can block only the accepting threads, so that destroying queue pairs always
/// proceeds.
const THREADS: usize = 4;
const ACCEPTING: usize = 3;
/// Pauses between attempts to destroy a queue pair: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Runs the blocking calls of a device's reactors. Dropping it does not wait for running calls.
#[derive(Debug)]
pub struct Usher<D: Device> {
    office: Arc<Office<D>>,
    by_hand: bool,
}

#[derive(Debug)]
struct Office<D: Device> {
    name: String,
    work: Mutex<Work<D>>,
    news: Condvar,
}

/// Pending tasks and the state of the workers.
#[derive(Debug)]
struct Work<D: Device> {
    errands: VecDeque<Errand<D>>,
    /// Queue pairs that could not be destroyed, with the time of the next attempt.
    later: Vec<(Instant, Ending<D>)>,
    accepting: usize,
    closing: bool,
}

/// Parameters for accepting a connection, and the destination of the reply.
#[derive(Debug)]
pub(super) struct Accepting<D: Device> {
    pub(super) pair: Pair<Init, D::Endpoint>,
    pub(super) private_data: PrivateData,
    pub(super) reads_out: u8,
    pub(super) reads_in: u8,
    pub(super) rnr_retries: u8,
    pub(super) recall: Recall,
    pub(super) slip: Slip<D>,
}

/// A queue pair to destroy, and the destination of the reply.
#[derive(Debug)]
struct Ending<D: Device> {
    endpoint: D::Endpoint,
    slip: Slip<D>,
    /// Reply after the destruction: the reason why it could not be accepted, or nothing.
    refused: Option<VerbsError>,
    pause: Duration,
}

/// A task of the worker threads.
enum Errand<D: Device> {
    Completions(u32, Arc<D>, Slip<D>),
    Accept(Box<Accepting<D>>),
    Destroy(Ending<D>),
    Reject(D::Ticket, RejectStatus),
    /// Only drops the value.
    Drop(Box<dyn Any + Send>),
}

impl<D: Device> Debug for Errand<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Completions(..) => "Completions",
            Self::Accept(_) => "Accept",
            Self::Destroy(_) => "Destroy",
            Self::Reject(..) => "Reject",
            Self::Drop(_) => "Drop",
        })
    }
}

/// Destination of a reply: a reply queue, and a queue that it serves.
#[derive(Debug)]
pub(super) struct Slip<D: Device> {
    pub(super) desk: Arc<Desk<D>>,
    /// Number of the queue among those that the reply queue serves.
    pub(super) number: u64,
}

impl<D: Device> Clone for Slip<D> {
    fn clone(&self) -> Self {
        Self { desk: Arc::clone(&self.desk), number: self.number }
    }
}

/// Cancels an accept in progress.
#[derive(Clone, Debug, Default)]
pub(super) struct Recall(Arc<AtomicBool>);

impl Recall {
    pub(super) fn call(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_called(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Reply to a task.
#[derive(Debug)]
pub(super) enum Answer<D: Device> {
    /// A completion queue, or the reason why there is none.
    Completions(Result<D::Completions, VerbsError>),
    /// The connection is accepted; the host can send from now on.
    Accepted(Pair<Accepted, D::Endpoint>),
    /// The accept failed or was recalled first; the queue pair no longer exists.
    Refused(VerbsError),
    /// The queue pair no longer exists.
    Destroyed,
}

impl<D: Device> Usher<D> {
    /// Creates it with its own threads.
    ///
    /// They start on the CPUs that the calling thread is allowed to use, not on a reactor's.
    ///
    /// # Errors
    /// Returns the error of the system if it has no thread left.
    pub(super) fn start(device: &D) -> io::Result<Self> {
        let usher = Self::of(device, false);
        // If one thread fails to start, the drop of `usher` ends the others.
        for _ in 0..THREADS {
            spawn(&usher.office)?;
        }
        Ok(usher)
    }

    /// Creates it without threads: [`run`](Self::run) runs the tasks, for tests in virtual time.
    pub(super) fn by_hand(device: &D) -> Self {
        Self::of(device, true)
    }

    fn of(device: &D, by_hand: bool) -> Self {
        let work =
            Work { errands: VecDeque::new(), later: Vec::new(), accepting: 0, closing: false };
        let name = device.name().to_owned();
        let office = Office { name, work: Mutex::new(work), news: Condvar::new() };
        Self { office: Arc::new(office), by_hand }
    }

    /// Runs the tasks submitted so far if there are no threads.
    ///
    /// Each queue pair that cannot be destroyed gets one more attempt.
    pub fn run(&self) {
        if !self.by_hand {
            return;
        }
        let mut errands = {
            let mut work = self.office.lock();
            let later: Vec<_> = work.later.drain(..).collect();
            work.errands.extend(later.into_iter().map(|(_, ending)| Errand::Destroy(ending)));
            std::mem::take(&mut work.errands)
        };
        for errand in errands.drain(..) {
            self.office.carry_out(errand);
        }
    }

    /// Returns true if no task is pending. A task in progress does not count.
    pub fn is_idle(&self) -> bool {
        let work = self.office.lock();
        work.errands.is_empty() && work.later.is_empty()
    }

    /// Creates a completion queue of `depth` entries.
    pub(super) fn make_completions(&self, depth: u32, device: &Arc<D>, slip: Slip<D>) {
        self.hand_over(Errand::Completions(depth, Arc::clone(device), slip));
    }

    /// Accepts a connection.
    pub(super) fn accept(&self, accepting: Accepting<D>) {
        self.hand_over(Errand::Accept(Box::new(accepting)));
    }

    /// Destroys a queue pair.
    pub(super) fn destroy(&self, endpoint: D::Endpoint, slip: Slip<D>) {
        let ending = Ending { endpoint, slip, refused: None, pause: FIRST_PAUSE };
        self.hand_over(Errand::Destroy(ending));
    }

    /// Rejects a connection request.
    pub(super) fn reject(&self, ticket: D::Ticket, status: RejectStatus) {
        self.hand_over(Errand::Reject(ticket, status));
    }

    /// Drops a value whose destructor can block.
    pub(super) fn dispose(&self, what: impl Any + Send) {
        self.hand_over(Errand::Drop(Box::new(what)));
    }

    fn hand_over(&self, errand: Errand<D>) {
        self.office.lock().errands.push_back(errand);
        self.office.news.notify_one();
    }
}

impl<D: Device> Drop for Usher<D> {
    fn drop(&mut self) {
        self.run();
        self.office.lock().closing = true;
        self.office.news.notify_all();
    }
}

fn spawn<D: Device>(office: &Arc<Office<D>>) -> io::Result<()> {
    let mine = Arc::clone(office);
    let name: String = format!("usher-{}", office.name).chars().take(15).collect();
    thread::Builder::new().name(name).spawn(move || serve(&mine)).map(drop)
}

/// Runs tasks in a thread until no more can follow.
fn serve<D: Device>(office: &Arc<Office<D>>) {
    while let Some(errand) = office.next() {
        let accepts = matches!(errand, Errand::Accept(_));
        office.carry_out(errand);
        if accepts {
            office.lock().accepting -= 1;
            office.news.notify_one();
        }
    }
}

impl<D: Device> Office<D> {
    fn lock(&self) -> MutexGuard<'_, Work<D>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next task and returns it; `None` at the end.
    fn next(&self) -> Option<Errand<D>> {
        let mut work = self.lock();
        loop {
            if let Some(errand) = work.take(Instant::now()) {
                return Some(errand);
            }
            if work.closing && work.errands.is_empty() && work.later.is_empty() {
                return None;
            }
            let due = work.later.iter().map(|(at, _)| *at).min();
            work = match due {
                Some(at) => {
                    let pause = at.saturating_duration_since(Instant::now());
                    let waited = self.news.wait_timeout(work, pause);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.news.wait(work).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn carry_out(&self, errand: Errand<D>) {
        match errand {
            Errand::Completions(depth, device, slip) => {
                slip.answer(Answer::Completions(device.completions(depth)));
            }
            Errand::Accept(accepting) => self.accept(*accepting),
            Errand::Destroy(ending) => self.destroy(ending),
            Errand::Reject(ticket, status) => reject(ticket, status),
            Errand::Drop(what) => drop(what),
        }
    }

    fn accept(&self, accepting: Accepting<D>) {
        let Accepting { pair, private_data, reads_out, reads_in, rnr_retries, recall, slip } =
            accepting;
        let params = AcceptParams {
            private_data: private_data.as_slice(),
            reads_out,
            reads_in,
            rnr_retries,
        };
        let (error, pair) = if recall.is_called() {
            let gone = io::ErrorKind::ConnectionAborted.into();
            (VerbsError::Call { what: "accepting a connection".to_owned(), source: gone }, pair)
        } else {
            match pair.accept(&params) {
                Ok(accepted) => return slip.answer(Answer::Accepted(accepted)),
                Err(failed) => failed,
            }
        };
        let endpoint = pair.into_endpoint();
        self.destroy(Ending { endpoint, slip, refused: Some(error), pause: FIRST_PAUSE });
    }

    fn destroy(&self, ending: Ending<D>) {
        let Ending { endpoint, slip, refused, pause } = ending;
        match endpoint.destroy() {
            Ok(()) => slip.answer(refused.map_or(Answer::Destroyed, Answer::Refused)),
            Err((error, endpoint)) => {
                if pause == FIRST_PAUSE {
                    tracing::error!(
                        %error, device = self.name,
                        "a queue pair cannot be destroyed; its memory is kept, and it is tried again"
                    );
                }
                let pause_next = (2 * pause).min(LONGEST_PAUSE);
                let ending = Ending { endpoint, slip, refused, pause: pause_next };
                self.lock().later.push((Instant::now() + pause, ending));
                self.news.notify_one();
            }
        }
    }
}

impl<D: Device> Work<D> {
    /// Removes and returns the next task that is allowed to run.
    fn take(&mut self, now: Instant) -> Option<Errand<D>> {
        if let Some(at) = self.later.iter().position(|(due, _)| *due <= now) {
            return Some(Errand::Destroy(self.later.swap_remove(at).1));
        }
        let may_accept = self.accepting < ACCEPTING;
        let may = |errand: &Errand<D>| may_accept || !matches!(errand, Errand::Accept(_));
        let at = self.errands.iter().position(may)?;
        let errand = self.errands.remove(at)?;
        self.accepting += usize::from(matches!(errand, Errand::Accept(_)));
        Some(errand)
    }
}

impl<D: Device> Slip<D> {
    fn answer(&self, answer: Answer<D>) {
        self.desk.put(self.number, answer);
    }
}

/// Replies for a source, and the descriptor that wakes its reactor.
#[derive(Debug)]
pub(super) struct Desk<D: Device> {
    answers: Mutex<Vec<(u64, Answer<D>)>>,
    has: AtomicBool,
    news: Condvar,
    bell: OwnedFd,
}

impl<D: Device> Desk<D> {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let answers = Mutex::new(Vec::new());
        Ok(Arc::new(Self { answers, has: AtomicBool::new(false), news: Condvar::new(), bell }))
    }

    /// Returns a descriptor that is readable while there are replies.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Removes and returns the current replies.
    pub(super) fn take(&self) -> Vec<(u64, Answer<D>)> {
        if !self.has.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut answers = self.lock();
        self.silence();
        std::mem::take(&mut *answers)
    }

    /// Waits for the reply to one task, for `most` at most.
    pub(super) fn wait_for(&self, number: u64, most: Duration) -> Option<Answer<D>> {
        let until = Instant::now() + most;
        let mut answers = self.lock();
        loop {
            if let Some(at) = answers.iter().position(|(whose, _)| *whose == number) {
                return Some(answers.swap_remove(at).1);
            }
            let left = until.checked_duration_since(Instant::now())?;
            let waited = self.news.wait_timeout(answers, left);
            answers = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn put(&self, number: u64, answer: Answer<D>) {
        let mut answers = self.lock();
        answers.push((number, answer));
        self.has.store(true, Ordering::Release);
        if let Err(error) = rustix::io::write(&self.bell, &1_u64.to_ne_bytes()) {
            // Only if the counter is at its maximum, which is readable already.
            tracing::debug!(%error, "an eventfd could not be written");
        }
        self.news.notify_all();
    }

    /// Clears the descriptor. The lock is held, so that it stays clear once all replies are taken.
    fn silence(&self) {
        self.has.store(false, Ordering::Release);
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Answer<D>)>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use nvmeof_verbs::loopback::Fabric;

    use super::*;

    /// A value whose destructor blocks.
    struct Gate(Receiver<()>);

    impl Drop for Gate {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    /// A value whose destructor sends a message.
    struct Bell(Sender<()>);

    impl Drop for Bell {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    #[test]
    fn what_waits_holds_nothing_else_up() {
        let device = Fabric::new(1).device("slow");
        let usher = Usher::start(&*device).unwrap();
        let gates: Vec<_> = (1..THREADS)
            .map(|_| {
                let (open, gate) = channel::<()>();
                usher.dispose(Gate(gate));
                open
            })
            .collect();
        let (bell, rung) = channel();
        usher.dispose(Bell(bell));
        rung.recv_timeout(Duration::from_secs(60)).expect("nobody was left to do it");
        drop(gates);
    }

    #[test]
    fn a_desk_is_loud_while_it_has_something() {
        let desk: Arc<Desk<nvmeof_verbs::loopback::LoopbackDevice>> = Desk::new().unwrap();
        let is_loud = || {
            let mut fds = [rustix::event::PollFd::from_borrowed_fd(
                desk.bell(),
                rustix::event::PollFlags::IN,
            )];
            rustix::event::poll(&mut fds, Some(&rustix::time::Timespec::default())).unwrap() > 0
        };
        assert!(!is_loud() && desk.take().is_empty());
        let slip = Slip { desk: Arc::clone(&desk), number: 4 };
        slip.answer(Answer::Destroyed);
        slip.answer(Answer::Destroyed);
        assert!(is_loud());
        let numbers: Vec<_> = desk.take().into_iter().map(|(number, _)| number).collect();
        assert_eq!(numbers, [4, 4]);
        assert!(!is_loud() && desk.take().is_empty());
        slip.answer(Answer::Destroyed);
        assert!(desk.wait_for(4, Duration::ZERO).is_some());
        assert!(desk.wait_for(4, Duration::ZERO).is_none());
    }
}
