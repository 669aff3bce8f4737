//! Functions of both libraries, looked up by name in the files that are present at run time.
#![expect(missing_docs, reason = "C's names; rdma-core's manual pages describe them")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;

use super::cma::{rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel};
use super::verbs::{
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid,
    ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_srq,
    ibv_srq_init_attr,
};
use crate::error::VerbsError;

/// A loaded library. It stays loaded for the life of the process, so its threads and exit handlers
/// never outlive it.
#[derive(Debug)]
struct File {
    handle: NonNull<c_void>,
    name: &'static str,
}

impl File {
    fn open(name: &'static str, path: &CStr) -> Result<Self, VerbsError> {
        // SAFETY: the path ends in a zero. The initializers that run are those of rdma-core's
        // libraries, which a linked program runs before its main function. They have no
        // requirements.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        match NonNull::new(handle) {
            Some(handle) => Ok(Self { handle, name }),
            None => Err(VerbsError::NoLibrary { library: name, why: loader_says() }),
        }
    }

    /// Returns the address of a function. If it has several versions, that is the newest one, which
    /// the headers describe.
    fn find(&self, function: &CStr) -> Result<NonNull<c_void>, VerbsError> {
        // SAFETY: the handle is that of a library that is never closed, and the name ends in a
        // zero.
        let address = unsafe { libc::dlsym(self.handle.as_ptr(), function.as_ptr()) };
        NonNull::new(address)
            .ok_or_else(|| VerbsError::NoLibrary { library: self.name, why: loader_says() })
    }
}

/// Converts a text that ends in a zero.
const fn terminated(text: &str) -> &CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a text that ends in a zero"),
    }
}

/// Returns the loader's message about its last failure in this thread.
fn loader_says() -> String {
    // SAFETY: the call has no arguments. The returned text is valid until this thread's next call
    // of the loader, and is copied before.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return "no reason given".to_owned();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

/// Declaration of a function in this crate.
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    /// Name of the function.
    pub name: &'static str,
    /// Rust types of the arguments.
    pub arguments: &'static [&'static str],
    /// Rust type of the result, empty for none.
    pub returns: &'static str,
}

macro_rules! table {
    (
        $(#[$meta:meta])*
        $table:ident from $file:literal / $path:literal {
            $( fn $name:ident( $( $arg:ty ),* $(,)? ) $( -> $out:ty )? ; )*
        }
    ) => {
        $(#[$meta])*
        pub struct $table {
            $( pub $name: unsafe extern "C" fn( $( $arg ),* ) $( -> $out )?, )*
        }

        impl std::fmt::Debug for $table {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(concat!("functions of ", $file))
            }
        }

        impl $table {
            /// Loads the library.
            ///
            /// # Errors
            /// [`VerbsError::NoLibrary`] if the library is missing, or lacks a function.
            pub fn load() -> Result<Self, VerbsError> {
                const PATH: &CStr = terminated($path);
                let file = File::open($file, PATH)?;
                $(
                    let address = file.find(const { terminated(concat!(stringify!($name), "\0")) })?;
                    // SAFETY: the address is that of the function of this name, and the type here
                    // is what the library's header declares. rdma-core keeps the interface of a
                    // symbol's version, and `tests/layout.rs` compiles each signature against the
                    // header.
                    let $name = unsafe {
                        std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn( $( $arg ),* ) $( -> $out )?,
                        >(address.as_ptr())
                    };
                )*
                Ok(Self { $( $name, )* })
            }

            /// The declarations of the functions, for comparison with the headers.
            pub const SIGNATURES: &'static [Signature] = &[ $(
                Signature {
                    name: stringify!($name),
                    arguments: &[ $( stringify!($arg), )* ],
                    returns: concat!( $( stringify!($out) )? ),
                },
            )* ];
        }
    };
}

table! {
    /// libibverbs.
    Verbs from "libibverbs.so.1" / "libibverbs.so.1\0" {
        fn ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
        fn ibv_free_device_list(*mut *mut ibv_device);
        fn ibv_get_device_name(*mut ibv_device) -> *const c_char;
        fn ibv_get_device_guid(*mut ibv_device) -> u64;
        fn ibv_open_device(*mut ibv_device) -> *mut ibv_context;
        fn ibv_close_device(*mut ibv_context) -> c_int;
        fn ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
        fn ibv_ack_async_event(*mut ibv_async_event);
        fn ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        fn ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        fn ibv_query_gid(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
        fn ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
        fn ibv_dealloc_pd(*mut ibv_pd) -> c_int;
        fn ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        fn ibv_dereg_mr(*mut ibv_mr) -> c_int;
        fn ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
        fn ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
        fn ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        fn ibv_destroy_cq(*mut ibv_cq) -> c_int;
        fn ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(*mut ibv_cq, c_uint);
        fn ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        fn ibv_destroy_srq(*mut ibv_srq) -> c_int;
        fn ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        fn ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        fn ibv_query_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
        fn ibv_destroy_qp(*mut ibv_qp) -> c_int;
    }
}

table! {
    /// librdmacm.
    Cm from "librdmacm.so.1" / "librdmacm.so.1\0" {
        fn rdma_get_devices(*mut c_int) -> *mut *mut ibv_context;
        fn rdma_free_devices(*mut *mut ibv_context);
        fn rdma_create_event_channel() -> *mut rdma_event_channel;
        fn rdma_destroy_event_channel(*mut rdma_event_channel);
        fn rdma_create_id(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_uint) -> c_int;
        fn rdma_destroy_id(*mut rdma_cm_id) -> c_int;
        fn rdma_bind_addr(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
        fn rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
        fn rdma_resolve_addr(*mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        fn rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
        fn rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        fn rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        fn rdma_establish(*mut rdma_cm_id) -> c_int;
        fn rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        fn rdma_disconnect(*mut rdma_cm_id) -> c_int;
        fn rdma_notify(*mut rdma_cm_id, c_uint) -> c_int;
        fn rdma_init_qp_attr(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int;
        fn rdma_migrate_id(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
        fn rdma_set_option(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
        fn rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        fn rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
    }
}
