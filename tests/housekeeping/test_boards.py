"""Old SDKs and inputs on a board, through the real client and daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeloop.operate.gc import GcOptions, ReportDraft, find_on_boards
from edgeloop.platforms.snpe.sdk import find_sdk
from edgeloop.settings import Settings
from tests.peers.board import VirtualBoard
from tests.platforms.boards import ROOT, board, opened_board

__all__ = ["board"]

OLD, YOUNG = "a1" * 32, "b2" * 32


def found_on(board: VirtualBoard) -> ReportDraft:
    draft = ReportDraft()
    find_on_boards(Settings.load(), GcOptions(boards=True), draft)
    return draft


def test_what_lay_unused_on_a_board_goes_and_a_board_in_use_is_left_alone(
    board: VirtualBoard, sdk: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SNPE_ROOT", str(sdk))
    with opened_board(board, sdk) as device:
        device.acquire()
        kept = find_sdk(sdk).digest
        for name in (f"sdk/{OLD}/bin", f"sdk/{YOUNG}", "data", "models"):
            board.shell(f"mkdir -p {ROOT}/{name}")
        for name in (f"sdk/{OLD}/bin/tool", f"data/{OLD}.raw", f"models/{OLD}.dlc", "data/x y"):
            board.shell(f"echo 12345 > '{ROOT}/{name}'")
        board.shell(f"echo 12345 > {ROOT}/data/{YOUNG}.raw")
        old = f"sdk/{OLD} sdk/{kept} data/{OLD}.raw models/{OLD}.dlc"
        board.shell(f"cd {ROOT} && touch -t 202601010000 {old} 'data/x y'")
        busy = found_on(board)
        assert busy.findings == []
        assert "uses it now" in busy.notes[0] and board.serial in busy.notes[0]
    before = board.shell(f"find {ROOT} | sort; ls -l --full-time {ROOT}").stdout
    draft = found_on(board)
    assert board.shell(f"find {ROOT} | sort; ls -l --full-time {ROOT}").stdout == before
    found = {finding.kind: list(finding.items) for finding in draft.findings}
    assert found == {
        "SDKs": [f"sdk/{OLD}"],
        "inputs and models": [f"data/{OLD}.raw", f"models/{OLD}.dlc"],
    }
    assert [finding.remove() for finding in draft.findings] == [1, 2]
    left = board.shell(f"cd {ROOT} && find sdk data models -mindepth 1 -maxdepth 1").stdout
    assert sorted(left.splitlines()) == sorted(
        ["data/x y", f"data/{YOUNG}.raw", f"sdk/{YOUNG}", f"sdk/{kept}"]
    )
    assert found_on(board).findings == []
    with opened_board(board, sdk) as device:
        device.acquire()  # the lease was given back
