"""Settings and learning rates: which runs a search wants, and what it finds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from papers import Lab, Outcome, Trial
from papers._tuning import Tuned, Wanted, best_rates, search, together

Times = Callable[[Wanted[str]], float | None]


def found(settings: Sequence[str], times_s: Times) -> tuple[Tuned[str], list[Wanted[str]]]:
    made: list[Wanted[str]] = []

    def run(wanted: list[tuple[str, Wanted[str]]]) -> list[float | None]:
        made.extend(each for _, each in wanted)
        return [
            None if (at_s := times_s(each)) is None or at_s > each.most_s else at_s
            for _, each in wanted
        ]

    searches = {"it": search(settings, 0.4, (1000, 1001), 500.0)}
    return together(searches, run)["it"], made


def by_rate(**times_s: float) -> Times:
    known = {float(rate[1:].replace("_", ".")): each for rate, each in times_s.items()}
    return lambda wanted: known.get(wanted.rate)


def test_the_best_rate_is_one_that_has_a_worse_one_on_either_side() -> None:
    best, _ = found(["a"], by_rate(r0_2=90.0, r0_4=80.0, r0_8=70.0, r1_6=75.0))
    assert best == Tuned("a", 0.8, (70.0, 70.0))
    best, made = found(["a"], by_rate(r0_1=60.0, r0_2=50.0, r0_4=80.0))
    assert best.rate == 0.2
    assert {each.rate for each in made} == {0.1, 0.2, 0.4, 0.8}


def test_a_run_ends_a_quarter_later_than_the_best_of_its_seed() -> None:
    _, made = found(["a", "b"], lambda wanted: 80.0 if wanted.setting == "a" else 300.0)
    assert made[0].most_s == 500
    assert {each.most_s for each in made[2:]} == {100.0}


def test_where_none_gets_there_the_first_setting_has_the_first_rate() -> None:
    best, made = found(["a", "b"], lambda wanted: None)
    assert (best.setting, best.rate, best.times_s) == ("a", 0.4, (math.inf, math.inf))
    assert best.rate_told == "0.4 (the first tried: none got there)"
    assert {each.rate for each in made} == {0.025, 0.05, 0.1, 0.2, 0.4, 0.8}


def test_a_setting_whose_rates_are_others_is_tried_at_its_own() -> None:
    times_s = {("tuned", 0.1): 70.0, ("equal", 0.8): 30.0, ("equal", 1.6): 40.0}
    best, made = found(["tuned", "equal"], lambda of: times_s.get((of.setting, of.rate)))
    assert (best.setting, best.rate) == ("equal", 0.8)
    of_equal = [each.rate for each in made if each.setting == "equal"]
    assert list(dict.fromkeys(of_equal)) == [0.1, 0.4, 0.2, 0.8, 1.6]


def test_a_rate_that_fails_on_one_seed_does_not_win() -> None:
    def times_s(of: Wanted[str]) -> float | None:
        lucky = {0.4: 80.0, 0.8: 60.0, 1.6: 90.0}
        return None if of.rate == 0.8 and of.seed == 1001 else lucky.get(of.rate)

    best, made = found(["a"], times_s)
    assert best == Tuned("a", 0.4, (80.0, 80.0))
    # Nor is it a reason to go on upwards.
    assert {each.rate for each in made} == {0.2, 0.4, 0.8}


def test_a_later_setting_begins_with_the_best_rate_so_far_and_with_the_first() -> None:
    times_s = {"a": {0.4: 90.0, 0.8: 80.0, 1.6: 70.0}, "b": {3.2: 50.0}, "c": {}}
    best, made = found(["a", "b", "c"], lambda of: times_s[of.setting].get(of.rate))
    assert best == Tuned("b", 3.2, (50.0, 50.0))
    assert [each.rate for each in made if each.setting == "b"][::2] == [1.6, 0.4, 3.2, 6.4]
    assert [each.rate for each in made if each.setting == "c"][::2] == [
        3.2,
        0.4,
        6.4,
        0.8,
        1.6,
        0.2,
    ]


def test_searches_advance_together() -> None:
    rounds: list[int] = []

    def run(wanted: list[tuple[str, Wanted[str]]]) -> list[float | None]:
        rounds.append(len(wanted))
        return [each.rate + 1 for _, each in wanted]

    searches = {name: search([name], 0.4, [1000], 500.0) for name in "abc"}
    assert {name: each.rate for name, each in together(searches, run).items()} == {
        "a": 0.025,
        "b": 0.025,
        "c": 0.025,
    }
    assert rounds == [3] * 6


def test_each_scheme_has_its_best_rate_and_one_that_has_none_says_so() -> None:
    class Told(Lab):
        def measure(
            self, trials: Sequence[Trial], simulated: bool = False, may_abort: bool = False
        ) -> list[Outcome]:
            return [
                Outcome(of.labels, "", 1, 1.0, 1.0, 0, reached_s=reached_s)
                for of in trials
                for reached_s in [times_s[of.labels["name"]].get(of.labels["rate"])]
            ]

    times_s = {"low": {0.05: 60.0, 0.1: 50.0, 0.2: 80.0}, "never": {}}
    makes = {
        name: partial(
            lambda name, rate, seed, most_s: Trial({"name": name, "rate": rate}, None, None), name
        )
        for name in times_s
    }
    found, log = best_rates(Told(None), makes, {"low": 0.4, "never": 0.4}, [1000])
    told = {name: each.rate_told for name, each in found.items()}
    assert told == {"low": "0.1", "never": "0.4 (the first tried: none got there)"}
    assert [run.labels["rate"] for run in log["low"]] == [0.4, 0.8, 0.2, 0.1, 0.05]
