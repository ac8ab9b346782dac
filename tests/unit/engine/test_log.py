from __future__ import annotations

from pathlib import Path

import pytest

from segpl.engine.log import CsvLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    log = CsvLog(tmp_path / "log.csv")
    for step in (10, 20, 30):
        log.add({"step": step, "loss": 1 / step})
    return log.path


def test_rows_are_written_at_once(path):
    assert path.read_text() == "step,loss\n10,0.1\n20,0.05\n30,0.03333333333333333\n"


def test_cut_log_continues_without_a_second_header(path):
    log = CsvLog(path)
    log.cut_after(20)
    log.add({"step": 30, "loss": 0.5})
    assert path.read_text() == "step,loss\n10,0.1\n20,0.05\n30,0.5\n"


@pytest.mark.parametrize("torn", ["4", "40", "40,", "40,0.1,7", "\n", "x,y"])
def test_half_written_last_row_is_dropped(path, torn):
    whole = path.read_text()
    path.write_text(whole + torn)
    CsvLog(path).cut_after(35)
    assert path.read_text() == whole


def test_fully_cut_log_starts_again(path):
    log = CsvLog(path)
    log.cut_after(5)
    assert not path.exists()
    log.add({"step": 10, "other": 2})
    assert path.read_text() == "step,other\n10,2\n"


@pytest.mark.parametrize("content", ["", "ste", "step,loss\n"])
def test_log_with_a_broken_header_starts_again(tmp_path, content):
    path = tmp_path / "log.csv"
    path.write_text(content)
    log = CsvLog(path)
    log.cut_after(100)
    log.add({"step": 10, "loss": 0.5})
    assert path.read_text() == "step,loss\n10,0.5\n"


def test_quoted_cells_survive_a_cut(tmp_path):
    path = tmp_path / "validation.csv"
    path.write_text('step,case,dice\n10,"a,b",0.5\n20,"a,b",0.6\n')
    CsvLog(path).cut_after(10)
    assert path.read_text() == 'step,case,dice\n10,"a,b",0.5\n'


def test_latest_value_is_found_after_a_restart_and_is_0_without_a_file(tmp_path):
    log = CsvLog(tmp_path / "times.csv")
    log.cut_after(10)
    assert log.last("seconds") == 0
    log.add({"step": 1, "seconds": 2.5})
    log.add({"step": 2, "seconds": 7.25})
    assert CsvLog(log.path).last("seconds") == 7.25
