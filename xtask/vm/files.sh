#!/bin/bash
# A filesystem on a RAM, a 4096-byte-block and a file namespace.
# parts: ext4-512 ext4-4096 ext4-file
# parts ours: leaks
. /share/lib.sh

part_ext4_512() {
    filesystem 1
}

part_ext4_4096() {
    filesystem 2
}

part_ext4_file() {
    filesystem 4
}

# A tree written through one connection is the same through the next one.
filesystem() {
    local nsid=$1 dev before after
    connect "$DEMO"
    dev=$(ns_wait "$DEMO" "$nsid")
    mkfs.ext4 -q -F "$dev"
    mount "$dev" /mnt/demo
    write_tree /mnt/demo/tree
    before=$(tree_sum /mnt/demo/tree)
    umount /mnt/demo
    disconnect "$DEMO"
    connect "$DEMO"
    dev=$(ns_wait "$DEMO" "$nsid")
    e2fsck -fn "$dev" >/tmp/fsck 2>&1 || fail "e2fsck: $(cat /tmp/fsck)"
    mount "$dev" /mnt/demo
    after=$(tree_sum /mnt/demo/tree)
    umount /mnt/demo
    disconnect "$DEMO"
    assert_eq "the tree on namespace $nsid" "$after" "$before"
    note "namespace $nsid: ext4 tree $before"
}

write_tree() {
    local dir file
    for dir in a b/c b/d/e; do
        mkdir -p "$1/$dir"
        for file in 1 2 3 4 5 6 7 8; do
            head -c $((file * 3001)) /dev/urandom >"$1/$dir/small$file"
        done
        head -c $((6 << 20)) /dev/urandom >"$1/$dir/large"
    done
    ln -s small1 "$1/a/link"
    sync
}

tree_sum() {
    (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c1-32)
}

part_leaks() {
    leaks_and_exit
}

run_parts "$@"
