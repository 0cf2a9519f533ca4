"""Forms of requests and answers that all doors share."""
