//! Tests of invalid configs: the line and the text of each error.

use super::{LEAST, parse};

/// A config, the place of its first problem, and parts of the message.
struct Bad {
    text: &'static str,
    /// `line:column: key`.
    place: &'static str,
    parts: &'static [&'static str],
}

/// The text follows the 3 lines of [`LEAST`], or precedes them if it begins with a key.
const BAD: &[Bad] = &[
    // Syntax of the file.
    Bad { text: "busy-poll = tru", place: "1:13: busy-poll", parts: &["boolean"] },
    Bad { text: "[limits", place: "4:8:", parts: &["]"] },
    Bad { text: "log = \"info\"\nlog = \"info\"", place: "2:1: log", parts: &["duplicate key"] },
    Bad { text: "[pacing]\n[pacing]", place: "5:2: pacing", parts: &["duplicate"] },
    // The control API is never open to the network by accident.
    Bad {
        text: "[api]\nlisten = [\"127.0.0.1:4480\", \"192.0.2.1:4480\"]",
        place: "5:10: api.listen",
        parts: &["any client that reaches 192.0.2.1:4480", "token-file", "insecure = true"],
    },
    Bad {
        text: "[api]\nlisten = [\"[::]:4480\"]\ninsecure = false",
        place: "5:10: api.listen",
        parts: &["any client that reaches [::]:4480"],
    },
    Bad {
        text: "[api]\nlisten = [\"0.0.0.0:4480\"]",
        place: "5:10: api.listen",
        parts: &["any client that reaches 0.0.0.0:4480"],
    },
    // Two servers cannot have one socket.
    Bad {
        text: "[api]\nsocket = \"/run/a\"\n[rpc]\nmode = \"0600\"\nsocket = \"/run/a\"",
        place: "8:10: rpc.socket",
        parts: &["the socket of [api]", "give each its own path"],
    },
    Bad {
        text: "[rpc]\nmode = \"0777\"",
        place: "5:8: rpc.mode",
        parts: &["\"0777\" is no mode of a socket", "\"0600\" to \"0666\""],
    },
    Bad {
        text: "[rpc]\nsocket = \"\"",
        place: "5:10: rpc.socket",
        parts: &["cannot be the path of a socket"],
    },
    // Unknown keys, everywhere.
    Bad {
        text: "reactor = \"auto\"",
        place: "1:1: reactor",
        parts: &[
            "unknown key; allowed: format, reactors, busy-poll, drain-timeout, log, log-format, api, \
             rpc, limits, pacing, host-defaults, host, discovery, listener, device, root-complex, \
             subsystem, referral \
             (did you mean `reactors`?)",
        ],
    },
    Bad {
        text: "[limits]\nqueue_depth = 32",
        place: "5:1: limits.queue_depth",
        parts: &["unknown key", "did you mean `queue-depth`?"],
    },
    Bad {
        text: "[pacing]\nrates = 1",
        place: "5:1: pacing.rates",
        parts: &["unknown key; allowed: policy, budget"],
    },
    Bad {
        text: "[[listener]]\nprot = 1",
        place: "5:1: listener.prot",
        parts: &["(did you mean `port`?)"],
    },
    Bad { text: "[[device]]\nsizes = 1", place: "5:1: device.sizes", parts: &["`size`"] },
    Bad { text: "[[subsystem]]\nname = 1", place: "5:1: subsystem.name", parts: &["unknown key"] },
    Bad {
        text: "[[subsystem]]\nnqn = \"x\"\n[[subsystem.namespace]]\nnguuid = 1",
        place: "7:1: subsystem.namespace.nguuid",
        parts: &["unknown key", "nsid, device, weight, limit, uuid, medium, nguid, eui64"],
    },
    Bad {
        text: "[[root-complex]]\nbandwith = 1",
        place: "5:1: root-complex.bandwith",
        parts: &["(did you mean `bandwidth`?)"],
    },
    Bad {
        text: "[[root-complex]]\naddress = \"0000:60:00.0\"\nbandwidth = \"40GB/s\"",
        place: "5:11: root-complex.address",
        parts: &["\"0000:60:00.0\" is no root complex", "as \"0000:60\""],
    },
    Bad {
        text: "[[root-complex]]\naddress = \"0000:60\"\nbandwidth = \"40GB\"",
        place: "6:13: root-complex.bandwidth",
        parts: &["\"40GB\" has no unit of rate", "GB/s"],
    },
    Bad {
        text: "[[root-complex]]\naddress = \"0000:60\"\nbandwidth = \"1MB/s\"",
        place: "6:13: root-complex.bandwidth",
        parts: &["8Mb/s is out of range", "allowed: 2Gb/s to 800Tb/s"],
    },
    Bad {
        text: "[[root-complex]]\naddress = \"0000:60\"",
        place: "4:1: root-complex.bandwidth",
        parts: &["missing"],
    },
    Bad {
        text: "[[root-complex]]\naddress = \"0000:60\"\nbandwidth = \"40GB/s\"\n\
               [[root-complex]]\naddress = \"0000:60\"\nbandwidth = \"50GB/s\"",
        place: "8:11: root-complex.address",
        parts: &["line 5 says already what 0000:60 carries"],
    },
    Bad { text: "[[referral]]\nadress = 1", place: "5:1: referral.adress", parts: &["`address`"] },
    Bad { text: "[tls]\nkey = 1", place: "4:2: tls", parts: &["unknown key"] },
    // Wrong types.
    Bad {
        text: "busy-poll = \"yes\"",
        place: "1:13: busy-poll",
        parts: &["string", "allowed: a boolean"],
    },
    Bad { text: "reactors = 4", place: "1:12: reactors", parts: &["allowed: a string"] },
    Bad { text: "drain-timeout = 10", place: "1:17: drain-timeout", parts: &["allowed: a string"] },
    Bad {
        text: "[limits]\nconnections = \"many\"",
        place: "5:15: limits.connections",
        parts: &["string \"many\""],
    },
    Bad {
        text: "[limits]\nbuffer-memory = true",
        place: "5:17: limits.buffer-memory",
        parts: &["boolean", "allowed: a size"],
    },
    Bad {
        text: "[limits]\nbuffer-memory = -1",
        place: "5:17: limits.buffer-memory",
        parts: &["not negative"],
    },
    Bad { text: "limits = 3", place: "1:10: limits", parts: &["integer"] },
    // The daemon.
    Bad {
        text: "reactors = \"0-2\"",
        place: "1:12: reactors",
        parts: &["CPU 2 is not there or not for this process", "0-1,3", "\"auto\""],
    },
    Bad { text: "reactors = \"\"", place: "1:12: reactors", parts: &["no CPU number", "0-3,8"] },
    Bad { text: "reactors = \"3-0\"", place: "1:12: reactors", parts: &["backwards"] },
    Bad {
        text: "drain-timeout = \"10\"",
        place: "1:17: drain-timeout",
        parts: &["no unit", "allowed: a number and a unit of ms, s, min, h"],
    },
    Bad {
        text: "drain-timeout = \"2h\"",
        place: "1:17: drain-timeout",
        parts: &["2h is out of range", "0ms to 1h"],
    },
    Bad {
        text: "log = \"warning\"",
        place: "1:7: log",
        parts: &["\"off\", \"error\", \"warn\"", "did you mean \"warn\"?"],
    },
    Bad {
        text: "log-format = \"jsn\"",
        place: "1:14: log-format",
        parts: &["\"text\", \"json\"", "did you mean \"json\"?"],
    },
    // Limits.
    Bad {
        text: "[limits]\nconnections = 0",
        place: "5:15: limits.connections",
        parts: &["0 is out of range; allowed: 1 to 65535"],
    },
    Bad {
        text: "[limits]\nconnections = 5000",
        place: "5:15: limits.connections",
        parts: &["file descriptors", "may have 4096", "allowed: up to "],
    },
    Bad {
        text: "[limits]\nio-queues = 70000",
        place: "5:13: limits.io-queues",
        parts: &["70000 is out of range; allowed: 1 to 1024"],
    },
    Bad {
        text: "[limits]\nqueue-depth = 31",
        place: "5:15: limits.queue-depth",
        parts: &["allowed: 32 to 4096"],
    },
    Bad {
        text: "[limits]\nmax-transfer = \"4MiB\"",
        place: "5:16: limits.max-transfer",
        parts: &["4MiB is out of range; allowed: 8KiB to 2MiB"],
    },
    Bad {
        text: "[limits]\nmax-transfer = \"768k\"",
        place: "5:16: limits.max-transfer",
        parts: &["no power of two", "as 512KiB"],
    },
    Bad {
        text: "[limits]\nin-capsule = 1000",
        place: "5:14: limits.in-capsule",
        parts: &["multiples of 512"],
    },
    Bad {
        text: "[limits]\nin-capsule = \"128k\"",
        place: "5:14: limits.in-capsule",
        parts: &["0 bytes to 64KiB"],
    },
    Bad {
        text: "[limits]\nbuffer-memory = \"8MiB\"",
        place: "5:17: limits.buffer-memory",
        parts: &["for 3 reactors", "at least 12MiB, or fewer reactors"],
    },
    Bad {
        text: "[limits]\nbuffer-memory = \"256MB\"",
        place: "5:17: limits.buffer-memory",
        parts: &["ambiguous", "write MiB", "powers of 1024"],
    },
    Bad {
        text: "[limits]\nkeep-alive-min = \"50ms\"",
        place: "5:18: limits.keep-alive-min",
        parts: &["allowed: 100ms to 1h"],
    },
    Bad {
        text: "[limits]\nkeep-alive-min = \"150ms\"",
        place: "5:18: limits.keep-alive-min",
        parts: &["multiples of 100ms"],
    },
    Bad {
        text: "[limits]\nconnect-timeout = \"0s\"",
        place: "5:19: limits.connect-timeout",
        parts: &["allowed: 100ms to 10min"],
    },
    Bad {
        text: "[limits]\npdu-timeout = \"soon\"",
        place: "5:15: limits.pdu-timeout",
        parts: &["whole number"],
    },
    // Listeners.
    Bad {
        text: "[[listener]]\naddress = \"::1\"",
        place: "4:1: listener.type",
        parts: &["missing; allowed: \"tcp\", \"rdma\""],
    },
    Bad {
        text: "[[listener]]\ntype = \"tcp\"",
        place: "4:1: listener.address",
        parts: &["missing"],
    },
    Bad {
        text: "[[listener]]\ntype = \"fc\"\naddress = \"::1\"",
        place: "5:8: listener.type",
        parts: &["\"fc\" is not known; allowed: \"tcp\", \"rdma\""],
    },
    Bad {
        text: "[[listener]]\ntype = \"tcp\"\naddress = \"::1\"\ntraffic-class = 106",
        place: "7:17: listener.traffic-class",
        parts: &["unknown key of a listener of type \"tcp\"; remove it, or set type = \"rdma\""],
    },
    Bad {
        text: "[[listener]]\ntype = \"rdma\"\naddress = \"::1\"\nretry-count = -1",
        place: "7:15: listener.retry-count",
        parts: &["-1 is out of range; allowed: 0 to 7"],
    },
    Bad {
        text: "[[listener]]\ntype = \"rdma\"\naddress = \"::1\"\nrnr-retry-count = 8",
        place: "7:19: listener.rnr-retry-count",
        parts: &["8 is out of range; allowed: 0 to 7"],
    },
    Bad {
        text: "[[listener]]\ntype = \"rdma\"\naddress = \"::1\"\nrdma-device = \"a/1\"",
        place: "7:15: listener.rdma-device",
        parts: &["no name of an RDMA device", "rdma link"],
    },
    Bad {
        text: "[[listener]]\ntype = \"rdma\"\naddress = \"::1\"\ngid-index = 256",
        place: "7:13: listener.gid-index",
        parts: &["256 is out of range; allowed: 0 to 255"],
    },
    Bad {
        text: "[[listener]]\ntype = \"rdma\"\naddress = \"::1\"\ncompletion-queue-depth = 0",
        place: "7:26: listener.completion-queue-depth",
        parts: &["0 is out of range; allowed: 256 to 4194304"],
    },
    Bad {
        text: "[[listener]]\ntype = \"tcp\"\naddress = \"localhost\"",
        place: "6:11: listener.address",
        parts: &["\"localhost\" is no IP address", "0.0.0.0"],
    },
    Bad {
        text: "[[listener]]\ntype = \"tcp\"\naddress = \"127.0.0.1:4420\"",
        place: "6:11: listener.address",
        parts: &["no IP address"],
    },
    Bad {
        text: "[[listener]]\ntype = \"tcp\"\naddress = \"::1\"\nport = 65536",
        place: "7:8: listener.port",
        parts: &["65536 is out of range; allowed: 0 to 65535"],
    },
    Bad {
        text: "[[listener]]\ntype = \"tcp\"\naddress = \"127.0.0.1\"\nport = 4420",
        place: "6:11: listener.address",
        parts: &["the listener of line 1 has the same type, address and port"],
    },
    Bad {
        text: "[[listener]]\ntype = \"tcp\"\naddress = \"::1\"\nsubsystems = [\"nqn.x\"]\n\
               [[subsystem]]\nnqn = \"nqn.y\"\nallow-any-host = true",
        place: "7:15: listener.subsystems",
        parts: &["there is no subsystem \"nqn.x\"; allowed: \"nqn.y\""],
    },
    Bad {
        text: "[[listener]]\ntype = \"tcp\"\naddress = \"::1\"\nsubsystems = [\"n\", \"n\"]\n\
               [[subsystem]]\nnqn = \"n\"\nallow-any-host = true",
        place: "7:20: listener.subsystems",
        parts: &["this subsystem is listed twice"],
    },
    Bad {
        text: "[[listener]]\ntype = \"tcp\"\naddress = \"::1\"\nfold-responses = \"never\"",
        place: "7:18: listener.fold-responses",
        parts: &["\"never\" is not known; allowed: \"always\", \"if-disabled\""],
    },
    Bad {
        text: "[[listener]]\ntype = \"rdma\"\naddress = \"::1\"\nfold-responses = \"always\"",
        place: "7:18: listener.fold-responses",
        parts: &["unknown key of a listener of type \"rdma\"", "type = \"tcp\""],
    },
    Bad {
        text: "[discovery]\nnqn = \"n\"\n[[subsystem]]\nnqn = \"n\"\nallow-any-host = true",
        place: "5:7: discovery.nqn",
        parts: &["a subsystem has this NQN"],
    },
    // Devices.
    Bad {
        text: "[[device]]\ntype = \"ram\"\nsize = 512",
        place: "4:1: device.name",
        parts: &["missing; allowed: 1 to 64 letters"],
    },
    Bad {
        text: "[[device]]\nname = \"a b\"\ntype = \"ram\"\nsize = 512",
        place: "5:8: device.name",
        parts: &["\"a b\" is no name"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"ram\"\nsize = 512\n\
               [[device]]\nname = \"a\"\ntype = \"null\"\nsize = 512",
        place: "9:8: device.name",
        parts: &["the device of line 5 is called \"a\" already"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\nsize = 512",
        place: "4:1: device.type",
        parts: &[
            "missing; allowed: \"null\", \"ram\", \"file\", \"nvme\", \"split\", \"stripe\", \"delay\", \
             \"fault\"",
        ],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"rma\"",
        place: "6:8: device.type",
        parts: &["did you mean \"ram\"?"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"ram\"",
        place: "4:1: device.size",
        parts: &["missing; allowed: a number of bytes"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"ram\"\nsize = 0",
        place: "7:8: device.size",
        parts: &["0 bytes holds nothing"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"ram\"\nsize = \"1.5GiB\"",
        place: "7:8: device.size",
        parts: &["\"1.5GiB\" has no unit of size", "as in \"512MiB\""],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"ram\"\nsize = 5000",
        place: "7:8: device.size",
        parts: &["5000 bytes are not whole blocks of 512", "as 4608 or 5120"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"null\"\nsize = 2048\nblock-size = 4096",
        place: "7:8: device.size",
        parts: &["not whole blocks of 4096", "as 4096"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"null\"\nsize = \"16777215TiB\"",
        place: "7:8: device.size",
        parts: &["more than a device can have"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"null\"\nsize = 4096\nblock-size = 1024",
        place: "8:14: device.block-size",
        parts: &["blocks of 1024 bytes are not possible; allowed: 512, 4096"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"ram\"\nsize = 4096\npath = \"/tmp/x\"",
        place: "8:8: device.path",
        parts: &["unknown key of type \"ram\"", "allowed: name, type, size, block-size"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"null\"\nsize = 4096\ndirect = \"on\"",
        place: "8:10: device.direct",
        parts: &["unknown key"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"file\"",
        place: "4:1: device.path",
        parts: &["missing", "path of a file or block device"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"file\"\npath = \"\"",
        place: "7:8: device.path",
        parts: &["empty"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"file\"\npath = \"/nowhere/at/all\"",
        place: "7:8: device.path",
        parts: &["/nowhere/at/all: file does not exist", "create = true"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"file\"\npath = \"/nowhere\\n\\u007f\"",
        place: "7:8: device.path",
        parts: &["/nowhere\\n\\u{7f}: file does not exist"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"file\"\npath = \"/nowhere/at/all\"\n\
               create = true\nsize = 512",
        place: "7:8: device.path",
        parts: &["the folder does not exist"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"file\"\npath = \"/\"",
        place: "7:8: device.path",
        parts: &["a directory"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"file\"\npath = \"/tmp/x\"\ncreate = true",
        place: "8:10: device.create",
        parts: &["a file that is created needs a size"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"file\"\npath = \"/tmp/x\"\ncreate = true\n\
               size = 512\nread-only = true",
        place: "8:10: device.create",
        parts: &["cannot be created and be read-only"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"file\"\npath = \"/tmp/x\"\ndirect = \"yes\"",
        place: "8:10: device.direct",
        parts: &["\"auto\", \"on\", \"off\""],
    },
    // Delays.
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"delay\"\nread-latency = \"1ms\"",
        place: "4:1: device.base",
        parts: &["missing; add a [[device]] as the base"],
    },
    Bad {
        text: "[[device]]\nname = \"ram0\"\ntype = \"ram\"\nsize = 512\n\
               [[device]]\nname = \"a\"\ntype = \"delay\"\nbase = \"ram\"\nread-latency = \"1ms\"",
        place: "11:8: device.base",
        parts: &["there is no device \"ram\"", "allowed: \"ram0\" (did you mean \"ram0\"?)"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"delay\"\nbase = \"a\"\nread-latency = \"1ms\"",
        place: "7:8: device.base",
        parts: &["a device cannot be its own base"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"delay\"\nbase = \"b\"\nread-latency = \"1ms\"\n\
               [[device]]\nname = \"b\"\ntype = \"delay\"\nbase = \"a\"\nread-latency = \"1ms\"",
        place: "7:8: device.base",
        parts: &["the bases form a cycle through \"a\""],
    },
    Bad {
        text: "[[device]]\nname = \"ram0\"\ntype = \"ram\"\nsize = 512\n\
               [[device]]\nname = \"a\"\ntype = \"delay\"\nbase = \"ram0\"\nread-latency = \"1\"",
        place: "12:16: device.read-latency",
        parts: &["\"1\" has no unit", "allowed: a number and a unit of us, ms, s"],
    },
    Bad {
        text: "[[device]]\nname = \"ram0\"\ntype = \"ram\"\nsize = 512\n\
               [[device]]\nname = \"a\"\ntype = \"delay\"\nbase = \"ram0\"\n\
               write-latency = \"10001ms\"",
        place: "12:17: device.write-latency",
        parts: &["10001ms is out of range; allowed: 0 to 10s"],
    },
    Bad {
        text: "[[device]]\nname = \"ram0\"\ntype = \"ram\"\nsize = 512\n\
               [[device]]\nname = \"a\"\ntype = \"delay\"\nbase = \"ram0\"\nread-latency = 1",
        place: "12:16: device.read-latency",
        parts: &["allowed: a string"],
    },
    Bad {
        text: "[[device]]\nname = \"ram0\"\ntype = \"ram\"\nsize = 512\n\
               [[device]]\nname = \"a\"\ntype = \"delay\"\nbase = \"ram0\"\nsize = 512",
        place: "12:8: device.size",
        parts: &[
            "unknown key of type \"delay\"",
            "allowed: name, type, base, read-latency, write-latency, read-jitter, write-jitter, seed \
             (size is for type \"null\", \"ram\", \"file\", \"split\")",
        ],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"ram\"\nsize = 512\nread-latency = \"1ms\"",
        place: "8:16: device.read-latency",
        parts: &["unknown key of type \"ram\"", "(read-latency is for type \"delay\")"],
    },
    Bad {
        text: "[[device]]\nname = \"a\"\ntype = \"file\"\nbase = \"b\"\npath = \"/tmp/x\"",
        place: "7:8: device.base",
        parts: &[
            "unknown key of type \"file\"",
            "direct (base is for type \"split\", \"delay\", \"fault\")",
        ],
    },
    // Subsystems.
    Bad {
        text: "[[subsystem]]\nallow-any-host = true",
        place: "4:1: subsystem.nqn",
        parts: &["missing; allowed: 1 to 223 bytes"],
    },
    Bad {
        text: "[[subsystem]]\nnqn = \"\"\nallow-any-host = true",
        place: "5:7: subsystem.nqn",
        parts: &["the NQN is empty", "nqn.2026-11.org.example:disks"],
    },
    Bad {
        text: "[[subsystem]]\nnqn = \"nqn.2014-08.org.nvmexpress.discovery\"\nallow-any-host = true",
        place: "5:7: subsystem.nqn",
        parts: &["the name of the discovery service"],
    },
    Bad {
        text: "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\nallow-any-host = true\n\
               [[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\nallow-any-host = true",
        place: "8:7: subsystem.nqn",
        parts: &["the subsystem of line 5 has this NQN already"],
    },
    Bad {
        text: "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"",
        place: "4:1: subsystem.allow-any-host",
        parts: &["neither allow-any-host nor hosts", "allow-any-host = true, or hosts"],
    },
    Bad {
        text: "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\nallow-any-host = false",
        place: "6:18: subsystem.allow-any-host",
        parts: &["no host may connect"],
    },
    Bad {
        text: "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\nallow-any-host = true\nhosts = []",
        place: "6:18: subsystem.allow-any-host",
        parts: &["leave out one of the two"],
    },
    Bad {
        text: "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\n\
               hosts = [\"nqn.2026-11.org.example:h\", \"a\\u0007b\"]",
        place: "6:39: subsystem.hosts",
        parts: &["a control character at byte 1", "nqn."],
    },
    Bad {
        text: "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\n\
               hosts = [\"nqn.2026-11.org.example:h\",\n  \"nqn.2026-11.org.example:h\"]",
        place: "7:3: subsystem.hosts",
        parts: &["listed twice"],
    },
    Bad {
        text: "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\nallow-any-host = true\n\
               serial = \"012345678901234567890\"",
        place: "7:10: subsystem.serial",
        parts: &["1 to 20 printable ASCII"],
    },
    Bad {
        text: "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\nallow-any-host = true\n\
               model = \"grün\"",
        place: "7:9: subsystem.model",
        parts: &["1 to 40 printable ASCII"],
    },
    Bad {
        text: "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\nallow-any-host = true\n\
               cntlid-min = 0",
        place: "7:14: subsystem.cntlid-min",
        parts: &["0 is out of range; allowed: 1 to 65519"],
    },
    Bad {
        text: "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\nallow-any-host = true\n\
               cntlid-max = 65520",
        place: "7:14: subsystem.cntlid-max",
        parts: &["65520 is out of range"],
    },
    Bad {
        text: "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:x\"\nallow-any-host = true\n\
               cntlid-min = 9\ncntlid-max = 8",
        place: "7:14: subsystem.cntlid-min",
        parts: &["9 to 8 are none"],
    },
    // Referrals.
    Bad {
        text: "[[referral]]\ntype = \"tcp\"\naddress = \"192.0.2.1\"\nport = 0",
        place: "7:8: referral.port",
        parts: &["allowed: 1 to 65535"],
    },
    Bad {
        text: "[[referral]]\ntype = \"tcp\"\naddress = \"::\"",
        place: "6:11: referral.address",
        parts: &["no address a host can connect to"],
    },
    Bad {
        text: "[[referral]]\ntype = \"tcp\"\naddress = \"::1\"\nnqn = \"\"",
        place: "7:7: referral.nqn",
        parts: &["the NQN is empty"],
    },
    Bad {
        text: "[[referral]]\ntype = \"tcp\"\naddress = \"::1\"\n\
               [[referral]]\ntype = \"tcp\"\naddress = \"::1\"",
        place: "7:1: referral",
        parts: &["there already"],
    },
];

/// Namespaces that follow one device "ram0" (lines 4 to 7) and one subsystem (lines 8 to 10).
const BAD_NAMESPACES: &[Bad] = &[
    Bad {
        text: "[[subsystem.namespace]]\ndevice = \"ram0\"",
        place: "11:1: namespace.nsid",
        parts: &["missing; allowed: 1 to 4294967294"],
    },
    Bad {
        text: "[[subsystem.namespace]]\nnsid = 0\ndevice = \"ram0\"",
        place: "12:8: namespace.nsid",
        parts: &["0 is out of range; allowed: 1 to 4294967294"],
    },
    Bad {
        text: "[[subsystem.namespace]]\nnsid = 4294967295\ndevice = \"ram0\"",
        place: "12:8: namespace.nsid",
        parts: &["4294967295 is out of range; allowed: 1 to 4294967294"],
    },
    Bad {
        text: "[[subsystem.namespace]]\nnsid = 1",
        place: "11:1: namespace.device",
        parts: &["missing; allowed: \"ram0\""],
    },
    Bad {
        text: "[[subsystem.namespace]]\nnsid = 1\ndevice = \"ram\"",
        place: "13:10: namespace.device",
        parts: &["there is no device \"ram\"; allowed: \"ram0\" (did you mean \"ram0\"?)"],
    },
    Bad {
        text: "[[subsystem.namespace]]\nnsid = 1\ndevice = \"ram0\"\n\
               [[subsystem.namespace]]\nnsid = 1\ndevice = \"ram0\"",
        place: "15:8: namespace.nsid",
        parts: &["the namespace of line 12 is 1 already"],
    },
    Bad {
        text: "[[subsystem.namespace]]\nnsid = 1\ndevice = \"ram0\"\n\
               [[subsystem.namespace]]\nnsid = 2\ndevice = \"ram0\"",
        place: "16:10: namespace.device",
        parts: &[
            "the namespace of line 13 has device \"ram0\" already",
            "devices cannot be shared yet",
        ],
    },
    Bad {
        text: "[[subsystem.namespace]]\nnsid = 1\ndevice = \"ram0\"\nuuid = \"7a2f\"",
        place: "14:8: namespace.uuid",
        parts: &["\"7a2f\" is no identifier; allowed: 32 hexadecimal digits"],
    },
    Bad {
        text: "[[subsystem.namespace]]\nnsid = 1\ndevice = \"ram0\"\n\
               nguid = \"00000000000000000000000000000000\"",
        place: "14:9: namespace.nguid",
        parts: &["no identifier"],
    },
    Bad {
        text: "[[subsystem.namespace]]\nnsid = 1\ndevice = \"ram0\"\neui64 = \"zz\"",
        place: "14:9: namespace.eui64",
        parts: &["16 hexadecimal digits"],
    },
];

fn check(bad: &Bad, text: &str) {
    let error = match parse(text) {
        Ok(config) => panic!("taken: {text}\n{config:?}"),
        Err(error) => error.to_string(),
    };
    let first = error.lines().next().unwrap();
    let place = bad.place;
    let place =
        if place.ends_with(':') { format!("t.toml:{place}") } else { format!("t.toml:{place}: ") };
    assert!(first.starts_with(&place), "{text}\n--- says:\n{error}\n--- not at {place}");
    for part in bad.parts {
        assert!(first.contains(part), "{text}\n--- says:\n{error}\n--- not: {part}");
    }
}

#[test]
fn bad_configs_are_refused_with_line_and_key() {
    for bad in BAD {
        // A top-level key must precede any table.
        let text = if bad.text.starts_with('[') {
            format!("{LEAST}{}\n", bad.text)
        } else {
            format!("{}\n{LEAST}", bad.text)
        };
        check(bad, &text);
    }
}

#[test]
fn bad_namespaces_are_refused_with_line_and_key() {
    for bad in BAD_NAMESPACES {
        let text = format!(
            "{LEAST}[[device]]\nname = \"ram0\"\ntype = \"ram\"\nsize = \"1MiB\"\n[[subsystem]]\n\
             nqn = \"nqn.2026-11.org.example:x\"\nallow-any-host = true\n{}\n",
            bad.text
        );
        check(bad, &text);
    }
}
