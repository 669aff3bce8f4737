//! Tests of the provider itself.

mod conform;
mod connect;
mod fault;
mod fixture;
mod limits;
mod order;
mod random;
