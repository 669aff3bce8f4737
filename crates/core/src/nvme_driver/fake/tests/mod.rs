//! The fake by itself, driven by hand.

mod rig;

mod commands;
mod maintenance;
mod rules;
mod shadow;
mod trouble;
