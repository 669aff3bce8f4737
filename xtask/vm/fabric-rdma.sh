# NVMe over RDMA: soft-RoCE on a dummy device, or on the card that joins two guests.

RDMA_CARD=${RDMA_CARD:-dummy0}
ADDRESS=10.0.1.1
ADDRESS6=fd00:1::1

fabric_up() {
    modprobe -a ib_uverbs rdma_ucm rdma_rxe nvme-rdma dummy
    if [ "$RDMA_CARD" = dummy0 ]; then ip link add dummy0 type dummy; fi
    # Addresses have to outlive a card that goes down, as an administrator's tools would see to.
    echo 1 >"/proc/sys/net/ipv6/conf/$RDMA_CARD/keep_addr_on_down"
    ip addr add "${OWN_ADDRESS:-$ADDRESS}/24" dev "$RDMA_CARD"
    if [ -n "$ADDRESS6" ]; then ip addr add "$ADDRESS6/64" dev "$RDMA_CARD" nodad; fi
    ip link set "$RDMA_CARD" mtu 9000
    ip link set "$RDMA_CARD" up
    rdma link add rxe0 type rxe netdev "$RDMA_CARD"
    wait_for 5 rdma_is ACTIVE
    assert_eq "RDMA devices" "$(ls /sys/class/infiniband)" rxe0
}

# Whether the RDMA port is in a state: rdma_is STATE
rdma_is() {
    [[ $(rdma link show rxe0/1) == *" state $1 "* ]]
}

# What the kernel keeps for a process: queue pairs, completion queues, protection domains,
# connections, shared receive queues, contexts, memory regions.
fabric_sizes() {
    local kind
    for kind in qp cq pd cm_id srq ctx mr; do
        echo "kind $kind"
        rdma resource show "$kind"
    done | awk -v process=" pid $1 " '
        $1 == "kind" { kind = $2; kinds[++many] = kind; count[kind] = 0; next }
        index($0 " ", process) { count[kind]++ }
        END { for (i = 1; i <= many; i++) printf " %s=%d", kinds[i], count[kinds[i]] }'
}

fabric_kernel_sizes() {
    echo "qp=$(rdma resource show qp | wc -l) cm_id=$(rdma resource show cm_id | wc -l)"
}
