"""The settings of the page: a URL, a command line, and errors that name what is wrong."""

from __future__ import annotations

import shlex

import pytest

from distir.errors import DistIRError
from distir.tools.cli import argument_parser
from distir.tools.commands.build import MODELS
from distir.tools.explore.models import option_names
from distir.tools.explore.state import Setup, plan_options, query_of, state_of

SETUP = Setup(["my gpt.mlir"], "dgx-h100")

STATES = {
    "": "simulate 'my gpt.mlir' --cluster dgx-h100",
    "d=4&t=2&zero=1": "simulate 'my gpt.mlir' --cluster dgx-h100 -d 4 -t 2 --zero 1",
    "cluster=dgx-a100&devices=16&p=2&k=8&schedule=zb-h1": "simulate 'my gpt.mlir' "
    "--cluster dgx-a100 --devices 16 -p 2 -k 8 --schedule zb-h1",
    "overlap=on&buckets=off": "simulate 'my gpt.mlir' --cluster dgx-h100 --overlap --no-buckets",
    "overlap=dp,tp": "simulate 'my gpt.mlir' --cluster dgx-h100 --overlap dp,tp",
    "shard=a%20b:0=t&shard=c:1=t&t=2": "simulate 'my gpt.mlir' --cluster dgx-h100 -t 2 "
    "--shard 'a b:0=t' --shard c:1=t",
    "p=2&stage_meshes=d=2;t=2": "simulate 'my gpt.mlir' --cluster dgx-h100 -p 2 "
    "--stage-meshes 'd=2;t=2'",
    "model=gpt&size=1.6B&batch=64": "build gpt --size 1.6B --batch 64 --seq 1024 "
    "--dtype bf16 --training -o gpt-1.6B.mlir",
    "model=moe&training=off&layers=2": "build moe --layers 2 --d-model 768 --heads 12 "
    "--vocab 50257 --batch 32 --seq 1024 --experts 8 --dtype bf16 -o moe.mlir",
}
"""The first command of the settings in a URL."""


@pytest.mark.parametrize("query", STATES)
def test_a_url_is_a_command_line(query: str):
    state = state_of(query, SETUP)
    again = state_of(state.query, SETUP)
    assert (again.query, again.commands) == (state.query, state.commands)
    for text in state.commands.values():
        lines = text.splitlines()
        for line in lines:
            argument_parser().parse_args(shlex.split(line)[1:])
    first = state.commands["simulate"].splitlines()[0]
    assert first == f"distir {STATES[query]}"


def test_defaults_are_left_out_of_a_url():
    short = state_of("t=2", SETUP).query
    assert state_of("t=2&d=1&zero=0&buckets=on&overlap=off", SETUP).query == short
    assert state_of("model=gpt&size=124M&batch=32", SETUP).query == (
        state_of("model=gpt", SETUP).query
    )


def test_the_command_line_opens_the_page_at_its_settings():
    words = ["explore", "my gpt.mlir", "-d", "2", "--overlap", "dp", "--no-buckets"]
    arguments = argument_parser("explore").parse_args(words)
    query = query_of(arguments, SETUP)
    assert query.endswith("&d=2&overlap=dp&buckets=off")
    assert (
        state_of(query, SETUP)
        .commands["simulate"]
        .endswith("-d 2 --overlap dp --no-buckets")
    )
    words = ["explore", "--schedule-file", "a.csv"]
    with pytest.raises(DistIRError, match="has no --schedule-file"):
        query_of(argument_parser("explore").parse_args(words), SETUP)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("d=-1", "argument -d: '-1' is not a positive whole number"),
        ("d=", "argument -d: expected one argument"),
        ("d=1e3", "argument -d: '1e3' is not"),
        ("d=<script>", "argument -d: '<script>' is not"),
        ("d=2&d=4", "d is given 2 times"),
        ("d=%00", "d holds a character that cannot be printed"),
        ("d=" + "9" * 5000, "have 5002 characters"),
        ("devices=-8", "argument --devices: '-8'"),
        ("zero=7", "argument --zero: invalid choice: 7"),
        ("no_sync=maybe", "no_sync is on or off, not 'maybe'"),
        ("overlap=maybe", "there is no kind of communication 'maybe'"),
        ("cluster=dgx-h10", "there is no cluster 'dgx-h10' here; did you mean"),
        ("cluster=/etc/passwd", "there is no cluster '/etc/passwd' here"),
        ("model=/etc/passwd", "there is no model '/etc/passwd' here"),
        ("model=gpt&size=9B", "gpt has no size '9B'; choose from 124M"),
        ("model=gpt&experts=2", "there is no setting 'experts'"),
        ("model=gpt&training=yes", "training is on or off, not 'yes'"),
        ("size=124M", "there is no setting 'size' for a program from a file"),
        ("schedule_file=/etc/passwd", "there is no setting 'schedule_file'"),
        ("profile=/etc/passwd", "there is no setting 'profile'"),
        ("json=/tmp/out.json", "there is no setting 'json'"),
        ("checkpiont=full", "did you mean 'checkpoint'"),
        ("=", "there is no setting ''"),
    ],
)
def test_bad_settings_are_errors(query: str, message: str):
    with pytest.raises(DistIRError) as error:
        state_of(query, SETUP)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_no_setting_has_two_meanings():
    for model in MODELS:
        assert not {*option_names(model)} & {*plan_options(), "cluster", "devices"}
