use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::golden;
use crate::sgl::Sgl;

/// A read as in Base 3.3.3.1: every field of the entry has a different value.
fn golden_sqe() -> [u8; 64] {
    golden::bytes(&[
        (0, &[0x02]),                                            // OPC
        (1, &[0x41]),                                            // PSDT 01b, FUSE 01b
        (2, &[0x34, 0x12]),                                      // CID
        (4, &[0x78, 0x56, 0x34, 0x12]),                          // NSID
        (8, &[0x21, 0, 0, 0x20]),                                // CDW2
        (12, &[0x31, 0, 0, 0x30]),                               // CDW3
        (16, &[0x41, 0, 0, 0, 0, 0, 0, 0x40]),                   // MPTR
        (24, &[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]), // SGL1 address
        (32, &[0x00, 0x10, 0x00, 0x00, 0, 0, 0, 0x5a]),          // SGL1 length, type 5h sub type Ah
        (40, &[0xa1, 0, 0, 0xa0]),
        (44, &[0xb1, 0, 0, 0xb0]),
        (48, &[0xc1, 0, 0, 0xc0]),
        (52, &[0xd1, 0, 0, 0xd0]),
        (56, &[0xe1, 0, 0, 0xe0]),
        (60, &[0xf1, 0, 0, 0xf0]),
    ])
}

#[test]
fn fields_are_where_the_specification_has_them() {
    let sqe = Sqe::read_from_bytes(&golden_sqe()).unwrap();
    assert_eq!(sqe.io_opcode(), IoOpcode::READ);
    assert_eq!(sqe.psdt(), Psdt::Sgl);
    assert_eq!(sqe.fuse(), Fuse::First);
    assert_eq!(sqe.cid.get(), 0x1234);
    assert_eq!(sqe.nsid.get(), 0x1234_5678);
    assert_eq!(sqe.cdw2.get(), 0x2000_0021);
    assert_eq!(sqe.cdw3.get(), 0x3000_0031);
    assert_eq!(sqe.mptr.get(), 0x4000_0000_0000_0041);
    assert_eq!(sqe.dptr.address.get(), 0x1122_3344_5566_7788);
    assert_eq!(sqe.dptr.parse(), Sgl::Transport { length: 4096 });
    assert_eq!(sqe.cdw10_11(), 0xb000_00b1_a000_00a1);
    assert_eq!(sqe.cdw12_13(), 0xd000_00d1_c000_00c1);
    assert_eq!(sqe.cdw14.get(), 0xe000_00e1);
    assert_eq!(sqe.cdw15.get(), 0xf000_00f1);
}

#[test]
fn a_built_command_has_the_golden_bytes() {
    let mut sqe = Sqe::io(IoOpcode::READ, 0x1234, 0x1234_5678).with_cdw10([
        0xa000_00a1,
        0xb000_00b1,
        0xc000_00c1,
        0xd000_00d1,
        0xe000_00e1,
        0xf000_00f1,
    ]);
    sqe.flags |= 1;
    sqe.cdw2.set(0x2000_0021);
    sqe.cdw3.set(0x3000_0031);
    sqe.mptr.set(0x4000_0000_0000_0041);
    sqe = sqe.with_sgl(Sgl::Transport { length: 4096 });
    sqe.dptr.address.set(0x1122_3344_5566_7788);
    assert_eq!(sqe.as_bytes(), golden_sqe());
}

#[test]
fn a_fabrics_command_has_its_type_in_byte_4() {
    let sqe = Sqe::fabrics(FabricsType::DISCONNECT, 7);
    assert_eq!(sqe.as_bytes()[..8], [0x7f, 0x40, 7, 0, 0x08, 0, 0, 0]);
    assert!(sqe.is_fabrics());
    // Bytes 5 to 7 are reserved, so a host can leave any value there.
    let mut bytes = [0u8; 64];
    bytes[0] = 0x7f;
    bytes[4..8].copy_from_slice(&[0x01, 0xff, 0xff, 0xff]);
    assert_eq!(Sqe::read_from_bytes(&bytes).unwrap().fctype(), FabricsType::CONNECT);
}

#[test]
fn each_psdt_and_fuse_value_is_told_apart() {
    let with = |flags| Sqe { flags, ..Sqe::default() };
    let psdt = [0x00, 0x40, 0x80, 0xc0].map(|flags| with(flags).psdt());
    assert_eq!(psdt, [Psdt::Prp, Psdt::Sgl, Psdt::SglMetadataSgl, Psdt::Reserved]);
    let fuse = [0x40, 0x41, 0x42, 0x43].map(|flags| with(flags).fuse());
    assert_eq!(fuse, [Fuse::None, Fuse::First, Fuse::Second, Fuse::Reserved]);
}

#[test]
fn fewer_dwords_leave_the_rest_alone() {
    let sqe = Sqe::new(0, 0, 0).with_cdw10([1, 2, 3, 4, 5, 6]).with_cdw10([9]);
    assert_eq!(sqe.cdw10.get(), 9);
    assert_eq!(sqe.cdw11.get(), 2);
    assert_eq!(sqe.cdw15.get(), 6);
}

#[test]
fn prps_take_the_place_of_the_sgl() {
    let bytes: [u8; 64] = golden::bytes(&[
        (0, &[0x02, 0x01, 0x34, 0x12, 1]), // PSDT 00b, FUSE kept
        (24, &[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]),
        (32, &[0x00, 0x10, 0, 0, 0, 0, 0, 0xa2]),
    ]);
    let mut sqe = Sqe::io(IoOpcode::READ, 0x1234, 1).with_sgl(Sgl::Transport { length: 4096 });
    sqe.flags |= 1;
    let sqe = sqe.with_prp(0x1122_3344_5566_7788, 0xa200_0000_0000_1000);
    assert_eq!(sqe.as_bytes(), bytes);
    assert_eq!(sqe.psdt(), Psdt::Prp);
    assert_eq!(sqe.prp(), (0x1122_3344_5566_7788, 0xa200_0000_0000_1000));
    let flush = Sqe::io(IoOpcode::FLUSH, 1, 1).without_data();
    assert_eq!((flush.flags, flush.prp()), (0, (0, 0)));
}
