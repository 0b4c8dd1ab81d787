"""The embedded model family `pico`: curriculum, training and weights.

The engine does not import this package; it only loads `weights/`.
"""
