"""Tokens: who asks, for what, until when. Nothing is signed; a token is known or it is not."""

from __future__ import annotations

import base64
import json
import secrets
import time
from typing import Any

from azure.core.credentials import AccessToken

from tests.peers.azureml.server import Faults, Request, Response, Route, ServiceError

TENANT = "00000000-0000-0000-0000-000000000000"
USER = "user"
_CHALLENGE = (
    'Bearer authorization_uri="https://login.localhost/{tenant}", error="invalid_token", '
    'error_description="{what}"'
)


class Identities:
    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._issued: dict[str, str] = {}
        self._secrets = {secrets.token_hex(16): USER}
        self.audiences: set[str] = set()

    def routes(self) -> list[Route]:
        return [Route("GET", "/identity/token", self._give, is_open=True)]

    def secret_of(self, who: str) -> str:
        """What an identity shows at the token endpoint: made for a job when it is started."""
        known = next((secret for secret, name in self._secrets.items() if name == who), None)
        if known is None:
            self._secrets[known := secrets.token_hex(16)] = who
        return known

    def revoke(self, who: str) -> None:
        """Whoever used it is gone (a job that has ended)."""
        self._secrets = {s: name for s, name in self._secrets.items() if name != who}

    def issue(self, audience: str, who: str = USER) -> AccessToken:
        now = time.time()
        expiry = now + self._faults.token_lifetime_s
        claims: dict[str, Any] = {
            "aud": audience,
            "iss": f"https://sts.windows.net/{TENANT}/",
            "tid": TENANT,
            "oid": who,
            "iat": int(now) - 1,
            "nbf": int(now) - 60,
            "exp": int(expiry),
        }
        parts = ({"alg": "none", "typ": "JWT"}, claims, secrets.token_hex(8))
        token = ".".join(_base64url(json.dumps(part).encode()) for part in parts)
        self._issued[token] = who
        return AccessToken(token, int(expiry))

    def authenticate(self, request: Request, route: Route) -> str:
        if route.is_open:
            return ""
        headers = {name.lower(): value for name, value in request.headers.items()}
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind != "Bearer":
            raise _refusal("AuthenticationFailed", "The 'Authorization' header is missing.")
        if token not in self._issued:
            raise _refusal("InvalidAuthenticationToken", "The access token is invalid.")
        who = self._issued[token]
        claims = json.loads(_unbase64url(token.split(".")[1]))
        if claims["exp"] < time.time():
            raise _refusal("ExpiredAuthenticationToken", "The access token expired.")
        if claims["aud"].rstrip("/") not in self.audiences:
            what = f"The audience '{claims['aud']}' is invalid."
            raise _refusal("InvalidAuthenticationTokenAudience", what)
        return who

    def _give(self, request: Request) -> Response:
        """As App Service (X-IDENTITY-HEADER) and as Azure ML (secret) ask for tokens."""
        if self._faults.logged_out:
            raise ServiceError(400, "invalid_request", "Identity not found")
        headers = {name.lower(): value for name, value in request.headers.items()}
        shown = headers.get("x-identity-header") or headers.get("secret") or ""
        who = self._secrets.get(shown)
        if who is None:
            raise ServiceError(401, "Unauthorized", "the header does not fit")
        token = self.issue(request.query["resource"], who)
        body = {
            "access_token": token.token,
            "expires_on": str(token.expires_on),
            "resource": request.query["resource"],
            "token_type": "Bearer",
        }
        return Response(200, body)


class Credential:
    """As azure-identity's are, for clients in the same process."""

    def __init__(self, identities: Identities, who: str = USER) -> None:
        self._identities, self._who = identities, who

    def get_token(self, *scopes: str, **_: object) -> AccessToken:
        return self._identities.issue(scopes[0].removesuffix("/.default"), self._who)


def _refusal(code: str, what: str) -> ServiceError:
    challenge = _CHALLENGE.format(tenant=TENANT, what=what)
    return ServiceError(401, code, what, {"WWW-Authenticate": challenge})


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _unbase64url(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
