#!/bin/sh
# Called by busybox's uevent listener for each kernel event; keeps those of NVMe.
case "${SUBSYSTEM:-}:${DEVNAME:-}" in
nvme:* | block:nvme* | nvme-generic:*)
    echo "${ACTION:-} ${SUBSYSTEM:-} ${DEVNAME:-} ${NVME_AEN:+NVME_AEN=$NVME_AEN} ${NVME_EVENT:+NVME_EVENT=$NVME_EVENT}" >>/run/uevents
    ;;
esac
