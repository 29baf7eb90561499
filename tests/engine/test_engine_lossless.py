"""Greedy outputs are the same, token by token, with our plugin and without it, and the comparison could fail."""

import pytest

from engine.engine_kit import assert_clean, bridge, outcomes, server
from topas_bridge._serve import ENGINE_POLICIES
from topas_bridge.testing import make_prompts
from topas_bridge.testing._chaos import CORRUPT
from topas_policies import policy_names

pytestmark = pytest.mark.engine
COUNT = 200
# Those that misbehave on purpose are registered too, and belong to the soak.
PLUGGED = [name for name in policy_names() if name not in ENGINE_POLICIES and not name.startswith("chaos")]


@pytest.fixture(scope="module")
def prompts():
    return make_prompts(COUNT, seed=1)


@pytest.fixture(scope="module")
def reference(tiny_model, prompts):
    """SGLang alone: the outputs, and the control that they depend on the whole context."""
    with server(tiny_model, None) as plain:
        first = outcomes(plain, prompts)
        slower = outcomes(plain, [prompt._replace(delay_s=2 * prompt.delay_s) for prompt in prompts[:50]])
        changed = [prompt._replace(tokens=[prompt.tokens[0] ^ 1, *prompt.tokens[1:]]) for prompt in prompts[:50]]
        other = outcomes(plain, changed)
    assert {outcome.reason for outcome in first} == {"length"}, [o for o in first if o.reason != "length"][:3]
    # The batch that a request happens to be in changes nothing, one token at the start of the context does.
    assert [outcome.tokens for outcome in slower] == [outcome.tokens for outcome in first[:50]]
    differ = sum(a.tokens != b.tokens for a, b in zip(other, first, strict=False))
    assert differ > 25  # 39 of 50 with this seed
    return [outcome.tokens for outcome in first]


def check(running, prompts, reference):
    found = outcomes(running, prompts)
    assert [outcome.reason for outcome in found] == ["length"] * len(prompts), [
        o for o in found if o.reason != "length"
    ][:3]
    assert [i for i, outcome in enumerate(found) if outcome.tokens != reference[i]] == []
    state = assert_clean(running)
    assert state["faults"] == {}
    assert state["decisions"] > 20
    return found, state


def test_every_policy_in_turn_with_forced_preemption(tiny_model, prompts, reference):
    with server(tiny_model, bridge("chaos-rotate")) as running:
        found, state = check(running, prompts, reference)
    assert state["counts"]["preemptions"] > 10
    assert sum(outcome.retractions for outcome in found) >= state["counts"]["preemptions"]


def test_forced_eviction_and_chunked_prefill_on_the_python_core(tiny_model, prompts, reference):
    config = bridge("chaos-preempt", evict="forced")
    with server(tiny_model, config, "--chunked-prefill-size", "128", python_core=True) as running:
        assert running.state()["can_evict"]
        _, state = check(running, prompts, reference)
        assert state["counts"]["preemptions"] > 10
        assert state["prefix_moves"]["pin"] > 4
        assert state["prefix_moves"]["evict"] > 0
        # The comparison would have noticed: with one token of the KV overwritten, the same requests answer otherwise.
        damaged = [prompt._replace(delay_s=prompt.delay_s / 2) for prompt in prompts[:40]]
        damaged[20] = damaged[20]._replace(tags={"agent": CORRUPT})
        found = outcomes(running, damaged)
    assert any(outcome.tokens != reference[i] for i, outcome in enumerate(found))


@pytest.mark.slow
@pytest.mark.parametrize("policy", [*PLUGGED, "chaos-all", "chaos-hold"])
def test_policy(tiny_model, prompts, reference, policy):
    with server(tiny_model, bridge(policy)) as running:
        check(running, prompts, reference)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ("--disable-overlap-schedule",),
        ("--chunked-prefill-size", "128", "--enable-mixed-chunk"),
        ("--page-size", "16"),
        ("--schedule-policy", "lpm"),
    ],
)
def test_mode(tiny_model, prompts, reference, flags):
    with server(tiny_model, bridge("chaos-rotate"), *flags) as running:
        _, state = check(running, prompts, reference)
    assert state["counts"]["preemptions"] > 10
