//! Tests of the log queue with an output that stops or fails.

use std::io::{self, ErrorKind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{BYTES_MAX, CUT, LINE_MAX, LINES_MAX, LogQueue, log_queue};

/// Longer than any wait of a test.
const LONG: Duration = Duration::from_secs(60);
/// Minimum wait.
const SHORT: Duration = Duration::from_millis(1);

fn notice(missing: u64) -> String {
    format!("[{missing} missing]\n")
}

/// Response of an output to a write.
#[derive(Debug, Clone, Copy)]
enum Answer {
    /// Accepts at most this number of bytes.
    Take(usize),
    Fail(ErrorKind),
}

const ALL: Answer = Answer::Take(usize::MAX);

/// An output that waits for an answer for each write and follows it.
struct Output {
    answers: Receiver<Answer>,
    text: Arc<Mutex<String>>,
}

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Without a sender it accepts everything.
        match self.answers.recv().unwrap_or(ALL) {
            Answer::Take(most) => {
                let taken = bytes.len().min(most);
                self.text.lock().unwrap().push_str(str::from_utf8(&bytes[..taken]).unwrap());
                Ok(taken)
            }
            Answer::Fail(kind) => Err(kind.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A queue with a writer whose output waits for answers.
struct World {
    queue: LogQueue,
    answers: Sender<Answer>,
    text: Arc<Mutex<String>>,
    writer: JoinHandle<()>,
}

impl World {
    fn new() -> Self {
        let (queue, drain) = log_queue();
        let ((answers, told), text) = (channel(), Arc::default());
        let mut out = Output { answers: told, text: Arc::clone(&text) };
        let writer = std::thread::spawn(move || drain.write_all(&mut out, notice));
        Self { queue, answers, text, writer }
    }

    fn push(&self, line: &str) {
        self.queue.push(format!("{line}\n").as_bytes());
    }

    fn answer(&self, answers: &[Answer]) {
        answers.iter().for_each(|answer| self.answers.send(*answer).unwrap());
    }

    /// Lets the output accept everything and returns all that was written.
    fn end(self) -> String {
        let Self { queue, answers, text, writer } = self;
        drop(answers);
        assert!(queue.flush(LONG));
        drop(queue);
        writer.join().unwrap();
        Arc::into_inner(text).unwrap().into_inner().unwrap()
    }
}

#[test]
fn lines_come_out_in_order_and_whole() {
    let world = World::new();
    world.answer(&[Answer::Take(2), Answer::Fail(ErrorKind::Interrupted), Answer::Take(1)]);
    for line in ["first", "second", "third"] {
        world.push(line);
    }
    assert_eq!(world.queue.dropped(), 0);
    assert_eq!(world.end(), "first\nsecond\nthird\n");
}

#[test]
fn an_output_that_stops_costs_lines_and_nobody_waits() {
    let world = World::new();
    let more = 10;
    // The writer may hold one line in addition to those in the queue.
    for line in 0..LINES_MAX + 1 + more {
        world.push(&line.to_string());
    }
    let dropped = world.queue.dropped();
    assert!(dropped == 10 || dropped == 11, "{dropped}");
    assert!(!world.queue.flush(SHORT), "a flush does not wait for ever");
    world.answer(&[ALL; 2]);
    loop {
        let before = world.queue.dropped();
        world.push("later");
        if world.queue.dropped() == before {
            break;
        }
        std::thread::yield_now();
    }
    let all_dropped = world.queue.dropped();
    let text = world.end();
    let lines: Vec<&str> = text.lines().collect();
    let kept = LINES_MAX + 1 + more - usize::try_from(dropped).unwrap();
    for (at, line) in lines[..kept].iter().enumerate() {
        assert_eq!(*line, at.to_string());
    }
    let missing: u64 = lines[kept..]
        .iter()
        .filter_map(|line| line.strip_prefix('[')?.split_once(' ')?.0.parse::<u64>().ok())
        .sum();
    assert_eq!(missing, all_dropped, "{:?}", &lines[kept..]);
    assert_eq!(lines.last(), Some(&"later"), "{:?}", &lines[kept..]);
}

#[test]
fn the_queue_is_bounded_in_bytes() {
    let world = World::new();
    let line = "x".repeat(LINE_MAX - 1);
    let fit = BYTES_MAX / LINE_MAX;
    for _ in 0..fit + 5 {
        world.push(&line);
    }
    // The writer may hold one line in addition to those in the queue.
    let dropped = world.queue.dropped();
    assert!((4..=5).contains(&dropped), "{dropped}");
    assert!(world.queue.state.bytes.load(Relaxed) <= BYTES_MAX);
    let text = world.end();
    assert!(text.ends_with(&format!("x\n[{dropped} missing]\n")), "the end tells, too");
}

#[test]
fn a_long_line_is_cut_between_characters() {
    let world = World::new();
    world.push(&"\u{e9}".repeat(LINE_MAX));
    world.push("next");
    let text = world.end();
    let cut = str::from_utf8(CUT).unwrap();
    let (long, next) = text.split_once(cut).expect("a mark where it is cut");
    assert!(long.chars().all(|c| c == '\u{e9}') && next == "next\n");
    assert!(long.len() + cut.len() > LINE_MAX - 2 && long.len() + cut.len() <= LINE_MAX);
}

#[test]
fn a_table_is_put_in_as_whole_lines() {
    let world = World::new();
    let line = "a line of a table that is long\n";
    let table = line.repeat(3 * LINE_MAX / line.len());
    world.queue.push_lines(&table);
    world.queue.push_lines("last, without an end");
    assert_eq!(world.queue.dropped(), 0);
    assert_eq!(world.end(), table + "last, without an end");
}

#[test]
fn the_log_tells_what_is_missing_when_it_goes_on() {
    let world = World::new();
    let full = Answer::Fail(ErrorKind::StorageFull);
    // These fail: "two", the notice before "three", and, after three bytes, the notice before
    // "four".
    world.answer(&[ALL, full, full, Answer::Take(3), full]);
    for line in ["one", "two", "three", "four", "five"] {
        world.push(line);
    }
    let state = Arc::clone(&world.queue.state);
    assert_eq!(world.end(), "one\n[2 \n[3 missing]\nfive\n");
    assert_eq!(state.dropped.load(Relaxed), 3);
}

#[test]
fn without_further_lines_a_nudge_tells() {
    let world = World::new();
    world.queue.nudge();
    world.answer(&[Answer::Fail(ErrorKind::BrokenPipe)]);
    world.push("lost");
    while world.queue.state.unwritten.load(Relaxed) == 0 {
        std::thread::yield_now();
    }
    world.queue.nudge();
    assert_eq!(world.end(), "[1 missing]\n");
}

#[test]
fn threads_at_once_lose_no_line_from_the_count() {
    let world = World::new();
    let (threads, each) = (4, 3000);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let queue = &world.queue;
            scope.spawn(move || {
                for line in 0..each {
                    queue.push(format!("{thread} {line}\n").as_bytes());
                }
            });
        }
    });
    let dropped = world.queue.dropped();
    let text = world.end();
    let (told, lines): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| line.starts_with('['));
    assert_eq!(lines.len() as u64 + dropped, threads * each);
    let told: u64 =
        told.iter().map(|line| line[1..].split(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(told, dropped);
    for thread in 0..threads {
        let of_thread = lines.iter().filter_map(|line| line.strip_prefix(&format!("{thread} ")));
        let numbers: Vec<u64> = of_thread.map(|number| number.parse().unwrap()).collect();
        assert!(numbers.is_sorted(), "the order of a thread's lines is kept");
    }
}
