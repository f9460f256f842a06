"""What `auto` chooses is an algorithm that the verb has, few rounds first."""

import pytest

from collectives import schedules, tuning


@pytest.mark.parametrize("one_host", [True, False])
@pytest.mark.parametrize("verb", schedules.VERBS)
def test_every_choice_is_an_algorithm_of_the_verb(verb, one_host):
    for nbytes in (0, 8, 1 << 12, 1 << 16, 1 << 20, 1 << 32):
        assert tuning.choose(verb, nbytes, one_host) in schedules.algorithms(verb)


def test_short_messages_take_few_rounds_and_long_ones_few_bytes():
    def rounds(nbytes):
        algorithm = tuning.choose("allreduce", nbytes, one_host=False)
        return len(schedules.generate("allreduce", algorithm, 0, 64))
    assert rounds(8) < rounds(1 << 16) < rounds(1 << 24)


@pytest.mark.parametrize("verb", schedules.VERBS)
def test_short_messages_on_one_host_are_for_shared_memory(verb):
    assert tuning.is_for_shared_memory(verb, 0) and tuning.is_for_shared_memory(verb, 1 << 20)
    assert tuning.is_for_shared_memory(verb, 1 << 30) == (verb in schedules.ROOTED)
