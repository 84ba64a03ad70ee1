"""A plugin for tests: hooks that refuse, crash, and change arguments, each for one tool of its own."""

from kernel import Before, Plugin, Proceed, Refuse

plugin = Plugin("checks")


@plugin.tool(risk="read", parallel=True)
async def guarded(word: str = "") -> str:
    """A tool behind a hook.

    Args:
        word: `no` is refused by the hook, `new` is changed, `bad` is changed into what does not fit.
    """
    return f"ran with {word!r}"


@plugin.stage("before_toolcall", own=True)
async def check(call: Before) -> Proceed | Refuse | None:
    match call.arguments.get("word"):
        case "no":
            return Refuse("that word is not spoken here")
        case "new":
            return Proceed({"word": "newer"})
        case "bad":
            return Proceed({"word": ["not", "a", "string"]})
        case "crash":
            raise RuntimeError("the check itself broke")
    return None
