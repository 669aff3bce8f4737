//! Tests of the sweep as a whole.
