//! The fake by itself, driven by hand.

mod rig;

mod commands;
