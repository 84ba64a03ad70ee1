"""The error tree. A failed tool call is not here: that is an outcome (`kernel.conversation`), not an exception.

KernelError
├── ConfigError   a setting or an operator's file is wrong; the message is one sentence that says what to do
├── PluginFault   a plugin cannot be registered or loaded; carries file:line
├── ToolError     raised BY a tool: "I could not do it, because …". Told to the model; not a crash
├── ModelFault    the model's server failed, in one of fourteen kinds
├── LedgerFault   the record cannot be written or read; says what to do
├── ClaimLost     this host may no longer run that chat
└── Misuse        one of the kernel's own rules was broken: a bug of ours
"""

from enum import StrEnum


class KernelError(Exception):
    """The root: everything the kernel raises on purpose."""


class ConfigError(KernelError):
    """One sentence for the operator, naming the setting or the line."""


class PluginFault(KernelError):
    """A plugin broke a rule of registration or could not be imported.

    `where` is `file:line` of the plugin's own code, or "" when unknown.
    """

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.reason = message
        self.where = where


class ToolError(KernelError):
    """Raise this in a tool to tell the model, in words, why it could not be done."""


class FaultKind(StrEnum):
    """Why a model request failed. The words are the kernel's; the adapter maps each server's dialect to them."""

    AUTH = "auth"
    BILLING = "billing"
    RATE_LIMIT = "rate_limit"
    NOT_FOUND = "not_found"
    CONTEXT_LENGTH = "context_length"
    CONTENT_FILTER = "content_filter"
    UNSUPPORTED_IMAGE = "unsupported_image"
    UNSUPPORTED_TOOLS = "unsupported_tools"
    BAD_HISTORY = "bad_history"
    BAD_REQUEST = "bad_request"
    SERVER = "server"
    CONNECTION = "connection"
    TIMEOUT = "timeout"
    TRUNCATED = "truncated"


class ModelFault(KernelError):
    """The model's server failed or answered nonsense.

    `retryable`: the same request may succeed later. `retry_after`: seconds the server asked for, if it did.
    """

    def __init__(
        self,
        kind: FaultKind,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.detail = message
        self.retryable = retryable
        self.retry_after = retry_after
        self.status = status


class LedgerFault(KernelError):
    """The record could not be written or read."""


class ClaimLost(KernelError):
    """The right to run this chat has gone to another host; stop before the next effect."""


class Misuse(KernelError):
    """A rule of the kernel was broken by the kernel: settling a call twice, an illegal move of a state."""
