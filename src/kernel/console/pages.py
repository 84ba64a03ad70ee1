"""What a supervisor and a monitor ask over HTTP: /healthz, /readyz, /metrics. No secrets, no texts of chats."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from kernel.app import Kernel
from kernel.status import Status


def mount(app: Starlette, kernel: Kernel) -> None:
    """Add the three pages to the app."""

    async def healthz(request: Request) -> Response:
        return PlainTextResponse("ok")

    async def readyz(request: Request) -> Response:
        """200 when an account is connected and the record can be written, else 503 with what is missing."""
        missing = await kernel.missing()
        return JSONResponse({"ready": not missing, "missing": missing}, 503 if missing else 200)

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(exposition(kernel.status()), media_type="text/plain; version=0.0.4")

    app.add_route("/healthz", healthz)
    app.add_route("/readyz", readyz)
    app.add_route("/metrics", metrics)


def exposition(status: Status) -> str:
    """The status in Prometheus' text format 0.0.4."""
    resting = sum(row.state != "healthy" for row in status.health)
    lines = [
        f"qiwo_uptime_seconds {status.uptime:.3f}",
        f"qiwo_accounts_connected {len(status.accounts)}",
        f"qiwo_turns_running {status.running}",
        f"qiwo_health_keys_resting {resting}",
    ]
    lines += [f'qiwo_events_total{{kind="{kind}"}} {count}' for kind, count in sorted(status.counts.items())]
    return "\n".join(lines) + "\n"
