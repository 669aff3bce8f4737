//! Terminal screen of the last [`StatsDelta`]; 80 columns and 24 rows are sufficient.

use std::cmp::Ordering;
use std::collections::VecDeque;

use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Gauge, Paragraph, Row, Sparkline, Table, TableState};
use ratatui::{Frame, Terminal};

use super::figures::{bits, bytes, count, rate, shown, time, to_float};
use super::stats_delta::{CommandRates, FlowRow, StatsDelta};

/// Maximum values in the throughput plot.
const KEEP: usize = 240;

/// Sort orders of flows: descending, names ascending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SortOrder {
    /// Bytes a second
    Throughput,
    /// Commands a second
    Commands,
    /// Bytes in flight
    InFlight,
    /// Commands that wait for admission
    Waiting,
    /// The host's name
    Host,
}

impl SortOrder {
    fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Commands => "commands",
            Self::InFlight => "in flight",
            Self::Waiting => "waiting",
            Self::Host => "host",
        }
    }

    fn compare(self, one: &FlowRow, two: &FlowRow) -> Ordering {
        let names =
            (&one.host, &one.subsystem, one.nsid).cmp(&(&two.host, &two.subsystem, two.nsid));
        match self {
            Self::Throughput => two.bytes_per_second().total_cmp(&one.bytes_per_second()),
            Self::Commands => two.ops_per_second.total_cmp(&one.ops_per_second),
            Self::InFlight => two.in_flight_bytes.cmp(&one.in_flight_bytes),
            Self::Waiting => two.waiting.cmp(&one.waiting),
            Self::Host => Ordering::Equal,
        }
        .then(names)
    }
}

/// State of the screen.
#[derive(Debug)]
pub(crate) struct Screen {
    delta: StatsDelta,
    /// Earlier throughput in bytes per second, the newest last.
    history: VecDeque<u64>,
    sort: SortOrder,
    table: TableState,
    stopped: bool,
    /// Reason for missing updates.
    trouble: Option<String>,
}

impl Screen {
    pub(crate) fn new(sort: SortOrder) -> Self {
        Self {
            delta: StatsDelta::default(),
            history: VecDeque::new(),
            sort,
            table: TableState::default(),
            stopped: false,
            trouble: None,
        }
    }

    /// Shows this difference, unless the user has stopped the screen.
    pub(crate) fn take(&mut self, delta: StatsDelta) {
        self.trouble = None;
        if self.stopped {
            return;
        }
        let throughput = delta.read.bytes_per_second + delta.write.bytes_per_second;
        self.history.push_back(whole(throughput));
        if self.history.len() > KEEP {
            self.history.pop_front();
        }
        self.delta = delta;
        self.arrange();
    }

    /// Shows the reason for missing updates.
    pub(crate) fn lost(&mut self, why: &anyhow::Error) {
        self.trouble = Some(format!("{why:#}").replace(char::is_control, " "));
    }

    /// Handles a key that does not quit.
    pub(crate) fn press(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char('t') => self.sort = SortOrder::Throughput,
            KeyCode::Char('c') => self.sort = SortOrder::Commands,
            KeyCode::Char('f') => self.sort = SortOrder::InFlight,
            KeyCode::Char('w') => self.sort = SortOrder::Waiting,
            KeyCode::Char('h') => self.sort = SortOrder::Host,
            KeyCode::Char(' ') => self.stopped = !self.stopped,
            KeyCode::Down => self.table.select_next(),
            KeyCode::Up => self.table.select_previous(),
            KeyCode::Home => self.table.select_first(),
            KeyCode::End => self.table.select_last(),
            _ => {}
        }
        self.arrange();
    }

    fn arrange(&mut self) {
        let sort = self.sort;
        self.delta.flows.sort_by(|one, two| sort.compare(one, two));
    }

    /// Returns the screen as text, for output without a terminal.
    pub(crate) fn text(&mut self, columns: u16, rows: u16) -> String {
        let flows = u16::try_from(self.delta.flows.len()).unwrap_or(u16::MAX);
        let rows = rows.min(flows.saturating_add(HEAD + 2 + self.tenant_rows()));
        let Ok(mut terminal) = Terminal::new(TestBackend::new(columns, rows));
        let Ok(_) = terminal.draw(|frame| self.draw(frame));
        let buffer = terminal.backend().buffer();
        let line = |row: &[ratatui::buffer::Cell]| {
            let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
            line.trim_end().to_owned() + "\n"
        };
        buffer.content().chunks(usize::from(columns)).map(line).collect()
    }

    pub(crate) fn draw(&mut self, frame: &mut Frame<'_>) {
        let [title, work, pacer, reactors, flows, tenants] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(5),
            Constraint::Length(4),
            Constraint::Length(1),
            Constraint::Min(3),
            Constraint::Length(self.tenant_rows()),
        ])
        .areas(frame.area());
        self.title(frame, title);
        self.work(frame, work);
        self.pacer(frame, pacer);
        self.reactors(frame, reactors);
        self.flows(frame, flows);
        self.tenants(frame, tenants);
    }

    /// Returns the rows of the tenants table, including its title and header.
    fn tenant_rows(&self) -> u16 {
        match self.delta.tenants.len() {
            0 => 0,
            some => u16::try_from(some.min(TENANTS)).unwrap_or(0) + 2,
        }
    }

    fn title(&self, frame: &mut Frame<'_>, area: Rect) {
        let mut spans = vec![Span::styled("nvmeof-tgt", Style::new().add_modifier(Modifier::BOLD))];
        match &self.trouble {
            Some(why) => {
                spans.push(Span::styled(format!("  {why}"), Style::new().fg(Color::Red)));
            }
            None if self.history.is_empty() => spans.push(Span::raw("  looking...")),
            None => {
                let state = if self.stopped { "  stopped, space goes on" } else { "" };
                let keys = "  q quit  sort: t c f w h  space stop";
                spans.push(Span::raw(format!("  {}{state}", policy(&self.delta))));
                spans.push(Span::styled(keys, Style::new().fg(Color::DarkGray)));
            }
        }
        frame.render_widget(Line::from(spans), area);
    }

    fn work(&self, frame: &mut Frame<'_>, area: Rect) {
        let [table, line] =
            Layout::horizontal([Constraint::Length(58), Constraint::Min(10)]).areas(area);
        let row = |name: &'static str, work: &CommandRates| {
            let times = &work.latency;
            let figures = [bits(work.bytes_per_second), rate(work.ops_per_second)];
            let times = [times.p50_ns, times.p99_ns, times.p99_9_ns].map(|one| shown(one, time));
            Row::new(std::iter::once(name.to_owned()).chain(figures).chain(times))
        };
        let StatsDelta { read, write, other, .. } = &self.delta;
        let rows = [row("reads", read), row("writes", write), row("others", other)];
        let widths = [7, 10, 10, 9, 9, 9].map(Constraint::Length);
        let head = Row::new(["", "", "commands", "p50", "p99", "p99.9"]).style(soft());
        frame.render_widget(Table::new(rows, widths).header(head), table);
        let width = usize::from(line.width.saturating_sub(1));
        let recent = self.history.len().saturating_sub(width);
        let recent: Vec<u64> = self.history.iter().skip(recent).copied().collect();
        let block = Block::new().borders(Borders::LEFT).title("throughput").border_style(soft());
        frame.render_widget(Sparkline::default().data(recent).block(block).style(accent()), line);
    }

    fn pacer(&self, frame: &mut Frame<'_>, area: Rect) {
        let [rule, fill, figures, wire] = Layout::vertical([Constraint::Length(1); 4]).areas(area);
        frame.render_widget(
            Block::new().borders(Borders::TOP).title("pacer").border_style(soft()),
            rule,
        );
        let StatsDelta { pacer, wire_delay, .. } = &self.delta;
        let in_flight = pacer.in_flight_bytes;
        match pacer.budget_bytes {
            Some(budget) => {
                let share = to_float(in_flight) / to_float(budget.max(1));
                let label = format!("{} in flight of {}", bytes(in_flight), bytes(budget));
                let gauge = Gauge::default().ratio(share.clamp(0.0, 1.0)).label(label);
                frame.render_widget(gauge.gauge_style(accent()), fill);
            }
            None => {
                let text = format!("{} in flight, without a bound", bytes(in_flight));
                frame.render_widget(Line::raw(text), fill);
            }
        }
        let line = format!(
            "{} commands in flight, {} waiting, {} deferred",
            count(pacer.in_flight),
            count(pacer.waiting),
            rate(self.delta.deferred_per_second),
        );
        frame.render_widget(Line::raw(line), figures);
        let [p50, p99] = [wire_delay.p50_ns, wire_delay.p99_ns].map(|one| shown(one, time));
        let errors = self.delta.errors_per_second;
        let line = format!("wire delay p50 {p50}, p99 {p99}; failed {}", rate(errors));
        frame.render_widget(Line::raw(line), wire);
    }

    fn reactors(&self, frame: &mut Frame<'_>, area: Rect) {
        let one = |(index, reactor): (usize, &super::stats_delta::ReactorRow)| {
            format!("  {index}: {:.0} %, {}", 100.0 * reactor.busy, rate(reactor.ops_per_second))
        };
        let all: String = self.delta.reactors.iter().enumerate().map(one).collect();
        frame.render_widget(
            Paragraph::new(format!("reactors, busy turns:{all}")).style(soft()),
            area,
        );
    }

    fn flows(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let names = ["host", "nsid", "device", "throughput", "commands", "in flight", "waiting"];
        let host = usize::from(area.width).saturating_sub(61).max(12);
        let rows = self.delta.flows.iter().map(|flow| {
            let known = if flow.host.is_empty() { "(others)" } else { &flow.host };
            Row::new([
                tail(known, host),
                shown(flow.nsid, |nsid| nsid.to_string()),
                tail(&flow.device, 10),
                bits(flow.bytes_per_second()),
                rate(flow.ops_per_second),
                bytes(flow.in_flight_bytes),
                count(flow.waiting),
            ])
        });
        let widths = [
            Constraint::Min(12),
            Constraint::Length(5),
            Constraint::Length(10),
            Constraint::Length(10),
            Constraint::Length(10),
            Constraint::Length(10),
            Constraint::Length(8),
        ];
        let more = match self.delta.flows_omitted {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let title = format!("flows by {}{more}", self.sort.name());
        let block = Block::new().borders(Borders::TOP).title(title).border_style(soft());
        let table = Table::new(rows, widths)
            .header(Row::new(names).style(soft()))
            .block(block)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, area, &mut self.table);
    }
}

impl Screen {
    /// Draws the tenants in the daemon's order: the most throttled first.
    fn tenants(&self, frame: &mut Frame<'_>, area: Rect) {
        let StatsDelta { tenants, tenants_omitted, .. } = &self.delta;
        let names = ["", "commands", "throughput", "in flight", "conn.", "waiting", "throttled"];
        let width = usize::from(area.width).saturating_sub(70).max(10);
        let rows = tenants.iter().take(TENANTS).map(|tenant| {
            let now = &tenant.now;
            let connections = if now.host.is_empty() {
                "-".to_owned()
            } else {
                within(&count(now.connections.into()), now.max_connections, |most| {
                    count(most.into())
                })
            };
            Row::new([
                tail(&tenant.name(), width),
                within(&rate(tenant.ops_per_second), now.max_iops, |most| rate(to_float(most))),
                within(&bits(tenant.bytes_per_second), now.max_bandwidth_bytes, |most| {
                    bits(to_float(most))
                }),
                shown(now.limited_in_flight_bytes, |taken| {
                    within(&bytes(taken), now.max_in_flight_bytes, bytes)
                }),
                connections,
                count(now.waiting),
                rate(tenant.throttled_per_second),
            ])
        });
        let widths = [
            Constraint::Min(10),
            Constraint::Length(13),
            Constraint::Length(17),
            Constraint::Length(13),
            Constraint::Length(5),
            Constraint::Length(7),
            Constraint::Length(9),
        ];
        let beyond = u64::try_from(tenants.len().saturating_sub(TENANTS)).unwrap_or(u64::MAX);
        let more = match beyond.saturating_add(*tenants_omitted) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let title = format!("tenants: of what they may have{more}");
        let block = Block::new().borders(Borders::TOP).title(title).border_style(soft());
        let header = Row::new(names).style(soft());
        frame.render_widget(Table::new(rows, widths).header(header).block(block), area);
    }
}

/// Formats a value with its limit, if any, like `3.1/10 Gb/s`.
fn within<T>(has: &str, most: Option<T>, form: impl Fn(T) -> String) -> String {
    let Some(most) = most.map(form) else { return has.to_owned() };
    // A common unit is printed once.
    match (has.split_once(' '), most.split_once(' ')) {
        (Some((figure, unit)), Some((_, same))) if unit == same => format!("{figure}/{most}"),
        _ => format!("{has}/{most}"),
    }
}

/// Rows above the flows.
const HEAD: u16 = 11;
/// Maximum tenants on the screen.
const TENANTS: usize = 6;

fn policy(delta: &StatsDelta) -> String {
    let pacer = &delta.pacer;
    let period =
        pacer.period_ns.map_or_else(String::new, |nanos| format!(", {} a command", time(nanos)));
    let state = pacer.state.as_ref().map_or_else(String::new, |state| format!(" ({state})"));
    format!("{}{period}{state}", pacer.policy)
}

/// Cuts a long name at the front, because names differ at the end, and removes control characters.
fn tail(name: &str, width: usize) -> String {
    let clean: Vec<char> = name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if clean.len() <= width {
        return clean.into_iter().collect();
    }
    let kept = &clean[clean.len() - width.saturating_sub(2)..];
    std::iter::repeat_n('.', 2).chain(kept.iter().copied()).collect()
}

fn soft() -> Style {
    Style::new().fg(Color::DarkGray)
}

fn accent() -> Style {
    Style::new().fg(Color::Blue)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a height to be drawn")]
fn whole(value: f64) -> u64 {
    value.clamp(0.0, 1e18) as u64
}

#[cfg(test)]
mod tests {
    use nvmeof_api::{
        Bucket, FlowSnapshot, LatencyHistogram, LiveStats, OpStats, PacerSnapshot, ReactorSnapshot,
        TenantSnapshot,
    };

    use super::*;

    fn flow(host: &str, reads: u64, waiting: u64) -> FlowSnapshot {
        FlowSnapshot {
            host: format!("nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-{host}"),
            nsid: Some(1),
            device: "ram0".into(),
            reads,
            read_bytes: reads * 4096,
            in_flight_bytes: 131_072,
            waiting,
            ..FlowSnapshot::default()
        }
    }

    /// Creates a sample `seconds` after the start, with `ops` commands per second.
    fn live(seconds: u64, ops: u64) -> LiveStats {
        let bucket = Bucket { end_ns: 61_440, count: ops * seconds };
        let times = LatencyHistogram {
            count: ops * seconds,
            sum_ns: 60_000 * ops * seconds,
            buckets: vec![bucket],
        };
        let work = OpStats {
            op: "read".into(),
            ops: ops * seconds,
            bytes: ops * seconds * 4096,
            times: times.clone(),
        };
        LiveStats {
            at_ns: seconds * 1_000_000_000,
            pacer: PacerSnapshot {
                policy: "adaptive".into(),
                budget_bytes: Some(4 << 20),
                in_flight_bytes: 3 << 20,
                in_flight: 24,
                waiting: 1500,
                ..PacerSnapshot::default()
            },
            work: vec![work],
            wire_delay: times,
            reactors: vec![ReactorSnapshot {
                turns: 100 * seconds,
                busy_turns: 25 * seconds,
                ..ReactorSnapshot::default()
            }],
            flows: vec![flow("aaaa", 10 * seconds, 7), flow("bbbb", 90 * seconds, 3)],
            ..LiveStats::default()
        }
    }

    fn screen() -> Screen {
        let mut screen = Screen::new(SortOrder::Throughput);
        for seconds in 1..5 {
            screen.take(StatsDelta::between(&live(seconds, 250_000), &live(seconds + 1, 250_000)));
        }
        screen
    }

    fn drawn(screen: &mut Screen, columns: u16, rows: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let rows = buffer.content().chunks(usize::from(columns));
        rows.map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect()).collect()
    }

    fn place(lines: &[String], what: &str) -> usize {
        let found = lines.iter().position(|line| line.contains(what));
        found.unwrap_or_else(|| panic!("no `{what}` in\n{}", lines.join("\n")))
    }

    #[test]
    fn a_small_terminal_has_room_for_all() {
        let lines = drawn(&mut screen(), 80, 24);
        for what in [
            "adaptive",
            "8.19 Gb/s",
            "250 k/s",
            "61.4 us",
            "3 MiB in flight of 4 MiB",
            "24 commands in flight, 1.50 k waiting",
            "wire delay p50 61.4 us",
            "0: 25 %",
            "flows by throughput",
        ] {
            place(&lines, what);
        }
        // The busier flow comes first; the end of its name identifies it.
        assert!(place(&lines, "bbbb") < place(&lines, "aaaa"), "{}", lines.join("\n"));
        assert!(lines[place(&lines, "bbbb")].contains("2.95 Mb/s"), "{}", lines.join("\n"));
        // One bar per difference.
        let bars = lines.iter().flat_map(|line| line.chars()).filter(|c| *c == '\u{2588}').count();
        assert!(bars >= 4, "{}", lines.join("\n"));
    }

    #[test]
    fn tenants_are_shown_with_what_they_have_of_what_they_may_have() {
        let lines = drawn(&mut screen(), 80, 24);
        assert!(!lines.iter().any(|line| line.contains("tenants")), "nobody has limits");
        let tenants = |seconds: u64| {
            let host = TenantSnapshot {
                host: "nqn.2014-08.org.nvmexpress:uuid:host-a".into(),
                max_iops: Some(50_000),
                max_bandwidth_bytes: Some(1_250_000_000),
                max_in_flight_bytes: Some(32 << 20),
                max_connections: Some(8),
                connections: 3,
                limited_in_flight_bytes: Some(3 << 19),
                ops: 10_000 * seconds,
                bytes: 125_000_000 * seconds,
                waiting: 12,
                throttled_by_rate: 200 * seconds,
                throttled_by_in_flight: 50 * seconds,
                ..TenantSnapshot::default()
            };
            let namespace = TenantSnapshot {
                subsystem: "nqn.2026-11.org.example:disks".into(),
                nsid: Some(7),
                max_iops: Some(10),
                ..TenantSnapshot::default()
            };
            let live = live(seconds, 250_000);
            LiveStats { tenants: vec![host, namespace], tenants_omitted: 3, ..live }
        };
        let mut screen = screen();
        screen.take(StatsDelta::between(&tenants(8), &tenants(9)));
        let lines = drawn(&mut screen, 80, 24);
        place(&lines, "tenants: of what they may have, and 3 more");
        let host = &lines[place(&lines, "host-a")];
        for part in ["10/50 k/s", "1/10 Gb/s", "1.50/32 MiB", " 3/8 ", " 12 ", "250 /s"] {
            assert!(host.contains(part), "{part}: {host}");
        }
        let namespace = &lines[place(&lines, "disks/7")];
        assert!(namespace.contains("0/10 /s") && namespace.contains(" - "), "{namespace}");
        // The flows stay visible, and the screen fits any terminal.
        place(&lines, "flows by throughput");
        assert!(screen.text(100, 40).contains("disks/7"));
        for (columns, rows) in [(1, 1), (20, 5), (300, 100)] {
            drawn(&mut screen, columns, rows);
        }
    }

    #[test]
    fn keys_sort_and_stop() {
        let mut screen = screen();
        for (key, first, second) in
            [('w', "aaaa", "bbbb"), ('c', "bbbb", "aaaa"), ('h', "aaaa", "bbbb")]
        {
            screen.press(KeyCode::Char(key));
            let lines = drawn(&mut screen, 80, 24);
            assert!(place(&lines, first) < place(&lines, second), "{key}\n{}", lines.join("\n"));
        }
        screen.press(KeyCode::Char(' '));
        screen.take(StatsDelta::between(&live(9, 1), &live(10, 1)));
        let lines = drawn(&mut screen, 80, 24);
        place(&lines, "250 k/s");
        place(&lines, "stopped");
    }

    #[test]
    fn no_terminal_is_too_small_and_no_name_writes_on_it() {
        let mut screen = screen();
        screen.delta.flows[0].host = "evil\u{1b}[2J\u{7}".repeat(20);
        for (columns, rows) in [(1, 1), (20, 5), (80, 24), (300, 100)] {
            let text = drawn(&mut screen, columns, rows).concat();
            assert!(!text.contains(char::is_control), "{text}");
        }
        screen.lost(&anyhow::anyhow!("cannot reach the daemon"));
        place(&drawn(&mut screen, 80, 24), "cannot reach the daemon");
        place(&drawn(&mut Screen::new(SortOrder::Host), 80, 24), "looking");
    }

    #[test]
    fn text_is_as_long_as_it_has_to_be() {
        let text = screen().text(100, 40);
        assert_eq!(text.lines().count(), usize::from(HEAD) + 4, "{text}");
        assert!(text.contains("8.19 Gb/s") && text.lines().all(|line| line == line.trim_end()));
    }
}
