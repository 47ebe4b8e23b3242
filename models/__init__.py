"""How a controller is made and run: ST format, schema plan, decoder, engines, training and the bundled checkpoint."""

__version__ = "0.1.0"
