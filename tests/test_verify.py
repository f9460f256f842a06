"""The verifier earns trust by rejecting broken schedules, each for its own reason."""

import re

import pytest

from collectives import schedules
from collectives.step import Op, Step
from collectives.verify import CONDITIONS, ScheduleError, check, contribution, run

SEND, RECV, RECV_REDUCE = Op

SIZE = 4
RING = [schedules.generate("allreduce", "ring", rank, SIZE) for rank in range(SIZE)]


# Edits of the steps of a correct ring allreduce of 4 ranks and 4 chunks.

def a_missing_send(rank, steps):
    last = max(at for at, s in enumerate(steps) if s.op is SEND)
    return steps[:last] + steps[last + 1:] if rank == 0 else steps


def a_lost_message(rank, steps):
    return steps[1:] if rank == 0 else steps


def a_stray_message(rank, steps):
    return [*steps, Step(SEND, 1, 0)] if rank == 0 else steps


def a_contribution_counted_twice(rank, steps):
    return [s._replace(op=RECV_REDUCE) if s.op is RECV else s for s in steps]


def a_message_of_the_wrong_length(rank, steps):
    return [s._replace(count=2) if s.op is SEND and s.chunk < 3 else s for s in steps]


def a_sum_that_is_overwritten(rank, steps):
    return [s._replace(op=RECV) if s.op is RECV_REDUCE else s for s in steps]


def the_wrong_chunk(rank, steps):
    return [s._replace(chunk=(s.chunk + 1) % SIZE) if s.op is SEND else s for s in steps]


def receives_before_sends(rank, steps):
    return [s for pair in zip(steps[1::2], steps[::2], strict=True) for s in pair]


def a_peer_that_does_not_exist(rank, steps):
    return [s._replace(peer=SIZE) if s.peer == 3 else s for s in steps]


def a_negative_peer(rank, steps):
    return [s._replace(peer=-1) if s.peer == 3 else s for s in steps]


def a_message_to_itself(rank, steps):
    return [s._replace(peer=rank) for s in steps]


def a_chunk_that_does_not_exist(rank, steps):
    return [s._replace(chunk=s.chunk + 1) for s in steps]


def a_negative_chunk(rank, steps):
    return [s._replace(chunk=s.chunk - 1) for s in steps]


def a_message_of_no_chunks(rank, steps):
    return [s._replace(count=0) for s in steps]


def an_op_that_does_not_exist(rank, steps):
    return [s._replace(op=99) for s in steps]


@pytest.mark.parametrize("edit, reason", [
    (a_missing_send, r"deadlock:\n  rank 1 step 11: RECV\(peer=0, chunk=2, count=1\)$"),
    (a_lost_message, "rank 1 step 1, .*: chunk 3: got chunk 2 from rank 0, want chunk 3"),
    (a_stray_message, r"never received:\n  1 from rank 0 to rank 1, the first SEND"),
    (a_contribution_counted_twice, "contributed twice: got {.*: 2.*}, want {0: 1, 1: 1, 2: 1, 3: "),
    (a_message_of_the_wrong_length, "rank 2 step 1, .*: expects 1 chunks from rank 1, got 2"),
    (a_sum_that_is_overwritten, "RECV of a value that is not final: got {0: 1}, want {0: 1, 1: 1"),
    (the_wrong_chunk, "got chunk 0 from rank 0, want chunk 3"),
    (receives_before_sends, r"deadlock:\n  rank 0 step 0: .*\n  rank 1 step 0: .*\n  rank 2 step"),
    (a_peer_that_does_not_exist, "peer 4 is not in 0 .. 3"),
    (a_negative_peer, "peer -1 is not in 0 .. 3"),
    (a_message_to_itself, "rank 0 step 0, .*: message to itself"),
    (a_chunk_that_does_not_exist, "1 chunks from 4 are not within 0 .. 3"),
    (a_negative_chunk, "1 chunks from -1 are not within 0 .. 3"),
    (a_message_of_no_chunks, "0 chunks from 3 are not within 0 .. 3"),
    (an_op_that_does_not_exist, "rank 0 step 0, 99.*unknown op; there are SEND, RECV, RECV_REDUCE"),
])
def test_verifier_rejects(edit, reason):
    with pytest.raises(ScheduleError, match=reason):
        check("allreduce", [edit(rank, steps) for rank, steps in enumerate(RING)], SIZE)


def test_verifier_accepts_what_the_edits_start_from():
    assert check("allreduce", RING, SIZE).rounds == 6


# Small schedules of one chunk, [rank][step].

def rejects(verb, table, reason, root=0):
    with pytest.raises(ScheduleError, match=re.escape(reason)):
        check(verb, table, 1, root)


def test_pairwise_send_and_reduce_is_no_deadlock():
    check("allreduce", [[Step(SEND, peer, 0), Step(RECV_REDUCE, peer, 0)] for peer in (1, 0)], 1)


def test_pairwise_send_and_overwrite_is_a_deadlock_of_rendezvous_only():
    swap_final = [[Step(SEND, peer, 0), Step(RECV_REDUCE, peer, 0),
                   Step(SEND, peer, 0), Step(RECV, peer, 0)] for peer in (1, 0)]
    rejects("allreduce", swap_final,
            "deadlock when every send is a rendezvous:\n"
            "  rank 0 step 3: RECV(peer=1, chunk=0, count=1)\n"
            "  rank 1 step 3: RECV(peer=0, chunk=0, count=1)")


def test_a_combine_that_waits_for_its_own_send_can_deadlock_with_rendezvous():
    # All send raw values to all.  Ranks 1 and 2 land rank 0's first; to combine it, each waits
    # until the other has landed its own, which is the other's second step.
    everybody = [[Step(op, peer, 0) for op in (SEND, RECV_REDUCE) for peer in range(3)
                  if peer != rank] for rank in range(3)]
    rejects("allreduce", everybody, "deadlock when every send is a rendezvous")


def test_replicas_combined_in_different_orders_are_rejected():
    table = [
        [Step(SEND, 1, 0), Step(RECV_REDUCE, 1, 0), Step(RECV_REDUCE, 2, 0), Step(SEND, 2, 0)],
        [Step(SEND, 0, 0), Step(RECV_REDUCE, 2, 0), Step(RECV_REDUCE, 0, 0)],
        [Step(SEND, 0, 0), Step(SEND, 1, 0), Step(RECV, 0, 0)],
    ]
    rejects("allreduce", table, "combined chunk 0 in different orders: their bits differ")


def test_a_lost_contribution_is_rejected_at_the_end():
    rejects("reduce", [[Step(RECV_REDUCE, 1, 0)], [Step(SEND, 0, 0)], []],
            "rank 0 chunk 0 at the end, last received in step 0, RECV_REDUCE(peer=1, chunk=0, "
            "count=1): got {0: 1, 1: 1}, want {0: 1, 1: 1, 2: 1}")


def test_a_rank_that_gets_nothing_is_rejected_at_the_end():
    rejects("broadcast", [[], []], "rank 1 chunk 0 at the end, never received: got {}, want {0: 1}")


def test_a_result_on_the_wrong_root_is_rejected():
    to_0 = [[Step(RECV_REDUCE, 1, 0)], [Step(SEND, 0, 0)]]
    check("reduce", to_0, 1, root=0)
    rejects("reduce", to_0, "rank 1 chunk 0 at the end", root=1)


def test_sending_what_is_not_there_yet_is_rejected():
    rejects("broadcast", [[Step(RECV, 1, 0)], [Step(SEND, 0, 0)]],
            "rank 1 step 0, SEND(peer=0, chunk=0, count=1): chunk 0: sends it before it has it")


def test_combining_into_what_is_not_there_yet_is_rejected():
    rejects("broadcast", [[Step(SEND, 1, 0)], [Step(RECV_REDUCE, 0, 0)]],
            "chunk 0: combines into it before it has it")


def test_a_reduction_into_the_same_chunk_twice_is_rejected():
    rejects("reduce", [[Step(RECV_REDUCE, 1, 0)] * 2, [Step(SEND, 0, 0)] * 2],
            "rank 0 step 1, RECV_REDUCE(peer=1, chunk=0, count=1): chunk 0: contributed twice: "
            "got {0: 1, 1: 2}, want {0: 1, 1: 1}")


def test_an_unknown_verb_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match="unknown verb 'scan'; there are allreduce, "):
        check("scan", [[]], 1)


def test_every_verb_has_its_conditions():
    assert set(CONDITIONS) == set(schedules.VERBS)


def test_run_leaves_the_state_that_it_is_given():
    state = [[contribution(rank)] * SIZE for rank in range(SIZE)]
    before = [list(values) for values in state]
    assert run(RING, state).state != before
    assert state == before
