"""How logs come: compressed, cut off, in odd encodings, in one line, or no logs at all."""

from __future__ import annotations

import bz2
import gzip
import lzma

import pyarrow as pa
import pytest

from ampwatch import open_run
from ampwatch.errors import LogError
from ampwatch.importers import ImportOptions, import_log
from ampwatch.importers.line_splitter import MAX_LINE_BYTES, LineSplitter
from ampwatch.importers.log_file import CHUNK_BYTES
from ampwatch.rows import Table

LINE = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {}\n"
TEXT = "".join(LINE.format(2.0 ** (15 - n)) for n in range(20))


def scales(path, out, wanted=None) -> list[float]:
    run = open_run(import_log(path, out, wanted))
    return run.read(Table.STEPS, columns=("scale_after",)).column(0).to_pylist()


WHOLE = [2.0 ** (15 - n) for n in range(20)]


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


@pytest.mark.parametrize(
    "pack",
    [bytes, gzip.compress, bz2.compress, lzma.compress, zstd,
     lambda data: data.replace(b"\n", b"\r\n"),
     lambda data: data.replace(b"\n", b"\r"),
     lambda data: data.decode().encode("utf-16"),
     lambda data: data.decode().encode("utf-16-le"),
     lambda data: data.replace(b"Gradient", b"\x1b[1;31mGradient").replace(b"\n", b"\x1b[0m\n"),
     lambda data: b"\xe9t\xe9 \xff\n" + data,
     lambda data: data.rstrip(b"\n")],
    ids=["plain", "gzip", "bzip2", "xz", "zstd", "crlf", "cr", "utf-16", "utf-16-le", "colours",
         "latin-1", "no last end"],
)  # fmt: skip
def test_the_same_text_reads_the_same_however_it_is_packed(pack, tmp_path):
    path = tmp_path / "train.log"
    path.write_bytes(pack(TEXT.encode()))
    assert scales(path, tmp_path / "runs") == WHOLE


def test_a_truncated_gzip_is_read_as_far_as_it_goes_and_says_so(tmp_path):
    many = "".join(f"line {n} of something else {n * n}\n" for n in range(20_000))
    path = tmp_path / "cut.gz"
    packed = gzip.compress((TEXT + many).encode())
    path.write_bytes(packed[: len(packed) // 2])
    run = open_run(import_log(path, tmp_path / "runs"))
    assert run.steps.num_rows == 20
    assert any("breaks off" in note for note in run.notes)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (bytes(range(256)) * 400, "neither text nor"),
        (b"\0" * 100_000, "neither text nor"),
        (b"Hello, world.\n" * 100, "No training log found"),
        (b"x" * 3_000_000, "No training log found"),
        (gzip.compress(b"", mtime=0) + b"rest", "nothing readable"),
        (gzip.compress(TEXT.encode(), mtime=0)[:15], "nothing readable"),
        (b"{\n", "No training log found"),
        (b'{"log_history": []}', "no column"),
        (b"epoch,step,loss\n", "no row"),
        (b"name,colour\na,b\n", "No training log found"),
    ],
)
def test_what_is_no_log_is_refused_with_a_sentence_and_leaves_nothing(content, said, tmp_path):
    path = tmp_path / "odd"
    path.write_bytes(content)
    with pytest.raises(LogError, match=said):
        import_log(path, tmp_path / "runs")
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


def test_a_folder_and_a_missing_file_are_refused(tmp_path):
    with pytest.raises(LogError, match="folder"):
        import_log(tmp_path, tmp_path)
    with pytest.raises(LogError, match="No such file"):
        import_log(tmp_path / "none", tmp_path)


def test_an_unknown_format_is_refused_and_the_known_ones_are_named(tmp_path):
    with pytest.raises(LogError, match=r"'apexx'.*apex.*megatron"):
        import_log(tmp_path / "x", tmp_path, ImportOptions(source="apexx"))


def test_the_format_asked_for_is_the_only_one_read(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(TEXT)
    with pytest.raises(LogError, match="No training log found"):
        import_log(path, tmp_path / "runs", ImportOptions(source="megatron"))
    assert scales(path, tmp_path / "runs", ImportOptions(source="apex")) == WHOLE


def test_a_line_without_end_is_not_held(tmp_path):
    """50 MB in one line: of it 64 kB stay in memory, and the lines around it are read."""
    cutter = LineSplitter(["overflow"])
    found = []
    for part in (TEXT.encode(), *[b"x" * CHUNK_BYTES] * 12, b"\n" + TEXT.encode()):
        lines = cutter.feed(part)
        found += [lines.line(at) for at in lines.candidates]
        assert len(cutter._rest) <= MAX_LINE_BYTES
    assert len(found) == 40


def test_lines_are_the_same_however_the_bytes_arrive(tmp_path):
    data = ("a\r\nb\rc overflow\n\n" * 50).encode()

    def lines_of(size):
        cutter, found = LineSplitter(["overflow"]), []
        for at in range(0, len(data), size):
            lines = cutter.feed(data[at : at + size])
            found += [lines.line(n) for n in lines.candidates]
        return found + [b for lines in [cutter.finish()] for b in map(lines.line, lines.candidates)]

    assert lines_of(1) == lines_of(7) == lines_of(10**6) == [b"c overflow"] * 50


def test_columns_are_mapped(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("n,objective,rate\n1,2.5,0.1\n2,2.25,0.1\n")
    wanted = ImportOptions(columns={"step": "n", "loss": "objective", "lr": "rate"})
    rows = open_run(import_log(path, tmp_path / "runs", wanted)).steps
    assert rows["step"].to_pylist() == [1, 2]
    assert rows["loss"].to_pylist() == [2.5, 2.25]
    assert rows["lr"].to_pylist() == [0.1, 0.1]


@pytest.mark.parametrize(("pair", "said"), [(("los", "n"), "no column 'los'"),
                                            (("loss", "x"), "has no 'x'")])  # fmt: skip
def test_a_mapping_that_cannot_be_is_refused(pair, said, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("n,loss\n1,2.5\n")
    with pytest.raises(LogError, match=said):
        import_log(path, tmp_path / "runs", ImportOptions(columns=dict([pair])))


def test_an_empty_cell_is_absent_and_nan_is_a_value(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("step,loss,grad_norm\n1,nan,\n2,,inf\n3,1.5,0\n")
    rows = open_run(import_log(path, tmp_path / "runs")).steps
    assert [v is None for v in rows["loss"].to_pylist()] == [False, True, False]
    assert rows["grad_norm"].to_pylist() == [None, float("inf"), 0.0]


def test_designs_own_columns_are_judged_as_a_native_runs(tmp_path):
    path = tmp_path / "a.csv"
    rows = ["step,scale,scale_after,skipped,loss,lr,growth_tracker,input_finite"]
    rows += [
        f"{n},1024.0,{512.0 if n == 3 else 1024.0},{n == 3},2.0,0.1,{n},true" for n in range(9)
    ]
    path.write_text("\n".join(rows))
    table = open_run(import_log(path, tmp_path / "runs")).steps
    assert table["skipped"].to_pylist() == [n == 3 for n in range(9)]
    assert table["scale"].to_pylist() == [1024.0] * 9
    assert table["growth_tracker"].to_pylist() == list(range(9))
    assert table["input_finite"].to_pylist() == [True] * 9
