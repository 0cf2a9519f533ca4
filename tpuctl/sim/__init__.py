"""The simulated cloud: Google's real APIs with real hosts behind them."""
