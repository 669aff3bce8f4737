//! Tests of the provider itself.

mod conform;
mod fixture;
