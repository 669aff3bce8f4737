//! rdma-core's binary interface: C's names, types and numbers, and the libraries' functions found at run time.
//!
//! Only what this crate uses. `tests/layout.rs` compares every size, offset and number with the C headers.
//! Nothing is linked: a binary starts where the libraries are missing, and [`functions`] says which one is.
//!
//! | module | what |
//! |---|---|
//! | [`verbs`] | libibverbs: structures and numbers |
//! | [`cma`] | librdmacm: structures and numbers |
//! | [`functions`] | both libraries' functions, by name |
//! | [`inline`] | the verbs that C's header defines inline: calls through a context's table |

pub mod cma;
pub mod functions;
pub mod inline;
pub mod verbs;
