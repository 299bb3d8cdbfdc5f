"""What a fleet brings to a cluster: to its supervisor once, and to each of its runners."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

ORDER_FILE = "fleet.json"  # in the working folder of the job that starts a supervisor
SUPERVISOR = "supervisor"  # the actor's name, in the namespace of its fleet
SHIPMENT_VARIABLE = "EDGELOOP_FLEET"


@dataclass(frozen=True)
class Shipment:
    """`id` tells one start of a fleet from the next: what an earlier one has started may have an
    older Edgeloop, or a password that is no longer valid. `package` is Edgeloop itself, by the
    address that Ray gave it. `requirements` are what it needs, for nodes that do not have them.
    `variables` open the store, and are secret. `words` are settings of the project, for
    `edgeloop.fleet.start`."""

    id: str
    fleet: str
    namespace: str
    package: str
    requirements: tuple[str, ...]
    words: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    def to_json(self) -> str:
        """With all secrets."""
        return json.dumps(asdict(self))

    def public_json(self) -> str:
        """With the names of the variables alone, for a process that has them."""
        return json.dumps({**asdict(self), "variables": dict.fromkeys(self.variables, "")})

    @classmethod
    def from_json(cls, text: str, environ: Mapping[str, str] | None = None) -> Shipment:
        fields = json.loads(text)
        if environ is not None:
            fields["variables"] = {name: environ[name] for name in fields["variables"]}
        lists = {name: tuple(fields[name]) for name in ("requirements", "words")}
        return cls(**{**fields, **lists})
