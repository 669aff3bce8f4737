//! UNIX sockets of the API and of the RPC server.

use std::fs::Permissions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tokio::net::UnixListener;

/// Attempts to lock the folder. Another daemon holds the lock for microseconds.
const LOCK_ATTEMPTS: u32 = 20;
/// Pause between the attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Opens a UNIX socket with this path and mode; errors name the config key.
///
/// It is created under another name and renamed, so that no client finds it without its mode. The
/// folder is locked, so that two daemons never take over the same stale socket. Nothing here waits
/// for another process without a bound: any user may lock a folder like `/var/tmp`.
pub(crate) fn unix_socket(
    key: &str,
    path: &Path,
    mode: u32,
) -> anyhow::Result<(SocketFile, UnixListener)> {
    let shown = path.display();
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = parent.unwrap_or(Path::new("."));
    let lock = open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| format!("{key} {shown}: the folder cannot be used; create it"))?;
    lock_folder(&lock).with_context(|| {
        format!(
            "{key} {shown}: another process keeps the folder locked; stop that process, or use a \
             folder of the daemon"
        )
    })?;
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            anyhow::bail!("{key} {shown}: a file that is no socket is there; choose another path");
        }
        Ok(_) if is_refused(path) => {
            tracing::info!("the socket {shown} was left by a daemon that has died");
        }
        Ok(_) => anyhow::bail!(
            "{key} {shown}: another daemon serves the socket; stop it, or set another path"
        ),
        Err(_) => {}
    }
    let made = with_suffix(path);
    let cannot = || {
        format!(
            "{key} {shown}: cannot be created; check that the daemon's user may write to the \
             folder"
        )
    };
    // Left by a daemon that died at this point.
    let _ = std::fs::remove_file(&made);
    let listener = UnixListener::bind(&made).with_context(cannot)?;
    let file = SocketFile(made);
    std::fs::set_permissions(&file.0, Permissions::from_mode(mode)).with_context(cannot)?;
    std::fs::rename(&file.0, path).with_context(cannot)?;
    drop(lock);
    Ok((SocketFile(path.to_owned()), listener))
}

/// Locks the folder of a socket until the descriptor is closed.
fn lock_folder(folder: &OwnedFd) -> Result<(), Errno> {
    for _ in 1..LOCK_ATTEMPTS {
        match flock(folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            locked => return locked,
        }
    }
    flock(folder, FlockOperation::NonBlockingLockExclusive)
}

/// Returns true if no process serves the socket.
///
/// A process that accepts no connection and has a full backlog serves it, too.
fn is_refused(path: &Path) -> bool {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let connected = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .and_then(|socket| connect(&socket, &SocketAddrUnix::new(path)?));
    connected == Err(Errno::CONNREFUSED)
}

/// Returns the temporary name of a socket, like `api.sock.new`.
fn with_suffix(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// The path of a socket, removed on drop.
#[derive(Debug)]
pub(crate) struct SocketFile(PathBuf);

impl SocketFile {
    /// Returns the path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It can be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_that_is_left_over_is_replaced_and_one_that_serves_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let (file, listener) = unix_socket("api.socket", &path, 0o640).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        let error = unix_socket("api.socket", &path, 0o640).unwrap_err().to_string();
        assert!(error.contains("another daemon serves the socket"), "{error}");
        drop((file, listener));
        assert!(!path.exists() && !with_suffix(&path).exists());
        std::fs::write(&path, "precious").unwrap();
        let error = unix_socket("api.socket", &path, 0o640).unwrap_err().to_string();
        assert!(error.contains("no socket"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        let error =
            unix_socket("api.socket", &folder.path().join("none/api.sock"), 0o640).unwrap_err();
        assert!(error.to_string().contains("folder"), "{error}");
    }

    #[tokio::test]
    async fn a_folder_that_another_process_keeps_locked_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.sock");
        let other = std::fs::File::open(folder.path()).unwrap();
        flock(&other, FlockOperation::LockShared).unwrap();
        let error = unix_socket("api.socket", &path, 0o640).unwrap_err().to_string();
        assert!(error.contains("keeps the folder locked"), "{error}");
        drop(other);
        unix_socket("api.socket", &path, 0o640).unwrap();
    }

    #[tokio::test]
    async fn a_process_that_accepts_no_connection_does_not_block_the_check() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.sock");
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let _fills_the_backlog = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let error = unix_socket("api.socket", &path, 0o640).unwrap_err().to_string();
        assert!(error.contains("another daemon serves the socket"), "{error}");
    }
}
