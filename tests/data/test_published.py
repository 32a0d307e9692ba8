"""Loaders of published files, on small files of exactly the published format."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from user_tables import load_set as load
from user_tables import refused

from vflsec.data.load import load_source
from vflsec.data.prepare import make_task
from vflsec.data.sets.nuswide import KINDS, TEN
from vflsec.errors import ConfigError, DataError
from vflsec.plugins import registry

HEADER = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,"
    "device_id,device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
)


def avazu(folder: Path, rows: int = 300, *, file: str = "train.csv") -> Path:
    """A file like the competition's: hexadecimal ids, 20-digit row ids, hours as YYMMDDHH."""
    rng = np.random.default_rng(0)
    lines = [HEADER]
    for i in range(rows):
        click, c14 = int(rng.random() < 0.2), 15700 + int(rng.integers(5))
        hexes = [f"{int(v):08x}" for v in rng.integers(2**32 - 4, 2**32, 9)]
        lines.append(
            f"{10**19 + i},{click},14102100,1005,{i % 2},{','.join(hexes[:7])},{i:08x},{hexes[8]},"
            f"1,0,{c14},320,50,{1700 + i % 3},0,35,-1,79"
        )
    folder.mkdir(exist_ok=True)
    text = ("\n".join(lines) + "\n").encode()
    (folder / file).write_bytes(gzip.compress(text) if file.endswith(".gz") else text)
    return folder


def nuswide(folder: Path, *, low: str = "Low_Level_Features", rows: int = 120) -> np.ndarray:
    """Files as published: trailing blanks and tabs, exponents; the concepts of each image."""
    rng = np.random.default_rng(1)
    for part in ("Groundtruth/TrainTestLabels", low, "NUS_WID_Tags"):
        (folder / part).mkdir(parents=True)
    every = []
    for side in ("Train", "Test"):
        marks = np.zeros((rows, 11), dtype=int)
        marks[np.arange(rows), np.arange(rows) % 11] = 1  # the last is another concept
        marks[5::20, 0] = 1  # and a few images have two
        every.append(marks)
        for i, concept in enumerate((*TEN, "zebra")):
            path = folder / f"Groundtruth/TrainTestLabels/Labels_{concept}_{side}.txt"
            path.write_text("".join(f"{m}\n" for m in marks[:, i]))
        for kind, width in KINDS.items():
            values = rng.random((rows, width)) * 1e-3
            lines = [" ".join(f"{v:.6g}" for v in row) + " " for row in values]
            (folder / low / f"{side}_Normalized_{kind}.dat").write_text("\n".join(lines) + "\n")
        tags = rng.integers(0, 2, (rows, 1000))
        lines = ["\t".join(map(str, row)) + "\t" for row in tags]
        (folder / f"NUS_WID_Tags/{side}_Tags1k.dat").write_text("\n".join(lines) + "\n")
    return np.concatenate(every)


# Avazu


def test_avazu_has_the_published_fields_by_party(tmp_path: Path) -> None:
    source = load("avazu", avazu(tmp_path), rows=0)
    assert (source.active, len(source.y), source.class_names) == ("active", 300, ("0", "1"))
    kinds = {
        p: (sum(c is not None for c in d.categories), sum(c is None for c in d.categories))
        for p, d in source.parties.items()
    }
    assert kinds == {"active": (7, 3), "passive": (7, 4)}  # 14 categorical, 7 numeric
    active = source.parties["active"]
    assert active.names[:3] == ("device_ip", "device_model", "C14")
    assert active.categories[0][:2] == ("00000000", "00000001")  # ids keep their zeros
    lines = (tmp_path / "train.csv").read_text().splitlines()[1:]
    np.testing.assert_array_equal(source.y, [int(line.split(",")[1]) for line in lines])
    c16 = active.values[:, active.names.index("C16")]
    assert (c16 == 50).all()


@pytest.mark.parametrize("file", ["train.csv.gz", "train.gz"])
def test_avazu_rows_are_drawn_once_for_all_seeds(tmp_path: Path, file: str) -> None:
    folder = avazu(tmp_path / "packed", file=file)
    one, two = (
        registry.datasets.create("avazu", {"folder": str(folder), "rows": 200}).load(seed)
        for seed in (0, 1)
    )
    assert len(one.y) == 200
    assert one.digest == two.digest
    plain = load("avazu", avazu(tmp_path / "plain"), rows=200)
    assert plain.digest == one.digest
    ip = one.parties["active"].categories[0]
    assert len(ip) == 200  # every row has an address of its own: none was drawn twice
    assert int(ip[-1], 16) > 200  # and they are not the first 200
    task = make_task(one, 0, labelled=40, aligned=0.5)
    assert task.schema["active"].cardinalities[0] == 201


# NUS-WIDE


@pytest.mark.parametrize(
    "low", ["Low_Level_Features", "NUS_WID_Low_Level_Features/Low_Level_Features"]
)
def test_nuswide_keeps_rows_with_one_concept_and_the_official_split(
    tmp_path: Path, low: str
) -> None:
    marks = nuswide(tmp_path, low=low)[:, :10]
    keep = marks.sum(1) == 1
    source = load("nuswide", tmp_path)
    np.testing.assert_array_equal(source.y, marks[keep].argmax(1))
    assert source.class_names == TEN
    assert source.parties["active"].values.shape == (keep.sum(), 634)
    assert source.parties["passive"].values.shape == (keep.sum(), 1000)
    assert source.split is not None
    assert (source.split == "train").sum() == keep[:120].sum()
    text = (tmp_path / low / "Test_Normalized_CM55.dat").read_text().splitlines()
    first = np.flatnonzero(keep[120:])[0]
    row = source.parties["active"].values[keep[:120].sum()]
    np.testing.assert_array_equal(row[-225:], [float(v) for v in text[first].split()])
    task = make_task(source, 0)
    assert len(task.sets["test"]) == keep[120:].sum()


def test_nuswide_options(tmp_path: Path) -> None:
    nuswide(tmp_path)
    few = load("nuswide", tmp_path, concepts=["person", "zebra"], rows=7)
    assert few.class_names == ("person", "zebra")
    assert len(few.y) == 14
    assert set(few.y) == {0, 1}
    with pytest.raises(ConfigError, match=r"nuswide\.concepts must be at least two, each once"):
        load("nuswide", tmp_path, concepts=["sky", "sky"])


# Criteo


def test_criteo_reads_tabs_without_a_header(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    lines = []
    for i in range(100):
        counts = ["" if rng.random() < 0.3 else str(rng.integers(-2, 500)) for _ in range(13)]
        hashes = ["" if rng.random() < 0.1 else f"{rng.integers(6):08x}" for _ in range(26)]
        lines.append("\t".join([str(int(i % 4 == 0)), *counts, *hashes]))
    (tmp_path / "train.txt").write_text("\n".join(lines))  # no line break at the end
    source = load("criteo", tmp_path, rows=100)
    np.testing.assert_array_equal(source.y, [int(line[0]) for line in lines])
    want = [np.nan if not v else float(v) for v in lines[7].split("\t")[1:14]]
    np.testing.assert_array_equal(source.parties["active"].values[7], want)
    assert source.parties["passive"].values.shape == (100, 26)
    assert all(c is not None for c in source.parties["passive"].categories)
    assert len(load("criteo", tmp_path, rows=60).y) == 60


# Refusals


@pytest.mark.parametrize("name", ["avazu", "criteo", "nuswide"])
def test_a_missing_folder_or_file_says_which_and_where_to_get_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=rf"{name}: folder .*gone' must exist, .*https://"):
        load(name, tmp_path / "gone")
    with refused(DataError, f"{name}: folder ", "must hold ", "https://"):
        load(name, tmp_path)


def test_all_missing_files_are_named_in_one_message(tmp_path: Path) -> None:
    nuswide(tmp_path)
    (tmp_path / "NUS_WID_Tags" / "Test_Tags1k.dat").unlink()
    (tmp_path / "Low_Level_Features" / "Train_Normalized_WT.dat").unlink()
    names = ("Low_Level_Features/Train_Normalized_WT.dat", "NUS_WID_Tags/Test_Tags1k.dat")
    with refused(DataError, *map(repr, names)):
        load("nuswide", tmp_path)


@pytest.mark.parametrize(
    ("name", "file", "text", "message"),
    [
        ("avazu", "train.csv", HEADER.replace("C21", "X") + "\n" + "1," * 23 + "1\n",
         "'C21'"),
        ("avazu", "train.csv", HEADER + "\n", "must have at least rows = 120000 rows, got 0"),
        ("avazu", "train.gz", "no gzip", "table must be a gzip file"),
        ("criteo", "train.txt", "1\t2\n" * 100_000, "as many fields in each row"),
    ],
)  # fmt: skip
def test_a_file_of_another_shape_is_refused(
    tmp_path: Path, name: str, file: str, text: str, message: str
) -> None:
    (tmp_path / file).write_text(text)
    params = {"rows": 0} if "C21" in message else {}
    with pytest.raises(DataError, match=message):
        load(name, tmp_path, **params)


def test_nuswide_files_of_another_shape_are_refused(tmp_path: Path) -> None:
    nuswide(tmp_path)
    tags = tmp_path / "NUS_WID_Tags" / "Test_Tags1k.dat"
    whole = tags.read_text()
    tags.write_text("\n".join(whole.splitlines()[:-1]) + "\n")
    with pytest.raises(DataError, match=r"Test_Tags1k.dat must have 120 lines, .*119"):
        load("nuswide", tmp_path)
    tags.write_text(whole.replace("1", "x", 1))
    with pytest.raises(DataError, match="must hold 1000 numbers in each line"):
        load("nuswide", tmp_path)
    tags.write_text("\n".join(line[:-2] for line in whole.splitlines()))
    with pytest.raises(DataError, match="must hold 1000 numbers in each line, got up to 999"):
        load("nuswide", tmp_path)


def test_a_relative_folder_starts_from_the_scenario(tmp_path: Path) -> None:
    avazu(tmp_path / "raw")
    section = {"name": "avazu", "params": {"folder": "raw", "rows": 50}}
    assert len(load_source(section, 0, tmp_path).y) == 50
