# What the scripts on a Debian of its own use. systemd runs them (guest.service) at every boot, the report ends them.

SERVES=nothing
. /share/lib.sh

PACKAGE=/share/nvmeof-tgt_0.1.0-1_amd64.deb
NEWER=/share/nvmeof-tgt_0.1.0-2_amd64.deb
UNIT=nvmeof-tgt.service
# Where a person types: with the package beside, as after a download.
WORK=/var/tmp/walk
mkdir -p "$WORK"
# Packages take their time in an emulated machine.
PART_LIMIT=300

# Ends the machine, for good or bad. QEMU exits with (code << 1) | 1.
report() {
    sync
    printf "\\x$(printf %02x "$1")" | dd of=/dev/port bs=1 seek=1281 count=1 2>/dev/null
    sleep 5
    poweroff -f
}

# Runs parts, each in a shell of its own with a time limit; the first that fails ends the machine.
run_phase() {
    local name since
    echo # whatever systemd has put on the line
    for name in "$@"; do
        case " $PARTS " in *" $name "*) ;; *) continue ;; esac
        since=$EPOCHREALTIME
        if timeout -k 3 "$PART_LIMIT" bash /share/run.sh "$name" 2>&1 </dev/null | sed 's/^/  /'; then
            echo "part $name took $(since "$since") s"
            echo "part $name ok"
        else
            echo "part $name FAILED after $(since "$since") s"
            state
            report 1
        fi
    done
}

# One part, in this shell.
run_one() {
    trap 'echo "FAIL: line $LINENO of ${BASH_SOURCE##*/}: $BASH_COMMAND" >&2' ERR
    "part_${1//-/_}"
    exit 0
}

# What a person needs to see of a part that failed.
state() {
    echo "--- systemctl:"
    systemctl status --no-pager --full "$UNIT" | tail -20 || true
    systemctl list-jobs --no-pager || true
    systemctl list-units --no-pager --failed || true
    echo "--- journal:"
    journalctl --no-pager | tail -60 || true
    echo "---"
}

active() {
    [ "$(systemctl is-active "$UNIT")" = active ]
}

# Waits until the daemon runs, or fails with what it says: active_within SECONDS
active_within() {
    (wait_for "$1" active) || fail "the daemon is $(systemctl is-active "$UNIT"): $(journalctl --no-pager -b -o cat \
        -u "$UNIT" -u 'nvmeof-tgt-drive@*' -n 12 | tr '\n' ';')"
}

main_pid() {
    systemctl show -p MainPID --value "$UNIT"
}

# Runs the blocks ```sh of a page of docs/, in order, each as a person who types it at a shell; one that fails is named
# with its line. Given a word, the blocks ```sh WORD instead: run_page PAGE [WORD]
run_page() {
    local page=/share/docs/$1 opens='```sh' line=0 start=0 inside='' block='' ran=0 text
    if [ $# -gt 1 ]; then opens="\`\`\`sh $2"; fi
    while IFS= read -r text || [ -n "$text" ]; do
        line=$((line + 1))
        case $inside in
        '')
            case $text in
            "$opens") inside=run start=$line block='' ;;
            '```'*) inside=skip ;;
            esac ;;
        skip)
            if [ "$text" = '```' ]; then inside=; fi ;;
        run)
            if [ "$text" != '```' ]; then
                block+=$text$'\n'
                continue
            fi
            inside=
            echo "--- docs/$1:$start"
            sed 's/^/$ /' <<<"${block%$'\n'}"
            (cd "$WORK" && bash -euo pipefail -c "$block" </dev/null) ||
                fail "docs/$1:$start: this block of the page does not work"
            ran=$((ran + 1)) ;;
        esac
    done <"$page"
    [ "$ran" -gt 0 ] || fail "docs/$1 has no block to run (${2:-sh})"
    note "docs/$1: $ran blocks ran (${2:-sh})"
}
