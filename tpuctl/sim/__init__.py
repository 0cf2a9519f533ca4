"""The simulated cloud: Google's real APIs answered locally, with real hosts behind them."""
