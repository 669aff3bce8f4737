//! The TCP socket, non-blocking after the connection is established.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Address, Error};

#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    peer: String,
}

impl Socket {
    /// Connects to the first address of the host that responds within `timeout`.
    pub(super) fn connect(address: &Address, timeout: Duration) -> Result<Self, Error> {
        let host = address.authority();
        let resolve = |cause| Error::Resolve { host: host.clone(), cause };
        let mut last = io::Error::new(io::ErrorKind::NotFound, "no address found for this name");
        for candidate in (address.host.as_str(), address.port).to_socket_addrs().map_err(resolve)? {
            match TcpStream::connect_timeout(&candidate, timeout) {
                Ok(stream) => {
                    let peer = candidate.to_string();
                    let set_up =
                        stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true));
                    set_up.map_err(|cause| Error::Io { peer: peer.clone(), cause })?;
                    return Ok(Self { stream, peer });
                }
                Err(error) => last = error,
            }
        }
        Err(Error::Connect { peer: host, cause: last })
    }

    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    /// Reads the available bytes; `None` if there are none.
    #[inline]
    pub(super) fn read(&self, to: &mut [IoSliceMut<'_>; 2]) -> Result<Option<usize>, Error> {
        let result = if to[0].is_empty() {
            (&self.stream).read(&mut to[1])
        } else {
            (&self.stream).read_vectored(to)
        };
        match result {
            Ok(0) => Err(Error::Closed { peer: self.peer.clone(), during: "" }),
            other => self.unless_blocked(other),
        }
    }

    /// Writes the bytes that the kernel accepts; `None` if it accepts none.
    #[inline]
    pub(super) fn write(&self, from: &[IoSlice<'_>]) -> Result<Option<usize>, Error> {
        let result = match from {
            [one] => (&self.stream).write(one),
            many => (&self.stream).write_vectored(many),
        };
        self.unless_blocked(result)
    }

    /// Waits at most `timeout` until the socket is readable, or writable if `output`.
    pub(super) fn wait(&self, output: bool, timeout: Duration) {
        let flags = if output { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let timeout = Timespec::try_from(timeout).ok();
        // A failure or an interruption only shortens the wait: the caller checks the clock.
        let _ = poll(&mut [PollFd::new(&self.stream, flags)], timeout.as_ref());
    }

    /// Writes all of `bytes`.
    pub(super) fn write_all(&self, mut bytes: &[u8], until: Instant) -> Result<(), Error> {
        while !bytes.is_empty() {
            match self.write(&[IoSlice::new(bytes)])? {
                Some(n) => bytes = &bytes[n..],
                None => self.wait_until(true, until)?,
            }
        }
        Ok(())
    }

    /// Fills `bytes`.
    pub(super) fn read_exact(&self, bytes: &mut [u8], until: Instant) -> Result<(), Error> {
        let mut at = 0;
        while at < bytes.len() {
            let mut to = [IoSliceMut::new(&mut []), IoSliceMut::new(&mut bytes[at..])];
            match self.read(&mut to)? {
                Some(n) => at += n,
                None => self.wait_until(false, until)?,
            }
        }
        Ok(())
    }

    /// Sends `bytes` if the kernel accepts them immediately, then ends the connection in both
    /// directions.
    pub(super) fn finish(&self, bytes: &[u8]) {
        let _ = (&self.stream).write(bytes);
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn wait_until(&self, output: bool, until: Instant) -> Result<(), Error> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let cause = io::Error::from(io::ErrorKind::TimedOut);
            return Err(Error::Io { peer: self.peer.clone(), cause });
        }
        self.wait(output, left);
        Ok(())
    }

    #[inline]
    fn unless_blocked(&self, result: io::Result<usize>) -> Result<Option<usize>, Error> {
        match result {
            Ok(n) => Ok(Some(n)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(cause) => Err(Error::Io { peer: self.peer.clone(), cause }),
        }
    }
}
