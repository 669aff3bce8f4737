//! Arguments and output of all commands that change the state.

use clap::Args;
use hyper::Method;
use nvmeof_api::Change;
use nvmeof_api::document::{Action, Difference, KeyChange};
use serde::Serialize;
use serde_json::Value;

use crate::ApiClient;
use crate::output::{print, print_json};

/// Options of a change.
#[derive(Debug, Clone, Args)]
pub(crate) struct ChangeArgs {
    /// Only print the changes, without making them
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Fail unless the state has this revision (`revision` of status)
    #[arg(long, value_name = "REVISION")]
    pub(crate) revision: Option<String>,
}

/// Options of a change that removes something.
#[derive(Debug, Clone, Args)]
pub(crate) struct ForceArgs {
    #[command(flatten)]
    pub(crate) change: ChangeArgs,
    /// Proceed even if hosts are connected through it, and disconnect them
    #[arg(long)]
    pub(crate) force: bool,
}

impl ChangeArgs {
    /// Sends a change and prints its result.
    pub(crate) fn send(
        &self,
        client: &ApiClient,
        json: bool,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> anyhow::Result<()> {
        let query = if self.dry_run { "?dry_run=true" } else { "" };
        let path = format!("{path}{query}");
        let change: Change = client.call(method, &path, body, self.revision.as_deref())?;
        show(&change, json)
    }
}

impl ForceArgs {
    /// As [`ChangeArgs::send`], without a body.
    pub(crate) fn send(
        &self,
        client: &ApiClient,
        json: bool,
        method: Method,
        path: &str,
    ) -> anyhow::Result<()> {
        let force = if self.force { "?force=true" } else { "?force=false" };
        let dry_run = if self.change.dry_run { "&dry_run=true" } else { "" };
        let (path, revision) = (format!("{path}{force}{dry_run}"), self.change.revision.as_deref());
        let change: Change = client.call(method, &path, None::<&()>, revision)?;
        show(&change, json)
    }
}

/// Returns a path of escaped names.
pub(crate) fn path(parts: &[&str]) -> String {
    let mut path = String::from("/v1");
    for part in parts {
        path.push('/');
        for byte in part.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
                path.push(char::from(byte));
            } else {
                path.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    path
}

/// Prints the result of a change or of a dry run.
fn show(change: &Change, json: bool) -> anyhow::Result<()> {
    if json {
        return print_json(change);
    }
    let mut text = String::new();
    for difference in &change.changes {
        text.push_str(if change.dry_run { "would " } else { "" });
        text.push_str(&format_difference(difference));
        text.push('\n');
    }
    for url in &change.listening {
        text.push_str(&format!("hosts can connect to {url}\n"));
    }
    if change.changes.is_empty() && change.listening.is_empty() {
        text.push_str("nothing changes\n");
    }
    if !change.pending_restart.is_empty() {
        text.push_str(&format!("at the next start: {}\n", change.pending_restart.join(", ")));
    }
    for warning in &change.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    print(&text)
}

/// Formats a difference, like `change device ram0: size 64MiB -> 128MiB`.
fn format_difference(difference: &Difference) -> String {
    let Difference { action, item, name, keys } = difference;
    let named = [item.as_str(), name.as_str()].into_iter().filter(|word| !word.is_empty());
    let named = named.collect::<Vec<_>>().join(" ");
    let value = |value: &Option<Value>| match value {
        None => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    let key = |change: &KeyChange| match action {
        Action::Change => {
            format!("{} {} -> {}", change.key, value(&change.from), value(&change.to))
        }
        Action::Add => format!("{} {}", change.key, value(&change.to)),
        Action::Remove => String::new(),
    };
    let keys: Vec<String> = keys.iter().map(key).filter(|text| !text.is_empty()).collect();
    let named = if named.is_empty() { "the config".into() } else { named };
    let line = format!("{action} {named}: {}", keys.join(", "));
    line.trim_end_matches(": ").replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_paths_and_differences_in_words() {
        assert_eq!(path(&["subsystems", "nqn.x:a/b c"]), "/v1/subsystems/nqn.x:a%2Fb%20c");
        let size = KeyChange { key: "size".into(), from: Some(1.into()), to: Some("2k".into()) };
        let mut difference = Difference {
            action: Action::Change,
            item: "device".into(),
            name: "a".into(),
            keys: vec![size],
        };
        assert_eq!(format_difference(&difference), "change device a: size 1 -> 2k");
        difference.action = Action::Remove;
        assert_eq!(format_difference(&difference), "remove device a");
        difference.action = Action::Add;
        assert_eq!(format_difference(&difference), "add device a: size 2k");
    }
}
