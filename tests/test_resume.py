"""Runs that are killed, stopped, starved of disk or lied to, and what is left of them."""

import errno
import json
import multiprocessing as mp
import os
import pickle
import random
import signal
import sys
import time
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from test_run import QUIET, TINY, folder_of_images, records, same_weights

from ecpp.config import Config
from ecpp.run import RunFolder, go, pretrain, resume
from ecpp.train import Stopped, load_checkpoint
from ecpp.train.checkpoint import newest_good, previous, save_checkpoint

SMALL = replace(TINY, source="patterns:64", views=2, epochs=12, log_every=1, precision="fp32")


def run_in_child(config, out):
    """A run that saves after every step, in a process of its own."""
    torch.set_num_threads(1)
    go.SAVE_EVERY = 0.0
    pretrain(Config.from_json(config), out, console=QUIET)


def child(config, out):
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["ecpp.run", "ecpp.run.start", "torchvision", "test_resume"])
    process = context.Process(target=run_in_child, args=(config.to_json(), out))
    process.start()
    return process


def wait_for(condition, process, seconds=60.0):
    """True as soon as the condition holds; False when the process has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        if not process.is_alive():
            return False
        time.sleep(0.0005)
    raise TimeoutError


def moved(path):
    """Whether the file is another one than now."""

    def stamp():
        return path.stat().st_mtime_ns if path.exists() else 0

    before = stamp()
    return lambda: stamp() != before


@pytest.mark.slow
def test_twenty_kills_change_nothing(tmp_path):
    """SIGKILL at random moments, every other one in the middle of writing a checkpoint."""
    undisturbed = child(SMALL, tmp_path / "whole")
    run, chance = tmp_path / "killed", random.Random(0)
    undisturbed.join()
    kills = in_write = 0
    while kills < 20:
        saved = moved(run / "checkpoint.pt")
        process = child(SMALL, run)
        if not wait_for(saved, process):
            break
        if kills % 2:
            wait_for(lambda: any(run.glob(".checkpoint.pt.*")), process)
        else:
            time.sleep(chance.uniform(0, 0.03))
        process.kill()
        process.join()
        kills += 1
        in_write += any(run.glob(".checkpoint.pt.*"))
    last = child(SMALL, run)
    last.join()
    assert last.exitcode == 0
    assert kills == 20
    assert in_write
    assert same_weights(tmp_path / "whole", run)
    assert [r["step"] for r in records(run, "step")] == list(range(1, 49))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["simclr", "byol"])
def test_a_kill_in_any_process_of_a_run_with_workers(tmp_path, method):
    source = folder_of_images(tmp_path / "images", [(40, 60), (90, 50)])
    config = replace(SMALL, source=source, method=method, batch_size=8, large=32, epochs=4, precision="bf16")
    pretrain(replace(config, workers=0), tmp_path / "whole", console=QUIET)
    run = tmp_path / "killed"
    for victim in ("main", "worker"):
        saved = moved(run / "checkpoint.pt")
        process = child(replace(config, workers=2), run)
        assert wait_for(saved, process)
        if victim == "main":
            process.kill()
        else:
            workers = children_of(process.pid)
            os.kill(workers[-1], signal.SIGKILL)
        process.join()
        assert process.exitcode != 0
    resume(run, console=QUIET)
    assert same_weights(tmp_path / "whole", run)


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_so(tmp_path, monkeypatch, number):
    config = replace(TINY, source="patterns:100")
    pretrain(config, tmp_path / "whole", console=QUIET)
    append = RunFolder.append

    def tell(folder, record):
        append(folder, record)
        if record["step"] == 4:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with monkeypatch.context() as m:
        m.setattr(RunFolder, "append", tell)
        with pytest.raises(
            Stopped, match=r"told to stop at step 5 of 12, and saved: `ecpp resume"
        ) as stopped:
            pretrain(config, tmp_path / "run", console=QUIET)
    assert stopped.value.exit_code == 128 + number
    assert signal.getsignal(number) is before
    assert load_checkpoint(tmp_path / "run" / "checkpoint.pt")["step"] == 5
    resume(tmp_path / "run", console=QUIET)
    assert same_weights(tmp_path / "whole", tmp_path / "run")


def test_the_command_ends_with_the_code_of_the_signal(tmp_path, monkeypatch, capsys):
    from ecpp.cli import main

    def stop(*args, **options):
        raise Stopped(signal.SIGTERM, "told to stop at step 3 of 9, and saved")

    monkeypatch.setattr("ecpp.run.pretrain", stop)
    with pytest.raises(SystemExit) as e:
        main(["pretrain", "patterns", "--out", str(tmp_path / "run")])
    assert e.value.code == 143
    assert capsys.readouterr().err == "ecpp: told to stop at step 3 of 9, and saved\n"


def test_a_damaged_newest_checkpoint_is_reported_and_the_one_before_it_used(tmp_path, capsys):
    run = tmp_path / "run"
    pretrain(TINY, run, console=QUIET)
    path = run / "checkpoint.pt"
    assert load_checkpoint(previous(path))["step"] == 12
    state = load_checkpoint(path)["method"]
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1  # one bit, which torch.load itself does not notice
    path.write_bytes(damaged)
    resume(run, console=Console(stderr=True, width=1000))
    said = capsys.readouterr().err
    assert "checkpoint.pt cannot be read" in said
    assert "the one before it is used" in said
    after = load_checkpoint(path)["method"]
    assert all(torch.equal(state[k], after[k]) for k in state)


class Malicious:
    def __reduce__(self):
        return (os.system, ("touch /tmp/never",))


def test_a_checkpoint_never_runs_code(tmp_path):
    path = tmp_path / "checkpoint.pt"
    for write in (torch.save, lambda x, p: p.write_bytes(pickle.dumps(x))):
        write({"method": {"a": Malicious()}}, path)
        with pytest.raises(ValueError, match="cannot be read"):
            load_checkpoint(path)
    assert not os.path.exists("/tmp/never")


def fail_at_third(monkeypatch, error):
    """The third checkpoint cannot be written, after half of it."""
    saves = []
    save = torch.save

    def failing(state, file):
        saves.append(1)
        if len(saves) == 3:
            file.write(b"half of it")
            raise error
        save(state, file)

    monkeypatch.setattr(torch, "save", failing)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "x"), RuntimeError("unexpected pos 64 vs 0")])
def test_a_full_disk_loses_nothing_that_was_saved(tmp_path, monkeypatch, error):
    config = replace(TINY, epochs=4, source="patterns:64")
    pretrain(config, tmp_path / "whole", console=QUIET)
    run = tmp_path / "run"
    with monkeypatch.context() as m:
        fail_at_third(m, error)
        with pytest.raises(OSError, match=r"could not write the checkpoint .*The last one stands"):
            pretrain(config, run, console=QUIET)
    assert not list(run.glob(".*.tmp"))
    assert load_checkpoint(run / "checkpoint.pt")["step"] == 8
    resume(run, console=QUIET)
    assert same_weights(tmp_path / "whole", run)


def test_a_small_disk_that_is_really_full(tmp_path):
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux makes a disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o size=1m none {disk} 2>/dev/null"):
        pytest.skip("this machine mounts nothing")
    try:
        path = disk / "checkpoint.pt"
        save_checkpoint({"method": {"a": torch.ones(1000)}}, path, keep=True)
        with pytest.raises(OSError, match="could not write"):
            save_checkpoint({"method": {"a": torch.ones(1_000_000)}}, path, keep=True)
        assert load_checkpoint(path)["method"]["a"].sum() == 1000
        assert [f.name for f in disk.iterdir()] == ["checkpoint.pt"]
    finally:
        os.system(f"umount {disk}")


def test_a_folder_that_becomes_read_only(tmp_path, monkeypatch):
    run = tmp_path / "run"
    replaced = os.replace

    def refuse(a, b):
        if str(b).endswith("checkpoint.pt") and os.path.exists(b):
            raise PermissionError(errno.EROFS, "Read-only file system")
        replaced(a, b)

    with monkeypatch.context() as m:
        m.setattr(os, "replace", refuse)
        with pytest.raises(
            OSError, match=r"Read-only file system.*the folder read-only\? The last one stands"
        ):
            pretrain(TINY, run, console=QUIET)
    assert load_checkpoint(run / "checkpoint.pt")["step"] == 12
    path, note = newest_good(run / "checkpoint.pt")
    assert (path, note) == (run / "checkpoint.pt", None)


def test_a_file_system_without_links_keeps_two_as_well(tmp_path, monkeypatch):
    def refuse(a, b):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "checkpoint.pt"
    for step in range(3):
        save_checkpoint({"method": {}, "step": step}, path, keep=True)
    assert [load_checkpoint(p)["step"] for p in (path, previous(path))] == [2, 1]
    path.unlink()  # as after a crash between the two renames
    assert newest_good(path)[0] == previous(path)


def test_a_longer_run_is_planned_anew_and_says_so(tmp_path, capsys):
    run = tmp_path / "run"
    pretrain(TINY, run, console=QUIET)
    with pytest.raises(ValueError, match="is no extension: the run has 2 epochs"):
        resume(run, console=QUIET, extend=2)
    resume(run, console=Console(stderr=True, width=1000), extend=3)
    assert "extended from 2 to 3 epochs: the schedule is planned anew" in capsys.readouterr().err
    assert load_checkpoint(run / "checkpoint.pt")["step"] == 36
    assert RunFolder(run).config().epochs == 3
    assert json.loads((run / "run.json").read_text())["extended"] == [{"from": 2, "to": 3, "step": 24}]
    steps = records(run, "step")
    assert steps[5]["lr"] < steps[6]["lr"]  # it had fallen to nearly nothing
    with pytest.raises(ValueError, match="epochs: 3 there, 2 now"):
        pretrain(TINY, run, console=QUIET)


def test_other_threads_need_a_word(tmp_path):
    run = tmp_path / "run"
    pretrain(TINY, run, console=QUIET)
    assert load_checkpoint(run / "checkpoint.pt")["threads"] == 1
    with pytest.raises(ValueError, match="--allow-inexact"):
        resume(run, console=QUIET, threads=2)
    resume(run, console=QUIET, threads=2, allow_inexact=True)
    torch.set_num_threads(1)
    assert RunFolder(run).resolved().threads == 2


def test_other_ranks_need_a_word(tmp_path, monkeypatch):
    run = tmp_path / "run"
    pretrain(TINY, run, console=QUIET)
    state = load_checkpoint(run / "checkpoint.pt") | {"ranks": 4}
    save_checkpoint(state, run / "checkpoint.pt")
    with pytest.raises(ValueError, match=r"ranks: 4 there, 1 now.*--allow-inexact"):
        resume(run, console=QUIET)
    resume(run, console=QUIET, allow_inexact=True)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"threads": 0}, "--threads must be at least 1"), ({"threads": 10**6}, "is far more than the")],
)
def test_a_resume_that_cannot_be_leaves_the_run_as_it_is(tmp_path, options, says):
    run = tmp_path / "run"
    pretrain(replace(TINY, epochs=1, val="patterns:40"), run, console=QUIET)
    before = (run / "run.json").read_text()
    with pytest.raises(ValueError, match=says):
        resume(run, console=QUIET, allow_inexact=True, **options)
    assert (run / "run.json").read_text() == before


def test_a_run_of_other_circumstances_is_not_extended(tmp_path, monkeypatch):
    run = tmp_path / "run"
    pretrain(replace(TINY, epochs=1), run, console=QUIET)
    before = (run / "run.json").read_text()
    monkeypatch.setattr("ecpp.run.state.circumstances", lambda config: {"ranks": 2})
    with pytest.raises(ValueError, match="say --allow-inexact"):
        resume(run, console=QUIET, extend=2)
    assert (run / "run.json").read_text() == before
