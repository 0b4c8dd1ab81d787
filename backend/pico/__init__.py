"""The embedded model family `pico`: its curriculum, its training and its weights.

Nothing in the engine imports this package; it produces the files in `weights/`.
"""
