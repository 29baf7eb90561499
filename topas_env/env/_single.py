"""The environment with one engine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from topas_env._core.world import END
from topas_env._decision import Decision
from topas_env._errors import InputError
from topas_env._profile import EngineProfile
from topas_env._snapshot import Snapshot
from topas_env._workload import Workload
from topas_env.env._actions import bits_of, decisions, encode, indices_of
from topas_env.env._batch import Batch, Info, Observation
from topas_env.env._frames import frame
from topas_env.env._settings import json_ready, make_settings, trace_seed
from topas_env.env._spaces import action_space, observation_space

__all__ = ["TopasPrefixStateEnv"]


class TopasPrefixStateEnv(gym.Env[Observation, Any]):
    """Decide which agent prefixes stay in the KV cache and which requests run beside them.

    ## Description
    One LLM serving engine runs tasks that are workflows: DAGs of stages, each stage one or more calls to an agent. All
    calls of an agent start with the same static prefix, and the KV cache holds prefixes and running requests together
    under one budget. At a scheduling point (since the last one a request became ready or finished, and one is ready)
    the agent chooses the *post-decision state*: the set of resident prefixes and the set of running requests. What
    leaves is preempted or released, what enters is loaded or computed, and the simulator runs on to the next point.

    The problem is that of TOPAS (arXiv 2608.25523); the engine's physics are those of its profile.

    ## Action Space
    With `action_mode="candidates"`: `Discrete(max_candidates)`. Index 0 keeps everything as it is; the others are the
    states that each baseline and TOPAS would choose, the best state of each prefix set, and variants. Indices from the
    number of candidates on are forbidden by the mask; one of them keeps the incumbent and sets
    `info["invalid_action"]`.

    With `action_mode="state"`: `Dict(prefixes=MultiBinary(max_agents), requests=MultiBinary(max_requests))`, the state
    itself. Agents are in the sorted order of their names. Requests: running ones in snapshot order, then ready ones by
    task arrival and id; they are admitted in this order. Bits without an agent or request behind them are ignored;
    agents and requests without a bit stay as they are and are counted in `info["overflow"]`. An infeasible state keeps
    the incumbent, and `info["violation"]` says which constraint it breaks.

    ## Observation Space
    A `Dict` of flat float32 boxes, finite and bounded; times and counts are on a log scale.

    | entry | mode | shape | what |
    |---|---|---|---|
    | `global` | both | `(G,)` | the engine and the queue |
    | `candidates` | candidates | `(max_candidates * F,)` | a matrix, row-major; rows without a candidate are 0 |
    | `action_mask` | candidates | `(max_candidates,)` | 1 where there is a candidate |
    | `agents` | state | `(max_agents * A,)` | likewise |
    | `requests` | state | `(max_requests * R,)` | likewise |

    The names of the columns are `GLOBAL_FEATURES` and `CANDIDATE_FEATURES` of `topas_env._core.features`, and
    `AGENT_ROW_FEATURES` and `REQUEST_ROW_FEATURES` of `topas_env._core.rows`.

    ## Rewards
    Minus the integral of the number of unfinished tasks over the simulated time of the step, divided by `reward_scale`.
    So with a scale of 1 the return of an episode is minus the sum of the tasks' job completion times (JCT), and the
    right discount is 1.

    ## Starting State
    An empty engine before the first arrival, run on to the first choice. `reset(seed=...)` seeds the stream that the
    traces of this and the following episodes come from; actions never change a trace.
    `reset(options={"trace_seed": k})` takes the trace of `load_workload(..., seed=k)` instead; `info["trace_seed"]`
    says which one it is.

    ## Episode End
    Terminated when all tasks are finished; `info["jct_s"]` then holds the JCT of each, float64 (num_tasks,). There is
    no truncation. Where a decision leaves nothing running and nothing is to come, the oldest ready request is admitted
    by force and `info["forced_admission"]` is True, so that every sequence of actions comes to an end.

    ## Arguments
    | argument | default | what |
    |---|---|---|
    | `workload` | `"dag-4"` | a shipped name, the path of a workload file, or the content of one as a dict |
    | `arrival_rate` | None | tasks per second; the workload's own by default |
    | `num_tasks` | None | tasks of an episode; the workload's own number by default |
    | `profile` | `"qwen2.5-32b-a100-80g"` | a shipped name, a path or a dict |
    | `max_candidates` | 32 | actions in the candidates mode |
    | `candidate_list` | `"full"` | or `"short"`: what cheap queue orders would choose and parts of it, no search |
    | `action_mode` | `"candidates"` | or `"state"` |
    | `max_agents` | None | rows of agents in the state mode; as many as the workload has by default |
    | `max_requests` | None | rows of requests in the state mode; 128 by default |
    | `skip_forced` | True | pass points with a single candidate without asking; the return stays the same |
    | `reward_scale` | 1.0 | what rewards are divided by |
    | `host_tier`, `eviction` | None | instead of the profile's own |
    | `profile_overrides` | None | a dict of further fields of the profile |
    | `decision_time_s` | None | simulated seconds for which the engine stands still after each decision |
    | `beta`, `rho` | 1.0, 0.5 | reuse and aging of the score that ranks candidates |
    | `render_mode` | None | `"ansi"` (a few lines of text) or `"rgb_array"` (Gantt and memory of the recent past) |

    All of them survive `EnvSpec.to_json`.

    >>> import gymnasium as gym, topas_env
    >>> env = gym.make("TopasPrefixState-v0", workload="dag-4", arrival_rate=0.10, num_tasks=20)
    >>> obs, info = env.reset(seed=0)
    >>> total, terminated = 0.0, False
    >>> while not terminated:
    ...     action = int(info["action_mask"].nonzero()[0][-1])
    ...     obs, reward, terminated, truncated, info = env.step(action)
    ...     total += reward
    >>> bool(abs(total + info["jct_s"].sum()) < 1e-6)
    True
    >>> env.close()

    A policy decides in the environment too:

    >>> from topas_policies import make_policy
    >>> env = gym.make("TopasPrefixState-v0", workload="dag-4", num_tasks=20)
    >>> obs, info = env.reset(seed=0)
    >>> decision = make_policy("spf").decide(env.unwrapped.snapshot())
    >>> index = env.unwrapped.encode(decision)
    >>> env.unwrapped.candidates()[index] == decision
    True
    >>> obs, reward, terminated, truncated, info = env.step(index)

    ## Version History
    * v0: first version.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        workload: str | Path | Mapping[str, Any] | Workload = "dag-4",
        arrival_rate: float | None = None,
        num_tasks: int | None = None,
        profile: str | Path | dict[str, Any] | EngineProfile = "qwen2.5-32b-a100-80g",
        max_candidates: int = 32,
        candidate_list: str = "full",
        action_mode: str = "candidates",
        max_agents: int | None = None,
        max_requests: int | None = None,
        skip_forced: bool = True,
        reward_scale: float = 1.0,
        host_tier: str | None = None,
        eviction: str | None = None,
        profile_overrides: Mapping[str, Any] | None = None,
        decision_time_s: float | None = None,
        beta: float = 1.0,
        rho: float = 0.5,
        render_mode: str | None = None,
    ) -> None:
        settings = make_settings(
            workload=workload,
            arrival_rate=arrival_rate,
            num_tasks=num_tasks,
            profile=profile,
            max_candidates=max_candidates,
            candidate_list=candidate_list,
            action_mode=action_mode,
            max_agents=max_agents,
            max_requests=max_requests,
            skip_forced=skip_forced,
            reward_scale=reward_scale,
            host_tier=host_tier,
            eviction=eviction,
            profile_overrides=profile_overrides,
            decision_time_s=decision_time_s,
            beta=beta,
            rho=rho,
            render_mode=render_mode,
        )
        self.render_mode = render_mode
        self.observation_space: Any = observation_space(settings)
        self.action_space = action_space(settings)
        self._settings = settings
        self._state = settings.mode == "state"
        self._scale = settings.reward_scale
        self._batch = Batch(settings, 1)
        self._allowed: NDArray[np.bool_] | None = None
        self._spec: EnvSpec | None = None

    @property
    def spec(self) -> EnvSpec | None:
        """The specification that `gym.make` was given, its arguments as what JSON can hold."""
        return self._spec

    @spec.setter
    def spec(self, value: EnvSpec | None) -> None:
        if value is not None:
            value.kwargs = {name: json_ready(item) for name, item in value.kwargs.items()}
        self._spec = value

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Info]:
        """Starts an episode.

        Args:
            seed: Of the stream of traces; None goes on with it.
            options: `trace_seed`, the seed of this episode's trace.

        Raises:
            InputError: A request of the workload does not fit the engine, or an option is unknown.
        """
        super().reset(seed=seed)
        chosen = trace_seed(self.np_random, options)
        output = self._batch.output()
        self._batch.start([0], [chosen], output)
        obs, info = self._describe(output)
        info["trace_seed"] = chosen
        return obs, info

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, Info]:
        """Brings the engine into the chosen state and runs on to the next choice.

        Args:
            action: See the action space.

        Raises:
            InputError: The shape or type of the action is wrong; a forbidden action does not raise.
        """
        batch = self._batch
        output = batch.output()
        if self._state:
            arrays: tuple[NDArray[Any], ...] = bits_of(action, self._settings, 1)
        else:
            arrays = (indices_of(action, 1),)
        status, invalid, _, _, forced, _, reward, _, _ = batch.step(arrays, output).item()
        obs, info = self._describe(output)
        terminated = status == END
        if invalid:
            if self._state:
                info["violation"] = batch.violation(0, invalid)
            else:
                info["invalid_action"] = True
        if forced:
            info["forced_admission"] = True
        if terminated:
            info["jct_s"] = batch.world(0).jct.copy()
        return obs, reward / self._scale, terminated, False, info

    def _describe(self, output: Any) -> tuple[Observation, Info]:
        obs = {name: part[0] for name, part in self._batch.observation(output).items()}
        if self._state:
            return obs, {"overflow": int(self._batch.report["overflow"][0])}
        self._allowed = allowed = output.allowed[0]
        return obs, {"action_mask": allowed}

    def action_masks(self) -> NDArray[np.bool_]:
        """Returns the actions that are allowed now, bool (max_candidates,), as sb3-contrib asks for them."""
        if self._allowed is None:
            raise InputError("action_masks: there are masks after reset, with action_mode 'candidates'")
        return self._allowed.copy()

    def candidates(self) -> list[Decision]:
        """Returns the decisions behind the allowed actions, in their order."""
        return decisions(self._batch, 0)

    def snapshot(self) -> Snapshot:
        """Returns what a policy may know now."""
        return self._batch.snapshot(0)

    def encode(self, decision: Decision) -> Any:
        """Returns the action that carries a decision out.

        Args:
            decision: Of a policy, on `snapshot()`.

        Raises:
            InputError: It names what is not there, or is not among the candidates.
        """
        return encode(self._batch, 0, decision)

    def render(self) -> Any:
        """Returns a text or a picture of the engine, by `render_mode`."""
        if self.render_mode is None:
            gym.logger.warn("render() needs a render_mode: gym.make(..., render_mode='ansi') or 'rgb_array'")
            return None
        return frame(self._batch, 0)

    def close(self) -> None:
        """Releases what the environment holds; may be called twice."""
        self._batch.close()
