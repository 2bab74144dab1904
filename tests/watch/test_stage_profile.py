"""The stage profile against a clock that the test owns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wyrmling.watch.profile import STAGES, StageProfile


class FakeClock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


def test_each_stage_gets_the_time_between_its_borders() -> None:
    clock = FakeClock()
    profile = StageProfile(clock)
    for number, name in enumerate(STAGES, start=1):
        clock.now += 5
        with profile.stage(name):
            clock.now += 10**number
    figures = profile.figures()
    assert [figures[f"{name}_ns"] for name in STAGES] == [10**n for n in range(1, len(STAGES) + 1)]
    assert figures["other_ns"] == 5 * len(STAGES)


_trees = st.recursive(
    st.just([]),
    lambda children: st.lists(
        st.tuples(st.sampled_from(STAGES), st.integers(0, 50), children, st.integers(0, 50)), max_size=4
    ),
    max_leaves=20,
)


@given(_trees)
def test_nested_stages_add_up_to_the_total_and_the_inner_one_owns_its_time(tree: list) -> None:
    clock = FakeClock()
    profile = StageProfile(clock)
    expected = dict.fromkeys(STAGES, 0)
    entered = dict.fromkeys(STAGES, 0)

    def walk(nodes: list) -> None:
        for name, before, children, after in nodes:
            with profile.stage(name):
                clock.now += before
                walk(children)
                clock.now += after
            expected[name] += before + after
            entered[name] += 1

    walk(tree)
    clock.now += 7
    figures = profile.figures()
    assert profile.nanoseconds == expected
    assert profile.entered == entered
    assert figures["other_ns"] == 7
    assert figures["total_ns"] == sum(expected.values()) + 7


def test_a_stage_that_raises_is_counted_and_closed() -> None:
    clock = FakeClock()
    profile = StageProfile(clock)
    try:
        with profile.stage("backward"):
            clock.now += 3
            raise ArithmeticError
    except ArithmeticError:
        pass
    clock.now += 4
    figures = profile.figures()
    assert (figures["backward_ns"], figures["other_ns"]) == (3, 4)


def test_the_summary_is_one_line_of_pairs_in_a_fixed_order() -> None:
    clock = FakeClock()
    profile = StageProfile(clock)
    with profile.stage("validation"):
        clock.now += 2
    for _ in range(3):
        profile.step_done()
    assert profile.summary() == (
        "[stage-profile][training] total_ns=2 data_ns=0 copy_ns=0 forward_ns=0 backward_ns=0 "
        "optimizer_ns=0 validation_ns=2 checkpoint_ns=0 logging_ns=0 other_ns=0 "
        "train_steps=3 validations=1 checkpoints=0"
    )


def test_restart_forgets_everything_before() -> None:
    clock = FakeClock()
    profile = StageProfile(clock)
    with profile.stage("data"):
        clock.now += 100
    profile.step_done()
    profile.restart()
    clock.now += 1
    assert profile.figures()["total_ns"] == 1
    assert profile.train_steps == 0


def test_the_real_clock_never_runs_backwards() -> None:
    profile = StageProfile()
    with profile.stage("data"):
        sum(range(1000))
    figures = profile.figures()
    assert 0 < figures["data_ns"] <= figures["total_ns"]
