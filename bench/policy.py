"""What one decision costs, and the listing of tools for one request: `uv run python bench/policy.py`."""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from kernel.policy import Act, Policy, compose, parse, read, shipped
from kernel.source import Role, Scene, SceneKind, Source
from kernel.tools import Risk

ROUNDS, TIMES = 20, 200
RULE = '[[rule]]\nname = "r{n}"\ntools = "x{n}_*"\nchats = [{n}, 10001]\ndecision = "allow"\nbecause = "b"\n'


def best_of(call: Callable[[], object]) -> float:
    """Microseconds of this process's own work for one call: the quickest round, since others use the machine too."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(TIMES):
            call()
        best = min(best, (time.process_time() - start) / TIMES)
    return best * 1e6


def shown(policy: Policy, source: Source, tainted: bool) -> int:
    return sum(policy.shows(source, f"tool_{number}", Risk.READ, tainted=tainted) for number in range(100))


def main() -> None:
    qq = read(Path(__file__).resolve().parent.parent / "src" / "plugins" / "qq" / "policy.toml")
    fifty = parse("\n".join(RULE.format(n=n) for n in range(1, 51)), "fifty rules")
    policy = compose(fifty, (qq,), shipped())
    source = Source("qq", "1", Scene(SceneKind.GROUP, "10001"), "2", Role.MEMBER)
    print("| what | µs |\n|---|---|")
    for tainted in (False, True):
        act = Act("time_now", Risk.READ, tainted=tainted)
        decision = best_of(partial(policy.decide, source, act))
        listing = best_of(partial(shown, policy, source, tainted))
        print(f"| a decision, 50 rules of the operator, tainted={tainted} | {decision:.1f} |")
        print(f"| listing 100 tools, tainted={tainted} | {listing:.0f} |")


if __name__ == "__main__":
    main()
