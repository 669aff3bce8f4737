#!/bin/bash
# Data integrity by fio over every transfer path, without digests, with each and with both.
# parts: plain header-digest data-digest both-digests
# parts ours: leaks
. /share/lib.sh

# Reads of 4 KiB go in one PDU, writes of 4 KiB in the capsule; 128 KiB takes R2T and several PDUs.
digest_io() {
    local expected=$1 dev
    shift
    connect "$DEMO" "$@"
    local since
    since=$(dmesg | wc -l)
    dev=$(ns_wait "$DEMO" 1)
    verify_io "$dev" 4k 4m
    verify_io "$dev" 128k 16m
    verify_io "$(ns_wait "$DEMO" 2)" 8k 4m
    if dmesg | tail -n +"$((since + 1))" | grep -iE 'digest error|I/O error|reset'; then
        fail "the kernel met errors"
    fi
    note "$expected: verified"
    disconnect "$DEMO"
}

part_plain() {
    digest_io "no digest"
}

part_header_digest() {
    digest_io "header digest" -g
}

part_data_digest() {
    digest_io "data digest" -G
}

part_both_digests() {
    digest_io "both digests" -g -G
}

part_leaks() {
    leaks_and_exit
}

run_parts "$@"
