//! Identity of a disk for hosts: over restarts, saves, renames, and with other bytes under the same
//! name.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use hyper::Method;
use nvmeof_tests::config::{NQN, api, device, file, listener, ram, subsystem};
use nvmeof_tests::{Api, Daemon, GUARD, Host, Raw, build, options};
use nvmeof_wire::identify::{Cns, Identify, NamespaceId, NamespaceIds};
use serde_json::json;

/// Names of devices, and their files.
type Files<'a> = &'a [(&'a str, &'a str)];

/// Returns the UUID of a namespace as hosts read it.
fn seen(daemon: &Daemon, nsid: u32) -> String {
    let (mut admin, _) = Raw::admin(daemon.address(), NQN, &options(9));
    let list = admin.read(Identify::new(Cns::NAMESPACE_DESCRIPTORS, nsid).encode(0), 4096);
    let uuid = NamespaceIds::new(&list).find_map(|id| match id {
        NamespaceId::Uuid(uuid) => Some(uuid),
        _ => None,
    });
    uuid.expect("a UUID").iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the UUID of namespace 1 from the API, which reports it as hosts read it.
fn uuid(daemon: &Daemon) -> String {
    let view = Api::of(daemon).get(&format!("/v1/subsystems/{NQN}/namespaces/1"));
    let told = view["uuid"].as_str().expect("a UUID").to_owned();
    assert_eq!(seen(daemon, 1), told);
    told
}

/// Returns one namespace over the file of this path, by a device of this name.
fn config(name: &str, path: &Path) -> String {
    let parts =
        [listener("127.0.0.1"), file(name, path, "1MiB", 512), subsystem(NQN, &[(1, name)]), api()];
    parts.concat()
}

#[test]
fn a_file_is_one_disk_by_its_path_and_not_by_its_devices_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let daemon = Daemon::start(&config("disk", &at("a")));
    let first = uuid(&daemon);
    let daemon = daemon.restart();
    assert_eq!(uuid(&daemon), first, "the same after a restart");
    daemon.reload(&config("renamed", &at("a")));
    assert_eq!(uuid(&daemon), first, "the same bytes by another name");
    daemon.reload(&config("renamed", &at("b")));
    let second = uuid(&daemon);
    assert_ne!(second, first, "other bytes by the same name");
    let memory = [
        listener("127.0.0.1"),
        ram("renamed", "1MiB", 512),
        subsystem(NQN, &[(1, "renamed")]),
        api(),
    ];
    daemon.reload(&memory.concat());
    assert!(![&first, &second].contains(&&uuid(&daemon)), "neither of the files");
    daemon.reload(&config("disk", &at("a")));
    assert_eq!(uuid(&daemon), first, "it is back");
}

#[test]
fn files_go_from_device_to_device_while_hosts_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    // Names and files of the devices, the first of which is namespace 1.
    let config = |devices: Files<'_>, more: &str| {
        let files = devices.iter().map(|(name, path)| file(name, &at(path), "1MiB", 512) + more);
        let namespaces: Vec<(u32, &str)> =
            (1..).zip(devices.iter().map(|(name, _)| *name)).collect();
        let files = files.collect::<String>();
        [listener("127.0.0.1"), files, subsystem(NQN, &namespaces), api()].concat()
    };
    let daemon = Daemon::start(&config(&[("d", "a"), ("e", "b")], ""));
    let mut host = Host::connect(&daemon.endpoint(NQN), &options(1));
    let uuids = [seen(&daemon, 1), seen(&daemon, 2)];
    for (nsid, byte) in [(1, 10), (2, 20)] {
        host.write(nsid, 0, 4096, byte);
    }
    let holds = |host: &mut Host, nsid: u32, byte: u64| {
        host.check(nsid, 0, 4096, byte);
        let at = usize::from(byte == 20);
        assert_eq!(seen(&daemon, nsid), uuids[at]);
    };
    // Renamed, swapped, a name moved to the file that another device released, and with another
    // access mode.
    let direct = "direct = \"off\"\n";
    let steps: [(Files<'_>, &str, &[u64]); 6] = [
        (&[("x", "a"), ("e", "b")], "", &[10, 20]),
        (&[("x", "b"), ("e", "a")], "", &[20, 10]),
        (&[("e", "a"), ("x", "b")], "", &[10, 20]),
        (&[("x", "a")], "", &[10]),
        (&[("x", "a")], direct, &[10]),
        (&[("e", "a"), ("x", "b")], direct, &[10, 20]),
    ];
    for (devices, more, bytes) in steps {
        daemon.reload(&config(devices, more));
        for (nsid, byte) in (1..).zip(bytes) {
            holds(&mut host, nsid, *byte);
        }
    }
    // Another server still cannot open a served file.
    for name in ["a", "b"] {
        let file = std::fs::File::open(at(name)).expect("the file");
        assert!(file.try_lock().is_err(), "{name}");
    }
}

#[test]
fn save_keeps_the_uuid_for_its_medium() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let daemon = Daemon::start(&config("disk", &at("a")));
    let first = uuid(&daemon);
    let control = Api::of(&daemon);
    control
        .change(
            Method::POST,
            "/v1/devices",
            Some(json!({"name": "r", "type": "ram", "size": 4096})),
        )
        .expect("a device");
    control.call(Method::POST, "/v1/save", None, None).expect("it is saved");
    let saved = std::fs::read_to_string(daemon.folder().join("target.toml")).expect("the config");
    let plain = saved.replace('-', "");
    assert!(plain.contains(&format!("uuid = \"{first}\"")), "{saved}");
    assert!(saved.contains(&format!("medium = \"file:{}", at("a").display())), "{saved}");
    assert_eq!(control.get("/v1/status")["saved"], true);
    let change = control.change(Method::POST, "/v1/reload", None).expect("a reload");
    assert_eq!(change.changes, [], "what runs is what was saved");

    // The device has another name; the bytes are the same.
    daemon.reload(&saved.replace("\"disk\"", "\"other\""));
    assert_eq!(uuid(&daemon), first);
    // The same name with other bytes is another disk, and the log reports it.
    let swapped = saved.replacen("/a\"", "/b\"", 1);
    assert_ne!(swapped, saved);
    daemon.reload(&swapped);
    let second = uuid(&daemon);
    assert_ne!(second, first);
    daemon.wait_for_line("but its uuid was saved for file:");
    let daemon = daemon.restart();
    assert_eq!(uuid(&daemon), second, "after a restart, too");
    let patch = json!({ "path": at("c"), "create": true });
    let change = Api::of(&daemon).change(Method::PATCH, "/v1/devices/disk", Some(patch));
    let warnings = change.expect("another path").warnings;
    assert!(warnings.iter().any(|what| what.contains("another disk")), "{warnings:?}");
}

#[test]
fn what_is_saved_of_a_file_is_not_another_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let daemon = Daemon::start(&config("disk", &at("a")));
    let first = uuid(&daemon);
    Api::of(&daemon).call(Method::POST, "/v1/save", None, None).expect("it is saved");
    let kept = std::fs::metadata(at("a")).expect("the file");
    std::fs::set_permissions(at("a"), kept.permissions()).expect("as chmod does");
    let daemon = daemon.restart();
    assert_eq!(uuid(&daemon), first, "the same file");
    if kept.created().is_err() {
        // The file system does not distinguish them.
        return;
    }
    let bytes = std::fs::read(at("a")).expect("the file");
    std::fs::write(at("b"), bytes).expect("another file");
    std::fs::rename(at("b"), at("a")).expect("in its place");
    let daemon = daemon.restart();
    assert_ne!(uuid(&daemon), first);
    daemon.wait_for_line("hosts see another disk");
    // The config declares it the same disk.
    let text = std::fs::read_to_string(daemon.folder().join("target.toml")).expect("the config");
    let mine = text.lines().filter(|line| !line.starts_with("medium = "));
    let mine: Vec<&str> = mine.collect();
    daemon.reload(&mine.join("\n"));
    assert_eq!(uuid(&daemon), first);
}

/// A loop device; detached when dropped.
struct Loop(String);

impl Loop {
    /// Attaches a loop device to this file; `None` on a machine without loop devices.
    fn of(path: &Path) -> Option<Self> {
        losetup(&["--find", "--show", &path.display().to_string()]).map(Self)
    }

    /// Attaches another file to it.
    fn attach(&self, path: &Path) {
        losetup(&["--detach", &self.0]).expect("nobody has it open");
        let path = path.display().to_string();
        let until = Instant::now() + GUARD;
        // It is free when other readers, for example udev, have closed it.
        while losetup(&[&self.0, &path]).is_none() {
            assert!(Instant::now() < until, "{} does not become free", self.0);
            std::thread::yield_now();
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        losetup(&["--detach", &self.0]);
    }
}

/// Returns the output of `losetup`, if it succeeds.
fn losetup(arguments: &[&str]) -> Option<String> {
    let output = Command::new("losetup").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[test]
fn a_loop_device_is_the_file_behind_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    for name in ["a", "b"] {
        std::fs::write(at(name), vec![0; 1 << 20]).expect("a file");
    }
    let Some(disk) = Loop::of(&at("a")) else {
        // This machine does not permit it; the kernel's report on a loop device has a unit test.
        return;
    };
    let node = device("disk", "file", &format!("path = \"{}\"", disk.0));
    let parts = [listener("127.0.0.1"), node, subsystem(NQN, &[(1, "disk")]), api()];
    let daemon = Daemon::start(&parts.concat());
    let first = uuid(&daemon);
    Api::of(&daemon).call(Method::POST, "/v1/save", None, None).expect("it is saved");
    let daemon = daemon.restart();
    assert_eq!(uuid(&daemon), first);
    let daemon = daemon.restart_after(|| disk.attach(&at("b")));
    assert_ne!(uuid(&daemon), first);
    let daemon = daemon.restart_after(|| disk.attach(&at("a")));
    assert_eq!(uuid(&daemon), first, "it is back");
}

#[test]
fn a_uuid_that_somebody_wrote_stays_and_other_bytes_under_it_are_told_of() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let written = "7a2f6a52-6b0e-4c8b-9d6e-0f3f5f0b7c11";
    let text = config("disk", &at("a"));
    let own =
        text.replace("device = \"disk\"\n", &format!("device = \"disk\"\nuuid = \"{written}\"\n"));
    let daemon = Daemon::start(&own);
    assert_eq!(uuid(&daemon), written.replace('-', ""));
    let patch = json!({ "path": at("b"), "create": true });
    let change = Api::of(&daemon).change(Method::PATCH, "/v1/devices/disk", Some(patch));
    let warnings = change.expect("another path").warnings;
    assert!(warnings.iter().any(|what| what.contains("keeps its uuid")), "{warnings:?}");
    assert_eq!(uuid(&daemon), written.replace('-', ""));
}

#[test]
fn a_device_and_a_delay_on_it_are_two_disks() {
    let config = [
        listener("127.0.0.1"),
        ram("base", "1MiB", 512),
        device("slow", "delay", "base = \"base\"\nread-latency = \"1us\""),
        subsystem(NQN, &[(1, "base"), (2, "slow")]),
    ];
    let daemon = Daemon::start(&config.concat());
    assert_ne!(seen(&daemon, 1), seen(&daemon, 2));
}

/// The config is a separate mount, as containers provide a file: no file can be renamed to it.
#[test]
fn a_config_that_is_a_mount_of_its_own_is_saved() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(at("real.toml"), config("disk", &folder.path().join("a"))).expect("a config");
    std::fs::create_dir(at("etc")).expect("a folder");
    std::fs::write(at("etc/target.toml"), "").expect("a place to mount at");
    let script = format!(
        "mount --bind {real} {etc}/target.toml && exec {daemon} --config {etc}/target.toml >{out} 2>{log}",
        real = at("real.toml"),
        etc = at("etc"),
        daemon = build::target_daemon().display(),
        out = at("out"),
        log = at("log"),
    );
    let own = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", script]).current_dir(folder.path());
        command
    };
    let probe = own("mount --bind real.toml etc/target.toml").output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        // This machine permits no mount; the in-place write has a unit test.
        return;
    }
    let mut daemon = own(&script).spawn().expect("it starts");
    let ready = || std::fs::read_to_string(at("out")).is_ok_and(|out| out.starts_with("ready"));
    while !ready() {
        assert!(
            daemon.try_wait().expect("its state").is_none(),
            "{:?}",
            std::fs::read_to_string(at("log"))
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let mut save = Command::new(build::control());
    save.arg("--api").arg(format!("unix:{}", at("api.sock"))).arg("save");
    let output = save.output().expect("nvmeofctl runs");
    daemon.kill().expect("it ends");
    daemon.wait().expect("it has ended");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let saved = std::fs::read_to_string(at("real.toml")).expect("the config");
    assert!(saved.contains("uuid = "), "{saved}");
    let names = std::fs::read_dir(at("etc")).expect("the folder").flatten();
    let mut names: Vec<_> = names.map(|entry| entry.file_name()).collect();
    names.sort();
    assert_eq!(names, ["target.toml", "target.toml~"], "no litter");
}
