"""Policies: which codec a tensor gets, by size, name and step; and what is refused, when."""

import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from collectives.kernels.codec import FLOATS, Codec
from collectives.policies import ByName, ByStep, MinSize, TensorInfo, checked, resolve


@dataclass(frozen=True)
class Coarse(Codec):
    """A codec of which only the identity matters here."""

    name = "coarse"
    block: int = 8


@dataclass(frozen=True)
class Fine(Codec):
    name = "fine"


COARSE, FINE = Coarse(), Fine()
KNOWN = {"coarse": COARSE, "coarse:16": Coarse(16), "fine": FINE}


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """In place of the registry, so that these tests need no real codec."""
    def as_codec(spec):
        if not isinstance(spec, str):
            raise TypeError(f"compression={spec!r}: expected a codec")
        if spec not in KNOWN:
            raise ValueError(f"compression={spec!r}: expected one of {', '.join(KNOWN)}")
        return KNOWN[spec]

    monkeypatch.setitem(sys.modules, "collectives.kernels.codecs",
                        SimpleNamespace(as_codec=as_codec))


def tensor(name="w", size=1000, dtype="float32"):
    return TensorInfo(name, dtype, size)


@pytest.mark.parametrize("dtype, nbytes", [
    ("float16", 20), ("bfloat16", 20), ("float32", 40), ("float64", 80), ("complex128", 160),
    ("bool", 10)])
def test_bytes_follow_from_dtype_and_size(dtype, nbytes):
    assert tensor(size=10, dtype=dtype).nbytes == nbytes


@pytest.mark.parametrize("given, want", [
    (None, None), (COARSE, COARSE), ("coarse", COARSE), ("coarse:16", Coarse(16)),
    (lambda t: "fine", FINE), (lambda t: (lambda t: COARSE), COARSE), (lambda t: None, None)],
    ids=range(7))
def test_codecs_strings_none_and_functions_resolve(given, want):
    assert resolve(given, tensor()) == want


@pytest.mark.parametrize("size, want", [(0, None), (255, None), (256, COARSE), (10_000, COARSE)])
def test_min_size_is_in_bytes_and_inclusive(size, want):
    assert resolve(MinSize(1024, "coarse"), tensor(size=size)) == want


def test_min_size_has_another_compression_for_small_tensors():
    policy = MinSize(1024, "coarse", below="fine")
    assert [resolve(policy, tensor(size=n)) for n in (255, 256)] == [FINE, COARSE]
    assert resolve(policy, tensor(size=128, dtype="float64")) is COARSE


@pytest.mark.parametrize("name, want", [
    ("encoder.0.bias", None), ("embed.bias", None), ("embed.weight", FINE),
    ("decoder.embed.weight", COARSE), ("bias", COARSE), ("BIAS.bias", None),
    ("Embed.weight", COARSE), ("layer[3]", COARSE), ("x7y", Coarse(16)), (None, COARSE)])
def test_the_first_pattern_that_matches_wins(name, want):
    policy = ByName({"*.bias": None, "embed*": "fine", "x[0-9]?": "coarse:16"}, default="coarse")
    assert resolve(policy, tensor(name)) == want


def test_order_of_patterns_counts_and_the_star_takes_tensors_without_name():
    assert resolve(ByName({"*": FINE, "w": COARSE}), tensor("w")) is FINE
    assert resolve(ByName({"w": COARSE, "*": FINE}), tensor("w")) is COARSE
    assert resolve(ByName({"*": FINE}, default=COARSE), tensor(None)) is FINE
    assert resolve(ByName({"v": FINE}), tensor("w")) is None


def test_by_step_takes_the_last_entry_that_has_begun():
    policy = ByStep({10: "fine", 0: None, 3: "coarse"})
    seen = []
    for _ in range(12):
        seen.append(resolve(policy, tensor()))
        policy.advance()
    assert seen == 3 * [None] + 7 * [COARSE] + 2 * [FINE] and policy.step == 12
    policy.step = np.int64(9)
    assert resolve(policy, tensor()) is COARSE and policy.step == 9


def test_policies_nest_in_any_order():
    schedule = ByStep({0: None, 5: "fine"})
    policy = MinSize(1024, ByName({"head*": schedule}, default="coarse"))
    head, body, small = tensor("head.w"), tensor("body.w"), tensor("head.b", size=1)
    assert [resolve(policy, t) for t in (head, body, small)] == [None, COARSE, None]
    schedule.step = 5
    assert [resolve(policy, t) for t in (head, body, small)] == [FINE, COARSE, None]


def test_a_policy_is_not_asked_about_what_no_codec_compresses():
    def refuse(tensor):
        raise AssertionError("asked")

    for dtype in ("bool", "int8", "int64", "uint16", "complex64", "complex128"):
        assert resolve(refuse, tensor(dtype=dtype)) is None
        assert resolve("coarse", tensor(dtype=dtype)) is COARSE  # the call says that this is wrong
    for dtype in FLOATS:
        assert resolve(MinSize(0, COARSE), tensor(dtype=dtype)) is COARSE


@pytest.mark.parametrize("make", [
    lambda bad: MinSize(1, bad), lambda bad: MinSize(1, None, below=bad),
    lambda bad: ByName({"a": None, "*": bad}), lambda bad: ByName({}, default=bad),
    lambda bad: ByStep({0: None, 7: bad}), lambda bad: resolve(bad, tensor()),
    lambda bad: ByStep({0: ByName({}, default=MinSize(3, bad))})], ids=range(7))
def test_what_names_no_codec_is_an_error_at_construction(make):
    with pytest.raises(ValueError, match=r"'int9'.*coarse, coarse:16, fine"):
        make("int9")
    with pytest.raises(TypeError, match="compression=8"):
        make(8)
    with pytest.raises(TypeError, match=r"compression=Coarse: expected an object, such as Coarse"):
        make(Coarse)


@pytest.mark.parametrize("make, error, words", [
    (lambda: MinSize(-1, None), ValueError, "nbytes=-1: expected an integer >= 0"),
    (lambda: MinSize("4K", None), TypeError, "nbytes='4K'"),
    (lambda: MinSize(True, None), TypeError, "nbytes=True"),
    (lambda: MinSize(1e6, None), TypeError, "nbytes=1000000.0"),
    (lambda: ByName([("*", None)]), TypeError, "expected a dict from name patterns"),
    (lambda: ByName({3: None}), TypeError, "pattern 3: expected a string"),
    (lambda: ByStep([None]), TypeError, "expected a dict from steps"),
    (lambda: ByStep({}), ValueError, "expected 0 among them"),
    (lambda: ByStep({5: None}), ValueError, r"keys \[5\]: expected 0 among them"),
    (lambda: ByStep({0: None, -1: None}), ValueError, "key=-1"),
    (lambda: ByStep({0: None, "1": None}), TypeError, "key='1'"),
    (lambda: setattr(ByStep({0: None}), "step", -3), ValueError, "step=-3"),
    (lambda: setattr(ByStep({0: None}), "step", 0.5), TypeError, "step=0.5")], ids=range(13))
def test_malformed_arguments_are_named(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_an_answer_that_is_no_compression_names_policy_and_tensor():
    def odd(tensor):
        return "int9"

    with pytest.raises(ValueError, match=r"odd.*returned 'int9' for TensorInfo\(name='w'.*coarse"):
        resolve(odd, tensor())
    with pytest.raises(TypeError, match="returned 3 for TensorInfo"):
        resolve(lambda tensor: 3, tensor())


def test_policies_that_return_one_another_for_ever_are_an_error():
    def again(tensor):
        return again

    with pytest.raises(ValueError, match="policies that return policies"):
        resolve(again, tensor())


def test_repr_shows_what_was_chosen():
    assert eval(repr(MinSize(16, "coarse"))) == MinSize(16, COARSE)
    assert repr(ByName({"*.b": None}, default="fine")) == "ByName({'*.b': None}, default=Fine())"
    assert repr(ByStep({9: "coarse", 0: None})) == "<ByStep({0: None, 9: Coarse(block=8)}), step 0>"
    assert hash(MinSize(16, "coarse")) == hash(MinSize(16, COARSE))


def test_later_changes_of_the_users_dict_do_not_change_the_policy():
    patterns, entries = {"w": "coarse"}, {0: "coarse"}
    by_name, by_step = ByName(patterns), ByStep(entries)
    patterns["w"] = entries[0] = "fine"
    assert resolve(by_name, tensor("w")) is COARSE and resolve(by_step, tensor()) is COARSE


def test_checked_leaves_codecs_and_policies_alone():
    policy = MinSize(1, COARSE)
    assert checked(policy) is policy and checked(COARSE) is COARSE and checked(None) is None
