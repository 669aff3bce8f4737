//! Normal operation of a drive.

use nvmeof_wire::identify::{Cns, Controller, Namespace, NsidList, sgls};
use nvmeof_wire::nvm::{BlockIo, DatasetManagement, DsmRange};
use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::queues::DeleteIoQueue;
use nvmeof_wire::{Sgl, Sqe, Status, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::rig::Rig;
use crate::{FakeDriveConfig, NamespaceConfig};

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i % 251).to_le_bytes()[0] ^ seed).collect()
}

#[test]
fn it_identifies_itself_and_its_namespaces() {
    let mut config = FakeDriveConfig::default();
    config.namespaces.push(NamespaceConfig::new(3, 1000, 12));
    let mut rig = Rig::enabled(config, 8);
    let (status, data) = rig.identify(Cns::CONTROLLER, 0);
    assert!(status.is_success());
    let controller = Controller::read_from_bytes(&data).unwrap();
    assert_eq!(nvmeof_wire::ascii::text(&controller.sn), Some("FAKE0001"));
    let (_, list) = rig.identify(Cns::ACTIVE_NAMESPACES, 0);
    assert!(NsidList::read_from_bytes(&list).unwrap().iter().eq([1, 3]));
    let (_, list) = rig.identify(Cns::ACTIVE_NAMESPACES, 1);
    assert!(NsidList::read_from_bytes(&list).unwrap().iter().eq([3]));
    let (_, data) = rig.identify(Cns::NAMESPACE, 3);
    let namespace = Namespace::read_from_bytes(&data).unwrap();
    assert_eq!((namespace.nsze.get(), namespace.block_size()), (1000, Some(4096)));
    let (status, data) = rig.identify(Cns::NAMESPACE, 2);
    assert!(status.is_success() && data.iter().all(|byte| *byte == 0));
    let (status, _) = rig.identify(Cns::NAMESPACE, 17);
    assert_eq!(status.code(), Status::INVALID_NAMESPACE_OR_FORMAT);
    rig.fake.assert_clean();
}

#[test]
fn what_is_written_is_read_over_every_shape_of_prps() {
    let mut rig = Rig::ready(FakeDriveConfig::default());
    let (data, back) = (rig.pages(64 << 10), rig.pages(64 << 10));
    let list = rig.pages(4096);
    for (turn, (blocks, offset)) in
        [(1, 0), (8, 0), (8, 512), (16, 0), (17, 4), (100, 512), (120, 4092)]
            .into_iter()
            .enumerate()
    {
        let len = blocks as usize * 512;
        let bytes = pattern(len, turn.to_le_bytes()[0]);
        data.put(offset, &bytes);
        let prps = |pages: &crate::memory::Pages| {
            let entries: Vec<u64> =
                (1..(offset + len).div_ceil(4096)).map(|page| pages.at(page * 4096)).collect();
            match entries.as_slice() {
                [] => [pages.at(offset), 0],
                [one] => [pages.at(offset), *one],
                many => {
                    // The list starts inside its page.
                    list.put(64, many.as_bytes());
                    [pages.at(offset), list.at(64)]
                }
            }
        };
        assert_eq!(rig.io(IoOpcode::WRITE, 50, blocks, prps(&data)), Status::SUCCESS);
        assert_eq!(rig.io(IoOpcode::READ, 50, blocks, prps(&back)), Status::SUCCESS);
        assert_eq!(back.get(offset, len), bytes, "{blocks} blocks at {offset}");
        assert_eq!(rig.fake.read_media(1, 50, blocks), Some(bytes));
    }
    rig.fake.assert_clean();
}

#[test]
fn prp_lists_go_on_in_a_next_page() {
    let mut config = FakeDriveConfig::default();
    config.identify.mdts = 0;
    config.namespaces = vec![NamespaceConfig::new(1, 8 << 10, 12)];
    let mut rig = Rig::ready(config);
    // 600 pages: PRP1, then 599 entries in two pages of a list that starts 16 bytes before the end
    // of its page.
    let pages = 600;
    let data = rig.pages(pages * 4096);
    let list = rig.pages(3 * 4096);
    let bytes = pattern(pages * 4096, 9);
    data.put(0, &bytes);
    let mut at = 4096 - 16;
    for page in 1..pages {
        if at % 4096 == 4096 - 8 && page + 1 < pages {
            list.put(at, &list.at(at + 8).to_le_bytes());
            at += 8;
        }
        list.put(at, &data.at(page * 4096).to_le_bytes());
        at += 8;
    }
    let prp = [data.at(0), list.at(4096 - 16)];
    assert_eq!(rig.io(IoOpcode::WRITE, 7, 600, prp), Status::SUCCESS);
    assert_eq!(rig.fake.read_media(1, 7, 600), Some(bytes));
    rig.fake.assert_clean();
}

#[test]
fn sgls_in_segments() {
    let mut config = FakeDriveConfig::default();
    config.identify.sgls = U32::new(sgls::SUPPORTED | sgls::BIT_BUCKET);
    let mut rig = Rig::ready(config);
    let data = rig.pages(8192);
    let segments = rig.pages(4096);
    rig.fake.write_media(1, 0, &pattern(2048, 3)).unwrap();
    let block = |at, length| Sgl::DataBlock { address: data.at(at), length };
    let put = |at: usize, sgl: Sgl| segments.put(at, sgl.encode().as_bytes());
    put(0, block(5, 100));
    put(16, Sgl::BitBucket { length: 1000 });
    put(32, Sgl::LastSegment { address: segments.at(256), length: 16, offset: false });
    put(256, block(4000, 948));
    let first = Sgl::Segment { address: segments.at(0), length: 48, offset: false };
    let read = BlockIo::new(0, 4).encode(IoOpcode::READ, 0, 1).with_sgl(first);
    assert_eq!(rig.command(1, read).status(), Status::SUCCESS);
    let bytes = pattern(2048, 3);
    assert_eq!(data.get(5, 100), bytes[..100]);
    assert_eq!(data.get(4000, 948), bytes[1100..]);
    assert_eq!(data.get(105, 100), [0; 100]);
    // One data block described in the command itself.
    let read = BlockIo::new(0, 2).encode(IoOpcode::READ, 0, 1).with_sgl(block(3, 1024));
    assert_eq!(rig.command(1, read).status(), Status::SUCCESS);
    assert_eq!(data.get(3, 1024), bytes[..1024]);
    rig.fake.assert_clean();
    // A segment descriptor that is not the last one in its segment, and a segment without a next
    // one.
    put(0, Sgl::LastSegment { address: segments.at(256), length: 16, offset: false });
    assert_eq!(rig.command(1, read.with_sgl(first)).status().code(), Status::INVALID_SGL_SEGMENT);
    rig.expect_one_violation();
    put(0, block(0, 1024));
    let alone = Sgl::Segment { address: segments.at(0), length: 16, offset: false };
    assert_eq!(rig.command(1, read.with_sgl(alone)).status().code(), Status::INVALID_SGL_SEGMENT);
    rig.expect_one_violation();
    let short = rig.command(1, read.with_sgl(block(0, 1020))).status();
    assert_eq!(short.code(), Status::DATA_SGL_LENGTH_INVALID);
    rig.expect_one_violation();
}

#[test]
fn the_other_io_commands() {
    let mut rig = Rig::ready(FakeDriveConfig::default());
    let data = rig.pages(4096);
    data.put(0, &pattern(4096, 1));
    let prp = [data.at(0), 0];
    assert_eq!(rig.io(IoOpcode::WRITE, 8, 8, prp), Status::SUCCESS);
    assert_eq!(rig.io(IoOpcode::COMPARE, 8, 8, prp), Status::SUCCESS);
    assert_eq!(rig.io(IoOpcode::WRITE_ZEROES, 10, 2, [0, 0]), Status::SUCCESS);
    assert_eq!(rig.io(IoOpcode::COMPARE, 8, 8, prp).code(), Status::COMPARE_FAILURE);
    assert_eq!(rig.io(IoOpcode::VERIFY, 8, 8, [0, 0]), Status::SUCCESS);
    let mut wanted = pattern(4096, 1);
    wanted[1024..2048].fill(0);
    assert_eq!(rig.fake.read_media(1, 8, 8), Some(wanted.clone()));
    data.put(0, DsmRange::new(8, 1).as_bytes());
    data.put(16, DsmRange::new(15, 1).as_bytes());
    let dsm = DatasetManagement {
        ranges: 2,
        deallocate: true,
        integral_write: false,
        integral_read: false,
    };
    let dsm = dsm.encode(0, 1).with_prp(data.at(0), 0);
    assert_eq!(rig.command(1, dsm).status(), Status::SUCCESS);
    wanted[..512].fill(0);
    wanted[3584..].fill(0);
    assert_eq!(rig.fake.read_media(1, 8, 8), Some(wanted));
    rig.fake.assert_clean();
}

#[test]
fn what_is_not_flushed_is_lost_with_power() {
    let mut rig = Rig::ready(FakeDriveConfig::default());
    let data = rig.pages(4096);
    let prp = [data.at(0), 0];
    let flush = Sqe::io(IoOpcode::FLUSH, 0, 1).without_data();
    let byte = |rig: &Rig, lba| rig.fake.read_media(1, lba, 1).unwrap()[0];
    data.put(0, &[1; 4096]);
    rig.io(IoOpcode::WRITE, 0, 2, prp);
    assert_eq!(rig.command(1, flush).status(), Status::SUCCESS);
    data.put(0, &[2; 4096]);
    rig.io(IoOpcode::WRITE, 0, 1, prp);
    let mut fua = BlockIo::new(1, 1);
    fua.fua = true;
    let fua = fua.encode(IoOpcode::WRITE, 0, 1).with_prp(prp[0], 0);
    assert_eq!(rig.command(1, fua).status(), Status::SUCCESS);
    assert_eq!((byte(&rig, 0), byte(&rig, 1)), (2, 2));
    rig.fake.lose_power();
    assert_eq!((byte(&rig, 0), byte(&rig, 1)), (1, 2));
    rig.fake.assert_clean();
}

#[test]
fn queues_wrap_and_are_deleted_in_order() {
    let mut rig = Rig::ready(FakeDriveConfig::default());
    let data = rig.pages(4096);
    for _ in 0..100 {
        assert_eq!(rig.io(IoOpcode::READ, 0, 1, [data.at(0), 0]), Status::SUCCESS);
    }
    assert_eq!(rig.fake.taken(1, IoOpcode::READ.0), 100);
    let delete = DeleteIoQueue { qid: 1 };
    assert_eq!(rig.admin(delete.encode_cq(0)).status().code(), Status::INVALID_QUEUE_DELETION);
    rig.expect_one_violation();
    assert_eq!(rig.admin(delete.encode_sq(0)).status(), Status::SUCCESS);
    assert_eq!(rig.admin(delete.encode_cq(0)).status(), Status::SUCCESS);
    assert_eq!(rig.fake.io_queues(), 0);
    rig.fake.assert_clean();
}
