//! Tests of the fake alone, without the driver.

mod rig;

mod commands;
mod errors;
mod maintenance;
mod rules;
mod shadow;
