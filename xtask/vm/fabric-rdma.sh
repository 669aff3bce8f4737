# NVMe over RDMA: soft-RoCE on a dummy device, or on the card that joins two guests.

# Where the device is: a card of nothing, or a bridge to the other guest. (A bridge, because cutting its
# only port is a cable that is pulled; soft-RoCE does not survive an interface that is switched off.)
if [ -z "$GUEST" ]; then RDMA_CARD=dummy0; else RDMA_CARD=bridge0; fi
ADDRESS=10.0.1.1
ADDRESS6=fd00:1::1
OWN_ADDRESS=$ADDRESS
if [ -n "$GUEST" ]; then ADDRESS6=; fi
if [ "$GUEST" = b ]; then OWN_ADDRESS=10.0.1.2; fi

fabric_up() {
    modprobe -a ib_uverbs rdma_ucm rdma_rxe nvme-rdma
    if [ -z "$GUEST" ]; then
        modprobe dummy
        ip link add "$RDMA_CARD" type dummy
    else
        modprobe -a virtio_net bridge
        wait_for 5 test -d /sys/class/net/eth0
        ip link add "$RDMA_CARD" type bridge
        ip link set eth0 mtu 9000 master "$RDMA_CARD" up
    fi
    # Addresses have to outlive a card that goes down, as an administrator's tools would see to.
    echo 1 >"/proc/sys/net/ipv6/conf/$RDMA_CARD/keep_addr_on_down"
    ip addr add "$OWN_ADDRESS/24" dev "$RDMA_CARD"
    if [ -n "$ADDRESS6" ]; then ip addr add "$ADDRESS6/64" dev "$RDMA_CARD" nodad; fi
    ip link set "$RDMA_CARD" mtu 9000
    ip link set "$RDMA_CARD" up
    rdma_device_add
    assert_eq "RDMA devices" "$(ls /sys/class/infiniband)" rxe0
}

rdma_device_add() {
    rdma link add rxe0 type rxe netdev "$RDMA_CARD"
    wait_for 5 rdma_is ACTIVE
}

# Whether the RDMA port is in a state: rdma_is STATE
rdma_is() {
    [[ $(rdma link show rxe0/1) == *" state $1 "* ]]
}

# What the kernel keeps for programs, which is the daemon once nobody is connected: queue pairs,
# completion queues, protection domains, connections, shared receive queues, contexts, memory regions.
# (It books them on threads; what is its own, for hosts and its target, has no number of a process.)
fabric_sizes() {
    printf 'resource show %s\n' qp cq pd cm_id srq ctx mr | rdma -b /proc/self/fd/0 | awk '
        { all[$3]++ }
        / pid [0-9]/ { own[$3]++ }
        END {
            if (!all["lqpn"]) exit 1 # the kernel has one itself: nothing was told
            printf " qp=%d cq=%d pd=%d cm_id=%d srq=%d ctx=%d mr=%d", own["lqpn"], own["cqn"],
                own["pdn"], own["cm-idn"], own["srqn"], own["ctxn"], own["mrn"]
        }' || fail "the kernel does not tell what it holds of RDMA"
}

# The cable to the other guest.
cable_pull() {
    ip link set eth0 down
    wait_for 5 rdma_is DOWN
}

cable_plug() {
    ip link set eth0 up
    wait_for 5 rdma_is ACTIVE
}

fabric_kernel_sizes() {
    echo "qp=$(rdma resource show qp | wc -l) cm_id=$(rdma resource show cm_id | wc -l)"
}
