"""Issues sessions that end, on loopback, in each way that botocore supports, and refuses ended ones.

The store accepts one permanent key; `admit` signs admitted requests anew with it.
"""

from __future__ import annotations

import json
import re
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.support.loopback import Serving

_KEY_ID: Final = re.compile(r"Credential=([^/]+)/")
_OF_A_SESSION: Final = {"authorization", "x-amz-date", "x-amz-security-token", "x-amz-content-sha256", "connection"}
_STS: Final = (
    "<{action}Response><{action}Result><Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
    "<SessionToken>{token}</SessionToken><Expiration>{until}</Expiration></Credentials></{action}Result></{action}Response>"
)


class Sessions(Serving):
    """Issues sessions at `url` for the duration of a `with` block.

    Args:
        seconds: how long each session lasts according to its issuer.
        requests: after how many requests the store refuses a session.
    """

    def __init__(self, seconds: float = 900, requests: int = 1 << 30) -> None:
        self.seconds, self.requests = seconds, requests
        self.issued = self.expired = 0
        self._used: dict[str, int] = {}
        self._lock = threading.Lock()
        issue = self._issue

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                said = issue(self.path, parse_qs(body)).encode()
                self.send_response_only(200)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            do_GET = do_POST = answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        super().__init__(server := ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        self.url = f"http://127.0.0.1:{server.server_address[1]}"

    def _issue(self, path: str, form: dict[str, list[str]]) -> str:
        """Return another session in the wording of a container's agent, STS or SSO."""
        with self._lock:
            self.issued += 1
            key, token = f"SESSION{self.issued:04}", f"token-{self.issued:04}"
            self._used[key] = 0
        end = datetime.now(UTC) + timedelta(seconds=self.seconds)
        until = end.isoformat()
        if form:
            return _STS.format(action=form["Action"][0], key=key, token=token, until=until)
        if path.startswith("/federation"):
            role = {"accessKeyId": key, "secretAccessKey": "s", "sessionToken": token}
            return json.dumps({"roleCredentials": role | {"expiration": int(end.timestamp() * 1000)}})
        return json.dumps({"AccessKeyId": key, "SecretAccessKey": "s", "Token": token, "Expiration": until})

    def end(self) -> None:
        """Let the store refuse all sessions so far."""
        with self._lock:
            self._used.clear()

    def admit(
        self, keys: Credentials, region: str, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> dict[str, str] | None:
        """Return the headers of a request for the store itself; None if its session has ended."""
        found = _KEY_ID.search(headers.get("authorization", ""))
        session = found[1] if found else ""
        with self._lock:
            if self._used.get(session, self.requests) >= self.requests:
                self.expired += 1
                return None
            self._used[session] += 1
        assert headers["x-amz-security-token"] == session.replace("SESSION", "token-")
        kept = {name: value for name, value in headers.items() if name not in _OF_A_SESSION}
        request = AWSRequest(method, f"http://{headers['host']}{path}", kept, body)
        S3SigV4Auth(keys, "s3", region).add_auth(request)
        return dict(request.headers.items())
