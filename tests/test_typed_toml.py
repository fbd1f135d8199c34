"""Files that people write: every shape of table is read, and a wrong key is named with its fix."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from anabranch import overlay
from anabranch._typed_toml import Table, TomlError, converted, decode_toml, nearest


class Plain(Table, frozen=True, kw_only=True):
    speed: Annotated[float, Meta(gt=0)] = 1.0
    steps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.steps) > 2:
            raise ValueError(f"{len(self.steps)} steps are too many; give two")


class Star(Table, frozen=True, kw_only=True, tag_field="kind", tag="star"):
    hub: str | None = None


class Fapt(Table, frozen=True, kw_only=True, tag_field="kind", tag="fapt"):
    roots: int | tuple[str, ...] | None = None


class Bsp(Table, frozen=True, kw_only=True, tag_field="kind", tag="bsp"):
    late: Literal["drop", "keep"] | None = None
    most: int | Literal["all"] = "all"
    bits: Literal[16, 32] = 32


Route = Star | Fapt


class Needy(Table, frozen=True, kw_only=True):
    rate_bps: float


class Many(Table, frozen=True, kw_only=True):
    each: dict[str, Needy]


class File(Table, frozen=True, kw_only=True):
    route: Route | list[Route] = Star()
    pace: Bsp = Bsp()
    sites: dict[str, Plain] = msgspec.field(default_factory=dict)
    nested: dict[str, dict[str, Plain]] = msgspec.field(default_factory=dict)
    rates: dict[str, float] = msgspec.field(default_factory=dict)
    plain: Plain | None = None
    fault: list[Route] = msgspec.field(default_factory=list)
    more: tuple[Route, ...] = ()
    pair: tuple[str, str] | None = None
    both: tuple[Plain, Star] | None = None


def test_a_table_may_stand_alone_or_in_a_list() -> None:
    assert decode_toml('[route]\nkind = "star"', File).route == Star()
    two = '[[route]]\nkind = "star"\n[[route]]\nkind = "fapt"\nroots = 3'
    assert decode_toml(two, File).route == [Star(), Fapt(roots=3)]


def test_a_choice_may_be_a_number() -> None:
    assert decode_toml('pace = {kind = "bsp", bits = 16}', File).pace == Bsp(bits=16)


def test_tables_by_name_keep_any_name() -> None:
    read = decode_toml('[sites.new-york]\nspeed = 2\n[sites."a.b c"]\nsteps = [1]', File)
    assert read.sites == {"new-york": Plain(speed=2.0), "a.b c": Plain(steps=(1,))}


def test_what_was_read_makes_the_round_trip_as_json() -> None:
    read = decode_toml('[[route]]\nkind = "fapt"\n[[more]]\nkind = "star"\n[sites.a]', File)
    assert msgspec.json.decode(msgspec.json.encode(read), type=File) == read


def test_text_stands_for_numbers_where_that_is_said() -> None:
    assert converted({"speed": "2"}, Plain, strict=False) == Plain(speed=2.0)
    with pytest.raises(TomlError, match="bound: no such key; the keys here are speed, steps"):
        converted({"bound": "2"}, Plain, strict=False)
    with pytest.raises(TomlError, match="speed: must be a number, not '2'"):
        converted({"speed": "2"}, Plain)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        # one table or a list of them
        ('route = {kind = "sta"}', "route.kind: no such kind 'sta'; did you mean 'star'?"),
        ('[[route]]\nkind = "sta"', "route[0].kind: no such kind 'sta'; did you mean 'star'?"),
        ("[[route]]", "route[0].kind: this key is required; give one of star, fapt"),
        ('[[route]]\nkind = "star"\nhib = 1', "route[0].hib: no such key; did you mean 'hub'?"),
        ('[[route]]\nkind = "star"\nhub = 1', "route[0].hub: must be a string, not 1"),
        ('route = {kind = "star", hub = 1}', "route.hub: must be a string, not 1"),
        ("route = 3", "route: must be a table or an array, not 3"),
        ("route = [3]", "route[0]: must be a table, not 3"),
        (
            '[route]\nkind = "fapt"\nroots = true',
            "route.roots: must be an integer or an array, not",
        ),
        ('[route]\nkind = "fapt"\nroots = ["a", 2]', "route.roots[1]: must be a string, not 2"),
        # one kind only
        ('pace = {kind = "bspp"}', "pace.kind: no such kind 'bspp'; did you mean 'bsp'?"),
        ('pace = {kind = "ring"}', "pace.kind: no such kind 'ring'; give one of bsp"),
        ("pace = {kind = [1]}", "pace.kind: no such kind [1]; give one of bsp"),
        ("pace = {}", "pace.kind: this key is required; give one of bsp"),
        ("pace = 1", "pace: must be a table, not 1"),
        # words to choose from, one of them or none
        ('pace = {kind = "bsp", late = "dorp"}', "pace.late: no such choice 'dorp'; did you mean"),
        ('pace = {kind = "bsp", late = 1}', "pace.late: no such choice 1; give one of drop, keep"),
        ('pace = {kind = "bsp", most = "al"}', "pace.most: no such choice 'al'; did you mean 'all"),
        ('pace = {kind = "bsp", most = 1.5}', "pace.most: must be an integer or a string, not 1.5"),
        ('pace = {kind = "bsp", bits = 8}', "pace.bits: no such choice 8; give one of 16, 32"),
        # tables by name
        ("sites.dc3.sped = 1", "sites.dc3.sped: no such key; did you mean 'speed'?"),
        ("sites.dc3 = 1", "sites.dc3: must be a table, not 1"),
        ("sites = 1", "sites: must be a table, not 1"),
        ("sites = [{speed = 1}]", "sites: must be a table, not [{"),
        (
            "[sites.a]\n[sites.new-york]\nspeed = 'x'\n[sites.c]\nspeed = 'x'",
            "sites.new-york.speed: must be a number, not 'x'",
        ),
        ('[sites.a]\n[sites."b.c"]\nsteps = [1, "x"]', 'sites."b.c".steps[1]: must be an integer'),
        ('[sites."b c"]\nzz = 1', 'sites."b c".zz: no such key; the keys here are speed, steps'),
        ("sites.a.speed = 0", "sites.a.speed: must be a number > 0, not 0"),
        ("sites.a.speed = nan", "sites.a.speed: must be a finite number, not nan"),
        ("[nested.a.b]\n[nested.c.d]\n[nested.c.e]\nspeed = -1", "nested.c.e.speed: must be a num"),
        ("nested.a.b.sped = 1", "nested.a.b.sped: no such key; did you mean 'speed'?"),
        ("rates = {a = 1, b = 'x'}", "rates.b: must be a number, not 'x'"),
        # optional tables
        ("plain.sped = 1", "plain.sped: no such key; did you mean 'speed'?"),
        ("plain = 1", "plain: must be a table, not 1"),
        # lists and tuples
        ('[[fault]]\nkind="star"\n[[fault]]\nkind="fap"', "fault[1].kind: no such kind 'fap'; did"),
        ('[[more]]\nkind="star"\n[[more]]\nkind="fap"', "more[1].kind: no such kind 'fap'; did"),
        ("more = [1]", "more[0]: must be a table, not 1"),
        ('pair = ["a"]', "pair: must be an array of length 2, not ['a']"),
        ('pair = ["a", 1]', "pair[1]: must be a string, not 1"),
        ('both = [{sped = 1}, {kind = "star"}]', "both[0].sped: no such key; did you mean 'speed"),
        ('both = [{}, {kind = "stir"}]', "both[1].kind: no such kind 'stir'; did you mean 'star'"),
        # what a table checks itself
        ("plain.steps = [1, 2, 3]", "plain: 3 steps are too many; give two"),
        ("[sites.a]\n[sites.b]\nsteps = [1, 2, 3]", "sites.b: 3 steps are too many; give two"),
    ],
)
def test_an_error_names_the_key_and_the_fix(text: str, complaint: str) -> None:
    with pytest.raises(TomlError, match=f"^{re.escape(complaint)}"):
        decode_toml(text, File)


def test_what_the_whole_file_checks_itself_has_no_path() -> None:
    with pytest.raises(TomlError, match=r"^3 steps are too many; give two$"):
        decode_toml("steps = [1, 2, 3]", Plain)


def test_a_missing_key_is_named_inside_a_table_by_name() -> None:
    with pytest.raises(TomlError, match=r"^each\.b\.rate_bps: this key is required; add it$"):
        decode_toml("[each.a]\nrate_bps = 1\n[each.b]", Many)
    with pytest.raises(TomlError, match=r"^each: this key is required; add it$"):
        decode_toml("", Many)


_AT_ONCE = """
import sys, threading
from anabranch import overlay
text = sys.stdin.read()
sys.setswitchinterval(1e-6)
together = threading.Barrier(8)
read = []

def load():
    together.wait()
    read.append(overlay.loads(text))

threads = [threading.Thread(target=load) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
assert read == [read[0]] * 8
"""


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(10))
def test_threads_that_read_their_first_file_at_once_all_read_it(attempt: int) -> None:
    text = overlay.dumps(overlay.random_complete(3, attempt))
    done = subprocess.run([sys.executable, "-c", _AT_ONCE], input=text, text=True, timeout=60)
    assert done.returncode == 0


_DECODE_AT_ONCE = """
import sys, threading, time
import msgspec

{prepare}
look = msgspec._utils._eval_type

def look_slowly(*given):
    time.sleep(0.001)
    return look(*given)

msgspec._utils._eval_type = look_slowly  # which msgspec calls for each field of a type
together = threading.Barrier(16)
read = []

def load(number):
    together.wait()
    time.sleep(number * 0.0005)  # so that some begin while others look
    read.append({decode})

threads = [threading.Thread(target=load, args=(number,)) for number in range(16)]
for each in threads: each.start()
for each in threads: each.join()
assert len(read) == 16
"""
_SETTINGS = """
from anabranch.group._settings import Settings
from anabranch.merge import DataSize, Product, Staleness
from anabranch.period import Gossip
text = msgspec.json.encode({}).decode()
settings = Settings(
    least_chunk_elements=1, most_chunk_elements=1, under_way_bytes=1, {}=text
)
"""
_DECODED = {
    "a state": (
        "from anabranch.train.handed_state import Packed, StateDescription, Unpacked\n"
        "packed = Packed({'a': 1, 'b': [1.5]})\n"
        "told = StateDescription(packed.shape, packed.skeleton, '')",
        "Unpacked(told)",
    ),
    "gossip": (_SETTINGS.format("Gossip()", "gossip_json"), "settings.gossip"),
    "a merge rule": (
        _SETTINGS.format("Product(of=(Staleness(), DataSize()))", "merge_json"),
        "settings.merge",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", _DECODED)
def test_threads_that_decode_their_first_value_of_a_type_at_once_all_read_it(what: str) -> None:
    prepare, decode = _DECODED[what]
    code = _DECODE_AT_ONCE.format(prepare=prepare, decode=decode)
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("key", "valid", "meant"),
    [
        ("rate", ("trace", "rate_bps"), "rate_bps"),
        ("back_rate", ("back_trace", "back_rate_bps"), "back_rate_bps"),
        ("step_s", ("sites", "samples_per_s", "fixed_s"), "fixed_s"),
        ("bandwidth", ("rate_bps", "latency_s"), "rate_bps"),
        ("delay", ("rate_bps", "latency_s"), "latency_s"),
        ("lr", ("learning_rate", "model"), "learning_rate"),
        ("lead", ("lead", "bound"), "lead"),
    ],
)
def test_the_nearest_key_is_the_one_that_is_meant(
    key: str, valid: tuple[str, ...], meant: str
) -> None:
    assert nearest(key, valid) == f"did you mean {meant!r}?"
