//! `nvmeofctl top`: a live view of the daemon.
//!
//! | file | contents |
//! |---|---|
//! | `stats_delta` | difference between two samples of the daemon |
//! | `screen` | terminal screen of the last difference |
//! | `figures` | numbers with units |

mod figures;
mod screen;
mod stats_delta;

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use clap::Args;
use nvmeof_api::{LiveStats, Stats};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::ApiClient;
use crate::output::{print, print_json};
pub(crate) use figures::time;
use screen::{Screen, SortOrder};
use stats_delta::StatsDelta;

/// Columns and rows of the output of `--once`.
const PAGE: (u16, u16) = (100, 40);

/// Show throughput, latency, commands in flight and waiting, live, by host and namespace
#[derive(Debug, Args)]
#[command(
    after_help = "Keys: q quits; t, c, f, w, h sort by throughput, commands, in flight, waiting, host; \
    arrows move; space stops and goes on.\n\nExamples:\n  nvmeofctl top\n  nvmeofctl top --once\n  \
    nvmeofctl --json top --once --interval 5"
)]
pub(crate) struct TopArgs {
    /// Seconds between samples: 1 to 60
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
    interval: u64,
    /// Take one sample over one interval and print it; with --json as JSON
    #[arg(long)]
    once: bool,
    /// Initial sort order of the flows
    #[arg(long, value_enum, default_value_t = SortOrder::Throughput)]
    sort: SortOrder,
}

/// Runs the command.
pub(crate) fn run(client: &ApiClient, json: bool, top: &TopArgs) -> anyhow::Result<()> {
    let interval = Duration::from_secs(top.interval);
    if top.once || json {
        let before = look(client)?;
        std::thread::sleep(interval);
        let delta = StatsDelta::between(&before, &look(client)?);
        if json {
            return print_json(&delta);
        }
        let mut screen = Screen::new(top.sort);
        screen.take(delta);
        return print(&screen.text(PAGE.0, PAGE.1));
    }
    anyhow::ensure!(
        std::io::stdin().is_terminal() && std::io::stdout().is_terminal(),
        "top draws on a terminal, and this is none; --once prints, --json writes JSON"
    );
    // The first sample comes before the screen, so that an error stays readable.
    let before = look(client)?;
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal, client, before, interval, top.sort);
    ratatui::try_restore()?;
    shown
}

fn look(client: &ApiClient) -> anyhow::Result<LiveStats> {
    Ok(client.get::<Stats>("/v1/stats")?.live)
}

/// Samples and draws until the user quits. It reports a daemon that does not respond, and retries.
fn show(
    terminal: &mut ratatui::DefaultTerminal,
    client: &ApiClient,
    mut before: LiveStats,
    interval: Duration,
    sort: SortOrder,
) -> anyhow::Result<()> {
    let mut screen = Screen::new(sort);
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        let left = next.saturating_duration_since(Instant::now());
        if event::poll(left)? {
            match event::read()? {
                Event::Key(key) if quits(key) => return Ok(()),
                Event::Key(key) if key.kind != KeyEventKind::Release => screen.press(key.code),
                _ => {}
            }
            continue;
        }
        next = Instant::now() + interval;
        match look(client) {
            Ok(now) => {
                // A restarted daemon counts from zero.
                if now.at_ns > before.at_ns && now.pacer.started >= before.pacer.started {
                    screen.take(StatsDelta::between(&before, &now));
                }
                before = now;
            }
            Err(error) => screen.lost(&error),
        }
    }
}

fn quits(key: KeyEvent) -> bool {
    let interrupt = key.code == KeyCode::Char('c') && key.modifiers == KeyModifiers::CONTROL;
    interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}
