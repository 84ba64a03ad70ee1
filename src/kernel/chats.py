"""How chats differ from one another: the operator's `qiwo.toml` in the data folder."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernel.errors import ConfigError
from kernel.source import ConversationId, SceneKind, Source, conversation_of

SCENE = r"^(group|private):[1-9][0-9]{0,19}$"


class Chat(BaseModel):
    """The settings of one chat."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    apart: bool = Field(False, description="true or false")
    """Each member of a group has a conversation of his own with the bot: none waits for, or reads, another's."""


class Chats(BaseModel):
    """Every chat's settings: its own, or those of `[defaults]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    defaults: Chat = Chat()
    chats: Mapping[Annotated[str, Field(pattern=SCENE)], Chat] = {}

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file, if there is one. Raises ConfigError: one sentence that says what to do."""
        try:
            text = path.read_text("utf-8-sig") if path.exists() else ""
            return cls.model_validate(_with_defaults(tomllib.loads(text)))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read ({error}): save it as readable UTF-8 text") from None
        except ValidationError as error:
            raise ConfigError(f"{path}: {_explain(error)}") from None
        except ValueError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from None

    def of(self, source: Source) -> Chat:
        return self.chats.get(str(source.scene), self.defaults)

    def conversation(self, source: Source) -> ConversationId:
        """The conversation that a source belongs to, as its chat is set."""
        return conversation_of(source, apart=source.scene.kind is SceneKind.GROUP and self.of(source).apart)


def _with_defaults(raw: dict[str, object]) -> dict[str, object]:
    """What a chat leaves out is as in `[defaults]`."""
    defaults, chats = raw.get("defaults"), raw.get("chats")
    if not isinstance(defaults, dict) or not isinstance(chats, dict):
        return raw
    return {**raw, "chats": {key: {**defaults, **one} if isinstance(one, dict) else one for key, one in chats.items()}}


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    if first["type"] == "string_pattern_mismatch":
        return f"{first['input']!r} is not a chat: write group:NUMBER or private:NUMBER"
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = ", ".join(Chat.model_fields if len(first["loc"]) > 1 else Chats.model_fields)
        return f"{where} is not a setting: write one of {known}"
    return f"{where} is {first['input']!r}: {first['msg'].lower()}"
