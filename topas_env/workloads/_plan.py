"""What a paper workload is made of (`StagePlan`, `WorkloadPlan`) and how traces are drawn from it.

A trace is drawn with whole numpy arrays, since the batched environment draws one per episode. Arrivals, lengths and
numbers of calls come from separate child seeds, and every task uses a fixed number of draws of each. So another arrival
rate gives the same lengths, more tasks give the same first tasks, and one seed gives the same bytes.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from topas_env._core.trace import CALL, Trace
from topas_env._workflow import Workflow

__all__ = ["StagePlan", "WorkloadPlan", "poisson_arrivals"]


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The calls of one stage. With the defaults of the spreads every task has the same, single call.

    Attributes:
        query: Prompt tokens after the agent's prefix in the first call; the median where `query_sigma` is positive.
        output: Output tokens of a call; the median where `output_sigma` is positive.
        max_new: What the client asks for in every call, whatever it turns out to need. Longer draws are cut here.
        query_sigma: Spread of the lognormal distribution of the query; draws are cut to [query / 3, query * 3].
        output_sigma: Spread of the lognormal distribution of the outputs.
        call_mean: Mean number of calls before the cut: 1 + a geometric number of further ReAct rounds.
        call_limit: Most calls of the stage.
        observation: Median tokens that a tool's answer adds to the prompt between two calls (lognormal, sigma 0.6).
        tool_s: Median wait for a tool between two calls, seconds (lognormal, sigma 0.8).
    """

    query: int
    output: int
    max_new: int
    query_sigma: float = 0.0
    output_sigma: float = 0.0
    call_mean: float = 1.0
    call_limit: int = 1
    observation: int = 0
    tool_s: float = 0.0


_OBSERVATION_SIGMA = 0.6
_TOOL_SIGMA = 0.8
_CUT = 3.0  # queries and observations lie within a factor of their median, tool waits below twice this factor
_SHORTEST_OUTPUT = 8


@dataclass(frozen=True)
class WorkloadPlan:
    """A generated workload: one workflow, a plan for each of its stages, and the defaults of a run.

    Attributes:
        name: Name of the workload and of its workflow.
        about: One sentence for tables.
        workflow: The DAG with its agents.
        stages: A plan for each of the workflow's stages, in its order.
        arrival_rate: Default arrival rate, tasks per second.
        num_tasks: Default number of tasks.
    """

    name: str
    about: str
    workflow: Workflow
    stages: tuple[StagePlan, ...]
    arrival_rate: float
    num_tasks: int = 100

    @cached_property
    def _fixed(self) -> bool:
        return all(s.call_limit == 1 and not s.query_sigma and not s.output_sigma for s in self.stages)

    @cached_property
    def _template(self) -> NDArray[np.void]:
        calls: NDArray[np.void] = np.zeros(len(self.stages), CALL)
        for row, plan in zip(calls, self.stages, strict=True):
            row["suffix"], row["output"], row["max_new"] = plan.query, plan.output, plan.max_new
        return calls

    @cached_property
    def _columns(self) -> dict[str, NDArray[np.float64]]:
        names = ("query", "output", "max_new", "query_sigma", "output_sigma", "call_limit", "observation", "tool_s")
        columns = {name: np.array([float(getattr(s, name)) for s in self.stages]) for name in names}
        # A further round follows with probability q, the mean number of calls being 1 / (1 - q).
        again = [1.0 - 1.0 / s.call_mean for s in self.stages]
        columns["log_again"] = np.array([math.log(q) if q > 0 else -np.inf for q in again])
        return columns

    def trace(self, *, seed: int, num_tasks: int, arrival_rate: float) -> Trace:
        """Draws a trace; see the module's text for what a seed fixes."""
        arrivals, counts, lengths = np.random.SeedSequence(seed).spawn(3)
        n, stages = num_tasks, len(self.stages)
        arrival = poisson_arrivals(arrivals, n, arrival_rate)
        if self._fixed:
            first_call = np.arange(n * stages + 1, dtype=np.int64)
            calls = np.tile(self._template, n)
        else:
            number = self._call_counts(counts, n)
            first_call = np.zeros(n * stages + 1, np.int64)
            np.cumsum(number.reshape(-1), out=first_call[1:])
            calls = self._calls(lengths, number)
        return Trace(
            arrival=arrival,
            workflow=np.zeros(n, np.int32),
            rank=np.arange(n, dtype=np.int64),
            stage0=np.arange(n, dtype=np.int64) * stages,
            first_call=first_call,
            calls=calls,
        )

    def _call_counts(self, seed: np.random.SeedSequence, n: int) -> NDArray[np.int64]:
        """Draws the number of calls of each stage, int64 (n, stages): 1 + geometric, cut at the limit."""
        c = self._columns
        u = 1.0 - np.random.default_rng(seed).random((n, len(self.stages)))  # in (0, 1]
        number = 1.0 + np.floor(np.log(u) / c["log_again"])
        cut: NDArray[np.int64] = np.minimum(number, c["call_limit"]).astype(np.int64)
        return cut

    def _calls(self, seed: np.random.SeedSequence, number: NDArray[np.int64]) -> NDArray[np.void]:
        """Draws the calls of stages with the given numbers of calls; rounds repeat the prompt and output before them."""
        c = self._columns
        n, stages = number.shape
        limit = int(c["call_limit"].max())
        z = np.random.default_rng(seed).standard_normal((n, stages, 3 * limit + 1))
        z_output, z_observation, z_tool = z[:, :, 1 : limit + 1], z[:, :, limit + 1 : 2 * limit + 1], z[:, :, 2 * limit + 1 :]
        query = np.rint(c["query"] * np.clip(np.exp(c["query_sigma"] * z[:, :, 0]), 1 / _CUT, _CUT)).astype(np.int64)
        output = np.rint(c["output"][:, None] * np.exp(c["output_sigma"][:, None] * z_output))
        output = np.clip(output, _SHORTEST_OUTPUT, c["max_new"][:, None]).astype(np.int64)
        factor = np.clip(np.exp(_OBSERVATION_SIGMA * z_observation[:, :, : limit - 1]), 1 / _CUT, _CUT)
        observation = np.rint(c["observation"][:, None] * factor).astype(np.int64)
        # Round k + 1 repeats prompt and output of round k, then adds the tool's answer.
        suffix = np.empty((n, stages, limit), np.int64)
        suffix[:, :, 0] = query
        np.cumsum(output[:, :, :-1] + observation, axis=2, out=suffix[:, :, 1:])
        suffix[:, :, 1:] += query[:, :, None]
        history = np.zeros((n, stages, limit), np.int64)
        history[:, :, 1:] = suffix[:, :, :-1] + output[:, :, :-1]
        tool = c["tool_s"][:, None] * np.minimum(np.exp(_TOOL_SIGMA * z_tool), 2 * _CUT)
        index = np.arange(limit)
        tool[index >= number[:, :, None] - 1] = 0.0  # the last call's answer ends the stage
        used = index < number[:, :, None]
        calls: NDArray[np.void] = np.zeros(int(number.sum()), CALL)
        calls["suffix"], calls["history"], calls["output"] = suffix[used], history[used], output[used]
        calls["tool"] = tool[used]
        calls["max_new"] = np.broadcast_to(c["max_new"].astype(np.int64)[:, None], used.shape)[used]
        return calls


def poisson_arrivals(seed: np.random.SeedSequence, num_tasks: int, arrival_rate: float) -> NDArray[np.float64]:
    """Returns ascending arrival times of a Poisson process, float64 (num_tasks,), seconds from 0."""
    return np.cumsum(np.random.default_rng(seed).standard_exponential(num_tasks)) / arrival_rate
