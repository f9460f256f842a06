"""The training example: what it prints, what it ends with, and that it is the serial training."""

import os
import re
from pathlib import Path

import pytest

from tests.mpirun import mpirun, run_script

EXAMPLES = Path(__file__).parents[1] / "examples"
# The launcher runs Python with -P, which hides the script's own folder.
PATH = {"PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(EXAMPLES)]))}

pytest.importorskip("sklearn")
pytest.importorskip("tqdm")


def train(n, *options):
    return mpirun(n, str(EXAMPLES / "train.py"), *options, timeout=120, env=PATH)


def test_it_learns_the_digits_and_tells_where_the_time_went():
    job = train(2)
    assert job.returncode == 0, job.stdout
    accuracy = re.search(r"held-out digits: (\d\.\d+)", job.stdout)
    assert float(accuracy[1]) > 0.95
    told = r"communication: [\d.]+ % of [\d.]+ s \(500 calls, median \d+ us\)"
    assert re.search(told, job.stdout)


@pytest.mark.parametrize("n, batch", [
    (1, 60),
    (2, 60),
    (3, 61),   # shares of 21, 20 and 20
    (4, 7),    # the last batch has 2 samples: two ranks have none
])
def test_losses_are_those_of_training_on_one_rank(n, batch):
    job = train(n, "--check", "--epochs", "2", "--batch", str(batch))
    assert job.returncode == 0, job.stdout
    assert "2 epochs differ" in job.stdout and "NOT" not in job.stdout


def test_only_rank_0_writes_and_a_log_gets_one_line_per_epoch():
    job = train(3, "--epochs", "3")
    assert job.returncode == 0, job.stdout
    assert re.findall(r"^epoch +(\d+) ", job.stdout, re.MULTILINE) == ["1", "2", "3"]
    assert "\r" not in job.stdout and "%|" not in job.stdout


A_MEAN_THAT_LOSES_A_RANK = """
import sys, types
import collectives, train

right = collectives.allreduce

def wrong(arrays, **kwargs):
    if collectives.rank() == 1:
        for array in arrays:
            array *= 0
    return right(arrays, **kwargs)

train.collectives = types.SimpleNamespace(allreduce=wrong, rank=collectives.rank,
                                          size=collectives.size, world=collectives.world)
sys.argv[1:] = ["--check", "--epochs", "2"]
sys.exit(train.main())
"""


def test_the_check_notices_a_lost_contribution(tmp_path):
    job = run_script(2, A_MEAN_THAT_LOSES_A_RANK, tmp_path, timeout=120, env=PATH)
    assert job.returncode != 0 and "NOT the same" in job.stdout, job.stdout


ACCURACIES = re.compile(r"held-out digits: (\d\.\d+), uncompressed (\d\.\d+)")


@pytest.mark.parametrize("codec", ["float16", "bfloat16", "int8", "int4", "ternary", "sign",
                                   "topk:0.01", "threshold:0.01"])
def test_with_error_feedback_every_codec_learns_as_well_as_none(codec):
    job = train(2, "--compression", codec)
    assert job.returncode == 0, job.stdout  # it ends with an error if it lost a point or more
    accuracy, exact = map(float, ACCURACIES.search(job.stdout).groups())
    assert accuracy >= exact - 0.01 and exact > 0.95
    assert len(re.findall(r"loss \d\.\d+  uncompressed \d\.\d+", job.stdout)) == 20


@pytest.mark.parametrize("codec", ["sign", "topk:0.01"])
def test_without_error_feedback_it_does_not(codec):
    job = train(4, "--compression", codec, "--no-feedback")
    accuracy, exact = map(float, ACCURACIES.search(job.stdout).groups())
    assert accuracy < exact - 0.01, job.stdout


def test_a_check_of_a_compressed_training_is_refused():
    assert "--check is for training without" in train(1, "--check", "--compression", "int8").stdout
