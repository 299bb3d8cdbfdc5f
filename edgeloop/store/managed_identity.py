"""An Azure account opened by the machine's own identity, with nothing but the standard library: a
job's environment has obstore, and need not have Azure's packages."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from edgeloop.store.settings import token_endpoint

_LIMIT_S = 30.0
_KEPT = timedelta(minutes=20)  # a token holds for an hour and more; asking again costs little


class TokenOfMachine:
    """For obstore, which asks when what it has is about to end."""

    def __init__(self, client_id: str = "") -> None:
        self._client_id = client_id

    def __call__(self) -> dict[str, Any]:
        from urllib.parse import urlencode
        from urllib.request import Request, urlopen

        place = token_endpoint(self._client_id)
        address = f"{place.address}?{urlencode(place.query)}"
        request = Request(address, headers=dict(place.headers))  # noqa: S310
        with urlopen(request, timeout=_LIMIT_S) as answer:  # noqa: S310
            token = str(json.load(answer)["access_token"])
        return {"token": token, "expires_at": datetime.now(UTC) + _KEPT}
