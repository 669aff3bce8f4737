//! Tests that the daemon accepts every config in the documentation.

use super::{LEAST, machine, parse};
use crate::config::Config;

const PACING: &str = include_str!("../../../../../docs/pacing.md");

const TENANTS: &str = include_str!("../../../../../docs/tenants.md");

/// Returns the TOML blocks of a page.
fn blocks(page: &str) -> Vec<&str> {
    let opened = page.split("```toml\n").skip(1);
    opened.map(|rest| rest.split_once("```").expect("a block that ends").0).collect()
}

#[test]
fn every_config_on_the_page_about_pacing_passes_the_check() {
    let mut policies = Vec::new();
    for block in blocks(PACING) {
        let config = parse(&format!("{block}\n{LEAST}"));
        let config = config.unwrap_or_else(|error| panic!("{block}\n{error}"));
        policies.push(config.pacing.name());
    }
    for policy in ["adaptive", "none", "buffer-credit", "token-bucket", "prototype"] {
        assert!(policies.contains(&policy), "no example of {policy}");
    }
}

#[test]
fn every_config_on_the_page_about_tenants_passes_the_check() {
    let blocks = blocks(TENANTS);
    assert!(!blocks.is_empty());
    for block in blocks {
        let config = parse(&format!("{block}\n{LEAST}"));
        let config = config.unwrap_or_else(|error| panic!("{block}\n{error}"));
        assert_eq!(config.warnings, []);
        assert!(config.host_defaults.limits.is_any() && config.hosts.len() == 1);
    }
}

#[test]
fn a_block_with_a_mistake_is_found() {
    let page = "a\n```toml\n[pacing]\npolicy = \"adaptive\"\nbudget = \"1MiB\"\n```\nb\n";
    let text = format!("{}\n{LEAST}", blocks(page)[0]);
    let error = Config::parse("page", &text, &machine()).unwrap_err();
    assert_eq!(error.problems[0].key, "pacing.budget");
}
