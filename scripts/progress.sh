# shellcheck shell=sh
# Sourced by demo.sh and install-deps.sh: a long command whose output goes to a file.
#
#   work LOG NOTE COMMAND...
# runs COMMAND with its output in LOG and returns its status. Meanwhile one line moves on a terminal;
# elsewhere a plain line comes every 30 seconds. NOTE is a function that prints the line: it finds the
# seconds that have passed in $seconds. work_stop ends the command; the caller's traps call it.

work_child=

work_stop() {
    [ -n "$work_child" ] || return 0
    kill -TERM "$work_child" 2>/dev/null || true
    wait "$work_child" 2>/dev/null || true
    work_child=
}

clock() { printf '%d:%02d' "$(($1 / 60))" "$(($1 % 60))"; } # SECONDS

work() {
    work_log=$1 work_note=$2
    shift 2
    "$@" >"$work_log" 2>&1 &
    work_child=$!
    work_start=$(date +%s) work_said=0 work_wait=0.2
    while kill -0 "$work_child" 2>/dev/null; do
        sleep "$work_wait"
        seconds=$(($(date +%s) - work_start))
        [ "$seconds" -lt 2 ] || work_wait=1
        if [ -t 1 ]; then
            printf '\r\033[K   %s' "$("$work_note")"
        elif [ "$seconds" -ge "$((work_said + 30))" ]; then
            work_said=$seconds
            echo "   $("$work_note")"
        fi
    done
    [ ! -t 1 ] || printf '\r\033[K'
    work_status=0
    wait "$work_child" || work_status=$?
    work_child=
    return "$work_status"
}
