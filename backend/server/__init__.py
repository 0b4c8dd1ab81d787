"""Engine and encoder processes, and the clients through which the gateway reaches them."""
