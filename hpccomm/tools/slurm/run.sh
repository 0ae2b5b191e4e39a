# run_in_job RESULTS COMMAND...   runs a command that starts ranks, by $launch or by itself; returns its exit
#                                 status, or 2 if it has not added to the file RESULTS (if that has a name)
#
# SIGTERM, which Slurm sends before the time is up, goes on to the ranks. They close their table and file.
run_in_job() {
    local results=$1 before running status asked=0 passed=0
    shift
    before=$(change_time "$results")
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
    # srun ends with 0 even where it could start no rank.
    if ((status == 0)) && [[ -n $results && $(change_time "$results") == "$before" ]]; then
        printf '== %s\n' "job $SLURM_JOB_ID added nothing to $results; what is printed above may say why" >&2
        status=2
    fi
    return "$status"
}

# Prints when a file was last changed, or nothing.
change_time() { stat --format=%y -- "$1" 2>/dev/null || true; }

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
