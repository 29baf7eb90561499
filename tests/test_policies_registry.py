"""Policies by name: what ships, what users register, what other distributions bring."""

import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from policy_cases import FIRST_NAMES
from topas_env import Decision, InputError, Snapshot
from topas_policies import FCFS, Policy, make_policy, policy_info, policy_names, register_policy
from topas_policies import _registry as registry


class Mine(Policy):
    """Admits nothing.

    More words.
    """

    name = "mine"

    def __init__(self, strength: float = 2.0, *, mode: str = "x") -> None:
        self.strength, self.mode = strength, mode

    def decide(self, snapshot: Snapshot) -> Decision:
        return Decision((), ())


@pytest.fixture
def empty_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations of a test end with it."""
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))


def test_shipped_names_come_first_and_make_their_policy() -> None:
    assert policy_names()[: len(FIRST_NAMES)] == FIRST_NAMES
    for name in FIRST_NAMES:
        policy = make_policy(name)
        assert policy.name == name
        assert policy.manages_prefixes == name.startswith("topas")
        policy.reset(seed=3)
        assert policy_info(name).summary.endswith((".", "best", "time"))


def test_every_call_makes_a_new_policy() -> None:
    assert make_policy("fcfs") is not make_policy("fcfs")


def test_info_lists_parameters_with_defaults() -> None:
    assert policy_info("gated-lpm").parameters == {"gate": 4}
    topas = policy_info("topas").parameters
    assert (topas["beta"], topas["rho"], topas["max_enumerated"], topas["max_changes"]) == (1.0, 0.5, 6, 0)
    assert set(policy_info("topas-reuse").parameters) == set(topas) - {"rho", "estimates"}
    assert set(policy_info("topas-aging").parameters) == set(topas) - {"beta", "estimates"}
    assert set(policy_info("topas-base").parameters) == set(topas) - {"beta", "rho", "estimates"}


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("topass", {}, ["'topass'", "topas"]),
        ("FCFS", {}, ["'FCFS'", "fcfs"]),
        ("nothing-like-it", {}, ["fcfs", "topas-aging"]),
        ("topas", {"betta": 1.0}, ["'betta'", "beta"]),
        ("topas-base", {"beta": 1.0}, ["topas-base", "'beta'"]),
        ("fcfs", {"beta": 1.0}, ["fcfs", "'beta'"]),
        ("topas", {"beta": -1.0}, ["beta", "-1.0"]),
        ("topas", {"beta": float("nan")}, ["beta", "nan"]),
        ("topas", {"rho": "much"}, ["rho", "'much'"]),
        ("topas", {"K": 1.5}, ["max_changes", "1.5"]),
        ("topas", {"M": 60}, ["max_enumerated", "60"]),
        ("topas", {"M": True}, ["max_enumerated", "True"]),
        ("topas", {"estimates": "mean"}, ["estimates", "'mean'", "point"]),
        ("topas", {"scenarios": 0}, ["scenarios", "0"]),
        ("topas", {"M": 2, "max_enumerated": 3}, ["M", "2", "3"]),
        ("gated-lpm", {"gate": 0}, ["gate", "0"]),
        ("no_such_module:Thing", {}, ["no_such_module"]),
        ("topas_policies:Thing", {}, ["Thing"]),
        ("topas_policies:__all__", {}, ["neither a class nor a function"]),
    ],
)
def test_bad_names_and_parameters(name: str, params: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        make_policy(name, **params)
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_paper_names_of_parameters() -> None:
    policy = make_policy("topas", M=2, K=3)
    assert (policy.max_enumerated, policy.max_changes) == (2, 3)


@pytest.mark.usefixtures("empty_slot")
def test_register_as_a_call_and_as_a_decorator() -> None:
    assert register_policy("mine", Mine) is Mine
    assert make_policy("mine", mode="y").mode == "y"
    assert "mine" in policy_names()
    assert policy_info("mine").summary == "Admits nothing."
    assert policy_info("mine").parameters == {"strength": 2.0, "mode": "x"}
    with pytest.raises(InputError, match="strength"):
        make_policy("mine", strenght=1.0)

    @register_policy("made.by_function-2")
    def build(strength: float) -> Mine:
        return Mine(strength)

    assert make_policy("made.by_function-2", strength=5.0).strength == 5.0
    with pytest.raises(InputError, match="needs the parameter 'strength'"):
        make_policy("made.by_function-2")


@pytest.mark.usefixtures("empty_slot")
def test_a_name_is_taken_once() -> None:
    with pytest.raises(InputError, match="taken"):
        register_policy("fcfs", Mine)
    register_policy("fcfs", Mine, replace=True)
    assert isinstance(make_policy("fcfs"), Mine)
    with pytest.raises(InputError, match="letters"):
        register_policy("a b", Mine)


def test_class_by_module_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "class Theirs:",
        "    name = 'theirs'",
        "    def __init__(self, x=1): self.x = x",
        "    def reset(self, *, seed=None): pass",
        "    def decide(self, snapshot): pass",
        "class Nothing: name = 'nothing'",
    ]
    (tmp_path / "their_policy.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert make_policy("their_policy:Theirs", x=4).x == 4
        with pytest.raises(InputError, match="a Nothing has no 'reset'"):
            make_policy("their_policy:Nothing")
    finally:
        sys.modules.pop("their_policy", None)


def test_entry_points_of_other_distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution on the path brings a policy by its metadata alone; one that cannot be imported says so."""
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[topas_env.policies]\nfrom-theirs = topas_policies:FCFS\nbroken = topas_policies.missing:FCFS\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {p.name for p in metadata.entry_points(group="topas_env.policies")} >= {"from-theirs", "broken"}
    assert [name for name in policy_names() if name in ("broken", "from-theirs")] == ["broken", "from-theirs"]
    assert isinstance(make_policy("from-theirs"), FCFS)
    with pytest.raises(InputError, match=r"topas_policies\.missing"):
        make_policy("broken")
    with pytest.raises(InputError, match="taken"):
        register_policy("from-theirs", Mine)


def test_a_subclass_has_no_compiled_path() -> None:
    """It may order or decide otherwise, so the kernel of its parent's name must not run in its place."""

    class Backwards(FCFS):
        def order(self, lookup: Any) -> Any:
            return super().order(lookup)[::-1]

    assert FCFS().compiled() is not None
    assert Backwards().compiled() is None
    assert type("Other", (type(make_policy("topas")),), {})().compiled() is None
