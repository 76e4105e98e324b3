"""Embeddings of any number of images, after any number of stops; and the images nearest to a given one."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from small_runs import make_run
from test_cli import call, fails

import ecpp
from ecpp.data import open_source
from ecpp.data.patterns import render
from ecpp.evaluate import features
from ecpp.run import embed as embed_module
from ecpp.run import parts as parts_module
from ecpp.run.embed import embed_run
from ecpp.run.neighbours import Best, neighbours
from ecpp.run.parts import Parts


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder with two splits, three classes and one file that is no image."""
    root = tmp_path_factory.mktemp("photos")
    for i, pixels in enumerate(render(range(30), size=40)):
        folder = root / ("train" if i < 24 else "test") / f"class {i % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / f"{'long' * (i == 7)}{i}.png")
    (root / "train" / "class 1" / "bad.png").write_bytes(b"no image")
    return root


def expected(run, source):
    net, splits = ecpp.load(run), open_source(str(source))
    torch.set_num_threads(1)
    return [
        (split, images, features(net, images, net.preprocess))
        for split, images in (("train", splits.train), ("test", splits.test))
    ]


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_every_image_has_its_row(run, photos, tmp_path, ending):
    out = tmp_path / f"e.{ending}"
    done = embed_run(run, str(photos), out)
    if ending == "npz":
        table = dict(np.load(out))
        assert table["unreadable"].tolist() == list(done.unreadable)
    else:
        from pyarrow import parquet

        read = parquet.read_table(out)
        table = {c: np.array(read[c].to_pylist()) for c in read.column_names}
        assert json.loads(read.schema.metadata[b"ecpp"])["unreadable"] == list(done.unreadable)
    assert set(table) - {"unreadable", "about"} == {"name", "split", "label", "embedding"}
    sides = expected(run, photos)
    rows = [
        (images.name(i), split, images.classes[images.labels[i]])
        for split, images, found in sides
        for i in found.index.tolist()
    ]
    got = zip(table["name"].tolist(), table["split"].tolist(), table["label"].tolist(), strict=True)
    assert list(got) == rows
    wanted = torch.cat([found.values for _, _, found in sides]).numpy()
    assert table["embedding"].dtype == (np.float32 if ending == "npz" else np.float64)
    assert np.allclose(table["embedding"], wanted, rtol=1e-4, atol=1e-5)
    assert done.rows == len(rows) == 30
    assert [u.split(":")[0].endswith("bad.png") for u in done.unreadable] == [True]
    assert [p.name for p in tmp_path.iterdir()] == [out.name]


def test_images_without_labels_have_no_column_for_them(run, tmp_path):
    (tmp_path / "flat").mkdir()
    for i, pixels in enumerate(render(range(3), size=16)):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / "flat" / f"{i}.png")
    embed_run(run, str(tmp_path / "flat"), tmp_path / "e.npz")
    assert set(np.load(tmp_path / "e.npz")) == {"name", "split", "embedding", "unreadable", "about"}


class Stop(Exception):
    pass


def stopped(run, source, out, monkeypatch, after):
    """Embed until `after` images are done, as if killed there."""

    def progress(done, total):
        if done >= after:
            raise Stop

    with pytest.raises(Stop):
        embed_run(run, source, out, progress=progress)


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_stopped_and_called_again_it_ends_with_the_same_file(run, tmp_path, monkeypatch, ending):
    monkeypatch.setattr(embed_module, "BATCH", 16)
    monkeypatch.setattr(parts_module, "_COMMIT_EVERY", 0.0)
    whole, out = tmp_path / f"whole.{ending}", tmp_path / f"out.{ending}"
    assert embed_run(run, "patterns:100", whole).rows == 120
    seen = []
    for after in (32, 80, 112):
        stopped(run, "patterns:100", out, monkeypatch, after)
        room = tmp_path / f".out.{ending}.parts"
        seen.append(json.loads((room / "progress.json").read_text())["done"])
        with open(room / "values.f32", "ab") as file:  # torn off in the middle of a row
            file.write(b"xyz")
        assert not out.exists()
    assert seen == [32, 80, 112]
    begun = []
    embed_run(run, "patterns:100", out, progress=lambda done, total: begun.append(done))
    assert begun == [120]
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([out.name, whole.name])


def test_a_stop_while_the_file_is_written_costs_no_embedding(run, tmp_path, monkeypatch):
    def write(table, path):
        path.write_bytes(b"half")
        raise Stop

    out = tmp_path / "e.npz"
    with monkeypatch.context() as patched:
        patched.setitem(embed_module.WRITERS, ".npz", write)
        with pytest.raises(Stop):
            embed_run(run, "patterns:50", out)
    embed_run(run, "patterns:50", out, progress=lambda done, total: pytest.fail("embedded again"))
    assert len(np.load(out)["name"]) == 60


def test_a_file_that_is_there_stands(run, tmp_path):
    out = tmp_path / "e.npz"
    embed_run(run, "patterns:20", out)
    before = out.read_bytes()
    again = embed_run(run, "patterns:20", out, progress=lambda done, total: pytest.fail("embedded again"))
    assert (again.rows, again.notes) == (30, (f"{out} was complete",))
    with pytest.raises(ValueError, match="holds something else"):
        embed_run(run, "patterns:30", out)
    assert out.read_bytes() == before


def test_what_was_begun_otherwise_is_not_mixed(run, tmp_path, monkeypatch):
    monkeypatch.setattr(embed_module, "BATCH", 16)
    monkeypatch.setattr(parts_module, "_COMMIT_EVERY", 0.0)
    out = tmp_path / "e.npz"
    stopped(run, "patterns:50", out, monkeypatch, 16)
    with pytest.raises(ValueError, match="begun with another images"):
        embed_run(run, "patterns:60", out)
    other = make_run(tmp_path / "other", seed=1)
    with pytest.raises(ValueError, match="begun with another weights"):
        embed_run(other, "patterns:50", out)
    (tmp_path / ".e.npz.parts" / "values.f32").write_bytes(b"")
    with pytest.raises(ValueError, match="has lost its end"):
        embed_run(run, "patterns:50", out)
    (tmp_path / ".e.npz.parts" / "progress.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        embed_run(run, "patterns:50", out)


def test_one_process_at_a_time(run, tmp_path):
    pytest.importorskip("fcntl")
    from ecpp.run.folder import locked

    with (
        locked(tmp_path / ".e.npz.parts", "busy"),
        pytest.raises(ValueError, match="another process is writing"),
    ):
        embed_run(run, "patterns:20", tmp_path / "e.npz")


def test_parts_hold_what_was_committed(tmp_path):
    parts = Parts(tmp_path / "p", {"a": 1})
    from ecpp.evaluate.features import Features

    parts.append(Features(torch.ones(2, 3), torch.tensor([0, 5]), ()), 6)
    parts.commit()
    parts.append(Features(torch.zeros(1, 3), torch.tensor([6]), ()), 7)
    parts.close()
    again = Parts(tmp_path / "p", {"a": 1})
    assert (again.done, again.rows, list(again.numbers())) == (6, 2, [0, 5])
    assert [v.shape for v in again.values(1)] == [(1, 3), (1, 3)]
    again.close()


def test_mistakes_end_in_a_sentence(run, tmp_path, capsys):
    assert ".npz or .parquet" in fails(capsys, "embed", run, "patterns:20", "--out", tmp_path / "e.csv")
    assert "at least 0" in fails(
        capsys, "embed", run, "patterns:20", "--out", tmp_path / "e.npz", "--workers", "-1"
    )
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "1.png").write_bytes(b"no image")
    message = fails(capsys, "embed", run, tmp_path / "bad", "--out", tmp_path / "e.npz")
    assert "none of the 1 images can be read" in message
    query = ["--query", tmp_path / "no.png", "--out", tmp_path / "n.png"]
    assert "there is no image" in fails(capsys, "neighbours", run, "patterns:20", *query)
    query = ["--query", tmp_path / "bad" / "1.png", "--out", tmp_path / "n.jpg"]
    assert "ends in .png" in fails(capsys, "neighbours", run, "patterns:20", *query)


def test_the_command_lists_what_it_left_out(run, photos, tmp_path, capsys):
    call("embed", run, photos, "--out", tmp_path / "e.npz")
    out = " ".join(capsys.readouterr().out.split())
    assert "30 embeddings" in out
    assert "left out, as they cannot be read: 1" in out
    assert "bad.png" in out


# --- neighbours -----------------------------------------------------------------------------------------


def test_neighbours_are_the_most_similar_images(run, photos, tmp_path, capsys):
    queries = [photos / "train" / "class 0" / "3.png", photos / "test" / "class 1" / "25.png"]
    out = tmp_path / "n.png"
    call("neighbours", run, photos, "--query", *queries, "--out", out, "--count", "5")
    assert "n.json" in capsys.readouterr().out
    about = json.loads(out.with_suffix(".json").read_text())
    assert (about["images"], about["unreadable"]) == (30, 1)
    sides = expected(run, photos)
    bank = F.normalize(torch.cat([found.values for _, _, found in sides]), dim=1)
    names = [(s, images.name(i)) for s, images, found in sides for i in found.index.tolist()]
    for query, path in zip(about["queries"], queries, strict=True):
        me = names.index((path.parts[-3], "/".join(path.parts[-2:])))
        similarity, order = (bank @ bank[me]).topk(5)
        assert query["query"] == str(path)
        assert (query["neighbours"][0]["split"], query["neighbours"][0]["name"]) == names[me]
        got = [n["similarity"] for n in query["neighbours"]]
        assert np.allclose(got, similarity.numpy(), atol=1e-4)
        assert {(n["split"], n["name"]) for n in query["neighbours"]} == {names[i] for i in order.tolist()}
        assert query["neighbours"][0]["label"] == path.parts[-2]
    with Image.open(out) as picture:
        assert picture.width > 6 * 96


@pytest.mark.parametrize("search", ["torch", "faiss"])
def test_a_stream_keeps_the_best_of_all(search):
    if search == "faiss":
        pytest.importorskip("faiss")
    g = torch.Generator().manual_seed(0)
    queries, bank = torch.randn(3, 8, generator=g), torch.randn(100, 8, generator=g)
    best = Best(queries, 7)
    best.search = search
    for start, stop in ((0, 2), (2, 50), (50, 50), (50, 100)):
        best.see(bank[start:stop], torch.arange(start, stop))
    similarity, index = (F.normalize(queries, dim=1) @ F.normalize(bank, dim=1).T).topk(7)
    assert torch.equal(best.index, index)
    assert torch.allclose(best.similarity, similarity, atol=1e-6)


def test_more_neighbours_than_images_are_all_of_them(run, tmp_path):
    file = tmp_path / "q.png"
    Image.fromarray(render([3], size=32)[0].permute(1, 2, 0).numpy()).save(file)
    out = neighbours(run, "patterns:10", [file], tmp_path / "n.png", count=50)
    found = json.loads(out.with_suffix(".json").read_text())["queries"][0]["neighbours"]
    assert len(found) == 20
    assert (found[0]["name"], found[0]["label"] != "") == ("pattern 3", True)


# --- long runs ------------------------------------------------------------------------------------------

CODE = "import sys; from ecpp.cli import main; main(sys.argv[1:])"


@pytest.mark.slow
def test_a_killed_process_loses_nothing_that_counts(run, tmp_path):
    """kill -9, three times."""
    words = [sys.executable, "-c", CODE, "embed", str(run), "patterns:6000", "--workers=0", "--out"]
    subprocess.run([*words, str(tmp_path / "whole.npz")], check=True)
    out, kills = tmp_path / "e.npz", 0
    values = tmp_path / ".e.npz.parts" / "values.f32"
    while not out.exists():
        process = subprocess.Popen([*words, str(out)])
        grown = values.stat().st_size if values.exists() else 0
        while process.poll() is None and kills < 3:
            if values.exists() and values.stat().st_size > grown + 30_000:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.02)
        process.wait()
    assert kills == 3
    assert out.read_bytes() == (tmp_path / "whole.npz").read_bytes()


MEMORY = """
import resource, sys
from pathlib import Path
from ecpp.run.embed import embed_run
done = embed_run(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), workers=1)
print(done.rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
TABLE = """
import resource, sys
from pathlib import Path
import numpy as np
from ecpp.run.table import WRITERS, Table
rows, out = int(sys.argv[1]), Path(sys.argv[2])
def values(size):
    for start in range(0, rows, size):
        yield np.random.rand(min(size, rows - start), 256).astype("<f4")
table = Table(rows, 256, lambda: iter(range(rows)), values, lambda i: f"image {i}", str, None, lambda: iter(()), {})
WRITERS[out.suffix](table, out)
print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak(code, *words):
    """(rows, MiB at most) of a fresh process."""
    command = [sys.executable, "-c", code, *map(str, words)]
    rows, kib = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    return rows, kib / 1024


@pytest.mark.slow
def test_memory_is_flat_over_a_hundred_thousand_images(tmp_path):
    """A fifth more, in fact: the source has its test images too. Their embeddings alone are 117 MiB."""
    run = make_run(tmp_path / "run", size=8, small=8, width=32)
    few, less = peak(MEMORY, run, "patterns:5000x8", tmp_path / "few.npz")
    many, more = peak(MEMORY, run, "patterns:100000x8", tmp_path / "many.npz")
    assert (few, many) == (6_000, 120_000)
    assert more - less < 40, f"{less:.0f} MiB for {few} images, {more:.0f} for {many}"


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_the_file_is_written_in_constant_memory(tmp_path, ending):
    _, less = peak(TABLE, 20_000, tmp_path / f"few.{ending}")
    _, more = peak(TABLE, 200_000, tmp_path / f"many.{ending}")
    assert more - less < 60, f"{less:.0f} MiB, then {more:.0f}, of which the embeddings would be 195"
