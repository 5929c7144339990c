"""The examples for Accelerate and Lightning: run by torchrun on ringcomm, and again on gloo.

They come with `pip install ringcomm[stacks]`; without them these tests fail, and are not skipped.
"""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from dist.pool import Pool

EXAMPLES = Path(__file__).parents[2] / "examples"
EPOCHS = 3
KEPT = []


def losses(output):
    return [float(loss) for loss in re.findall(r"^epoch \d+: loss (\S+)$", output, re.MULTILINE)]


def run_example(path, backend, output):
    """On one rank of a pool, whose store serves as torchrun's does.

    The group is kept until the process is killed: see `gloo_group` of test_ddp.
    """
    destroy = dist.destroy_process_group

    def keep(*arguments):
        KEPT.append(dist.group.WORLD)
        destroy(*arguments)

    dist.destroy_process_group = keep
    os.environ.update(TORCHELASTIC_RUN_ID="none", TORCHELASTIC_USE_AGENT_STORE="True")
    os.environ.update(TORCHELASTIC_RESTART_COUNT="0", GROUP_RANK="0")
    sys.argv = [path, "--backend", backend, "--epochs", str(EPOCHS)]
    with (
        open(output.format(rank=os.environ["RANK"]), "w") as file,
        contextlib.redirect_stdout(file),
    ):
        runpy.run_path(path, run_name="__main__")


run_example.on_rank = run_example


@pytest.mark.slow
@pytest.mark.timeout(170)
@pytest.mark.parametrize("example", ["train_accelerate.py", "train_lightning.py"])
def test_trains_as_on_gloo(example, tmp_path):
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *command, str(EXAMPLES / example), "--epochs", str(EPOCHS)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 ranks on ringcomm\n" in done.stdout
    ours = losses(done.stdout)
    assert len(ours) == EPOCHS
    assert ours[-1] < 0.6 * ours[0]

    arguments = {
        "path": str(EXAMPLES / example),
        "backend": "gloo",
        "output": str(tmp_path / "rank{rank}"),
    }
    apart = Pool()  # what trainers leave in a process concerns no other test
    try:
        apart.run((__name__, "run_example"), 2, arguments, backend=None, timeout=60)
    finally:
        apart.close()
    printed = (tmp_path / "rank0").read_text()
    assert "2 ranks on gloo\n" in printed
    assert losses(printed) == pytest.approx(ours, abs=2e-6)
