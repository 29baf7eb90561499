"""Calibration and fidelity from an engine's own log, on logs made by hand."""

import msgspec
import numpy as np
import pytest

from topas_bridge import _fidelity
from topas_bridge._calibrate_log import fit_log
from topas_bridge._engine_time import iterations, predicted_s, profile_of_stretch
from topas_bridge._fidelity import fidelity
from topas_bridge._steps import EngineLog, Request, Step, read_log
from topas_env import load_workload, simulate
from topas_env._errors import InputError
from topas_policies import make_policy

FACTS = {"version": "x", "model": "m", "device": "cpu", "kv": 4096, "slots": 16, "chunk": 512}
FACTS |= {"mixed": False, "overlap": True, "conservativeness": 0.5}


def made_log(batches=200, *, launch=1.0, slower_after=None):
    """A busy stretch, a pause of ten seconds, another stretch; times as a known engine has them."""
    rng = np.random.default_rng(0)
    steps, requests, calls = [], [], {}
    time = 100.0
    for stretch in range(2):
        name = f"r{stretch}"
        calls[name] = (time - 0.002, 0.0)
        requests.append(Request(name, time, False))
        for i in range(batches):
            prefill = i % 4 == 0
            n, tokens, context = rng.integers(1, 16), int(rng.integers(10, 500)), int(rng.integers(500, 4000))
            seconds = 0.004 + 1e-5 * tokens + 5e-6 * context if prefill else 0.002 + 3e-4 * n + 1e-6 * context
            if slower_after is not None and stretch >= slower_after:
                seconds *= 1.5
            ratio = 0.7 if stretch == 0 else 0.3
            seconds = float(seconds)
            steps.append(Step(time, launch * seconds, prefill, int(n), tokens, context, 0, ratio))
            time += seconds
        requests.append(Request(name, time, True))
        calls[name] = (calls[name][0], time + 0.003)
        time += 10.0
    return EngineLog(steps, requests), calls


def test_the_fit_finds_the_engine_that_made_the_log():
    fit = fit_log("p", *made_log(), FACTS)
    profile = fit.profile
    found = [profile.prefill_base_s, profile.prefill_s_per_token, profile.prefill_s_per_kv_token]
    found += [profile.step_base_s, profile.step_s_per_request, profile.step_s_per_kv_token, profile.call_latency_s]
    assert found == pytest.approx([0.004, 1e-5, 5e-6, 0.002, 3e-4, 1e-6, 0.005], rel=1e-6)
    assert profile.overlap
    assert (profile.reserve_ratio, profile.reserve_min_ratio) == (pytest.approx(0.35), pytest.approx(0.049))
    assert profile.reserve_decay_steps == 600
    assert max(fit.prefill_error, fit.step_error) < 1e-6
    assert fit.prefills + fit.steps == 398  # the last batch of each stretch has no successor


def test_a_log_that_is_too_short_is_refused():
    with pytest.raises(InputError, match="too few"):
        fit_log("p", *made_log(batches=4), FACTS)


def test_a_gpu_is_waited_for_in_the_round_after():
    log, _ = made_log(launch=0.1)
    ran = iterations(log)
    starts = np.array([s.start_s for s in log.steps])
    where = np.searchsorted(starts, ran.start_s)
    assert starts[where + 2] - starts[where + 1] == pytest.approx(ran.seconds)
    assert ran.seconds.max() < 1.0  # no pause among them


def test_a_stretch_has_the_speed_that_the_engine_had_in_it():
    log, calls = made_log(slower_after=1)
    profile = fit_log("p", *made_log(), FACTS).profile
    ran = iterations(log)
    middle = calls["r1"][0]
    first = profile_of_stretch(profile, ran, 0.0, middle)
    second = profile_of_stretch(profile, ran, middle, np.inf)
    assert first.step_base_s == pytest.approx(profile.step_base_s, rel=1e-6)
    assert second.step_base_s == pytest.approx(1.5 * profile.step_base_s, rel=1e-6)
    assert second.prefill_s_per_kv_token == pytest.approx(1.5 * profile.prefill_s_per_kv_token, rel=1e-6)
    assert first.reserve_ratio == second.reserve_ratio == profile.reserve_ratio
    constant = msgspec.structs.replace(profile, reserve_decay_steps=0)
    spans = ((0.0, middle), (middle, np.inf))
    ratios = [profile_of_stretch(constant, ran, *span).reserve_ratio for span in spans]
    assert ratios == [pytest.approx(0.7), pytest.approx(0.3)]
    assert profile_of_stretch(profile, ran, -2.0, -1.0) == profile
    assert predicted_s(second, ran)[-1] == pytest.approx(ran.seconds[-1], rel=1e-6)


def test_fidelity_uses_the_log_and_the_time_of_decisions(tmp_path, monkeypatch):
    log, calls = made_log(slower_after=1)
    (tmp_path / "steps-spf.jsonl").write_bytes(
        b"".join(msgspec.json.encode(entry) + b"\n" for entry in [*log.requests, *log.steps])
    )
    assert read_log(tmp_path / "steps-spf.jsonl") == log
    profile = msgspec.structs.replace(fit_log("p", *made_log(), FACTS).profile, kv_budget_tokens=60_000)
    workload = load_workload("chain-3", num_tasks=4, seed=0)
    ran = iterations(log)
    now = profile_of_stretch(profile, ran, calls["r1"][0], np.inf)
    jct = simulate(workload, make_policy("spf"), profile=now, seed=0, decision_time_s=0.25).jct_s
    line = {"policy": "spf", "trace": 0, "mean_jct_s": float(jct.mean()), "p99_jct_s": float(np.percentile(jct, 99))}
    line |= {"decision_ms": 250.0, "began_s": calls["r1"][0], "ended_s": 1e9}
    entry = fidelity([line], (workload,), profile, tmp_path).policies[0]
    assert 0.1 < entry.spread_percent < 3.0  # of runs at speeds that differ by 1%
    monkeypatch.setattr(_fidelity, "_SPEED_SPREAD", 0.0)
    monkeypatch.setattr(_fidelity, "_LATENCY_SPREAD", 0.0)
    entry = fidelity([line], (workload,), profile, tmp_path).policies[0]
    assert entry.spread_percent == pytest.approx(0.0, abs=1e-9)
    assert entry.mean_error_percent == pytest.approx(0.0, abs=1e-9)
    assert entry.p99_error_percent == pytest.approx(0.0, abs=1e-9)
    assert entry.slowness == pytest.approx(1.5, rel=1e-6)
    assert fidelity([line], (workload,), profile).policies[0].mean_error_percent < -5.0
