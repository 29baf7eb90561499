"""Requests with a way of their own through SGLang: adapters, grammars, several answers; and the host tier."""

import re

import pytest

from engine.engine_kit import assert_clean, bridge, outcomes, server
from topas_bridge.testing import make_prompts, make_tiny_adapter
from topas_bridge.testing._no_gpu import hicache_flags, ngram_flags

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def compare(tiny_model, prompts, *flags, policy="chaos-preempt", **variables):
    """Outputs of SGLang alone and with the bridge, which must be the same, and the bridge's state."""
    with server(tiny_model, None, *flags, **variables) as plain:
        expected = outcomes(plain, prompts)
    assert [outcome.detail for outcome in expected if outcome.reason not in ("length", "stop")] == []
    with server(tiny_model, bridge(policy), *flags, **variables) as running:
        found = outcomes(running, prompts)
        assert [i for i, outcome in enumerate(found) if outcome.tokens != expected[i].tokens] == []
        state = assert_clean(running)
    assert state["faults"] == {}
    return expected, state


def test_adapters(tiny_model, tmp_path):
    paths = [f"a{i}={make_tiny_adapter(tmp_path / f'a{i}', seed=i)}" for i in range(2)]
    flags = ["--enable-lora", "--lora-backend", "torch_native", "--max-loras-per-batch", "3", "--lora-paths", *paths]
    plain = make_prompts(90, seed=11, rate=40.0)
    prompts = [p if i % 3 == 0 else p._replace(body={"lora_path": f"a{i % 3 - 1}"}) for i, p in enumerate(plain)]
    prompts += [plain[0]._replace(delay_s=4.0, body={"lora_path": name}) for name in ("a0", "a1")]
    expected, state = compare(tiny_model, prompts, *flags, TOPAS_TEST_NO_GPU="1")
    assert state["counts"]["preemptions"] > 10
    assert len({tuple(expected[i].tokens) for i in (0, -2, -1)}) == 3  # each adapter changes the output


def test_grammars(tiny_model):
    """A request with a grammar is never preempted; its output obeys the grammar."""
    flags = ["--grammar-backend", "llguidance"]
    prompts = [
        p._replace(sampling={"regex": "(ab|cd){5,40}", "ignore_eos": False}) if i % 3 == 0 else p
        for i, p in enumerate(make_prompts(60, seed=12, rate=40.0))
    ]
    expected, state = compare(tiny_model, prompts, *flags)
    assert state["counts"]["preemptions"] > 5
    letters = {3 + i: letter for i, letter in enumerate(byte_letters())}
    for i in range(0, 60, 3):
        text = "".join(letters.get(token, "") for token in expected[i].tokens)
        assert re.match("(ab|cd)+[ac]?$", text), text


def byte_letters():
    """The tiny tokenizer's tokens after its three special ones."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def test_several_answers(tiny_model):
    prompts = [
        p._replace(sampling={"n": 3}) if i % 4 == 0 else p for i, p in enumerate(make_prompts(60, seed=13, rate=30.0))
    ]
    expected, state = compare(tiny_model, prompts)
    assert state["counts"]["preemptions"] > 5
    assert len(expected[0].tokens) == 3 * prompts[0].output_tokens


def test_ngram_drafts(tiny_model):
    """Speculative decoding: trees of drafts from earlier text; outputs are those without, preempted or not."""
    prompts = make_prompts(120, seed=21, rate=80.0)
    with server(tiny_model, None) as plain:
        expected = outcomes(plain, prompts)
    with server(tiny_model, bridge("chaos-rotate"), *ngram_flags(), TOPAS_TEST_NO_GPU="1") as running:
        for _ in range(4):
            found = outcomes(running, prompts)
            assert [outcome.detail for outcome in found if outcome.reason != "length"] == []
            assert [i for i, outcome in enumerate(found) if outcome.tokens != expected[i].tokens] == []
        sampling = {"max_new_tokens": 40, "ignore_eos": True, "temperature": 0}
        answer = running.post("/generate", {"input_ids": prompts[0].tokens, "sampling_params": sampling})
        assert answer["meta_info"]["spec_num_correct_drafts"] > 5  # the text is there to draft from
        state = assert_clean(running)
    assert state["faults"] == {}
    assert state["counts"]["preemptions"] > 10


@pytest.mark.parametrize("evict", ["lazy", "forced"])
def test_host_tier(tiny_model, evict):
    """HiCache: what is evicted comes back from host memory, with the same outputs."""
    prompts = make_prompts(150, seed=14, agents=8)
    variables = {"TOPAS_TEST_NO_GPU": "1"}
    with server(tiny_model, None) as plain:
        expected = outcomes(plain, prompts)
    config = bridge("chaos-preempt", evict=evict)
    with server(tiny_model, config, *hicache_flags(), python_core=True, **variables) as running:
        found = outcomes(running, prompts)
        assert [outcome.detail for outcome in found if outcome.reason != "length"] == []
        assert [i for i, outcome in enumerate(found) if outcome.tokens != expected[i].tokens] == []
        state = assert_clean(running)
    assert state["faults"] == {}
    assert state["counts"]["preemptions"] > 10
    assert sum(outcome.host_tokens for outcome in found) > 0
