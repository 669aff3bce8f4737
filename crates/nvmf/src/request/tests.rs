use super::*;
use crate::spec::DeviceId;

type Req = Request<Vec<u8>, ()>;

/// Operations of the device, result of the command, and the return value of the Abort.
type Ran = (Vec<(DeviceOp, u64, u64)>, Result<(), Failure>, bool);

fn command(kind: IoKind, len: u64, fua: bool) -> IoCommand {
    IoCommand {
        cid: 1,
        nsid: 1,
        device: DeviceId(0),
        kind,
        offset: 8192,
        len,
        fua,
        sgl: Sgl::Transport { length: 0 },
        source: Some(DataSource::InCapsule { offset: 0 }),
    }
}

/// Runs a command to its end, with an Abort after `abort_in` operations.
///
/// Returns the operations of the device, the result, and if the Abort took effect.
fn run(request: &mut Req, mut step: Step<Vec<u8>>, abort_in: usize) -> Ran {
    let (mut ops, mut aborts) = (Vec::new(), false);
    loop {
        match step {
            Step::Device { op, offset, len, buf: None } => {
                ops.push((op, offset, len));
                assert_eq!(request.is_flushing(), op == DeviceOp::Flush);
                if ops.len() == abort_in {
                    aborts = request.abort_between_pieces();
                    assert!(!request.abort_between_pieces(), "a second Abort changes nothing");
                }
                step = request.device_done(None, Ok(()));
            }
            Step::Finish { outcome, data: None } => return (ops, outcome, aborts),
            other => panic!("{other:?}"),
        }
    }
}

fn zeroes(len: u64, abort_in: usize) -> Ran {
    let io = command(IoKind::WriteZeroes { deallocate: true }, len, true);
    let mut request = Req::new(io, None);
    let step = request.admitted(());
    run(&mut request, step, abort_in)
}

fn trim(extents: &[(u64, u64)], fua: bool, abort_in: usize) -> Ran {
    let mut request =
        Req::new(command(IoKind::Deallocate { ranges: 3 }, 0, fua), Some(vec![0; 48]));
    let Step::Ranges { .. } = request.admitted(()) else { panic!("the list came along") };
    let extents = extents.iter().map(|&(offset, len)| Extent { offset, len }).collect();
    let step = request.ranges(Ok(extents));
    run(&mut request, step, abort_in)
}

#[test]
fn write_zeroes_is_cut() {
    let op = DeviceOp::WriteZeroes { fua: true, deallocate: true };
    assert_eq!(zeroes(512, 0), (vec![(op, 8192, 512)], Ok(()), false));
    assert_eq!(zeroes(ZEROES_PIECE, 0), (vec![(op, 8192, ZEROES_PIECE)], Ok(()), false));
    let (ops, outcome, _) = zeroes(2 * ZEROES_PIECE + 4096, 0);
    let piece = |number, len| (op, 8192 + number * ZEROES_PIECE, len);
    assert_eq!(ops, [piece(0, ZEROES_PIECE), piece(1, ZEROES_PIECE), piece(2, 4096)]);
    assert_eq!(outcome, Ok(()));
}

#[test]
fn deallocate_is_cut_and_flushed_where_nothing_may_stay_in_a_cache() {
    let op = DeviceOp::Deallocate;
    let long = DEALLOCATE_PIECE + 512;
    let pieces = [
        (op, 0, 4096),
        (op, 1 << 40, DEALLOCATE_PIECE),
        (op, (1 << 40) + DEALLOCATE_PIECE, 512),
        (op, 512, 512),
    ];
    let extents = [(0, 4096), (1 << 40, long), (512, 512)];
    assert_eq!(trim(&extents, false, 0), (pieces.to_vec(), Ok(()), false));
    let flush = (DeviceOp::Flush, 0, 0);
    let all = pieces.into_iter().chain([flush]).collect();
    assert_eq!(trim(&extents, true, 0), (all, Ok(()), false));
    assert_eq!(trim(&[], true, 0), (vec![], Ok(()), false), "nothing to do, nothing to flush");
}

#[test]
fn an_abort_ends_a_long_command_behind_the_piece_that_is_on_its_device() {
    for behind in 1..=4 {
        let (ops, outcome, aborts) = zeroes(4 * ZEROES_PIECE, behind);
        // After the last piece, nothing remains to abort.
        let expected = if behind < 4 { Err(Failure::Aborted) } else { Ok(()) };
        assert_eq!((ops.len(), outcome, aborts), (behind, expected, behind < 4));
    }
    let (ops, outcome, aborts) = trim(&[(0, 512), (4096, 512)], true, 1);
    assert_eq!((ops.len(), outcome, aborts), (1, Err(Failure::Aborted), true));
    let (ops, outcome, aborts) = trim(&[(0, 512), (4096, 512)], true, 2);
    assert_eq!((ops.len(), outcome, aborts), (3, Ok(()), false), "flushed, as it was to be");
}

#[test]
fn only_what_has_another_piece_can_be_aborted_on_its_device() {
    let mut write = Req::new(command(IoKind::Write, 512, false), Some(vec![0; 512]));
    assert!(!write.abort_between_pieces(), "it waits");
    let Step::Device { .. } = write.admitted(()) else { panic!("its data came along") };
    assert!(!write.abort_between_pieces());
}

#[test]
fn a_device_error_goes_before_an_abort() {
    let io = command(IoKind::WriteZeroes { deallocate: false }, 2 * ZEROES_PIECE, false);
    let mut request = Req::new(io, None);
    let Step::Device { .. } = request.admitted(()) else { panic!("a piece") };
    assert!(request.abort_between_pieces());
    match request.device_done(None, Err(Failure::MediaWrite)) {
        Step::Finish { outcome: Err(Failure::MediaWrite), data: None } => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(request.stage(), Stage::Sending);
    assert_eq!(request.into_permit(), Some(()));
}
