"""What the server answers where it does not do what it was asked for: a status, and words in OpenAI's form."""

from typing import Any

from ..errors import MeshaxError

HUNG_UP = 499  # of a client that did not wait for its answer; nobody sees it but the metrics


class Refusal(MeshaxError):
    """A request that the server does not take, or cannot finish."""

    def __init__(
        self,
        what: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after: int = 0,
        values: str = "",
        rule: str = "",
        fix: str = "",
    ):
        """Says what was wrong.

        Args:
            what: the first sentence.
            status: of HTTP.
            param: the field of the request that is wrong.
            code: what it is called, for programs.
            retry_after: seconds after which it may be tried again; 0: nobody knows.
            values: on which values.
            rule: which rule was broken.
            fix: what to do.
        """
        super().__init__(what, values=values, rule=rule, fix=fix)
        self.status, self.param, self.code, self.retry_after = status, param, code, retry_after

    @property
    def body(self) -> dict[str, Any]:
        """The answer."""
        return error_body(self.status, str(self), self.param, self.code)

    @property
    def headers(self) -> dict[str, str]:
        """What goes before the answer."""
        return {"Retry-After": str(self.retry_after)} if self.retry_after else {}


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Returns an error as OpenAI writes it, its lines as one."""
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
        status, "server_error" if status >= 500 else "invalid_request_error"
    )
    words = " ".join(line.strip() for line in message.splitlines())
    return {"error": {"message": words, "type": kind, "param": param, "code": code}}
