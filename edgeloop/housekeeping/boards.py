"""What is left over on the boards of this machine, as their platforms know it."""

from __future__ import annotations

from edgeloop.errors import DeviceBusy, EdgeloopError
from edgeloop.housekeeping.findings import SAFETY_S, GcOptions, ReportDraft
from edgeloop.platforms import list_devices, platform_of
from edgeloop.settings import Settings


def find_on_boards(settings: Settings, options: GcOptions, draft: ReportDraft) -> None:
    """A board that a runner uses, or that does not answer, is left out with a note."""
    attached = [listed.device for listed in list_devices(settings) if listed.is_attached]
    if not attached:
        draft.notes.append("no board is attached to this machine")
    for name in attached:
        try:
            older_s = max(options.older_s, SAFETY_S)
            for found in platform_of(name).leftovers(name, settings, older_s):
                draft.add(found.kind, name, found.sizes, found.why, found.remove, found.names)
        except DeviceBusy as error:
            draft.notes.append(f"{name} was left out: {error.fields['owner']} uses it now")
        except EdgeloopError as error:
            draft.notes.append(f"{name} was left out: {error}")
