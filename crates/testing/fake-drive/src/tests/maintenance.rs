//! Format, Sanitize, features and logs.

use nvmeof_wire::features::{Fid, GetFeatures, NumberOfQueues, Select, SetFeatures};
use nvmeof_wire::format::{FormatNvm, SecureErase};
use nvmeof_wire::identify::{Cns, Namespace};
use nvmeof_wire::log::{ErrorInformation, GetLogPage, Lid};
use nvmeof_wire::opcode::IoOpcode;
use nvmeof_wire::sanitize::{Sanitize, SanitizeAction, SanitizeLog, SanitizeState};
use nvmeof_wire::sqe::NSID_ALL;
use nvmeof_wire::{Sqe, Status};
use zerocopy::FromBytes;

use super::rig::Rig;
use crate::FakeDriveConfig;

fn set(fid: Fid, cdw11: u32) -> Sqe {
    let set = SetFeatures { fid, save: false, nsid: 0, cdw11, cdw12: 0, uuid_index: 0 };
    set.encode(0).without_data()
}

fn get(fid: Fid) -> Sqe {
    let get = GetFeatures { fid, select: Select::CURRENT, nsid: 0, cdw11: 0, uuid_index: 0 };
    get.encode(0).without_data()
}

#[test]
fn a_format_changes_the_blocks_and_erases() {
    let mut rig = Rig::ready(FakeDriveConfig::default());
    rig.fake.write_media(1, 0, &[5; 4096]).unwrap();
    let format = FormatNvm::new(1, 2, SecureErase::USER_DATA);
    assert_eq!(rig.admin(format.encode(0)).status(), Status::SUCCESS);
    let (_, data) = rig.identify(Cns::NAMESPACE, 1);
    let namespace = Namespace::read_from_bytes(&data).unwrap();
    assert_eq!((namespace.block_size(), namespace.nsze.get()), (Some(4096), 4096));
    assert_eq!(rig.fake.read_media(1, 0, 1), Some(vec![0; 4096]));
    let wrong = [
        (FormatNvm::new(1, 3, SecureErase::NONE), Status::INVALID_FORMAT),
        (FormatNvm::new(2, 0, SecureErase::NONE), Status::INVALID_NAMESPACE_OR_FORMAT),
        (FormatNvm::new(1, 0, SecureErase(7)), Status::INVALID_FIELD),
    ];
    for (format, status) in wrong {
        assert_eq!(rig.admin(format.encode(0)).status().code(), status);
    }
    let all = FormatNvm::new(NSID_ALL, 1, SecureErase::CRYPTOGRAPHIC);
    assert_eq!(rig.admin(all.encode(0)).status(), Status::SUCCESS);
    rig.fake.assert_clean();
}

fn sanitize_state(rig: &mut Rig) -> SanitizeLog {
    let page = rig.pages(4096);
    let get = GetLogPage::new(Lid::SANITIZE_STATUS, 512).encode(0).with_prp(page.at(0), 0);
    assert_eq!(rig.admin(get).status(), Status::SUCCESS);
    SanitizeLog::read_from_bytes(&page.get(0, 512)).unwrap()
}

#[test]
fn a_sanitize_goes_on_by_itself_and_keeps_io_out() {
    let mut rig = Rig::ready(FakeDriveConfig::default());
    rig.fake.write_media(1, 0, &[5; 512]).unwrap();
    let sanitize = Sanitize::new(SanitizeAction::BLOCK_ERASE);
    assert_eq!(sanitize_state(&mut rig).state(), SanitizeState::NEVER);
    assert_eq!(rig.admin(sanitize.encode(0)).status(), Status::SUCCESS);
    let status = rig.admin(sanitize.encode(0)).status();
    assert_eq!(status.code(), Status::SANITIZE_IN_PROGRESS);
    let data = rig.pages(4096);
    let status = rig.io(IoOpcode::READ, 0, 1, [data.at(0), 0]);
    assert_eq!(status.code(), Status::SANITIZE_IN_PROGRESS);
    let mut progress = Vec::new();
    while sanitize_state(&mut rig).state() == SanitizeState::IN_PROGRESS {
        progress.push(sanitize_state(&mut rig).progress.get());
    }
    assert_eq!(sanitize_state(&mut rig).state(), SanitizeState::SUCCEEDED);
    assert!(progress.is_sorted() && !progress.is_empty(), "{progress:?}");
    assert_eq!(rig.fake.read_media(1, 0, 1), Some(vec![0; 512]));
    rig.fake.assert_clean();
}

#[test]
fn a_sanitize_that_fails_is_left_by_its_exit() {
    let config =
        FakeDriveConfig { sanitize_fails: true, sanitize_reads: 0, ..FakeDriveConfig::default() };
    let mut rig = Rig::ready(config);
    rig.admin(Sanitize::new(SanitizeAction::OVERWRITE).encode(0));
    assert_eq!(sanitize_state(&mut rig).state(), SanitizeState::FAILED);
    let flush = Sqe::io(IoOpcode::FLUSH, 0, 1).without_data();
    assert_eq!(rig.command(1, flush).status().code(), Status::SANITIZE_FAILED);
    rig.admin(Sanitize::new(SanitizeAction::EXIT_FAILURE_MODE).encode(0));
    assert_eq!(rig.command(1, flush).status(), Status::SUCCESS);
    rig.fake.assert_clean();
}

#[test]
fn features_keep_their_values_until_a_reset() {
    let mut rig = Rig::enabled(FakeDriveConfig::default(), 8);
    let asked = NumberOfQueues::from_counts(100, 3).into_bits();
    let granted = rig.admin(set(Fid::NUMBER_OF_QUEUES, asked)).dw0();
    assert_eq!(NumberOfQueues::from_bits(granted).counts(), (8, 3));
    assert_eq!(rig.admin(get(Fid::VOLATILE_WRITE_CACHE)).dw0(), 1);
    rig.admin(set(Fid::VOLATILE_WRITE_CACHE, 0));
    assert_eq!(rig.admin(get(Fid::VOLATILE_WRITE_CACHE)).dw0(), 0);
    rig.admin(set(Fid::ARBITRATION, 3));
    assert_eq!(rig.admin(get(Fid::ARBITRATION)).dw0(), 3);
    let page = rig.pages(4096);
    page.put(0, &[1, 2, 3, 4, 5, 6, 0, 0]);
    let timestamp = set(Fid::TIMESTAMP, 0).with_prp(page.at(0), 0);
    assert_eq!(rig.admin(timestamp).status(), Status::SUCCESS);
    let timestamp = get(Fid::TIMESTAMP).with_prp(page.at(64), 0);
    assert_eq!(rig.admin(timestamp).status(), Status::SUCCESS);
    assert_eq!(page.get(64, 6), [1, 2, 3, 4, 5, 6]);
    assert_eq!(rig.admin(set(Fid(0x7f), 0)).status().code(), Status::INVALID_FIELD);
    rig.create_pair(1, 8, None);
    let status = rig.admin(set(Fid::NUMBER_OF_QUEUES, asked)).status();
    assert_eq!(status.code(), Status::COMMAND_SEQUENCE_ERROR);
    rig.expect_one_violation();
}

#[test]
fn errors_are_in_their_log_newest_first() {
    let mut rig = Rig::ready(FakeDriveConfig::default());
    let data = rig.pages(4096);
    rig.io(IoOpcode::READ, 1 << 40, 1, [data.at(0), 0]);
    rig.io(IoOpcode::WRITE_ZEROES, 2 << 40, 1, [0, 0]);
    rig.fake.take_findings();
    let get = GetLogPage::new(Lid::ERROR_INFORMATION, 128).encode(0).with_prp(data.at(0), 0);
    assert_eq!(rig.admin(get).status(), Status::SUCCESS);
    let entry = |at| ErrorInformation::read_from_bytes(&data.get(at, 64)).unwrap();
    assert_eq!((entry(0).error_count.get(), entry(0).lba.get()), (2, 2 << 40));
    assert_eq!((entry(64).error_count.get(), entry(64).sqid.get()), (1, 1));
    assert_eq!(entry(64).status().code(), Status::LBA_OUT_OF_RANGE);
    let unknown = GetLogPage::new(Lid(0xc5), 64).encode(0).with_prp(data.at(0), 0);
    assert_eq!(rig.admin(unknown).status().code(), Status::INVALID_LOG_PAGE);
    rig.fake.assert_clean();
}
