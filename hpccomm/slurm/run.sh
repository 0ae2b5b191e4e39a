# run_in_job COMMAND...   runs a command that starts ranks, by $launch or by itself; returns its exit status
#
# SIGTERM, which Slurm sends before the time is up, goes on to the ranks. They close their table and file.
run_in_job() {
    local running status asked=0 passed=0
    printf '== job %s:' "$SLURM_JOB_ID"
    printf ' %q' "$@"
    printf '\n'
    trap 'asked=$((asked + 1))' TERM
    "$@" </dev/null &
    running=$!
    while true; do
        status=0
        # A signal ends the waiting, not the command.
        wait "$running" || status=$?
        ((asked > passed)) || break
        passed=$asked
        end_ranks "$running"
    done
    trap - TERM
    ((asked == 0)) || printf '== %s\n' "job $SLURM_JOB_ID was asked to end; what it had measured is kept"
    return "$status"
}

end_ranks() {
    if [[ ${launch[0]} != srun ]]; then
        kill -TERM "$1" 2>/dev/null || true
        return
    fi
    # srun itself would kill its ranks at once. This signals the steps of the job, and not this script;
    # more than once, since one launch may have ended and the next one not begun. Where Slurm has ended
    # the job already, scancel would try for half a minute.
    while kill -0 "$1" 2>/dev/null; do
        timeout 2 scancel --quiet --signal=TERM "$SLURM_JOB_ID" 2>/dev/null || true
        sleep 2
    done
}
