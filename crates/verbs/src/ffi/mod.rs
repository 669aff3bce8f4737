//! rdma-core's binary interface: C's names, types and numbers, and the libraries' functions.
//!
//! The module has only the parts that this crate uses. `tests/layout.rs` compares every size,
//! offset and number with the C headers. No library is linked, so a binary starts without them, and
//! [`functions`] names the missing one.
//!
//! | module | contents |
//! |---|---|
//! | [`verbs`] | libibverbs: structures and numbers |
//! | [`cma`] | librdmacm: structures and numbers |
//! | [`functions`] | both libraries' functions, by name |
//! | [`inline`] | the verbs that C's header defines inline: calls through a context's table |

pub mod cma;
pub mod functions;
pub mod inline;
pub mod verbs;
