"""Where a group's options come from, and what becomes of those that cannot hold."""

from __future__ import annotations

import copy
import gc
import os
import warnings
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import ringcomm
from dist.pool import ranks
from dist.worker import group, place
from dist.wrong import assert_group_works, raw


@contextmanager
def environment(**variables):
    os.environ.update(variables)
    try:
        yield
    finally:
        for variable in variables:
            del os.environ[variable]


def all_reduce_algorithms():
    table = ringcomm._C.algorithm_table(2, raw().options)
    return {algorithm for collective, _, _, algorithm in table if collective == "all_reduce"}


@ranks(2, backend=None)
def test_environment_holds_where_pg_options_say_nothing():
    with environment(RINGCOMM_ALGORITHMS="all_reduce=ring"):
        with group("a"):
            assert all_reduce_algorithms() == {"ring"}
        with group("b", pg_options=ringcomm.Options(lanes=2)):
            assert all_reduce_algorithms() == {"ring"}
            assert_group_works()
        with group("c", pg_options=ringcomm.Options(algorithms="all_reduce=scatter-gather")):
            assert all_reduce_algorithms() == {"scatter-gather"}


@ranks(2, backend=None)
def test_pg_options_hold_against_the_environment_also_with_the_default():
    with environment(RINGCOMM_ALGORITHMS="all_reduce=ring"):
        with group(pg_options=ringcomm.Options(algorithms="")):
            assert len(all_reduce_algorithms()) > 1


def test_given_options_are_told():
    options = ringcomm.Options(lanes=2, secret="x")
    options.set("lanes", 3)
    assert options.given == {"lanes": "3", "secret": "x"}
    with pytest.raises(ValueError, match="lanes"):
        options.set("lanes", 0)
    assert copy.deepcopy(options).given == {"lanes": "3", "secret": "x"}


def test_copies_are_their_own():
    options = ringcomm.Options(lanes=2, timeout=timedelta(seconds=7))
    copied = copy.deepcopy(options)
    assert copied._timeout == timedelta(seconds=7)
    copied.set("lanes", 5)
    copied._timeout = timedelta(seconds=1)
    assert options.given == {"lanes": "2"}
    assert options._timeout == timedelta(seconds=7)


@ranks(2, backend=None)
def test_a_process_option_that_comes_too_late_is_told():
    here = place()
    gc.collect()  # a group of an earlier test that is not collected yet keeps the process's options
    with group(pg_options=ringcomm.Options(socket_buffer_bytes=1 << 20)):
        options = ringcomm.Options(socket_buffer_bytes=2 << 20)
        with pytest.warns(UserWarning, match=r"socket_buffer_bytes='2097152'.*made it '1048576'"):
            dist.new_group(backend="ringcomm", pg_options=options)
        assert_group_works()
    assert here.world == 2


@ranks(2, backend=None)
def test_a_process_option_that_is_the_same_is_accepted():
    options = ringcomm.Options(socket_buffer_bytes=1 << 20)
    gc.collect()
    with group(pg_options=options):
        for one in (options, ringcomm.Options(lanes=2), None):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                part = dist.new_group(backend="ringcomm", pg_options=one)
            tensor = torch.ones(2)
            dist.all_reduce(tensor, group=part)
            assert tensor.tolist() == [2.0, 2.0]


@ranks(2, backend=None)
def test_a_process_option_may_change_when_all_groups_are_gone():
    for megabytes in (1, 2):
        gc.collect()
        options = ringcomm.Options(socket_buffer_bytes=megabytes << 20)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with group(str(megabytes), pg_options=options):
                assert_group_works()


@pytest.mark.parametrize("foreign", ["gloo", "text"])
@ranks(2, backend=None)
def test_foreign_options_are_refused(foreign):
    options = dist.ProcessGroupGloo._Options() if foreign == "gloo" else "fast"
    with pytest.raises(TypeError, match=r"pg_options must be a ringcomm\.Options or None, not"):
        with group(pg_options=options):
            pass


@ranks(2, backend=None)
def test_default_timeout_is_live():
    with group(timeout=timedelta(seconds=9)):
        assert raw().options._timeout == timedelta(seconds=9)
        raw()._set_default_timeout(timedelta(seconds=5))
        assert raw().options._timeout == timedelta(seconds=5)
        raw().set_timeout(timedelta(seconds=4))
        assert raw().options._timeout == timedelta(seconds=4)
        tensor = torch.ones(1)
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        raw().options._timeout = timedelta(milliseconds=300)
        dist.barrier()
        if place().rank == 0:
            with pytest.raises(RuntimeError, match=r"(?i)timed out"):
                dist.all_reduce(tensor)
            assert raw().get_error().name == "TIMEOUT"
            place().store.set("failed", "1")
        else:
            place().store.wait(["failed"])


@ranks(2, backend=None)
def test_options_tell_the_group():
    with group():
        options = raw().options
        assert options.group_name == "0"
        assert options.global_ranks_in_group == [0, 1]
        assert options.backend == "ringcomm"
