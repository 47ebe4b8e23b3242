"""What `rtcontrol run --env` takes beside the bundled environments and .py files: worlds in processes of their own."""

from __future__ import annotations

from rtcontrol.models.errors import UserError

# Name and one sentence, as `rtcontrol envs` and the error of an unknown name tell them; `cli.app` starts them.
JOINED: dict[str, str] = {
    "carla-bridge": "A car in a CARLA server, driven by the bundled bridge; or in the stand-in: --carla-standin.",
    "gym:ID": "Any Gymnasium world: gym:CartPole-v1, gym:Pendulum-v1?levels=7&precision=1 (docs/your-own-game.md).",
    "remote": "One client of the wire, a robot or a game, that connects to --bind or listens at --connect.",
}


def names() -> list[str]:
    """All names that --env takes."""
    from rtcontrol.envs import registry

    return [*registry.known(), *sorted(JOINED)]


def unknown(env: str) -> UserError:
    """The error of a name that is none of these."""
    return UserError(
        f"There is no environment called {env!r}.",
        f"Known ones: {', '.join(names())}, a .py file, or a recording (.mcap).",
    )
