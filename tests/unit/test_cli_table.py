"""The benchmark's text, JSON and picture."""

import sys

import pytest

from ringcomm.cli.measure import Timing
from ringcomm.cli.plot import PlotError, curves, load_pyplot, plot
from ringcomm.cli.table import Row, footer, header, line, total_wrong


def timing(backend="ringcomm", median_s=0.001, wrong=0):
    return Timing(backend, 10, median_s, median_s / 2, 0.002, wrong)


def row(size=1 << 20, peer=None, op="all_reduce", **kwargs):
    return Row(op, size, size // 4, "float32", "sum", 4, timing(**kwargs), peer)


def test_line_has_the_figures_in_order():
    fields = line(row()).split()
    assert fields == [
        *("1048576", "262144", "float32", "sum", "1000.0", "500.0"),
        *("1.049", "1.573", "2.048", "0"),  # GB/s, GB/s * 2 * 3 / 4, 2 ms * 1024, #wrong
    ]


def test_line_with_a_peer_ends_in_its_figures_and_the_ratio():
    fields = line(row(peer=timing("gloo", 0.004, wrong=3))).split()
    assert fields[-4:] == ["4000.0", "2.048", "3", "4.00"]


def test_columns_stand_under_their_names():
    peer = timing("gloo", 0.004)
    for with_peer in (None, peer):
        _, names, _ = header("all_reduce", with_peer and "gloo").splitlines()
        text = line(row(peer=with_peer))
        assert len(names) == len(text)
        ends = {names.index(name) + len(name) for name in ("size", "time", "busbw", "#wrong")}
        assert all(text[end - 1] != " " and text[end : end + 1] in ("", " ") for end in ends)
        assert names.startswith("#")


def test_small_messages_and_barrier_show_no_cpu_per_gib():
    assert line(row(size=64)).split()[-2] == "-"
    barrier = Row("barrier", 0, 0, "none", "none", 2, timing(wrong=None))
    assert line(barrier).split()[-4:] == ["0.000", "0.000", "-", "N/A"]


def test_footer_tells_wrong_values_of_both_backends():
    good, bad = row(), row(peer=timing("gloo", wrong=2), wrong=1)
    assert total_wrong([good, bad]) == 3
    assert footer([good]).splitlines() == [
        "# Wrong values: 0 OK",
        "# Avg bus bandwidth: 1.573 GB/s",
    ]
    assert footer([good, bad]).startswith("# Wrong values: 3 FAILED")


def test_record_is_in_microseconds():
    record = row(peer=timing("gloo", 0.004)).record()
    assert record["ours"]["median_us"] == pytest.approx(1000)
    assert record["peer"]["backend"] == "gloo"
    assert record["ratio"] == pytest.approx(4)
    assert record["ours"]["cpu_s_per_GiB"] == pytest.approx(2.048)
    assert row().record()["peer"] is None


def test_curves_are_one_for_each_operation_and_backend():
    rows = [row(size=4096), row(size=1024, peer=timing("gloo")), row(op="broadcast")]
    lines = curves(rows)
    assert {label: len(points) for label, points in lines.items()} == {
        "all_reduce ringcomm": 2,
        "all_reduce gloo (peer)": 1,
        "broadcast ringcomm": 1,
    }
    assert [size for size, _, _ in lines["all_reduce ringcomm"]] == [1024, 4096]


def test_plot_without_matplotlib_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotError, match=r"pip install ringcomm\[plot\]"):
        load_pyplot()


def test_plot_writes_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "out.png"
    plot([row(size=1024, peer=timing("gloo")), row()], file)
    assert file.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(PlotError, match="barrier has none"):
        plot([Row("barrier", 0, 0, "none", "none", 2, timing())], file)
