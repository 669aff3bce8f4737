#!/bin/bash
# Many connections, one after the other, while another host works.
# parts: churn
# parts ours: leaks
# The receives of all queues of a reactor in one queue.
RDMA_LISTENER='shared-receives = true'

. /share/lib.sh

# Fifty hosts come and go, each with its queues, while another one's writes are verified.
part_churn() {
    target_add_subsystem "$DEMO-extra"
    connect "$DEMO" -i 1
    local round name value since=$EPOCHREALTIME
    load_start "$(ns_wait "$DEMO" 1)" --rate_iops=100
    wait_for 10 subsystem_told "$DEMO-extra"
    for round in $(seq 50); do
        name=$(connect_quick "$DEMO-extra" $((round % 2 + 1)))
        attribute "/sys/class/nvme/$name/queue_count"
        assert_eq "queues in round $round" "$value" $((round % 2 + 2))
        # Some stay until their namespace is there, others go in the middle of it.
        if [ $((round % 5)) = 0 ]; then ns_wait "$DEMO-extra" 1 >/dev/null; fi
        echo 1 >"/sys/class/nvme/$name/delete_controller"
        [ ! -e "/sys/class/nvme/$name" ] || wait_for 10 test ! -e "/sys/class/nvme/$name"
    done
    note "$round connects and disconnects in $(since "$since") s"
    load_stop
    disconnect "$DEMO"
    target_remove_subsystem "$DEMO-extra"
}
LIMIT_churn=300

part_leaks() {
    leaks_and_exit
}

run_parts "$@"
