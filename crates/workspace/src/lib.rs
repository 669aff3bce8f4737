//! Foundations of the developer commands, `xtask` and `nvmeof-lab`.
//!
//! | module | content |
//! |---|---|
//! | [`checkout`] | the checkout, its build products, calls of cargo and other programs |
//! | [`prerequisites`] | programs of the system that a command needs, and their installation |
//! | [`parallel`] | concurrent execution of a list of items |
//! | [`running_program`] | the running program, to be started again or copied |
#![forbid(unsafe_code)]

pub mod checkout;
pub mod parallel;
pub mod prerequisites;
pub mod running_program;
