"""What the planner guesses of what a view hides: lengths and numbers of calls, the engine's speeds."""

import math

import numpy as np

from topas_env._core.jit import i64, inner
from topas_env._core.layout import View
from topas_env._core.plan_state import MOST_CALLS, Planner

__all__ = ["SINGLE_CALL", "guess_physics", "guess_stages", "sample_calls", "sample_output", "uniform"]

_CHUNK = 8192  # tokens of a prefill batch; a snapshot does not say
SINGLE_CALL = 1.02  # a stage with so few calls on average is taken to have one


@inner
def _mix(x: np.uint64, k: int) -> np.uint64:
    """Stirs k into x (the output function of splitmix64; Steele, Lea and Flood, 2014)."""
    x = (x ^ np.uint64(k)) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@inner
def uniform(seed: int, a: int, b: int, c: int, d: int) -> float:
    """Returns a number in (0, 1) that depends on nothing but the arguments."""
    x = _mix(_mix(_mix(_mix(np.uint64(seed), i64(a)), i64(b)), i64(c)), i64(d))
    return (float(x >> np.uint64(11)) + 0.5) * 2.0**-53


@inner
def guess_stages(v: View, q: Planner) -> None:
    """Gathers what the view says of the calls of each stage.

    Prompts and limits of calls to come are those of the stage's requests in the view, on average; without any those of
    its agent's requests, then of all requests; then the mean observed output (of the stage, else 256) stands for both.
    """
    h = v.head[0]
    n_stages = len(v.stages)
    n_agents = len(v.agents)
    sums = np.zeros((n_stages + n_agents + 1, 3))
    for i in range(h.n_running + h.n_ready):
        row = v.running[i] if i < h.n_running else v.ready[i - h.n_running]
        r = v.requests[row]
        for k in (i64(r.stage), i64(n_stages + r.agent), i64(n_stages + n_agents)):
            sums[k, 0] += 1.0
            sums[k, 1] += r.suffix
            sums[k, 2] += r.max_new
    for s in range(n_stages):
        g = q.guess[s]
        stat = v.stats[s]
        n = 0
        total = 0.0
        for i in range(stat.n_calls):
            if v.call_outputs[s, i] > 0:
                q.outs[s, n] = v.call_outputs[s, i]
                total += v.call_outputs[s, i]
                n += 1
        q.outs[s, :n].sort()
        g.n_out = n
        g.call_s = stat.mean_call
        g.calls = 1.0
        if stat.n_totals > 0 and stat.n_calls > 0 and stat.mean_call > 0.0:
            sum_totals = 0.0
            for i in range(stat.n_totals):
                sum_totals += v.ordered[s, i]
            g.calls = max(1.0, sum_totals / stat.n_totals / stat.mean_call)
        k = s
        if sums[k, 0] == 0.0:
            k = n_stages + v.stages[s].agent
        if sums[k, 0] == 0.0:
            k = n_stages + n_agents
        if sums[k, 0] > 0.0:
            g.suffix = i64(sums[k, 1] / sums[k, 0])
            g.max_new = i64(sums[k, 2] / sums[k, 0])
        else:
            g.suffix = i64(total / n) if n > 0 else 256
            g.max_new = g.suffix
        if n > 0:
            g.max_new = max(g.max_new, q.outs[s, n - 1])


@inner
def sample_output(q: Planner, stage: int, generated: int, max_new: int, u: float) -> int:
    """Samples the output of a call that has yielded `generated` tokens; u < 0 asks for the conditional mean.

    From the stage's observed outputs above `generated`. Where none is, the rest is uniform up to the limit; for a
    stage with observations, up to a quarter of it.
    """
    n = q.guess[stage].n_out
    low = np.searchsorted(q.outs[stage, :n], generated, side="right")
    if low < n:
        if u < 0.0:
            total = 0.0
            for i in range(low, n):
                total += q.outs[stage, i]
            out = i64(round(total / (n - low)))
        else:
            out = q.outs[stage, low + i64(u * (n - low))]
    else:
        left = max(max_new - generated, 1) * (0.25 if n > 0 else 1.0)
        out = generated + i64(math.ceil(left * (0.5 if u < 0.0 else u)))
    if max_new > generated:
        out = min(out, max_new)
    return int(max(out, generated + 1))


@inner
def sample_calls(v: View, q: Planner, stage: int, spent: float, least: int, u: float) -> int:
    """Samples how many calls of a stage are still to come, the present one included.

    Total service is drawn from what finished stages received, above `spent`, and divided by the mean service of a call.
    """
    g = q.guess[stage]
    if g.calls <= SINGLE_CALL:
        return least
    n = v.stats[stage].n_totals
    row = v.ordered[stage]
    low = np.searchsorted(row[:n], spent, side="right")
    if low >= n:
        return least
    if u < 0.0:
        total = 0.0
        for i in range(low, n):
            total += row[i]
        total /= n - low
    else:
        total = row[low + i64(u * (n - low))]
    return int(min(max(i64(round((total - spent) / g.call_s)), least), MOST_CALLS))


@inner
def guess_physics(v: View, q: Planner) -> None:
    """Takes the engine from the believed costs: every step lasts `decode_s_per_token`, chunks are SGLang's default.

    A host tier is there unless making a prefix resident costs what its prefill costs.
    """
    h = v.head[0]
    p = q.physics[0]
    p.prefill_base = h.prefill_base
    p.prefill_token = h.prefill_token
    p.chunk = _CHUNK
    p.mixed = 0
    p.step_base = h.decode_token
    p.step_request = 0.0
    p.step_kv = 0.0
    p.load_token = h.load_token
    p.offload_token = h.offload_token
    p.rebuild_decode = 1 if h.rebuild_token == h.decode_token else 0
    p.tier = 0 if h.load_token >= h.prefill_token and h.offload_token == 0.0 else 1
    p.eager = 0
    p.decision = 0.0
