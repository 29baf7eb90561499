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
        context: No further round is made whose prompt after the prefix would be longer than this; 0 for no such limit.
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
    context: int = 0


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
        columns["context"] = np.array([s.context or np.inf for s in self.stages])
        return columns

    def trace(self, *, seed: int, num_tasks: int, arrival_rate: float) -> Trace:
        """Draws a trace; see the module's text for what a seed fixes."""
        arrivals, *lengths = np.random.SeedSequence(seed).spawn(6)
        n, stages = num_tasks, len(self.stages)
        if self._fixed:
            first_call = np.arange(n * stages + 1, dtype=np.int64)
            calls = np.tile(self._template, n)
        else:
            first_call, calls = self._calls(n, [np.random.default_rng(s) for s in lengths])
        return Trace(
            arrival=poisson_arrivals(arrivals, n, arrival_rate),
            workflow=np.zeros(n, np.int64),
            rank=np.arange(n, dtype=np.int64),
            stage0=np.arange(n, dtype=np.int64) * stages,
            first_call=first_call,
            calls=calls,
        )

    def _calls(self, n: int, generators: list[np.random.Generator]) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        """Draws `Trace.first_call` and `Trace.calls` of n tasks; rounds repeat the prompt and output before them."""
        c = self._columns
        rng_count, rng_query, rng_output, rng_observation, rng_tool = generators
        u = 1.0 - rng_count.random((n, len(self.stages)))  # in (0, 1]
        number = np.minimum(1.0 + np.floor(np.log(u) / c["log_again"]), c["call_limit"]).astype(np.int64).reshape(-1)
        query = np.rint(c["query"] * _spread(c["query_sigma"], rng_query.standard_normal(u.shape))).reshape(-1)
        stage = np.repeat(np.tile(np.arange(len(self.stages)), n), number)  # of each call
        total = len(stage)
        draw = c["output"][stage] * np.exp(c["output_sigma"][stage] * rng_output.standard_normal(total))
        output = np.clip(np.rint(draw), _SHORTEST_OUTPUT, c["max_new"][stage])
        answer = np.rint(c["observation"][stage] * _spread(_OBSERVATION_SIGMA, rng_observation.standard_normal(total)))
        # Round k + 1 repeats prompt and output of round k, then adds the tool's answer.
        first = np.cumsum(number) - number
        grown = np.cumsum(output + answer)
        before = grown - output - answer
        suffix = np.repeat(query - before[first], number) + before
        history = suffix - np.concatenate(([0.0], answer[:-1]))
        history[first] = 0.0
        tool = c["tool_s"][stage] * np.minimum(np.exp(_TOOL_SIGMA * rng_tool.standard_normal(total)), 2 * _CUT)
        used = suffix <= c["context"][stage]  # within a stage prompts only grow, so this keeps its first calls
        used[first] = True
        number = np.add.reduceat(used, first, dtype=np.int64)
        first_call = np.zeros(len(number) + 1, np.int64)
        np.cumsum(number, out=first_call[1:])
        calls: NDArray[np.void] = np.zeros(int(first_call[-1]), CALL)
        columns = {"suffix": suffix, "history": history, "output": output, "max_new": c["max_new"][stage], "tool": tool}
        for name, values in columns.items():
            calls[name] = values[used]
        calls["tool"][first_call[1:] - 1] = 0.0  # the last call's answer ends the stage
        return first_call, calls


def _spread(sigma: NDArray[np.float64] | float, z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns lognormal factors of median 1, cut to [1 / 3, 3]."""
    factors: NDArray[np.float64] = np.clip(np.exp(sigma * z), 1 / _CUT, _CUT)
    return factors


def poisson_arrivals(seed: np.random.SeedSequence, num_tasks: int, arrival_rate: float) -> NDArray[np.float64]:
    """Returns ascending arrival times of a Poisson process, float64 (num_tasks,), seconds from 0."""
    return np.cumsum(np.random.default_rng(seed).standard_exponential(num_tasks)) / arrival_rate
