"""The store of compiled functions: damaged files, locks, directories that cannot be written."""

import multiprocessing
import os
import tempfile
import threading
import time
from pathlib import Path

import pytest

from collectives.kernels import cache
from collectives.kernels.cache import Store
from collectives.settings import settings


@pytest.mark.parametrize("damage", [
    lambda content: b"",
    lambda content: content[:len(content) // 2],
    lambda content: content[:-1],
    lambda content: content[:500] + bytes([content[500] ^ 1]) + content[501:],
    lambda content: b"not machine code\n",
], ids=["empty", "half", "short", "flipped", "text"])
def test_damaged_file_is_missing_and_replaced(tmp_path, damage):
    store = Store(tmp_path)
    store.save("f", bytes(range(256)) * 8)
    good = (tmp_path / "f").read_bytes()
    (tmp_path / "f").write_bytes(damage(good))
    with store.claim("f") as payload:
        assert payload is None
        store.save("f", bytes(range(256)) * 8)
    assert store.load("f") == bytes(range(256)) * 8
    assert os.listdir(tmp_path) == ["f"]


def _hold(path, holding):
    with Store(Path(path)).claim("f"):
        holding.set()
        time.sleep(60)


def test_lock_dies_with_its_process(tmp_path):
    context = multiprocessing.get_context("spawn")
    holding = context.Event()
    holder = context.Process(target=_hold, args=(str(tmp_path), holding))
    holder.start()
    assert holding.wait(30)
    holder.kill()
    holder.join()
    assert os.listdir(tmp_path) == ["f.lock"]
    start_s = time.monotonic()
    with Store(tmp_path).claim("f") as payload:
        assert payload is None
    assert time.monotonic() - start_s < 30
    assert os.listdir(tmp_path) == []


def test_waiting_ends_when_the_file_appears_or_patience_ends(tmp_path, monkeypatch):
    first, second, third = Store(tmp_path), Store(tmp_path), Store(tmp_path)
    monkeypatch.setattr(cache, "PATIENCE_S", 0.1)
    with first.claim("f"):
        with second.claim("f") as payload:
            assert payload is None
        monkeypatch.setattr(cache, "PATIENCE_S", 60.0)
        timer = threading.Timer(0.1, first.save, ("f", b"code"))
        timer.start()
        with third.claim("f") as payload:
            assert payload == b"code"
        timer.join()


def test_file_systems_without_locks_still_store(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(95, "Operation not supported")
    monkeypatch.setattr(cache.fcntl, "flock", refuse)
    with Store(tmp_path).claim("f") as outer, Store(tmp_path).claim("f") as inner:
        assert outer is inner is None
        Store(tmp_path).save("f", b"code")
    monkeypatch.setattr(cache, "fcntl", None)
    with Store(tmp_path).claim("f") as payload:
        assert payload == b"code"


def test_directory_that_cannot_be_made_falls_back_to_a_private_one(tmp_path, caplog):
    (tmp_path / "file").write_text("where a directory should be")
    private = tmp_path / "private"
    store = Store(tmp_path / "file" / "mpi-collectives", private)
    with store.claim("f") as payload:
        assert payload is None
        store.save("f", b"code")
    assert store.directory == private
    assert private.stat().st_mode & 0o777 == 0o700
    assert ["compiling will be repeated" in message for message in caplog.messages] == [True]
    assert Store(tmp_path / "file", private).load("f") == b"code"


def test_fallback_that_others_may_write_is_not_used(tmp_path):
    private = tmp_path / "private"
    private.mkdir()
    Store(private).save("f", b"their code")
    private.chmod(0o777)
    (tmp_path / "link").symlink_to(private)
    for fallback in private, tmp_path / "link":
        assert Store(None, fallback).load("f") is None
        assert Store(None, fallback).directory is None


@pytest.fixture
def environ(monkeypatch, tmp_path):
    """Set the variables that choose the directory, anew."""
    def choose(**variables) -> Path | None:
        for name in ("COLLECTIVES_CACHE", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        settings.cache_clear()
        cache.store.cache_clear()
        return cache.cache_directory()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    yield choose
    settings.cache_clear()
    cache.store.cache_clear()


def test_directory_comes_from_the_environment(environ, tmp_path):
    ours, xdg, home = (str(tmp_path / name) for name in ("ours", "xdg", "home"))
    want = {name: Path(name) / "mpi-collectives" for name in (ours, xdg, home + "/.cache")}
    assert environ(COLLECTIVES_CACHE=ours, XDG_CACHE_HOME=xdg, HOME=home) == want[ours]
    assert environ(XDG_CACHE_HOME=xdg, HOME=home) == want[xdg]
    assert environ(XDG_CACHE_HOME="relative", HOME=home) == want[home + "/.cache"]
    assert environ(HOME=home) == want[home + "/.cache"]


def test_user_without_home_gets_a_temporary_directory(environ, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert environ() == tmp_path / "tmp" / f"mpi-collectives-{os.getuid()}"
    assert "no home directory" in caplog.text


def _refuse_writing(monkeypatch):
    """As on a read-only file system, for root too."""
    real = os.open

    def refuse(path, flags, *args, **kwargs):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(30, "Read-only file system", str(path))
        return real(path, flags, *args, **kwargs)
    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(cache.tempfile, "TemporaryFile",
                        lambda dir: refuse(dir, os.O_RDWR | os.O_CREAT))


def test_read_only_directory_is_read_silently_and_complained_about_once(tmp_path, monkeypatch,
                                                                        caplog):
    Store(tmp_path / "user").save("f", b"code")
    _refuse_writing(monkeypatch)
    store = Store(tmp_path / "user", tmp_path / "private")
    with store.claim("f") as payload:
        assert payload == b"code"
    assert caplog.messages == []
    for name in "gh":
        with store.claim(name) as payload:
            assert payload is None
            store.save(name, b"code")
    assert store.directory is None
    message, = caplog.messages
    assert "Read-only file system" in message and "COLLECTIVES_CACHE" in message
    assert os.listdir(tmp_path / "user") == ["f"]


def test_full_disk_is_complained_about_once(tmp_path, monkeypatch, caplog):
    def full(*args):
        raise OSError(28, "No space left on device")
    store = Store(tmp_path)
    monkeypatch.setattr(os, "replace", full)
    store.save("f", b"code")
    store.save("g", b"code")
    assert os.listdir(tmp_path) == []
    assert ["No space left" in message for message in caplog.messages] == [True]


def test_damage_is_warned_of_once(tmp_path, caplog):
    for name in ("f", "g"):
        (tmp_path / name).write_bytes(b"garbage")
    store = Store(tmp_path)
    assert store.load("f") is None and store.load("g") is None
    assert [record.message.count("damaged") for record in caplog.records] == [1]
