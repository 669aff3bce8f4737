//! A machine without RDMA: the program starts, and the error names what is missing.

use std::path::Path;
use std::process::Command;

use nvmeof_verbs::VerbsError;
use nvmeof_verbs::system::{Library, Listener, ListenerOptions, SystemDevice};

/// Set in a process that cannot load the library of this name.
const WITHOUT: &str = "VERBS_TEST_WITHOUT";

/// Runs one test of this file again, where the file `library` is not a library.
fn without(library: &str, test: &str) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("without-{library}"));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join(library), "no library").expect("a file");
    let output = Command::new(std::env::current_exe().expect("our own path"))
        .args(["--exact", test, "--nocapture"])
        .env("LD_LIBRARY_PATH", &folder)
        .env(WITHOUT, library)
        .output()
        .expect("the test runs again");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

fn names_what_is_missing(library: &str) {
    let Err(error) = Library::load() else { panic!("{library} was loaded") };
    assert!(matches!(&error, VerbsError::NoLibrary { library: named, .. } if *named == library));
    let text = error.to_string();
    assert!(text.contains(library) && text.contains("librdmacm1"), "{text}");
    assert!(matches!(SystemDevice::list(), Err(VerbsError::NoLibrary { .. })));
    let address = "10.0.1.1:0".parse().expect("an address");
    let bound = Listener::bind(address, 1, &ListenerOptions::default());
    assert!(matches!(bound, Err(VerbsError::NoLibrary { .. })));
}

#[test]
fn a_missing_libibverbs_is_named() {
    match std::env::var(WITHOUT) {
        Ok(library) => names_what_is_missing(&library),
        Err(_) => without("libibverbs.so.1", "a_missing_libibverbs_is_named"),
    }
}

#[test]
fn a_missing_librdmacm_is_named() {
    match std::env::var(WITHOUT) {
        Ok(library) => names_what_is_missing(&library),
        Err(_) => without("librdmacm.so.1", "a_missing_librdmacm_is_named"),
    }
}

/// The error names the address on a machine with a device, the device on one with the libraries
/// only, and otherwise a library.
#[test]
fn an_address_that_is_not_rdmas_is_refused_with_a_reason() {
    let address = "192.0.2.1:0".parse().expect("an address");
    match Listener::bind(address, 1, &ListenerOptions::default()) {
        Err(error @ (VerbsError::NoDevice | VerbsError::NoDeviceAt { .. })) => {
            assert!(error.to_string().contains("rdma link"), "{error}");
        }
        Err(error @ VerbsError::NoLibrary { .. }) => {
            assert!(error.to_string().contains("apt-get install"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}
