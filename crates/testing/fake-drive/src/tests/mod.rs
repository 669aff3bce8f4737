//! Tests of the fake alone, without the driver.

mod rig;

mod commands;
mod maintenance;
mod rules;
mod shadow;
mod trouble;
