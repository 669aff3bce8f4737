//! An I/O command from its admission to its end, as in the reactor.

use std::borrow::Cow;

use nvmeof_nvmf::request::{DeviceOp, Request, Step};
use nvmeof_nvmf::{DataSource, Extent, Failure, IoCommand, IoKind};

use crate::input::Input;

/// Data whose content matters only for range lists.
pub(super) type Data = Cow<'static, [u8]>;

/// Stands for a pacer's permit.
#[derive(Debug)]
struct Permit;

static ZEROES: [u8; 128 << 10] = [0; 128 << 10];

/// Runs `io` and returns its outcome. `list` is the content of a range list, `ranges` its meaning.
pub(super) fn run(
    input: &mut Input<'_>,
    io: &IoCommand,
    list: Vec<u8>,
    ranges: impl Fn(&[u8]) -> Result<Vec<Extent>, Failure>,
) -> Result<(), Failure> {
    let is_list = matches!(io.kind, IoKind::Deallocate { .. });
    let list: Data = Cow::Owned(list);
    let data = |len: u64| -> Data {
        if is_list {
            list.clone()
        } else {
            Cow::Borrowed(&ZEROES[..usize::try_from(len).expect("bounded by MDTS")])
        }
    };
    let inline = matches!(io.source, Some(DataSource::InCapsule { .. }))
        .then(|| data(u64::from(io.data_len())));
    let mut request: Request<Data, Permit> = Request::new(*io, inline);
    assert!(request.is_waiting() && request.io() == io);
    assert!(request.cost() <= 2 * ZEROES.len() as u64);
    if input.one_in(12) {
        // Cancelled in its lane.
        assert!(request.into_permit().is_none());
        return Err(Failure::Aborted);
    }
    // Bytes of a range list, or of zeroes, that are not submitted to the device yet.
    let mut left = if matches!(io.kind, IoKind::WriteZeroes { .. }) { io.len } else { 0 };
    let mut aborts = false;
    let mut step = request.admitted(Permit);
    loop {
        // Less than one per run on average, so that all steps are reached.
        let fails = input.one_in(16);
        step = match step {
            Step::Lease(_) if fails => request.fail(Failure::Internal),
            Step::Lease(wanted) => {
                assert_eq!(wanted, request.wanted());
                if io.kind == IoKind::Read && input.one_in(4) {
                    request.zero_copy();
                    assert!(request.into_permit().is_some());
                    return Ok(());
                }
                let spare = wanted.spare.then(|| data(wanted.len));
                request.leased(data(wanted.len), spare)
            }
            Step::Pull { buf, sgl } => {
                assert_eq!(Some(DataSource::Host(sgl)), io.source);
                let result = if fails { Err(Failure::DataTransfer) } else { Ok(()) };
                request.pulled(buf, result)
            }
            Step::Ranges { list } => {
                let ranges = ranges(&list);
                left = ranges.as_ref().map_or(0, |all| all.iter().map(|one| one.len).sum());
                request.ranges(ranges)
            }
            Step::Device { op, offset, len, buf } => {
                match op {
                    DeviceOp::Deallocate | DeviceOp::WriteZeroes { .. } => {
                        assert!(len > 0 && len <= left && buf.is_none());
                        left -= len;
                    }
                    DeviceOp::Flush if is_list => assert!(left == 0 && io.fua),
                    _ => assert_eq!((offset, len), (io.offset, io.len)),
                }
                if input.one_in(16) {
                    aborts |= request.abort_between_pieces();
                }
                let result = if fails { Err(Failure::MediaRead) } else { Ok(()) };
                let buf = match input.one_in(16) {
                    true if buf.is_some() => Some(Cow::Owned(vec![1; len.min(512) as usize])),
                    _ => buf,
                };
                request.device_done(buf, result)
            }
            Step::Finish { outcome, data } => {
                assert!(outcome.is_err() || (left == 0 && !aborts), "pieces are left");
                assert_eq!(data.is_some(), io.kind == IoKind::Read && outcome.is_ok());
                assert!(request.into_permit().is_some());
                return outcome;
            }
        };
    }
}
