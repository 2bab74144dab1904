"""Names of runs: two words that a person can say and remember."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

from ..config.rules.layout import is_folder_name
from ..errors import ConfigError

TRIES = 64


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ADJECTIVES = _words(
    """
    amber ancient ashen azure bold brave bright brisk bronze calm candid clever copper coral crimson curious
    daring deep dusky eager early emerald fabled fearless fiery fleet fond gentle gilded glad golden hardy
    hidden honest humble indigo ivory jade jolly keen kind lively lofty lucid lunar mellow merry mighty misty
    modest nimble noble opal patient pearly placid plucky polar proud quick quiet rapid restless robust ruby
    rustic sable scarlet serene silent silver sleepy smoky solar spry stately steady stormy sturdy sunny
    swift tawny tender tidy tranquil valiant velvet verdant vivid wandering warm wary wild winged wise witty
    """
)
_NOUNS = _words(
    """
    basilisk beacon boulder brook canyon cavern cinder claw cliff cloud comet crag crest delta drake dune dusk
    eagle echo egg ember falcon fang feather fern fjord flame flint forge frost gale glacier glade glen grotto
    harbor hatchling heath heron hoard horizon island kestrel kiln lagoon lantern lava ledge lizard meadow
    meteor moor moss nest newt oasis orchard otter peak pebble phoenix pine plume pond quartz quill raven
    reef ridge river salamander scale serpent shore sky slate smoke spark spire spring spruce star stone
    storm summit talon thicket thunder tide torch valley vapor wave willow wind wing wyrm wyvern zephyr
    """
)


def random_name() -> str:
    """An adjective and a noun, such as `amber-wyvern`. Draws from the system, so no seed of a run is touched."""
    return f"{secrets.choice(_ADJECTIVES)}-{secrets.choice(_NOUNS)}"


def candidate_names() -> Iterator[str]:
    """Names to try for a new run: 64 random ones, then 64 of the form `run-<seconds since 1970>`, counted up."""
    for _ in range(TRIES):
        yield random_name()
    second = int(time.time())
    for later in range(TRIES):
        yield f"run-{second + later}"


def checked_name(name: str, origin: str) -> str:
    """The name, if it can be a directory's on every system.

    Raises:
        ConfigError: it cannot; the line names `origin`, where the name came from.
    """
    if not is_folder_name(name):
        raise ConfigError(
            f"{origin} = {name[:60]!r} cannot be a run's name; use letters, digits, '.', '_' and '-', beginning with a "
            "letter or digit, and no reserved word"
        )
    return name
