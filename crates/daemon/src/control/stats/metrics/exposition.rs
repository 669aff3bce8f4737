//! A strict parser of OpenMetrics 1.0.0 text, for tests.
//!
//! Prometheus may reject text that this parser rejects.

use std::collections::{BTreeMap, BTreeSet};

/// One sample of a metric.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) value: f64,
}

/// A metric family.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Family {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) figures: Vec<Figure>,
}

impl Family {
    /// Returns the name that queries use.
    pub(super) fn asked_for(&self) -> String {
        let suffix = if self.kind == "counter" { "_total" } else { "" };
        format!("{}{suffix}", self.name)
    }

    /// Returns every name that a figure of the family may use.
    pub(super) fn names(&self) -> Vec<String> {
        let suffixes: &[&str] = match self.kind.as_str() {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        suffixes.iter().map(|suffix| format!("{}{suffix}", self.name)).collect()
    }
}

/// Parses a whole exposition.
pub(super) fn read(text: &str) -> Result<Vec<Family>, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("no `# EOF` at the end")?;
    let mut families: Vec<Family> = Vec::new();
    let mut told = BTreeSet::new();
    for (index, line) in body.lines().enumerate() {
        let wrong = |what: &str| format!("line {}: {what}: {line}", index + 1);
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (what, name) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            let text = words.next().ok_or_else(|| wrong("nothing is said"))?;
            is_name(name, true).then_some(()).ok_or_else(|| wrong("no name"))?;
            if !told.insert((what.to_owned(), name.to_owned())) {
                return Err(wrong("said twice"));
            }
            match what {
                "HELP" => {}
                "TYPE" => {
                    let (name, kind) = (name.to_owned(), text.to_owned());
                    families.push(Family { name, kind, figures: Vec::new() });
                }
                "UNIT" if name.ends_with(&format!("_{text}")) => {}
                _ => {
                    return Err(wrong(
                        "no such comment, or a unit that the name does not end with",
                    ));
                }
            }
            continue;
        }
        let figure = figure(line).map_err(|what| wrong(&what))?;
        let family = families.last_mut().ok_or_else(|| wrong("no family"))?;
        if !family.names().contains(&figure.name) {
            return Err(wrong("not of the family above it"));
        }
        family.figures.push(figure);
    }
    families.iter().try_for_each(check)?;
    Ok(families)
}

/// Checks the constraints of a family.
fn check(family: &Family) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for figure in &family.figures {
        if !seen.insert((&figure.name, &figure.labels)) {
            return Err(format!("twice: {figure:?}"));
        }
        if family.kind == "counter" && !(figure.value.is_finite() && figure.value >= 0.0) {
            return Err(format!("a counter cannot be so: {figure:?}"));
        }
    }
    if family.kind == "histogram" { check_histogram(family) } else { Ok(()) }
}

fn check_histogram(family: &Family) -> Result<(), String> {
    let mut series: BTreeMap<BTreeMap<String, String>, Vec<(f64, f64)>> = BTreeMap::new();
    let (mut sums, mut counts) = (BTreeMap::new(), BTreeMap::new());
    for Figure { name, labels, value } in &family.figures {
        let mut labels = labels.clone();
        let end = labels.remove("le");
        match end {
            Some(end) if name.ends_with("_bucket") => {
                let end = if end == "+Inf" { f64::INFINITY } else { number(&end)? };
                series.entry(labels).or_default().push((end, *value));
            }
            None if name.ends_with("_sum") => _ = sums.insert(labels, *value),
            None if name.ends_with("_count") => _ = counts.insert(labels, *value),
            _ => return Err(format!("{name}: `le` where it must not be, or not where it must")),
        }
    }
    for (labels, buckets) in &series {
        let rising = |pair: &[(f64, f64)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
        if !buckets.windows(2).all(rising) {
            return Err(format!("{labels:?}: buckets do not rise: {buckets:?}"));
        }
        let last = buckets.last().filter(|(end, _)| end.is_infinite());
        if last.map(|(_, value)| value) != counts.get(labels) || !sums.contains_key(labels) {
            return Err(format!("{labels:?}: no last bucket with the count, or no sum"));
        }
    }
    if series.len() == counts.len() { Ok(()) } else { Err("a count without buckets".into()) }
}

/// Parses `name{label="value",...} 1.5`.
fn figure(line: &str) -> Result<Figure, String> {
    let at = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(at);
    if !is_name(name, true) {
        return Err("no name".into());
    }
    let mut labels = BTreeMap::new();
    if let Some(after) = rest.strip_prefix("{}") {
        rest = after;
    } else if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, after) = rest.split_once("=\"").ok_or("no label")?;
            let (value, after) = quoted(after)?;
            if !is_name(label, false) || labels.insert(label.to_owned(), value).is_some() {
                return Err(format!("a label that is none, or twice: {label}"));
            }
            match after.strip_prefix(',') {
                Some(more) => rest = more,
                None => {
                    rest = after.strip_prefix('}').ok_or("labels without an end")?;
                    break;
                }
            }
        }
    }
    let value = number(rest.strip_prefix(' ').ok_or("no space before the value")?)?;
    Ok(Figure { name: name.to_owned(), labels, value })
}

/// Returns a label's value up to its quote, and the rest of the text.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => match chars.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, c @ ('\\' | '"'))) => value.push(c),
                _ => return Err("an escape that there is not".into()),
            },
            c => value.push(c),
        }
    }
    Err("a value without an end".into())
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| format!("no number: {text}"))
}

fn is_name(name: &str, colons: bool) -> bool {
    let first = name.chars().next();
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || (colons && c == ':');
    first.is_some_and(|c| !c.is_ascii_digit()) && name.chars().all(fits)
}

#[test]
fn what_is_wrong_is_not_taken() {
    let good = "# HELP a_seconds Times.\n# TYPE a_seconds histogram\n# UNIT a_seconds seconds\n\
        a_seconds_sum{b=\"x\\\"\\\\\"} 1.5\na_seconds_count{b=\"x\\\"\\\\\"} 2\n\
        a_seconds_bucket{le=\"1.0\",b=\"x\\\"\\\\\"} 1\na_seconds_bucket{le=\"+Inf\",b=\"x\\\"\\\\\"} 2\n\
        # HELP c Things.\n# TYPE c counter\nc_total 1\n# EOF\n";
    let families = read(good).unwrap();
    assert_eq!((families.len(), families[0].figures[0].labels["b"].as_str()), (2, "x\"\\"));
    for (from, to) in [
        ("# EOF\n", ""),
        ("c_total 1", "c 1"),
        ("c_total 1", "c_total -1"),
        ("c_total 1", "c_total x"),
        ("c_total 1", "c_total{a=\"1\"} 1\nc_total{a=\"1\"} 2"),
        ("c_total 1", "c_total{a=\"1\",a=\"2\"} 1"),
        ("c_total 1", "c_total{a=\"\n\"} 1"),
        ("# UNIT a_seconds seconds", "# UNIT a_seconds bytes"),
        ("# HELP c Things.", "# HELP a_seconds Things."),
        ("le=\"+Inf\"", "le=\"2.0\""),
        ("} 2\na_seconds_bucket", "} 3\na_seconds_bucket"),
        ("a_seconds_sum{b=\"x\\\"\\\\\"} 1.5\n", ""),
    ] {
        assert!(good.contains(from), "{from}");
        assert!(read(&good.replacen(from, to, 1)).is_err(), "{from} -> {to}");
    }
}
