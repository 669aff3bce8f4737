//! Every dependency is documented in `docs/dependencies.md`, and every shared version is used.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use toml::{Table, Value};

const PAGE: &str = "docs/dependencies.md";

/// Returns the findings in the manifests among `files`, one per line.
pub(super) fn findings(root: &Path, files: &[String]) -> Result<Vec<String>> {
    let mut manifests = BTreeMap::new();
    for file in files.iter().filter(|file| file.rsplit('/').next() == Some("Cargo.toml")) {
        // Skip a manifest that is being removed.
        let Ok(text) = fs::read_to_string(root.join(file)) else { continue };
        let table = text.parse().with_context(|| format!("cannot read {file}"))?;
        manifests.insert(file.clone(), table);
    }
    let page =
        fs::read_to_string(root.join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    let mut findings = unmentioned(&manifests, &page);
    findings.extend(unused(&manifests));
    Ok(findings)
}

/// Returns external packages that the page does not name.
fn unmentioned(manifests: &BTreeMap<String, Table>, page: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for (file, manifest) in manifests {
        for (name, _) in dependencies(manifest).filter(|(_, how)| is_foreign(how)) {
            if !page.contains(&format!("`{name}`")) {
                findings.push(format!("{file}: {PAGE} does not mention the dependency `{name}`"));
            }
        }
    }
    findings
}

/// Returns versions in the root manifest that no member uses.
fn unused(manifests: &BTreeMap<String, Table>) -> Vec<String> {
    let asked: BTreeSet<&str> = manifests
        .values()
        .flat_map(dependencies)
        .filter(|(_, how)| is_inherited(how))
        .map(|(name, _)| name)
        .collect();
    let Some(root) = manifests.get("Cargo.toml") else { return Vec::new() };
    let shared = dependencies(root).map(|(name, _)| name);
    shared
        .filter(|name| !asked.contains(name))
        .map(|name| format!("Cargo.toml: no member uses the dependency `{name}`"))
        .collect()
}

/// Returns every dependency of a manifest, of any kind and for any target, with its specification.
fn dependencies(manifest: &Table) -> impl Iterator<Item = (&str, &Value)> {
    let mut tables: Vec<&Table> = Vec::new();
    let targets = manifest.get("target").and_then(Value::as_table);
    let parts = targets.into_iter().flat_map(Table::values).filter_map(Value::as_table);
    let workspace = manifest.get("workspace").and_then(Value::as_table);
    for part in parts.chain(workspace).chain([manifest]) {
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            tables.extend(part.get(kind).and_then(Value::as_table));
        }
    }
    tables.into_iter().flatten().map(|(name, how)| (name.as_str(), how))
}

/// Returns whether a dependency is external and has its version outside the root manifest.
fn is_foreign(how: &Value) -> bool {
    how.get("path").is_none() && !is_inherited(how)
}

fn is_inherited(how: &Value) -> bool {
    how.get("workspace").and_then(Value::as_bool) == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifests(root: &str, member: &str) -> BTreeMap<String, Table> {
        let parse = |text: &str| text.parse().expect("a manifest");
        BTreeMap::from([
            ("Cargo.toml".to_owned(), parse(root)),
            ("crates/one/Cargo.toml".to_owned(), parse(member)),
        ])
    }

    #[test]
    fn a_dependency_that_the_page_leaves_out_is_found() {
        let root = "[workspace.dependencies]\nours = { path = \"crates/ours\" }\nalpha = \"1\"\n";
        let member = "[dependencies]\nalpha.workspace = true\n\
                      [target.'cfg(unix)'.dev-dependencies]\nbeta = { version = \"2\" }\n";
        let manifests = manifests(root, member);
        assert!(unmentioned(&manifests, "| `alpha` | `beta` |").is_empty());
        let found = unmentioned(&manifests, "alpha and `beta-more`");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("Cargo.toml") && found[0].contains("`alpha`"), "{found:?}");
        assert!(found[1].starts_with("crates/one") && found[1].contains("`beta`"), "{found:?}");
    }

    #[test]
    fn a_version_that_nobody_asks_for_is_found() {
        let root = "[workspace.dependencies]\nalpha = \"1\"\nbeta = \"1\"\n";
        let member = "[build-dependencies]\nalpha = { workspace = true, features = [\"x\"] }\n\
                      beta = \"2\"\n";
        let found = unused(&manifests(root, member));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("`beta`"), "{found:?}");
    }
}
