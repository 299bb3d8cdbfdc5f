"""The conditions a board was in: temperatures, clocks, battery. Read by a script on the board right
before and after a measurement, and kept with it.

The clocks are held still where the board lets us (root): what they were is written down on the
board before it is changed, so that whoever comes next can put it back if we die in between.
"""

from __future__ import annotations

from edgeloop.platforms.snpe.adb import words

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

# Beside the tool of a measurement, a few times a second: the most memory of its process so far, and
# the power, where the board reports it. `wait` gives the tool's own exit code.
WATCH = """tool=$!
while kill -0 $tool 2>/dev/null; do
  child=; read -r child rest < /proc/$tool/task/$tool/children
  [ -n "$child" ] && while read -r name value rest; do
    [ "$name" = VmHWM: ] && echo "rss $value"
  done < "/proc/$child/status"
  for file in /sys/class/hwmon/hwmon*/power*_input; do
    value=; read -r value < "$file" && echo "uw ${file} $value"
  done
  for supply in /sys/class/power_supply/*; do
    value=; volts=; state=Online
    [ -f "$supply/status" ] && read -r state < "$supply/status"
    read -r value < "$supply/current_now" && read -r volts < "$supply/voltage_now"
    echo "ua ${supply##*/} ${value:-0} ${volts:-0} $state"
  done
  sleep 0.2 || sleep 1
done > power 2>/dev/null
wait $tool"""


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


def peak_rss_bytes(text: str) -> int | None:
    """From what `WATCH` wrote; None where it saw no process."""
    found = [_number(line.split(" ")[1]) for line in text.splitlines() if line.startswith("rss ")]
    return int(1024 * max(found)) if found and max(found) > 0 else None


def power_mw(text: str) -> float | None:
    """The mean over the run of the sum of all sensors that say power (hwmon), else of the supplies
    that say current and voltage. None where the board reports neither, or charges a battery: then
    nobody knows what goes where."""
    sums: dict[str, dict[str, list[float]]] = {"uw": {}, "ua": {}}
    is_charging = False
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        parts = rest.split(" ", 3)
        if kind == "uw" and len(parts) == 2:
            sums[kind].setdefault(parts[0], []).append(_number(parts[1]) / 1e3)
        elif kind == "ua" and len(parts) == 4:  # some say what leaves a battery as negative
            is_charging = is_charging or parts[3] == "Charging"
            milliwatts = abs(_number(parts[1])) * _number(parts[2]) / 1e9
            sums[kind].setdefault(parts[0], []).append(milliwatts)
    if is_charging:
        sums["ua"] = {}
    for sensors in sums.values():
        total = sum(sum(values) / len(values) for values in sensors.values())
        if total > 0:
            return total
    return None


def hottest_c(text: str) -> float:
    zones = [line.split(" ", 2)[1] for line in text.splitlines() if line.startswith("zone ")]
    return max((_number(value) / 1000 for value in zones), default=0.0)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
