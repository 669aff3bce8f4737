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
//! A reactor submits a task and continues. The reply arrives at the [`ReplyQueue`] of the source,
//! which the reactor polls on every turn. A submitted task always runs, even if its connection is
//! gone by then.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nvmeof_verbs::{AcceptParams, Device, Endpoint, PendingConnection, PrivateData, VerbsError};
use nvmeof_wire::rdma::{RejectData, RejectStatus};
use nvmeof_wire::zerocopy::IntoBytes;
use rustix::event::{EventfdFlags, eventfd};

use super::qp::{Accepted, Init, Qp};

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
pub struct CmWorker<D: Device> {
    shared: Arc<WorkerShared<D>>,
    without_threads: bool,
}

#[derive(Debug)]
struct WorkerShared<D: Device> {
    name: String,
    work: Mutex<TaskQueue<D>>,
    news: Condvar,
}

/// Pending tasks and the state of the workers.
#[derive(Debug)]
struct TaskQueue<D: Device> {
    tasks: VecDeque<CmTask<D>>,
    /// Queue pairs that could not be destroyed, with the time of the next attempt.
    later: Vec<(Instant, DestroyTask<D>)>,
    accepting: usize,
    closing: bool,
}

/// Parameters for accepting a connection, and the destination of the reply.
#[derive(Debug)]
pub(super) struct AcceptTask<D: Device> {
    pub(super) pair: Qp<Init, D::Endpoint>,
    pub(super) private_data: PrivateData,
    pub(super) reads_out: u8,
    pub(super) reads_in: u8,
    pub(super) rnr_retries: u8,
    pub(super) cancel: CancelToken,
    pub(super) reply_to: ReplyTo<D>,
}

/// A queue pair to destroy, and the destination of the reply.
#[derive(Debug)]
struct DestroyTask<D: Device> {
    endpoint: D::Endpoint,
    reply_to: ReplyTo<D>,
    /// Reply after the destruction: the reason why it could not be accepted, or nothing.
    refused: Option<VerbsError>,
    pause: Duration,
}

/// A task of the worker threads.
enum CmTask<D: Device> {
    CompletionQueue(u32, Arc<D>, ReplyTo<D>),
    Accept(Box<AcceptTask<D>>),
    Destroy(DestroyTask<D>),
    Reject(D::PendingConnection, RejectStatus),
    /// Only drops the value.
    Drop(Box<dyn Any + Send>),
}

impl<D: Device> Debug for CmTask<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::CompletionQueue(..) => "Completions",
            Self::Accept(_) => "Accept",
            Self::Destroy(_) => "Destroy",
            Self::Reject(..) => "Reject",
            Self::Drop(_) => "Drop",
        })
    }
}

/// Destination of a reply: a reply queue, and a queue that it serves.
#[derive(Debug)]
pub(super) struct ReplyTo<D: Device> {
    pub(super) replies: Arc<ReplyQueue<D>>,
    /// Number of the queue among those that the reply queue serves.
    pub(super) number: u64,
}

impl<D: Device> Clone for ReplyTo<D> {
    fn clone(&self) -> Self {
        Self { replies: Arc::clone(&self.replies), number: self.number }
    }
}

/// Cancels an accept in progress.
#[derive(Clone, Debug, Default)]
pub(super) struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    pub(super) fn call(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_called(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Reply to a task.
#[derive(Debug)]
pub(super) enum CmReply<D: Device> {
    /// A completion queue, or the reason why there is none.
    CompletionQueue(Result<D::CompletionQueue, VerbsError>),
    /// The connection is accepted; the host can send from now on.
    Accepted(Qp<Accepted, D::Endpoint>),
    /// The accept failed or was recalled first; the queue pair no longer exists.
    Refused(VerbsError),
    /// The queue pair no longer exists.
    Destroyed,
}

impl<D: Device> CmWorker<D> {
    /// Creates it with its own threads.
    ///
    /// They start on the CPUs that the calling thread is allowed to use, not on a reactor's.
    ///
    /// # Errors
    /// Returns the error of the system if it has no thread left.
    pub(super) fn start(device: &D) -> io::Result<Self> {
        let cm_worker = Self::of(device, false);
        // If one thread fails to start, the drop of `cm_worker` ends the others.
        for _ in 0..THREADS {
            spawn(&cm_worker.shared)?;
        }
        Ok(cm_worker)
    }

    /// Creates it without threads: [`run`](Self::run) runs the tasks, for tests in virtual time.
    pub(super) fn without_threads(device: &D) -> Self {
        Self::of(device, true)
    }

    fn of(device: &D, without_threads: bool) -> Self {
        let work =
            TaskQueue { tasks: VecDeque::new(), later: Vec::new(), accepting: 0, closing: false };
        let name = device.name().to_owned();
        let shared = WorkerShared { name, work: Mutex::new(work), news: Condvar::new() };
        Self { shared: Arc::new(shared), without_threads }
    }

    /// Runs the tasks submitted so far if there are no threads.
    ///
    /// Each queue pair that cannot be destroyed gets one more attempt.
    pub fn run(&self) {
        if !self.without_threads {
            return;
        }
        let mut tasks = {
            let mut work = self.shared.lock();
            let later: Vec<_> = work.later.drain(..).collect();
            work.tasks.extend(later.into_iter().map(|(_, ending)| CmTask::Destroy(ending)));
            std::mem::take(&mut work.tasks)
        };
        for task in tasks.drain(..) {
            self.shared.run_task(task);
        }
    }

    /// Returns true if no task is pending. A task in progress does not count.
    pub fn is_idle(&self) -> bool {
        let work = self.shared.lock();
        work.tasks.is_empty() && work.later.is_empty()
    }

    /// Creates a completion queue of `depth` entries.
    pub(super) fn make_completions(&self, depth: u32, device: &Arc<D>, reply_to: ReplyTo<D>) {
        self.submit(CmTask::CompletionQueue(depth, Arc::clone(device), reply_to));
    }

    /// Accepts a connection.
    pub(super) fn accept(&self, accepting: AcceptTask<D>) {
        self.submit(CmTask::Accept(Box::new(accepting)));
    }

    /// Destroys a queue pair.
    pub(super) fn destroy(&self, endpoint: D::Endpoint, reply_to: ReplyTo<D>) {
        let ending = DestroyTask { endpoint, reply_to, refused: None, pause: FIRST_PAUSE };
        self.submit(CmTask::Destroy(ending));
    }

    /// Rejects a connection request.
    pub(super) fn reject(&self, ticket: D::PendingConnection, status: RejectStatus) {
        self.submit(CmTask::Reject(ticket, status));
    }

    /// Drops a value whose destructor can block.
    pub(super) fn dispose(&self, what: impl Any + Send) {
        self.submit(CmTask::Drop(Box::new(what)));
    }

    fn submit(&self, task: CmTask<D>) {
        self.shared.lock().tasks.push_back(task);
        self.shared.news.notify_one();
    }
}

impl<D: Device> Drop for CmWorker<D> {
    fn drop(&mut self) {
        self.run();
        self.shared.lock().closing = true;
        self.shared.news.notify_all();
    }
}

fn spawn<D: Device>(shared: &Arc<WorkerShared<D>>) -> io::Result<()> {
    let mine = Arc::clone(shared);
    let name: String = format!("cm-{}", shared.name).chars().take(15).collect();
    thread::Builder::new().name(name).spawn(move || serve(&mine)).map(drop)
}

/// Runs tasks in a thread until no more can follow.
fn serve<D: Device>(shared: &Arc<WorkerShared<D>>) {
    while let Some(task) = shared.next() {
        let accepts = matches!(task, CmTask::Accept(_));
        shared.run_task(task);
        if accepts {
            shared.lock().accepting -= 1;
            shared.news.notify_one();
        }
    }
}

impl<D: Device> WorkerShared<D> {
    fn lock(&self) -> MutexGuard<'_, TaskQueue<D>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next task and returns it; `None` at the end.
    fn next(&self) -> Option<CmTask<D>> {
        let mut work = self.lock();
        loop {
            if let Some(task) = work.take(Instant::now()) {
                return Some(task);
            }
            if work.closing && work.tasks.is_empty() && work.later.is_empty() {
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

    fn run_task(&self, task: CmTask<D>) {
        match task {
            CmTask::CompletionQueue(depth, device, reply_to) => {
                reply_to.answer(CmReply::CompletionQueue(device.completions(depth)));
            }
            CmTask::Accept(accepting) => self.accept(*accepting),
            CmTask::Destroy(ending) => self.destroy(ending),
            CmTask::Reject(ticket, status) => reject(ticket, status),
            CmTask::Drop(what) => drop(what),
        }
    }

    fn accept(&self, accepting: AcceptTask<D>) {
        let AcceptTask { pair, private_data, reads_out, reads_in, rnr_retries, cancel, reply_to } =
            accepting;
        let params = AcceptParams {
            private_data: private_data.as_slice(),
            reads_out,
            reads_in,
            rnr_retries,
        };
        let (error, pair) = if cancel.is_called() {
            let gone = io::ErrorKind::ConnectionAborted.into();
            (VerbsError::Call { what: "accepting a connection".to_owned(), source: gone }, pair)
        } else {
            match pair.accept(&params) {
                Ok(accepted) => return reply_to.answer(CmReply::Accepted(accepted)),
                Err(failed) => failed,
            }
        };
        let endpoint = pair.into_endpoint();
        self.destroy(DestroyTask { endpoint, reply_to, refused: Some(error), pause: FIRST_PAUSE });
    }

    fn destroy(&self, ending: DestroyTask<D>) {
        let DestroyTask { endpoint, reply_to, refused, pause } = ending;
        match endpoint.destroy() {
            Ok(()) => reply_to.answer(refused.map_or(CmReply::Destroyed, CmReply::Refused)),
            Err((error, endpoint)) => {
                if pause == FIRST_PAUSE {
                    tracing::error!(
                        %error, device = self.name,
                        "cannot destroy queue pair, retrying; its memory stays quarantined"
                    );
                }
                let pause_next = (2 * pause).min(LONGEST_PAUSE);
                let ending = DestroyTask { endpoint, reply_to, refused, pause: pause_next };
                self.lock().later.push((Instant::now() + pause, ending));
                self.news.notify_one();
            }
        }
    }
}

impl<D: Device> TaskQueue<D> {
    /// Removes and returns the next task that is allowed to run.
    fn take(&mut self, now: Instant) -> Option<CmTask<D>> {
        if let Some(at) = self.later.iter().position(|(due, _)| *due <= now) {
            return Some(CmTask::Destroy(self.later.swap_remove(at).1));
        }
        let may_accept = self.accepting < ACCEPTING;
        let may = |task: &CmTask<D>| may_accept || !matches!(task, CmTask::Accept(_));
        let at = self.tasks.iter().position(may)?;
        let task = self.tasks.remove(at)?;
        self.accepting += usize::from(matches!(task, CmTask::Accept(_)));
        Some(task)
    }
}

impl<D: Device> ReplyTo<D> {
    fn answer(&self, answer: CmReply<D>) {
        self.replies.put(self.number, answer);
    }
}

/// Replies for a source, and the descriptor that wakes its reactor.
#[derive(Debug)]
pub(super) struct ReplyQueue<D: Device> {
    answers: Mutex<Vec<(u64, CmReply<D>)>>,
    has: AtomicBool,
    news: Condvar,
    event_fd: OwnedFd,
}

impl<D: Device> ReplyQueue<D> {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let event_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let answers = Mutex::new(Vec::new());
        Ok(Arc::new(Self { answers, has: AtomicBool::new(false), news: Condvar::new(), event_fd }))
    }

    /// Returns a descriptor that is readable while there are replies.
    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        self.event_fd.as_fd()
    }

    /// Removes and returns the current replies.
    pub(super) fn take(&self) -> Vec<(u64, CmReply<D>)> {
        if !self.has.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut answers = self.lock();
        self.clear_event();
        std::mem::take(&mut *answers)
    }

    /// Waits for the reply to one task, for `most` at most.
    pub(super) fn wait_for(&self, number: u64, most: Duration) -> Option<CmReply<D>> {
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

    fn put(&self, number: u64, answer: CmReply<D>) {
        let mut answers = self.lock();
        answers.push((number, answer));
        self.has.store(true, Ordering::Release);
        if let Err(error) = rustix::io::write(&self.event_fd, &1_u64.to_ne_bytes()) {
            // Only if the counter is at its maximum, which is readable already.
            tracing::debug!(%error, "an eventfd could not be written");
        }
        self.news.notify_all();
    }

    /// Clears the descriptor. The lock is held, so that it stays clear once all replies are taken.
    fn clear_event(&self) {
        self.has.store(false, Ordering::Release);
        let _ = rustix::io::read(&self.event_fd, &mut [0_u8; 8]);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, CmReply<D>)>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rejects a connection request with a status for the host.
pub(super) fn reject(ticket: impl PendingConnection, status: RejectStatus) {
    ticket.reject(RejectData::new(status).as_bytes());
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use nvmeof_loopback_verbs::Fabric;

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
        let cm_worker = CmWorker::start(&*device).unwrap();
        let gates: Vec<_> = (1..THREADS)
            .map(|_| {
                let (open, gate) = channel::<()>();
                cm_worker.dispose(Gate(gate));
                open
            })
            .collect();
        let (event_fd, rung) = channel();
        cm_worker.dispose(Bell(event_fd));
        rung.recv_timeout(Duration::from_secs(60)).expect("nobody was left to do it");
        drop(gates);
    }

    #[test]
    fn a_desk_is_loud_while_it_has_something() {
        let replies: Arc<ReplyQueue<nvmeof_loopback_verbs::LoopbackDevice>> =
            ReplyQueue::new().unwrap();
        let is_loud = || {
            let mut fds = [rustix::event::PollFd::from_borrowed_fd(
                replies.event_fd(),
                rustix::event::PollFlags::IN,
            )];
            rustix::event::poll(&mut fds, Some(&rustix::time::Timespec::default())).unwrap() > 0
        };
        assert!(!is_loud() && replies.take().is_empty());
        let reply_to = ReplyTo { replies: Arc::clone(&replies), number: 4 };
        reply_to.answer(CmReply::Destroyed);
        reply_to.answer(CmReply::Destroyed);
        assert!(is_loud());
        let numbers: Vec<_> = replies.take().into_iter().map(|(number, _)| number).collect();
        assert_eq!(numbers, [4, 4]);
        assert!(!is_loud() && replies.take().is_empty());
        reply_to.answer(CmReply::Destroyed);
        assert!(replies.wait_for(4, Duration::ZERO).is_some());
        assert!(replies.wait_for(4, Duration::ZERO).is_none());
    }
}
