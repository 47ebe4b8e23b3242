"""SimpleTool's three browser games (github.com/HaxxorCialtion/SimpleTool, demos/): what each asks, and a rule that
plays it. The games themselves stay where they are: tests and users fetch them."""

from rtcontrol.envs.simpletool import arena, flappy, pong
from rtcontrol.envs.simpletool.game import BrowserGame, PageRequest

GAMES: dict[str, BrowserGame] = {game.name: game for game in (pong.GAME, flappy.GAME, arena.GAME)}

__all__ = ["GAMES", "BrowserGame", "PageRequest"]
