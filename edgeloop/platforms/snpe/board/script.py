"""The script of one run of a tool on a board: a single call does all that belongs together.

It gets ready first and then waits for a word, so that no time is lost between two tools; a second
word lets it send its outputs, since nothing may travel beside a benchmark. A measurement has none,
and sends what little it has at once.

    host → list of inputs, `.`      board → `ready`, or `files`: some of them are gone
    host → `go`                     board → `tool CODE BEGAN ENDED`, or `lease`, or `hot`
    host → `go` (for outputs)       board → `disk …`, a tar stream, then the folder is gone
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeloop.platforms.snpe.board.adb import words
from edgeloop.platforms.snpe.board.conditions import LOOK, pin, restore

WORDS = ("ready", "tool", "files", "lease", "hot", "full", "stopped")  # what the board can say
LAYERS_S = 60.0
_LAYERS_INPUTS = 3
_KILL_AFTER_S = 5
_WORD = 'read -r word && [ "$word" = go ] || answer stopped'


@dataclass(frozen=True)
class Order:
    """What to run, and where. `hot_c` makes it a measurement, refused when the board is hotter:
    then conditions and profile come back in place of outputs."""

    root: str
    folder: str
    container: str
    arguments: tuple[str, ...]
    limit_s: float
    squeeze: bool = False
    hot_c: float | None = None

    @property
    def layers_s(self) -> float:
        return min(LAYERS_S, self.limit_s) if self.hot_c is not None else 0.0


def tool_script(order: Order, environment: Mapping[str, str], guard: str) -> str:
    """`guard` is shell text that calls `answer lease` where the board is no longer ours."""
    exports = "\n".join(
        f"export {name}={words(value)}{':$PATH' if name == 'PATH' else ''}"
        for name, value in environment.items()
    )
    folder, container = words(order.folder), words(order.container)
    before, after, results = (
        "",
        "",
        f"""{_WORD}
[ "$code" = 0 ] && set -- "$@" out""",
    )
    if order.hot_c is not None:
        limit_mc = int(1000 * order.hot_c)
        before = f"""look > before; [ "$top" -gt {limit_mc} ] && answer hot "$top"
{pin(order.root)}"""
        after = f"look > after\n{_layers(order, exports)}\n{restore(order.root)}"
        results = """for file in before after out/SNPEDiag*.log layers/SNPEDiag*.log; do
  [ -f "$file" ] && set -- "$@" "$file"
done"""
    return f"""
answer() {{ echo "$*"; cd /; rm -rf {folder}; exit 0; }}
sorry() {{ answer "full $(df -k {words(order.root)} | tail -n 1)"; }}
{LOOK}
mkdir -p {folder} && cd {folder} || sorry
gone=; [ -f {container} ] || gone=yes
while read -r line; do
  [ "$line" = . ] && break
  [ -f "$line" ] || gone=yes
  echo "$line"
done > list.txt || sorry
[ -z "$gone" ] || answer files
touch -c {container}; xargs touch -c < list.txt
user=$(id -u)
echo ready
{_WORD}
{guard}
{before}
read -r began rest < /proc/uptime
({exports}
exec {_tool(order, order.limit_s, "list.txt", "out", order.arguments)}) > tool.log 2>&1 < /dev/null
code=$?
read -r ended rest < /proc/uptime
{after}
echo "tool $code $began $ended"
set -- tool.txt
{results}
echo "disk $(df -k . | tail -n 1)"
tail -c 8000 tool.log > tool.txt
tar cf - "$@" {"| gzip -1" if order.squeeze else ""}
cd / && rm -rf {folder}
exit 0"""


def _layers(order: Order, exports: str) -> str:
    """Times of the layers come from a short run of their own, since taking them slows the board
    down; that it fails is no reason to lose the measurement."""
    arguments = (*(word for word in order.arguments if word != "basic"), "detailed")
    return f"""
head -n {_LAYERS_INPUTS} list.txt > few.txt
[ $code = 0 ] && ({exports}
exec {_tool(order, order.layers_s, "few.txt", "layers", arguments)}) > /dev/null 2>&1 < /dev/null
read -r ended rest < /proc/uptime"""


def _tool(
    order: Order, limit_s: float, inputs: str, output: str, arguments: tuple[str, ...]
) -> str:
    limit = ("timeout", "-k", str(_KILL_AFTER_S), f"{limit_s:g}")
    files = ("--container", order.container, "--input_list", inputs, "--output_dir", output)
    return words(*limit, "snpe-net-run", *files, *arguments)
