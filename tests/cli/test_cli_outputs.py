"""Where measurements go: a file as a whole, a link's target, or a device as it is."""

import os
import stat
import threading
from pathlib import Path

import pytest

from pointsman.cli.outputs import check_outputs, write_outputs


def write(json_file: Path, data: bytes = b"{}") -> None:
    check_outputs(str(json_file), None)
    write_outputs(
        lambda console: None, lambda: data, lambda: "", json_file=str(json_file), html_file=None
    )


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.json"
    write(path, b"1")
    write(path, b"2")
    assert path.read_bytes() == b"2"
    assert list(path.parent.iterdir()) == [path]


def test_a_link_stays_one(tmp_path: Path) -> None:
    file, link = tmp_path / "file.json", tmp_path / "link.json"
    link.symlink_to(file)
    write(link)
    assert link.is_symlink()
    assert file.read_bytes() == b"{}"


def test_what_is_no_file_is_written_to_and_stays_what_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write(pipe)
    reader.join()
    assert read == [b"{}"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_what_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    with pytest.raises(SystemExit) as left:
        write(full)
    assert left.value.code == 2
    assert f"{full} cannot be written: No space left on device" in capsys.readouterr().err
