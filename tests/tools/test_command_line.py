"""The command line: what each verb answers to misuse, and what the help says and loads."""

import re
import shlex

import pytest
from alone import python
from damage import called

SWEEP = "perf all_reduce -b 8 -e 8"
SMALL = "--cluster lab1g -b 1K -e 1M -f 32"
RING = "plot --schedule ring"

# What is called, and a part of what it says.
MISUSE = f"""
 | VERB
gauge | hpccomm has no verb 'gauge'; the verbs are perf, perf pairs, perf memory,
pref | hpccomm has no verb 'pref'; did you mean perf? The verbs are perf, perf pairs, perf memory,
--vresion | hpccomm has no flag --vresion; did you mean --version? Usage: hpccomm VERB
perf | COLLECTIVE
perf all_reduce,all_red | 'all_red' is not a collective; did you mean all_reduce? Give all or
perf all_reduce all_gather | 'all_gather' is more than hpccomm perf takes; usage:
perf --algoritm ring all_reduce | hpccomm perf has no flag --algoritm; did you mean --algorithm? Usage: hpccomm perf COLLECTIVE[,COLLECTIVE...] [FLAG ...] (hpccomm perf --help says more)
perf all_reduce -iters 3 | has no flag -iters; did you mean --iters? Usage:
perf -q 3 all_reduce | hpccomm perf has no flag -q; usage: hpccomm perf
perf all_reduce --algorithm rign | 'rign' is not an algorithm; did you mean ring?
perf all_reduce -d half,Flaot | 'Flaot' is not a type; did you mean float? Give
perf all_reduce -o sum,mix | 'mix' is not a reduction; did you mean min? Give
perf all_reduce --backend lopback | 'lopback'; did you mean loopback? Give
export x --format jsn | 'jsn' is not a format; did you mean json? Give one of

perf all_reduce -n 0 | -n/--iters: 0 is out of range; give an integer from 1
perf all_reduce -n 010 | '010' is not an integer
perf all_reduce -r -2 | -r/--root: -2 is out of range
perf all_reduce -b 1T | -b/--minbytes: '1T' is not a size
perf all_reduce -b {"9" * 400} | is above -e/--maxbytes
perf all_reduce -e 8 | -b/--minbytes 33554432 is above -e/--maxbytes 8
perf all_reduce -i 0 | -i/--stepbytes 0
perf all_reduce -i 1M -f 2 | give one of them
perf all_reduce -n 1000 -m 1001 | -n/--iters 1000 times -m/--agg_iters 1001 is more than
perf all_reduce -K 1 | give -I 1 too
perf all_reduce -K 20 -I 1 | give 0 to 19
perf all_reduce -o avg -d bool | -o/--op avg means nothing on -d/--datatype bool
perf all_reduce -o band,max -d complex64 | -o/--op band,max means nothing on -d/--data
perf all_reduce -d half,,float | -d/--datatype: 'half,,float' has an empty name
perf all_reduce --csv '' | --csv: an empty name
perf all_reduce --csv a.json -J ./a.json | -J/--output_file and --csv a.json name the same
perf all_reduce -J out.txt | give a name ending in .json
perf all_reduce -t 2 | a rank is a process here
perf all_reduce -G 1 --arrays host | CUDA graphs hold device work, and --arrays is host
perf all_reduce -C 1 --arrays host | -C/--report_cputime 1: calls on host arrays return
perf all_reduce -y 1 --arrays host | host arrays have no stream
perf all_reduce -G 2 -z 1 | -G/--cudagraph and -z/--blocking 1: a recorded block cannot wait
perf all_reduce -G 2 -I 1 | -G/--cudagraph and -I/--per_iter_timing 1
perf all_reduce -G 2 -y 1 | -G/--cudagraph and -y/--stream_null 1
perf all_reduce -D 1 | hpccomm has no kernels of its own
perf all_reduce -V 8 | set NCCL_MIN_CTAS and NCCL_MAX_CTAS
perf all_reduce -p 1 | one thread a process
perf all_reduce --split 'XOR 1' | AND, OR, MOD or DIV and a number
perf all_reduce --split 'MOD 2' --sync barrier | --split and --sync
perf all_reduce --split 'MOD 2' --interleave ring native | --split and --interleave
perf broadcast --backend loopback -b 8 -e 8 -r 4 | -r/--root 4: there are 1 ranks; give 0 to 0, or all

perf all_reduce --budget 5s | give --sync or --ci too
perf all_reduce --ci 200 | is not a percentage
perf all_reduce --sync round | did you mean
perf all_reduce --launches 2 | --launches 2 needs --output
perf all_reduce --launches 2 --output runs.h5 | give --launcher 'mpiexec -n 4'
perf all_reduce --launches 2 --output runs.h5 --launcher nothing | 'nothing' cannot be started
perf all_reduce --launcher mpiexec | give both or none
perf all_reduce --launches 2 --output runs.h5 --series a:1:3 | --launches gives each launch its --series
perf all_reduce --launches 2 --output runs.h5 --passes 3 --interleave ring tree | --passes and --launches
perf all_reduce --at-least 50% | --at-least is about what --expect names
perf all_reduce --series a:4:3 | is not a launch of a series

{SWEEP} --interleave ring rign | 'rign' is not a known algorithm; did you mean ring?
{SWEEP} --interleave ring ring | there is nothing to compare
{SWEEP} --interleave 'ring ' algorithm=ring | there is nothing to compare
{SWEEP} --interleave HPCCOMM_SEGMENTT=4096 ring | did you mean HPCCOMM_SEGMENT?
{SWEEP} --interleave ring 'A=1 A=2' | sets A twice
{SWEEP} --interleave ring 1A=2 | sets no variable
{SWEEP} --interleave ring '' | is not a variant
{SWEEP} --interleave ring {"x" * 200} | in at most 128 bytes
{SWEEP} --interleave ring tree -J a.json | -J/--output_file and --interleave
{SWEEP} --interleave ring tree -N 2 | its passes are set by --passes
{SWEEP} --interleave ring tree -M 1 | -M/--memory 1 and --interleave
{SWEEP} --interleave ring tree --expect nvlink4 | --expect and --interleave
{SWEEP} --interleave ring tree --min-bw 1 | --min-bw and --interleave
{SWEEP} --interleave ring tree --variant a | --variant and --interleave
{SWEEP} --passes 3 | --passes 3 belongs to --interleave
{SWEEP} --interleave ring A_VARIABLE=1 | a process reads A_VARIABLE only once
{SWEEP} --algorithm ring,tree --interleave mpi auto | --algorithm ring,tree and --interleave
{SWEEP} --backend loopback --interleave ring bruck | 'bruck', which does not apply

perf pairs --backend loopback | needs 2 ranks or more
perf pairs --expect bandwidth=10GMK | give latency=5us,bandwidth=10G
perf pairs --budget 0 | is not a time
tune | there is but one rank
tune magic | 'magic' is not a collective
tune --seconds 0 | is not a time
tune --segments 64K,0 | nothing would move
tune -b 1M -e 1K | give sizes that ascend

record --output t.h5 -- no-such-program | 'no-such-program' cannot be started
record --output t.h5 -- '' | '' cannot be started
record --output t.h5 | COMMAND
record --output no/such/t.h5 -- true | cannot write no/such/t.h5

simulate all_reduce | give the network: --cluster with a file or one of ethernet100
simulate send_recv {SMALL} | 'send_recv' cannot be simulated; give all or some of all_reduce
simulate all_reduce --cluster ib800 | 'ib800' is not a ready network
simulate all_reduce --cluster nvlink8 --ranks 9 | nvlink8 is one node of 8 ranks
simulate all_reduce --cluster lab1g -b 2M -e 1M | -b/--minbytes 2097152
simulate reduce {SMALL} -r 8 | -r/--root 8: there are 8 ranks; give 0 to 7
simulate all_reduce {SMALL} --ranks 0 | --ranks: 0 is out of range
simulate all_reduce {SMALL} --ranks 100000000 | at most 1048576 are simulated
simulate all_reduce {SMALL} --algorithm rings | 'rings' cannot be simulated; did you mean ring? Give
simulate all_reduce {SMALL} --algorithm shm | reach each other's memory
simulate all_reduce {SMALL} --model guess | 'guess' is not a model; give one of events, cost, terms
simulate all_reduce {SMALL} --skew -1 | --skew: '-1' is not a time; give seconds
simulate all_reduce {SMALL} --skew 1 --model cost | all ranks start at once
simulate all_reduce {SMALL} --segment 0 | --segment: '0': nothing would move
simulate all_reduce {SMALL} --channels 0 | --channels: 0 is out of range
simulate all_reduce {SMALL} -o band | band means nothing on -d/--datatype float
simulate all_to_all_v {SMALL} --algorithm bruck | blocks of one size
simulate all_to_all_v {SMALL} --model cost | differs from rank to rank
simulate all_to_all_v {SMALL} --ranks 513 | give at most 512 --ranks, or all_to_all
simulate all_to_all {SMALL} --ranks 999999 | sends 999999² blocks at once
simulate all_to_all {SMALL} --ranks 999999 --algorithm linear | sends 999999² messages at once
simulate all_reduce {SMALL} --run 1 | --run chooses among the runs of --like
simulate all_reduce --like none.h5 | none.h5
simulate --cluster lab1g | or --trace FILE.h5
simulate all_reduce --trace t.h5 --cluster lab1g | or --trace FILE.h5
simulate --trace t.h5 --algorithm ring,tree --cluster lab1g | one --algorithm

plot | one of the arguments --schedule --training --pairs --runs is required
plot --schedule rnig | no algorithm is called 'rnig'; did you mean ring? Give one of
{RING} --output x.pdf | let its name end in .svg or .png
{RING} --output no/folder/x.svg | cannot write no/folder/x.svg: no/folder does not exist; make
{RING} --output '' | an empty name
{RING} --output x.svg --text | not allowed with
{RING} --count 65536 --segment 1 | give a larger --segment, a smaller --count
plot --schedule linear --ranks 64 --count 65536 | give a larger --segment, a smaller --count
{RING} --collective gather | gather has no algorithm 'ring'; give one of
{RING} --collective reduction | no collective is called 'reduction'
{RING} --collective all_gather --deterministic | has no form that folds in rank order
{RING} --ranks 65 | ranks is 65; give a number from 1 to 64
{RING} --root 0 | all_reduce has no root
plot --schedule linear --collective gather --root 8 | root is 8;
{RING} --count -1 | --count: -1 is out of range; give an integer from 0
plot --schedule dissemination --count 8 | barrier moves no elements; leave count out
{RING} --segment 0 | segment is 0; give a number at least 1
{RING} --nodes 9 | nodes is 9; give a number from 1 to 8
plot --schedule shm --nodes 2 | shm takes ranks that share memory
plot --schedule pairwise --collective all_to_all --count 12 | 12 elements are not 8 of them; give a count that is a multiple of 8
plot --pairs a.h5 --root 0 | --root belongs to --schedule
plot --training a.h5 --count 0 | --count belongs to --schedule
plot --runs a.h5 --what color | is not a chart
"""

CASES = [line.partition(" | ")[::2] for line in MISUSE.splitlines() if line]


@pytest.mark.parametrize(("command", "said"), CASES, ids=lambda text: text[:60])
def test_misuse_is_one_line_and_status_2(command, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPCCOMM_BACKEND", "loopback")
    monkeypatch.setenv("HPCCOMM_RECORDING", "")  # record sets it, for what it becomes
    status, out, err = called(*shlex.split(command))
    assert (status, out) == (2, "")
    begun = r"(hpccomm: recording to t\.h5 .*\n)?"  # a program that cannot be started is tried
    assert re.fullmatch(begun + r"hpccomm: error: .*\n", err)
    assert said in err
    assert not list(tmp_path.iterdir())


EXAMPLE = "mpiexec -n 4 hpccomm perf all_reduce -b 8 -e 64M -f 2"


def test_help_says_what_can_be_given_and_what_is_by_default():
    assert EXAMPLE in called("--help")[1]
    status, out, _ = called("perf", "--help")
    assert status == 0
    for said in (
        EXAMPLE,
        "auto, mpi, loopback, nccl",
        "auto, native, binomial, bruck",
        "complex128; or all (default float)",
        "bxor; or all (default sum)",
        "repetitions (default 20)",
        "smallest size (default 32M)",
        "The exit status is 0 if everything is right, 1 if a result is wrong",
    ):
        assert said in " ".join(out.split())


LIGHT = """
import sys
from hpccomm.tools.main import main
assert main("simulate all_reduce --cluster lab1g -b 8 -e 8".split()) == 0
try:
    main(["perf", "--help"])
except SystemExit:
    pass
print([name for name in ("mpi4py", "h5py", "cupy", "vl_convert") if name in sys.modules])
"""


def test_help_and_simulations_load_neither_mpi_nor_hdf5():
    assert python("-c", LIGHT, check=True).stdout.endswith("[]\n")
