//! One place for tables, plots, HTML, CSV and JSON results.

#![forbid(unsafe_code)]
