"""The doors: HTTP, HTTPS, gRPC, and the TPU, project and admin APIs behind them."""
