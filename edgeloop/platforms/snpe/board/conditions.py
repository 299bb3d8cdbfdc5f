"""The conditions a board was in: temperatures, clocks, battery. Read by a script on the board right
before and after a measurement, and kept with it.

The clocks are held still where the board lets us (root): what they were is written down on the
board before it is changed, so that whoever comes next can put it back if we die in between.
"""

from __future__ import annotations

from edgeloop.platforms.snpe.board.adb import words

HOTTEST_SENSIBLE_MC = 150_000
_GOVERNORS = "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"

# Only what the shell does itself: a fork for each of eighty thermal zones would warm the board.
LOOK = f"""
look() {{
  top=0
  for zone in /sys/class/thermal/thermal_zone*; do
    name=; value=
    read -r name < "$zone/type"; read -r value < "$zone/temp"
    case "$value" in ''|*[!0-9]*) continue;; esac
    [ "$value" -lt 1000 ] && value=$((value * 1000))
    [ "$value" -gt {HOTTEST_SENSIBLE_MC} ] && continue
    echo "zone $value ${{zone##*thermal_zone}} $name"
    [ "$value" -gt "$top" ] && top=$value
  done 2>/dev/null
  for clock in /sys/devices/system/cpu/cpu[0-9]*/cpufreq; do
    governor=; khz=
    read -r governor < "$clock/scaling_governor"; read -r khz < "$clock/scaling_cur_freq"
    cpu=${{clock%/cpufreq}}
    [ -n "$governor$khz" ] && echo "cpu ${{cpu##*/}} $governor $khz"
  done 2>/dev/null
  for part in capacity status temp; do
    value=
    read -r value < "/sys/class/power_supply/battery/$part"
    [ -n "$value" ] && echo "battery $part $value"
  done 2>/dev/null
  read -r up rest < /proc/uptime; echo "uptime $up"
}}
"""


def pin(root: str) -> str:
    """Shell text: the fastest clocks, where the number in `user` may set them."""
    note = words(f"{root}/clocks")
    return f"""
if [ "$user" = 0 ] && [ ! -e {note} ]; then
  for file in {_GOVERNORS}; do
    old=; read -r old < "$file" && [ -n "$old" ] && echo "$old $file"
  done 2>/dev/null > {note}.new
  if [ -s {note}.new ] && mv -f {note}.new {note}; then
    while read -r old file; do echo performance > "$file"; done < {note} 2>/dev/null
  else rm -f {note}.new; fi
fi
"""


def restore(root: str) -> str:
    """Shell text: the clocks as they were before `pin`; nothing but clocks is ever written to."""
    note = words(f"{root}/clocks")
    return f"""
if [ -e {note} ]; then
  while read -r old file; do
    case "$file" in
      *..*) ;;
      /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor) echo "$old" > "$file";;
    esac
  done < {note} 2>/dev/null
  rm -f {note}
fi
"""


def conditions(before: str, after: str) -> dict[str, str | float]:
    """Both looks as one flat record, in units of people."""
    found: dict[str, str | float] = {}
    for when, text in (("before", before), ("after", after)):
        for line in text.splitlines():
            kind, _, rest = line.partition(" ")
            parts = rest.split(" ", 2)
            if kind == "zone" and len(parts) >= 2:
                name = " ".join(parts[1:])
                found[f"zone {name} {when} °C"] = _number(parts[0]) / 1000
            elif kind == "cpu" and len(parts) == 3:
                found[f"{parts[0]} governor {when}"] = parts[1]
                found[f"{parts[0]} {when} kHz"] = _number(parts[2])
            elif kind == "battery" and len(parts) >= 2:
                found[f"battery {parts[0]} {when}"] = " ".join(parts[1:])
            elif kind == "uptime":
                found[f"uptime {when} s"] = _number(rest)
        found[f"hottest {when} °C"] = hottest_c(text)
    return found


def hottest_c(text: str) -> float:
    zones = [line.split(" ", 2)[1] for line in text.splitlines() if line.startswith("zone ")]
    return max((_number(value) / 1000 for value in zones), default=0.0)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
