"""What all ReFrame tests of hpccomm have: their ranks, and references from the command line."""

import reframe as rfm
import reframe.utility.typecheck as typ
from reframe.core.builtins import run_after, run_before, variable
from reframe.core.exceptions import ReframeError


class HpccommTest(rfm.RunOnlyRegressionTest):
    """A test that runs `hpccomm` on some ranks.

    Attributes
    ----------
    nodes : int
        Number of nodes.
    tasks_per_node : int
        Number of ranks on each node. 0 takes one for each GPU that the partition's configuration names,
        or 2 where it names none.
    backend : str
        As ``--backend`` takes it.
    flags : list of str
        Further flags of the command.
    references : dict
        References in place of those of the class. They have the form of ReFrame's ``reference``, and can
        also be set on ReFrame's command line, as JSON: ``{"system:partition": {"latency": [12, null, 0.2]}}``.
    """

    nodes = variable(int, value=1)
    tasks_per_node = variable(int, value=0)
    backend = variable(str, value="auto")
    flags = variable(typ.List[str], value=[])
    references = variable(typ.Dict[str, typ.Dict[str, object]], value={})

    executable = "hpccomm"
    valid_prog_environs = ["+hpccomm"]
    time_limit = "10m"
    tags = {"hpccomm", "performance"}

    @run_after("init")
    def take_references(self) -> None:
        """Put the references of the command line in place of those of the class."""
        if self.references:
            self.reference = {
                place: {name: tuple(values) for name, values in named.items()}
                for place, named in self.references.items()
            }

    @run_after("setup")
    def place_ranks(self) -> None:
        """Set how many ranks run, on how many nodes, and with how many GPUs."""
        partition = self.current_partition
        self.skip_if(
            partition.scheduler.is_local and self.nodes > 1,
            f"{self.nodes} nodes are needed, and {partition.fullname} has one",
        )
        gpus = sum(each.num_devices for each in partition.select_devices("gpu"))
        self.num_tasks_per_node = self.tasks_per_node or gpus or 2
        self.num_tasks = self.nodes * self.num_tasks_per_node
        if "gpu" in partition.features:
            self.num_gpus_per_node = self.num_tasks_per_node

    @run_before("run")
    def refuse_unknown_references(self) -> None:
        """Refuse references of variables that do not exist, which ReFrame would never look at."""
        named = {name for values in self.references.values() for name in values}
        if unknown := named - set(self.perf_variables):
            raise ReframeError(
                f"no performance variable {', '.join(sorted(unknown))}; "
                f"there are {', '.join(self.perf_variables)}"
            )
