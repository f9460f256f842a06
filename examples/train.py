"""Train a small network on scanned digits, data-parallel, with gradients averaged by all-reduce.

    mpirun -n 4 python examples/train.py
    mpirun -n 4 python examples/train.py --check    # the same as training on one rank?
    mpirun -n 4 python examples/train.py --compression topk:0.01

Every rank holds the whole network, takes its share of each batch, and computes the gradient of
its share; one `collectives.allreduce` per batch makes the average known to all ranks, which then
take the same step.  The network (64 pixels, 128 hidden units, 10 digits) is in digits.py; what is
parallel about it is here.

With --compression gradients are sent through a codec, what it drops is kept by an `ErrorFeedback`
and sent later, and the same training without compression runs beside it.  --no-feedback shows
what becomes of it without.
"""

import argparse
import os
import sys
from statistics import median
from time import perf_counter

# One thread per rank: the ranks are the parallelism, and threads of NumPy's matrix library on
# every rank would fight for the same cores.  It reads this when NumPy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import digits
import numpy as np
from tqdm import tqdm

import collectives

ENOUGH_ACCURACY = 0.95  # what the default options reach with room to spare
LOST_ACCURACY = 0.01  # most that compression with error feedback may cost
# --check trains in float64.  The two runs differ only in the order of additions: a relative 1e-16
# each, which training amplifies, though to far less than this.  A wrong weight of a share, or a
# lost one, is off by 1e-3 or more.
CHECK_TOLERANCE = 1e-9


class Average:
    """Mean over ranks, in place; remembers how long each call took.

    feedback : what holds the residuals of compressed gradients, or None
    """

    def __init__(self, algorithm: str, compression: collectives.Codec | None = None,
                 feedback: collectives.ErrorFeedback | None = None):
        self.algorithm, self.compression, self.feedback = algorithm, compression, feedback
        self.calls_s: list[float] = []
        self.sent_nbytes = 0

    def __call__(self, arrays: list[np.ndarray]) -> None:
        """The last array, the loss, is for people to read: it is never compressed."""
        before, start = collectives.world().sent_nbytes, perf_counter()
        if self.compression is None:
            collectives.allreduce(arrays, op="mean", algorithm=self.algorithm)
        else:
            collectives.allreduce(arrays[:-1], op="mean", algorithm=self.algorithm,
                                  compression=self.compression, residual=self.feedback)
            collectives.allreduce(arrays[-1], op="mean")
        self.calls_s.append(perf_counter() - start)
        self.sent_nbytes += collectives.world().sent_nbytes - before

    def warm_up(self, arrays: list[np.ndarray]) -> None:
        """The first call of a kind compiles and plans; keep that out of the times."""
        self([np.zeros_like(array) for array in arrays])
        self.calls_s.clear()
        self.sent_nbytes = 0


def train(args, data, rank, size, average, report=lambda epoch, loss: None):
    """Train as rank `rank` of `size`; the serial run is rank 0 of 1 with nothing to average.

    Returns
    -------
    network : list of arrays, the same on every rank
    losses : list of float, the mean loss of each epoch
    """
    network = digits.network(args.seed, data.pixels.dtype)  # same seed, same start on every rank
    velocity = [np.zeros_like(w) for w in network]
    losses = []
    for epoch in range(args.epochs):
        order = np.random.default_rng([args.seed, epoch]).permutation(len(data.labels))
        total = 0.0
        for first in range(0, len(order), args.batch):
            batch = order[first : first + args.batch]
            share = batch[rank::size]
            loss, gradients = digits.loss_and_gradients(
                network, data.pixels[share], data.labels[share])
            # Both are sums over the share.  Shares differ by one sample if the batch does not
            # divide, so a mean of the shares' means would be wrong.  This is right:
            #     mean over ranks of (sum * size / batch) = sum over ranks of sum / batch
            message = [*gradients, loss]
            for array in message:
                array *= size / len(batch)
            average(message)
            digits.step(network, velocity, gradients, args.lr)
            total += float(loss[0]) * len(batch)
        losses.append(total / len(order))
        report(epoch, losses[-1])
    return network, losses


def codec(text: str) -> collectives.Codec:
    """The codec of that name; argparse reports a ValueError."""
    try:
        return collectives.as_codec(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse(argv=None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description="Data-parallel training on scanned digits.")
    p.add_argument("--epochs", type=int, default=20)
    p.add_argument("--batch", type=int, default=60, help="samples per step, all ranks together")
    p.add_argument("--lr", type=float, default=0.05, help="learning rate")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--algorithm", default="auto", help="see collectives.allreduce")
    p.add_argument("--check", action="store_true", help="compare with training on one rank")
    p.add_argument("--compression", metavar="CODEC", type=codec,
                   help="send gradients as int8, topk:0.01, sign, ... (see the README)")
    p.add_argument("--no-feedback", action="store_true",
                   help="drop for good what the codec drops")
    args = p.parse_args(argv)
    if args.check and args.compression:
        p.error("--check is for training without --compression")
    if args.epochs < 1 or args.batch < 1:
        p.error("--epochs and --batch must be 1 or more")
    return args


def is_usual(args) -> bool:
    """Whether the training is the default one; any other may well need more epochs."""
    usual = parse([])
    return all(getattr(args, x) == getattr(usual, x) for x in ("epochs", "batch", "lr", "seed"))


def communication(calls_s: list[float], total_s: float) -> str:
    """How much of the training time went into all-reduce, waiting for slower ranks included."""
    return (f"communication: {100 * sum(calls_s) / total_s:.1f} % of {total_s:.1f} s "
            f"({len(calls_s)} calls, median {1e6 * median(calls_s):.0f} us)")


def agrees(args, data, losses, say) -> bool:
    """Train serially, on this rank alone, and compare the loss of every epoch."""
    _, serial = train(args, data, rank=0, size=1, average=lambda arrays: None)
    worst = np.max(np.abs(np.subtract(losses, serial)) / serial)
    good = bool(worst <= CHECK_TOLERANCE)  # false for NaN
    say(f"check: losses of {len(losses)} epochs differ from training on one rank by at most "
        f"{worst:.1e} (relative): {'same' if good else 'NOT the same'}")
    return good


def gradients_like(args, dtype) -> list[np.ndarray]:
    """What a call of `Average` gets: one array per weight, and the loss."""
    return [*digits.network(args.seed, dtype), np.zeros(1, dtype)]


def uncompressed(args, data, held_out, rank, size) -> tuple[list[float], float]:
    """Losses and accuracy of the same training without a codec, to compare with."""
    average = Average(args.algorithm)
    average.warm_up(gradients_like(args, data.pixels.dtype))
    network, losses = train(args, data, rank, size, average)
    return losses, digits.accuracy(network, held_out)


def judged(args, accuracy: float, exact_accuracy: float | None, say) -> bool:
    """Is the accuracy what it should be?  Only the usual training is judged."""
    if not is_usual(args) or args.no_feedback:
        return True
    enough = ENOUGH_ACCURACY if exact_accuracy is None else exact_accuracy - LOST_ACCURACY
    if accuracy < enough:
        say(f"expected an accuracy of {enough:.3f} or more")
    return accuracy >= enough


def main() -> int:
    """Train, report on rank 0; the exit status is not 0 if the result is not what it should be."""
    args = parse()
    rank, size = collectives.rank(), collectives.size()
    data, held_out = digits.load(np.float64 if args.check else np.float32)
    feedback = collectives.ErrorFeedback() if args.compression and not args.no_feedback else None
    average = Average(args.algorithm, args.compression, feedback)
    average.warm_up(gradients_like(args, data.pixels.dtype))
    exact, exact_accuracy = None, None
    if args.compression:
        exact, exact_accuracy = uncompressed(args, data, held_out, rank, size)
    # Only rank 0 shows progress, and only a terminal (disable=None) gets a moving bar.
    bar = tqdm(total=args.epochs, unit="epoch", disable=None if rank == 0 else True)

    def say(text: str) -> None:
        if rank == 0:
            tqdm.write(text)
            sys.stdout.flush()  # under mpirun, stdout is a pipe

    def report(epoch: int, loss: float) -> None:
        bar.update()
        beside = f"  uncompressed {exact[epoch]:.4f}" if exact else ""
        say(f"epoch {epoch + 1:3d}  loss {loss:.4f}{beside}")

    start = perf_counter()
    network, losses = train(args, data, rank, size, average, report)
    total_s = perf_counter() - start
    bar.close()

    accuracy = digits.accuracy(network, held_out)
    beside = f", uncompressed {exact_accuracy:.3f}" if exact else ""
    say(f"accuracy on {len(held_out.labels)} held-out digits: {accuracy:.3f}{beside}")
    say(communication(average.calls_s, total_s))
    say(f"sent: {average.sent_nbytes / len(average.calls_s):.0f} bytes per rank and call")
    good = not args.check or agrees(args, data, losses, say)
    return 0 if judged(args, accuracy, exact_accuracy, say) and good else 1


if __name__ == "__main__":
    sys.exit(main())
