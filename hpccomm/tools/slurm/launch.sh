# choose_launch PYTHON MPIEXEC [HOW]   sets $launch: the words that start a process for each rank of the job
#
# HOW is pmix or pmi2, the protocol by which srun starts them, or mpiexec. Without it, srun starts them if
# Slurm speaks the protocol of the MPI library that PYTHON's mpi4py loads, else MPIEXEC does.
choose_launch() {
    local python=$1 mpiexec=$2 how=${3:-} library
    if [[ -z $how ]]; then
        # Without MPI_Init, which would start a job of one rank here.
        library=$("$python" -c \
            'import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.get_vendor()[0])')
        case $library in
        "Open MPI") how=pmix ;;
        *) how=pmi2 ;;
        esac
        # srun lists on standard output or error, depending on its version.
        if [[ ! $(srun --mpi=list 2>&1) =~ (^|[[:space:]])$how([[:space:]]|$) ]]; then
            printf '== %s\n' "this Slurm has no $how, which $library needs under srun: starting by mpiexec"
            how=mpiexec
        fi
    fi
    if [[ $how == mpiexec ]]; then
        # Slurm names the number of all ranks only where it was asked for.
        launch=("$mpiexec" -n "${SLURM_NTASKS:-$((SLURM_JOB_NUM_NODES * ${SLURM_NTASKS_PER_NODE:-1}))}")
    else
        # srun does not take the cores of a rank from the job by itself.
        launch=(srun --mpi="$how" ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"})
    fi
}
