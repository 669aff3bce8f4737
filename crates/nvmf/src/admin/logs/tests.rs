use nvmeof_random::SplitMix64;
use nvmeof_wire::Sqe;
use nvmeof_wire::identify::Csi;
use nvmeof_wire::log::GetLogPage;
use nvmeof_wire::sqe::NSID_ALL;
use nvmeof_wire::zerocopy::FromBytes;
use nvmeof_wire::{Status, ascii};

use super::*;
use crate::admin::features::TEMPERATURE;
use crate::admin::fixture::{cached_namespace, discovery_controller, io_controller, namespace};
use crate::controller::ErrorRecord;
use crate::limits::{Limits, MAX_NAMESPACES};

const HOUR: Nanos = 3_600_000_000_000;

fn ask(controller: &Controller, command: GetLogPage) -> Result<Vec<u8>, Failure> {
    let target = Target::new(Limits::default());
    get_log_page(&target, controller, &command.encode(1), 5 * HOUR + 1)
}

/// Runs a command with a used buffer.
pub(crate) fn get_log_page(
    target: &Target,
    controller: &Controller,
    sqe: &Sqe,
    now: Nanos,
) -> Result<Vec<u8>, Failure> {
    let length = check_log_page(target, controller, sqe, now)?;
    let mut out = vec![0xee; usize::try_from(length).unwrap()];
    read_log_page(target, controller, sqe, now, &mut out)?;
    Ok(out)
}

fn page(controller: &Controller, lid: Lid, length: u64) -> Vec<u8> {
    ask(controller, GetLogPage::new(lid, length)).unwrap()
}

fn u32_at(data: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(data[at..at + 4].try_into().unwrap())
}

fn u128_at(data: &[u8], at: usize) -> u128 {
    u128::from_le_bytes(data[at..at + 16].try_into().unwrap())
}

/// The pages of an I/O controller and their sizes in bytes.
const PAGES: [(Lid, u64); 8] = [
    (Lid::SUPPORTED_LOG_PAGES, 1024),
    (Lid::ERROR_INFORMATION, 64 * 64),
    (Lid::SMART, 512),
    (Lid::FIRMWARE_SLOT, 512),
    (Lid::CHANGED_NAMESPACES, 4096),
    (Lid::COMMAND_EFFECTS, 4096),
    (Lid::FEATURE_EFFECTS, 1024),
    (Lid::MI_EFFECTS, 4096),
];

#[test]
fn any_part_of_a_page_is_that_part() {
    let controller = io_controller(vec![namespace(1)]);
    controller.namespaces_changed(&[1, 2, 3]);
    for (lid, size) in PAGES {
        let whole = page(&controller, lid, size);
        assert_eq!(whole.len() as u64, size);
        for (offset, length) in
            [(0, 4), (4, 4), (8, 256), (size - 4, 4), (size - 8, 64), (0, size + 4096), (size, 16)]
        {
            let command = GetLogPage { offset, ..GetLogPage::new(lid, length) };
            let part = ask(&controller, command).unwrap();
            let zeroes = std::iter::repeat(0);
            let (offset, length) = (offset.try_into().unwrap(), length.try_into().unwrap());
            let expected: Vec<u8> =
                whole.iter().copied().chain(zeroes).skip(offset).take(length).collect();
            assert_eq!(part, expected, "{lid} {offset}+{length}");
        }
        for offset in [size + 4, 1 << 32, !3] {
            let command = GetLogPage { offset, ..GetLogPage::new(lid, 4) };
            assert_eq!(ask(&controller, command), Err(Failure::InvalidField), "{lid} {offset:#x}");
        }
        for offset in [1, 2, 3, 0x101] {
            let command = GetLogPage { offset, ..GetLogPage::new(lid, 4) };
            assert_eq!(ask(&controller, command), Err(Failure::InvalidField), "not of a dword");
        }
        let command = GetLogPage { index_offset: true, ..GetLogPage::new(lid, 4) };
        assert_eq!(ask(&controller, command), Err(Failure::InvalidField), "{lid}: no index");
    }
}

#[test]
fn no_more_is_sent_than_mdts_allows() {
    let controller = io_controller(vec![]);
    let most = u64::from(controller.limits.max_transfer());
    assert_eq!(page(&controller, Lid::SMART, most).len() as u64, most);
    for length in [most + 4, 1 << 34] {
        let command = GetLogPage::new(Lid::SMART, length);
        assert_eq!(ask(&controller, command), Err(Failure::InvalidField), "{length}");
    }
}

#[test]
fn supported_pages_are_the_ones_served() {
    for controller in [io_controller(vec![]), discovery_controller()] {
        let supported = page(&controller, Lid::SUPPORTED_LOG_PAGES, 1024);
        for lid in (0..=0xff).map(Lid) {
            let answer = ask(&controller, GetLogPage::new(lid, 64));
            let claim = u32_at(&supported, usize::from(lid.0) * 4);
            match answer {
                Ok(_) => assert_eq!(claim, 1, "{lid}"),
                Err(failure) => {
                    assert_eq!((claim, failure), (0, Failure::InvalidLogPage), "{lid}");
                }
            }
        }
    }
    let served = |controller: &Controller| {
        let page = page(controller, Lid::SUPPORTED_LOG_PAGES, 1024);
        (0..=0xff_u8).filter(|lid| page[usize::from(*lid) * 4] == 1).collect::<Vec<_>>()
    };
    assert_eq!(served(&io_controller(vec![])), [0, 1, 2, 3, 4, 5, 0x12, 0x13]);
    assert_eq!(served(&discovery_controller()), [0, 1, 5, 0x12, 0x13, 0x70]);
}

#[test]
fn effects_say_what_commands_change() {
    let controller = io_controller(vec![]);
    let page = page(&controller, Lid::COMMAND_EFFECTS, 4096);
    let admin = |opcode: usize| u32_at(&page, opcode * 4);
    let io = |opcode: usize| u32_at(&page, 1024 + opcode * 4);
    const CONTROLLER: u32 = 1 << 21;
    const NAMESPACE: u32 = 1 << 20;
    for opcode in 0..256 {
        let expected = match opcode {
            0x02 | 0x06 | 0x08 | 0x09 | 0x0a | 0x0c | 0x18 => CONTROLLER | 1,
            _ => 0,
        };
        assert_eq!(admin(opcode), expected, "admin {opcode:#x}");
        let expected = match opcode {
            0x00 | 0x02 | 0x05 | 0x0c => NAMESPACE | 0b01,
            0x01 | 0x08 | 0x09 => NAMESPACE | 0b11,
            _ => 0,
        };
        assert_eq!(io(opcode), expected, "I/O {opcode:#x}");
    }
    assert!(page[2048..].iter().all(|b| *b == 0));
    let other = GetLogPage { csi: Csi::ZONED, ..GetLogPage::new(Lid::COMMAND_EFFECTS, 4096) };
    let other = ask(&controller, other).unwrap();
    assert_eq!(other[..1024], page[..1024], "the same admin commands");
    assert!(other[1024..].iter().all(|b| *b == 0), "no I/O commands");
}

#[test]
fn feature_effects_name_the_features() {
    let fids = |controller: &Controller| {
        let page = page(controller, Lid::FEATURE_EFFECTS, 1024);
        (0..=0xff_u8).filter(|fid| page[usize::from(*fid) * 4] == 1).collect::<Vec<_>>()
    };
    let cached = io_controller(vec![cached_namespace(1)]);
    assert_eq!(fids(&cached), [1, 2, 4, 5, 6, 7, 0xa, 0xb, 0xe, 0xf, 0x16, 0x19, 0x81]);
    assert_eq!(fids(&io_controller(vec![])), [1, 2, 4, 5, 7, 0xa, 0xb, 0xe, 0xf, 0x16, 0x19, 0x81]);
    assert_eq!(fids(&discovery_controller()), [0xb, 0xf]);
    let page = page(&cached, Lid::FEATURE_EFFECTS, 1024);
    assert_eq!(u32_at(&page, 5 * 4), 1 << 20 | 1, "Error Recovery is of a namespace");
    assert_eq!(u32_at(&page, 7 * 4), 1 << 21 | 1, "Number of Queues is of the controller");
}

#[test]
fn smart_counts_what_was_moved() {
    let controller = io_controller(vec![namespace(1)]);
    let (first, _guard) = controller.add_io_queue(1, controller.incarnation()).unwrap();
    let (second, _guard) = controller.add_io_queue(2, controller.incarnation()).unwrap();
    for _ in 0..1001 {
        first.count_read(512);
    }
    second.count_write(512_000);
    second.count_media_error();
    controller.remove_io_queue(2, &second);
    let smart = page(&controller, Lid::SMART, 512);
    assert_eq!(smart[0], 0, "no warning");
    assert_eq!(u16::from_le_bytes([smart[1], smart[2]]), 298, "kelvin");
    assert_eq!(smart[3..6], [100, 10, 0], "spare, its threshold, used");
    assert_eq!(u128_at(&smart, 32), 2, "data units read, rounded up");
    assert_eq!(u128_at(&smart, 48), 1, "data units written");
    assert_eq!(u128_at(&smart, 64), 1001, "host reads");
    assert_eq!(u128_at(&smart, 80), 1, "host writes");
    assert_eq!(u128_at(&smart, 128), 5, "power on hours");
    assert_eq!(u128_at(&smart, 160), 1, "media errors");
    assert_eq!(u128_at(&smart, 176), 0, "error log entries");
}

#[test]
fn smart_is_of_the_controller() {
    let controller = io_controller(vec![namespace(1)]);
    let of = |nsid| ask(&controller, GetLogPage { nsid, ..GetLogPage::new(Lid::SMART, 512) });
    assert!(of(0).is_ok());
    assert!(of(NSID_ALL).is_ok());
    assert_eq!(of(1), Err(Failure::InvalidField), "LPA bit 0 is clear");
    assert_eq!(of(2), Err(Failure::InvalidField));
    assert_eq!(of(MAX_NAMESPACES + 1), Err(Failure::InvalidNamespace));
}

#[test]
fn a_passed_threshold_warns_until_it_is_moved() {
    let controller = io_controller(vec![]);
    controller.admin().features.async_event_config = 1 << 1;
    controller.admin().features.temperature_over = TEMPERATURE;
    controller.post_event(Event::Temperature);
    assert!(controller.take_event().is_some());
    let read = |retain_event| {
        ask(&controller, GetLogPage { retain_event, ..GetLogPage::new(Lid::SMART, 512) }).unwrap()
    };
    assert_eq!(read(true)[0], 0b10);
    controller.post_event(Event::Temperature);
    assert_eq!(controller.take_event(), None, "retained");
    assert_eq!(read(false)[0], 0b10);
    controller.post_event(Event::Temperature);
    assert!(controller.take_event().is_some(), "read");
}

#[test]
fn errors_are_the_newest_first() {
    let controller = io_controller(vec![]);
    let record = |cid| ErrorRecord {
        count: 0,
        sqid: 3,
        cid,
        status: Status::LBA_OUT_OF_RANGE.with_dnr(),
        lba: 0x1122_3344_5566_7788,
        nsid: 9,
        opcode: 2,
    };
    for cid in 0..70 {
        controller.admin().errors.push(record(cid));
    }
    let page = page(&controller, Lid::ERROR_INFORMATION, 4096);
    let mut newest = [0; 64];
    newest[0] = 70;
    newest[8] = 3;
    newest[10] = 69;
    newest[12..14].copy_from_slice(&(0x4080_u16 << 1).to_le_bytes());
    newest[14..16].copy_from_slice(&[0xff, 0xff]);
    newest[16..24].copy_from_slice(&0x1122_3344_5566_7788_u64.to_le_bytes());
    newest[24] = 9;
    newest[29] = 3;
    assert_eq!(page[..64], newest);
    assert_eq!(u32_at(&page, 63 * 64), 7, "64 of 70 are kept");
    assert_eq!(u128_at(health::smart(&controller, 0).as_bytes(), 176), 70);
}

#[test]
fn firmware_slot_one_is_active() {
    let controller = io_controller(vec![]);
    let page = page(&controller, Lid::FIRMWARE_SLOT, 512);
    assert_eq!(page[0], 1, "AFI");
    assert_eq!(ascii::text(&page[8..16]), Some(env!("CARGO_PKG_VERSION")));
    assert!(page[16..].iter().all(|b| *b == 0));
}

#[test]
fn changed_namespaces_are_told_until_read() {
    let controller = io_controller(vec![]);
    controller.admin().features.async_event_config = 1 << 8;
    controller.namespaces_changed(&[7, 2]);
    assert_eq!(controller.take_event(), Some(0x0004_0002));
    let read = |retain_event, offset| {
        let command =
            GetLogPage { retain_event, offset, ..GetLogPage::new(Lid::CHANGED_NAMESPACES, 12) };
        ask(&controller, command)
    };
    let list = |nsids: [u32; 3]| Ok(nsids.map(u32::to_le_bytes).concat());
    assert_eq!(read(true, 0), list([2, 7, 0]));
    assert_eq!(read(false, 5000), Err(Failure::InvalidField), "what is refused clears nothing");
    controller.namespaces_changed(&[3]);
    assert_eq!(controller.take_event(), None, "masked until read");
    assert_eq!(read(false, 0), list([2, 3, 7]));
    assert_eq!(read(false, 0), list([0, 0, 0]));
    controller.namespaces_changed(&[9]);
    assert_eq!(controller.take_event(), Some(0x0004_0002));
}

#[test]
fn too_many_changes_are_one_entry() {
    let controller = io_controller(vec![]);
    controller.namespaces_changed(&(1..=1025).collect::<Vec<_>>());
    let page = page(&controller, Lid::CHANGED_NAMESPACES, 4096);
    assert_eq!(u32_at(&page, 0), NSID_ALL);
    assert!(page[4..].iter().all(|b| *b == 0));
}

#[test]
fn any_command_is_answered_in_full_or_refused() {
    let target = Target::new(Limits::default());
    let controllers =
        [io_controller(vec![namespace(1), cached_namespace(9)]), discovery_controller()];
    let mut random = SplitMix64::new(0x106);
    let mut answered = 0;
    for _ in 0..20_000 {
        let mut bytes = [0; 64];
        random.fill(&mut bytes);
        let mut sqe = *Sqe::ref_from_bytes(&bytes).unwrap();
        if random.coin() {
            sqe.cdw10.set(sqe.cdw10.get() & 0xff_ff77);
            sqe.cdw11.set(0);
            sqe.cdw12.set(sqe.cdw12.get() & 0x7ff);
            sqe.cdw13.set(0);
            sqe.cdw14.set(sqe.cdw14.get() & 0x7f);
            sqe.nsid.set(sqe.nsid.get() & 1);
        }
        let wanted = GetLogPage::parse(&sqe).length;
        for controller in &controllers {
            if let Ok(data) = get_log_page(&target, controller, &sqe, random.next_u64()) {
                assert_eq!(data.len() as u64, wanted);
                answered += 1;
            }
        }
    }
    assert!(answered > 100, "{answered}");
}
