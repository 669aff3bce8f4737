//! Opening of controllers, refusals, and their reasons.

use nvmeof_core::block::BlockError;
use nvmeof_core::nvme_driver::ControllerOptions;
use nvmeof_fake_drive::{
    FakeDrive, FakeDriveConfig, Fault, NamespaceConfig, Readiness, Tamper, When,
};
use nvmeof_wire::identify::{LbaFormat, oacs};
use nvmeof_wire::opcode::AdminOpcode;
use nvmeof_wire::properties::{CAP_CRMS_WITH_MEDIA, CAP_CSS_ADMIN_ONLY, Cap, Version};
use nvmeof_wire::sqe::Sqe;
use nvmeof_wire::{Status, U16, U32, U64};

use crate::rig::{Rig, open, options, refused};

#[test]
fn a_drive_says_what_it_is() {
    let rig = Rig::new(FakeDriveConfig::default());
    let identity = rig.controller.identity();
    assert_eq!(identity.serial, "FAKE0001");
    assert_eq!(identity.model, "nvmeof-tgt fake controller");
    assert_eq!(rig.controller.address(), "0000:01:00.0");
    assert_eq!(rig.controller.namespaces().unwrap(), [1]);
    assert_eq!(rig.fake.io_queues(), 2);
    let namespace = rig.controller.namespace(1).unwrap();
    assert_eq!((namespace.blocks, namespace.block_size), (32 << 10, 512));
    let missing = rig.controller.namespace(2).unwrap_err().to_string();
    assert!(missing.contains("0000:01:00.0: namespace 2: there is no active"), "{missing}");
    let beyond = rig.controller.namespace(77).unwrap_err().to_string();
    assert!(beyond.contains("1 to 16"), "{beyond}");
    rig.end();
}

#[test]
fn a_controller_that_somebody_left_enabled_is_reset_first() {
    let fake = FakeDrive::new(FakeDriveConfig::default());
    // Left enabled, as by a driver that crashed.
    let first = open(&fake, options()).unwrap();
    std::mem::forget(first);
    assert!(fake.is_running());
    let second = open(&fake, options()).unwrap();
    assert_eq!(fake.io_queues(), 2);
    drop(second);
    fake.assert_clean();
}

#[test]
fn capabilities_that_make_no_sense_are_refused() {
    let cap = FakeDriveConfig::default().cap;
    let with = |cap: Cap| refused(FakeDriveConfig { cap, ..FakeDriveConfig::default() });
    for (cap, reason) in [
        (cap.with_mqes(0), "MQES"),
        (cap.with_mpsmin(1), "MPSMIN"),
        (cap.with_css(CAP_CSS_ADMIN_ONLY), "no NVM command set"),
        (cap.with_css(0), "no NVM command set"),
    ] {
        let error = with(cap);
        assert!(error.contains(reason) && error.contains("0000:01:00.0"), "{error}");
    }
    let ones = with(Cap::from_bits(u64::MAX));
    assert!(ones.contains("all ones"), "{ones}");
    for bits in [0, 0x00ff_0000] {
        let version = Version::from_bits(bits);
        let error = refused(FakeDriveConfig { version, ..FakeDriveConfig::default() });
        assert!(error.contains("no NVMe controller"), "{error}");
    }
}

#[test]
fn a_controller_that_does_not_get_ready_is_given_up_after_cap_to() {
    let error = refused(FakeDriveConfig { enable: Readiness::Never, ..FakeDriveConfig::default() });
    assert!(error.contains("did not become ready within 1000 ms (CAP.TO, CRTO)"), "{error}");
    let cap = FakeDriveConfig::default().cap.with_to(20);
    let error =
        refused(FakeDriveConfig { enable: Readiness::Never, cap, ..FakeDriveConfig::default() });
    assert!(error.contains("within 10000 ms"), "{error}");
    // A controller that needs 900 reads of CSTS, but less time, becomes ready.
    let slow = FakeDriveConfig { enable: Readiness::AfterReads(900), ..FakeDriveConfig::default() };
    Rig::new(slow).end();
}

/// Reports a CRTO above the driver's limit.
#[derive(Debug)]
struct Leisurely;

impl Tamper for Leisurely {
    fn register(&mut self, offset: u32, value: u64) -> u64 {
        if offset == nvmeof_wire::properties::offset::CRTO { 0xffff } else { value }
    }
}

#[test]
fn one_that_asks_for_hours_is_given_ten_minutes() {
    let cap = FakeDriveConfig::default().cap.with_crms(CAP_CRMS_WITH_MEDIA);
    let fake = FakeDrive::new(FakeDriveConfig {
        enable: Readiness::Never,
        cap,
        ..FakeDriveConfig::default()
    });
    fake.set_tamper(Some(Box::new(Leisurely)));
    let error = open(&fake, options()).unwrap_err().to_string();
    assert!(error.contains("within 600000 ms"), "{error}");
}

#[test]
fn one_that_cannot_be_disabled_has_its_function_reset() {
    let fake = FakeDrive::new(FakeDriveConfig::default());
    std::mem::forget(open(&fake, options()).unwrap());
    fake.reconfigure(|config| config.disable = Readiness::Never);
    let again = open(&fake, options()).unwrap();
    fake.reconfigure(|config| config.disable = Readiness::AfterReads(0));
    drop(again);
    fake.assert_clean();

    std::mem::forget(open(&fake, options()).unwrap());
    fake.reconfigure(|config| {
        config.disable = Readiness::Never;
        config.can_reset = false;
    });
    let error = open(&fake, options()).unwrap_err().to_string();
    assert!(error.contains("a reset of the function"), "{error}");
}

#[test]
fn identify_of_zeroes_or_ones_is_refused() {
    for (byte, reason) in [(0x00, "zeroes"), (0xff, "ones")] {
        let fake = FakeDrive::new(FakeDriveConfig::default());
        fake.inject(When::admin(AdminOpcode::IDENTIFY), Fault::Data(vec![byte]));
        let error = open(&fake, options()).unwrap_err().to_string();
        assert!(error.contains("Identify Controller data is invalid") && error.contains(reason));
        fake.assert_clean();
        assert_eq!((fake.mappings(), fake.is_running()), (vec![], false));

        let rig = Rig::new(FakeDriveConfig::default());
        rig.fake.inject(When::admin(AdminOpcode::IDENTIFY), Fault::Data(vec![byte]));
        let error = rig.controller.namespace(1).unwrap_err().to_string();
        assert!(error.contains("namespace 1"), "{error}");
        rig.end();
    }
}

#[test]
fn controllers_of_another_kind_are_refused() {
    let with = |change: fn(&mut nvmeof_wire::identify::Controller)| {
        let mut config = FakeDriveConfig::default();
        change(&mut config.identify);
        refused(config)
    };
    let error = with(|identify| identify.cntrltype = 2);
    assert!(error.contains("no I/O controller but one of type discovery"), "{error}");
    let error = with(|identify| identify.nn = U32::new(0));
    assert!(error.contains("NN is 0"), "{error}");
    let error = with(|identify| identify.sqes = 0x77);
    assert!(error.contains("SQES"), "{error}");
}

#[test]
fn formats_that_are_not_served_are_refused() {
    let with = |lba: LbaFormat, dps: u8| {
        let mut namespace = NamespaceConfig::new(1, 1000, 9);
        namespace.identify.lbaf[0] = lba;
        namespace.identify.dps = dps;
        let rig =
            Rig::new(FakeDriveConfig { namespaces: vec![namespace], ..FakeDriveConfig::default() });
        let error = rig.controller.namespace(1).unwrap_err().to_string();
        rig.end();
        error
    };
    let metadata = with(LbaFormat { ms: U16::new(8), lbads: 12, rp: 0 }, 0);
    assert!(metadata.contains("8 bytes of metadata"), "{metadata}");
    let large = with(LbaFormat::new(16), 0);
    assert!(large.contains("65536 bytes") && large.contains("smaller blocks"), "{large}");
    let protected = with(LbaFormat::new(9), 1);
    assert!(protected.contains("metadata"), "{protected}");
    for lbads in [0, 8, 200] {
        let error = with(LbaFormat::new(lbads), 0);
        assert!(error.contains(&format!("2^{lbads}")), "{error}");
    }
    let mut namespace = NamespaceConfig::new(1, 1000, 12);
    namespace.identify.nsze = U64::new(u64::MAX / 16);
    let rig =
        Rig::new(FakeDriveConfig { namespaces: vec![namespace], ..FakeDriveConfig::default() });
    let error = rig.controller.namespace(1).unwrap_err().to_string();
    assert!(error.contains("no size"), "{error}");
    rig.end();
}

#[test]
fn as_many_queues_as_the_drive_grants_and_no_more() {
    let config = FakeDriveConfig { io_queues: 3, ..FakeDriveConfig::default() };
    let rig = Rig::with(config, ControllerOptions { io_queues: 6, ..options() });
    assert_eq!(rig.controller.queues(), 3);
    let device = rig.device(1);
    let queues: Vec<_> = (0..3).map(|_| device.open_driver_queue(&rig.pool).unwrap()).collect();
    let error = device.open_driver_queue(&rig.pool).unwrap_err();
    assert_eq!(error, BlockError::NoQueue { granted: 3 });
    assert!(error.to_string().contains("all 3 I/O queues that the drive grants"));
    drop(queues);
    assert_eq!(rig.controller.open_queues(), 0);
    drop(device.open_driver_queue(&rig.pool).unwrap());
    drop(device);
    rig.end();
    // Vectors limit the queues, too, unless interrupts are disabled.
    let config = FakeDriveConfig { vectors: 2, ..FakeDriveConfig::default() };
    let six = ControllerOptions { io_queues: 6, ..options() };
    assert_eq!(Rig::with(config.clone(), six.clone()).controller.queues(), 1);
    let polled = ControllerOptions { interrupts: false, ..six };
    let rig = Rig::with(config, polled);
    assert_eq!(rig.controller.queues(), 6);
    assert!(rig.queue().event_fd().is_none());
    rig.end();
}

#[test]
fn doorbells_stay_inside_the_registers() {
    // At a stride of 64 bytes, the doorbells of eight queues are inside the registers.
    let config = FakeDriveConfig {
        cap: FakeDriveConfig::default().cap.with_dstrd(4),
        ..FakeDriveConfig::default()
    };
    let rig = Rig::with(config, ControllerOptions { io_queues: 8, ..options() });
    assert_eq!(rig.controller.queues(), 8);
    rig.end();
}

#[test]
fn a_command_of_bring_up_that_fails_is_named() {
    for (opcode, name) in [
        (AdminOpcode::IDENTIFY, "Identify Controller"),
        (AdminOpcode::SET_FEATURES, "Number of Queues"),
        (AdminOpcode::CREATE_IO_CQ, "Create I/O Completion Queue"),
        (AdminOpcode::CREATE_IO_SQ, "Create I/O Submission Queue"),
    ] {
        for fault in [
            Fault::Status(Status::INTERNAL_ERROR),
            Fault::Lost,
            Fault::WrongCid(0x7777),
            Fault::WrongSqid(5),
            Fault::WrongPhase,
            Fault::Fatal,
            Fault::Gone,
        ] {
            let fake = FakeDrive::new(FakeDriveConfig::default());
            fake.inject(When::admin(opcode), fault.clone());
            let error = open(&fake, options()).unwrap_err().to_string();
            assert!(error.contains(name), "{fault:?}: {error}");
            fake.assert_clean();
            assert_eq!(fake.mappings(), [], "{fault:?}");
        }
    }
}

#[test]
fn no_memory_for_the_drive_is_an_error() {
    let fake = FakeDrive::new(FakeDriveConfig::default());
    fake.fail_next_map();
    let error = open(&fake, options()).unwrap_err().to_string();
    assert!(error.contains("memory for the admin queue"), "{error}");
    assert_eq!(fake.mappings(), []);
}

#[test]
fn shadow_doorbells_that_are_refused_are_done_without() {
    let mut config = FakeDriveConfig::default();
    config.identify.oacs = U16::new(oacs::FORMAT | oacs::DOORBELL_BUFFER);
    let fake = FakeDrive::new(config);
    fake.inject(
        When::admin(AdminOpcode::DOORBELL_BUFFER_CONFIG),
        Fault::Status(Status::INVALID_FIELD),
    );
    drop(open(&fake, options()).unwrap());
    fake.assert_clean();
}

/// Reports random data and identifiers.
#[derive(Debug)]
struct Random(nvmeof_random::SplitMix64);

impl Tamper for Random {
    fn data(&mut self, _: &Sqe, _: u16, data: &mut [u8]) {
        for _ in 0..8 {
            let at = self.0.index(data.len());
            data[at] = self.0.within(0..256).to_le_bytes()[0];
        }
    }

    fn completion(&mut self, _: u16, cqe: &mut nvmeof_wire::Cqe) {
        if self.0.within(0..16) == 0 {
            cqe.cid.set(self.0.within(0..256).to_le_bytes()[0].into());
        }
    }
}

#[test]
fn random_answers_never_hang_or_panic() {
    for seed in 0..200 {
        let fake = FakeDrive::new(FakeDriveConfig::default());
        fake.set_tamper(Some(Box::new(Random(nvmeof_random::SplitMix64::new(seed)))));
        if let Ok(controller) = open(&fake, options()) {
            let _ = controller.namespaces();
            let _ = controller.namespace(1);
            let _ = controller.smart();
            let _ = controller.error_log();
        }
        assert_eq!(fake.mappings(), [], "seed {seed}");
        assert!(fake.iommu_faults().is_empty(), "seed {seed}");
    }
}

#[test]
fn memory_that_the_drive_was_told_of_stays_until_it_is_disabled() {
    // The drive accepts the shadow doorbells, but reports an error.
    let mut config = FakeDriveConfig::default();
    let bits = config.identify.oacs.get() | oacs::DOORBELL_BUFFER;
    config.identify.oacs.set(bits);
    for then in [None, Some(AdminOpcode::CREATE_IO_SQ)] {
        let fake = FakeDrive::new(config.clone());
        let refused = Fault::DoneBut(Status::INTERNAL_ERROR);
        fake.inject(When::admin(AdminOpcode::DOORBELL_BUFFER_CONFIG), refused.clone());
        if let Some(opcode) = then {
            fake.inject(When::admin(opcode), refused);
        }
        let opened = open(&fake, options());
        assert_eq!(opened.is_ok(), then.is_none());
        if let Ok(controller) = &opened {
            assert!(controller.smart().is_ok());
        }
        drop(opened);
        assert_eq!(fake.iommu_faults(), [], "{then:?}");
        assert_eq!(fake.mappings(), []);
    }
}

#[test]
fn a_namespace_has_the_identity_that_linux_has_for_it() {
    use nvmeof_core::block::BlockDevice;
    let medium = |change: fn(&mut NamespaceConfig), version: u32| {
        let mut config = FakeDriveConfig::default();
        config.identify.ver = U32::new(version);
        change(&mut config.namespaces[0]);
        let rig = Rig::new(config);
        let medium = rig.device(1).info().medium.clone().unwrap();
        rig.end();
        medium
    };
    const NOW: u32 = 0x0001_0400;
    assert_eq!(medium(|_| (), NOW), "eui.020000fffe000001");
    let nguid = |ns: &mut NamespaceConfig| ns.identify.nguid = [0x11; 16];
    assert_eq!(medium(nguid, NOW), format!("eui.{}", "11".repeat(16)));
    let uuid = |ns: &mut NamespaceConfig| {
        ns.uuid = *b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f";
    };
    assert_eq!(medium(uuid, NOW), "uuid.00010203-0405-0607-0809-0a0b0c0d0e0f");
    assert_eq!(medium(uuid, 0x0001_0200), "eui.020000fffe000001", "it is too old to be asked");
    let none = |ns: &mut NamespaceConfig| ns.identify.eui64 = [0; 8];
    let serial = "46414b4530303031";
    let model = "6e766d656f662d7467742066616b6520636f6e74726f6c6c6572";
    assert_eq!(medium(none, NOW), format!("nvme.1b36-{serial}-{model}-00000001"));
}

#[test]
fn a_drive_that_does_not_list_identifiers_is_served_without_the_list() {
    use nvmeof_core::block::BlockDevice;
    let rig = Rig::new(FakeDriveConfig::default());
    let status = Fault::Status(Status::INVALID_FIELD);
    rig.fake.inject(When::admin(AdminOpcode::IDENTIFY).after(1), status);
    let device = rig.device(1);
    assert_eq!(device.info().medium.as_deref(), Some("eui.020000fffe000001"));
    assert_eq!(rig.fake.taken(0, AdminOpcode::IDENTIFY.0), 3, "controller, namespace, list");
    drop(device);
    rig.end();
}

#[test]
fn what_stands_on_a_drive_has_an_identity_made_of_the_drives() {
    use nvmeof_core::block::fault::{FaultDevice, FaultPlan};
    use nvmeof_core::block::{
        BlockDevice, DelayDevice, Latency, RamDevice, SplitDevice, StripeDevice,
    };
    use std::sync::Arc;
    let rig = Rig::new(FakeDriveConfig::default());
    let drive: Arc<dyn BlockDevice> = Arc::new(rig.device(1));
    let medium = |device: &dyn BlockDevice| device.info().medium.clone();
    let split = |base: &Arc<dyn BlockDevice>, offset, size| {
        SplitDevice::new("part", Arc::clone(base), offset, size).unwrap()
    };
    let part = split(&drive, 4096, None);
    assert_eq!(medium(&part).as_deref(), Some("eui.020000fffe000001+4096"));
    assert_eq!(medium(&split(&drive, 4096, Some(512))), medium(&part), "it may grow");
    assert_ne!(medium(&split(&drive, 0, None)), medium(&*drive));
    let delay = DelayDevice::new("slow", Arc::clone(&drive), Latency::default(), || 0);
    assert_eq!(medium(&delay), medium(&*drive));
    let (fault, _) = FaultDevice::new(Arc::clone(&drive), FaultPlan::default());
    assert_eq!(medium(&fault), medium(&*drive));
    let stripe = |members: Vec<Arc<dyn BlockDevice>>| {
        medium(&StripeDevice::new("all", members, 4096).unwrap())
    };
    let part: Arc<dyn BlockDevice> = Arc::new(part);
    assert_eq!(
        stripe(vec![Arc::clone(&drive), Arc::clone(&part)]).as_deref(),
        Some("stripe(4096;eui.020000fffe000001;eui.020000fffe000001+4096)")
    );
    let ram: Arc<dyn BlockDevice> = Arc::new(RamDevice::new("ram", 1 << 20, 512).unwrap());
    assert_eq!(stripe(vec![drive, ram]), None, "with a member that has none");
    drop((part, delay, fault));
    rig.end();
}
