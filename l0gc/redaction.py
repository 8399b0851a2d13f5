"""Remove secrets from text of foreign origin before it is printed, logged or stored.

An error of a store, a catalog, Spark or a library may repeat what was sent. Therefore every error message and every log
record of l0gc passes through this module. It removes the values of variables with secret names, the credentials in use,
secrets registered with `keep_secrets`, and the user and password of any URL.

A setting may hold a secret among other things: `id:secret`, `AccountKey=...;...`, `sv=...&sig=...`, `Bearer ...`, or a
JSON object. Each secret part is also removed where it appears alone, and in the forms in which a protocol sends it.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import quote, quote_plus
from weakref import WeakSet

HIDDEN: Final = "***"
_SHORTEST: Final = 8
"""The length of the shortest secret that is removed; a shorter value may be an ordinary word of a message."""
_USER: Final = re.compile(r"//[^/\s]*@")
_SECRET: Final = re.compile(
    r"(?i)SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTHORIZATION|COOKIE|SIGNATURE|CONNECTION.STRING|\bsig$|"
    r"(ACCESS|API|ACCOUNT|PRIVATE|CUSTOMER).?KEY"
)
_PLACE: Final = re.compile(r"(?i)([_.-](FILE|PATH|URI|URL|DIR|EXPIRES.AT(.MS)?))$")
_NAMED: Final = re.compile(r"([A-Za-z_.-]+)=([^;&\s]+)")
"""A named part of a connection string or of a query."""
_ATTRIBUTES: Final = ("access_key", "secret_key", "token", "_access_key", "_secret_key", "_token")
_values: set[str] = set()
_credentials: WeakSet[object] = WeakSet()


def is_secret(name: str) -> bool:
    """Return whether a setting with this name holds a secret."""
    return _SECRET.search(name) is not None and _PLACE.search(name) is None


def keep_secrets(settings: Mapping[str, object]) -> None:
    """Register the secrets in these settings, so that they are removed from text from now on."""
    _values.update(_secrets_of(settings))


def keep_secrets_of(credentials: object) -> None:
    """Register the keys and the token of botocore's credentials, including those from later renewals."""
    _credentials.add(credentials)


def without_secrets(text: str) -> str:
    """Return `text` with each secret replaced by `***`."""
    text = _USER.sub(f"//{HIDDEN}@", text)
    for secret in sorted({s.strip() for s in _secrets()}, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            for form in _forms_of(secret):
                text = text.replace(form, HIDDEN)
    return text


def _forms_of(secret: str) -> Iterator[str]:
    """Yield a secret unchanged, as part of a URL or a form, in JSON, and as HTTP's basic authentication."""
    yield secret
    yield quote(secret, safe="", errors="replace")
    yield quote_plus(secret, errors="replace")
    yield json.dumps(secret)[1:-1]
    if ":" in secret:
        yield base64.b64encode(secret.encode(errors="replace")).decode()


def _parts_of(secret: str) -> Iterator[str]:
    """Yield the parts of a secret value that are secret on their own."""
    yield from secret.partition(":")[2:]
    yield from (value for name, value in _NAMED.findall(secret) if is_secret(name))
    if secret.lower().startswith(("bearer ", "basic ")):
        yield secret.split(" ", 1)[1]


def _inside(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield the texts of a setting, each with its name, including those of nested settings and of JSON in a text."""
    if isinstance(value, str):
        yield name, value
        if value.lstrip().startswith("{"):
            with suppress(ValueError, RecursionError):
                value = json.loads(value)
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _inside(str(key), inner)


def _secrets_of(settings: Mapping[str, object]) -> Iterator[str]:
    """Yield the secret values, and the user and password of an address, however malformed it is."""
    for setting, content in settings.items():
        for name, value in _inside(setting, content):
            if is_secret(name):
                yield value
                yield from _parts_of(value)
            user, _, password = value.rpartition("@")[0].rpartition("/")[2].partition(":")
            if password:
                yield from (f"{user}:{password}", password)


def _secrets() -> Iterator[str]:
    yield from _values
    yield from _secrets_of(os.environ)
    for credentials in list(_credentials):
        attributes = vars(credentials)
        yield from (attributes[name] for name in _ATTRIBUTES if isinstance(attributes.get(name), str))
