"""What the schedules are.  No MPI: schedules are data."""

from fractions import Fraction
from itertools import product

import pytest

from collectives import schedules
from collectives.schedule import amount, main
from collectives.schedules import double_binary_tree
from collectives.schedules.addressing import Fold, on
from collectives.step import Op, Step
from collectives.verify import ScheduleError, check_algorithm

EVERY = [(verb, algorithm) for verb in schedules.VERBS for algorithm in schedules.algorithms(verb)]
POWER_OF_TWO = [1, 2, 4, 8, 16, 32, 64]
ANY_SIZE = [1, 2, 3, 4, 5, 7, 8, 13, 31, 32, 33]


def roots_of(verb, size):
    """Every root where that is cheap, else the first and the last."""
    if verb not in schedules.ROOTED:
        return [0]
    return range(size) if size <= 8 else [0, size - 1]


def table_of(verb, algorithm, size, root=0):
    return [schedules.generate(verb, algorithm, rank, size, root) for rank in range(size)]


def most(op, verb, algorithm, size):
    """The largest part of the message that any rank moves with `op`."""
    chunks = schedules.num_chunks(verb, algorithm, size)
    return max(amount(steps, op, chunks) for steps in table_of(verb, algorithm, size))


@pytest.mark.parametrize("size", range(1, 65))
@pytest.mark.parametrize("verb, algorithm", EVERY)
def test_every_contribution_arrives_exactly_once_and_nothing_deadlocks(verb, algorithm, size):
    for root in roots_of(verb, size):
        check_algorithm(verb, algorithm, size, root)


@pytest.mark.parametrize("size", [100, 127, 128])
@pytest.mark.parametrize("verb, algorithm", EVERY)
def test_so_it_is_above_64_ranks(verb, algorithm, size):
    check_algorithm(verb, algorithm, size)


@pytest.mark.parametrize("verb, algorithm", EVERY)
def test_one_rank_has_nothing_to_do(verb, algorithm):
    assert schedules.generate(verb, algorithm, 0, 1) == []


# Costs, as the docstrings state them.

@pytest.mark.parametrize("algorithm", ["ring", "direct"])
@pytest.mark.parametrize("size", ANY_SIZE)
def test_bytes_meet_the_lower_bound_at_every_size(algorithm, size):
    # Patarasuk & Yuan 2009: no allreduce sends less than 2 S (p-1)/p.
    for steps in table_of("allreduce", algorithm, size):
        assert amount(steps, Op.SEND, size) == Fraction(2 * (size - 1), size)
        assert amount(steps, Op.RECV_REDUCE, size) == Fraction(size - 1, size)


@pytest.mark.parametrize("size", POWER_OF_TWO)
def test_halving_doubling_meets_the_lower_bound_at_powers_of_two(size):
    for steps in table_of("allreduce", "halving_doubling", size):
        assert amount(steps, Op.SEND, size) == Fraction(2 * (size - 1), size)


@pytest.mark.parametrize("verb", ["reduce_scatter", "allgather"])
@pytest.mark.parametrize("algorithm", ["ring", "direct", "halving_doubling"])
@pytest.mark.parametrize("size", POWER_OF_TWO)
def test_the_halves_of_an_allreduce_send_half_of_it(verb, algorithm, size):
    assert most(Op.SEND, verb, algorithm, size) == Fraction(size - 1, size)


@pytest.mark.parametrize("verb", schedules.ROOTED)
@pytest.mark.parametrize("algorithm", ["ring", "direct", "double_binary_tree"])
@pytest.mark.parametrize("size", ANY_SIZE[1:])
def test_no_rank_sends_more_than_the_message_to_or_from_a_root(verb, algorithm, size):
    assert most(Op.SEND, verb, algorithm, size) <= 1


@pytest.mark.parametrize("size", ANY_SIZE)
def test_double_binary_tree_sends_twice_and_reduces_once_the_message(size):
    assert most(Op.SEND, "allreduce", "double_binary_tree", size) <= 2
    assert most(Op.RECV_REDUCE, "allreduce", "double_binary_tree", size) <= 1


@pytest.mark.parametrize("size", ANY_SIZE[1:])
def test_binomial_tree_keeps_its_bounds(size):
    rounds = (size - 1).bit_length()
    for verb in ("broadcast", "reduce", "allreduce", "allgather"):
        assert most(Op.SEND, verb, "binomial_tree", size) <= rounds
    assert most(Op.SEND, "reduce_scatter", "binomial_tree", size) <= Fraction(3, 2)


def rounds(verb, algorithm, size):
    return check_algorithm(verb, algorithm, size).rounds


@pytest.mark.parametrize("size", POWER_OF_TWO)
def test_halving_doubling_takes_2_log2_p_rounds(size):
    log2 = size.bit_length() - 1
    for verb, times in [("allreduce", 2), ("reduce_scatter", 1), ("allgather", 1)]:
        assert rounds(verb, "halving_doubling", size) == times * log2
    for verb in schedules.ROOTED:
        assert rounds(verb, "halving_doubling", size) <= 2 * log2


@pytest.mark.parametrize("verb", ["allreduce", "allgather"])
def test_recursive_doubling_takes_log2_p_rounds_and_two_for_folding(verb):
    for size in POWER_OF_TWO:
        assert rounds(verb, "recursive_doubling", size) == size.bit_length() - 1
    for size in ANY_SIZE:
        assert rounds(verb, "recursive_doubling", size) <= size.bit_length() - 1 + 2


@pytest.mark.parametrize("size", ANY_SIZE)
def test_ring_takes_p_minus_1_rounds_each_way(size):
    assert rounds("allreduce", "ring", size) == 2 * (size - 1)
    for verb in ("reduce_scatter", "allgather", "broadcast", "reduce"):
        assert rounds(verb, "ring", size) == size - 1


@pytest.mark.parametrize("size", ANY_SIZE[2:])
def test_direct_takes_one_round_each_way(size):
    for verb in ("allreduce", "broadcast", "reduce"):
        assert rounds(verb, "direct", size) == 2
    for verb in ("reduce_scatter", "allgather"):
        assert rounds(verb, "direct", size) == 1


@pytest.mark.parametrize("size", ANY_SIZE)
def test_trees_are_logarithmic(size):
    ceil_log2, floor_log2 = (size - 1).bit_length(), size.bit_length() - 1
    for verb in schedules.ROOTED:
        assert rounds(verb, "binomial_tree", size) <= ceil_log2
        assert rounds(verb, "double_binary_tree", size) == ceil_log2
    assert rounds("allreduce", "binomial_tree", size) <= 2 * ceil_log2
    assert rounds("allreduce", "double_binary_tree", size) == 2 * floor_log2


# The two trees and the folding.

def depth(tree, place, places):
    parent, _ = double_binary_tree.neighbours(tree, place, places)
    return 0 if parent == 0 else 1 + depth(tree, parent, places)


@pytest.mark.parametrize("places", range(1, 130))
def test_an_inner_place_of_one_tree_is_a_leaf_of_the_other(places):
    for place in range(1, places + 1):
        children = [double_binary_tree.neighbours(tree, place, places)[1] for tree in (0, 1)]
        assert [] in children
        assert all(len(c) <= 2 for c in children)


@pytest.mark.parametrize("places", range(1, 130))
def test_both_trees_span_all_places_with_the_least_depth(places):
    for tree in (0, 1):
        pairs = {(double_binary_tree.neighbours(tree, place, places)[0], place)
                 for place in range(1, places + 1)}
        assert pairs == {(place, child) for place in range(places + 1)
                         for child in double_binary_tree.neighbours(tree, place, places)[1]}
        deepest = max(depth(tree, place, places) for place in range(1, places + 1))
        assert deepest == places.bit_length() - 1


@pytest.mark.parametrize("size", range(1, 40))
def test_folding_gives_every_rank_a_leader_beside_it(size):
    fold = Fold(size)
    leaders = [fold.leader(fold.core_rank(rank)) for rank in range(size)]
    assert all(rank - leader in (0, 1) for rank, leader in enumerate(leaders))
    assert len(set(leaders)) == fold.core_size <= size < 2 * fold.core_size
    assert [fold.core_rank(leader) for leader in sorted(set(leaders))] == [*range(fold.core_size)]


def test_on_re_addresses_ranks_and_chunks():
    steps = [Step(Op.SEND, 1, 2), Step(Op.RECV, 0, 1, 2)]
    assert list(on(steps, lambda q: 10 + q, base=5, scale=3)) == [
        Step(Op.SEND, 11, 11, 3), Step(Op.RECV, 10, 8, 6)]


# The register and the command line.

def test_every_verb_has_the_algorithms_that_suit_it():
    assert schedules.algorithms("allreduce") == (
        "ring", "direct", "recursive_doubling", "halving_doubling", "binomial_tree",
        "double_binary_tree")
    missing = {(v, a) for v, a in product(schedules.VERBS, schedules.algorithms("allreduce"))
               if a not in schedules.algorithms(v)}
    assert missing == {(verb, "recursive_doubling")
                       for verb in ("reduce_scatter", "broadcast", "reduce")} | {
        ("reduce_scatter", "double_binary_tree"), ("allgather", "double_binary_tree")}


@pytest.mark.parametrize("call, reason", [
    (("reduce", "recursive_doubling", 0, 4), "reduce has no algorithm 'recursive_doubling'; it ha"),
    (("scan", "ring", 0, 4), "unknown verb 'scan'; there are allreduce, reduce_scatter"),
    (("allreduce", "ring", 0, 0), "size 0 is not at least 1"),
    (("allreduce", "ring", 4, 4), r"rank 4 is not in 0 \.\. 3"),
    (("broadcast", "ring", 0, 4, -1), r"root -1 is not in 0 \.\. 3"),
])
def test_generate_says_what_is_wrong_with_its_arguments(call, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        schedules.generate(*call)
    assert not isinstance(caught.value, ScheduleError)


def test_command_line_prints_table_and_cost(capsys):
    main(["double_binary_tree", "3", "--verb", "broadcast", "--root", "2"])
    assert capsys.readouterr().out == """\
double_binary_tree broadcast, 3 ranks, 2 chunks

step     rank 0       rank 1       rank 2
0        recv 1 <- 2  recv 0 <- 2  send 1 -> 0
1        send 1 -> 1  send 0 -> 0  send 0 -> 1
2        recv 0 <- 1  recv 1 <- 0
sent     1/2          1/2          1
reduced  0            0            0

rounds            2
bytes per rank    at most 1 of the message sent, 0 reduced
verified          every contribution exactly once; no deadlock, eager or rendezvous
"""


@pytest.mark.parametrize("arguments, reason", [
    (["rign", "4"], "allreduce has no algorithm 'rign'; it has ring, direct, "),
    (["ring", "0"], "size 0 is not at least 1"),
    (["ring", "4", "--verb", "reduce", "--root", "4"], "root 4 is not in 0 .. 3"),
])
def test_command_line_refuses_with_a_reason(arguments, reason, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert reason in capsys.readouterr().err
