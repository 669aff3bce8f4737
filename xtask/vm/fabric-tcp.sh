# NVMe/TCP over the loopback interface.

ADDRESS=127.0.0.1
ADDRESS6=::1

fabric_up() {
    modprobe nvme-tcp
}

# What the kernel keeps of the fabric for programs, beside what their descriptors tell.
fabric_sizes() {
    true
}

fabric_kernel_sizes() {
    true
}
