//! Expands a plan's text to the text of each of its points.
//!
//! `[vary]` is the product of its lists; each `[[vary]]` is a separate product.

use std::borrow::Cow;
use std::cmp::Reverse;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{ProblemReport, Span, closest};
use super::settings::Settings;

/// Maximum number of points; more is certainly a mistake.
const MOST_POINTS: usize = 20_000;
/// Keys of a group that are not keys of the plan.
const ZIP: &str = "zip";
const ONLY_PLATFORM: &str = "only-platform";
const ONLY_WHERE: &str = "only-where";
const ITEMS: [&str; 3] = ["job", "host", "disturb"];

/// One point: the plan with its values in place, and a list of these values.
#[derive(Debug)]
pub(super) struct ExpandedPlan<'a> {
    /// The plan without `vary`; the varied values in it keep the positions of their source.
    pub(super) document: Spanned<DeTable<'a>>,
    /// Key and value as written, in the order of the file.
    pub(super) varied: Vec<(String, String)>,
    /// Platforms and backends of the point; empty: all.
    pub(super) only_platform: Vec<String>,
    pub(super) only_where: Vec<String>,
}

/// Returns all points, or `None` if they cannot be determined; the reason is reported.
pub(super) fn expand<'a>(
    report: &mut ProblemReport<'a>,
    settings: &'a Settings,
) -> Option<Vec<ExpandedPlan<'a>>> {
    let mut document = match DeTable::parse(report.plan_text()) {
        Ok(document) => document,
        Err(error) => {
            report.error(&error.span().unwrap_or(0..0), "", error.message(), "");
            return None;
        }
    };
    let vary = document.get_mut().remove("vary");
    let mut groups = groups(report, vary)?;
    let settings = settings.assignments(report)?;
    for setting in &settings {
        set(report, document.get_mut(), setting)?;
        groups.iter_mut().for_each(|group| group.fix(report.text, &setting.key));
    }
    let points = groups.iter().map(VaryGroup::points).fold(0usize, usize::saturating_add);
    if points > MOST_POINTS {
        let what = format!("the product of all lists is {points} points");
        report.error_in_file("vary", &what, &format!("at most {MOST_POINTS}"));
        return None;
    }
    let mut expanded = Vec::with_capacity(points);
    for group in &groups {
        for number in 0..group.points() {
            expanded.push(group.point(report, &document, number)?);
        }
    }
    complete(report.text, &mut expanded);
    Some(expanded)
}

/// Returns the products of `[vary]` or `[[vary]]`: a single point without it.
fn groups<'a>(
    report: &mut ProblemReport<'a>,
    vary: Option<Spanned<DeValue<'a>>>,
) -> Option<Vec<VaryGroup<'a>>> {
    let mut groups = Vec::new();
    match vary {
        None => groups.push(VaryGroup::default()),
        Some(vary) => {
            let span = vary.span();
            match vary.into_inner() {
                DeValue::Table(table) => groups.push(VaryGroup::read(report, table)?),
                DeValue::Array(array) if array.iter().all(|group| group.get_ref().is_table()) => {
                    for group in array {
                        let DeValue::Table(table) = group.into_inner() else { continue };
                        groups.push(VaryGroup::read(report, table)?);
                    }
                }
                _ => {
                    let allowed = "a table of lists ([vary]), or several ([[vary]])";
                    report.error(&span, "vary", "is not a table", allowed);
                    return None;
                }
            }
        }
    }
    Some(groups)
}

/// Adds the keys that only other groups vary, with the plan's own value.
///
/// All points then list the same keys in the same order, except for keys that have no value.
fn complete(text: &str, points: &mut [ExpandedPlan<'_>]) {
    let mut keys: Vec<String> = Vec::new();
    for (key, _) in points.iter().flat_map(|point| &point.varied) {
        if !keys.contains(key) {
            keys.push(key.clone());
        }
    }
    for point in points {
        let own = std::mem::take(&mut point.varied);
        for key in &keys {
            let varied = own.iter().find(|(own, _)| own == key).map(|(_, value)| value.clone());
            let value = varied.or_else(|| value_at(text, point.document.get_ref(), key));
            point.varied.extend(value.map(|value| (key.clone(), value)));
        }
    }
}

/// Returns the value of a key, if it is the same in every table that the key matches.
fn value_at(text: &str, table: &DeTable<'_>, key: &str) -> Option<String> {
    let Some((first, rest)) = key.split_once('.') else {
        return table.get(key).map(|value| as_written(text, value));
    };
    match table.get(first)?.get_ref() {
        DeValue::Table(table) => value_at(text, table, rest),
        DeValue::Array(array) => {
            let items = array.iter().filter_map(|item| item.get_ref().as_table());
            let (name, rest) = rest.split_once('.').map_or((None, rest), |(n, r)| (Some(n), r));
            let named = |table: &&DeTable<'_>| {
                let own = table.get("name").and_then(|own| own.get_ref().as_str());
                name.is_none() || own == name
            };
            let mut values = items.filter(named).map(|table| value_at(text, table, rest));
            let first = values.next()??;
            values.all(|value| value.as_ref() == Some(&first)).then_some(first)
        }
        _ => None,
    }
}

/// A value for a key.
#[derive(Debug, Clone)]
pub(super) struct Assignment<'a> {
    pub(super) key: String,
    /// Position of the key.
    pub(super) span: Span,
    value: Spanned<DeValue<'a>>,
    /// The table of the plan that has it, in messages.
    table: &'static str,
}

/// In messages, the table of keys that vary.
const VARY: &str = "vary.";

/// One product.
#[derive(Debug, Default)]
struct VaryGroup<'a> {
    /// Lists of choices; a choice is one assignment, or those of one table of `zip`.
    lists: Vec<(usize, Vec<Vec<Assignment<'a>>>)>,
    only_platform: Vec<String>,
    only_where: Vec<String>,
}

impl<'a> VaryGroup<'a> {
    fn read(report: &mut ProblemReport<'_>, table: DeTable<'a>) -> Option<Self> {
        let mut this = Self::default();
        for (key, value) in table {
            match key.get_ref().as_ref() {
                ONLY_PLATFORM => this.only_platform = words(report, "vary.only-platform", &value)?,
                ONLY_WHERE => {
                    this.only_where = words(report, "vary.only-where", &value)?;
                    let known = |word: &String| ["sim", "local", "remote"].contains(&word.as_str());
                    if !this.only_where.iter().all(known) {
                        let what = "names no place";
                        report.error(&value.span(), "vary.only-where", what, "sim, local, remote");
                        return None;
                    }
                }
                ZIP => {
                    let at = key.span().start;
                    let tables =
                        list(report, "vary.zip", value, "a list of tables of key = value")?;
                    let choices = tables.into_iter().map(|table| zipped(report, table));
                    this.lists.push((at, choices.collect::<Option<_>>()?));
                }
                _ => this.take(report, "", &key, value)?,
            }
        }
        // The first key of the file varies slowest.
        this.lists.sort_by_key(|(at, _)| *at);
        Some(this)
    }

    /// Takes a list, or a table of lists if the key was written without quotes.
    fn take(
        &mut self,
        report: &mut ProblemReport<'_>,
        path: &str,
        key: &Spanned<Cow<'a, str>>,
        value: Spanned<DeValue<'a>>,
    ) -> Option<()> {
        let span = key.span();
        let path = join(path, key.get_ref());
        if value.get_ref().is_table() {
            let DeValue::Table(table) = value.into_inner() else { return None };
            for (key, value) in table {
                self.take(report, &path, &key, value)?;
            }
            return Some(());
        }
        let values =
            list(report, &format!("vary.{path}"), value, "a list of values to take in turn")?;
        let choice =
            |value| vec![Assignment { key: path.clone(), span: span.clone(), value, table: VARY }];
        self.lists.push((span.start, values.into_iter().map(choice).collect()));
        Some(())
    }

    /// Removes a key that no longer varies, with the choices that are then the same.
    fn fix(&mut self, text: &str, key: &str) {
        for (_, choices) in &mut self.lists {
            let mut kept: Vec<Vec<(String, String)>> = Vec::new();
            choices.retain_mut(|choice| {
                choice.retain(|assignment| !overlap(&assignment.key, key));
                let written = choice.iter().map(|assignment| {
                    (assignment.key.clone(), as_written(text, &assignment.value))
                });
                let written: Vec<_> = written.collect();
                let is_new = !kept.contains(&written);
                kept.push(written);
                is_new
            });
        }
    }

    fn points(&self) -> usize {
        self.lists.iter().map(|(_, choices)| choices.len()).fold(1, usize::saturating_mul)
    }

    /// Returns the point of this number, the last list varying fastest.
    fn point(
        &self,
        report: &mut ProblemReport<'_>,
        document: &Spanned<DeTable<'a>>,
        number: usize,
    ) -> Option<ExpandedPlan<'a>> {
        let mut rest = number;
        let mut chosen = Vec::new();
        for (_, choices) in self.lists.iter().rev() {
            chosen.push(&choices[rest % choices.len()]);
            rest /= choices.len();
        }
        let mut point = ExpandedPlan {
            document: document.clone(),
            varied: Vec::new(),
            only_platform: self.only_platform.clone(),
            only_where: self.only_where.clone(),
        };
        for assignment in chosen.into_iter().rev().flatten() {
            set(report, point.document.get_mut(), assignment)?;
            let value = as_written(report.text, &assignment.value);
            match point.varied.iter().any(|(key, _)| *key == assignment.key) {
                true => {
                    let key = format!("vary.{}", assignment.key);
                    let what = "is varied twice in one product";
                    report.error(&assignment.span, &key, what, "once, or in groups of their own");
                    return None;
                }
                false => point.varied.push((assignment.key.clone(), value)),
            }
        }
        Some(point)
    }
}

/// Returns whether two dotted keys set the same value, at least in part: one contains the other, or
/// one is for all items of a list and the other for an item of it.
fn overlap(one: &str, other: &str) -> bool {
    let contains = |outer: &str, inner: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let same_item_key = || {
        let ((list, one), (other_list, other)) = (one.split_once('.')?, other.split_once('.')?);
        let bare = |key: &str| key.rsplit('.').next().unwrap_or(key).to_owned();
        let is_for_all = !one.contains('.') || !other.contains('.');
        let is_item = list == other_list && ITEMS.contains(&list);
        Some(is_item && is_for_all && bare(one) == bare(other))
    };
    contains(one, other) || contains(other, one) || same_item_key().unwrap_or(false)
}

/// Returns the assignments of one table of `zip`, in the order of the file.
fn zipped<'a>(
    report: &mut ProblemReport<'_>,
    table: Spanned<DeValue<'a>>,
) -> Option<Vec<Assignment<'a>>> {
    let span = table.span();
    let DeValue::Table(table) = table.into_inner() else {
        report.error(&span, "vary.zip", "is not a table", "a list of tables of key = value");
        return None;
    };
    let mut assignments = Vec::new();
    flatten(VARY, "", table, &mut assignments);
    assignments.sort_by_key(|assignment| assignment.span.start);
    Some(assignments)
}

/// Lists the values of a table with their dotted keys.
pub(super) fn flatten<'a>(
    of: &'static str,
    path: &str,
    table: DeTable<'a>,
    into: &mut Vec<Assignment<'a>>,
) {
    for (key, value) in table {
        let (span, path) = (key.span(), join(path, key.get_ref()));
        if value.get_ref().is_table() {
            let DeValue::Table(table) = value.into_inner() else { continue };
            flatten(of, &path, table, into);
        } else {
            into.push(Assignment { key: path, span, value, table: of });
        }
    }
}

/// Sets the value at its key.
fn set<'a>(
    report: &mut ProblemReport<'_>,
    document: &mut DeTable<'a>,
    assignment: &Assignment<'a>,
) -> Option<()> {
    let whole = format!("{}{}", assignment.table, assignment.key);
    let mut path: Vec<&str> = assignment.key.split('.').collect();
    let Some(last) = path.pop().filter(|last| !last.is_empty()) else {
        report.error(&assignment.span, &whole, "is no key", "a dotted key of the plan");
        return None;
    };
    let tables = match path.split_first() {
        Some((list, names)) if ITEMS.contains(list) => {
            items(report, document, assignment, list, names)?
        }
        None => vec![document],
        Some(_) => {
            let mut table = document;
            for name in path {
                let key = Spanned::new(assignment.span.clone(), name.to_owned().into());
                let empty =
                    || Spanned::new(assignment.span.clone(), DeValue::Table(DeTable::new()));
                let DeValue::Table(next) = table.entry(key).or_insert_with(empty).get_mut() else {
                    let what = format!("`{name}` is not a table");
                    report.error(&assignment.span, &whole, &what, "a dotted key of the plan");
                    return None;
                };
                table = next;
            }
            vec![table]
        }
    };
    for table in tables {
        // Remove the old entry first: the map would keep its key, and with it the old position.
        table.remove(last);
        let key = Spanned::new(assignment.span.clone(), last.to_owned().into());
        table.insert(key, assignment.value.clone());
    }
    Some(())
}

/// Returns the tables of a list that a key matches: all, or those with a name.
fn items<'a, 'd>(
    report: &mut ProblemReport<'_>,
    document: &'d mut DeTable<'a>,
    assignment: &Assignment<'a>,
    list: &str,
    names: &[&str],
) -> Option<Vec<&'d mut DeTable<'a>>> {
    let whole = format!("{}{}", assignment.table, assignment.key);
    let Some(DeValue::Array(array)) = document.get_mut(list).map(Spanned::get_mut) else {
        let what = format!("there is no [[{list}]]");
        report.error(&assignment.span, &whole, &what, "");
        return None;
    };
    let name_of = |table: &DeTable<'_>| {
        table.get("name").and_then(|name| name.get_ref().as_str()).map(str::to_owned)
    };
    let (mut found, mut known) = (Vec::new(), Vec::new());
    for item in array.iter_mut() {
        let DeValue::Table(table) = item.get_mut() else { continue };
        let name = name_of(table);
        if names.is_empty() || (names.len() == 1 && name.as_deref() == Some(names[0])) {
            found.push(table);
        }
        known.extend(name);
    }
    if found.is_empty() {
        let known: Vec<_> = known.iter().map(String::as_str).collect();
        let name = names.join(".");
        let meant = closest(&name, &known);
        let meant = meant.map_or_else(String::new, |name| format!(" (did you mean `{name}`?)"));
        let what = format!("no [[{list}]] has the name `{name}`");
        let allowed =
            format!("{list}.KEY for all, or {list}.NAME.KEY with one of {known:?}{meant}");
        report.error(&assignment.span, &whole, &what, &allowed);
        return None;
    }
    Some(found)
}

/// Returns the members of a non-empty list.
fn list<'a>(
    report: &mut ProblemReport<'_>,
    key: &str,
    value: Spanned<DeValue<'a>>,
    allowed: &str,
) -> Option<Vec<Spanned<DeValue<'a>>>> {
    let span = value.span();
    match value.into_inner() {
        DeValue::Array(array) if !array.is_empty() => Some(array.into_iter().collect()),
        DeValue::Array(_) => {
            report.error(&span, key, "is an empty list", allowed);
            None
        }
        _ => {
            report.error(&span, key, "is not a list", allowed);
            None
        }
    }
}

fn words(
    report: &mut ProblemReport<'_>,
    key: &str,
    value: &Spanned<DeValue<'_>>,
) -> Option<Vec<String>> {
    let array = value.get_ref().as_array();
    let word = |value: &Spanned<DeValue<'_>>| value.get_ref().as_str().map(str::to_owned);
    let words = array.and_then(|array| array.iter().map(word).collect::<Option<Vec<_>>>());
    let words = words.filter(|words| !words.is_empty());
    if words.is_none() {
        report.error(&value.span(), key, "is not a list of names", "as in [\"A\"]");
    }
    words
}

/// Returns a value as written in the file, text without its quotes.
fn as_written(text: &str, value: &Spanned<DeValue<'_>>) -> String {
    match value.get_ref().as_str() {
        Some(word) => word.to_owned(),
        None => text
            .get(value.span())
            .unwrap_or_default()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" "),
    }
}

/// Returns the dotted key whose value, or whose own name, contains `span`: the smallest one.
pub(super) fn key_at(table: &DeTable<'_>, span: &Span) -> String {
    let mut found = Vec::new();
    holders(table, span, "", &mut found);
    let smallest = found.into_iter().min_by_key(|(length, path)| (*length, Reverse(path.len())));
    smallest.map(|(_, path)| path).unwrap_or_default()
}

fn holders(table: &DeTable<'_>, span: &Span, path: &str, found: &mut Vec<(usize, String)>) {
    for (key, value) in table {
        let path = join(path, key.get_ref());
        for own in [key.span(), value.span()] {
            if own.start <= span.start && span.end <= own.end && span.start < own.end {
                found.push((own.len(), path.clone()));
            }
        }
        within(value, span, &path, found);
    }
}

fn within(value: &Spanned<DeValue<'_>>, span: &Span, path: &str, found: &mut Vec<(usize, String)>) {
    match value.get_ref() {
        DeValue::Table(table) => holders(table, span, path, found),
        DeValue::Array(array) => {
            for member in array.iter() {
                within(member, span, path, found);
            }
        }
        _ => {}
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.into() } else { format!("{path}.{key}") }
}
