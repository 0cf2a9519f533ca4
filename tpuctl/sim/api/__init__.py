"""The servers: HTTP, HTTPS and gRPC, and the TPU, project and admin APIs behind them."""
