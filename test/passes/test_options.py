"""What may be written for the options of passes, and what errors say."""

from __future__ import annotations

import pytest
from xdsl.utils.arg_spec import parse_pipeline

from distir.errors import DistIRError
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.passes.options import DistIRPass
from distir.passes.search_grid import SearchGridPass
from distir.passes.search_sharding import SearchShardingPass


def made(pass_: type[DistIRPass], options: str) -> DistIRPass:
    """A pass as a pipeline makes it."""
    (spec,) = parse_pipeline(f"{pass_.name}{{{options}}}")
    return pass_.from_spec(spec)


@pytest.mark.parametrize("text", ["16e9", "16.0e9", "16000000000", "1.6E10"])
def test_numbers_with_a_fraction_may_be_written_in_every_way(text: str) -> None:
    assert made(SearchShardingPass, f"memory={text}") == SearchShardingPass(memory=16e9)


def test_an_exponent_alone() -> None:
    found = made(DifferentiatePass, "learning-rate=1e-4 clip=1")
    assert found == DifferentiatePass(learning_rate=1e-4, clip=1.0)


def test_other_options_stay_as_they_are() -> None:
    found = made(DistributePass, 'd=2 shard="w:0=d","v:1=d" sequence-parallel=true')
    assert found == DistributePass(
        d=2, shard=("w:0=d", "v:1=d"), sequence_parallel=True
    )


@pytest.mark.parametrize(
    ("pass_", "options", "message"),
    [
        (
            DistributePass,
            "d=x",
            "distribute: option d takes a whole number, but is given x",
        ),
        (DistributePass, "d=2.5", "takes a whole number, but is given 2.5"),
        (DistributePass, "d=1,2", "takes a whole number, but is given 1,2"),
        (DistributePass, "d", "takes a whole number, but is given nothing"),
        (DistributePass, "overlap=1", "option overlap takes true or false"),
        (DistributePass, "q=2", "there is no option q; the options are: p, schedule,"),
        (SearchShardingPass, "memory=16GB", "takes a number, but is given 16GB"),
        (SearchShardingPass, "gap=true", "takes a number, but is given True"),
        (
            SearchGridPass,
            "micro-batches=x",
            "option micro-batches takes a list, separated by commas, each a whole number",
        ),
    ],
)
def test_errors_name_the_option(
    pass_: type[DistIRPass], options: str, message: str
) -> None:
    with pytest.raises(DistIRError, match=message):
        made(pass_, options)
