use nvmeof_random::SplitMix64;
use nvmeof_wire::Sqe;
use nvmeof_wire::zerocopy::FromBytes;

use super::*;
use crate::admin::effects::SupportedCommands;
use crate::admin::fixture::{
    HOST_ID, KATO_MS, cached_namespace, discovery_controller, io_controller, namespace,
};
use crate::limits::MAX_NAMESPACES;
use crate::subsystem::SubsystemKind;

fn get(controller: &Controller, fid: Fid, select: Select, cdw11: u32) -> Result<u32, Failure> {
    get_of(controller, fid, select, 0, cdw11)
}

fn get_of(
    controller: &Controller,
    fid: Fid,
    select: Select,
    nsid: u32,
    cdw11: u32,
) -> Result<u32, Failure> {
    let sqe = GetFeatures { fid, select, nsid, cdw11, uuid_index: 0 }.encode(1);
    get_feature(controller, &sqe, 0).map(|reply| {
        let has_data = [Fid::TIMESTAMP, Fid::HOST_BEHAVIOR, Fid::HOST_IDENTIFIER].contains(&fid);
        assert_eq!(reply.data.is_empty(), !has_data);
        reply.dw0
    })
}

fn current(controller: &Controller, fid: Fid) -> u32 {
    get(controller, fid, Select::CURRENT, 0).unwrap()
}

fn set(controller: &Controller, fid: Fid, value: u32) -> Result<u32, Failure> {
    set_of(controller, fid, 0, value)
}

fn set_of(controller: &Controller, fid: Fid, nsid: u32, value: u32) -> Result<u32, Failure> {
    let command = SetFeatures { fid, save: false, nsid, cdw11: value, cdw12: 0, uuid_index: 0 };
    let sqe = command.encode(1);
    let data_len = set_feature_data_len(controller, &sqe);
    let result = set_feature(controller, &sqe, &[], 0);
    // The queue requests the length first; both functions must fail for the same reason.
    match data_len {
        Ok(len) => assert_eq!(len, 0),
        Err(failure) => assert_eq!(result, Err(failure)),
    }
    result
}

const ALL: [Fid; 13] = [
    Fid::ARBITRATION,
    Fid::POWER_MANAGEMENT,
    Fid::TEMPERATURE_THRESHOLD,
    Fid::ERROR_RECOVERY,
    Fid::VOLATILE_WRITE_CACHE,
    Fid::NUMBER_OF_QUEUES,
    Fid::WRITE_ATOMICITY,
    Fid::ASYNC_EVENTS,
    Fid::TIMESTAMP,
    Fid::KEEP_ALIVE_TIMER,
    Fid::HOST_BEHAVIOR,
    Fid::COMMAND_SET_PROFILE,
    Fid::HOST_IDENTIFIER,
];

#[test]
fn defaults_are_what_the_specification_has() {
    let controller = io_controller(vec![cached_namespace(1)]);
    let expected = [
        (Fid::ARBITRATION, 7, 7),
        (Fid::POWER_MANAGEMENT, 0, 0),
        (Fid::TEMPERATURE_THRESHOLD, 0x157, 0x157),
        (Fid::ERROR_RECOVERY, 0, 0),
        (Fid::VOLATILE_WRITE_CACHE, 1, 1),
        (Fid::NUMBER_OF_QUEUES, 0x000f_000f, 0x000f_000f),
        (Fid::WRITE_ATOMICITY, 0, 0),
        (Fid::ASYNC_EVENTS, 0, 0),
        (Fid::KEEP_ALIVE_TIMER, KATO_MS, 120_000),
        (Fid::COMMAND_SET_PROFILE, 0, 0),
    ];
    for (fid, now, default) in expected {
        assert_eq!(current(&controller, fid), now, "{fid}");
        for select in [Select::DEFAULT, Select::SAVED] {
            assert_eq!(get(&controller, fid, select, 0), Ok(default), "{fid} {select}");
        }
    }
}

#[test]
fn the_only_command_set_profile_can_be_set() {
    let controller = io_controller(vec![]);
    assert_eq!(set(&controller, Fid::COMMAND_SET_PROFILE, 0), Ok(0));
    assert_eq!(set(&controller, Fid::COMMAND_SET_PROFILE, 0xffff_fe00), Ok(0), "reserved bits");
    assert_eq!(current(&controller, Fid::COMMAND_SET_PROFILE), 0);
}

#[test]
fn host_behavior_is_kept_until_a_reset() {
    let controller = io_controller(vec![]);
    let fid = Fid::HOST_BEHAVIOR;
    let set = |data: &[u8]| {
        let command = SetFeatures { fid, save: false, nsid: 0, cdw11: 0, cdw12: 0, uuid_index: 0 };
        let sqe = command.encode(1);
        assert_eq!(set_feature_data_len(&controller, &sqe), Ok(512));
        set_feature(&controller, &sqe, data, 0)
    };
    let get = |select| {
        let command = GetFeatures { fid, select, nsid: 0, cdw11: 0, uuid_index: 0 };
        get_feature(&controller, &command.encode(1), 0).unwrap().data
    };
    assert_eq!(get(Select::CURRENT), [0; 512]);
    let mut data = [0; 512];
    data[..4].copy_from_slice(&[1, 0, 1, 0xee]);
    assert_eq!(set(&data), Ok(0));
    // Reserved bytes are not kept.
    data[3] = 0;
    assert_eq!(get(Select::CURRENT), data);
    assert_eq!(get(Select::DEFAULT), [0; 512]);
    for at in 0..3 {
        let mut reserved = [0; 512];
        reserved[at] = 2;
        assert_eq!(set(&reserved), Err(Failure::InvalidField), "byte {at}");
    }
    assert_eq!(set(&data[..511]), Err(Failure::DataTransfer));
    assert_eq!(get(Select::CURRENT), data, "a failed command changes nothing");
    let cc = nvmeof_wire::properties::Cc::new();
    controller.set_cc(cc).unwrap();
    assert_eq!(get(Select::CURRENT), [0; 512]);
}

#[test]
fn capabilities_say_what_set_features_does() {
    let controller = io_controller(vec![cached_namespace(1)]);
    for fid in ALL {
        let expected = match fid {
            Fid::HOST_IDENTIFIER => 0,
            Fid::ERROR_RECOVERY => 0b110,
            _ => 0b100,
        };
        let command = GetFeatures {
            fid,
            select: Select::SUPPORTED_CAPABILITIES,
            nsid: 0,
            cdw11: 0,
            uuid_index: 0,
        };
        let reply = get_feature(&controller, &command.encode(1), 0);
        assert_eq!(reply, Ok(FeatureReply::from(expected)), "{fid}");
        let save = SetFeatures { fid, save: true, nsid: 0, cdw11: 0, cdw12: 0, uuid_index: 0 };
        let saved = set_feature(&controller, &save.encode(1), &[], 0);
        assert_eq!(saved, Err(Failure::FeatureNotSaveable), "{fid}");
    }
}

#[test]
fn unknown_features_and_selectors_are_invalid_fields() {
    for (controller, kind) in [
        (io_controller(vec![cached_namespace(1)]), SubsystemKind::Nvm),
        (discovery_controller(), SubsystemKind::Discovery),
    ] {
        for fid in (0..=0xff).map(Fid) {
            let known = SupportedCommands::new(kind, true).feature(fid).is_some();
            let command =
                GetFeatures { fid, select: Select::CURRENT, nsid: 0, cdw11: 1, uuid_index: 0 };
            let get = get_feature(&controller, &command.encode(1), 0);
            assert_eq!(get.is_ok(), known, "{fid}");
            if !known {
                assert_eq!(get, Err(Failure::InvalidField), "{fid}");
                assert_eq!(set(&controller, fid, 0), Err(Failure::InvalidField), "{fid}");
            }
        }
        for select in 4..8 {
            let get = get(&controller, Fid::KEEP_ALIVE_TIMER, Select(select), 0);
            assert_eq!(get, Err(Failure::InvalidField), "SEL {select}");
        }
    }
}

#[test]
fn a_discovery_controller_has_events_and_keep_alive() {
    let controller = discovery_controller();
    assert_eq!(set(&controller, Fid::ASYNC_EVENTS, 1 << 31), Ok(0));
    assert_eq!(current(&controller, Fid::ASYNC_EVENTS), 1 << 31);
    assert_eq!(set(&controller, Fid::ASYNC_EVENTS, 1 << 8), Err(Failure::InvalidField));
    assert_eq!(set(&controller, Fid::KEEP_ALIVE_TIMER, 0), Ok(0));
    assert_eq!(current(&controller, Fid::KEEP_ALIVE_TIMER), 0);
}

#[test]
fn values_are_kept_without_their_reserved_bits() {
    let controller = io_controller(vec![cached_namespace(1)]);
    let kept = [
        (Fid::ARBITRATION, u32::MAX, 0xffff_ff07),
        (Fid::POWER_MANAGEMENT, 0xffff_ff60, 0x60),
        (Fid::ERROR_RECOVERY, 0xfffe_1234, 0x1234),
        (Fid::WRITE_ATOMICITY, u32::MAX, 1),
        (Fid::ASYNC_EVENTS, 0x11f, 0x11f),
    ];
    for (fid, value, expected) in kept {
        assert_eq!(set(&controller, fid, value), Ok(0), "{fid}");
        assert_eq!(current(&controller, fid), expected, "{fid}");
        let default = get(&controller, fid, Select::DEFAULT, 0).unwrap();
        assert_ne!(default, expected, "{fid}: the default stays");
    }
}

#[test]
fn values_that_cannot_be_had_change_nothing() {
    let controller = io_controller(vec![cached_namespace(1)]);
    let refused = [
        (Fid::POWER_MANAGEMENT, 1, Failure::InvalidField),
        (Fid::TEMPERATURE_THRESHOLD, 0x0001_0100, Failure::InvalidField),
        (Fid::TEMPERATURE_THRESHOLD, 0x0020_0100, Failure::InvalidField),
        (Fid::ERROR_RECOVERY, 1 << 16, Failure::InvalidField),
        (Fid::NUMBER_OF_QUEUES, 0x0000_ffff, Failure::InvalidField),
        (Fid::NUMBER_OF_QUEUES, 0xffff_0000, Failure::InvalidField),
        (Fid::ASYNC_EVENTS, 1 << 6, Failure::InvalidField),
        (Fid::ASYNC_EVENTS, 1 << 9, Failure::InvalidField),
        (Fid::ASYNC_EVENTS, 1 << 31, Failure::InvalidField),
        (Fid::KEEP_ALIVE_TIMER, 0, Failure::KeepAliveInvalid),
        (Fid::COMMAND_SET_PROFILE, 1, Failure::CommandSetCombination),
        (Fid::COMMAND_SET_PROFILE, 0x1ff, Failure::CommandSetCombination),
    ];
    for (fid, value, failure) in refused {
        let before = current(&controller, fid);
        assert_eq!(set(&controller, fid, value), Err(failure), "{fid} {value:#x}");
        assert_eq!(current(&controller, fid), before, "{fid} {value:#x}");
    }
}

#[test]
fn volatile_write_cache_switches_to_writing_through() {
    let controller = io_controller(vec![cached_namespace(1)]);
    assert!(!controller.write_through());
    assert_eq!(set(&controller, Fid::VOLATILE_WRITE_CACHE, 0), Ok(0));
    assert!(controller.write_through());
    assert_eq!(current(&controller, Fid::VOLATILE_WRITE_CACHE), 0);
    assert_eq!(get(&controller, Fid::VOLATILE_WRITE_CACHE, Select::DEFAULT, 0), Ok(1));
    assert_eq!(set(&controller, Fid::VOLATILE_WRITE_CACHE, 1), Ok(0));
    assert!(!controller.write_through());
}

#[test]
fn without_a_cache_there_is_no_such_feature() {
    let controller = io_controller(vec![namespace(1)]);
    for select in 0..4 {
        let get = get(&controller, Fid::VOLATILE_WRITE_CACHE, Select(select), 0);
        assert_eq!(get, Err(Failure::InvalidField));
    }
    assert_eq!(set(&controller, Fid::VOLATILE_WRITE_CACHE, 1), Err(Failure::InvalidField));
    assert!(controller.write_through(), "and it stays off");
}

#[test]
fn queues_are_granted_up_to_the_limit_until_one_is_there() {
    let controller = io_controller(vec![]);
    let ask = |value| set(&controller, Fid::NUMBER_OF_QUEUES, value);
    assert_eq!(ask(0x0003_0003), Ok(0x0003_0003));
    assert_eq!(current(&controller, Fid::NUMBER_OF_QUEUES), 0x0003_0003);
    assert_eq!(ask(0xfffe_fffe), Ok(0x000f_000f), "the limit is 16");
    assert_eq!(ask(0x0007_0001), Ok(0x0001_0001), "queues come in pairs");
    let (counters, _guard) = controller.add_io_queue(1, controller.incarnation()).unwrap();
    assert_eq!(ask(0x0003_0003), Err(Failure::CommandSequence));
    assert_eq!(ask(0xffff_ffff), Err(Failure::InvalidField));
    assert_eq!(current(&controller, Fid::NUMBER_OF_QUEUES), 0x0001_0001);
    controller.remove_io_queue(1, &counters);
    assert_eq!(ask(0x0003_0003), Ok(0x0003_0003));
}

#[test]
fn keep_alive_is_rounded_up() {
    let controller = io_controller(vec![]);
    for (asked, granted) in [(1, 1000), (1000, 1000), (1001, 2000), (u32::MAX, 4_294_967_000)] {
        assert_eq!(set(&controller, Fid::KEEP_ALIVE_TIMER, asked), Ok(0));
        assert_eq!(current(&controller, Fid::KEEP_ALIVE_TIMER), granted);
        assert_eq!(controller.kato_ms(), granted);
    }
}

#[test]
fn thresholds_are_over_and_under_of_the_composite_temperature() {
    let controller = io_controller(vec![]);
    let fid = Fid::TEMPERATURE_THRESHOLD;
    let get = |select| get(&controller, fid, Select::CURRENT, select);
    const UNDER_SELECT: u32 = 1 << 20;
    assert_eq!(get(0), Ok(0x157));
    assert_eq!(get(UNDER_SELECT), Ok(0));
    assert_eq!(set(&controller, fid, 330), Ok(0));
    assert_eq!(set(&controller, fid, UNDER_SELECT | 280), Ok(0));
    assert_eq!((get(0), get(UNDER_SELECT)), (Ok(330), Ok(280)));
    assert_eq!(set(&controller, fid, 0xf << 16 | 340), Ok(0), "every sensor");
    assert_eq!((get(0), get(UNDER_SELECT)), (Ok(340), Ok(280)));
    // No single sensor and no reserved type; all sensors are for Set Features only.
    for select in [1 << 16, 8 << 16, 9 << 16, 0xf << 16, 2 << 20, 3 << 20] {
        assert_eq!(get(select), Err(Failure::InvalidField), "{select:#x}");
    }
}

#[test]
fn a_passed_threshold_is_told_of_once() {
    let controller = io_controller(vec![]);
    let fid = Fid::TEMPERATURE_THRESHOLD;
    assert_eq!(set(&controller, fid, u32::from(TEMPERATURE)), Ok(0));
    assert_eq!(controller.take_event(), None, "not asked for");
    assert_eq!(set(&controller, Fid::ASYNC_EVENTS, 1 << 1), Ok(0));
    assert_eq!(controller.take_event(), Some(0x0002_0101), "SMART, temperature, log page 02h");
    assert_eq!(set(&controller, fid, u32::from(TEMPERATURE) - 1), Ok(0));
    assert_eq!(controller.take_event(), None, "until the log page is read");
    controller.clear_event(Event::Temperature);
    assert_eq!(set(&controller, fid, u32::from(TEMPERATURE) + 1), Ok(0));
    assert_eq!(controller.take_event(), None, "not passed");
    assert_eq!(set(&controller, fid, 1 << 20 | u32::from(TEMPERATURE)), Ok(0));
    assert_eq!(controller.take_event(), Some(0x0002_0101), "from above");
}

#[test]
fn error_recovery_belongs_to_namespaces() {
    let controller = io_controller(vec![namespace(1), namespace(3)]);
    let fid = Fid::ERROR_RECOVERY;
    let of = |nsid| get_of(&controller, fid, Select::CURRENT, nsid, 0);
    assert_eq!(set_of(&controller, fid, 1, 50), Ok(0));
    assert_eq!((of(1), of(3), of(0)), (Ok(50), Ok(0), Ok(0)));
    assert_eq!(set_of(&controller, fid, NSID_ALL, 60), Ok(0));
    assert_eq!((of(1), of(3), of(0), of(NSID_ALL)), (Ok(60), Ok(60), Ok(60), Ok(60)));
    for (nsid, failure) in [
        (2, Failure::InvalidField),
        (MAX_NAMESPACES + 1, Failure::InvalidNamespace),
        (NSID_ALL - 1, Failure::InvalidNamespace),
    ] {
        assert_eq!(of(nsid), Err(failure));
        assert_eq!(set_of(&controller, fid, nsid, 1), Err(failure));
    }
}

#[test]
fn other_features_have_no_namespace() {
    let controller = io_controller(vec![namespace(1)]);
    for (nsid, failure) in [
        (1, Failure::FeatureNotNamespaceSpecific),
        (2, Failure::InvalidField),
        (MAX_NAMESPACES + 1, Failure::InvalidNamespace),
    ] {
        assert_eq!(set_of(&controller, Fid::ARBITRATION, nsid, 0), Err(failure), "NSID {nsid}");
    }
    assert_eq!(set_of(&controller, Fid::ARBITRATION, NSID_ALL, 3), Ok(0));
    // Tools send the NSID of the device that they were given.
    assert_eq!(get_of(&controller, Fid::ARBITRATION, Select::CURRENT, 1, 0), Ok(3));
}

#[test]
fn host_identifier_is_what_connect_brought() {
    let controller = io_controller(vec![]);
    let get = |select, cdw11| {
        let fid = Fid::HOST_IDENTIFIER;
        get_feature(
            &controller,
            &GetFeatures { fid, select, nsid: 0, cdw11, uuid_index: 0 }.encode(1),
            0,
        )
    };
    let data = |id: [u8; 16]| Ok(FeatureReply { dw0: 0, data: id.to_vec() });
    assert_eq!(get(Select::CURRENT, 1), data(HOST_ID));
    assert_eq!(get(Select::DEFAULT, 1), data([0; 16]));
    assert_eq!(get(Select::CURRENT, 0), Err(Failure::InvalidField), "no 64-bit one");
    let capabilities = get(Select::SUPPORTED_CAPABILITIES, 1);
    assert_eq!(capabilities, Ok(FeatureReply::from(0)), "neither saveable nor changeable");
    assert_eq!(set(&controller, Fid::HOST_IDENTIFIER, 1), Err(Failure::CommandSequence));
}

#[test]
fn any_command_is_answered_or_refused() {
    let controllers =
        [io_controller(vec![namespace(1), cached_namespace(9)]), discovery_controller()];
    let mut random = SplitMix64::new(0xfea7);
    for _ in 0..20_000 {
        let mut bytes = [0; 64];
        random.fill(&mut bytes);
        let mut sqe = *Sqe::ref_from_bytes(&bytes).unwrap();
        if random.coin() {
            sqe.cdw10.set(sqe.cdw10.get() & 0x0000_070f);
            sqe.nsid.set(sqe.nsid.get() & 0xf);
        }
        for controller in &controllers {
            if let Ok(reply) = get_feature(controller, &sqe, 0) {
                assert!(matches!(reply.data.len(), 0 | 8 | 16 | 512));
            }
            let len = set_feature_data_len(controller, &sqe);
            let set = set_feature(controller, &sqe, &[], 0);
            assert!(len.is_ok() || set.is_err());
            let features = controller.admin().features.clone();
            assert!((1..=controller.limits.io_queues).contains(&features.io_queues));
        }
    }
}
