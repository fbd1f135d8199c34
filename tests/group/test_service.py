"""What a group is served with: values that cannot be, or that would do nothing, are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from anabranch.group._local import Silent, _complete
from anabranch.group.service import Service, Serving
from anabranch.pace import Asp
from anabranch.period import Gossip
from anabranch.plan import Star
from anabranch.scheduler.deal import ByShare
from anabranch.scheduler.paced import Serve
from anabranch.scheduler.stop_rules import StopRules

OVERLAY = _complete(3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"overlay": "aws-8"}, "overlay is 'aws-8', must be an Overlay"),
        ({"planner": Star}, r"planner is <class .*>, must be a planner .* such as Packed\(\)"),
        ({"awareness": "passive"}, "awareness is 'passive', must be a value of"),
        ({"pace": "asp"}, r"pace is 'asp', must be a value of anabranch.pace, such as Asp\(\)"),
        ({"pace": Asp}, "pace is <class .*>, must be a value of"),
        ({"gossip": True}, "gossip is True, must be an anabranch.period.Gossip"),
        ({"serving": Serve()}, "serving is Serve.*, must be a Serving"),
        ({"stop": {"rounds": 3}}, "stop is {'rounds': 3}, must be an anabranch.*StopRules"),
        ({"on_loss": "go on"}, "on_loss is 'go on', must be one of complete, retry, abort"),
        ({"on_error": "retry"}, "on_error is 'retry', must be one of lose, abort"),
        ({"serving": Serving(last_to="two")}, "serving.last_to is 'two', must be one of"),  # type: ignore[arg-type]
        ({"updates": 0}, "updates is 0, must be an integer from 1"),
        ({"updates": 2.5}, "updates is 2.5, must be an integer from 1"),
        ({"batch_size": -1}, "batch_size is -1, must be an integer from 0"),
        ({"batch_size": None}, "batch_size is None, must be an integer from 0"),
        ({"model_elements": 0}, "model_elements is 0, must be an integer from 1"),
        ({"under_way_bytes": -1}, "under_way_bytes is -1, must be an integer from 1"),
        ({"chunk_elements": 0}, "chunk_elements is 0, must be an integer from 1"),
        ({"least_chunk_elements": 0}, "least_chunk_elements is 0, must be an integer from 1"),
        ({"least_sites": 0}, "least_sites is 0, must be an integer from 1"),
        ({"begin_with": 0}, "begin_with is 0, must be an integer from 1"),
        ({"silence_s": -1.0}, "silence_s is -1.0, must be a number of seconds above 0"),
        ({"stillness_s": math.nan}, "stillness_s is nan, must be a number of seconds above 0"),
        ({"away_s": None}, "away_s is None, must be a number of seconds above 0"),
    ],
)
def test_a_value_that_cannot_be_is_refused_where_it_is_given(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{said}"):
        Service(**{"overlay": OVERLAY} | given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"after_s": "3"}, "after_s is '3', must be a number of seconds above 0"),
        ({"rounds": "3"}, "rounds is '3', must be an integer from 1"),
        ({"accuracy": "0.9"}, "accuracy is '0.9', must be above 0 and at most 1"),
        ({"loss": "0.1"}, "loss is '0.1', must be a finite number"),
    ],
)
def test_a_stop_rule_that_is_no_number_is_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        StopRules(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"updates": 5}, "updates is of a served model; give a pace"),
        ({"batch_size": 5}, "batch_size is of a served model; give a pace"),
        ({"gossip": Gossip(), "updates": 5}, "updates is of a served model; give a pace"),
        ({"serving": Serving(last_to="none")}, "serving.last_to is of a served model"),
        ({"serving": Serving(seed=3)}, "serving.seed is for the sites of a scenario"),
        ({"serving": Serving(look_every_s=3.0)}, "serving.look_every_s is for the sites of a"),
        ({"begin_with": 2, "on_loss": "abort"}, "begin_with is not for a group that a loss ends"),
        ({"begin_with": 4}, "begin_with is 4, and there are 3 sites"),
        ({"begin_with": 2, "least_sites": 3}, "begin_with is 2, and with fewer than least_sites"),
        ({"least_sites": 3, "on_loss": "abort"}, 'least_sites: on_loss = "abort" ends the group'),
        ({"deal": ByShare(cut="tensors"), "pace": Asp()}, 'deal.cut: "tensors" is of all-reduces'),
        ({"deal": ByShare(cut="tensors"), "gossip": Gossip()}, 'deal.cut: "tensors" is of all-r'),
        ({"chunk_elements": 5, "least_chunk_elements": 7}, "least_chunk_elements bounds chunks"),
    ],
)
def test_a_value_that_would_do_nothing_is_refused(given: dict[str, Any], said: str) -> None:
    service = Service(OVERLAY, **given)
    with pytest.raises(ValueError, match=f"^{said}"):
        service.scheduler(service.network(), "t", Silent())
