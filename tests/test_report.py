"""The page, its table, its curves and its picture grids, from made-up run folders."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ecpp.report.figures import Series, axis, curves, tick_texts
from ecpp.report.heat import heat_map, heats, view_groups
from ecpp.report.page import write_report
from ecpp.report.read import read_runs
from ecpp.report.sheet import picture_grid
from ecpp.report.table import cells, columns, summary
from ecpp.report.text import count, duration, percent

VOID = {"meta", "img", "br", "link", "hr"}


def fake_run(
    folder: Path,
    *,
    name: str = "ECPP×6",
    views: int = 6,
    seed: int = 0,
    linear: float | None = 0.61,
    floor: float = 0.38,
    epochs: int = 4,
    knn: bool = True,
    **settings: Any,
) -> Path:
    folder.mkdir(parents=True)
    large, pairs = max(2, views // 3), views * (views - 1) // 2
    plan = [{"size": 32, "kind": "SimCLR"}] * large
    plan += [{"size": 20, "kind": "crop-only"}] * (views - large)
    relative = large + (views - large) * (20 / 32) ** 2
    resolved = {
        "method": "simclr", "views": views, "encoder": "resnet18", "width": 64, "epochs": epochs,
        "batch_size": 256, "lr": 0.25, "tau": 0.2, "seed": seed, "precision": "fp32",
        "pair_reduction": "sum", "loss": "per-pair",
    }  # fmt: skip
    write = {
        "name": name,
        "config": {"source": "patterns", "views": views, "seed": seed},
        "resolved": resolved | settings,
        "plan": {"views": plan, "pairs_per_image": pairs, "relative_compute": relative},
        "environment": {"python": "3.11", "torch": "2.15", "machine": "2 cores", "git": "abc"},
        "command": f"ecpp pretrain patterns --views {views} --seed {seed}",
    }
    (folder / "run.json").write_text(json.dumps(write))
    rng = np.random.default_rng(seed + 10 * views)
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, 10 * epochs + 1):
            line: dict[str, Any] = {"kind": "step", "step": step, "epoch": step / 10}
            progress = step / (10 * epochs)
            line["loss"] = pairs * (5 - 2 * math.sqrt(progress) + rng.normal() / 20)
            line |= {"seconds": 0.2 * step * views, "view_passes": 256 * step * views}
            line["embedding_std"] = 0.06 + 0.02 * progress + rng.normal() / 900
            file.write(json.dumps(line) + "\n")
            if step % 10 == 0:
                line |= {"kind": "epoch", "epoch": step // 10}
                if knn:
                    rate = 0.3 + (0.02 * views + 0.2) * math.sqrt(progress)
                    line["knn"] = rate + rng.normal() / 200
                file.write(json.dumps(line) + "\n")
    if linear is not None:
        details = "SGD 100 epochs, batch 256, lr 0.25 on frozen, un-augmented features"
        common = {"labels": 50000, "tested": 10000, "floor": floor, "seconds": 4.2}
        probe = {"protocol": "linear", "top1": linear, "details": details} | common
        near = {"protocol": "knn", "top1": linear - 0.05, "details": "k 20, cosine"} | common
        evaluation = {"source": "patterns", "classes": 10, "results": [probe, near]}
        (folder / "evaluation.json").write_text(json.dumps(evaluation))
    return folder


class Page(HTMLParser):
    """Tags balance; text and resources are collected."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.rows: list[list[str]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open
        self.text = re.sub(r"\s+", " ", " ".join(self.texts))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "action")]
        assert not any(k.startswith("on") for k, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.texts.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def page_of(runs: list[Path], out: Path, **words: str) -> Page:
    return Page(write_report(runs, out, **words).read_text(encoding="utf-8"))


def test_page_compares_runs(tmp_path: Path) -> None:
    six = fake_run(tmp_path / "six")
    two = fake_run(tmp_path / "two", name="SimCLR", views=2, linear=0.55)
    Image.new("RGB", (40, 30)).save(six / "views.png")
    out = tmp_path / "deep" / "page.html"
    page = page_of([six, two], out, title="Two runs", intro="Made up.")
    heads = page.rows[0]
    by_name = {row[0]: dict(zip(heads, row, strict=True)) for row in page.rows[1:4]}
    assert heads[:5] == ["run", "K", "pairs per image", "epochs", "encoder"]
    assert by_name["ECPP×6"]["linear top-1"] == "61.0 %"
    assert by_name["ECPP×6"]["kNN top-1"] == "56.0 %"
    assert by_name["ECPP×6"]["pairs per image"] == "15"
    assert by_name["ECPP×6"]["labels"] == "50,000"
    assert page.text.count("floor 38.0 %") == 4
    assert by_name["SimCLR"]["wall time"] == "16 s"
    assert by_name["SimCLR"]["view passes"] == by_name["SimCLR"]["compute (large views)"]
    assert by_name["random encoder (the floor)"]["linear top-1"] == "38.0 %"
    assert "SGD 100 epochs, batch 256" in page.text
    assert "10,000 images of patterns" in page.text
    assert "2 × 32 px SimCLR, 4 × 20 px crop-only" in page.text
    assert ["views", "6", "2"] in page.rows
    assert not any(r[0] == "tau" for r in page.rows)
    assert page.tags.count("svg") == 5
    assert page.tags.count("details") == 2
    assert "Loss per pair, by epoch" in page.text
    assert page.links
    assert all(link.startswith("data:image/png;base64,") for link in page.links)


def test_page_stands_alone_and_escapes(tmp_path: Path) -> None:
    evil = '<script>alert("1")</script>&\'x'
    run = fake_run(tmp_path / "<img src=x onerror=y>", name=evil, encoder=evil, **{evil: evil})
    other = fake_run(tmp_path / "b", name=evil, linear=None)
    html = write_report([run, other], tmp_path, title=evil, intro=evil).read_text("utf-8")
    page = Page(html)
    assert (tmp_path / "report.html").is_file()
    assert not {"script", "link", "iframe", "object", "img"} & set(page.tags)
    assert "http://" not in html
    assert "https://" not in html
    assert "url(" not in html
    assert evil in page.text
    assert "Not evaluated yet" in page.text


def test_summary_mean_and_spread(tmp_path: Path) -> None:
    rates, floors = (0.60, 0.62, 0.67), (0.37, 0.38, 0.38)
    runs = [
        fake_run(tmp_path / str(s), seed=s, linear=rate, floor=floor)
        for s, (rate, floor) in enumerate(zip(rates, floors, strict=True))
    ]
    table = summary(runs)
    assert [row["kind"] for row in table] == ["run"] * 3 + ["mean", "floor"]
    assert [row["name"] for row in table[:2]] == ["ECPP×6 (seed 0)", "ECPP×6 (seed 1)"]
    mean, floor = table[3:]
    assert mean["n"] == 3
    assert mean["name"] == "ECPP×6: mean ± sd of 3 seeds"
    assert mean["linear_top1"] == pytest.approx(0.63)
    assert mean["linear_top1_sd"] == pytest.approx(math.sqrt((0.03**2 + 0.01**2 + 0.04**2) / 2))
    assert mean["view_passes_sd"] == 0
    assert floor["linear_top1"] == pytest.approx(0.375)
    assert floor["n"] == 3
    assert floor["views"] is None
    assert floor["encoder"] == "resnet18"
    assert all(row.keys() == table[0].keys() for row in table)
    shown = columns(table)
    texts = dict(zip([c.key for c in shown], cells(mean, shown), strict=True))
    assert texts["linear_top1"] == "63.0 ± 3.6 %"
    assert texts["view_passes"] == "61,440"
    assert table[0]["compute"] == pytest.approx(61440 / 6 * 3.5625)


def test_no_mean_over_what_is_not_alike(tmp_path: Path) -> None:
    runs = [fake_run(tmp_path / "a"), fake_run(tmp_path / "b", seed=1, tau=0.1)]
    assert [row["kind"] for row in summary(runs)] == ["run", "run", "floor"]
    behind = fake_run(tmp_path / "c", seed=2)
    lines = (behind / "metrics.jsonl").read_text().splitlines()
    (behind / "metrics.jsonl").write_text("\n".join(lines[:15]) + "\n")
    assert [row["kind"] for row in summary([runs[0], behind])] == ["run", "run", "floor"]
    same = fake_run(tmp_path / "d")
    names = [row["name"] for row in summary([runs[0], same])]
    assert len(names) == 3
    assert str(same) in names[1]
    half = fake_run(tmp_path / "e", seed=3, linear=None)
    mean = summary([runs[0], half])[2]
    assert mean["kind"] == "mean"
    assert mean["linear_top1"] is None
    assert mean["seconds"] == 48


def test_bare_run_without_labels(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "a", linear=None, knn=False)
    page = page_of([run], tmp_path / "r.html")
    assert page.text.count("is not drawn") == 3
    assert len(page.rows[0]) == 10
    assert "What differs" not in page.text
    (run / "metrics.jsonl").write_text("")
    page = page_of([run], tmp_path / "r.html")
    assert page.text.count("is not drawn") == 5
    assert summary([run])[0]["seconds"] is None


def test_other_protocols_and_several_label_counts(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "a")
    evaluation = json.loads((run / "evaluation.json").read_text())
    few = evaluation["results"][0] | {"labels": 500, "top1": 0.41}
    aug = evaluation["results"][0] | {"protocol": "linear-aug", "top1": 0.66, "floor": None}
    evaluation["results"] = [few, *evaluation["results"], aug]
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    page = page_of([run], tmp_path / "r.html")
    assert "linear-aug top-1" not in page.rows[0]  # the headline stays narrow
    (row,) = [row for row in page.rows if row[:1] == ["linear-aug"] and len(row) == 3]
    assert row == ["linear-aug", "50,000", "66.0 %"]
    assert summary([run])[0]["linear_top1"] == 0.61
    assert ["linear", "41.0 %", "38.0 %", "500"] in [row[:4] for row in page.rows]


def test_run_still_going(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "a")
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_bytes("".join(lines[:15]).encode() + b'{"kind": "step", "step": 15, "na\xc3')
    row = summary([run])[0]
    assert (row["epochs"], row["epochs_planned"], row["view_passes"]) == (1, 4, 256 * 14 * 6)
    assert "1 of 4" in page_of([run], tmp_path / "r.html").text
    metrics.write_text("".join(lines[:3]) + lines[3].rstrip("\n"))
    assert "0 of 4" in page_of([run], tmp_path / "r.html").text
    assert summary([run])[0]["view_passes"] == 256 * 4 * 6
    metrics.write_text(lines[0] + '{"half\n' + lines[1])
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2 is not valid JSON"):
        summary([run])


def test_newest_line_of_a_resumed_run_counts(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "a", epochs=2)
    again = {"kind": "epoch", "step": 20, "epoch": 2, "loss": 7.0, "knn": float("nan")}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(again) + "\n")
    assert "not finite (1 in all)" in page_of([run], tmp_path / "r.html").text
    redone = {"kind": "step", "step": 12, "epoch": 1.2, "loss": 60.0, "seconds": 14.0, "view_passes": 18432}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(redone) + "\n")
    row = summary([run])[0]
    assert (row["epochs"], row["seconds"], row["view_passes"]) == (1, 14.0, 18432)


@pytest.mark.parametrize(
    ("file", "content", "error", "says"),
    [
        ("run.json", None, FileNotFoundError, "holds no run.json"),
        ("run.json", "{", ValueError, "run.json is not valid JSON"),
        ("run.json", "[]", ValueError, "should be a JSON object, got list"),
        ("run.json", '{"name": "x"}', ValueError, "'config' should be an object"),
        ("metrics.jsonl", None, FileNotFoundError, "metrics.jsonl is missing"),
        ("metrics.jsonl", '{"kind": "step"}\n', ValueError, "lacks 'step'"),
        ("evaluation.json", "{}", ValueError, "'results' should be a list"),
        ("evaluation.json", '{"results": [{"top1": 61}]}', ValueError, "between 0 and 1"),
        ("views.png", "not a picture, whatever it is called", ValueError, "is not a PNG"),
    ],
)
def test_bad_files_are_named(
    tmp_path: Path, file: str, content: str | None, error: type[Exception], says: str
) -> None:
    run = fake_run(tmp_path / "a")
    if content is None:
        (run / file).unlink()
    else:
        (run / file).write_text(content)
    with pytest.raises(error, match=re.escape(says)) as caught:
        write_report([run], tmp_path / "r.html")
    assert str(run) in str(caught.value)
    assert not (tmp_path / "r.html").exists()


def test_bad_calls(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run folder was given"):
        summary([])
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        summary([tmp_path / "none"])
    run = fake_run(tmp_path / "a")
    with pytest.raises(ValueError, match="was given twice"):
        summary([run, tmp_path / "." / "a"])


def test_curves() -> None:
    words: Any = {"title": "T", "x_label": "epoch", "y_label": "kNN top-1 (%)"}
    one = curves([Series("a", [(3.0, 50.0)])], legend=False, **words)
    assert one.count("<circle") == 1
    assert 'class="line"' not in one
    assert "NaN" not in one
    gap = [(0.0, 1.0), (1.0, 2.0), (2.0, math.nan), (3.0, 1.0)]
    two = curves([Series("a<b", gap), Series("b", [(0.0, 0.0), (2e5, 1.0)])], **words)
    assert "a&lt;b" in two
    assert "200,000" in two
    assert "nan" not in two
    assert 'stroke-dasharray=""' in two
    assert 'stroke-dasharray="7 3"' in two
    with pytest.raises(ValueError, match="no finite point"):
        curves([Series("a", [(0.0, math.inf)])], **words)


def test_axes_are_round_and_hold_the_data() -> None:
    assert axis(0, 100).ticks == (0, 20, 40, 60, 80, 100)
    assert axis(0, 3, whole=True).ticks == (0, 1, 2, 3)
    assert axis(93, 99.9, limits=(0, 100)).high == 100
    for low, high in [(0, 0), (5, 5), (-3, -3), (0.1, 0.1001), (-5, 4e9), (0, 1e-12)]:
        made = axis(low, high)
        assert made.low <= low <= high <= made.high
        assert made.low < made.high
        assert 2 <= len(made.ticks) <= 9
        assert len(set(tick_texts(made.ticks))) == len(made.ticks)
    assert tick_texts([-0.5, 0.0, 0.5]) == ["−0.5", "0.0", "0.5"]
    assert tick_texts([0.0, 2.5e4, 5e4]) == ["0", "25,000", "50,000"]


def test_texts() -> None:
    assert [duration(s) for s in (4.25, 59.7, 3599.6, 3 * 3600 + 240, 200_000)] == [
        "4.2 s", "1 min 00 s", "1 h 00 min", "3 h 04 min", "2 d 8 h",
    ]  # fmt: skip
    assert [count(n) for n in (9600, 12_345_678, 3.5625, None)] == ["9,600", "12.3 M", "3.6", "—"]
    assert percent(0.615, 0.004) == "61.5 ± 0.4 %"


def test_picture_grid_sizes_and_scale(tmp_path: Path) -> None:
    large, small = np.zeros((32, 32, 3), np.uint8), np.full((20, 20), 90, np.uint8)
    out = picture_grid([[large, small], [large]], tmp_path / "new" / "g.png")
    sheet = np.asarray(Image.open(out))
    assert sheet.shape == (16 + 96 + 8 + 96 + 16, 16 + 96 + 8 + 96 + 16, 3)
    assert (sheet == 0).all(2).sum() == 2 * 96 * 96
    assert (sheet == 90).all(2).sum() == 60 * 60
    picture_grid([[large, small]], out, proportional=False)
    assert (np.asarray(Image.open(out)) == 90).all(2).sum() == 80 * 80
    big = np.zeros((300, 200, 1), np.uint8)
    picture_grid([[big]], out)
    assert (np.asarray(Image.open(out)) == 0).all(2).sum() == 96 * 64


def test_picture_grid_labels(tmp_path: Path) -> None:
    view = np.zeros((32, 32, 3), np.uint8)
    bare = Image.open(picture_grid([[view] * 3] * 2, tmp_path / "a.png")).size
    labelled = picture_grid(
        [[view] * 3] * 2,
        tmp_path / "b.png",
        row_labels=["café", "a\nb"],
        column_labels=["view 1: 32 × 32 px SimCLR", "b", "c"],
        title="ECPP×6",
    )
    width, height = Image.open(labelled).size
    assert width > bare[0]
    assert height > bare[1] + 30


@pytest.mark.parametrize(
    ("rows", "words", "says"),
    [
        ([], {}, "at least one row"),
        ([[]], {}, "a picture in every row"),
        ([[np.zeros((4, 4))]], {}, "row 0, column 0: uint8 arrays are drawn, got float64"),
        ([[np.zeros((3, 4, 4), np.uint8)]], {}, "expected (H, W)"),
        ([[np.zeros((4, 4), np.uint8)]], {"row_labels": ["a", "b"]}, "row_labels should hold 1"),
        ([[np.zeros((4, 4), np.uint8)]], {"column_labels": []}, "column_labels should hold 1"),
        ([[np.zeros((4, 4), np.uint8)]], {"cell": 0}, "got 0"),
    ],
)
def test_picture_grid_refuses(tmp_path: Path, rows: Any, words: Any, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        picture_grid(rows, tmp_path / "g.png", **words)


# --- pairs of views -------------------------------------------------------------------------------------


def with_maps(run: Path, **maps: Any) -> Path:
    """The run, its last step telling of its pairs."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    step = json.loads(lines[-2]) | maps
    (run / "metrics.jsonl").write_text("\n".join([*lines[:-2], json.dumps(step), lines[-1]]) + "\n")
    return run


def test_pairs_are_drawn_as_heat_maps_in_groups(tmp_path: Path) -> None:
    loss = [[0.0] * 4 for _ in range(4)]
    for i, j, value in ((0, 1, 2.0), (0, 2, 3.0), (0, 3, 5.0), (1, 2, 4.0), (1, 3, 6.0)):
        loss[i][j] = loss[j][i] = value
    alike = [[1.0 if i == j else 0.25 for j in range(4)] for i in range(4)]
    (run,) = read_runs([with_maps(fake_run(tmp_path / "a", views=4), pair_loss=loss, pair_similarity=alike)])
    first, second = heats(run)
    assert first.svg.count("<rect") == 10  # both ways
    assert ">5.00</text>" in first.svg
    assert first.svg.count(">large<") == first.svg.count(">crop-only<") == 2
    assert "large–large 2.00, with a crop-only view 4.50" in first.caption
    assert "Blank pairs do not teach." in first.caption
    assert second.svg.count("<rect") == 12
    assert "Blank" not in second.caption
    page = write_report([run.path], tmp_path / "page.html").read_text()
    assert "<h2>Pairs of views</h2>" in page
    assert first.svg in page


def test_views_are_grouped_by_kind_and_size() -> None:
    plan = (
        [{"size": 224, "kind": "SimCLR"}] * 2
        + [{"size": 96, "kind": "SimCLR"}]
        + [{"size": 96, "kind": "crop-only"}]
    )
    assert view_groups(plan) == ["large", "large", "small", "crop-only"]


@pytest.mark.parametrize("value", [[[1.0, 2.0]], "none", [[None] * 4] * 4])
def test_what_is_no_matrix_of_all_views_is_not_drawn(tmp_path: Path, value: Any) -> None:
    (run,) = read_runs([with_maps(fake_run(tmp_path / "a", views=4), pair_loss=value)])
    assert heats(run) == []
    assert "Pairs of views" not in write_report([run.path], tmp_path / "page.html").read_text()


def test_many_views_are_drawn_without_numbers_and_two_not_at_all(tmp_path: Path) -> None:
    values = {(i, j): float(i + j) for i in range(14) for j in range(14) if i != j}
    svg = heat_map(values, ["large"] * 14, "t")
    assert svg.count("<rect") == 182
    assert ">5.00</text>" not in svg
    (run,) = read_runs([with_maps(fake_run(tmp_path / "a", views=2), pair_loss=[[0.0, 1.0], [1.0, 0.0]])])
    assert heats(run) == []


def test_the_last_verdict_on_each_run_is_told(tmp_path: Path) -> None:
    healthy, silent = fake_run(tmp_path / "a"), fake_run(tmp_path / "b", name="SimCLR")
    file = healthy / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "epoch":
            line |= {
                "verdict": f"plateau since epoch {line['epoch']} & <so on>",
                "rankme": 12.3456,
                "std": 0.9,
            }
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    last = max(line["epoch"] for line in lines if line["kind"] == "epoch")
    page = page_of([healthy, silent], tmp_path / "page.html")
    (row,) = [r for r in page.rows if len(r) == 7 and "plateau" in r[1]]
    assert row == ["ECPP×6", f"plateau since epoch {last} & <so on>", "12.3", "—", "—", "—", "0.9"]
    assert "Is it learning?" not in page_of([silent], tmp_path / "silent.html").text
