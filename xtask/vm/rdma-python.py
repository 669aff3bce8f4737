"""A host over NVMe/RDMA by the package `nvmeof` of PyPI, unmodified.

Arguments: ADDRESS PORT HOST-NQN HOST-ID NQN WHEELS, and NSID:BLOCKS:BLOCK-SIZE for each namespace.
It prints NSID:OFFSET:BYTES:SHA256 of the data that it leaves in each namespace.
"""

import hashlib
import os
import random
import sys
import time
import zipfile

address, port, host_nqn, host_id, nqn, wheels = sys.argv[1:7]
expected = [tuple(map(int, text.split(":"))) for text in sys.argv[7:]]

packages = "/tmp/packages"
for wheel in os.listdir(wheels):
    with zipfile.ZipFile(os.path.join(wheels, wheel)) as archive:
        archive.extractall(packages)
sys.path.insert(0, packages)

import nvmeof  # noqa: E402
from nvmeof import protocol  # noqa: E402

# Limit of the package for one command in seconds, far above what an emulated machine takes.
TIMEOUT = 60
# Bytes around a transfer that it must not touch.
GUARD = 4096
OPTIONS = {"port": int(port), "host_id": host_id, "host_nqn": host_nqn, "timeout": TIMEOUT}
# A fixed seed: every run writes the same data.
data = random.Random(7)


def check(what, found, wanted):
    """Ends the program unless two values are equal."""
    if found != wanted:
        sys.exit(f"FAIL: {what} is {found!r}, should be {wanted!r}")


def expect_error(what, statuses, action):
    """Ends the program unless an action fails with one of these (status code type, status code)."""
    try:
        action()
    except nvmeof.NVMeStatusError as error:
        status = error.completion.status_type, error.completion.status_code
        if status not in statuses:
            sys.exit(f"FAIL: {what} fails with {status}, should be one of {statuses}")
        print(f"note {what}: {error}")
    else:
        sys.exit(f"FAIL: {what} succeeds")


def write_and_read(controller, namespace, slba, blocks):
    """Writes blocks, flushes, and reads them into a buffer of another pattern."""
    length = blocks * namespace.lba_size
    payload = data.randbytes(length)
    with controller.allocate(GUARD + length) as buffer:
        buffer.write(payload, GUARD)
        namespace.write(buffer, slba, blocks, buffer_offset=GUARD)
    namespace.flush()
    with controller.allocate(length + 2 * GUARD) as buffer:
        buffer.write(b"\xa5" * buffer.length)
        namespace.read(buffer, slba, blocks, buffer_offset=GUARD)
        found, guard = buffer.read(length, GUARD), b"\xa5" * GUARD
        check(f"data of {blocks} blocks in namespace {namespace.nsid}", found == payload, True)
        check("memory below a read", buffer.read(GUARD), guard)
        check("memory above a read", buffer.read(GUARD, GUARD + length), guard)
    return payload


def fill_queue(controller, namespace):
    """Reads single blocks, with as many commands in flight as the queue takes."""
    with controller.allocate(namespace.lba_size * controller.io.depth) as buffer:
        in_flight = []
        while True:
            block = len(in_flight)
            command = protocol.rw_command(
                protocol.OPC_READ,
                namespace.nsid,
                block,
                1,
                buffer,
                lba_size=namespace.lba_size,
                buffer_offset=block * namespace.lba_size,
            )
            try:
                in_flight.append(controller.io.submit(command, data_owner=buffer))
            except nvmeof.QueueFullError:
                break
        deadline = time.monotonic() + TIMEOUT
        while not all(request.done for request in in_flight):
            controller.io.poll()
            if time.monotonic() > deadline:
                sys.exit(f"FAIL: a full queue does not complete: {controller.io.outstanding} left")
        for request in in_flight:
            request.response.raise_for_status()
        found = buffer.read(len(in_flight) * namespace.lba_size)
        namespace.read(buffer, 0, len(in_flight))
        check("data of a full queue", found == buffer.read(len(found)), True)
    return len(in_flight)


def out_of_range(controller, namespace):
    """Reads the block after the last one, which the package's `read` refuses to send."""
    with controller.allocate(namespace.lba_size) as buffer:
        command = protocol.rw_command(
            protocol.OPC_READ,
            namespace.nsid,
            namespace.info.size_lbas,
            1,
            buffer,
            lba_size=namespace.lba_size,
        )
        controller.io.execute(command, data_owner=buffer, timeout=TIMEOUT)


with nvmeof.Controller.connect(address, nqn, **OPTIONS) as controller:
    limit = controller.max_transfer_bytes
    print(f"note {controller.info.model}, {controller.info.firmware}: MDTS {limit >> 10} KiB,"
          f" queue depth {controller.io.depth}")
    for nsid, blocks, block_size in expected:
        namespace = controller.namespace(nsid)
        check(f"blocks of namespace {nsid}", namespace.info.size_lbas, blocks)
        check(f"block size of namespace {nsid}", namespace.lba_size, block_size)
        most = limit // block_size
        sizes = [1, 3, 16, 129, most - 1, most, most + 1, 2 * most + 5]
        first = slba = 11
        digest = hashlib.sha256()
        for count in sizes:
            digest.update(write_and_read(controller, namespace, slba, count))
            slba += count
        length = (slba - first) * block_size
        print(f"wrote {nsid}:{first * block_size}:{length}:{digest.hexdigest()}")
        print(f"note namespace {nsid}: {len(sizes)} sizes to {count * block_size} bytes")
    print(f"note {fill_queue(controller, namespace)} commands in flight")
    # LBA Out of Range; Internal Error by the block layer of Linux nvmet.
    expect_error(
        "a read beyond the end", [(0, 0x80), (0, 0x06)], lambda: out_of_range(controller, namespace)
    )
    write_and_read(controller, namespace, 0, 1)

# Connect Invalid Parameters (Base 6.3).
expect_error(
    "a subsystem that is not there",
    [(1, 0x82)],
    lambda: nvmeof.Controller.connect(address, nqn + "-nowhere", **OPTIONS),
)
